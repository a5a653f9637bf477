"""Breakpoints, events, and a session that stops at them."""

import threading
from itertools import pairwise

import numpy as np
import pytest

from polestar.breakpoints import EVENTS, Breakpoint, Breakpoints, next_event
from polestar.config import DecodeConfig
from polestar.driver import decode
from polestar.session import Session
from polestar.trace import Commit, Header, Step, Trace

PROMPT = [5, 17, 200, 33, 9, 411, 62, 7, 300, 21]
EVENTFUL = {"tau_upd": 1, "tau_suf": 0.02}  # on the tiny model: commits of every reason, and refreshes


def config(**values):
    return DecodeConfig.make(**({"gen_length": 32, "block_length": 8} | values))


@pytest.fixture(scope="module")
def trace(llada):
    """A real decode that has refreshes, drift, suffix and forced commits."""
    return decode(llada, PROMPT, config(**EVENTFUL))


def header(**changes):
    return Header(method="polestar", prompt_ids=[1, 2, 3], gen_length=8, block_length=4, mask_id=15, **changes)


def step(i, *commits, block=0, kind="within", **values):
    return Step(index=i, block=block, block_start=3 + 4 * block, block_end=7 + 4 * block, kind=kind, commits=list(commits), **values)


def fires(data, step, before=(), **kw):
    t = Trace(header(), [*before, step])
    return Breakpoint.from_json(data, header=t.header, **kw)(step, t)


def test_each_condition_fires_on_its_event_and_on_nothing_else(trace):
    """Against the log, condition by condition, over every pass of a real decode."""
    truth = {
        ("pass", 3): lambda s: s.index == 3,
        ("block", 2): lambda s: s.block == 2,
        ("block_entry", True): lambda s: s.kind.startswith("entry"),
        ("refresh", True): lambda s: s.refresh,
        ("commit", "drift"): lambda s: any(c.reason == "drift" for c in s.commits),
        ("commit", "suffix"): lambda s: any(c.reason == "suffix" for c in s.commits),
        ("commit", "forced"): lambda s: any(c.reason == "forced" for c in s.commits),
        ("position", 20): lambda s: any(c.position == 20 for c in s.commits),
        ("token", int(trace.tokens[5])): lambda s: any(c.token == trace.tokens[5] for c in s.commits),
    }
    for (name, value), said in truth.items():
        b = Breakpoint.from_json({name: value}, header=trace.header)
        want = [s.index for s in trace if said(s)]
        assert 0 < len(want) < len(trace), f"the decode has no {name}, or nothing but: the test would show nothing"
        assert [s.index for s in trace if b(s, trace)] == want, name


@pytest.mark.parametrize(
    ("limits", "inside"),
    [({"above": 0.5}, [0.6, 0.51]), ({"below": 0.5}, [0.4]), ({"above": 0.5, "below": 0.6}, [0.51])],
)
def test_above_and_below_are_strict(limits, inside):
    for value in (0.4, 0.5, 0.51, 0.6):
        s = step(0, Commit(4, 9, value, "drift", value, 0.1))
        for name in ("delta", "confidence"):
            assert bool(fires({name: limits}, s)) == (value in inside), (name, value)


def test_a_delta_that_does_not_exist_is_neither_above_nor_below():
    entry = step(0, Commit(4, 9, 0.9, "confidence", None, None))
    assert fires({"delta": {"above": -1e9}}, entry) is None
    assert fires({"delta": {"below": 1e9}}, entry) is None
    assert fires({"confidence": {"above": 0.5}}, entry)


def test_conditions_on_a_position_must_hold_of_one_position():
    s = step(0, Commit(4, 9, 0.95, "confidence", 0.7, 0.0), Commit(5, 8, 0.6, "drift", 0.2, 0.1))
    assert fires({"commit": "drift", "delta": {"above": 0.5}}, s) is None  # Δ 0.7 belongs to the other one
    said = fires({"commit": "drift", "delta": {"above": 0.1}, "confidence": {"below": 0.9}}, s)
    assert "position 5" in said and "token 8" in said and "0.2" in said
    assert fires({"commit": "drift", "position": 5}, s) and not fires({"commit": "drift", "position": 4}, s)
    assert fires({"commit": "drift", "pass": 0}, s) and not fires({"commit": "drift", "pass": 1}, s)


def test_masked_positions_are_read_before_the_commit():
    conf, argmax = np.array([np.nan, 0.4, 0.8, np.nan], np.float32), np.array([-1, 9, 8, -1], np.int32)
    s = step(0, Commit(5, 8, 0.8, "confidence"), conf=conf, argmax=argmax, delta=np.array([9, 0.3, 0.1, 9], np.float32))
    assert "position 4 masked" in fires({"of": "masked", "confidence": {"below": 0.5}}, s)
    assert fires({"confidence": {"below": 0.5}}, s) is None  # nothing committed is below
    assert "position 4" in fires({"of": "masked", "delta": {"above": 0.2}}, s)
    assert fires({"of": "masked", "delta": {"above": 1}}, s) is None  # 9 belongs to positions that hold a token
    assert fires({"of": "masked", "token": 9}, s) and not fires({"of": "masked", "position": 3}, s)


