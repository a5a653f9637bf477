"""Sentences that come and go at the edge of the page: what a control could not do, and what it did instead.

Contract: `make_toasts()` is a component; a listener that has something to say gives it `toast(sentence)`, else `gr.skip()`. Sentences go in by
textContent and stay for STAY_MS, or until they are clicked; a screen reader reads them. (gradio's own messages need its queue, which is not asked often
while a decode goes on, see ui/quiet.py.)
"""

from __future__ import annotations

import json
import time

import gradio as gr

STAY_MS = 7000
AT_ONCE = 2
SHOW = f"""
const list = element.querySelector('.ps-toasts');
watch('value', () => {{
  if (!props.value) return;
  const sentence = JSON.parse(props.value)[1];
  for (const said of [...list.children]) if (said.textContent === sentence) said.remove();
  const toast = document.createElement('button');
  toast.type = 'button';
  toast.title = 'Dismiss';
  toast.textContent = sentence;
  toast.addEventListener('click', () => toast.remove());
  list.prepend(toast);
  while (list.children.length > {AT_ONCE}) list.lastChild.remove();
  setTimeout(() => toast.remove(), {STAY_MS});
}});
"""


def make_toasts() -> gr.HTML:
    """The component, with nothing to say."""
    return gr.HTML(value="", html_template="<div class='ps-toasts' role='status' aria-live='polite'></div>", js_on_load=SHOW, elem_id="ps-toasts",
                   apply_default_css=False, container=False, padding=False)  # fmt: skip


def toast(sentence: str) -> str:
    """A value of the component; the same sentence twice is said twice."""
    return json.dumps([time.monotonic_ns(), sentence])
