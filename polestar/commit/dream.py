"""Dream's own decoding rules: a schedule over the whole canvas, and Fast-dLLM's variants of it.

Contract: commit policies as in `polestar.commit.policy`. Where the schedule gives a pass nothing to commit (Dream's first pass as published), the selection
`waits` under the preset `release`; under `paper` every pass commits at least one token. Source: Dream's `diffusion_generate`, and Fast-dLLM's
Dream code with and without a cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from polestar.commit.policy import CommitPolicy, Selection
from polestar.config import Param
from polestar.plan import LogitsView, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run

EPS = 1e-3  # where Dream's time ends

SCHEDULE = (
    Param(name="steps", symbol="steps", kind=int, default=0, minimum=0, maximum=8192, group="commit", live="run",
          help="Forward passes for the whole generation; 0 means as many as there are tokens."),
    Param(name="waits", symbol="waits", kind=bool, default=False, group="commit", expert=True,
          help="Let a pass commit nothing where the published schedule rounds to nothing (its first pass); off commits one token at least."),
)
DREAM_PARAMS = (
    *SCHEDULE,
    Param(name="alg", symbol="alg", kind=str, default="entropy", group="commit", live="run",
          choices=("entropy", "maskgit_plus", "topk_margin", "origin", "confidence_threshold"),
          help="What ranks positions: negative entropy, probability, margin to the second; origin reveals at random; the last adds τ_s."),
    Param(name="alg_temp", symbol="alg T", kind=float, default=0.0, minimum=0.0, maximum=100.0, step=0.1, group="commit",
          help="Above 0, positions are drawn by softmax(rank / alg T) instead of taken from the top."),
    Param(name="top_p", symbol="top p", kind=float, default=1.0, minimum=0.0, maximum=1.0, step=0.01, group="run",
          help="Keep only the most likely tokens that together reach this probability."),
    Param(name="top_k", symbol="top k", kind=int, default=0, minimum=0, maximum=200000, group="run",
          help="Keep only this many most likely tokens; 0 keeps all."),
)  # fmt: skip
FIRST_PARAMS = (
    Param(name="rule", symbol="rule", kind=str, default="threshold", choices=("threshold", "entropy"), group="commit", live="run",
          help="After the entry: commit by confidence (threshold), or a scheduled number by lowest entropy."),
    *SCHEDULE,
)  # fmt: skip


def scheduled(masked: int, step: int, steps: int) -> int:
    """How many of `masked` positions step `step` of `steps` reveals: int(m (1 - s/t)) with t, s on a line from 1 to EPS; the last takes all.

    In float32, as published: rounding decides.
    """
    if step >= steps - 1:
        return masked
    return int(torch.tensor(float(masked)) * reveal_rate(step, steps))


def reveal_rate(step: int, steps: int) -> Float[Tensor, ""]:
    """1 - s/t of a step: the share of masked positions that it reveals; 1 at the last."""
    if step >= steps - 1:
        return torch.tensor(1.0)
    t = torch.linspace(1, EPS, steps + 1)
    return 1 - t[step + 1] / t[step]


def best(metric: Float[Tensor, "m"], count: int) -> Tensor:
    """Mask [m] of the `count` largest."""
    chosen = torch.zeros(metric.shape[0], dtype=torch.bool)
    chosen[torch.argsort(metric, descending=True, stable=True)[:count]] = True
    return chosen


def entropy_rank(p: Float[Tensor, "m V"]) -> Float[Tensor, "m"]:
    """Negative entropy (nats), so that more certain is larger; the published 1e-10 keeps zeros harmless."""
    return (p * torch.log(p + 1e-10)).sum(-1)


class DreamSchedule(CommitPolicy):
    """Dream without blocks: n_i positions of the whole canvas at pass i, ranked by `alg`.

    At temperature 0 a position's token is its most likely one; above, it is drawn from the filtered softmax(logits / T). Both replace the view's
    choice, and the confidence that is logged is that of the filtered distribution, as published.
    """

    dtype = torch.float32

    def __init__(self):
        self.step = self.steps = self.total = self.left = 0

    def enter(self, run: Run) -> None:
        self.total = run.canvas.masked(run.block_start, run.block_end).shape[0]
        self.steps = run.config.steps or self.total
        self.step = self.left = 0

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        config, i = run.config, self.step
        self.step += 1
        p = filtered(view.logits.cpu(), config, run.model.cfg.mask_id)
        if config.temperature > 0:
            view.token = torch.multinomial(p, 1, generator=run.sample_rng)[:, 0]
        else:
            view.token = p.argmax(-1)
        view.confidence = p.gather(-1, view.token[:, None])[:, 0]
        if config.alg == "confidence_threshold":
            return self._quota(config, view, i)
        if config.alg == "origin":
            chosen = torch.rand(len(view), generator=run.sample_rng) < reveal_rate(i, self.steps)
            return Selection(chosen=chosen, waits=config.waits)
        count = scheduled(len(view), i, self.steps)
        count = count if config.waits else max(1, count)
        metric = self._metric(config.alg, p, view)
        if config.alg_temp > 0 and 0 < count < len(view):
            drawn = torch.multinomial(torch.softmax(metric / config.alg_temp, -1), count, generator=run.sample_rng)
            chosen = torch.zeros(len(view), dtype=torch.bool)
            chosen[drawn] = True
        else:
            chosen = best(metric, count)
        return Selection(chosen=chosen, waits=config.waits)

    @staticmethod
    def _metric(alg: str, p: Float[Tensor, "m V"], view: LogitsView) -> Float[Tensor, "m"]:
        if alg == "maskgit_plus":
            return view.confidence
        if alg == "topk_margin":
            top = p.topk(2, -1).values
            return top[:, 0] - top[:, 1]
        return entropy_rank(p)

    def _quota(self, config, view: LogitsView, i: int) -> Selection:
        """Fast-dLLM without a cache: each step makes total/steps more positions eligible; the best is committed, the others from tau_s on."""
        quota = -(-self.total // self.steps) if i < self.steps else 0
        eligible = best(view.confidence, quota + self.left)
        chosen = (eligible & (view.confidence >= config.tau_s)) | best(view.confidence, 1)
        self.left = max(0, int((eligible & ~chosen).sum()))
        return Selection(chosen=chosen)


def filtered(logits: Float[Tensor, "m V"], config, mask_id: int) -> Float[Tensor, "m V"]:
    """softmax(logits / T) after top-p and top-k, [MASK] left out where the config says so. A T of 0 divides by nothing.

    top-p drops a token when the ones before it already exceed p, so the first always stays.
    """
    z = logits.clone()
    lowest = torch.finfo(z.dtype).min
    if config.exclude_mask:
        z[:, mask_id] = lowest
    if config.temperature > 0:
        z /= config.temperature
    if config.top_p < 1:
        order = z.argsort(dim=-1, descending=True, stable=True)
        mass = torch.softmax(z, -1).gather(-1, order).cumsum(-1)
        drop = torch.zeros_like(z, dtype=torch.bool)
        drop.scatter_(-1, order[:, 1:], mass[:, :-1] > config.top_p)
        z.masked_fill_(drop, lowest)
    if config.top_k:
        kept = z.topk(min(config.top_k, z.shape[-1]), -1).values[:, -1:]
        z.masked_fill_(z < kept, lowest)
    return torch.softmax(z, -1)


class FirstThenThreshold(CommitPolicy):
    """Fast-dLLM with a cache on Dream: the entry pass commits the block's first position whatever its confidence; then tau_s, or the schedule."""

    dtype = torch.float32

    def __init__(self):
        self.step = self.steps = 0

    def enter(self, run: Run) -> None:
        size, generation = run.block_end - run.block_start, run.length - run.prompt_length
        # Two at least: the first of a block's steps is its entry.
        self.steps = max(2, round(run.config.steps * size / generation)) if run.config.steps else size
        self.step = 0

    def select(self, run: Run, view: LogitsView, result: PassResult) -> Selection:
        config, i = run.config, self.step
        self.step += 1
        if run.entering:
            chosen = view.positions == run.block_start
            return Selection(chosen=chosen, reasons={} if view.confidence[0] >= config.tau_s else {0: "forced"})
        if config.rule == "threshold":
            return Selection(chosen=view.confidence >= config.tau_s)
        count = scheduled(len(view), i, self.steps)
        return Selection(chosen=best(entropy_rank(view.probabilities()).cpu(), count if config.waits else max(1, count)), waits=config.waits)
