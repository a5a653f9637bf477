/**
 * The conditions that a breakpoint may have, as rows of a form.
 *
 * Contract: `CONDITIONS` = {name: {label, input, help, put(object, value)}}; `conditionRow(name) -> {node, read()}`; `read` puts the condition into an
 * object in the JSON form of the server (polestar/breakpoints.py) or throws one sentence. Conditions of one breakpoint are combined by "and".
 */

import {el} from './dom.js';

const whole = (value, what) => {
  const n = Number(value);
  if (value.trim() === '' || !Number.isInteger(n) || n < 0) throw new Error(`${what} is "${value}"; write a whole number from 0.`);
  return n;
};
const real = (value, what) => {
  const n = Number(value);
  if (value.trim() === '' || !Number.isFinite(n)) throw new Error(`${what} is "${value}"; write a number.`);
  return n;
};
const limit = (name, word, what) => (o, v) => { o[name] = {...o[name], [word]: real(v, what)}; };

export const CONDITIONS = {
  commit: {label: 'a commit by', input: [['drift', 'drift event'], ['suffix', 'suffix pre-commit'], ['forced', 'forced'], ['confidence', 'confidence'], ['any', 'any rule']], put: (o, v) => { o.commit = v; }},
  refresh: {label: 'a refresh', put: (o) => { o.refresh = true; }},
  block_entry: {label: 'a block entry', put: (o) => { o.block_entry = true; }},
  delta_above: {label: 'Δ above', input: '0.5', unit: 'nats', put: limit('delta', 'above', 'Δ')},
  delta_below: {label: 'Δ below', input: '0.1', unit: 'nats', put: limit('delta', 'below', 'Δ')},
  conf_above: {label: 'confidence above', input: '0.9', put: limit('confidence', 'above', 'The confidence')},
  conf_below: {label: 'confidence below', input: '0.6', put: limit('confidence', 'below', 'The confidence')},
  position: {label: 'position', input: '', put: (o, v) => { o.position = whole(v, 'The position'); }},
  token: {label: 'token id', input: '', put: (o, v) => { o.token = whole(v, 'The token id'); }},
  text: {label: 'text', input: '', put: (o, v) => { if (!v) throw new Error('The text is empty; write some.'); o.text = v; }},
  pass: {label: 'pass', input: '', put: (o, v) => { o.pass = whole(v, 'The pass'); }},
  block: {label: 'block', input: '', put: (o, v) => { o.block = whole(v, 'The block'); }},
  masked: {label: 'still masked', help: 'Ask the conditions of masked positions (their best guess), not of committed ones', put: (o) => { o.of = 'masked'; }},
};

/** One row: which condition, its value, a button to take it away. */
export function conditionRow(first, {onRemove}) {
  const kind = el('select', {'aria-label': 'Condition'}, ...Object.entries(CONDITIONS).map(([value, c]) => el('option', {value, text: c.label})));
  kind.value = first;
  const slot = el('span', {className: 'slot'});
  const fill = () => {
    const c = CONDITIONS[kind.value];
    kind.title = c.help || '';
    if (c.input === undefined) slot.replaceChildren();
    else if (Array.isArray(c.input)) slot.replaceChildren(el('select', {'aria-label': 'Value'}, ...c.input.map(([value, text]) => el('option', {value, text}))));
    else slot.replaceChildren(el('input', {type: 'text', 'aria-label': 'Value', value: c.input, spellcheck: false, autocomplete: 'off'}), el('span', {className: 'k', text: c.unit || ''}));
  };
  kind.addEventListener('change', fill);
  fill();
  const node = el('div', {className: 'cond'}, kind, slot, el('button', {type: 'button', className: 'ib tiny', 'aria-label': 'Remove this condition', text: '×', on: {click: () => onRemove(row)}}));
  const row = {node, read(into) { CONDITIONS[kind.value].put(into, slot.firstElementChild?.value ?? ''); }, set(name, value) { kind.value = name; fill(); if (value !== undefined) slot.firstElementChild.value = value; }};
  return row;
}