class Codec:
    pieces = {1: b"Pa", 2: b"ris", 3: b" is", 4: b"\xc3", 5: b"\xa9", 6: b""}

    def token_bytes(self, i):
        return self.pieces.get(i, b"?")


def test_text_is_found_across_tokens_when_its_last_piece_comes():
    first, last = step(0, Commit(4, 2, 0.9, "confidence")), step(1, Commit(3, 1, 0.9, "confidence"))
    find = {"text": "Paris"}
    assert fires(find, first, codec=Codec()) is None
    assert "position 3" in fires(find, last, [first], codec=Codec())
    later = step(2, Commit(5, 3, 0.9, "confidence"))
    assert fires(find, later, [first, last], codec=Codec()) is None, "already there: this token took no part"
    assert fires({"text": "ris is"}, later, [first, last], codec=Codec())


def test_text_of_half_characters():
    first, last = step(0, Commit(4, 5, 0.9, "confidence")), step(1, Commit(3, 4, 0.9, "confidence"))
    assert fires({"text": "é"}, first, codec=Codec()) is None
    assert fires({"text": "é"}, last, [first], codec=Codec())


def test_text_without_a_codec_uses_the_words_kept_in_the_trace():
    t = Trace(header(), [step(0, Commit(3, 1, 0.9, "confidence"))])
    t.vocab = {1: {"t": "cat"}}
    assert Breakpoint.from_json({"text": "cat"})(t[0], t)
    assert not Breakpoint.from_json({"text": "dog"})(t[0], t)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "a table of conditions"),
        ({}, "no condition"),
        ({"refresh": False}, "no condition"),
        ({"id": 3}, "no condition"),
        ({"pas": 3}, "no condition 'pas'"),
        ({"pass": -1}, "from 0"),
        ({"pass": 1.5}, "whole number"),
        ({"pass": True}, "whole number"),
        ({"pass": float("nan")}, "whole number"),
        ({"pass": float("inf")}, "whole number"),
        ({"position": 2}, "from 3 to 10"),
        ({"position": 11}, "from 3 to 10"),
        ({"refresh": 1}, "true or false"),
        ({"delta": 0.5}, "above, below or both"),
        ({"delta": {}}, "above, below or both"),
        ({"delta": {"over": 1}}, "above, below or both"),
        ({"delta": {"above": "x"}}, "takes a number"),
        ({"confidence": {"above": float("nan")}}, "takes a number"),
        ({"confidence": {"above": 0.5, "below": 0.5}}, "can never hold"),
        ({"commit": 3}, "takes text"),
        ({"text": ""}, "takes text"),
        ({"of": "any", "position": 4}, "committed or masked"),
        ({"of": "masked", "commit": "drift"}, "committed tokens"),
        ({"of": "masked", "text": "x"}, "committed tokens"),
        ({"of": "masked", "refresh": True}, "nothing is asked of the position"),
    ],
)
def test_a_wrong_breakpoint_is_one_sentence(data, said):
    with pytest.raises(ValueError) as problem:
        Breakpoint.from_json(data, header=header())
    assert said in str(problem.value) and "\n" not in str(problem.value)


def test_json_goes_round_and_reads_as_a_sentence():
    data = {"pass": 4, "refresh": True, "commit": "drift", "delta": {"above": 0.5}, "confidence": {"above": 0.2, "below": 0.9}, "position": 5, "token": 7}
    b = Breakpoint.from_json(data)
    assert {k: v for k, v in b.to_json().items() if k in data} == data
    assert Breakpoint.from_json(b.to_json()) == b
    assert b.describe() == (
        "pass 4 and refresh and a drift commit at position 5 of token 7 with Δ above 0.5 with confidence above 0.2 and below 0.9"
    )
    assert Breakpoint.from_json({"of": "masked", "position": 5, "confidence": {"above": 0.5}}).describe() == "masked position 5 with confidence above 0.5"


class Words:
    """As much of a codec as sentences need: three tokens, one of them no whole text."""

    def token_bytes(self, token):
        return {7: b" clips", 8: b"\xe2\x82", 9: b"\n"}[token]


@pytest.mark.parametrize(
    ("token", "named"),
    [(7, "token ' clips' (id 7)"), (8, "token E2 82 (id 8, part of a character)"), (9, "token '\\n' (id 9)"), (6, "token 6")],
)
def test_sentences_name_a_token_by_its_text_and_id(token, named):
    commit = step(0, Commit(5, token, 0.8, "drift", 0.61, 0.1))
    said = fires({"token": token, "commit": "drift"}, commit, codec=Words())
    assert said == f"breakpoint (a drift commit of {named}) at pass 0: position 5 committed (drift), {named}, confidence 0.8, Δ 0.61"
    saved = Trace(header(), [commit])
    saved.vocab[7] = {"t": " clips"}  # a saved trace has the texts without its model
    known = "token ' clips' (id 7)" if token == 7 else f"token {token}"
    assert f"(a commit of {known})" in Breakpoint.from_json({"token": token})(commit, saved)


