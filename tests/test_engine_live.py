"""A run under control: parameters that change while it goes, and pause, step, stop and breakpoints from another thread."""

import threading
import time

import pytest
import torch

from polestar.config import DecodeConfig
from polestar.driver import DecodeError, Decoder
from polestar.session import Session
from polestar.trace import Trace, digest, load, save
from tests import scripted
from tests.scripted import Scripted

WAIT = 20.0  # a limit for what takes milliseconds on an idle machine


def decoder(script=lambda i, p: (5, 0.5), *, level="steps", gen_length=16, block_length=8, model=None, **values):
    """One token a pass (drift commits are off), in blocks of 8."""
    values = {"method": "polestar", "gen_length": gen_length, "block_length": block_length, "drift_commit": False} | values
    config = DecodeConfig.make(**values)
    return Decoder(model or Scripted(script), (1, 2, 3), config, level=level)


def finish(d: Decoder, trace: Trace | None = None) -> Trace:
    trace = trace or Trace(d.header)
    while (step := d.step()) is not None:
        trace.append(step)
    return trace


def changes(trace):
    return {s.index: [(c.name, c.old, c.new) for c in s.changes] for s in trace if s.changes}


# -- parameters that change mid-run


@pytest.mark.parametrize(("name", "value"), [("alpha", 2.0), ("k", 2), ("h", 0), ("tau_upd", 1.0), ("tau_s", 0.4), ("tau_suf", 0.5), ("temperature", 0.5)])
def test_changes_of_a_pass_take_effect_at_the_next_pass(name, value):
    d = decoder()
    trace = Trace(d.header)
    for _ in range(2):
        trace.append(d.step())
    assert d.set(name, value) == "pass"
    assert d.run.config[name] != value  # not before the next pass
    trace.append(d.step())
    assert d.run.config[name] == value
    finish(d, trace)
    assert changes(trace) == {2: [(name, DecodeConfig.make()[name], value)]}
    assert trace.header.config[name] == DecodeConfig.make()[name]  # the header says what the run began with


@pytest.mark.parametrize(
    ("name", "value"), [("K", 5), ("block_length", 4), ("window_prefix", 1), ("window_suffix", 0), ("residual_format", "fp32"), ("cache_refresh", False)]
)
def test_changes_of_a_block_wait_for_the_next_block(name, value):
    d = decoder()
    trace = Trace(d.header)
    trace.append(d.step())
    assert d.set(name, value) == "block"
    finish(d, trace)
    ((at, ((seen, _, new),)),) = changes(trace).items()
    assert (seen, new) == (name, value)
    assert trace[at].kind.startswith("entry") and trace[at].block == 1
    assert all(s.block == 0 for s in trace[:at])


def test_a_threshold_lowered_mid_run_acts_at_that_pass():
    d = decoder(gen_length=8)
    assert [len(d.step().commits) for _ in range(2)] == [1, 1]
    d.set("tau_s", 0.4)
    step = d.step()
    assert len(step.commits) == 6 and {c.reason for c in step.commits} == {"confidence"}


def test_the_block_length_changed_mid_run_reshapes_what_is_left():
    d = decoder()
    trace = Trace(d.header, [d.step()])
    d.set("block_length", 3)
    finish(d, trace)
    assert sorted({(s.block_start, s.block_end) for s in trace}) == [(3, 11), (11, 14), (14, 17), (17, 19)]
    assert d.run.canvas.masked(0, 19).numel() == 0


def test_fewer_clusters_than_chosen_ones_is_corrected_and_both_changes_are_in_the_log():
    d = decoder()
    first = d.step()
    d.set("K", 2)
    trace = Trace(d.header, [first])
    finish(d, trace)
    (events,) = changes(trace).values()
    assert sorted(events) == [("K", 8, 2), ("k", 4, 2)]
    assert d.run.config.corrections


def test_k_raised_together_with_K_is_what_was_asked_for_once_K_is():
    d = decoder()
    trace = Trace(d.header, [d.step()])
    d.set("K", 32)
    d.set("k", "20")
    for _ in range(2):
        trace.append(d.step())
    assert d.run.config.k == 8  # held to the K in force
    finish(d, trace)
    block = next(s.index for s in trace if s.block == 1)
    assert changes(trace) == {1: [("k", 4, 8)], block: [("K", 8, 32), ("k", 8, 20)]}


def test_k_lowered_again_before_the_block_of_its_K_stays_low():
    d = decoder()
    trace = Trace(d.header, [d.step()])
    d.set("k", 20)
    trace.append(d.step())
    d.set("K", 32)
    d.set("k", 3)
    finish(d, trace)
    block = next(s.index for s in trace if s.block == 1)
    assert changes(trace) == {1: [("k", 4, 8)], 2: [("k", 8, 3)], block: [("K", 8, 32)]}


