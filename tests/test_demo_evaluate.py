"""`bench demo`: problem sets, judging, the store of finished decodes, paired statistics, tables, words, model card; tiny models, a few decodes."""

import itertools
import json
import math
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

from polestar.bench import demo, demo_report, paired
from polestar.bench.demo_tables import ONE, Table, compare, figures, measure, tables
from polestar.config import DecodeConfig
from polestar.demo.evaluate import Job, Result, Store, canvas_length, crc, judge, problem_set, turns, whole_words
from polestar.demo.export import export, model_config
from polestar.demo.problem import Problem
from polestar.demo.problems import FAMILIES, held_out
from polestar.driver import decode
from polestar.models.checkpoint import DEMO, load_model
from polestar.models.transformer import Transformer
from polestar.trace.step import Commit, Step
from polestar.trace.trace import Header, Trace


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A random model with the starter's tokenizer, in the published layout."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(3)
    cfg = model_config(d_model=32, n_layers=2, n_heads=2, mlp_hidden=48, vocab_size=1504)
    model = Transformer(cfg)
    for p in model.parameters():
        if p.dim() == 2:
            torch.nn.init.normal_(p, std=0.3)
    export(model.state_dict(), cfg, Tokenizer.from_file(str(DEMO / "tokenizer.json")), folder)
    return load_model(folder, device="cpu", dtype="float32")


def result(right=True, *, job="polestar", prompt="0", family="list", **more):
    base = dict(
        model="m", family=family, prompt=prompt, kind="copy", job=job, gen_length=32, right=right, why="" if right else "no", nfe=4, tokens=32, non_eos=8,
        answer=8, answer_nfe=2, rows=64, packet_rows=16.0, seconds=0.5, reasons={"confidence": 30, "drift": 2}, refreshes=1,
    )  # fmt: skip
    return Result(**{**base, **more})


# -- problems


def test_a_smaller_set_is_the_start_of_a_larger_one_and_everything_is_held_out():
    for family in FAMILIES:
        few, more = problem_set(family, 3), problem_set(family, 12)
        assert [p.prompt for p in few] == [p.prompt for p in more[:3]]
        assert len({p.prompt for p in more}) == 12 and all(held_out(p.prompt) for p in more)


def test_a_family_with_few_prompts_gives_what_it_has(monkeypatch):
    few = problem_set("facts", 7)
    monkeypatch.setattr("polestar.demo.evaluate.stream", lambda *_, **__: itertools.cycle(few))  # without end, so the set must give up
    assert problem_set("facts", 5000) == few and len({p.prompt for p in few}) == 7


def test_every_family_has_the_200_held_out_prompts_of_the_table():
    for family in FAMILIES:
        assert len({p.prompt for p in problem_set(family, 200)}) == 200


def test_canvas_is_the_longest_answer_and_eos_in_whole_blocks():
    length = canvas_length("calc", lambda text: [0] * len(text))
    longest = max(len(p.answer) for p in problem_set("calc", 100))
    assert length % 32 == 0 and length > longest
    assert canvas_length("calc", lambda text: [0] * 32) == 64  # the [EOS] needs a place
    assert canvas_length("calc", lambda text: [0] * 31) == 32


def test_share_of_words_that_are_one_token():
    known = {"Take", " the", " list", " 7"}
    problem = Problem("x", "x", "Take the long list 7.", "", lambda t: "")
    assert whole_words([problem], lambda text: [0] if text in known else [0, 0]) == pytest.approx(4 / 5)


def test_problems_are_decoded_family_by_turn_and_shares_split_them():
    sets = {f: problem_set(f, n) for f, n in (("calc", 3), ("list", 1), ("math", 2))}
    order = list(turns(sets))
    assert [p.family for p in order] == ["calc", "list", "math", "calc", "math", "calc"]
    parts = [list(turns(sets, (i, 4))) for i in (1, 2, 3, 4)]
    assert Counter(p.prompt for part in parts for p in part) == Counter(p.prompt for p in order)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


# -- jobs


def test_a_job_holds_only_what_differs_from_the_defaults():
    assert Job.of("polestar", alpha=10.0, k=4) == Job("polestar")
    assert Job.of("polestar", tau_upd=math.inf, alpha=5).key == "polestar alpha=5.0 tau_upd=inf"
    assert Job.of("polestar", alpha=5).config(64).alpha == 5 and Job.of("polestar").config(64).gen_length == 64
    with pytest.raises(ValueError, match="alpha"):
        Job.of("parallel", alpha=3)


