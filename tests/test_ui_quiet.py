"""How often gradio's queue looks for work: seldom while a decode goes on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from ui.quiet import BUSY, REST, Quiet


def seconds(queue):
    return queue.sleep_when_free, queue.progress_update_sleep_when_free


def test_it_is_quiet_while_any_run_decodes():
    async def main():
        queue = SimpleNamespace()
        quiet = Quiet(queue)
        assert seconds(queue) == REST
        with quiet:
            assert seconds(queue) == BUSY
            with quiet:
                pass
            assert seconds(queue) == BUSY, "another run still decodes"
        assert seconds(queue) == REST

    asyncio.run(main())


def test_the_page_s_queue_is_one_it_can_set(page_queue):
    assert seconds(page_queue) == REST


@pytest.fixture
def page_queue():
    gr = pytest.importorskip("gradio")
    with gr.Blocks() as page:
        gr.Textbox()
    page.queue()
    assert hasattr(page._queue, "sleep_when_free") and hasattr(page._queue, "progress_update_sleep_when_free"), "gradio has renamed what ui/quiet.py sets"
    Quiet(page._queue)
    return page._queue
