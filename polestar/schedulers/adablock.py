"""AdaBlock-dLLM: blocks that end where the text does (arXiv 2509.26432).

Contract: a block starts where the last one ended. Its entry pass also predicts a window ahead; when the most confident delimiter predicted there
(a newline) reaches the threshold, the block ends with that delimiter, else after the default block length. Tokens are committed from the same
entry logits, so that a block-size decision costs no pass. With a threshold of inf the blocks are fixed and the method is Fast-dLLM.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from polestar.cache.policy import CachePolicy, DualCache, PrefixCache
from polestar.config import Param
from polestar.plan import ForwardPlan, LogitsView
from polestar.scheduler import BlockScheduler

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.models.transformer import ModelConfig
    from polestar.trace.step import Step

# The delimiters of the public code. Dream's are the newline-bearing words of the Qwen2 vocabulary that its authors chose.
LLADA_NEWLINE = (198,)
QWEN_NEWLINES = (
    198, 271, 280, 319, 340, 382, 401, 532, 624, 630, 692, 698, 921, 1248, 1837, 1939, 2219, 2533, 3276, 3876, 4894, 5267, 14750, 68327,
)  # fmt: skip
LLADA_VOCABULARY, QWEN_VOCABULARY = 126_464, 151_643

ADABLOCK_PARAMS = (
    Param(name="delimiter_threshold", symbol="τ_D", kind=float, default=0.3, minimum=0.0, step=0.05, group="length", live="block",
          help="A block ends at the most confident delimiter ahead when its confidence reaches this; inf keeps blocks fixed. Dream: 0.5."),
    Param(name="delimiter_reach", symbol="reach", kind=float, default=0.25, minimum=0.0, maximum=1.0, step=0.05, group="length", live="block",
          help="How far ahead a delimiter is looked for, as a share of the generation length; a block is never longer."),
    Param(name="delimiters", symbol="delimiters", kind=str, default="auto", pattern=r"auto|\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", group="length", live="block",
          expert=True, wanted="auto or token ids with commas between them",
          help="Token ids that may end a block; auto takes the newlines of the model's vocabulary."),
    Param(name="kv_cache", symbol="cache", kind=str, default="dual", choices=("dual", "prefix", "none"), group="cache", live="block",
          help="Fast-dLLM's cache under the blocks: dual feeds the block, prefix feeds block and suffix, none feeds every row."),
)  # fmt: skip


class ChosenCache(CachePolicy):
    """The Fast-dLLM cache that `kv_cache` names."""

    def __init__(self):
        self.policies = {"dual": DualCache(), "prefix": PrefixCache(), "none": CachePolicy()}

    def plan(self, run: Run, masked: Int[Tensor, "m"]) -> ForwardPlan:
        return self.policies[run.config.kv_cache].plan(run, masked)


class AdaBlock(BlockScheduler):
    """State: the delimiter ids, and what the last entry pass decided (for the log)."""

    refines = True
    shape = "text"

    def __init__(self):
        super().__init__()
        self.known: dict[str, tuple[int, ...]] = {}
        self.decision: dict | None = None

    def window(self, run: Run) -> int:
        """How many positions from the block start are searched for a delimiter."""
        generation = run.length - run.prompt_length
        return min(int(run.config.delimiter_reach * generation), run.length - run.block_start)

    def horizon(self, run: Run) -> int:
        return max(run.block_end, run.block_start + self.window(run))

    def refine(self, run: Run, view: LogitsView) -> int:
        best = self._best_delimiter(run, view)
        found = best is not None and best["confidence"] >= run.config.delimiter_threshold
        if found:
            self.end = best["position"] + 1
        self.decision = {"window": self.window(run), "size": self.end - run.block_start, "delimiter": best, "ends_at_delimiter": found}
        return self.end

    def _best_delimiter(self, run: Run, view: LogitsView) -> dict | None:
        ids = self.delimiters(run)
        inside = view.positions < run.block_start + self.window(run)
        at = (inside & torch.isin(view.token, torch.tensor(ids, dtype=torch.int64))).nonzero()[:, 0]
        if not at.numel() or math.isinf(run.config.delimiter_threshold):
            return None
        confidence = native_confidence(view.logits[at.to(view.logits.device)], view.token[at], run.model.dtype)
        i = int(confidence.argmax())
        return {"position": int(view.positions[at[i]]), "token": int(view.token[at[i]]), "confidence": float(confidence[i])}

    def delimiters(self, run: Run) -> tuple[int, ...]:
        """Ids that may end a block, from the parameter or from the model's vocabulary."""
        choice = run.config.delimiters
        if choice not in self.known:
            self.known[choice] = newline_ids(run.model.cfg, run.token_text) if choice == "auto" else tuple(int(i) for i in choice.split(","))
        return self.known[choice]

    def log(self, run: Run, step: Step) -> None:
        if run.entering and self.decision is not None:
            step.extra["adablock"] = self.decision


def native_confidence(logits: Float[Tensor, "m V"], token: Int[Tensor, "m"], dtype: torch.dtype) -> Float[Tensor, "m"]:
    """Softmax probability of `token` in the model's own precision, as the public code measures delimiters."""
    native = logits.to(dtype)
    return (native.gather(-1, token.to(native.device)[:, None])[:, 0] - torch.logsumexp(native, -1)).exp().float().cpu()


def newline_ids(cfg: ModelConfig, token_text) -> tuple[int, ...]:
    """Delimiters of a model: the published lists where the vocabulary is LLaDA's or Qwen2's, else every id whose text holds a newline.

    Without a tokenizer there is none, and blocks keep their default length.
    """
    if cfg.family == "llada" and cfg.vocab_size == LLADA_VOCABULARY:
        return LLADA_NEWLINE
    if cfg.family in ("dream", "a2d") and cfg.vocab_size >= QWEN_VOCABULARY:
        return QWEN_NEWLINES
    if token_text is None:
        return ()
    special = {cfg.mask_id, cfg.pad_id, *cfg.eos_ids}
    return tuple(i for i in range(cfg.vocab_size) if i not in special and "\n" in token_text(i))
