"""AdaBlock-dLLM: the block ends at a confidently predicted delimiter; with no such threshold it is Fast-dLLM."""

import pytest

from polestar.config import DecodeConfig
from polestar.driver import decode
from polestar.schedulers.adablock import LLADA_NEWLINE, LLADA_VOCABULARY, QWEN_NEWLINES, newline_ids
from tests import scripted
from tests.goldens import record
from tests.scripted import EOS, Scripted

NEWLINE = 9
FIXED = {"dual": "fast-dllm-dual", "prefix": "fast-dllm-prefix", "none": "parallel"}


def blocks(trace):
    """[start, end) of each block in order."""
    return [(s.block_start - 3, s.block_end - 3) for s in trace if s.kind.startswith("entry")]


def adablock(script, **values):
    values = {"gen_length": 32, "block_length": 8, "delimiters": str(NEWLINE), "delimiter_reach": 0.5} | values
    return scripted.decode(Scripted(script), method="adablock", **values)


@pytest.mark.parametrize("cache", FIXED)
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_without_a_delimiter_threshold_it_is_fast_dllm(request, family, cache):
    loaded, prompt = request.getfixturevalue(family), record("llada_p7_g128")["meta"]["prompt"]
    # Any id may be a delimiter, so that only the threshold keeps blocks fixed.
    everything = ",".join(str(i) for i in range(loaded.config.vocab_size))
    config = DecodeConfig.make(
        method="adablock", gen_length=44, block_length=16, delimiter_threshold="inf", delimiters=everything, kv_cache=cache,
    )
    ours = decode(loaded, prompt, config)
    theirs = decode(loaded, prompt, DecodeConfig.make(method=FIXED[cache], gen_length=44, block_length=16))
    assert [(s.kind, s.rows, s.block_start, s.block_end, s.commits) for s in ours] == [
        (s.kind, s.rows, s.block_start, s.block_end, s.commits) for s in theirs
    ]


def test_the_threshold_changes_blocks_on_the_same_model(llada):
    prompt = record("llada_p7_g128")["meta"]["prompt"]
    everything = ",".join(str(i) for i in range(512))
    ours = decode(llada, prompt, DecodeConfig.make(method="adablock", gen_length=44, block_length=16, delimiters=everything))
    ends = [s.block_end for s in ours if s.kind == "entry-full"]
    assert ours.complete and ends[-1] == len(prompt) + 44
    assert [len(prompt) + e for e in (16, 32, 44)] != ends


def test_a_block_ends_with_the_most_confident_delimiter_in_reach():
    def script(i, position):
        at = position - 3
        return (NEWLINE, {4: 0.5, 10: 0.8, 20: 0.95}.get(at, 0.0)) if at in (4, 10, 20) else (5, 0.95)

    trace = adablock(script)
    # Reach is 16: the first block sees 4 and 10, the second (from 11) sees 20; then nothing, so blocks of 8 again.
    assert blocks(trace) == [(0, 11), (11, 21), (21, 29), (29, 32)]
    first = trace[0].extra["adablock"]
    assert first["delimiter"] == {"position": 13, "token": NEWLINE, "confidence": pytest.approx(0.8)}
    assert (first["ends_at_delimiter"], first["size"], first["window"]) == (True, 11, 16)
    assert trace.complete


def test_the_block_size_costs_no_pass_and_its_tokens_come_from_the_same_logits():
    trace = adablock(lambda i, p: (NEWLINE, 0.9) if p == 5 else (5, 0.95), tau_s=0.9)
    assert [c.position for c in trace[0].commits] == [3, 4, 5]
    assert (trace[0].block_start, trace[0].block_end, len(trace[0].conf)) == (3, 6, 3)


def test_equally_confident_delimiters_the_first_wins():
    trace = adablock(lambda i, p: (NEWLINE, 0.7) if p - 3 in (2, 6, 9) else (5, 0.95))
    assert blocks(trace)[0] == (0, 3)


def test_a_delimiter_below_the_threshold_or_out_of_reach_leaves_the_default_length():
    trace = adablock(lambda i, p: (NEWLINE, 0.29) if p - 3 == 4 else (NEWLINE, 0.99) if p - 3 == 16 else (5, 0.95))
    assert blocks(trace)[0] == (0, 8)
    assert trace[0].extra["adablock"]["delimiter"]["confidence"] == pytest.approx(0.29)
    assert trace[0].extra["adablock"]["ends_at_delimiter"] is False


def test_repeated_newlines_give_blocks_of_one():
    trace = adablock(lambda i, p: (NEWLINE, 0.99), gen_length=8)
    assert blocks(trace) == [(i, i + 1) for i in range(8)]
    assert len(trace) == 8


def test_no_search_where_the_window_is_empty_and_none_past_the_end():
    assert blocks(adablock(lambda i, p: (NEWLINE, 0.99), gen_length=3, delimiter_reach=0.25)) == [(0, 3)]
    trace = adablock(lambda i, p: (5, 0.95) if p - 3 != 19 else (NEWLINE, 0.99), gen_length=20)
    assert blocks(trace) == [(0, 8), (8, 16), (16, 20)]


def test_an_answer_of_eos_alone_keeps_default_blocks():
    trace = adablock(lambda i, p: (EOS, 0.99))
    assert blocks(trace) == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert len(trace) == 4 and trace.metrics()["tpf"] == 0


def test_entry_logits_are_asked_no_further_than_they_are_read():
    model = Scripted(lambda i, p: (5, 0.95))
    scripted.decode(model, method="adablock", gen_length=64, block_length=8, delimiters="9")
    assert model.plans[0].logits_for.tolist() == list(range(3, 19))


def test_delimiters_are_the_published_lists_or_the_newlines_of_the_tokenizer(demo):
    llada, qwen = scripted.config(family="llada", vocab_size=LLADA_VOCABULARY), scripted.config(family="dream", vocab_size=152064)
    assert newline_ids(llada, None) == LLADA_NEWLINE == (198,)
    assert newline_ids(qwen, None) == QWEN_NEWLINES and len(QWEN_NEWLINES) == 24
    assert newline_ids(scripted.config(), None) == ()
    ours = newline_ids(demo.config, demo.codec.token_text)
    assert ours and all("\n" in demo.codec.token_text(i) for i in ours)
    assert set(demo.codec.encode("\n")) <= set(ours)


def test_the_bundled_model_finds_its_newlines(demo):
    prompt = demo.codec.encode_chat("Write a short story about a fox.")
    trace = decode(demo, prompt, DecodeConfig.make(method="adablock", gen_length=96))
    assert trace.complete
    for step in (s for s in trace if s.kind == "entry-full"):
        found = step.extra["adablock"]["delimiter"]
        assert found is None or "\n" in demo.codec.token_text(found["token"])


def test_delimiters_that_are_no_ids_are_refused_in_a_sentence():
    with pytest.raises(ValueError, match="delimiters takes auto or token ids with commas between them, not 'x'"):
        DecodeConfig.make(method="adablock", delimiters="x")
    assert DecodeConfig.make(method="adablock", delimiters="198, 271")["delimiters"] == "198, 271"
