"""What the log keeps at level `full`: candidates, drift of methods that do not compute it, window points.

Contract: reads what a pass left behind, on the log's time, and changes nothing: tokens are the same at every level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from polestar.drift import drift
from polestar.models.transformer import rotate
from polestar.plan import LogitsView, PassResult

if TYPE_CHECKING:
    from polestar.driver import Run
    from polestar.trace.step import Step

CANDIDATES = 5
POINT_DIMS = 16


class Inspector:
    """One per run. Keeps the previous pass's final-layer attention of the block (positions `span`), and each layer's PCA basis."""

    def __init__(self, run: Run):
        self.run = run
        self.before: Float[Tensor, "heads b L"] | None = None
        self.span = (0, 0)
        self.basis: tuple[Float[Tensor, "n d"], Float[Tensor, "n d P"]] | None = None

    @torch.inference_mode()
    def log(self, step: Step, view: LogitsView, result: PassResult) -> None:
        """Add candidates of the masked positions, and final-layer drift where the method has none."""
        size, at = step.block_end - step.block_start, (view.positions - step.block_start).numpy()
        if len(view):
            top = torch.softmax(view.logits.float(), -1).topk(min(CANDIDATES, view.logits.shape[-1]))
            step.candidate_ids = np.full((size, CANDIDATES), -1, dtype=np.int32)
            step.candidate_probs = np.full((size, CANDIDATES), np.nan, dtype=np.float32)
            n = top.indices.shape[-1]
            step.candidate_ids[at, :n] = top.indices.cpu().numpy()
            step.candidate_probs[at, :n] = top.values.cpu().numpy()
        if step.drift is None:
            self._drift(step, result)

    def _drift(self, step: Step, result: PassResult) -> None:
        run = self.run
        if result.last_input is None:
            return
        now = result.attention_of(run.model.cfg.n_layers - 1, step.block_start, step.block_end)
        if now is None:
            now = self._attention(step, result)
        # Positions seen by both passes: the whole block, or what is left of a window that slides. NaN where a pass did not feed the row.
        start, end = step.block_start, step.block_end
        a, b = max(start, self.span[0]), min(end, self.span[1])
        if self.before is not None and a < b:
            step.drift = np.full(end - start, np.nan, dtype=np.float32)
            step.drift[a - start : b - start] = drift(now[:, a - start : b - start], self.before[:, a - self.span[0] : b - self.span[0]]).cpu().numpy()
        self.before, self.span = now, (start, end)

    def _attention(self, step: Step, result: PassResult) -> Float[Tensor, "heads b L"]:
        run, last = self.run, self.run.model.cfg.n_layers - 1
        block = run.model.layers[last]
        start, size = step.block_start, step.block_end - step.block_start
        fed = ((result.rows.index >= start) & (result.rows.index < step.block_end)).nonzero()[:, 0]
        at = result.rows.index[fed]
        rows = run.model.rows((start, step.block_end) if fed.shape[0] == size else at, run.length)
        probs = block.scores(rotate(block.queries(block.attn_norm(result.last_input[fed])), rows.cos, rows.sin), run.kv.k[last])
        if fed.shape[0] == size:
            return probs
        some = torch.full((probs.shape[0], size, probs.shape[-1]), torch.nan, device=probs.device)
        some[:, at - start] = probs
        return some

    @torch.inference_mode()
    def project(self, hidden: Float[Tensor, "n W d"], centroids: Float[Tensor, "n K d"]) -> np.ndarray:
        """Window states then centroids in the run's PCA basis of each layer, float32 [n, W + K, P].

        The basis is that of the first window of the run, so that points of later passes do not jump.
        """
        points = torch.cat([hidden.float(), centroids.float()], 1)
        if self.basis is None:
            mean = points.mean(1)
            _, _, v = torch.linalg.svd(points - mean[:, None], full_matrices=False)
            basis = v[:, :POINT_DIMS].transpose(1, 2)
            # A sign convention, so that the same run looks the same on every machine.
            largest = basis.abs().argmax(1, keepdim=True)
            self.basis = (mean, basis * basis.gather(1, largest).sign())
        mean, basis = self.basis
        flat = torch.matmul(points - mean[:, None], basis)
        short = POINT_DIMS - flat.shape[-1]
        return torch.nn.functional.pad(flat, (0, short)).cpu().numpy() if short > 0 else flat.cpu().numpy()
