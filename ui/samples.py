"""The sample traces that come with the project (assets/traces).

Contract: a sample is opened by its bare name; nothing outside the folder can be named.
"""

from __future__ import annotations

from pathlib import Path

from .static import ASSETS

FOLDER = ASSETS / "traces"
SUFFIX = ".safetensors"


def samples() -> list[dict[str, str]]:
    """{"name", "title"} of each sample, by name."""
    return [{"name": p.stem, "title": p.stem.replace("_", " ")} for p in sorted(FOLDER.glob(f"*{SUFFIX}"))]


def sample_path(name: str) -> Path:
    """The file of a sample. Raises ValueError when there is none of that name."""
    known = {p.stem: p for p in FOLDER.glob(f"*{SUFFIX}")}
    if name not in known:
        raise ValueError(f"there is no sample trace called {name!r}; there are {', '.join(sorted(known)) or 'none'}")
    return known[name]