def test_a_list_by_id():
    many = Breakpoints(header())
    a, b = many.add({"pass": 0}), many.add({"commit": "any", "once": True})
    assert [a.id, b.id] == [1, 2] and len(many) == 2
    s = step(0, Commit(4, 9, 0.9, "confidence"))
    t = Trace(header(), [s])
    said = many(s, t)
    assert "breakpoint 1" in said and "breakpoint 2" in said
    assert [m.id for m in many] == [1], "once is gone after it fired"
    many.enable(1, False)
    assert many(s, t) is None and many.to_json()[0]["enabled"] is False
    many.enable(1)
    assert many(s, t)
    many.remove(1)
    for call in (many.remove, many.enable):
        with pytest.raises(ValueError, match="no breakpoint 1"):
            call(1)
    assert many.add({"pass": 1}).id == 3
    many.clear()
    assert len(many) == 0 and many(s, t) is None


def test_events_forward_and_back_agree_with_the_log(trace):
    for kind, happened in EVENTS.items():
        at = [s.index for s in trace if happened(s, trace[s.index - 1] if s.index else None)]
        forward, i = [], -1
        while (i := next_event(trace, i, kind)) is not None:
            forward.append(i)
        back, i = [], len(trace)
        while (i := next_event(trace, i, kind, -1)) is not None:
            back.append(i)
        assert forward == at == back[::-1], kind
    assert next_event(trace, -1, "block") == 0
    blocks = [s.index for a, s in pairwise(trace) if a.block != s.block]
    assert next_event(trace, 0, "block") == blocks[0] and next_event(trace, blocks[1], "block", -1) == blocks[0]
    assert next_event(trace, 0, {"position": int(trace[-1].commits[0].position)}) is not None
    assert next_event(trace, 0, "change") is None
    for wrong in ({"kind": "breakfast"}, {"kind": "block", "direction": 0}):
        with pytest.raises(ValueError):
            next_event(trace, 0, **wrong)


def test_a_session_pauses_at_the_event_and_says_which(llada):
    session = Session(llada, PROMPT, config(), level="steps")
    session.breakpoints.add({"block_entry": True, "block": 2})
    worker = threading.Thread(target=lambda: list(session.steps()), daemon=True)
    worker.start()
    assert session.wait("paused", "done")
    assert session.status == "paused" and session.trace[-1].block == 2 and session.trace[-1].kind.startswith("entry")
    assert "breakpoint 1" in session.fired and "block 2" in session.fired
    at = len(session.trace)
    session.breakpoints.clear()  # while running
    session.resume()
    worker.join(20)
    assert session.status == "done" and len(session.trace) > at and session.fired is None


def test_a_breakpoint_added_while_the_run_goes_stops_it(llada):
    session = Session(llada, PROMPT, config(tau_s=2.0), level="steps", pace=200)
    worker = threading.Thread(target=lambda: list(session.steps()), daemon=True)
    worker.start()
    added = session.breakpoints.add({"commit": "any"})
    assert session.wait("paused")
    assert f"breakpoint {added.id}" in session.fired
    session.stop()
    worker.join(20)
    assert session.trace.status == "stopped" and not session.trace.complete


def test_running_to_an_event_and_over_a_block(llada):
    whole = decode(llada, PROMPT, config(**EVENTFUL))
    session = Session(llada, PROMPT, config(**EVENTFUL), level="steps", paused=True)
    worker = threading.Thread(target=lambda: list(session.steps()), daemon=True)
    worker.start()
    assert session.wait("paused")
    for kind in ("refresh", "drift", "block", "suffix"):
        want = next_event(whole, len(session.trace) - 1, kind)
        session.run_to(kind)
        assert session.wait("paused", "done", timeout=20)
        if want is None:
            break
        assert session.trace[-1].index == want and session.fired.startswith(kind)
    want = next_event(whole, len(session.trace) - 1, "block")
    session.step_block()
    assert session.wait("paused", "done", timeout=20)
    assert want is None or len(session.trace) == want + 1
    with pytest.raises(ValueError, match="no event is called"):
        session.run_to("lunch")
    if session.status == "paused":
        session.run_to("forced")
        session.pause()  # forgets where it was heading
        session.resume()
    worker.join(20)
    assert session.status == "done"
    assert [[c for c in s.commits] for s in session.trace] == [[c for c in s.commits] for s in whole]


def test_many_threads_change_the_list_while_it_is_asked():
    many, t = Breakpoints(header()), Trace(header(), [step(0)])
    stop, problems = threading.Event(), []

    def ask():
        try:
            while not stop.is_set():
                many(t[0], t)
        except Exception as problem:
            problems.append(problem)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(300):
        b = many.add({"pass": 0})
        many.enable(b.id, b.id % 2 == 0)
        many.remove(b.id)
    stop.set()
    asking.join()
    assert not problems and len(many) == 0
