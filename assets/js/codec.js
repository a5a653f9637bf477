/**
 * Decodes what the server streams: base64 little-endian arrays to typed arrays, wire steps to log steps.
 *
 * Contract: `decodeStep(raw)` returns a plain object that holds no reference to `raw`; a field that does not exist for the pass is
 * null (never 0). The wire format is in docs/architecture.md, "Stream from server to page".
 */

const KINDS = {f32: Float32Array, i32: Int32Array, u16: Uint16Array, u8: Uint8Array};

/** Commit reasons in drawing order; index 0 is "still masked", the last one is any reason a method adds. */
export const REASONS = ['masked', 'confidence', 'forced', 'drift', 'suffix', 'edit', 'other'];
export const EDIT = REASONS.indexOf('edit'); // put there by hand, not by a commit
export const REASON_LABEL = {
  masked: 'masked', confidence: 'confidence', forced: 'forced', drift: 'drift event', suffix: 'suffix pre-commit', edit: 'put by hand', other: 'other rule',
};

const reasonIndex = (name) => {
  const i = REASONS.indexOf(name);
  return i > 0 ? i : REASONS.length - 1;
};

/** Base64 of little-endian values -> typed array; null stays null. */
export function array(text, kind) {
  if (text === null || text === undefined) return null;
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return kind === 'u8' ? bytes : new KINDS[kind](bytes.buffer);
}

const maybe = (value) => (value === undefined ? null : value);

/** One wire STEP -> one log step. */
export function decodeStep(raw) {
  const cand = raw.cand ? {tok: array(raw.cand.tok, 'i32'), p: array(raw.cand.p, 'f32')} : null;
  return {
    i: raw.i, block: raw.b, s: raw.s, e: raw.e, kind: raw.k, refresh: !!raw.rf, why: raw.why || '',
    N: maybe(raw.N), M: maybe(raw.M), rows: raw.rows || 0, prows: array(raw.prows, 'u16'), t: raw.t, dt: raw.dt,
    commits: (raw.c || []).map(([pos, tok, conf, reason, delta, gate]) => (
      {pos, tok, conf: maybe(conf), reason, r: reasonIndex(reason), delta: maybe(delta), gate: maybe(gate)})),
    conf: array(raw.conf, 'f32'), am: array(raw.am, 'i32'),
    drift: array(raw.drift, 'f32'), delta: array(raw.delta, 'f32'), gate: array(raw.gate, 'f32'),
    win: array(raw.win, 'u16'), lab: array(raw.lab, 'u8'), cs: array(raw.cs, 'f32'), sel: array(raw.sel, 'u8'), pts: array(raw.pts, 'f32'),
    cand, stale: array(raw.stale, 'f32'), fulldrift: array(raw.fulldrift, 'f32'),
    edits: raw.ed || [], phases: raw.ph || {}, changes: raw.par || [], extra: raw.x || {},
  };
}
