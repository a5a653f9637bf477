/**
 * The what-if panel: sliders for α, τ_s and h over the recording; the page judges every recorded pass again at once.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`. The result is in `store.whatif` ({lane, marks: Map(position -> -1 earlier | 1 later)} or null), which the grid
 * draws while the panel is open. Always labelled as first order.
 */

import {el, say} from './dom.js';
import {tokenName} from './describe.js';
import {paramsAt} from './params.js';
import {hasDrift, rejudge} from './rejudge.js';
import {shown} from './tabs.js';

const SLIDERS = [['tau_s', 'τ_s', 0.3, 1, 0.01, 2], ['alpha', 'α', 0, 40, 0.5, 1], ['h', 'h', 0, 16, 1, 0]];
const MOST = 80;

export function mount(root, store) {
  const values = {tau_s: null, alpha: null, h: null};
  const parts = {};
  const sliders = SLIDERS.map(([name, label, min, max, step, digits]) => {
    const input = el('input', {type: 'range', min, max, step, 'aria-label': `What if ${label}`, on: {input: () => { values[name] = Number(input.value); judge(); }}});
    const shownNow = el('b', {className: 'v'});
    const back = el('button', {type: 'button', className: 'ib tiny', text: '↺', 'aria-label': `${label} as recorded`, title: 'as recorded', on: {click: () => { values[name] = null; judge(); }}});
    parts[name] = {input, shownNow, back, digits, max};
    return el('div', {className: 'slide'}, el('span', {text: label}), input, shownNow, back);
  });
  const why = el('p', {className: 'k hint'});
  const label = el('p', {className: 'first-order'}, el('b', {text: 'First order: '}), el('span', {text: 'the trajectory itself would change. Each recorded pass is judged again with the numbers it had.'}));
  const counts = el('p', {className: 'counts', role: 'status'});
  const list = el('table', {className: 'cmp what', 'aria-label': 'Tokens whose pass would change'});
  const body = el('tbody');
  list.append(el('thead', {}, el('tr', {}, ...['position', 'token', 'pass', 'first order'].map((text) => el('th', {text, scope: 'col'})))), body);
  const more = el('p', {className: 'k'});
  const fork = el('button', {type: 'button', className: 'btn', text: 'fork with these values', on: {click: () => {
    for (const [name] of SLIDERS) if (values[name] !== null) store.draft.changes.set(name, values[name]);
    store.touch('lists');
    store.set({tab: 'forks'});
  }}});
  const form = el('div', {className: 'what-form'}, ...sliders, label, counts, list, more, el('div', {className: 'line'}, el('span', {className: 'sp'}), fork));
  root.append(el('div', {className: 'h', text: 'What if'}), why, form);

  let key = '';
  function judge() { key = ''; store.touch('lists'); store.flush(); }

  function draw() {
    const open = shown(store, 'whatif');
    const log = store.lanes[store.focus];
    if (!open || !log) { if (store.whatif) { store.whatif = null; store.touch('view'); } key = ''; return; }
    if (store.wantWhatif) { for (const [name] of SLIDERS) values[name] = store.wantWhatif[name] ?? null; store.wantWhatif = null; }
    const k = `${store.run}/${store.focus}/${log.n}/${store.rev.lists}`;
    if (k === key) return;
    key = k;
    const result = rejudge(log, values);
    form.hidden = !!result.why;
    why.hidden = !result.why;
    if (result.why) { say(why, result.why); store.whatif = null; store.touch('view'); return; }
    const now = paramsAt(log, log.n - 1);
    const drift = hasDrift(log);
    for (const [name] of SLIDERS) {
      const {input, shownNow, back, digits, max} = parts[name];
      const v = values[name] ?? Number(now[name]);
      input.disabled = name !== 'tau_s' && !drift;
      input.max = Math.max(max, Number(now[name]) || 0);
      input.value = String(v);
      say(shownNow, input.disabled ? 'n/a' : v.toFixed(digits));
      back.disabled = values[name] === null;
    }
    const moved = SLIDERS.some(([name]) => values[name] !== null);
    fork.hidden = !moved || store.offline;
    say(counts, moved ? `lane ${store.focus}: ${result.earlier} earlier, ${result.later} later, ${result.same} as recorded · drift events ${result.events.was} → ${result.events.now} · forced ${result.forced.was} → ${result.forced.now}` : 'Move a slider: tokens that would have been committed earlier or later are marked in the grid.');
    list.hidden = !result.rows.length;
    body.replaceChildren(...result.rows.slice(0, MOST).map((row) => el('tr', {}, el('td', {}, el('button', {type: 'button', className: 'link plain', text: String(row.pos), on: {click: () => { store.seekPass(store.focus, Math.min(row.was, row.now)); store.select(store.focus, row.pos); }}})),
      el('td', {className: 'mono', text: tokenName(store, log.head.tok[row.pos - log.P])}), el('td', {text: String(row.was)}),
      el('td', {className: row.now < row.was ? 'win' : 'lose', text: row.now === Infinity ? 'later' : `${row.now} (${row.rule})`}))));
    more.hidden = result.rows.length <= MOST;
    say(more, `and ${result.rows.length - MOST} more`);
    store.whatif = {lane: store.focus, marks: new Map(result.rows.map((r) => [r.pos, r.now < r.was ? -1 : 1]))};
    store.touch('view');
  }
  const unwatch = store.watch(['data', 'view', 'lists'], draw);
  return {draw, destroy() { unwatch(); root.replaceChildren(); }};
}
