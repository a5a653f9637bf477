"""Polestar: drift-aware decoding of masked diffusion LLMs, as a log of steps.

    from polestar import DecodeConfig, decode, load_model
    loaded = load_model("demo")
    trace = decode(loaded, loaded.codec.encode_chat("Start with 6, 13, 17. Copy it."), DecodeConfig.make(gen_length=64))

Needs neither a GPU, triton nor gradio.
"""

from polestar import kernelpath

kernelpath.ensure()

__version__ = "0.1.0"

_LAZY = {
    "DecodeConfig": "polestar.config",
    "METHODS": "polestar.decoders",
    "Decoder": "polestar.driver",
    "decode": "polestar.driver",
    "load_model": "polestar.models.checkpoint",
    "Trace": "polestar.trace.trace",
    "Step": "polestar.trace.step",
    "Session": "polestar.session",
}
__all__ = ["__version__", *_LAZY]


def __getattr__(name: str):
    """Public names, imported when first used, so that `import polestar` costs nothing."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'polestar' has no attribute {name!r}")