def test_parallel_above_one_is_vanilla(tiny):
    assert Job.of("parallel", tau_s=ONE) == Job("vanilla")
    ids = tiny.codec.encode_chat("Reverse the list: Ben, Sam, Ava.")
    vanilla = decode(tiny, ids, DecodeConfig.make(method="vanilla", gen_length=40))
    parallel = decode(tiny, ids, DecodeConfig.make(method="parallel", gen_length=40, tau_s=ONE))
    assert vanilla.tokens.tolist() == parallel.tokens.tolist() and len(vanilla) == len(parallel) == 40


# -- judging


def test_judge_counts_to_the_first_eos_and_uses_the_problems_own_check():
    header = Header(
        method="parallel", title="Parallel", preset="paper", config={}, model="", revision=None, prompt_ids=(5, 6), prompt_text=None, gen_length=6,
        block_length=3, blocks=((2, 5), (5, 8)), n_layers=1, n_heads=1, mask_id=1, eos_ids=(0,), shift=0, seed=0, level="steps", device="cpu",
        dtype="float32", versions={}, created="2020-01-01T00:00:00+00:00",
    )  # fmt: skip
    trace = Trace(header)
    commits = [[(2, 7), (4, 0)], [(3, 8)], [(5, 9), (6, 0), (7, 0)]]
    for i, own in enumerate(commits):
        block, start, end = (0, 2, 5) if i < 2 else (1, 5, 8)
        trace.append(
            Step(index=i, block=block, block_start=start, block_end=end, kind="within" if i == 1 else "entry-full", rows=8, seconds=0.25,
                 elapsed=0.25 * (i + 1), commits=[Commit(p, t, 0.95, "confidence") for p, t in own])
        )  # fmt: skip
    codec = SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
    problem = Problem("list", "copy", "p", "7 8", lambda text: "" if text == "7 8" else f"not 7 8 but {text}")
    r = judge(trace, problem, codec, model="m", job=Job("parallel"))
    assert r.right and r.text == "" and r.prompt == crc("p")
    assert (r.nfe, r.tokens, r.non_eos, r.answer, r.answer_nfe, r.rows, r.packet_rows) == (3, 6, 3, 2, 2, 24, 0)
    assert r.seconds == pytest.approx(0.75) and r.reasons == {"confidence": 6}
    wrong = judge(trace, Problem("list", "copy", "p", "", lambda text: "no"), codec, model="m", job=Job("parallel"))
    assert not wrong.right and wrong.why == "no" and wrong.text == "7 8"


# -- the store


def test_store_resumes_past_a_half_written_line_and_keeps_models_apart(tmp_path):
    path = tmp_path / "deep" / "results.jsonl"
    store, problem = Store(path, "m"), Problem("list", "copy", "p", "", lambda t: "")
    store.add(result(prompt=crc("p")))
    store.add(result(False, job="vanilla", prompt=crc("p"), text="long text"))
    store.add(result(model="other", prompt=crc("q")))
    with path.open("a") as file:
        file.write('{"model": "m", "family": "li')
    again = Store(path, "m")
    assert len(again.done) == 2
    assert again.find(Job("polestar"), problem, 32).right and not again.find(Job("vanilla"), problem, 32).right
    assert again.find(Job("polestar"), problem, 64) is None and again.find(Job("parallel"), problem, 32) is None
    again.add(result(job="parallel", prompt=crc("p")))
    assert len(Store(path, "m").done) == 3 and len(Store(path, "other").done) == 1
    kept = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    assert [k["text"] for k in kept if k["job"] == "vanilla"] == ["long text"]


# -- statistics


def test_mcnemar_is_exact():
    a, b = [True] * 10 + [False] * 5, [True] * 4 + [False] * 6 + [True] + [False] * 4
    m = paired.mcnemar(a, b)
    assert (m["only_a"], m["only_b"], m["n"]) == (6, 1, 15)
    assert m["p"] == pytest.approx(2 * (1 + 7) / 2**7) and not m["shown"] and m["difference"] == pytest.approx(5 / 15)
    assert paired.mcnemar(a, a)["p"] == 1.0
    assert paired.mcnemar([True] * 9, [False] * 9)["shown"]


