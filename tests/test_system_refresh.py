"""A refresh pass: the fused layer against the algorithm step by step, packets of a fixed size, and nothing asked of the device within a layer."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polestar import plan
from polestar.bench import straight
from polestar.cache import clustering, offload, refresh, residual, window
from polestar.config import DecodeConfig
from polestar.driver import Decoder

PROMPTS = {"llada": list(range(5, 75)), "dream": list(range(5, 60)), "demo": list(range(20, 90))}


def decoder_for(loaded, *, fixed=None, level="steps", **values) -> Decoder:
    name = loaded.config.family if loaded.name != "demo" else "demo"
    # The bundled model is sure of itself: one token a pass leaves it passes to refresh.
    settled = {"gen_length": 96, "tau_upd": 0, "tau_s": 2.0 if name == "demo" else 0.6, "tau_suf": 0.6} | values
    prompt = PROMPTS[name]
    decoder = Decoder(loaded.model, prompt, DecodeConfig.make(method="polestar", **settled), level=level)
    decoder.cache.fixed = fixed
    return decoder


def passes(decoder: Decoder) -> list:
    steps = []
    while (step := decoder.step()) is not None:
        steps.append(step)
    return steps


def told(steps, *, clusters: bool = True) -> list:
    """What a pass did, without floats: kind, commits, packet rows and clusters.

    Sums in another order round otherwise, and a value at the edge of two quantised steps then falls to the other side: quantised states differ a
    little, so equal clusters are only asked of states that are kept as they are.
    """
    return [
        (
            s.kind, s.refresh, [(c.position, c.token, c.reason) for c in s.commits],
            (s.packet_rows.tolist(), s.clusters.selected.tolist()) if clusters and s.packet_rows is not None else None,
        )
        for s in steps
    ]  # fmt: skip


@pytest.fixture(params=["llada", "dream", "demo"])
def loaded(request):
    """Each family, and the bundled model."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("values", [{}, {"preset": "release"}])
def test_drift_that_the_pass_measures_with_its_attention_is_that_of_the_stored_attentions(loaded, values, monkeypatch):
    """One call of the kernel a pass, with the attention of the pass before; against keeping the attentions and comparing them afterwards."""
    apart, fused, calls, kernel = decoder_for(loaded, **values), decoder_for(loaded, **values), [], plan.attention_drift

    def counted(queries, keys, before=None):
        calls.append(before is not None)
        return kernel(queries, keys, before)

    apart.commit.fused = False
    expected = passes(apart)
    assert any(s.drift is not None for s in expected)
    monkeypatch.setattr(plan, "attention_drift", counted)
    monkeypatch.setattr(fused.commit, "drift", lambda now, before: pytest.fail("the drift was measured a second time"))
    for ours, theirs in zip(passes(fused), expected, strict=True):
        assert told([ours]) == told([theirs])
        assert (ours.drift is None) == (theirs.drift is None)
        if ours.drift is not None:
            np.testing.assert_array_equal(ours.drift, theirs.drift)
    assert calls == [s.drift is not None for s in expected]


