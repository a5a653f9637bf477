"""Makes `import kernels.nvfp4` find our package also where a library of the same name was found first.

Contract: `ensure()` changes nothing but the search path of the `kernels` package, and only when that package is not ours. (The opposite case, ours
found first and the library wanted, is handled by `kernels/__init__.py`.)
"""

from __future__ import annotations

import importlib
from pathlib import Path


def ensure() -> None:
    """Let the modules of our `kernels` folder be found, after those of whichever package bears the name."""
    own = Path(__file__).resolve().parent.parent / "kernels"
    package = importlib.import_module("kernels")
    if own.is_dir() and not any(Path(entry).resolve() == own for entry in package.__path__):
        package.__path__.append(str(own))
