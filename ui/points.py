"""UMAP for the page, in a process of its own.

Contract: `Projector.ask` answers by a callback when it is done, seconds later or more; the first answer pays for importing and compiling.
Nothing of it runs in the server's process, so that neither the page nor a decode feels it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import numpy as np

from polestar.trace.wire import b64

Frames = list[tuple[int, np.ndarray]]


def _work(frames: Frames, seed: int) -> Frames:
    import warnings

    from polestar.analysis.projection import umap_frames

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return umap_frames(frames, seed)


def _humble() -> None:
    """Let decodes go first, and do not outlive the server."""
    if hasattr(os, "nice"):
        os.nice(10)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


class Projector:
    """One worker process, started when first asked."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def ask(self, frames: Frames, seed: int, answer: Callable[[list[dict[str, Any]] | None, str], None]) -> None:
        """Project; `answer(frames as the stream has them, "")` or `answer(None, sentence)` is called from another thread."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_humble)

        def done(future: Future) -> None:
            try:
                placed = future.result()
            except Exception as error:
                self._pool = None  # a pool whose process died never answers again
                answer(None, f"UMAP could not be computed ({type(error).__name__}: {error}); PCA stays")
                return
            answer([{"i": i, "xy": b64(xy, "f4")} for i, xy in placed], "")

        self._pool.submit(_work, frames, seed).add_done_callback(done)

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
