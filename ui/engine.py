"""What the page asks of the engine, and nothing else.

Contract: `Engine` loads models (one kept at a time) and makes sessions; it imports torch and the engine only when first asked, so that
the page is up before they are. Every method may be called from a worker thread. Errors are ValueError (or a subclass) whose message is
one sentence for the person.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any


class Engine:
    """The real engine, `polestar`."""

    def __init__(self, device: str | None = None, dtype: str | None = None, quantize: str | None = None, threads: int | None = None, *, graphs: bool = False):
        self.device, self.dtype, self.quantize, self.threads, self.graphs = device, dtype, quantize, threads, graphs
        self._lock = threading.Lock()
        self._name: str | None = None
        self._loaded: Any = None
        self._warm: set[tuple[str, int]] = set()

    def prepare(self) -> None:
        """Import what the first run needs."""
        import_module("polestar.models.checkpoint")
        import_module("polestar.session")

    def load(self, name: str, progress: Callable[[int, int], None] | None = None) -> Any:
        """The model called `name` (a registered name or a folder); the one before it is let go first. `progress(done, total)` in bytes."""
        from torch import set_num_threads

        from polestar.models.checkpoint import load_model
        from polestar.models.machine import cpu_threads

        with self._lock:
            if self._name != name:
                gc.unfreeze()
                before, self._loaded, self._name = self._loaded, None, None
                self._warm.clear()
                if before is not None:
                    before.free()
                self._loaded = load_model(name, device=self.device, dtype=self.dtype, quantize=self.quantize, progress=progress)
                self._name = name
                _settle()
                set_num_threads(self.threads or cpu_threads(self._loaded.model))
            return self._loaded

    def codec(self, loaded: Any) -> Any:
        """The text side of a loaded model (encode_chat, decode, token_text, token_bytes)."""
        return loaded.codec

    def session(self, loaded: Any, prompt: str | list[dict[str, str]], config: Any, level: str) -> Any:
        """A new session on a prompt or a conversation; nothing has been computed yet. Level "observe" is full with a shadow pass.

        The first one of a method and length on a model warms up before it is timed.
        """
        from polestar.session import Session

        ids = loaded.codec.encode_chat(prompt)
        key = (config.method, len(ids) + config["gen_length"])
        cold = key not in self._warm
        self._warm.add(key)
        text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        observe = level == "observe"
        return Session(loaded, ids, config, level="full" if observe else level, prompt_text=text, warm_up=cold, observe=observe, graphs=self.graphs)

    def fork(self, loaded: Any, trace: Any, at_pass: int, **how: Any) -> Any:
        """A session that stands after pass `at_pass` of a recording, see `polestar.fork`. Takes as long as the passes up to there."""
        from polestar.fork import fork

        session = fork(loaded, trace, at_pass, **how)
        if self.graphs:
            from polestar.graphs import use

            use(session.decoder)
        return session

    def config(self, method: str, preset: str, values: dict[str, Any]) -> Any:
        """A valid DecodeConfig."""
        from polestar.config import DecodeConfig

        return DecodeConfig.make(method=method, preset=preset, **values)


def _settle() -> None:
    """What is loaded stays: leave its half a million objects out of later garbage collections, each of which would stop a decode for a tenth of a second."""
    gc.collect()
    gc.freeze()
