"""The tables of methods and models, as the page needs them, without waiting for torch.

Contract: `begin()` reads the engine's tables in a second process, beside the import of gradio; `get` waits for it. The page can then be up
before this process has imported torch. Where the second process fails, the tables are read here. Nothing is cached: what is shown is what
the sources say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polestar.config import Param

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """A row of `polestar.decoders.METHODS` without its policies."""

    name: str
    title: str
    help: str
    note: str
    specs: dict[str, Param]
    presets: dict[str, dict[str, Any]]
    blocks: str = "fixed"  # how its blocks lie, see `BlockScheduler.shape`


@dataclass(frozen=True)
class Tables:
    """Methods by name, and (name, sentence) of each model."""

    methods: dict[str, MethodRow]
    models: list[tuple[str, str]]

    @classmethod
    def read(cls) -> Tables:
        """From the engine, in this process (imports torch)."""
        from polestar.decoders import METHODS
        from polestar.models.registry import REGISTRY

        rows = {
            m.name: MethodRow(name=m.name, title=m.title, help=m.help, note=m.note, specs=dict(m.specs), presets=dict(m.presets), blocks=m.scheduler.shape)
            for m in METHODS.values()
        }
        return cls(rows, [(e.name, e.about) for e in REGISTRY])

    def to_json(self) -> str:
        """For another process."""

        def plain(value: Any) -> Any:
            return value.__name__ if isinstance(value, type) else value

        methods = [
            {**asdict(m), "specs": [{k: plain(v) for k, v in asdict(p).items()} for p in m.specs.values()]} for m in self.methods.values()
        ]
        return json.dumps({"methods": methods, "models": self.models})

    @classmethod
    def from_json(cls, text: str) -> Tables:
        """The inverse of `to_json`."""
        data = json.loads(text)
        methods = {}
        for m in data["methods"]:
            specs = [Param(**{**p, "kind": KINDS[p["kind"]], "choices": tuple(p["choices"])}) for p in m["specs"]]
            methods[m["name"]] = MethodRow(**{**m, "specs": {p.name: p for p in specs}})
        return cls(methods, [tuple(m) for m in data["models"]])

    def params(self) -> dict[str, Param]:
        """Every parameter of every method, in the order of the tables."""
        found: dict[str, Param] = {}
        longest = max(self.methods.values(), key=lambda m: len(m.specs))
        for method in (longest, *self.methods.values()):
            for name, param in method.specs.items():
                found.setdefault(name, param)
        return found


def begin() -> subprocess.Popen | None:
    """Start reading the tables in another process; None where that is not possible."""
    try:
        return subprocess.Popen([sys.executable, "-m", "ui.tables"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def get(process: subprocess.Popen | None) -> Tables:
    """The tables that `begin` reads. Waits for them."""
    if process is not None:
        text, _ = process.communicate()
        if process.returncode == 0:
            return Tables.from_json(text.decode())
    return Tables.read()


if __name__ == "__main__":
    sys.stdout.write(Tables.read().to_json())
