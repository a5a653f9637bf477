/**
 * The comparison of both lanes: a table with ratios, what is set differently, what differs, and where lane A loses, in words.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`; with one lane it says how to get a second. Passes, positions recomputed and wall time are shown apart.
 * Figures run to each lane's last pass, "so far" until both lanes are complete. Only two complete lanes get a verdict, colours of winning and losing, and
 * the word "same tokens": a lane that did not run or stopped early is not comparable, and the panel says which it is.
 */

import {numbers} from './counters.js';
import {REASONS, REASON_LABEL} from './codec.js';
import {el, num, say, short} from './dom.js';
import {tokenName} from './describe.js';
import {apart} from './lanesets.js';

/** Rows of the table: [label, value of A, value of B, digits, true when more is better]. */
export function table(A, B) {
  const a = numbers(A, A.n - 1);
  const b = numbers(B, B.n - 1);
  const all = (log) => (log.n ? log.rows[log.n - 1] + log.packetRows[log.n - 1] : null);
  return [
    ['forward passes (NFE)', A.n, B.n, 0, false],
    ['seconds', a.sec, b.sec, 2, false],
    ['rows, main passes', A.n ? A.rows[A.n - 1] : null, B.n ? B.rows[B.n - 1] : null, 0, false],
    ['rows with packets', all(A), all(B), 0, false],
    ['TPF', a.tpf, b.tpf, 2, true],
    ['TPF of all positions', a.tpfAll, b.tpfAll, 2, true],
    ['TPS', a.tps, b.tps, 1, true],
    ['TPS of all positions', a.tpsAll, b.tpsAll, 1, true],
    ['rows per token', a.rows, b.rows, 1, false],
  ];
}

/** Names of the rows in which A is behind B by more than one per cent. */
export function losses(rows) {
  return rows.filter(([, a, b, , more]) => Number.isFinite(a) && Number.isFinite(b) && (more ? a < b * 0.99 : a > b * 1.01)).map(([label]) => label);
}

/** A lane that ran to its end. */
export const complete = (log) => log.status === 'done' && log.n > 0;

