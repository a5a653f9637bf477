"""Forks: the state at a pass is made again and checked; what is changed from there on is changed, and nothing else."""

import re
from dataclasses import replace

import numpy as np
import pytest

from polestar.config import DecodeConfig
from polestar.decoders import METHODS
from polestar.driver import Decoder, decode
from polestar.fork import ForkError, fork
from polestar.runs import RunTree
from polestar.session import Session
from polestar.trace import Commit, ParamChange, Trace, digest, load, save
from polestar.trace.compare import differing

PROMPT = [5, 17, 200, 33, 9, 411, 62, 7, 300, 21]
LP, L = len(PROMPT), len(PROMPT) + 32


def config(**values):
    return DecodeConfig.make(**({"gen_length": 32, "block_length": 8} | values))


def finish(session):
    for _ in session.steps():
        pass
    return session.trace


def recorded(loaded, level="full", changes=(), edits=(), **values):
    """A decode with changes {pass: {name: value}} and edits {pass: {position: token}} made by hand before passes."""
    session = Session(loaded, PROMPT, config(**values), level=level)
    changes, edits = dict(changes), dict(edits)

    def by_hand(at):
        for name, value in changes.get(at, {}).items():
            session.set(name, value)
        if at in edits:
            session.edit(edits[at])

    by_hand(0)
    for step in session.steps():
        by_hand(step.index + 1)
    return session.trace


def orphan(trace):
    """The same trace as if it were no fork."""
    out = Trace(replace(trace.header, parent=None), trace.steps)
    out.status = trace.status
    return out


RUNS = {
    "polestar-paper": {"tau_upd": 1, "tau_suf": 0.02},
    "polestar-release": {"preset": "release"},
    "fast-dllm-dual": {"method": "fast-dllm-dual", "tau_s": 0.5},
    "vanilla": {"method": "vanilla"},
    "sampled": {"temperature": 0.8, "seed": 5},
}
CHANGES = {
    "polestar-paper": {2: {"alpha": 3.0, "k": 2}, 4: {"K": 4, "tau_s": 0.7}, 6: {"tau_upd": float("inf")}},
    "polestar-release": {3: {"tau_s": 0.6}, 5: {"window_suffix": 0}},
    "fast-dllm-dual": {1: {"tau_s": 0.4}, 3: {"block_length": 4}},
    "vanilla": {2: {"temperature": 0.5}, 9: {"steps": 8}},
    "sampled": {3: {"temperature": 0.1}},
}


