"""Polestar's kernels: one file each with a Triton kernel, its PyTorch reference and a checked dispatching function.

Importing this package needs neither Triton, a driver nor a GPU; a CUDA tensor with Triton present runs the kernel, anything else the
PyTorch path, with the same results. Knows tensors only: no model, no tokenizer, no decode.

The name is also that of a library which transformers imports when it is installed. When ours is found first, whatever is asked of this
package and is not here (``from kernels import LayerRepository``) is looked up in that library; this package therefore has no
``__version__`` and no module named like one of that library's.
"""

import importlib.machinery
import importlib.util
import os
import sys

_OWN_DIR = os.path.dirname(os.path.abspath(__file__))
_foreign = None


def _load_foreign():
    """The other library of this name, executed beside this package; None where it is not installed."""
    global _foreign
    if _foreign is None:
        _foreign = False
        elsewhere = [p for p in sys.path if os.path.abspath(os.path.join(p or os.curdir, "kernels")) != _OWN_DIR]
        spec = importlib.machinery.PathFinder.find_spec(__name__, elsewhere)
        if spec is not None and spec.loader is not None and spec.submodule_search_locations:
            __path__.extend(p for p in spec.submodule_search_locations if p not in __path__)
            module = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(module)
            except BaseException:
                _foreign = None
                raise
            _foreign = module
    return _foreign or None


def __getattr__(name):
    if name.startswith("__"):  # __version__ and friends: asking must not load the other library
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
    foreign = _load_foreign()
    if foreign is not None and hasattr(foreign, name):
        return getattr(foreign, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
