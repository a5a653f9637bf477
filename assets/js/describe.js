/**
 * Words about a cell: what the tooltip, the screen reader's grid and the why panel say.
 *
 * Contract: pure functions of a log and a pass; numbers that do not exist are left out, never shown as 0.
 */

import {REASONS, REASON_LABEL} from './codec.js';
import {num, short} from './dom.js';
import {paramsAt} from './params.js';
import {cellText} from './tokens.js';

export const tokenName = (store, id) => (id < 0 ? '[MASK]' : cellText(store.token(id)) || '(empty)');

/** State of a generated position after pass p: one of the reasons' names, with 'masked' for [MASK]. */
export function stateWord(log, state, g) { return REASONS[state.why[g]]; }

/** One sentence for a screen reader. */
export function sentence(store, log, state, p, pos) {
  if (pos < log.P) return `position ${pos}, prompt, ${tokenName(store, log.header.prompt_ids[pos])}`;
  const g = pos - log.P;
  if (state.tok[g] < 0) {
    const n = log.numbers(p, pos);
    return `position ${pos}, masked${n?.am !== null && n ? `, would be ${tokenName(store, n.am)}` : ''}${n && n.conf !== null ? `, confidence ${num(n.conf)}` : ''}`;
  }
  const at = state.pass[g];
  const fresh = at === p ? ', new in this pass' : '';
  const after = g >= log.endOf(state) ? ', after the end' : '';
  return `position ${pos}, ${tokenName(store, state.tok[g])}, ${REASON_LABEL[REASONS[state.why[g]]]}, committed at pass ${at}${fresh}${after}`;
}

/** Tooltip lines for a cell at pass p. */
export function cellLines(store, log, p, pos) {
  if (pos < log.P) return [`prompt · position ${pos}`, ['token', tokenName(store, log.header.prompt_ids[pos])]];
  const state = log.stateAt(p);
  const g = pos - log.P;
  const lines = [`position ${pos} · block ${blockOf(log, pos)}`];
  if (state.tok[g] >= 0) {
    const c = log.commitAt(pos, p);
    lines.push(['token', tokenName(store, state.tok[g])], ['committed', `pass ${c.at}, ${REASON_LABEL[REASONS[c.r]]}`]);
    if (c.conf !== null) lines.push(['confidence', num(c.conf, 3)]);
    if (c.delta !== null) lines.push(['Δ', short(c.delta)]);
    if (c.gate !== null) lines.push(['gate', short(c.gate)]);
    if (g >= log.endOf(state)) lines.push('after the end ([EOS])');
  } else lines.push(['state', 'masked']);
  const n = log.numbers(p, pos);
  if (n) {
    if (n.am !== null && state.tok[g] < 0) lines.push(['would be', tokenName(store, n.am)]);
    if (n.conf !== null && state.tok[g] < 0) lines.push(['confidence', num(n.conf, 3)]);
    if (n.drift !== null) lines.push(['drift δ', `${short(n.drift)} nats`]);
  }
  const d = store.divergence();
  if (d?.set.has(pos)) lines.push('differs from the other lane');
  return lines;
}

export function blockOf(log, pos) {
  const blocks = log.header.blocks || [];
  for (let i = 0; i < blocks.length; i++) if (pos >= blocks[i][0] && pos < blocks[i][1]) return i;
  return -1;
}

/** "refresh: N 4 > τ_upd 3" and the like; the server's own words where it gave some. */
export function passRule(step) {
  if (!step) return '';
  if (step.kind === 'entry-full') return `block ${step.block} entry, all rows`;
  if (step.kind === 'entry-window') return `block ${step.block} entry, window rows`;
  if (step.refresh) return `refresh${step.why ? `: ${step.why}` : ''}`;
  return 'reuse';
}

/** What stands where drift has no number: Polestar has drift but compares with the pass before, and a block's entry pass has none; others have no drift. */
export function noDrift(log, steps) {
  return 'drift_commit' in log.header.config && !steps.some((s) => s.kind === 'within') ? 'no history yet' : 'n/a';
}

/** What stands where no pass so far counted tokens towards a refresh. */
export function noRefresh(log) {
  if (!('cache_refresh' in log.header.config)) return 'no refresh rule in this method';
  return paramsAt(log, log.n - 1).cache_refresh === false ? 'refresh is switched off in this run' : 'no refresh in this run so far';
}
