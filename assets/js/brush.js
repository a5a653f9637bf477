/**
 * What the brushed selection holds: the summary above the why panel.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`. The selection is `store.brush` = {positions: Set, passes: [from, to] | null}, shared by grid, heatmap,
 * clusters, timeline, scrubber and this. Hidden while nothing more than one cell is selected.
 */

import {REASONS, REASON_LABEL} from './codec.js';
import {el, num, say, short} from './dom.js';
import {tokenName} from './describe.js';

const MOST = 48;

/** Means and counts over the selection in one lane. */
export function summary(log, positions, passes) {
  const out = {commits: 0, reasons: {}, conf: 0, withConf: 0, delta: 0, withDelta: 0, first: Infinity, last: -1, masked: 0};
  for (const pos of positions) {
    const c = log.commitAt(pos);
    if (!c) { if (pos >= log.P) out.masked++; continue; }
    if (passes && (c.at < passes[0] || c.at > passes[1])) continue;
    out.commits++;
    const name = REASON_LABEL[REASONS[c.r]];
    out.reasons[name] = (out.reasons[name] || 0) + 1;
    out.first = Math.min(out.first, c.at);
    out.last = Math.max(out.last, c.at);
    if (c.conf !== null) { out.conf += c.conf; out.withConf++; }
    if (c.delta !== null) { out.delta += c.delta; out.withDelta++; }
  }
  return out;
}

export function mount(root, store) {
  const head = el('div', {className: 'h line'}, el('span', {text: 'Selection'}), el('span', {className: 'sp'}), el('button', {type: 'button', className: 'link plain', text: 'clear', title: 'Esc', on: {click: () => store.select(null)}}));
  const lines = el('div', {className: 'sel-lines', role: 'status'});
  const list = el('div', {className: 'diff-list'});
  root.append(head, lines, list);

  function draw() {
    const lane = store.focus;
    const log = store.lanes[lane];
    const {positions, passes} = store.brush;
    const wide = !!log && (positions.size > 1 || !!passes);
    if (root.hidden === wide) root.hidden = !wide;
    if (!wide) return;
    const said = [];
    if (passes) {
      const steps = log.steps.slice(passes[0], passes[1] + 1);
      const n = steps.reduce((a, s) => a + s.commits.length, 0);
      said.push(`passes ${passes[0]}–${passes[1]}: ${n} tokens, ${steps.filter((s) => s.refresh).length} refreshes, ${steps.reduce((a, s) => a + s.rows, 0)} rows, ${num(steps.reduce((a, s) => a + s.dt, 0) * 1000, 0)} ms`);
    }
    const all = positions.size ? [...positions].sort((a, b) => a - b) : log.steps.slice(passes[0], passes[1] + 1).flatMap((s) => s.commits.map((c) => c.pos)).sort((a, b) => a - b);
    const s = summary(log, all, passes);
    if (positions.size) said.push(`${positions.size} positions, ${all[0]}–${all[all.length - 1]}: ${s.commits} committed${s.commits ? ` at passes ${s.first}–${s.last}` : ''}${s.masked ? `, ${s.masked} masked` : ''}`);
    const by = Object.entries(s.reasons).map(([name, n]) => `${n} ${name}`).join(', ');
    if (by) said.push(`${by} · mean confidence ${num(s.withConf ? s.conf / s.withConf : null)}${s.withDelta ? `, mean Δ ${short(s.delta / s.withDelta)}` : ''}`);
    lines.replaceChildren(...said.map((text) => el('div', {text})));
    list.replaceChildren(...all.slice(0, MOST).map((pos) => {
      const id = pos < log.P ? log.header.prompt_ids[pos] : log.head.tok[pos - log.P];
      return el('button', {type: 'button', className: 'diff', title: `position ${pos}`, on: {click: () => store.select(lane, pos, true)}}, el('span', {className: 'k', text: String(pos)}), el('span', {className: 'mono', text: tokenName(store, id)}));
    }), ...(all.length > MOST ? [el('span', {className: 'k', text: `and ${all.length - MOST} more`})] : []));
    say(head.firstChild, `Selection · lane ${lane}`);
  }
  const unwatch = store.watch(['data', 'sel', 'view'], draw);
  return {draw, destroy() { unwatch(); root.replaceChildren(); }};
}