def test_the_last_of_several_changes_counts_once():
    d = decoder()
    d.step()
    for value in (1, 2, 20):
        d.set("alpha", value)
    d.set("h", 5)  # no change
    assert [(c.name, c.old, c.new) for c in d.step().changes] == [("alpha", 10.0, 20.0)]


BAD = [
    ("K", 0, "K takes a whole number from 1 to 64, not 0; give one of those"),
    ("K", 10**9, "K takes a whole number from 1 to 64, not 1000000000; give one of those"),
    ("K", "many", "K takes a whole number from 1 to 64, not 'many'; give one of those"),
    ("alpha", -1, "alpha takes a number from 0, not -1; give one of those"),
    ("tau_upd", "nan", "tau_upd takes a number from 0, not 'nan'; give one of those"),
    ("residual_format", "nvfp5", "residual_format takes one of nvfp4, "),
    ("block_length", 0, "block_length takes a whole number from 1 to 8192, not 0; give one of those"),
    ("gen_length", 8, "gen_length cannot change during a run; stop, set it to 8 and run again"),
    ("seed", 4, "seed cannot change during a run; stop, set it to 4 and run again"),
    ("magic", 1, "polestar has no parameter 'magic'; it takes "),
    ("steps", 1, "polestar has no parameter 'steps'; it takes "),
    ("K", None, "K takes a whole number from 1 to 64, not None; give one of those"),
]


@pytest.mark.parametrize(("name", "value", "said"), BAD)
def test_a_bad_change_is_refused_in_a_sentence_and_the_run_goes_on_unchanged(name, value, said):
    plain = finish(decoder())
    d = decoder()
    trace = Trace(d.header)
    trace.append(d.step())
    with pytest.raises(ValueError) as problem:
        d.set(name, value)
    assert str(problem.value).startswith(said) and "\n" not in str(problem.value)
    finish(d, trace)
    assert changes(trace) == {} and digest(trace) == digest(plain)


def test_changes_survive_in_the_file(tmp_path):
    d = decoder()
    trace = Trace(d.header)
    trace.append(d.step())
    d.set("tau_upd", "inf")
    finish(d, trace)
    assert changes(load(save(trace, tmp_path / "t.safetensors"))) == {1: [("tau_upd", 3.0, float("inf"))]}


@pytest.mark.parametrize("level", ["off", "steps", "full"])
def test_changes_from_many_threads_never_break_a_run(level):
    d = decoder(level=level, gen_length=40, block_length=8)
    stop, problems = threading.Event(), []

    def turn(seed):
        generator = torch.Generator().manual_seed(seed)
        names = {"alpha": (0, 20), "k": (1, 64), "K": (1, 64), "h": (0, 9), "tau_upd": (0, 5), "window_prefix": (0, 3), "block_length": (1, 9)}
        while not stop.is_set():
            name = list(names)[int(torch.randint(len(names), (1,), generator=generator))]
            low, high = names[name]
            try:
                d.set(name, int(torch.randint(low, high + 1, (1,), generator=generator)))
            except Exception as problem:
                problems.append(problem)
            time.sleep(0.001)

    threads = [threading.Thread(target=turn, args=(i,), daemon=True) for i in range(2)]
    for t in threads:
        t.start()
    try:
        trace = finish(d)
    finally:
        stop.set()
        for t in threads:
            t.join(WAIT)
    assert problems == [] and trace.complete and changes(trace)


# -- sessions


class Runner:
    """A session consumed by a thread of its own."""

    def __init__(self, script=lambda i, p: (5, 0.5), *, on_step=None, **values):
        session = {k: values.pop(k) for k in ("pace", "paused", "breaks") if k in values}
        breaks = session.pop("breaks", [])
        d = decoder(script, **values)
        self.session = Session(None, (1, 2, 3), d.run.config, decoder=d, **session)
        self.session.breaks += breaks
        self.seen, self.problem = [], None
        self.on_step = on_step
        self.thread = threading.Thread(target=self._consume, daemon=True)
        self.thread.start()

    def _consume(self):
        try:
            for step in self.session.steps():
                self.seen.append(step.index)
                if self.on_step:
                    self.on_step(step)
        except Exception as problem:
            self.problem = problem

    def join(self):
        self.thread.join(WAIT)
        assert not self.thread.is_alive()
        return self

    def paused_at(self, passes):
        assert self.session.wait("paused", timeout=WAIT)
        assert len(self.session.trace) == passes
        return self.session


def test_a_session_runs_to_its_end_as_the_plain_decode():
    runner = Runner().join()
    assert runner.session.status == "done" and runner.session.trace.status == "done" and runner.session.trace.complete
    assert runner.seen == list(range(len(runner.session.trace)))
    other = finish(decoder())
    other.status = "done"
    assert digest(runner.session.trace) == digest(other)


