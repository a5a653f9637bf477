"""Recorded decodes of two public code bases, and the replay of their ties (tests/data/golden)."""

import gzip
import json
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F

from polestar.config import DecodeConfig
from polestar.driver import Decoder

FOLDER = Path(__file__).parent / "data" / "golden"
TIE = 1e-5  # relative; below this a choice between two equal clusters may break either way
REASONS = {"confidence": "confidence", "fallback": "forced", "drift": "drift", "suffix": "suffix"}
KINDS = {"entry_full": "entry-full", "entry_window": "entry-window", "step": "within"}


@cache
def record(name: str) -> dict:
    """One golden file: {"meta", "methods"}."""
    with gzip.open(FOLDER / f"{name}.json.gz") as file:
        return json.load(file)


class ReleaseReplay:
    """A `polestar` decode under preset release beside its record; `ties` counts choices between equal clusters taken from the record."""

    def __init__(self, model, name: str):
        data = record(name)
        self.record = data["methods"]["polestar"]
        config = DecodeConfig.make(method="polestar", preset="release", gen_length=data["meta"]["gen_length"], seed=data["meta"]["rng_seed"])
        self.decoder = Decoder(model, data["meta"]["prompt"], config)
        self.decoder.cache.choose, self.decoder.cache.assign = self._choose, self._assign
        self.ties, self.entry, self.calls = 0, None, []

    def passes(self):
        """(step, recorded pass) pairs to the end of the record."""
        for entry in self.record["trace"]:
            self.entry = entry
            layers = entry["layers"].values() if entry["kind"].startswith("entry") else ()
            # k-means runs that iterate, in order; each asks for an assignment five times.
            runs = [call for layer in layers for call in layer["kmeans"] if call["L"] > call["K"]]
            self.calls = [(call, i) for call in runs for i in range(5)]
            yield self.decoder.step(), entry

    def _choose(self, layer, scores, top):
        want = self.entry["layers"][str(layer)]["top_clusters"]
        missing, instead = set(want) - set(top.tolist()), set(top.tolist()) - set(want)
        for a, b in zip(sorted(scores[list(missing)].tolist()), sorted(scores[list(instead)].tolist()), strict=True):
            assert abs(a - b) <= TIE * max(abs(a), abs(b)), f"layer {layer}: chose {sorted(instead)} where the record chose {sorted(missing)}"
        self.ties += bool(missing)
        return torch.tensor(want)

    def _assign(self, directions, centroids):
        call, iteration = self.calls.pop(0)
        cosine = directions @ F.normalize(centroids, dim=-1).T
        labels = cosine.argmax(-1)
        best = cosine.amax(-1, keepdim=True)
        equal = best - cosine <= TIE * best.abs()
        if iteration == 4:
            wanted = torch.tensor(call["labels"])
        else:
            # The record names clusters that stayed empty: among equals, take the first that did not.
            empty = {c for e in call["empty"] if e["iter"] == iteration for c in e["empty_clusters"]}
            open_ = torch.tensor([c not in empty for c in range(centroids.shape[0])])
            wanted = (equal & open_).float().argmax(-1)
            wanted = torch.where((equal & open_).any(-1) & ~open_[labels], wanted, labels)
        differs = wanted != labels
        assert bool(equal.gather(1, wanted[:, None]).all()), "an assignment differs from the record by more than a tie"
        self.ties += bool(differs.any())
        return wanted
