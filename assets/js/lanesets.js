/**
 * What a lane was set to: its parameters that are not its preset's, and what two lanes have that differs.
 *
 * Contract: pure. `changed(log, other)` -> [[label, value as text], ...] of the header's `changed`, those that differ from the other lane's first; `apart(A, B)` ->
 * [[label, A's, B's], ...] of the preset and of every parameter that both have, at the values in force at each lane's end. Both are text for textContent.
 */

import {nameOf, paramsAt} from './params.js';

export const value = (v) => (v === true ? 'on' : v === false ? 'off' : typeof v === 'number' ? String(Number(v.toPrecision(6))) : String(v));

export function changed(log, other) {
  const list = Object.entries(log.header.changed || {});
  const same = ([name, v]) => (other && other.header.config[name] === v ? 1 : 0);
  return list.sort((p, q) => same(p) - same(q)).map(([name, v]) => [nameOf(log, name), value(v)]);
}

export function apart(A, B) {
  const a = paramsAt(A, A.n - 1);
  const b = paramsAt(B, B.n - 1);
  const rows = Object.keys(a).filter((name) => name in b && a[name] !== b[name]).map((name) => [nameOf(A, name), value(a[name]), value(b[name])]);
  const [p, q] = [A.header.preset || '–', B.header.preset || '–'];
  return p === q ? rows : [['preset', p, q], ...rows];
}
