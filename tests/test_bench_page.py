"""`bench page`: the side without a page, and what it says when it cannot decode. What an open page costs is no test: times on a shared machine are noisy."""

import json

import pytest

from polestar.bench import page


def test_a_process_without_a_page_decodes_again_and_again():
    alone = page.Alone("demo")
    try:
        assert alone.decode("Hello") > 0 and alone.decode("Hello") > 0
    finally:
        alone.close()
    assert not alone.process.is_alive()


def test_a_model_that_is_not_there_is_named():
    alone = page.Alone("nosuch")
    try:
        with pytest.raises(RuntimeError, match="there is no model named 'nosuch'"):
            alone.decode("Hello")
    finally:
        alone.close()


def test_figures_go_to_a_file(tmp_path, monkeypatch, capsys):
    found = {"ratio": 1.25, "limit": 1.05, "launches": [1.2, 1.3], "without": [1.0, 1.0], "with": [1.2, 1.3], "passes": 256, "updates_per_second": 6.0}
    monkeypatch.setattr(page, "measure", lambda *args: found)
    assert page.main(["--json", str(tmp_path / "page.json")]) == 1, "above the limit"
    assert json.loads((tmp_path / "page.json").read_text()) == found
    assert "ratio 1.250 (limit 1.05; launch by launch 1.20, 1.30)" in capsys.readouterr().out
