/**
 * Kinds of event in a log and the way to the next or previous one.
 *
 * Contract: `KINDS` = [[name, label, test(step, previous)]]; `findEvent(log, from, kind, direction)` -> pass or -1. The names are those of the server's
 * `step` command.
 */

import {REASONS} from './codec.js';

const by = (name) => { const r = REASONS.indexOf(name); return (s) => s.commits.some((c) => c.r === r); };

export const KINDS = [
  ['block', 'block entry', (s, before) => !before || before.block !== s.block],
  ['refresh', 'refresh', (s) => s.refresh],
  ['drift', 'drift event', by('drift')],
  ['suffix', 'suffix pre-commit', by('suffix')],
  ['forced', 'forced commit', by('forced')],
  ['pass', 'pass', () => true],
];

export function findEvent(log, from, kind, direction) {
  const test = KINDS.find(([name]) => name === kind)[2];
  for (let i = from + direction; i >= 0 && i < log.n; i += direction) if (test(log.steps[i], log.steps[i - 1])) return i;
  return -1;
}
