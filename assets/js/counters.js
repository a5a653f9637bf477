/**
 * The head of a lane: method, preset, parameters that are not the preset's, the counters at the cursor, commits by reason.
 *
 * Contract: `mount(root, store, {lane}) -> {draw, destroy}`. TPF and TPS follow the paper (section D.1): tokens that are not [EOS] per pass and
 * per second; "all" counts every position. At the end of a finished run the server's own metrics are shown.
 */

import {REASONS, REASON_LABEL} from './codec.js';
import {el, num, say} from './dom.js';
import {changed} from './lanesets.js';

const FIELDS = [
  ['pass', 'passes', 'Forward passes so far (NFE)'],
  ['tokens', 'tokens', 'Tokens on the canvas'],
  ['tpf', 'TPF', 'Tokens that are not [EOS] per forward pass'],
  ['tpfAll', 'TPF all', 'All tokens, [EOS] too, per forward pass'],
  ['tps', 'TPS', 'Tokens that are not [EOS] per second of decoding'],
  ['sec', 'seconds', 'Decode time so far'],
  ['rows', 'rows/token', 'Positions recomputed by main passes, per token'],
];

/** The counters of a lane after pass p; null where they do not exist yet. */
export function numbers(log, p) {
  if (!log || p < 0 || !log.n) return {pass: 0, tokens: 0, tpf: null, tpfAll: null, tps: null, tpsAll: null, sec: null, rows: null, packet: null, reasons: null};
  const n = p + 1;
  const t = log.steps[p].t;
  const all = log.tokens[p];
  const own = log.nonEos[p];
  const m = log.metrics && p === log.n - 1 ? log.metrics : {};
  return {
    pass: n, tokens: all, sec: m.seconds ?? t,
    tpf: m.tpf ?? own / n, tpfAll: m.tpf_all ?? all / n,
    tps: m.tps ?? (t > 0 ? own / t : null), tpsAll: m.tps_all ?? (t > 0 ? all / t : null),
    rows: all ? log.rows[p] / all : null, packet: all ? log.packetRows[p] / all : null, reasons: log.reasons[p],
  };
}

export function mount(root, store, {lane}) {
  const title = el('b', {className: 'lane-title'});
  const chip = el('span', {className: 'chip small'});
  const note = el('span', {className: 'lane-note'});
  const set = el('span', {className: 'lane-set'});
  const values = {};
  const totals = {};
  const stats = el('dl', {className: 'stats'}, ...FIELDS.map(([key, label, help]) => {
    const value = el('span', {text: '–'});
    const of = el('small');
    values[key] = value;
    totals[key] = of;
    return el('div', {title: help, className: `stat-${key}`}, el('dt', {text: label}), el('dd', {}, value, of));
  }));
  const parts = REASONS.slice(1).map((name) => {
    const count = el('b');
    const node = el('span', {className: `reason r-${name}`, title: `Commits by ${REASON_LABEL[name]}`}, el('i'), el('span', {text: name}), count);
    return {node, count};
  });
  root.append(el('div', {className: 'lane-head'}, el('span', {className: 'badge', text: lane}), title, chip, set,
    el('span', {className: 'reasons'}, ...parts.map((p) => p.node)), note), stats);

  function draw() {
    const log = store.lanes[lane];
    if (!log) return;
    const p = store.passOf(lane);
    const n = numbers(log, p);
    say(title, log.header.title || log.header.method);
    say(chip, log.header.preset || '');
    chip.hidden = !log.header.preset;
    const own = changed(log, store.lanes[lane === 'A' ? 'B' : 'A']).map((pair) => pair.join(' ')).join(', ');
    say(set, own);
    set.title = own && `Changed from the preset: ${own}`;
    const done = log.status !== 'open';
    say(note, log.status === 'stopped' ? 'stopped' : log.status === 'error' ? 'failed' : log.n && log.last.stale ? 'observed' : '');
    note.title = log.n && log.last.stale ? 'Observe mode: this mode\'s speed means nothing' : '';
    say(values.pass, String(n.pass));
    say(totals.pass, done || n.pass < log.n ? `/${log.n}` : '');
    say(values.tokens, String(n.tokens));
    say(totals.tokens, `/${log.G}`);
    say(values.tpf, num(n.tpf));
    say(values.tpfAll, num(n.tpfAll));
    say(values.tps, num(n.tps, 1));
    say(values.sec, num(n.sec, 2));
    say(values.rows, num(n.rows, 1));
    values.rows.closest('div').title = `Positions recomputed by main passes, per token${n.packet ? `; update packets add ${num(n.packet, 1)}` : ''}`;
    parts.forEach((part, i) => {
      const count = n.reasons ? n.reasons[i + 1] : 0;
      const ever = log.n ? log.reasons[log.n - 1][i + 1] : 0;
      part.node.hidden = !ever;
      say(part.count, String(count));
    });
  }
  const unwatch = store.watch(['data', 'cursor'], draw);
  return {draw, destroy() { unwatch(); root.replaceChildren(); }};
}
