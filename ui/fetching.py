"""Fetching a registered model from the page: what it needs, what this machine has, a button, progress.

Contract: nothing is fetched before the button is pressed. One download at a time, in its own thread; it goes on when the page is left, every tab sees it,
and what has come stays when it is stopped. Model files are looked for on this machine only (no network) when a model is chosen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from .controls import classes, seen

TICK = 0.25
BUNDLED = "demo"


class Stopped(Exception):
    """The person stopped the download."""


class Fetcher:
    """The download of one server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self.name, self.text = "", ""

    @property
    def busy(self) -> bool:
        """Is a download going on?"""
        return self._thread is not None and self._thread.is_alive()

    def about(self, model: str) -> tuple[str, bool]:
        """(what to read before `model` is fetched, may it be fetched now). ("", False) for what needs no download: bundled, here already, or a folder."""
        from polestar.models import download, machine, registry

        try:
            entry = registry.find(model)
        except ValueError as error:
            return str(error), False
        if entry is None or not entry.repo or download.cached(entry) is not None:
            return "", False
        lines = [f"{entry.name} is not on this machine.", *download.before(entry, machine.this_machine()), f"Licence: {entry.licence}."]
        if offline := _offline():
            lines.append("Downloads are off (HF_HUB_OFFLINE); start the app without it, or give a folder that holds the model.")
        return " ".join(lines), not offline

    def start(self, model: str) -> None:
        """Begin, in a new thread. Raises ValueError while another download goes on, or when there is nothing of that name to fetch."""
        from polestar.models import registry

        entry = registry.find(model)
        if entry is None or not entry.repo:
            raise ValueError(f"{model!r} is no model that can be fetched; choose one of the list")
        with self._lock:
            if self.busy:
                if self.name == entry.name:
                    return
                raise ValueError(f"{self.name} is being fetched; wait for it, or stop it first")
            self._stop.clear()
            self.name, self.text = entry.name, f"asking for {entry.name}"
            self._thread = threading.Thread(target=self._work, args=(entry,), name="polestar-download", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the download; complete files stay."""
        self._stop.set()

    def _work(self, entry: Any) -> None:
        from polestar.models import download

        def progress(done: int, total: int) -> None:
            if self._stop.is_set():
                raise Stopped
            self.text = f"fetching {entry.name}: {done / 1e9:.2f} of {total / 1e9:.2f} GB"

        try:
            download.download(entry, progress=progress)
            self.text = f"{entry.name} is on this machine now; press Run."
        except Stopped:
            self.text = f"The download of {entry.name} was stopped; what has come is kept, and fetching again goes on from there."
        except Exception as error:  # whatever it is, the page says it and the thread ends
            self.text = str(error).splitlines()[0] if str(error) else type(error).__name__


@dataclass(frozen=True)
class Fetch:
    """The components."""

    panel: gr.Column
    text: gr.Textbox
    go: gr.Button
    stop: gr.Button


def make_fetch() -> Fetch:
    """The panel, hidden until a model is chosen that is not here. Make it inside a `gr.Blocks`."""
    with gr.Column(elem_classes=classes(False), elem_id="ps-fetch") as panel:
        text = gr.Textbox(show_label=False, container=False, interactive=False, lines=2, max_lines=4, elem_id="ps-fetch-text")
        with gr.Row():
            go = gr.Button("Fetch this model", variant="primary", size="sm", elem_id="ps-fetch-go")
            stop = gr.Button("Stop", size="sm", visible="hidden", elem_id="ps-fetch-stop")
    return Fetch(panel, text, go, stop)


def wire(page: gr.Blocks, model: gr.Dropdown, fetch: Fetch, fetcher: Fetcher) -> None:
    """Connect the panel. Call inside the open Blocks."""
    options = {"show_progress": "hidden", "trigger_mode": "multiple", "concurrency_limit": None, "api_visibility": "private"}
    shown = [fetch.panel, fetch.text, fetch.go, fetch.stop]

    def look(name: str):
        if name == BUNDLED and not fetcher.busy:  # said without importing the engine
            return _panel("")
        if fetcher.busy:
            return _panel(fetcher.text, going=True)
        try:
            text, may = fetcher.about(name or "")
        except (ValueError, OSError) as error:
            text, may = str(error), False
        return _panel(text, may=may)

    def go(name: str) -> Iterator[list[Any]]:
        try:
            fetcher.start(name or "")
        except ValueError as error:
            yield _panel(str(error))
            return
        before = ""
        while fetcher.busy:
            if fetcher.text != before:
                before = fetcher.text
                yield _panel(before, going=True)
            time.sleep(TICK)
        yield _panel(fetcher.text, may=bool(fetcher.about(name)[0]))

    def stop() -> None:
        fetcher.stop()

    page.load(look, model, shown, **options)
    model.change(look, model, shown, **options)
    fetch.go.click(go, model, shown, **options)
    fetch.stop.click(stop, None, None, queue=False, show_progress="hidden", api_visibility="private")


def _panel(text: str, *, may: bool = False, going: bool = False) -> list[Any]:
    return [gr.update(elem_classes=classes(bool(text))), text, gr.update(visible=seen(may)), gr.update(visible=seen(going))]


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
