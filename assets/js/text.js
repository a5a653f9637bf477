/**
 * The answer as text: what is committed, masks between, what follows [EOS] greyed.
 *
 * Contract: `mount(root, store, {lane}) -> {draw, destroy}`. Model text goes in by textContent.
 */

import {el, say} from './dom.js';
import {pieces} from './tokens.js';

export function mount(root, store, {lane}) {
  const box = el('div', {className: 'answer', tabIndex: 0, role: 'region', 'aria-label': `Answer of lane ${lane}`});
  root.append(box);
  let shown = '';
  function draw() {
    const log = store.lanes[lane];
    if (!log) { box.replaceChildren(); shown = ''; return; }
    const p = store.passOf(lane);
    const state = log.stateAt(p);
    const end = log.endOf(state);
    const list = pieces(state.tok, end, (id) => store.token(id));
    const key = JSON.stringify(list);
    if (key === shown) return;
    shown = key;
    const spans = list.map((piece) => {
      if (piece.kind === 'mask') return ['masks', piece.text.length > 6 ? `░░ ${piece.text.length} masked ` : piece.text];
      return [piece.kind, piece.kind === 'after' ? tail(piece.text) : piece.text];
    });
    const finished = log.status !== 'open' && p === log.n - 1;
    if (finished && end === 0) spans.unshift(['note', 'The answer is empty: its first token is [EOS]. ']);
    else if (finished && !list.some((q) => q.kind !== 'after' && q.text.trim())) spans.unshift(['note', 'The answer is blank. ']);
    fill(box, spans);
    if (store.follow && scrolled) box.scrollTop = 0; // setting it makes the browser lay out the page at once
    scrolled = false;
  }
  let scrolled = false;
  box.addEventListener('scroll', () => { scrolled = true; });
  const unwatch = store.watch(['data', 'cursor'], draw);
  return {draw, destroy() { unwatch(); box.remove(); }};
}

/** Spans of [class, text], with as few changes as may be. */
function fill(box, spans) {
  spans.forEach(([className, text], i) => {
    const span = box.children[i];
    if (!span) { box.append(el('span', {className, text})); return; }
    if (span.className !== className) span.className = className;
    say(span, text);
  });
  while (box.children.length > spans.length) box.lastChild.remove();
}

/** A long run of one token ([EOS] [EOS] ...) shortened, with its length. */
function tail(text) {
  const m = text.match(/^(<[^<>]{1,40}>|\[[^[\]]{1,20}\])\1{3,}$/);
  return m ? `${m[1]} × ${text.length / m[1].length}` : text;
}