/** Why a lane has no end though nothing will add to it any more; '' for a complete lane and for one that may still go on. */
export function shortfall(lane, log, state) {
  if (complete(log) || (log.status === 'open' && !['stopped', 'error', 'done'].includes(state))) return '';
  return log.n ? `lane ${lane} ${log.status === 'error' ? 'failed' : 'stopped'} before its end` : `lane ${lane} did not run`;
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

export function mount(root, store) {
  const head = el('div', {className: 'h'}, el('span', {text: 'Comparison'}), el('span', {className: 'h-note'}));
  const body = el('tbody');
  const ha = el('th', {text: 'A', scope: 'col'});
  const hb = el('th', {text: 'B', scope: 'col'});
  const grid = el('table', {className: 'cmp'}, el('thead', {}, el('tr', {}, el('th', {text: ''}), ha, hb, el('th', {text: 'A / B', scope: 'col'}))), body);
  const verdict = el('p', {className: 'verdict'});
  const setBody = el('tbody');
  const sets = el('div', {className: 'sides', hidden: true}, el('div', {className: 'h', text: 'Set differently'}), el('table', {className: 'cmp sets'}, el('thead', {}, el('tr', {}, el('th', {text: ''}), el('th', {text: 'A', scope: 'col'}), el('th', {text: 'B', scope: 'col'}))), setBody));
  const diff = el('div', {className: 'diffs'});
  const sides = el('div', {className: 'sides'});
  const both = el('div', {className: 'cmp-body'}, verdict, grid, sets, sides, diff);
  const one = el('p', {className: 'k hint', text: 'One lane is shown. Switch lane B on at the left and set it under “settings of B”, or open a second trace, to compare two methods, presets, parameter sets, seeds or recordings.'});
  root.append(head, one, both);
  let rows = [];
  let listed = '';
  let setApart = '';

  function draw() {
    const {A, B} = store.lanes;
    one.hidden = !!(A && B);
    both.hidden = !one.hidden;
    if (!A || !B) return;
    const over = complete(A) && complete(B);
    const lacking = ['A', 'B'].map((lane) => shortfall(lane, store.lanes[lane], store.status.state)).filter(Boolean).join(' and ');
    say(head.lastChild, over ? '' : 'so far');
    ha.title = A.header.title || A.header.method;
    hb.title = B.header.title || B.header.method;
    const data = table(A, B);
    if (rows.length !== data.length) {
      rows = data.map(([label]) => { const cells = [el('td'), el('td'), el('td')]; return {cells, tr: el('tr', {}, el('th', {text: label, scope: 'row'}), ...cells)}; });
      body.replaceChildren(...rows.map((r) => r.tr));
    }
    data.forEach(([, a, b, digits, more], i) => {
      const {cells} = rows[i];
      say(cells[0], num(a, digits));
      say(cells[1], num(b, digits));
      const ratio = Number.isFinite(a) && Number.isFinite(b) && b !== 0 && A.n && B.n ? a / b : null;
      say(cells[2], ratio === null ? '–' : `${ratio.toFixed(2)}×`);
      const good = !over || ratio === null || Math.abs(ratio - 1) < 0.01 ? '' : (ratio > 1) === more ? 'win' : 'lose';
      if (cells[2].className !== good) cells[2].className = good;
    });
    const lost = losses(data);
    const name = A.header.method === B.header.method ? 'Lane A' : A.header.title || A.header.method;
    say(verdict, lacking ? sentence(`${lacking}: no verdict`) : !over ? '' : lost.length ? `${name} loses on ${lost.join(', ')}.` : `${name} is behind on nothing here.`);
    const settings = apart(A, B);
    sets.hidden = !settings.length;
    if (JSON.stringify(settings) !== setApart) {
      setApart = JSON.stringify(settings);
      setBody.replaceChildren(...settings.map(([text, x, y]) => el('tr', {}, el('th', {text, scope: 'row'}), el('td', {text: x}), el('td', {text: y}))));
    }
    const d = store.divergence();
    const key = d ? `${d.differ.length}/${d.first?.pos}/${store.rev.data}/${over}/${lacking}` : 'apart';
    if (key === listed) return;
    listed = key;
    if (!d) { diff.replaceChildren(el('p', {className: 'k', text: 'Prompt or length differ, so tokens are not compared position by position.'})); return; }
    if (!d.first) { diff.replaceChildren(el('p', {className: 'k', text: over ? 'Both lanes gave the same tokens.' : A.n && B.n ? 'No token differs so far.' : 'No tokens to compare so far.'})); return; }
    const items = [...d.differ].sort((x, y) => x.pass - y.pass || x.g - y.g).slice(0, 40).map((item) => el('button', {type: 'button', className: 'diff',
      title: `position ${item.pos}: A at pass ${item.passA}, B at pass ${item.passB}`, on: {click: () => jump(store, item)}},
    el('span', {className: 'k', text: String(item.pos)}), el('span', {className: 'mono', text: tokenName(store, item.a)}), el('span', {className: 'k', text: '≠'}), el('span', {className: 'mono', text: tokenName(store, item.b)})));
    diff.replaceChildren(el('div', {className: 'k', text: `${d.differ.length} of ${A.G} positions differ${over ? '' : ' so far'}; first at position ${d.first.pos}, pass ${d.first.pass}`}), el('div', {className: 'diff-list'}, ...items));
  }

  /** Both sides' numbers at the selected position. */
  function drawSides() {
    const pos = store.sel?.pos;
    const {A, B} = store.lanes;
    sides.hidden = pos === undefined || !A || !B || pos < A.P || pos < B.P;
    if (sides.hidden) return;
    const a = side(store, A, pos);
    const b = side(store, B, pos);
    sides.replaceChildren(el('div', {className: 'h', text: `At position ${pos}`}), el('table', {className: 'cmp'}, el('tbody', {}, ...Object.keys(a).map((key) => el('tr', {}, el('th', {text: key, scope: 'row'}),
      el('td', {className: a[key] === b[key] ? '' : 'odd', text: a[key]}), el('td', {className: a[key] === b[key] ? '' : 'odd', text: b[key]}))))));
  }
  const unwatch = store.watch(['data', 'status'], draw);
  const unsides = store.watch(['data', 'sel'], drawSides);
  return {draw, destroy() { unwatch(); unsides(); root.replaceChildren(); }};
}

/** What a lane did at a position. */
function side(store, log, pos) {
  const c = log.commitAt(pos);
  if (!c) return {token: 'masked', pass: '–', rule: '–', confidence: '–', 'Δ, nats': '–', gate: '–', 'drift δ, nats': '–'};
  const n = log.numbers(c.at, pos);
  return {token: tokenName(store, c.tok), pass: String(c.at), rule: REASON_LABEL[REASONS[c.r]], confidence: num(c.conf, 3), 'Δ, nats': short(c.delta ?? n?.delta), gate: short(c.gate ?? n?.gate), 'drift δ, nats': short(n?.drift)};
}

/** Put the cursor and the selection on a divergence. */
export function jump(store, item) {
  const lane = item.passA >= item.passB ? 'A' : 'B';
  store.seekPass(lane, item.pass);
  store.select(store.sel?.lane || 'A', item.pos);
}
