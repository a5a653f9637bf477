/**
 * The legend line (what each mark means), the first divergence, and the help overlay with the keys.
 *
 * Contract: `mount(root, store, {app}) -> {draw, destroy, toggleHelp}`.
 */

import {REASONS, REASON_LABEL} from './codec.js';
import {complete, jump} from './compare.js';
import {el, icon, say} from './dom.js';

export const KEYS = [
  ['space', 'pause or continue the run; play or pause the recording'],
  ['← →', 'one pass back or forward (in the token grid: one cell)'],
  ['↑ ↓', 'in the token grid: one line up or down'],
  ['Home End', 'first pass; last pass, and follow the run'],
  ['[ ]', 'previous or next event of the chosen kind; ] at the end of a paused run goes on to it'],
  ['Shift ← →', 'in the token grid: grow the selection (with the mouse: drag, Shift or Ctrl and click)'],
  ['Tab', 'from panel to panel; into the token grid'],
  ['b', 'breakpoint at the selected position (more in the tab Breakpoints)'],
  ['l', 'show the other lane in the drift and cluster panels'],
  ['Esc', 'clear the selection; close this'],
  ['?', 'this help'],
];

const MARKS = [
  ['mark masked', 'masked', 'Still [MASK]; in the block being decoded the present best guess is shown in grey'],
  ['mark fresh', 'new', 'Committed in this very pass'],
  ['mark block', 'block', 'The block being decoded'],
  ['mark window', 'window', 'The local window: positions whose hidden states are clustered'],
  ['mark lit', 'refreshed', 'Recomputed by an update packet in this pass, at the chosen layer'],
  ['mark differ', 'differs', 'The other lane has another token here'],
];

export function mount(root, store, {app}) {
  const reasons = REASONS.slice(1, 5).map((name) => el('span', {className: `reason r-${name}`, title: `${REASON_LABEL[name]}: ${HELP[name]}`}, el('i'), el('span', {text: name})));
  const marks = MARKS.map(([cls, label, help]) => el('span', {className: 'legend-item', title: help}, el('i', {className: cls}), el('span', {text: label})));
  const where = el('button', {type: 'button', className: 'link', title: 'Jump to the first divergence and see both sides there', on: {click: () => { const d = store.divergence(); if (d?.first) { jump(store, d.first); store.set({tab: 'compare'}); } }}});
  marks.splice(2, 1); // the outline of the block needs no words in the line; the help has them
  root.append(...reasons, ...marks, el('span', {className: 'sp'}), where);

  const close = el('button', {type: 'button', className: 'ib', 'aria-label': 'Close help', on: {click: () => help.close()}}, icon('close'));
  const help = el('dialog', {className: 'help', 'aria-label': 'Help'}, el('div', {className: 'help-head'}, el('b', {text: 'Keys and marks'}), close),
    el('div', {className: 'help-body'},
      el('dl', {className: 'keys'}, ...KEYS.flatMap(([key, text]) => [el('dt', {}, ...key.split(' ').map((k) => el('kbd', {text: k}))), el('dd', {text})])),
      el('div', {className: 'help-marks'},
        ...REASONS.slice(1, 5).map((name) => el('p', {}, el('span', {className: `reason r-${name}`}, el('i'), el('b', {text: REASON_LABEL[name]})), el('span', {text: HELP[name]}))),
        ...MARKS.map(([cls, label, text]) => el('p', {}, el('span', {className: 'legend-item'}, el('i', {className: cls}), el('b', {text: label})), el('span', {text}))))));
  app.append(help);

  function draw() {
    const d = store.divergence();
    const two = store.lanes.A && store.lanes.B;
    where.hidden = !two;
    marks[marks.length - 1].hidden = !two;
    where.disabled = !d?.first;
    const none = two && complete(store.lanes.A) && complete(store.lanes.B) ? 'no divergence' : 'no divergence so far';
    say(where, d?.first ? `diverges at ${d.first.pos}, pass ${d.first.pass}` : two ? none : '');
    const full = d?.first ? `first divergence: position ${d.first.pos}, pass ${d.first.pass}` : where.textContent;
    if (where.getAttribute('aria-label') !== full) where.setAttribute('aria-label', full);
  }
  const unwatch = store.watch(['data'], draw);
  return {draw, toggleHelp() { if (help.open) help.close(); else help.showModal(); }, get helpOpen() { return help.open; },
    destroy() { unwatch(); help.remove(); root.replaceChildren(); }};
}

const HELP = {
  confidence: 'The probability of the best token reached τ_s.',
  forced: 'No position reached the threshold, so the best one was committed: every pass commits at least one.',
  drift: 'Attention moved at this position by more than its habit: Δ ≥ α(τ_s − c)².',
  suffix: 'A position after the block, in a refresh packet, reached τ_suf before its block began.',
};