def test_ratio_claims_only_what_enough_problems_show():
    sure = paired.ratio([2.0] * 30, [1.0] * 30)
    assert (sure["value"], sure["low"], sure["high"], sure["shown"]) == (2.0, 2.0, 2.0, True)
    assert not paired.ratio([2.0] * 10, [1.0] * 10)["shown"]
    noisy = paired.ratio([1.0, 3.0] * 15, [3.0, 1.1] * 15)
    assert noisy["low"] < 1 < noisy["high"] and not noisy["shown"]
    rates = paired.ratio([8.0] * 20, [8.0] * 20, a_per=[2.0] * 20, b_per=[4.0] * 20)
    assert rates["value"] == pytest.approx(2.0)
    assert paired.ratio([1.0] * 20, [0.0] * 20)["value"] is None


def test_share_is_wilsons():
    value, low, high = paired.share(8, 10)
    assert value == 0.8 and low == pytest.approx(0.4902, abs=1e-3) and high == pytest.approx(0.9433, abs=1e-3)
    with pytest.raises(ValueError, match="0 problems"):
        paired.share(0, 0)


# -- tables


def test_figures_by_hand():
    f = figures([result(), result(False, nfe=6, non_eos=12, answer=10, answer_nfe=4, seconds=1.5)])
    assert (f["n"], f["right"], f["accuracy"], f["nfe"]) == (2, 1, 0.5, 5)
    assert f["tpf"] == pytest.approx(20 / 10) and f["tpf_all"] == pytest.approx(64 / 10) and f["tpf_answer"] == pytest.approx(18 / 6)
    assert f["tps"] == pytest.approx(20 / 2.0) and f["rows_per_token"] == pytest.approx(160 / 64)
    assert f["reasons"] == {"confidence": 60 / 64, "drift": 4 / 64}


def test_tables_name_each_decode_once_and_compare_within_a_method():
    found = {t.name: t for t in tables(demo.FIVE, ("methods", "ablation", "tradeoff"), scan=True, n=200, tradeoff_n=80, scan_n=50)}
    assert [label for label, _ in found["ablation"].rows][2:] == ["fast-dllm-dual", "Polestar-Cache", "+ current-block commit", "+ suffix commit"]
    assert dict(found["ablation"].rows)["+ suffix commit"] == Job("polestar")
    assert found["tradeoff"].base_of("polestar, τ_s 0.5") == "polestar, τ_s 0.9" and found["tradeoff"].base_of("polestar, τ_s 0.9") is None
    assert found["tradeoff"].n == 80 and found["ablation"].n == 200
    assert dict(found["tradeoff"].rows)["polestar, τ_s 0.9"] == Job("polestar")
    assert {n for n in found if n.startswith("scan ")} == {"scan alpha", "scan k", "scan tau_upd", "scan h", "scan tau_s"}
    for t in (t for n, t in found.items() if n.startswith("scan ")):
        assert t.n == 50 and [job for _, job in t.rows].count(Job("polestar")) == 1 and t.base.endswith("(default)")


def test_a_table_sums_only_problems_that_all_rows_finished(tmp_path):
    problems = [Problem("list", "copy", p, "", lambda t: "") for p in ("a", "b", "c")]
    store = Store(tmp_path / "r.jsonl", "m")
    for name, right in (("a", True), ("b", False)):
        store.add(result(right, prompt=crc(name)))
        store.add(result(not right, job="vanilla", prompt=crc(name)))
    store.add(result(job="vanilla", prompt=crc("c")))
    table = Table("methods", "t", 3, (("vanilla", Job("vanilla")), ("polestar", Job("polestar"))), "vanilla")
    m = measure(table, {"list": problems}, {"list": 32}, store)
    assert m["problems"] == 2 and [r["right"] for r in m["rows"]] == [1, 1]
    versus = m["rows"][1]["versus"]["accuracy"]
    assert (versus["only_a"], versus["only_b"]) == (1, 1) and m["rows"][0]["versus"] is None
    assert m["rows"][0]["by_kind"] == {"list/copy": [1, 2]}
    assert measure(table, {"list": problems[2:]}, {"list": 32}, store)["rows"] == []


# -- words


def row(a, b, label="polestar"):
    return {"label": label, "base": "fast-dllm-dual", "versus": compare(a, b)}


