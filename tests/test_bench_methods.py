"""`bench methods`: one table of all methods, resumable, with exact counts."""

import json
from itertools import count

import pytest

from polestar.bench import methods
from polestar.bench.common import CommandError
from polestar.bench.methods import summarise
from polestar.bench.problems import demo_questions, last_number, read_questions
from polestar.config import DecodeConfig
from polestar.driver import decode

SIZE = ["--gen-length", "16", "--block-length", "8", "--threads", "1", "--quiet"]


def bench(tmp_path, *extra, n=2):
    words = ["--n", str(n), "--families", "math", "list", "--methods", "vanilla", "parallel", "--out", str(tmp_path / "t"), *SIZE, *extra]
    return methods.main(words)


def lines(tmp_path):
    return [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]


def test_one_line_a_decode_and_a_table(tmp_path, capsys, demo):
    assert bench(tmp_path) == 0
    header, *records = lines(tmp_path)
    assert (header["model"], header["gen_length"]) == ("demo", 16)
    assert [(r["problem"], r["variant"], r["family"]) for r in records] == [
        (0, "vanilla", "math"), (0, "parallel", "math"), (1, "vanilla", "list"), (1, "parallel", "list"),
    ]
    # The figures are those of the decode itself, the verdict that of the problem's own check.
    question = demo_questions(2, ["math", "list"])[1]
    trace = decode(demo, demo.codec.encode_chat(question.prompt), DecodeConfig.make(method="parallel", gen_length=16, block_length=8), level="off")
    figures = trace.metrics(demo.codec)
    assert {k: records[3][k] for k in ("nfe", "non_eos", "rows", "tokens")} == {k: figures[k] for k in ("nfe", "non_eos", "rows", "tokens")}
    assert records[3]["wrong"] == question.check(figures["text"])
    assert all(r["nfe"] == 16 for r in records if r["variant"] == "vanilla")
    table = capsys.readouterr().out
    assert table.startswith("| method | math | list | all | NFE | TPF | rows per token | TPS | passes saved | speed |")
    assert (tmp_path / "t.md").read_text().strip() == table.strip()


def test_a_stopped_run_goes_on_where_it_ended(tmp_path, monkeypatch):
    import polestar.driver

    calls, real = count(), polestar.driver.decode

    def interrupted(*args, **kwargs):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(polestar.driver, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(tmp_path)
    assert len(lines(tmp_path)) == 3
    before = (tmp_path / "t.jsonl").read_bytes()
    (tmp_path / "t.jsonl").write_bytes(before + b'{"problem": 1, "vari')  # the machine went down in the middle of a line
    assert bench(tmp_path) == 0
    after = (tmp_path / "t.jsonl").read_bytes()
    assert after.startswith(before) and len(lines(tmp_path)) == 5
    assert next(calls) == 5  # 2 finished, 1 interrupted, 2 more: nothing was decoded twice
    assert bench(tmp_path) == 0 and (tmp_path / "t.jsonl").read_bytes() == after


def test_other_settings_do_not_mix(tmp_path, capsys):
    assert bench(tmp_path) == 0
    assert bench(tmp_path, "--set", "tau_s=0.5") == 1
    assert "set [], this run has ['tau_s=0.5']" in capsys.readouterr().err
    assert bench(tmp_path, "--set", "tau_s=0.5", "--fresh") == 0
    assert lines(tmp_path)[0]["set"] == ["tau_s=0.5"]
    (tmp_path / "t.jsonl").write_text("something else\n")
    assert bench(tmp_path) == 1
    assert "is not a log of this command" in capsys.readouterr().err


def test_a_scan_gives_a_row_a_value(tmp_path):
    assert bench(tmp_path, "--scan", "tau_s=0.2,1.5", n=1) == 0
    records = {r["variant"]: r for r in lines(tmp_path)[1:]}
    assert list(records) == ["vanilla", "parallel tau_s=0.2", "parallel tau_s=1.5"]
    assert records["parallel tau_s=0.2"]["nfe"] < records["parallel tau_s=1.5"]["nfe"] == 16


def test_sums_are_over_problems_and_ratios_to_the_first_row():
    one = {"family": "math", "nfe": 10, "non_eos": 20, "tokens": 32, "rows": 320, "packet_rows": 0.0, "seconds": 2.0, "wrong": ""}
    records = [
        one | {"variant": "a"}, one | {"variant": "a", "nfe": 30, "wrong": "no number"},
        one | {"variant": "b", "nfe": 5, "rows": 64, "packet_rows": 32.0, "seconds": 0.5}, one | {"variant": "gone"},
    ]  # fmt: skip
    a, b = summarise(iter(records), ["a", "b", "never"])
    assert (a["tpf"], a["tps"], a["rows_per_token"], a["accuracy"], a["mean_nfe"]) == (1.0, 10.0, 10.0, 0.5, 20.0)
    assert (b["tpf"], b["tps"], b["rows_per_token"], b["tps_ratio"], b["nfe_ratio"]) == (4.0, 40.0, 3.0, 4.0, 8.0)


def test_problems_of_a_file(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text('{"question": "2 + 2?", "answer": "It is 4.\\n#### 4"}\n\n{"prompt": "1000 + 500?", "answer": 1500, "family": "big"}\n')
    first, second = read_questions(str(path))
    assert (first.family, first.prompt, first.check("so 4"), first.check("5")) == ("sums", "2 + 2?", "", "5 instead of 4")
    assert (second.family, second.check("1,500.0 dollars"), second.check("none")) == ("big", "", "no number instead of 1500")
    path.write_text('{"question": "?"}\n')
    with pytest.raises(CommandError, match=r"line 1 of .* lacks"):
        read_questions(str(path))


def test_last_number():
    assert [last_number(t) for t in ("a 3 b -12.50", "7.", "1,234", "x", "10.0", "100")] == ["-12.5", "7", "1234", None, "10", "100"]


def test_held_out_problems_are_spread_over_families():
    families = [q.family for q in demo_questions(5, ["math", "list", "calc"])]
    assert families == ["math", "math", "list", "list", "calc"]
    with pytest.raises(CommandError, match="no family is called 'chess'"):
        demo_questions(3, ["chess"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--n", "0"], "--n is 0"),
        (["--model", "tests"], "give --problems FILE"),
        (["--set", "nonsense=1"], "none of the methods has a parameter 'nonsense'"),
        (["--scan", "tau_s"], "--scan takes NAME=V1,V2"),
    ],
)
def test_wrong_wishes_are_one_sentence(tmp_path, capsys, words, said):
    assert methods.main(["--out", str(tmp_path / "t"), *SIZE, *words]) == 1
    err = capsys.readouterr().err
    assert said in err and len(err.splitlines()) == 1 and not list(tmp_path.iterdir())
