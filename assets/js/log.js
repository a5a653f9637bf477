/**
 * The log of one lane: header, steps, and the canvas of tokens at any pass.
 *
 * Contract: positions outside are absolute; inside, generated positions are indexed from 0 (`g = position - prompt_length`). `stateAt(p)`
 * is the canvas after pass p (p = -1: before the first). It starts from the nearest keyframe (one every 32 passes) or from the
 * state it gave last, whichever is nearer, so any pass costs at most 32 steps. The object it returns is reused: read it, do not keep it.
 */

import {EDIT, REASONS, decodeStep} from './codec.js';

export const KEYFRAME = 32;

/** What a pass put on the canvas, in order: edits made by hand before it, then its commits. */
export function writes(step) {
  if (!step.edits.length) return step.commits;
  return [...step.edits.map(([pos, tok]) => ({pos, tok, conf: null, reason: 'edit', r: EDIT, delta: null, gate: null})), ...step.commits];
}

const blank = (n) => ({tok: new Int32Array(n).fill(-1), pass: new Int32Array(n).fill(-1), why: new Uint8Array(n)});
const copyInto = (to, from) => { to.tok.set(from.tok); to.pass.set(from.pass); to.why.set(from.why); };

export class LaneLog {
  constructor(name, header) {
    this.name = name;
    this.header = header;
    this.P = header.prompt_length;
    this.G = header.length - header.prompt_length;
    this.eos = new Set(header.eos_ids || []);
    this.steps = [];
    this.status = 'open';
    this.metrics = null;
    this.tokens = []; // tokens on the canvas after each pass
    this.nonEos = []; // of which not [EOS]
    this.rows = []; // rows of main passes so far
    this.packetRows = []; // update-packet rows so far, mean over layers (rows of a whole-model pass)
    this.reasons = []; // Int32Array of counts by reason so far
    this.entryOf = []; // pass that opened the block with a window
    this.pointsOf = []; // last pass of the block with hidden-state points
    this.refreshOf = []; // last refresh in the block, -1 when none yet
    this.head = blank(this.G); // state after the last pass
    this.frames = [blank(this.G)]; // frames[k]: state before pass 32k
    this.cache = blank(this.G);
    this.cacheAt = -1;
  }

  get n() { return this.steps.length; }
  get last() { return this.steps[this.steps.length - 1]; }

  append(raw) {
    const step = decodeStep(raw);
    const i = this.steps.length;
    if (step.i !== i) throw new Error(`lane ${this.name} got pass ${step.i} where pass ${i} was due; the log would have a hole.`);
    if (i % KEYFRAME === 0 && i) {
      const frame = blank(this.G);
      copyInto(frame, this.head);
      this.frames.push(frame);
    }
    this.steps.push(step);
    let tokens = i ? this.tokens[i - 1] : 0;
    let nonEos = i ? this.nonEos[i - 1] : 0;
    const counts = i ? this.reasons[i - 1].slice() : new Int32Array(REASONS.length);
    for (const c of writes(step)) {
      const g = c.pos - this.P;
      if (g < 0 || g >= this.G) continue;
      const old = this.head.tok[g];
      if (old >= 0) { tokens--; if (!this.eos.has(old)) nonEos--; counts[this.head.why[g]]--; }
      if (c.tok !== this.header.mask_id) { tokens++; if (!this.eos.has(c.tok)) nonEos++; counts[c.r]++; }
      this.write(this.head, g, c, i);
    }
    this.tokens.push(tokens);
    this.nonEos.push(nonEos);
    this.reasons.push(counts);
    this.rows.push((i ? this.rows[i - 1] : 0) + step.rows);
    let packet = 0;
    if (step.prows) { for (const r of step.prows) packet += r; packet /= step.prows.length || 1; }
    this.packetRows.push((i ? this.packetRows[i - 1] : 0) + packet);
    const same = i && this.steps[i - 1].block === step.block && step.kind === 'within';
    this.entryOf.push(step.win ? i : i ? this.entryOf[i - 1] : -1);
    this.pointsOf.push(step.pts ? i : same ? this.pointsOf[i - 1] : -1);
    this.refreshOf.push(step.refresh ? i : same ? this.refreshOf[i - 1] : -1);
    return step;
  }

  write(state, g, c, i) {
    if (c.tok === this.header.mask_id) { state.tok[g] = -1; state.pass[g] = -1; state.why[g] = 0; return; }
    state.tok[g] = c.tok; state.pass[g] = i; state.why[g] = c.r;
  }

  /** Canvas after pass p: {tok, pass, why}, each of length G; tok -1 where masked. */
  stateAt(p) {
    p = Math.max(-1, Math.min(p, this.n - 1));
    if (p === this.n - 1) return this.head;
    const k = Math.floor((p + 1) / KEYFRAME);
    if (this.cacheAt > p || this.cacheAt < k * KEYFRAME - 1) { copyInto(this.cache, this.frames[k]); this.cacheAt = k * KEYFRAME - 1; }
    for (let i = this.cacheAt + 1; i <= p; i++) {
      for (const c of writes(this.steps[i])) {
        const g = c.pos - this.P;
        if (g >= 0 && g < this.G) this.write(this.cache, g, c, i);
      }
    }
    this.cacheAt = p;
    return this.cache;
  }

  /** The commit that put a token at this position at or before pass p, with its pass; null where none did. */
  commitAt(pos, p = this.n - 1) {
    const state = this.stateAt(p);
    const at = state.pass[pos - this.P];
    if (at === undefined || at < 0) return null;
    const list = writes(this.steps[at]);
    for (let k = list.length - 1; k >= 0; k--) if (list[k].pos === pos) return {...list[k], at};
    return null;
  }

  /** Index of the first generated [EOS] of a state, or G. */
  endOf(state) {
    for (let g = 0; g < this.G; g++) if (state.tok[g] >= 0 && this.eos.has(state.tok[g])) return g;
    return this.G;
  }

  /** Token id at an absolute position in a state; -1 where masked. */
  tokenAt(state, pos) { return pos < this.P ? this.header.prompt_ids[pos] : state.tok[pos - this.P]; }

  /** The numbers of the pass for one position, null where they do not exist. */
  numbers(p, pos) {
    const step = this.steps[p];
    if (!step || pos < step.s || pos >= step.e) return null;
    const j = pos - step.s;
    const read = (a) => (a && Number.isFinite(a[j]) ? a[j] : null);
    return {conf: read(step.conf), drift: read(step.drift), delta: read(step.delta), gate: read(step.gate),
      am: step.am && step.am[j] >= 0 ? step.am[j] : null, step, j};
  }

  /** Window, labels and K in force at pass p; null for methods without a window. */
  windowAt(p) {
    const at = p < 0 ? -1 : this.entryOf[p];
    if (at < 0 || at === undefined || this.steps[at].block !== this.steps[p].block) return null;
    const {win, lab} = this.steps[at];
    if (!win || !lab) return null;
    // K may have changed since the header was written: the arrays know.
    const n = this.header.n_layers;
    const scored = this.steps[Math.max(0, this.refreshOf[p])];
    const placed = this.pointsOf[p] >= 0 ? this.steps[this.pointsOf[p]].pts : null;
    const K = scored.cs ? scored.cs.length / n : placed ? placed.length / 2 / n - win.length : this.header.config.K || 8;
    return {at, win, lab, K};
  }
}
