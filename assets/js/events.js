/**
 * Kinds of event in a log and the way to the next or previous one.
 *
 * Contract: `KINDS` = [[name, label, test(step, previous)]]; `findEvent(log, from, kind, direction)` -> pass or -1.
 */

export const KINDS = [
  ['block', 'block entry', (s, before) => !before || before.block !== s.block],
  ['refresh', 'refresh', (s) => s.refresh],
  ['drift', 'drift event', (s) => s.commits.some((c) => c.r === 3)],
  ['suffix', 'suffix pre-commit', (s) => s.commits.some((c) => c.r === 4)],
  ['forced', 'forced commit', (s) => s.commits.some((c) => c.r === 2)],
];

export function findEvent(log, from, kind, direction) {
  const test = KINDS.find(([name]) => name === kind)[2];
  for (let i = from + direction; i >= 0 && i < log.n; i += direction) if (test(log.steps[i], log.steps[i - 1])) return i;
  return -1;
}