@pytest.mark.parametrize("residual_format", ["nvfp4", "none", "int8"])
def test_fused_equals_step_by_step(loaded, residual_format):
    fused, plain = decoder_for(loaded, residual_format=residual_format), straight.use(decoder_for(loaded, residual_format=residual_format))
    for ours in iter(fused.step, None):
        theirs = plain.step()
        exact = residual_format == "none"
        assert told([ours], clusters=exact) == told([theirs], clusters=exact), f"pass {ours.index}"
        if ours.refresh and exact:
            np.testing.assert_allclose(ours.clusters.scores, theirs.clusters.scores, rtol=2e-3, atol=1e-5)
            torch.testing.assert_close(fused.run.kv.k, plain.run.kv.k, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(fused.run.kv.v, plain.run.kv.v, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(fused.cache.window.centroids, plain.cache.window.centroids, rtol=1e-3, atol=1e-3)
    assert plain.step() is None


def test_only_polestar_has_a_straightforward_path(llada):
    decoder = Decoder(llada.model, PROMPTS["llada"], DecodeConfig.make(method="fast-dllm-dual", gen_length=32))
    with pytest.raises(ValueError, match="fast-dllm-dual"):
        straight.use(decoder)


def test_centroids_stay_the_means_of_their_members(demo):
    decoder = decoder_for(demo, residual_format="none")
    refreshes = 0
    for step in iter(decoder.step, None):
        if not step.refresh:
            continue
        refreshes += 1
        w, states = decoder.cache.window, decoder.cache.window.all_states()
        for layer in range(w.layers):
            for c in range(w.K):
                member = w.labels[layer] == c
                if member.any():
                    torch.testing.assert_close(w.centroids[layer, c], states[layer, member].mean(0), rtol=1e-3, atol=2e-4)
    assert refreshes > 3


@pytest.mark.parametrize("offload_to", ["off", "on"])
@pytest.mark.parametrize("values", [{}, {"k": 1, "residual_format": "none"}, {"k": 8}, {"preset": "release"}, {"residual_format": "fp8"}])
def test_packets_of_a_fixed_size_give_the_same_decode(loaded, values, offload_to):
    free, fixed = decoder_for(loaded, **values), decoder_for(loaded, fixed=True, offload=offload_to, **values)
    ours, theirs, exact = passes(fixed), passes(free), free.run.config.residual_format == "none"
    assert told(ours, clusters=exact) == told(theirs, clusters=exact)
    assert any(s.packet_rows is not None and s.packet_rows.max() > 0 for s in ours)


def test_fixed_packets_hold_the_largest_clusters_in_steps_of_sixteen(demo):
    decoder = decoder_for(demo, fixed=True)
    while decoder.step().kind != "within":
        pass
    w = decoder.cache.window
    for k in (1, 3, w.K):
        sizes = w.packet_sizes([k] * w.layers)
        for layer, size in enumerate(sizes):
            most = int(w.counts[layer].sort(descending=True).values[:k].sum())
            assert most <= size <= w.labels.shape[1] and (size % 16 == 0 or size == w.labels.shape[1]) and size - most < 16


class NoQuestions(TorchDispatchMode):
    """Refuses operations whose result the host would have to wait for."""

    asking = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if NoQuestions.asking:
            name = func.overloadpacket.__name__
            index = args[1] if name in ("index", "index_put", "index_put_") else ()
            masks = [i for i in index if isinstance(i, torch.Tensor) and i.dtype == torch.bool]
            assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal") and not masks, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def kernels_may_look(monkeypatch):
    """Kernels' PyTorch references may look (a GPU runs the kernels instead); what is between them may not."""

    def kernel(module, name):
        inner = getattr(module, name)

        def call(*args, **kwargs):
            asking, NoQuestions.asking = NoQuestions.asking, False
            try:
                return inner(*args, **kwargs)
            finally:
                NoQuestions.asking = asking

        monkeypatch.setattr(module, name, call)

    for module, names in (
        (refresh, ("scatter_kv",)), (offload, ("fetch_rows", "store_rows")), (residual, ("dequant_norm", "quantize_residual")),
        (window, ("proxy_drift", "select_packet")), (clustering, ("spherical_kmeans",)), (window.F, ("one_hot",)),  # one_hot checks on a CPU only
    ):  # fmt: skip
        for name in names:
            kernel(module, name)


@pytest.mark.parametrize("preset", ["paper", "release"])
def test_a_fixed_pass_asks_the_device_nothing_within_a_layer(demo, preset, kernels_may_look, monkeypatch):
    layer, seen = refresh.RefreshHook.layer, []

    def watched(self, *args):
        NoQuestions.asking = True
        try:
            seen.append(self)
            return layer(self, *args)
        finally:
            NoQuestions.asking = False

    monkeypatch.setattr(refresh.RefreshHook, "layer", watched)
    decoder = decoder_for(demo, fixed=True, offload="on", level="off", gen_length=64, preset=preset)
    with NoQuestions():
        passes(decoder)
    assert seen
    seen.clear()
    free = decoder_for(demo, fixed=False, level="off", gen_length=64, preset=preset)
    with NoQuestions(), pytest.raises(AssertionError, match="waits for the device"):
        passes(free)
    assert seen


@pytest.mark.parametrize("preset", ["paper", "release"])
@pytest.mark.parametrize("offload_to", ["off", "on"])
def test_building_the_window_asks_the_device_nothing(demo, preset, offload_to, kernels_may_look, monkeypatch):
    """`release` clusters here as on a GPU; as on a CPU, in the release's order, it has to look."""
    build, seen = window.LocalWindow.__init__, []

    def watched(self, **values):
        NoQuestions.asking = True
        try:
            build(self, **values)
            seen.append(self)
        finally:
            NoQuestions.asking = False

    monkeypatch.setattr(window.LocalWindow, "__init__", watched)
    in_order = window.cluster_split
    monkeypatch.setattr(window, "cluster_split", partial(in_order, ahead=True))
    values = {"fixed": True, "offload": offload_to, "level": "off", "gen_length": 96, "preset": preset}
    with NoQuestions():
        passes(decoder_for(demo, **values))
    assert len(seen) > 1
    if preset == "release":
        monkeypatch.setattr(window, "cluster_split", in_order)
        with NoQuestions(), pytest.raises(AssertionError, match="waits for the device"):
            passes(decoder_for(demo, **values))


@pytest.mark.parametrize(("n_prefix", "n_suffix"), [(64, 32), (64, 0), (0, 32), (4, 32), (40, 2), (3, 0)])
def test_release_clusters_drawn_beforehand_are_those_drawn_in_order_where_none_is_empty(n_prefix, n_suffix):
    """Rows spread over far more directions than clusters: none stays empty. Twice, so that the generator's state after the first counts too."""
    hidden, generators = torch.randn(2, 3, n_prefix + n_suffix, 8, generator=torch.Generator().manual_seed(5)), []
    for ahead in (False, True):
        generators.append(torch.Generator().manual_seed(9))
        found = [clustering.cluster_split(x, 8, n_prefix, generators[-1], ahead=ahead) for x in hidden]
        if not ahead:
            expected = found
            continue
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours.labels, theirs.labels) and torch.equal(ours.counts, theirs.counts)
            torch.testing.assert_close(ours.centroids, theirs.centroids)
            assert ours.centroids.dtype == torch.float32 and ours.counts.dtype == torch.int64
    assert torch.equal(*(g.get_state() for g in generators))


def test_release_clusters_drawn_beforehand_fill_empty_ones_from_members():
    """Layer 0 of a fresh block: every suffix row is the embedding of [MASK]."""
    hidden = torch.randn(2, 24, 8, generator=torch.Generator().manual_seed(5))
    hidden[0, 14:] = hidden[0, 14]
    found = clustering.cluster_split(hidden, 8, 14, torch.Generator().manual_seed(9), ahead=True)
    K_prefix, _ = clustering.split_sizes(8, 14, 10)
    assert bool((found.labels[:, :14] < K_prefix).all()) and bool((found.labels[:, 14:] >= K_prefix).all())
    assert found.counts[0, K_prefix:].tolist() == [10, *(0 for _ in range(7 - K_prefix))]
    assert torch.equal(found.centroids[0, K_prefix + 1 :], hidden[0, 14].expand(7 - K_prefix, -1))
    again = clustering.cluster_split(hidden, 8, 14, torch.Generator().manual_seed(9), ahead=True)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    member = torch.nn.functional.one_hot(found.labels, 8)
    assert torch.equal(member.sum(1), found.counts)