def test_the_verdict_says_wins_losses_and_what_is_not_shown():
    a = [result(i > 1, prompt=str(i), nfe=2, rows=200, seconds=0.5) for i in range(40)]
    b = [result(i > 0, prompt=str(i), nfe=4, rows=64, seconds=0.5 + 0.2 * (-1) ** i) for i in range(40)]
    text = demo_report.verdict(row(a, b))
    assert "no difference in accuracy is shown (it alone is right on 0 problems, fast-dllm-dual alone on 1" in text
    assert "wins in TPF, 2.00" in text and "wins in NFE, 0.50" in text and "loses in rows recomputed, 2.70" in text and "time not shown to differ" in text
    few = demo_report.verdict(row(a[:10], b[:10]))
    assert "TPF not shown to differ, 2.00" in few and "fewer than 20 problems" in few and "fewer than" not in text
    better = [result(i < 30, prompt=str(i)) for i in range(40)]
    worse = [result(i < 10, prompt=str(i)) for i in range(40)]
    assert "wins 50.0 points of accuracy" in demo_report.verdict(row(better, worse))
    assert "loses 50.0 points of accuracy" in demo_report.verdict(row(worse, better))


# -- the command, end to end


def bench(tiny, tmp_path, *more):
    return demo.main(
        ["--model", str(tiny.path), "--dtype", "float32", "--device", "cpu", "--quiet", "--families", "calc", "--gen-length", "32",
         "--out", str(tmp_path), *more]
    )  # fmt: skip


def test_command_writes_report_and_card_and_repeats_nothing(tiny, tmp_path, capsys, monkeypatch):
    card = tmp_path / "card.md"
    card.write_text("before\n<!-- bench demo: measured -->\nOUTDATED\n<!-- /bench demo: measured -->\nafter\n")
    assert bench(tiny, tmp_path, "--n", "2", "--scan", "--scan-n", "1", "--card", str(card)) == 0
    report = json.loads((tmp_path / "demo.json").read_text())
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert len({json.dumps([json.loads(x)[k] for k in ("job", "prompt")]) for x in lines}) == len(lines)
    assert {t["name"]: t["problems"] for t in report["tables"]}["methods"] == 2
    assert all(t["problems"] == 1 for t in report["tables"] if t["name"].startswith("scan "))
    assert report["asked"]["n"] == 2 and report["families"]["calc"]["gen_length"] == 32
    text = (tmp_path / "demo.md").read_text()
    assert "| polestar |" in text and "polestar against fast-dllm-dual, 2 problems" in text and text.strip() in capsys.readouterr().out
    filled = card.read_text()
    assert filled.startswith("before\n") and filled.endswith("after\n") and "OUTDATED" not in filled and "| polestar |" in filled

    def refuse(*_, **__):
        raise AssertionError("a finished decode was repeated")

    monkeypatch.setattr("polestar.driver.decode", refuse)
    assert bench(tiny, tmp_path, "--n", "2", "--scan", "--scan-n", "1", "--card", str(card)) == 0
    assert card.read_text().count("<!-- bench demo: measured -->") == 1
    assert bench(tiny, tmp_path, "--n", "1", "--parts", "methods", "--report-only") == 0


def test_a_stopped_run_reports_what_it_has(tiny, tmp_path, monkeypatch):
    count = 0

    def stop_soon(*args, **kwargs):
        nonlocal count
        count += 1
        if count > 3:
            raise KeyboardInterrupt
        return decode(*args, **kwargs)

    monkeypatch.setattr("polestar.driver.decode", stop_soon)
    with pytest.raises(KeyboardInterrupt):
        bench(tiny, tmp_path, "--n", "2", "--methods", "parallel", "fast-dllm-dual", "--parts", "methods")
    report = json.loads((tmp_path / "demo.json").read_text())
    assert report["tables"][0]["problems"] == 1 and len((tmp_path / "results.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("more", "says"), [(["--n", "0"], "at least 1"), (["--share", "3/2"], "I/M"), (["--card", "nothing.md"], "holds no place for tables")]
)
def test_bad_options_are_said_in_a_sentence(tiny, tmp_path, capsys, more, says):
    assert bench(tiny, tmp_path / "out", *more) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_shipped_card_has_its_markers():
    demo_report.check_card(DEMO / "MODEL_CARD.md")
    text = (DEMO / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert all(demo_report._section(name).search(text) for name in demo_report.SECTIONS)
