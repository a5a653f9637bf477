"""The arguments of `app.py`: what cannot be served is one sentence and status 2."""

from __future__ import annotations

import socket

import pytest

from ui.launch import _free_port, parse, unknown_model
from ui.samples import sample_path


@pytest.mark.parametrize("port", ["-1", "-5", "65536", "99999", "http"])
def test_a_port_outside_the_range_is_a_sentence(port, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--port", port])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and f"from 0 to 65535, not {port}" in said and said.count("\n") == 1 and "--help" in said


@pytest.mark.parametrize("host", ["999.1.1.1", "no host", "8.8.8.8", ""])
def test_an_address_that_is_not_of_this_machine_is_a_sentence(host, capsys):
    with pytest.raises(SystemExit) as ended:
        parse(["--host", host])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and f"not {host!r}" in said and said.count("\n") == 1 and "in use" not in said
    for good in ("127.0.0.1", "0.0.0.0", "localhost"):
        assert parse(["--host", good]).host == good


def test_port_0_takes_a_free_port_of_the_address():
    assert 0 < _free_port("127.0.0.1") < 65536
    if socket.has_ipv6 and "::1" in {a[4][0] for a in socket.getaddrinfo("localhost", None)}:
        assert 0 < _free_port("[::1]") < 65536


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
