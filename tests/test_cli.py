"""The command line: the documented JSON, whole files or none, and one sentence for what cannot be done."""

import json

import pytest

from polestar.__main__ import COMMANDS, main
from polestar.trace.file import load
from tests.goldens import FOLDER

MODEL = ["--model", str(FOLDER / "llada_tiny"), "--device", "cpu", "--dtype", "float32", "--quiet"]
IDS = ["--prompt-ids", "5,6,7"]


def test_generate_writes_the_documented_json_and_the_trace(tmp_path, capsys):
    out, log = tmp_path / "out.json", tmp_path / "run.safetensors"
    one_a_pass = ["--set", "tau_s=2", "tau_suf=2", "drift_commit=off"]
    files = ["--json", str(out), "--trace", str(log)]
    assert main(["generate", *MODEL, *IDS, "--gen-length", "20", "--block-length", "8", *one_a_pass, *files]) == 0
    data = json.loads(out.read_text())
    assert {"method", "preset", "config", "model", "prompt_ids", "tokens", "text", "nfe", "tpf", "tpf_all", "tps", "seconds", "passes"} <= set(data)
    assert (data["method"], data["preset"], data["prompt_ids"], len(data["tokens"])) == ("polestar", "paper", [5, 6, 7], 20)
    assert data["nfe"] == len(data["passes"]) == 20 and data["tpf_all"] == 1.0
    first = data["passes"][0]
    assert {"kind", "block", "refresh", "refresh_reason", "rows", "commits"} <= set(first) and first["kind"] == "entry-full"
    assert set(first["commits"][0]) == {"position", "token", "confidence", "reason", "delta", "gate"}
    assert {c["reason"] for p in data["passes"] for c in p["commits"]} == {"forced"}
    assert sorted(c["position"] for p in data["passes"] for c in p["commits"]) == list(range(3, 23))
    assert [int(t) for t in load(log).tokens] == data["tokens"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_compare_counts_passes_rows_and_time_apart(tmp_path, capsys):
    out = tmp_path / "c.json"
    assert main(["compare", *MODEL, *IDS, "--gen-length", "16", "--block-length", "8", "--methods", "vanilla", "fast-dllm-dual", "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["methods"]
    assert [r["method"] for r in rows] == ["vanilla", "fast-dllm-dual"] and rows[0]["nfe"] == 16
    assert set(rows[1]["ratios"]) == {"nfe", "rows_recomputed", "seconds"}
    assert rows[1]["ratios"]["rows_recomputed"] == rows[1]["rows_recomputed"] / rows[0]["rows_recomputed"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["generate", *MODEL, *IDS, "--set", "nonsense=1"], "no parameter 'nonsense'"),
        (["generate", *MODEL, *IDS, "--set", "alpha"], "NAME=VALUE"),
        (["generate", *MODEL, *IDS, "--set", "alpha=abc"], "alpha takes a number"),
        (["generate", *MODEL, "--prompt-ids", "1,x"], "whole numbers"),
        (["generate", *MODEL, "--prompt-ids", "5,9999"], "vocabulary of 512"),
        (["generate", *MODEL, *IDS, "--gen-length", "5000"], "maximum of 1024"),
        (["generate", *MODEL, *IDS, "--gen-length", "8", "--json", "/no/such/folder/x.json"], "no folder"),
        (["generate", "--model", "nope", "--prompt", "x"], "nope"),
        (["compare", *MODEL, *IDS, "--methods", "vanilla", "vanilla"], "named twice"),
        (["compare", *MODEL, "--prompts", "/no/such/file"], "cannot read"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_status_one(argv, said, capsys):
    assert main(argv) == 1
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error and "Traceback" not in error


def test_wrong_command_lines_end_with_status_two(capsys):
    assert main(["nothing"]) == 2
    for argv in (["compare", *MODEL, *IDS, "--limit", "0"], ["generate", *MODEL, *IDS, "--threads", "0"]):
        with pytest.raises(SystemExit) as end:
            main(argv)
        assert end.value.code == 2
        assert "takes a whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_option_is_one_line_that_points_at_the_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--no-such-option"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count("\n") == 1 and "usage" not in error
    assert error.endswith(f"python -m polestar {command} --help tells the options\n"), error


def test_an_unknown_command_or_choice_is_one_line(capsys):
    assert main(["generat"]) == 2
    assert capsys.readouterr().err == "polestar: there is no command 'generat'; python -m polestar --help lists them\n"
    for argv, said in ((["models", "shw"], "'shw'"), (["generate", "--prompt", "x", "--method", "none"], "'none'")):
        with pytest.raises(SystemExit):
            main(argv)
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_a_file_of_prompts_says_which_line_is_wrong(tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "ok"}\n{"prompt":\n', encoding="utf-8")
    assert main(["compare", *MODEL, "--prompts", str(path)]) == 1
    assert "line 2" in capsys.readouterr().err