@pytest.mark.parametrize("name", RUNS)
def test_an_unchanged_fork_is_the_recording(llada, name):
    """Live changes included, from the first pass, the middle, and the last."""
    trace = recorded(llada, changes=CHANGES[name], **RUNS[name])
    assert sum(len(s.changes) for s in trace) >= len(CHANGES[name])
    before = digest(trace)
    for at in {-1, 0, 3, len(trace) // 2, len(trace) - 1}:
        told = []
        session = fork(llada, trace, at, progress=lambda done, total, told=told: told.append((done, total)))
        assert told == [(i + 1, at + 1) for i in range(at + 1)]
        assert len(session.trace) == at + 1
        branch = finish(session)
        assert digest(orphan(branch)) == before == digest(trace)
        assert branch.header.parent == {"digest": before, "pass": at, "edits": [], "changes": {}}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_forked(llada, method):
    trace = recorded(llada, method=method, level="steps")
    assert digest(orphan(finish(fork(llada, trace, len(trace) // 2)))) == digest(trace)


def test_a_fork_of_dream(dream):
    trace = recorded(dream, tau_upd=1)
    assert digest(orphan(finish(fork(dream, trace, len(trace) // 2)))) == digest(trace)


def test_a_recording_read_from_a_file_forks_alike(llada, tmp_path):
    trace = recorded(llada, changes=CHANGES["polestar-paper"], **RUNS["polestar-paper"])
    again = load(save(trace, tmp_path / "run.safetensors"))
    assert digest(orphan(finish(fork(llada, again, 5)))) == digest(trace)


def test_changes_after_the_fork_are_the_recordings_own_business(llada):
    trace = recorded(llada, changes={6: {"tau_s": 0.2}}, method="parallel")
    branch = finish(fork(llada, trace, 2, changes={"tau_s": 0.95}))
    assert [(c.name, c.old, c.new) for s in branch for c in s.changes] == [("tau_s", 0.9, 0.95)]
    assert branch[3].changes and len(branch) > len(trace)
    both = finish(fork(llada, trace, 2, changes={"tau_s": 0.95}, later=True))
    assert [(s.index, c.new) for s in both for c in s.changes] == [(3, 0.95), (6, 0.2)]


def test_changed_parameters_change_what_follows_alone(llada):
    trace = recorded(llada, tau_upd=1)
    at = next(s.index for s in trace[2:] if trace[s.index + 1].kind == "within")
    branch = finish(fork(llada, trace, at, changes={"tau_s": 0.3, "K": 2}))
    assert [[c.token for c in s.commits] for s in branch[: at + 1]] == [[c.token for c in s.commits] for s in trace[: at + 1]]
    assert len(branch) < len(trace) and branch.complete
    assert branch[at + 1].changes == [ParamChange("tau_s", 0.9, 0.3)]
    entry = next(s for s in branch[at + 1 :] if any(c.name == "K" for c in s.changes))
    assert entry.kind.startswith("entry") and entry.clusters.counts.shape[1] == 2, "K waits for the next block"
    assert branch.header.parent["changes"] == {"tau_s": 0.3, "K": 2} and branch.header.config["tau_s"] == 0.9


def test_another_seed_from_here(llada):
    trace = recorded(llada, temperature=1.5, seed=1, method="parallel")
    branch = finish(fork(llada, trace, 3, changes={"seed": 2}))
    assert (branch.canvas_at(3) == trace.canvas_at(3)).all() and (branch.tokens != trace.tokens).any()
    assert branch[4].changes == [ParamChange("seed", 1, 2)]
    assert digest(orphan(finish(fork(llada, branch, 6)))) == digest(orphan(branch)), "a fork of it draws alike"


@pytest.mark.parametrize("method", METHODS)
def test_another_method_starts_on_the_canvas(llada, method):
    trace = recorded(llada, tau_s=0.7, temperature=0.0, level="steps")
    at = 4
    session = fork(llada, trace, at, method=method, preset="release")
    assert session.config.method == method and session.config.get("tau_s", 0.7) == 0.7 and session.config.block_length == 8
    branch = finish(session)
    assert branch.complete and branch.header.method == method and [s.index for s in branch] == list(range(len(branch)))
    first = branch[at + 1]
    masked = np.flatnonzero(trace.canvas_at(at) == trace.header.mask_id)
    assert first.kind == "entry-full" and first.rows == L, "the first pass feeds every row"
    assert first.block_start <= masked[0] < first.block_end
    kept = trace.canvas_at(at)
    assert (branch.canvas_at(len(branch) - 1)[kept != trace.header.mask_id] == kept[kept != trace.header.mask_id]).all()
    assert branch.header.parent["switched"] and branch.header.parent["method"] == "polestar"
    assert branch[-1].elapsed > trace[at].elapsed
    # The fork of a fork: after the switch its own state is made again; before it, the method is another one's.
    assert digest(orphan(finish(fork(llada, branch, len(branch) - 2)))) == digest(orphan(branch))
    with pytest.raises(ForkError, match="fork the trace it came from"):
        fork(llada, branch, at - 1)


def test_another_method_on_the_first_canvas_is_that_method(llada):
    trace = recorded(llada, level="steps")
    branch = finish(fork(llada, trace, -1, method="fast-dllm-dual"))
    alone = decode(llada, PROMPT, config(method="fast-dllm-dual"), level="steps")
    assert [s.commits for s in branch] == [s.commits for s in alone]


def test_what_a_person_had_set_goes_over_to_another_preset(llada):
    trace = recorded(llada, changes={2: {"alpha": 4.0}}, tau_s=0.8)
    session = fork(llada, trace, 5, preset="release", changes={"tau_suf": 0.5})
    assert (session.config.tau_s, session.config.alpha, session.config.tau_suf) == (0.8, 4.0, 0.5)
    assert session.config.split_clusters and session.config.tau_upd == 1.0, "the rest is the new preset's"


@pytest.mark.parametrize("name", ["polestar-paper", "fast-dllm-dual", "vanilla"])
def test_an_edited_token_stays_and_the_next_pass_starts_anew(llada, name):
    trace = recorded(llada, **RUNS[name])
    at = 2
    masked = int(np.flatnonzero(trace.canvas_at(at) == trace.header.mask_id)[3])
    branch = finish(fork(llada, trace, at, edits={masked: 77}))
    step = branch[at + 1]
    assert step.edits == [(masked, 77)] and step.kind == "entry-full" and step.rows == L and step.drift is None
    assert branch.canvas_at(len(branch) - 1)[masked] == 77 and branch.complete
    assert not any(c.position == masked for s in branch for c in s.commits)
    assert branch.header.parent["edits"] == [[masked, 77]]
    assert digest(orphan(finish(fork(llada, branch, at + 2)))) == digest(orphan(branch)), "edits are made again in a fork of it"


@pytest.mark.parametrize("method", METHODS)
def test_a_position_of_a_finished_block_is_decoded_again(llada, method):
    trace = recorded(llada, method=method, level="full")
    at = len(trace) - 1
    again = [LP + 1, LP + 2, LP + 20]
    branch = finish(fork(llada, trace, at, edits=dict.fromkeys(again)))
    step = branch[at + 1]
    assert step.edits == [(p, trace.header.mask_id) for p in again]
    assert step.kind == "entry-full" and step.rows == L and step.block_start <= LP + 1 < step.block_end
    late = [c.position for s in branch[at + 1 :] for c in s.commits]
    assert sorted(late) == again and branch.complete
    rest = [p for p in range(LP, L) if p not in again]
    assert (branch.canvas_at(len(branch) - 1)[rest] == trace.canvas_at(at)[rest]).all()


def test_after_an_edit_nothing_cached_is_left(llada):
    """The pass after an edit equals the first pass of a decode that begins on the edited canvas."""
    trace = recorded(llada, tau_upd=1)
    edits = {LP + 1: 44, LP + 2: None, LP + 30: 9}
    branch = finish(fork(llada, trace, 6, edits=edits))
    alone = Decoder(llada.model, PROMPT, config(tau_upd=1), level="full")
    canvas = trace.canvas_at(6)
    for p, t in edits.items():
        canvas[p] = trace.header.mask_id if t is None else t
    alone.start_from(canvas.tolist(), 7, 0.0)
    first = alone.step()
    assert np.array_equal(branch[7].conf, first.conf, equal_nan=True)
    assert [(c.position, c.token, c.reason) for c in branch[7].commits] == [(c.position, c.token, c.reason) for c in first.commits]


def test_edits_while_a_run_goes(llada):
    trace = recorded(llada, edits={4: {LP + 1: None, LP + 2: 9}}, level="steps")
    assert trace.complete and trace[4].edits == [(LP + 1, trace.header.mask_id), (LP + 2, 9)]
    assert trace.tokens[2] == 9
    assert digest(orphan(finish(fork(llada, trace, 7)))) == digest(trace)


def test_an_edit_that_changes_nothing_is_no_edit(llada):
    trace = recorded(llada)
    kept = int(trace.canvas_at(3)[np.flatnonzero(trace.canvas_at(3)[LP:] != trace.header.mask_id)[0] + LP])
    position = int(np.flatnonzero(trace.canvas_at(3) == kept)[-1])
    branch = finish(fork(llada, trace, 3, edits={position: kept}))
    assert [s.commits for s in branch] == [s.commits for s in trace] and not branch[4].edits


class Words:
    def encode(self, text):
        return [ord(c) for c in text]

    def token_bytes(self, token):
        return b"<%d>" % token


def test_an_edit_may_be_text_of_one_token(llada):
    trace = recorded(llada)
    position = int(np.flatnonzero(trace.canvas_at(2) == trace.header.mask_id)[0])
    assert fork(llada, trace, 2, edits={position: "a"}, codec=Words()).decoder.edits == {position: ord("a")}
    with pytest.raises(ForkError, match="2 tokens"):
        fork(llada, trace, 2, edits={position: "ab"}, codec=Words())
    with pytest.raises(ForkError, match="no tokenizer"):
        fork(llada.model, trace, 2, edits={position: "a"})


def test_a_record_that_is_not_reproduced_is_one_sentence(llada):
    trace = recorded(llada)
    other = Trace(trace.header)
    for step in trace:
        if step.index == 3:
            c = step.commits[0]
            step = replace(step, commits=[Commit(c.position, c.token + 1, c.confidence, c.reason), *step.commits[1:]])
        other.append(step)
    with pytest.raises(ForkError) as problem:
        fork(llada, other, 5)
    said = str(problem.value)
    assert said.startswith("pass 3 made again commits token") and "cannot be reproduced" in said and "\n" not in said
    at = f"at position {c.position} ({c.reason})"
    other.vocab[c.token + 1] = {"t": " clips"}  # a saved trace has the texts without a codec
    with pytest.raises(ForkError, match=re.escape(f"commits token {c.token} {at} where the record has token ' clips' (id {c.token + 1}) {at};")):
        fork(llada.model, other, 5)
    mine, theirs = (f"token '<{token}>' (id {token}) {at}" for token in (c.token, c.token + 1))
    with pytest.raises(ForkError, match=re.escape(f"commits {mine} where the record has {theirs};")):
        fork(llada, other, 5, codec=Words())
    assert len(fork(llada, other, 2).trace) == 3, "before it, the record holds"
    for change in ({"kind": "within"}, {"refresh": True}, {"commits": []}):
        other = Trace(trace.header, [replace(trace[0], **change), *trace[1:]])
        with pytest.raises(ForkError, match="pass 0 made again"):
            fork(llada, other, 0)


def test_what_cannot_be_forked_says_why(llada, dream):
    trace = recorded(llada, level="steps")
    n = len(trace)
    cases = [
        ({"at_pass": n}, f"passes 0 to {n - 1}"),
        ({"at_pass": -2}, f"passes 0 to {n - 1}"),
        ({"edits": {LP - 1: 5}}, f"positions {LP} to {L - 1}"),
        ({"edits": {L: None}}, f"positions {LP} to {L - 1}"),
        ({"edits": {LP: 10**6}}, "no id of the vocabulary"),
        ({"at_pass": n - 2, "edits": dict.fromkeys(range(LP, L), 5)}, "nothing to decode"),
        ({"changes": {"tau_s": "much"}}, "tau_s takes"),
        ({"changes": {"tau": 1}}, "no parameter 'tau'"),
        ({"changes": {"gen_length": 64}}, "cannot change during a run"),
        ({"method": "fast-dllm-dual", "changes": {"gen_length": 64}}, "a fork keeps them"),
        ({"method": "magic"}, "no method is called"),
        ({"method": "vanilla", "preset": "magic"}, "preset 'magic'"),
    ]
    for wrong, said in cases:
        with pytest.raises(ValueError) as problem:
            fork(llada, trace, **({"at_pass": 2} | wrong))
        assert said in str(problem.value) and "\n" not in str(problem.value)
    with pytest.raises(ForkError, match="was recorded with llada_tiny"):
        fork(dream, trace, 2)
    strange = Trace(replace(trace.header, config={"tau_s": 0.9, "mystery": 1}), trace.steps)
    with pytest.raises(ForkError, match="mystery"):
        fork(llada, strange, 2)


def test_progress_can_end_a_fork(llada):
    trace = recorded(llada, level="steps")

    class Enough(Exception):
        pass

    def stop(done, total):
        if done == 2:
            raise Enough

    with pytest.raises(Enough):
        fork(llada, trace, 5, progress=stop)


def test_a_tree_of_runs(llada):
    trace = recorded(llada, level="steps")
    tree = RunTree()
    root = tree.add(trace)
    low = tree.add(finish(fork(llada, trace, 4, changes={"tau_s": 0.3})), parent=root.id)
    masked = int(np.flatnonzero(trace.canvas_at(6) == trace.header.mask_id)[0])
    edited = tree.add(finish(fork(llada, trace, 6, edits={masked: 9})), parent=root.id)
    deeper = tree.add(finish(fork(llada, low.trace, 5, method="vanilla")), parent=low.id)
    other = tree.add(trace, label="mine")
    assert [low.label, edited.label, other.label] == ["τ_s = 0.3 from pass 4", "1 edit from pass 6", "mine"]
    assert deeper.label == "Vanilla from pass 5" and deeper.at_pass == 5
    assert [n.id for n in tree.path(deeper.id)] == [root.id, low.id, deeper.id]
    assert {n.id for n in tree.leaves()} == {edited.id, deeper.id, other.id}
    assert tree.shared(low.id, edited.id) == 5 and tree.shared(deeper.id, edited.id) == 5 and tree.shared(deeper.id, low.id) == 6
    assert tree.shared(root.id, edited.id) == 7 and tree.shared(root.id, other.id) == 0 and tree.shared(root.id, root.id) == len(trace)
    compared = tree.compare(root.id, edited.id)
    assert compared["shared"] == 7 and compared["differing"] == differing(trace, edited.trace)
    by_hand = next(e for e in compared["differing"] if e["position_b"] == masked)
    assert by_hand["token_b"] == 9 and by_hand["commit_b"] is None and by_hand["commit_a"] is not None, "a token put by hand is no commit"
    assert [n["parent"] for n in tree.to_json()] == [None, root.id, root.id, low.id, None]
    for wrong in ({"parent": 99}, {"parent": root.id}, {"parent": root.id, "at_pass": len(trace)}):
        with pytest.raises(ValueError):
            tree.add(trace, **wrong)
    assert tree.remove(low.id) == [low.id, deeper.id] and len(tree) == 3
    with pytest.raises(ValueError, match="no run"):
        tree[low.id]
