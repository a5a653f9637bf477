"""Shared fixtures: the tiny golden models, one thread, no network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")

import pytest
import torch

from polestar.models.checkpoint import load_model
from tests.goldens import FOLDER


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """The goldens were recorded with one thread; more would reorder sums."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llada():
    """The tiny random LLaDA of the goldens, fp32 on the CPU."""
    return load_model(FOLDER / "llada_tiny", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def dream():
    """The tiny random Dream of the goldens, fp32 on the CPU."""
    return load_model(FOLDER / "dream_tiny", device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def demo():
    """The bundled model."""
    return load_model("demo", device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def engine():
    """The engine as the page has it."""
    from ui.engine import Engine

    return Engine(device="cpu")
