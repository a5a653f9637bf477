"""Who asks for recorded passes: the command line, the library, the page; and the one sentence where there is no GPU."""

import pytest

from polestar import graphs
from polestar.__main__ import main
from polestar.config import DecodeConfig
from polestar.driver import decode
from tests.tape import TapeRecorder
from ui.engine import Engine


@pytest.mark.parametrize("command", [["generate"], ["compare", "--methods", "polestar"]])
def test_the_command_line_says_so_too(command, capsys):
    assert main([*command, "--prompt", "Hello", "--gen-length", "8", "--device", "cpu", "--graphs"]) == 1
    assert "CUDA graphs need a model on a CUDA GPU, and this one is on cpu" in capsys.readouterr().err


def test_library_and_page_say_so_too(demo):
    config = DecodeConfig.make(gen_length=8)
    engine = Engine(device="cpu", graphs=True)
    for begin in (lambda: decode(demo, [20, 21, 22], config, graphs=True), lambda: engine.session(engine.load("demo"), "Hello", config, "steps")):
        with pytest.raises(ValueError, match="this one is on cpu; choose --device cuda or leave graphs out"):
            begin()


def test_the_page_records_when_asked(demo, monkeypatch):
    """Its runs and its forks, each on a recorder of its own; a tape stands in for CUDA."""
    monkeypatch.setattr(graphs, "why_not", lambda model: None)
    monkeypatch.setattr(graphs, "CudaRecorder", lambda device: TapeRecorder())
    engine = Engine(device="cpu", graphs=True)
    loaded, config = engine.load("demo"), DecodeConfig.make(gen_length=40, offload="off", tau_s=2.0)
    session = engine.session(loaded, "Hello", config, "steps")
    assert len(list(session.steps())) > 25
    told = [s.extra["memory"]["parts"]["graphs"] for s in session.trace if "memory" in s.extra]
    assert told[-1] > 0
    other = engine.fork(loaded, session.trace, 20)
    assert other.decoder.graphs is not None
    assert [c.token for s in other.steps() for c in s.commits] == [c.token for s in session.trace[21:] for c in s.commits]
