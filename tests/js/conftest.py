"""Fixtures of the page's tests: `harness`, one browser on the harness for each module, and `tab`, a fresh tab in it for each test."""

from __future__ import annotations

import pytest
from browser import open_harness, open_tab


@pytest.fixture(scope="module")
def harness():
    with open_harness() as opened:
        yield opened


@pytest.fixture
def tab(harness):
    with open_tab(harness) as page:
        yield page
