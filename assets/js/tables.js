/**
 * The log as tables (RFC 4180 CSV, UTF-8).
 *
 * Contract: `TABLES` = {name: {title, rows(store) -> [header, ...rows]}}; `csv(rows) -> string`. Numbers that do not exist are empty cells. Token texts are JSON
 * strings, so that blanks are visible and no cell begins with a formula's sign.
 */

import {table as comparison} from './compare.js';
import {tokenName} from './describe.js';

const show = (v) => (v === null || v === undefined || (typeof v === 'number' && !Number.isFinite(v)) ? '' : v);
const text = (store, id) => (id === null || id < 0 ? '' : JSON.stringify(store.token(id).t || tokenName(store, id)));

export function csv(rows) {
  return rows.map((row) => row.map((v) => { const s = String(show(v)); return /[",\r\n]/.test(s) ? `"${s.replace(/"/g, '""')}"` : s; }).join(',')).join('\r\n') + '\r\n';
}

function passes(store) {
  const names = [...new Set(store.open.flatMap((l) => store.lanes[l].steps.flatMap((s) => Object.keys(s.phases))))].sort();
  const out = [['lane', 'method', 'pass', 'block', 'block_start', 'block_end', 'kind', 'refresh', 'reason', 'N', 'M', 'rows', 'packet_rows_mean', 'tokens_committed', 'tokens_so_far', 'seconds', 'elapsed', ...names.map((n) => `seconds_${n}`)]];
  for (const lane of store.open) {
    const log = store.lanes[lane];
    for (const s of log.steps) {
      const packet = s.prows ? s.prows.reduce((a, b) => a + b, 0) / s.prows.length : null;
      out.push([lane, log.header.method, s.i, s.block, s.s, s.e, s.kind, s.refresh ? 1 : 0, s.why, s.N, s.M, s.rows, packet, s.commits.length, log.tokens[s.i], s.dt, s.t, ...names.map((n) => s.phases[n])]);
    }
  }
  return out;
}

function commits(store) {
  const out = [['lane', 'pass', 'position', 'token', 'text', 'reason', 'confidence', 'delta', 'gate']];
  for (const lane of store.open) for (const s of store.lanes[lane].steps) {
    for (const [pos, tok] of s.edits) out.push([lane, s.i, pos, tok, text(store, tok), 'edit', null, null, null]);
    for (const c of s.commits) out.push([lane, s.i, c.pos, c.tok, text(store, c.tok), c.reason, c.conf, c.delta, c.gate]);
  }
  return out;
}

function numbers(store) {
  const out = [['lane', 'pass', 'position', 'argmax', 'argmax_text', 'confidence', 'drift', 'delta', 'gate']];
  for (const lane of store.open) for (const s of store.lanes[lane].steps) {
    for (let j = 0; j < s.e - s.s; j++) out.push([lane, s.i, s.s + j, s.am && s.am[j] >= 0 ? s.am[j] : null, text(store, s.am ? s.am[j] : -1), s.conf?.[j], s.drift?.[j], s.delta?.[j], s.gate?.[j]]);
  }
  return out;
}

export const TABLES = {
  passes: {title: 'Passes', rows: passes},
  commits: {title: 'Commits', rows: commits},
  numbers: {title: 'Confidence and drift', rows: numbers},
  comparison: {title: 'Comparison', rows: (store) => [['measure', 'A', 'B'], ...comparison(store.lanes.A, store.lanes.B).map((r) => r.slice(0, 3))], both: true},
};
