"""The guided lessons as the page gets them: one Markdown file each, in assets/lessons.

Contract: a file begins with front matter (`---`, lines `name: value`, `---`); `title` and `order` are read here, the rest is the page's. A file
without them is listed by its name, last. Nothing is cached: a teacher's new file is there at the next visit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .static import ASSETS

FOLDER = ASSETS / "lessons"
MOST_BYTES = 200_000


def front_matter(text: str) -> dict[str, str]:
    """The names and values between the first two lines of `---`; empty where there are none."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    out = {}
    for line in lines[1:]:
        if line.strip() == "---":
            return out
        name, colon, value = line.partition(":")
        if colon:
            out[name.strip()] = value.strip().strip("'\"")
    return {}


def lessons(folder: Path = FOLDER) -> dict[str, Any]:
    """The event `lessons`, in order."""
    found = []
    for path in sorted(folder.glob("*.md")):
        if path.stem.lower() == "readme" or path.stat().st_size > MOST_BYTES:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        about = front_matter(text)
        order = int(about["order"]) if about.get("order", "").isdecimal() else 999
        found.append({"name": path.stem, "title": about.get("title") or path.stem.replace("-", " "), "order": order, "markdown": text})
    return {"type": "lessons", "list": sorted(found, key=lambda x: (x["order"], x["name"]))}
