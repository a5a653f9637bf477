/**
 * What if: the commit rule of the recording, judged again on every recorded pass with other values of α, τ_s and h.
 *
 * Contract: pure. `rejudge(log, {alpha, tau_s, h})` -> {rows: [{pos, was, now, rule}], earlier, later, same, events: {was, now}, forced: {was, now}} or {why: sentence}
 * where the rule cannot be judged. A value left null is the recorded one. `now` is the first recorded pass in which the rule takes the token, Infinity
 * where none does. First order: each pass keeps the confidences and drifts it had, though another commit would have changed the passes after it.
 *
 * The rule (section 4.2): masked j is taken when c >= τ_s; after the block entry also when Δ >= α (τ_s − c)^2 with Δ = δ − mean of the last h δ of the block
 * (h = 0: Δ = δ); when no position reaches τ_s, the most confident one is taken.
 */

import {REASONS} from './codec.js';

const FORCED = REASONS.indexOf('forced');
const DRIFT = REASONS.indexOf('drift');
const JUDGED = new Set(['confidence', 'forced', 'drift', 'suffix', 'edit']);
const number = (v) => (v === 'inf' ? Infinity : Number(v));

/** Why the what-if cannot be asked of a log, or null. */
export function unsuited(log) {
  const title = log.header.title || log.header.method;
  if (!log.n) return 'No pass has been recorded yet.';
  const {config} = log.header;
  const other = (config.rule ?? 'threshold') !== 'threshold' || (config.apd ?? 'fixed') !== 'fixed' || log.steps.some((q) => q.extra.dawn || q.extra.klass || q.extra.thresholds);
  if (config.tau_s === undefined || other) return `${title} does not commit by one threshold τ_s alone, so there is no rule to judge again here.`;
  for (const s of log.steps) for (const c of s.commits) if (!JUDGED.has(REASONS[c.r])) return `${title} also commits by its own rule (${c.reason}), which needs more than was recorded.`;
  return null;
}

export const hasDrift = (log) => log.steps.some((s) => s.gate);

export function rejudge(log, wanted) {
  const why = unsuited(log);
  if (why) return {why};
  const config = {...log.header.config};
  const first = new Map(); // position -> [pass, rule]
  const events = {was: 0, now: 0};
  const forced = {was: 0, now: 0};
  let history = [];
  let block = -1;
  for (const s of log.steps) {
    for (const [name, , value] of s.changes) config[name] = value;
    if (s.block !== block || s.kind !== 'within') { block = s.block; history = []; }
    for (const c of s.commits) { if (c.r === DRIFT) events.was++; if (c.r === FORCED) forced.was++; }
    const tau = number(wanted.tau_s ?? config.tau_s);
    const alpha = number(wanted.alpha ?? config.alpha ?? 0);
    const h = number(wanted.h ?? config.h ?? 0);
    const sameTau = tau === number(config.tau_s);
    const sameGate = sameTau && alpha === number(config.alpha);
    const sameH = h === number(config.h);
    const floor = number(config.drift_min_confidence ?? 0);
    const ceiling = number(config.drift_max_delta ?? Infinity);
    const events_on = s.drift && s.gate && config.drift_commit !== false;
    const n = s.conf ? s.conf.length : 0;
    const mean = new Float64Array(n);
    const past = h > 0 ? history.slice(-h) : [];
    for (const d of past) for (let j = 0; j < n; j++) mean[j] += d[j] / past.length;
    let any = false;
    let best = -1;
    const take = (j, rule) => { const pos = s.s + j; if (!first.has(pos)) { first.set(pos, [s.i, rule]); if (rule === 'drift') events.now++; if (rule === 'forced') forced.now++; } };
    for (let j = 0; j < n; j++) {
      const c = s.conf[j];
      if (!Number.isFinite(c)) continue;
      if (best < 0 || c > s.conf[best]) best = j;
      if (c >= Math.fround(tau)) { any = true; take(j, 'confidence'); }
    }
    if (!any && best >= 0) take(best, 'forced');
    if (events_on) {
      for (let j = 0; j < n; j++) {
        const c = s.conf[j];
        if (!Number.isFinite(c) || c >= Math.fround(tau) || c <= floor) continue;
        const delta = sameH && s.delta ? s.delta[j] : s.drift[j] - mean[j];
        const gate = sameGate ? s.gate[j] : alpha * (tau - c) ** 2;
        if (delta >= gate && delta < ceiling) take(j, 'drift');
      }
    }
    if (s.drift) history.push(s.drift);
  }
  const rows = [];
  let same = 0;
  for (let g = 0; g < log.G; g++) {
    const pos = g + log.P;
    const was = log.head.pass[g];
    const rule = REASONS[log.head.why[g]];
    if (was < 0 || rule === 'suffix' || rule === 'edit') { if (was >= 0) same++; continue; }
    const [now, by] = first.get(pos) || [Infinity, ''];
    if (now === was || !changedAnything(wanted)) same++; else rows.push({pos, was, now, rule: by, before: rule});
  }
  rows.sort((a, b) => (a.now - a.was) - (b.now - b.was) || a.pos - b.pos);
  return {rows, same, earlier: rows.filter((r) => r.now < r.was).length, later: rows.filter((r) => r.now > r.was).length, events, forced};
}

const changedAnything = (wanted) => ['alpha', 'tau_s', 'h'].some((k) => wanted[k] !== null && wanted[k] !== undefined);
