/**
 * The answer as text: what is committed, masks between, what follows [EOS] greyed.
 *
 * Contract: `mount(root, store, {lane}) -> {draw, destroy}`. Model text goes in by textContent.
 */

import {el} from './dom.js';
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
      if (piece.kind === 'mask') return el('span', {className: 'masks', text: piece.text.length > 6 ? `░░ ${piece.text.length} masked ` : piece.text});
      if (piece.kind === 'after') return el('span', {className: 'after', text: tail(piece.text)});
      return el('span', {className: piece.kind, text: piece.text});
    });
    const finished = log.status !== 'open' && p === log.n - 1;
    if (finished && end === 0) spans.unshift(el('span', {className: 'note', text: 'The answer is empty: its first token is [EOS]. '}));
    else if (finished && !list.some((q) => q.kind !== 'after' && q.text.trim())) spans.unshift(el('span', {className: 'note', text: 'The answer is blank. '}));
    box.replaceChildren(...spans);
    if (store.follow) box.scrollTop = 0;
  }
  const unwatch = store.watch(['data', 'cursor'], draw);
  return {draw, destroy() { unwatch(); box.remove(); }};
}

/** A long run of one token ([EOS] [EOS] ...) shortened, with its length. */
function tail(text) {
  const m = text.match(/^(<[^<>]{1,40}>|\[[^[\]]{1,20}\])\1{3,}$/);
  return m ? `${m[1]} × ${text.length / m[1].length}` : text;
}