def test_starting_paused_stepping_and_going_on():
    runner = Runner(paused=True)
    session = runner.paused_at(0)
    session.step_once()
    session = wait_passes(runner, 1)
    session.step_once(3)
    wait_passes(runner, 4)
    time.sleep(0.05)
    assert len(session.trace) == 4  # and no further
    session.resume()
    runner.join()
    assert session.status == "done" and len(session.trace) == 16


def wait_passes(runner, passes):
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        if runner.session.status == "paused" and len(runner.session.trace) == passes:
            return runner.session
        time.sleep(0.002)
    raise AssertionError(f"status {runner.session.status} with {len(runner.session.trace)} passes; wanted paused with {passes}")


def test_pause_from_another_thread_holds_before_the_next_pass():
    reached, go = threading.Event(), threading.Event()

    def hold(step):
        if step.index == 2:
            reached.set()
            go.wait(WAIT)

    runner = Runner(on_step=hold)
    assert reached.wait(WAIT)
    runner.session.pause()
    go.set()
    session = wait_passes(runner, 3)
    time.sleep(0.05)
    assert len(session.trace) == 3
    session.resume()
    runner.join()
    assert session.status == "done"


def test_stop_ends_within_one_pass_and_keeps_the_trace():
    reached = threading.Event()

    def script(i, position):
        if i == 3:
            reached.set()
            time.sleep(0.002)
        return (5, 0.5)

    runner = Runner(script)
    assert reached.wait(WAIT)
    runner.session.stop()
    runner.join()
    session = runner.session
    assert session.status == "stopped" and session.trace.status == "stopped"
    assert len(session.trace) == 4  # the pass that was running, and none after it
    assert not session.trace.complete and len(session.trace.canvas_at(3)) == 19
    assert session.decoder.run.kv is None  # the cache is given back


def test_stop_while_paused_or_pacing_does_not_wait():
    for options in ({"paused": True}, {"pace": 0.01}):
        runner = Runner(**options)
        if "paused" in options:
            runner.paused_at(0)
        else:
            deadline = time.monotonic() + WAIT
            while not len(runner.session.trace) and time.monotonic() < deadline:
                time.sleep(0.002)
        started = time.monotonic()
        runner.session.stop()
        runner.join()
        assert time.monotonic() - started < 5 and runner.session.status == "stopped"


def test_stop_before_the_start_runs_nothing():
    d = decoder()
    session = Session(None, (1, 2, 3), d.run.config, decoder=d)
    session.stop()
    assert list(session.steps()) == [] and session.status == "stopped" and len(session.trace) == 0


def test_a_breakpoint_pauses_at_its_pass_and_says_why():
    runner = Runner(breaks=[lambda step, trace: f"pass {step.index}: {len(trace)} so far" if step.index % 5 == 4 else None])
    session = wait_passes(runner, 5)
    assert session.fired == "pass 4: 5 so far"
    session.resume()
    session = wait_passes(runner, 10)
    session.breaks.clear()
    session.resume()
    runner.join()
    assert session.status == "done" and session.fired is None


def test_parameters_change_from_another_thread_between_passes():
    runner = Runner(paused=True)
    session = runner.paused_at(0)
    session.step_once(2)
    wait_passes(runner, 2)
    assert session.set("tau_s", 0.4) == "pass" and session.set("K", 3) == "block"
    with pytest.raises(ValueError, match="K takes a whole number"):
        session.set("K", 0)
    session.resume()
    runner.join()
    assert session.status == "done"
    assert changes(session.trace)[2] == [("tau_s", 0.9, 0.4)]
    assert [events for at, events in changes(session.trace).items() if at > 2] == [[("K", 8, 3), ("k", 4, 3)]]


def test_an_error_is_noted_and_the_trace_kept():
    runner = Runner(lambda i, p: torch.full((scripted.V,), float("nan")) if i == 3 else (5, 0.5)).join()
    session = runner.session
    assert isinstance(runner.problem, DecodeError) and session.status == "error"
    assert session.error == str(runner.problem) and session.error.startswith("pass 3 gave logits that are not finite")
    assert len(session.trace) == 3 and session.trace.status == "error" and session.trace.error == session.error


def test_a_reader_that_walks_away_stops_the_run():
    d = decoder()
    session = Session(None, (1, 2, 3), d.run.config, decoder=d)
    steps = session.steps()
    next(steps), next(steps)
    steps.close()
    assert session.status == "stopped" and session.trace.status == "stopped" and len(session.trace) == 2 and d.run.kv is None


def test_pace_is_waiting_and_no_decode_time():
    runner = Runner(pace=20, gen_length=4, block_length=4)
    started = time.monotonic()
    runner.join()
    assert time.monotonic() - started > 0.1  # four passes at 20 a second
    assert runner.session.trace.seconds < 0.15 and runner.session.status == "done"


def test_a_request_that_cannot_run_is_refused_before_the_session_exists():
    with pytest.raises(ValueError, match="the prompt is empty"):
        Session(Scripted(lambda i, p: (5, 0.5)), (), DecodeConfig.make())
