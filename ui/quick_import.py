"""Import gradio in half the time.

Contract: call `quicken()` before the first `import gradio`; afterwards gradio is as it always is, except that it does not write type
stubs (`.pyi` files beside its own sources) while it is imported. Rendering and comparing those stubs takes about two seconds, on
every start, and fails where site-packages is read-only.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys

_MODULE = "gradio.component_meta"


class _NoStubs(importlib.abc.MetaPathFinder):
    """Finds `gradio.component_meta` once, and leaves its stub writer out."""

    def find_spec(self, name, path, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module) -> None:
            run(module)
            if hasattr(module, "create_or_modify_pyi"):
                module.create_or_modify_pyi = lambda *args, **kwargs: None

        spec.loader.exec_module = exec_module
        return spec


def quicken() -> None:
    """Install the finder, unless gradio is there already."""
    if _MODULE not in sys.modules and not any(isinstance(f, _NoStubs) for f in sys.meta_path):
        sys.meta_path.insert(0, _NoStubs())
