"""Tokenizer, batches, trainer and checkpoint of the bundled model, at a tiny size."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from polestar.demo import train
from polestar.demo.batches import chunk, mask
from polestar.demo.export import export, hub_names
from polestar.demo.learn import gradients, loss_of
from polestar.demo.muon import orthogonalise
from polestar.demo.problems import FAMILIES, generate
from polestar.demo.start import OFFSETS, initialise
from polestar.demo.tokenizer import EOS_ID, MASK_ID, SPECIAL, chat, train_tokenizer
from polestar.models.checkpoint import load_model
from polestar.models.transformer import Transformer, rotate

TINY = [
    "--d-model",
    "32",
    "--heads",
    "2",
    "--layers",
    "2",
    "--mlp",
    "48",
    "--batch-tokens",
    "512",
    "--chunk-problems",
    "24",
    "--tokens",
    "6000",
    "--threads",
    "1",
    "--eval-minutes",
    "0",
    "--device",
    "cpu",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer()


def test_tokenizer_round_trips_any_text(tokenizer):
    for text in ("héllo, 你好 🎉\n\t x²", "a\u0000b", "125 toys  and 3.5", " lead", "tail \n\n", "def f(x):\n        return x"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    rng = random.Random(0)
    for _ in range(200):
        text = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(160, 0xD7FF), rng.randrange(0x10000, 0x1F9FF)])) for _ in range(20))
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_small_numbers_and_words_of_the_problems_are_one_token(tokenizer):
    for n in range(100):
        assert len(tokenizer.encode(str(n)).ids) == len(tokenizer.encode(f" {n}").ids) == 1
    rng = random.Random(3)
    for family in FAMILIES:
        for _ in range(100):
            problem = generate(family, rng)
            for text in (problem.prompt, problem.answer):
                pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
                big = sum(p.removeprefix("Ġ").isdigit() and len(p.removeprefix("Ġ")) > 2 for p, _ in pieces)  # 100 and above: two tokens
                assert len(pieces) <= len(tokenizer.encode(text).ids) <= len(pieces) + 2 * big, text


def test_special_tokens_have_the_documented_ids(tokenizer):
    assert [tokenizer.token_to_id(t) for t in SPECIAL] == list(range(6))
    assert (EOS_ID, MASK_ID) == (0, 1)
    assert tokenizer.encode(chat("Hi")).tokens[0] == "<|startoftext|>"
    assert train_tokenizer().to_str() == tokenizer.to_str()


def test_masks_hide_only_the_answer_and_weigh_only_what_is_hidden():
    noise = np.random.default_rng(0)
    prompt, answer = list(range(10, 30)), list(range(100, 170))
    for i in range(200):
        inputs, targets, weights = mask(noise, prompt, answer, 120, 1.0, semi=bool(i % 2))
        assert inputs[:20].tolist() == prompt and targets[20:90].tolist() == answer and (targets[90:] == EOS_ID).all()
        hidden = inputs == MASK_ID
        assert hidden.any() and not hidden[:20].any()
        assert ((weights > 0) == hidden).all()
        if i % 2:
            first = int(np.flatnonzero(hidden)[0])
            block_end = 20 + (first - 20) // 32 * 32 + 32
            assert hidden[block_end:].all()


def test_chunks_are_a_function_of_their_number(tokenizer):
    a, b, c = (chunk(tokenizer, seed=1, number=n, progress=0.5, batch_tokens=1024, problems=40) for n in (3, 3, 4))
    assert all((x.inputs == y.inputs).all() and (x.weights == y.weights).all() for x, y in zip(a, b, strict=True))
    assert a[0].inputs.shape != c[0].inputs.shape or (a[0].inputs != c[0].inputs).any()
    assert all(x.tokens <= 3 * 1024 for x in a)


def test_structured_start_attends_to_the_offsets(tokenizer):
    args = train.parser().parse_args(["--d-model", "96", "--heads", "3", "--layers", "2"])
    model = Transformer(train.model_config(d_model=96, n_layers=2, n_heads=3, mlp_hidden=64, vocab_size=-(-tokenizer.get_vocab_size() // 32) * 32))
    initialise(model, tokenizer, args.seed)
    ids = torch.tensor([tokenizer.encode("Gina has 14 toys and gives 6 toys to Cora on Monday in May.").ids])
    block = model.layers[0]
    normed = block.attn_norm(model.embed(ids))
    cos, sin = model.rope(ids.shape[1])
    scores = block.scores(rotate(block.queries(normed), cos, sin)[0], rotate(block.keys(normed), cos, sin)[0])
    at = torch.arange(4, ids.shape[1] - 4)
    for head in range(3):
        assert scores[head, at, at + OFFSETS[head]].min() > 0.6


def test_orthogonalise_gives_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((2, 30, 70), (2, 70, 30), (3, 20, 60)):
        s = torch.linalg.svdvals(orthogonalise(torch.randn(shape), steps=6))
        assert s.min() > 0.5 and s.max() < 1.4


def test_fast_loss_is_that_of_the_model(tokenizer):
    cfg = train.model_config(d_model=32, n_layers=2, n_heads=2, mlp_hidden=48, vocab_size=-(-tokenizer.get_vocab_size() // 32) * 32)
    model = Transformer(cfg)
    initialise(model, tokenizer, 1)
    batch = chunk(tokenizer, seed=9, number=0, progress=0.5, batch_tokens=512, problems=24)[0]
    weights, targets = torch.from_numpy(batch.weights), torch.from_numpy(batch.targets)
    logits = model(torch.from_numpy(batch.inputs))
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    expected = (losses * weights).sum() / weights.sum()
    assert torch.allclose(loss_of(model, batch), expected, rtol=1e-4)
    assert torch.allclose(loss_of(model, batch, torch.bfloat16), expected, rtol=0.05)


def test_gradients_are_the_same_with_any_number_of_workers(tokenizer):
    cfg = train.model_config(d_model=32, n_layers=2, n_heads=2, mlp_hidden=48, vocab_size=-(-tokenizer.get_vocab_size() // 32) * 32)
    model = Transformer(cfg)
    initialise(model, tokenizer, 1)
    batches = chunk(tokenizer, seed=9, number=0, progress=0.5, batch_tokens=512, problems=24)[:3]
    parameters = list(model.parameters())
    loss, alone = gradients(model, parameters, batches, torch.float32)
    with ThreadPoolExecutor(3, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        again, together = gradients(model, parameters, batches, torch.float32, pool)
    assert loss == again and all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    mean = torch.stack([loss_of(model, b) for b in batches]).mean()
    assert torch.allclose(torch.tensor(loss), mean) and torch.allclose(torch.autograd.grad(mean, parameters)[0], alone[0], atol=1e-6)


def test_interrupted_training_gives_the_same_weights(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train.main([*TINY, "--work", str(whole), "--out", str(tmp_path / "a")]) == 0
    for stop in (3, 5):
        assert train.main([*TINY, "--work", str(parts), "--out", str(tmp_path / "b"), "--stop-step", str(stop)]) == 0
        assert not (tmp_path / "b").exists()
    assert train.main([*TINY, "--work", str(parts), "--out", str(tmp_path / "b")]) == 0
    a, b = load_file(tmp_path / "a" / "model.safetensors"), load_file(tmp_path / "b" / "model.safetensors")
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    assert not list(tmp_path.glob("**/*.partial")) and sorted(f.name for f in (tmp_path / "a").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_training_lowers_the_loss(tmp_path, tokenizer):
    args = train.parser().parse_args([*TINY, "--tokens", "60000", "--work", str(tmp_path)])
    trainer = train.Trainer(args)
    batch = chunk(tokenizer, seed=9, number=0, progress=0.1, batch_tokens=512, problems=24)[0]
    first = [trainer.update(batch) for _ in range(60)]
    assert first[-1] < 0.7 * first[0]


def test_another_shape_does_not_resume(tmp_path):
    assert train.main([*TINY, "--work", str(tmp_path / "w"), "--out", str(tmp_path / "o"), "--stop-step", "1"]) == 0
    with pytest.raises(ValueError, match="choose another --work"):
        train.main([*TINY, "--work", str(tmp_path / "w"), "--out", str(tmp_path / "o"), "--layers", "1"])


def test_checkpoint_loads_bit_for_bit(tmp_path, tokenizer):
    cfg = train.model_config(d_model=32, n_layers=2, n_heads=2, mlp_hidden=48, vocab_size=-(-tokenizer.get_vocab_size() // 32) * 32)
    model = Transformer(cfg)
    initialise(model, tokenizer, 1)
    model.bfloat16()
    export(model.state_dict(), cfg, tokenizer, tmp_path / "m")
    loaded = load_model(str(tmp_path / "m"), device="cpu", dtype="bfloat16")
    for name, value in hub_names(loaded.model.state_dict()).items():
        assert torch.equal(value, hub_names(model.state_dict())[name]), name
    assert loaded.model.cfg == cfg
