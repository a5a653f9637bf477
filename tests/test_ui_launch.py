"""The arguments of `app.py`: what cannot be served is one sentence and status 2."""

from __future__ import annotations

import pytest

from ui.launch import parse, unknown_model
from ui.samples import sample_path


@pytest.mark.parametrize("port", ["-1", "65536", "99999"])
def test_a_port_outside_the_range_is_a_sentence(port, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--port", port])
    assert ended.value.code == 2 and f"from 0 to 65535, not {port}" in capsys.readouterr().err


def test_a_file_that_is_no_trace_is_a_sentence(tmp_path, capsys):
    (tmp_path / "x.safetensors").write_bytes(b"no trace at all")
    with pytest.raises(SystemExit) as ended:
        parse(["--trace", str(tmp_path / "x.safetensors")])
    assert ended.value.code == 2 and "cannot open x.safetensors" in capsys.readouterr().err
    good = str(sample_path("polestar"))
    assert parse(["--trace", good, "--port", "65535"]).trace == good


def test_a_model_that_is_not_there_is_a_sentence(tmp_path):
    names = ["demo", "LLaDA-8B-Instruct"]
    assert unknown_model("Demo", names) == "" and unknown_model("GSAI-ML/LLaDA-8B-Instruct", names) == ""
    assert "there is no model 'nothing'" in unknown_model("nothing", names)
    assert "block-causal" in unknown_model("SDAR-4B-Chat", names)
    assert "no config.json" in unknown_model(str(tmp_path), names)
    (tmp_path / "config.json").write_text("{}")
    assert unknown_model(str(tmp_path), names) == ""
