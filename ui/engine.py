"""What the page asks of the engine, and nothing else.

Contract: `Engine` loads models (one kept at a time) and makes sessions; it imports torch and the engine only when first asked, so that
the page is up before they are. Every method may be called from a worker thread. Errors are ValueError (or a subclass) whose message is
one sentence for the person.
"""

from __future__ import annotations

import gc
import threading
from typing import Any


class Engine:
    """The real engine, `polestar`."""

    def __init__(self, device: str | None = None, dtype: str | None = None):
        self.device, self.dtype = device, dtype
        self._lock = threading.Lock()
        self._name: str | None = None
        self._loaded: Any = None
        self._warm: set[tuple[str, str]] = set()

    def names(self) -> list[str]:
        """Models offered by name."""
        from polestar.models.registry import CHECKPOINTS

        return list(CHECKPOINTS)

    def load(self, name: str) -> Any:
        """The model called `name` (a registered name or a folder); the one before it is let go first."""
        from polestar.models.checkpoint import load_model

        with self._lock:
            if self._name != name:
                self._loaded, self._name = None, None
                gc.collect()
                self._loaded = load_model(name, device=self.device, dtype=self.dtype)
                self._name = name
            return self._loaded

    def codec(self, loaded: Any) -> Any:
        """The text side of a loaded model (encode_chat, decode, token_text, token_bytes)."""
        return loaded.codec

    def session(self, loaded: Any, prompt_ids: list[int], config: Any, level: str) -> Any:
        """A new session; nothing has been computed yet."""
        from polestar.session import Session

        return Session(loaded, prompt_ids, config, level=level)

    def config(self, method: str, preset: str, values: dict[str, Any]) -> Any:
        """A valid DecodeConfig."""
        from polestar.config import DecodeConfig

        return DecodeConfig.make(method=method, preset=preset, **values)

    def warm_up(self, loaded: Any, config: Any) -> None:
        """Decode one short block once for each model and method, so that the first timed run is not the slow one."""
        key = (self._name or "", config.method)
        if key in self._warm:
            return
        short = config.replace(gen_length=min(config.gen_length, config.block_length, 16))
        ids = self.codec(loaded).encode_chat("warm up")
        for _ in self.session(loaded, ids, short, "off").steps():
            pass
        self._warm.add(key)
