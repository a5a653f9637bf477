"""dLLM-Cache: prompt and generation refreshed at intervals, in between the rows whose values turned most (arXiv 2506.06295).

Contract: as `polestar.cache.dynamic` without its window, and with the same budget rho L_G in every layer: Dynamic-dLLM is built on it. Layer 0 is always
computed in full. The rows taken are those of lowest cosine between new and cached value. Its cache of guidance differences has no place here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polestar.cache.dynamic import DynamicCache
from polestar.config import Param

if TYPE_CHECKING:
    from polestar.driver import Run

DLLM_PARAMS = (
    Param(name="prompt_interval", symbol="K_p", kind=int, default=50, minimum=1, maximum=10**6, step=1, group="cache", live="pass",
          help="Every prompt row is recomputed once in this many passes."),
    Param(name="gen_interval", symbol="K_r", kind=int, default=7, minimum=1, maximum=10**6, step=1, group="cache", live="pass",
          help="Every generated row is recomputed once in this many passes."),
    Param(name="rho", symbol="ρ", kind=float, default=0.25, minimum=0.0, maximum=1.0, step=0.05, group="cache", live="pass",
          help="Share of the generated rows that a layer recomputes in the other passes, those whose value turned most."),
)


class DLLMCache(DynamicCache):
    """The state is `DynamicCache`'s."""

    def window(self, run: Run) -> tuple[int, int]:
        return 0, 0

    def budgets(self, run: Run) -> list[int]:
        return [int(run.config.rho * (run.length - run.prompt_length))] * run.model.cfg.n_layers
