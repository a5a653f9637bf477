"""Fetching a model from the page: what is said before, progress, stop, and one download at a time."""

from __future__ import annotations

import functools
import threading
import time

import pytest

from polestar.models import download
from tests.test_models_download import entry, hub  # noqa: F401  (fixtures)
from ui.fetching import Fetcher


def wait(fetcher: Fetcher) -> str:
    end = time.monotonic() + 30
    while fetcher.busy and time.monotonic() < end:
        time.sleep(0.02)
    assert not fetcher.busy
    return fetcher.text


def test_a_model_is_fetched_when_asked_and_then_needs_nothing(hub, entry, monkeypatch):  # noqa: F811
    monkeypatch.setattr(download, "download", functools.partial(download.download, endpoint=hub.url))
    fetcher = Fetcher()
    text, may = fetcher.about("tiny-dream")
    assert may and text.startswith("tiny-dream is not on this machine. tiny-dream needs") and "this machine has" in text and "Licence: MIT" in text
    assert hub.asked == []
    fetcher.start("tiny-dream")
    assert wait(fetcher) == "tiny-dream is on this machine now; press Run."
    assert fetcher.about("tiny-dream") == ("", False)


def test_offline_is_said_before_and_after_the_button(hub, entry, monkeypatch):  # noqa: F811
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    fetcher = Fetcher()
    text, may = fetcher.about("tiny-dream")
    assert not may and "Downloads are off (HF_HUB_OFFLINE)" in text
    fetcher.start("tiny-dream")
    assert "HF_HUB_OFFLINE" in wait(fetcher) and hub.asked == []


def test_progress_is_said_a_second_model_waits_and_stop_stops(entry, monkeypatch):  # noqa: F811
    going = threading.Event()

    def slow(entry, progress):
        for i in range(2000):
            progress(i * 10**7, 2 * 10**10)
            if i > 3:
                going.set()
            time.sleep(0.01)

    monkeypatch.setattr(download, "download", slow)
    fetcher = Fetcher()
    fetcher.start("tiny-dream")
    assert going.wait(10) and "of 20.00 GB" in fetcher.text
    fetcher.start("tiny-dream")  # the same one again: nothing new
    with pytest.raises(ValueError, match="tiny-dream is being fetched"):
        fetcher.start("LLaDA-8B-Base")
    fetcher.stop()
    assert wait(fetcher).startswith("The download of tiny-dream was stopped")


def test_what_needs_no_download_or_cannot_be_had_says_nothing_or_why(tmp_path):
    fetcher = Fetcher()
    assert fetcher.about("demo") == ("", False) and fetcher.about(str(tmp_path)) == ("", False)
    text, may = fetcher.about("SDAR-4B-Chat")
    assert not may and "block-causal" in text
    with pytest.raises(ValueError, match="no model that can be fetched"):
        fetcher.start("demo")
