"""Fetching a registered checkpoint, only when asked.

Contract: `download(entry)` fetches safetensors, configs and tokenizer files of the pinned revision (never code) through `huggingface_hub`, and
honours HF_HUB_OFFLINE. A transfer that breaks off is taken up again where it was; after a stop, complete files are kept. `cached(entry)` looks on
this machine only. Before anything is fetched, `before(entry, ...)` says what is needed and what the machine has.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from polestar.models import machine, weights
from polestar.models.machine import Machine
from polestar.models.registry import Entry

# What a checkpoint is made of here. Code of a repository is never fetched.
FILES = [
    "*.safetensors", "model.safetensors.index.json", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
]  # fmt: skip


class DownloadError(ValueError):
    """The checkpoint could not be fetched; one sentence says why and what to do."""


def cached(entry: Entry, directory: str | Path | None = None) -> Path | None:
    """Where the complete checkpoint lies on this machine, None when it does not. Touches no network."""
    if directory is not None:
        found = Path(directory).expanduser()
    else:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            found = Path(snapshot_download(entry.repo, revision=entry.revision or "main", allow_patterns=FILES, local_files_only=True))
        except (LocalEntryNotFoundError, OSError):
            return None
    try:
        return found if (found / "config.json").is_file() and weights.shards(found) else None
    except weights.CheckpointError:
        return None


def before(entry: Entry, on: Machine) -> list[str]:
    """Sentences to read before a download: what it needs, what this machine has, and where it will run or how it could."""
    lines = [f"{entry.name} needs {machine.needs(entry.size)}; {on.sentence()}."]
    try:
        lines.append(f"It will run as {machine.choose(entry.size, on, name=entry.name).note}.")
    except machine.NotEnoughMemory:
        lines.append("It does not fit as it is: " + "; or ".join(machine.options(entry.size, on)) + ".")
    return lines


def download(
    entry: Entry,
    *,
    directory: str | Path | None = None,
    offline: bool = False,
    progress: Callable[[int, int], None] | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch `entry` into the hub's cache (or `directory`) and return its path; what is there already is not fetched again.

    `progress(done, total)` counts bytes and may raise to stop; without it a bar is drawn on stderr. Raises DownloadError.
    """
    if not entry.repo:
        raise DownloadError(f"{entry.name} is bundled; there is nothing to download")
    if (found := cached(entry, directory)) is not None:
        return found
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if offline or constants.HF_HUB_OFFLINE:
        raise DownloadError(
            f"{entry.name} is not complete on this machine and downloads are off ({'--offline' if offline else 'HF_HUB_OFFLINE'}); "
            "allow them, give a directory that holds it, or use the bundled model (demo)"
        )
    target = Path(directory).expanduser() if directory is not None else Path(constants.HF_HUB_CACHE)
    need, free = entry.size.bytes(torch.bfloat16), _free(target)
    if need > free:
        raise DownloadError(
            f"{entry.name} takes {machine.gb(need)} and {target} has {machine.gb(free)} free; free some space or give another place (--dir, HF_HOME)"
        )
    where = {"local_dir": str(target)} if directory is not None else {}
    report = _Report(progress) if progress is not None else None
    try:
        path = Path(
            snapshot_download(
                entry.repo,
                revision=entry.revision or "main",
                allow_patterns=FILES,
                endpoint=endpoint,
                tqdm_class=_reporter(report) if report is not None else None,
                **where,
            )
        )
    except LocalEntryNotFoundError as error:
        raise DownloadError(f"{entry.repo} could not be reached ({_brief(error)}); check the connection and run the same command again to go on") from None
    except HfHubHTTPError as error:
        raise DownloadError(f"{entry.repo} refused the download ({_brief(error)}); check the name and your access to it") from None
    except Exception as error:  # the hub's client lets its transport's own kinds of error through, and OSError
        if report is not None and report.stopped is not None:
            raise report.stopped from None
        raise DownloadError(f"the download of {entry.name} stopped ({_brief(error)}); run the same command again to go on where it stopped") from None
    if cached(entry, path) is None:
        raise DownloadError(f"{entry.repo} was fetched to {path} but is not complete; run the same command again")
    return path


def _free(target: Path) -> int:
    """Bytes free where `target` is or will be."""
    while not target.exists() and target != target.parent:
        target = target.parent
    return shutil.disk_usage(target).free


def _brief(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


class _Report:
    """Calls `progress`, and keeps what it raised: that is a wish to stop, not a failure."""

    def __init__(self, progress: Callable[[int, int], None]):
        self.progress = progress
        self.stopped: BaseException | None = None

    def __call__(self, done: int, total: int) -> None:
        if self.stopped is None:
            try:
                self.progress(done, total)
            except BaseException as error:
                self.stopped = error
        if self.stopped is not None:
            raise self.stopped


def _reporter(report: _Report) -> type:
    """A progress-bar class that draws nothing and reports bytes written (the hub also counts files and bytes received)."""
    from tqdm.auto import tqdm

    class Reporter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any):
            name = str(kwargs.pop("name", "") or "") + str(kwargs.get("desc", ""))
            self._counts_bytes = kwargs.get("unit") == "B" and "transfer" not in name and "Downloading bytes" not in name
            super().__init__(*args, **{**kwargs, "disable": False, "file": _Nowhere()})

        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            if self._counts_bytes and self.total:
                report(int(self.n), int(self.total))
            return shown

    return Reporter


class _Nowhere:
    """A text sink."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""
