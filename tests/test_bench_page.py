"""`bench page`: both of its sides work, and how it sums up. What an open page costs is no test: times on a shared machine are noisy."""

import json
import subprocess
import sys

import pytest

from polestar.bench import page
from ui import beside


def test_the_apps_process_decodes_again_and_again_with_no_page_looking():
    app = page.App("demo")
    try:
        assert app.address.startswith("http://127.0.0.1:")
        assert app.decode("Hello") > 0 and app.decode("Hello") > 0
    finally:
        app.close()
    assert app.process.poll() is not None


def test_a_model_that_is_not_there_is_named():
    with pytest.raises(RuntimeError, match=r"app\.py did not start: .*there is no model 'nosuch'"):
        page.App("nosuch")


def test_a_decode_that_cannot_be_is_answered_by_a_sentence():
    class Engine:
        def load(self, name):
            raise ValueError(f"there is no {name}; choose another")

        config = session = None

    assert beside.answer(Engine(), "tiny", '{"prompt": "a", "method": "polestar", "values": {}}') == {"error": "there is no tiny; choose another"}


def test_a_decode_takes_the_values_of_its_line():
    asked = []

    class Engine:
        def load(self, name):
            return name

        def config(self, method, preset, values):
            return method, preset, values

        def session(self, *what):
            asked.append(what)
            return self

        def steps(self):
            return iter(range(3))

    answer = beside.answer(Engine(), "tiny", '{"prompt": "a", "method": "parallel", "values": {"tau_s": 0.8}}')
    assert answer["seconds"] >= 0 and asked == [("tiny", "a", ("parallel", "paper", {"tau_s": 0.8}), "full")]


def test_the_ratio_is_the_geometric_mean_of_the_launches_with_its_spread():
    assert page.ratio([1.0, 1.21]) == {"ratio": pytest.approx(1.1), "standard_error": pytest.approx(1.1 * 0.0953, rel=1e-3)}
    assert page.ratio([1.02]) == {"ratio": pytest.approx(1.02), "standard_error": None}


def test_it_measures_a_page_in_a_browser(tmp_path):
    figures = tmp_path / "page.json"
    command = [sys.executable, "-m", "polestar", "bench", "page", "--launches", "1", "--pairs", "1", "--quiet", "--json", str(figures)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=page.ROOT, timeout=300)
    assert figures.exists(), ran.stderr
    found = json.loads(figures.read_text())
    assert found["passes"] == 256 and found["updates_per_second"] > 1, "live, not all at the end"
    [[without]], [[watched]] = found["without"], found["with"]
    assert found["ratio"] == pytest.approx(watched / without) and ran.returncode == (found["ratio"] > page.LIMIT)
    assert f"ratio {found['ratio']:.3f} (limit 1.05;" in ran.stdout


def test_figures_go_to_a_file(tmp_path, monkeypatch, capsys):
    found = {
        "ratio": 1.25, "standard_error": 0.05, "limit": 1.05, "launches": [1.2, 1.3], "without": [[1.0], [1.0]], "with": [[1.2], [1.3]], "passes": 256,
        "updates_per_second": 6.0,
    }  # fmt: skip
    monkeypatch.setattr(page, "measure", lambda *args: found)
    assert page.main(["--json", str(tmp_path / "page.json")]) == 1, "above the limit"
    assert json.loads((tmp_path / "page.json").read_text()) == found
    assert "ratio 1.250 ± 0.050 (limit 1.05; launch by launch 1.200, 1.300)" in capsys.readouterr().out
