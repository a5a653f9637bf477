"""Observe mode: a shadow full recompute beside every pass, which shows what the cache hides (paper, sections 3 and C.2).

Contract: `look` runs before a pass, on the canvas that the pass will see, into a K/V store of its own; `log` runs after it and writes what the two
say of each other into the step. Tokens, the decode's own store, its random draws and its seconds are untouched: all of this is charged to the
phase "observe". The speed of an observed run means nothing. What a step gets:

* `staleness` [n, L]: E of section C.2 between K/V as the pass left them and their full recompute. Cosines are taken on rotated keys: rotary positions
  turn both keys of a position alike, so un-rotated keys give the same. A row that was never cached counts as 1.
* `full_drift` [L]: drift (Equation 4) of every position between this full recompute and the one before, in the final layer.
* extra["stale_before"] [n, L] (a pass that refreshed): the same E before the pass, which is what a refresh has to find.
* extra["progress"] {position [c], first [c], cos [sum]}: for every token committed here, the cosine of its centred log-probabilities at each pass since
  `first` to those at this pass (section 3.2). Exact: hidden states of masked positions wait in host memory until their commit.
* extra["value_states"] float16 [L_G, 32]: last-layer value states in the first 32 principal directions of the run's first pass (Figure 3c), and
  extra["value_kept"]: the share of their variance that these directions hold.
* extra["full_conf"] float32 [L_G]: confidence of every masked position in the full recompute, inside the block and outside; NaN where not masked.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from polestar.cache.kv import KVStore
from polestar.clock import PhaseClock
from polestar.drift import drift
from polestar.plan import ForwardPlan, LogitsView, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Step

VALUE_DIMS = 32


def staleness(cached: KVStore, true: KVStore) -> Float[Tensor, "n L"]:
    """E_i = 1 - (cos(K_i, K*_i) + cos(V_i, V*_i)) / 2, cosines per head, averaged over heads (section C.2). Never negative."""
    out = []
    for layer in range(cached.k.shape[0]):
        pairs = ((cached.k[layer], true.k[layer]), (cached.v[layer], true.v[layer]))
        near = [F.cosine_similarity(a.float(), b.float(), dim=-1).mean(0) for a, b in pairs]
        out.append(1 - (near[0] + near[1]) / 2)
    return torch.stack(out).clamp_(min=0)


class Observer:
    """One per run."""

    def __init__(self, run: Run):
        self.run = run
        self.kv: KVStore | None = None
        self.result: PassResult | None = None
        self.before: Float[Tensor, "heads L L"] | None = None  # final-layer attention of the full pass before
        self.missed: Float[Tensor, "n L"] | None = None
        self.conf: np.ndarray | None = None
        self.paths: dict[int, list[Float[Tensor, "d"]]] = {}  # final hidden states of each masked position, pass by pass
        self.basis: tuple[Float[Tensor, "D"], Float[Tensor, "D P"]] | None = None

    def about(self) -> dict[str, int]:
        """What a header says of the figures: the layers they come from."""
        last = self.run.model.cfg.n_layers - 1
        return {"drift_layer": last, "value_layer": last, "value_dims": VALUE_DIMS}

    @torch.inference_mode()
    def look(self) -> float:
        """The full recompute of the canvas as the coming pass will see it. Returns the seconds it took."""
        started, run = perf_counter(), self.run
        model, device = run.model, run.model.device
        if self.kv is None:
            self.kv = model.new_store(run.length)
        everything = (0, run.length)
        plan = ForwardPlan(kind="entry-full", rows=everything, logits_for=torch.empty(0, dtype=torch.int64, device=device), attention_for=everything)
        self.result = model.run(plan, run.canvas.tokens, self.kv, PhaseClock(enabled=False))
        self.missed = staleness(run.kv, self.kv) if run.kv.filled else None
        masked = run.canvas.masked(run.prompt_length, run.length)
        hidden = self.result.hidden[model.row_for(masked).to(device)]
        view = LogitsView(masked, model.logits(hidden), exclude=run.canvas.mask_id if run.config.exclude_mask else None)
        self.conf = np.full(run.length - run.prompt_length, np.nan, dtype=np.float32)
        self.conf[(masked - run.prompt_length).numpy()] = view.confidence.cpu().numpy()
        states = hidden.cpu()
        # A position that a person filled by hand, or masked again, begins anew.
        self.paths = {p: [*self.paths.get(p, ()), state] for p, state in zip(masked.tolist(), states.unbind(0), strict=True)}
        return self._seconds(started)

    @torch.inference_mode()
    def log(self, step: Step) -> float:
        """Write what the pass and its full recompute say of each other. Returns the seconds it took."""
        started, run = perf_counter(), self.run
        step.staleness = staleness(run.kv, self.kv).cpu().numpy()
        if step.refresh and self.missed is not None:
            step.extra["stale_before"] = self.missed.cpu().numpy()
        now, self.result.attentions = self.result.attention, {}
        if self.before is not None:
            step.full_drift = drift(now, self.before).cpu().numpy()
        self.before = now
        step.extra["full_conf"] = self.conf
        self._progress(step)
        self._values(step)
        return self._seconds(started)

    def _seconds(self, started: float) -> float:
        if self.run.model.device.type == "cuda":
            torch.cuda.synchronize()
        return perf_counter() - started

    def _progress(self, step: Step) -> None:
        paths = [(c.position, self.paths.pop(c.position)) for c in step.commits if c.position in self.paths]
        if not paths:
            return
        similar = [self._similarity(torch.stack(path)).cpu() for _, path in paths]
        step.extra["progress"] = {
            "position": np.array([p for p, _ in paths], dtype=np.int32),
            "first": np.array([step.index + 1 - len(path) for _, path in paths], dtype=np.int32),
            "cos": torch.cat(similar).numpy().astype(np.float32),
        }

    def _similarity(self, path: Float[Tensor, "T d"]) -> Float[Tensor, "T"]:
        """Cosine of centred log-probabilities to the last ones of the path. Centring takes the normaliser out, so logits do."""
        z = self.run.model.logits(path.to(self.run.model.device)).float()
        z = z - z.mean(-1, keepdim=True)
        return F.cosine_similarity(z, z[-1:], dim=-1)

    def _values(self, step: Step) -> None:
        run = self.run
        every = self.kv.v[-1].transpose(0, 1).flatten(1).float()
        if self.basis is None:
            mean = every.mean(0)
            _, _, v = torch.linalg.svd(every - mean, full_matrices=False)
            directions = v[:VALUE_DIMS].T
            # A sign convention, so that the same run looks the same on every machine.
            largest = directions.abs().argmax(0, keepdim=True)
            self.basis = (mean, directions * directions.gather(0, largest).sign())
        mean, directions = self.basis
        states = every[run.prompt_length :] - mean
        flat = states @ directions
        step.extra["value_kept"] = float(flat.square().sum() / states.square().sum().clamp(min=1e-30))
        out = np.zeros((flat.shape[0], VALUE_DIMS), dtype=np.float16)
        out[:, : flat.shape[1]] = flat.cpu().numpy()
        step.extra["value_states"] = out
