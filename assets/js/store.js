/**
 * What the page knows: the logs of both lanes, the cursor, the selection, the view settings.
 *
 * Contract: `receive(text)` takes the server's messages in any order and applies them in `seq` order, each once; a message that is
 * late is waited for and asked for again. Panels call `store.rev` to see what changed and never keep state of their own about
 * the run. `touch(what)` schedules one redraw on the next animation frame (a running decode's own news with a rest between). The cursor is a value on the alignment axis (pass, seconds or
 * tokens); while `follow` is true each lane shows its own last pass.
 */

import {LaneLog} from './log.js';
import {cellText} from './tokens.js';

const LATE_MS = 1500;
const REST = 40; // times as long as a draw took: what a decode at full speed sends is drawn in a fortieth of the time, or every REST_MAX_MS
const REST_MAX_MS = 1000;
export const LANES = ['A', 'B'];

export class Store {
  constructor(send) {
    this.opened = null; // the recording that was asked for last, for links
    this.send = (command) => { if (command.cmd === 'open') this.opened = command.name; send(command); };
    this.view = {focus: 'A', align: 'pass', layer: null, proj: 'pca', log: true, metric: 'drift', fold: true, speed: 8, kind: 'block', tab: 'why', overlay: false};
    this.rev = {data: 0, cursor: 0, sel: 0, hover: 0, view: 0, size: 0, theme: 0, status: 0, lists: 0, notes: 0};
    this.status = {state: 'empty', text: '', place: null};
    this.listeners = new Set();
    this.run = null;
    this.playing = false;
    this.frame = 0;
    this.touched = null;
    this.restTimer = 0;
    this.rested = 0; // when the next draw of a running decode may begin
    // What belongs to the tab rather than to one run: the server sends the whole list whenever it changes.
    this.lesson = false; // one is being followed: its text stays in sight
    this.breakpoints = [];
    this.branches = [];
    this.lessons = [];
    this.methods = [];
    this.files = [];
    this.draft = {edits: new Map(), changes: new Map(), method: null, to: 'B'}; // of a fork
    this.clear();
  }

  clear() {
    this.lanes = {A: null, B: null};
    this.whatif = null;
    this.wantWhatif = null; // values a lesson asks for
    this.notes = {A: [], B: []};
    this.vocab = new Map();
    this.points = new Map();
    this.asked = new Set();
    this.x = 0;
    this.follow = true;
    this.sel = null;
    this.brush = {positions: new Set(), passes: null};
    this.hover = null;
    this.problem = '';
    this.gap = false;
    this.heard = 0; // when the last passes came
    this.hurried = false; // did computing them take most of the time since the ones before? not so where a run is paced
    this.tickCache = null;
    this.divergenceCache = null;
  }

  // ---- stream -------------------------------------------------------------------------------------------------------------

  receive(text) {
    const message = typeof text === 'string' ? JSON.parse(text) : text;
    if (message.v !== 1) { this.fail(`The server speaks version ${message.v} of the stream and this page version 1; reload the page.`); return; }
    if (message.run !== this.run) {
      const said = this.run === null ? this.problem : ''; // of the link in the address, before anything was shown
      this.run = message.run;
      this.nextSeq = 0;
      this.pending = new Map();
      this.clear();
      this.problem = said;
      this.touch('data', 'cursor', 'sel', 'notes');
    }
    if (message.seq < this.nextSeq) return;
    this.pending.set(message.seq, message.events);
    this.computed = null; // milliseconds that the passes in it took; null without passes
    this.touched = []; // what it changes is drawn together, once it is known how fast the decode goes
    while (this.pending.has(this.nextSeq)) {
      const events = this.pending.get(this.nextSeq);
      this.pending.delete(this.nextSeq);
      this.nextSeq++;
      for (const event of events) this.apply(event);
    }
    if (this.computed !== null) this.news();
    const touched = this.touched;
    this.touched = null;
    if (touched.length) this.draw(touched);
    clearTimeout(this.lateTimer);
    if (this.gap && !this.pending.size) { this.gap = false; this.fail(''); }
    if (this.pending.size) this.lateTimer = setTimeout(() => this.late(), LATE_MS);
  }

  late() {
    if (!this.pending.size) return;
    this.gap = true;
    this.fail(`Message ${this.nextSeq} of the run has not arrived (message ${Math.min(...this.pending.keys())} has); asked for it again.`);
    this.send({cmd: 'resend', run: this.run, from: this.nextSeq});
    this.lateTimer = setTimeout(() => this.late(), LATE_MS * 4);
  }

  fail(sentence) { this.problem = sentence; this.touch('status'); }

  apply(event) {
    try { this[`on_${event.type}`]?.(event); } catch (error) { this.fail(`The page could not read a ${event.type} event: ${error.message}`); }
  }

  on_reset() { this.clear(); this.touch('data', 'cursor', 'sel', 'notes'); }

  on_header({lane, header}) {
    this.lanes[lane] = new LaneLog(lane, header);
    if (header.live) this.opened = null;
    if (this.view.layer === null || this.view.layer >= header.n_layers) this.view.layer = header.n_layers >> 1;
    this.nameEos();
    this.touch('data');
  }

  on_vocab({map}) { for (const id in map) this.vocab.set(Number(id), map[id]); this.nameEos(); this.touch('data'); }

  on_steps({lane, steps}) {
    const log = this.lanes[lane];
    if (!log) throw new Error(`lane ${lane} has no header yet.`);
    for (const raw of steps) this.computed += 1000 * log.append(raw).dt;
  }

  /** Passes have come: all of a message at once, which tells how fast the decode goes. */
  news() {
    const now = performance.now();
    this.hurried = this.heard > 0 && this.computed > (now - this.heard) / 2; // the first ones are drawn at once
    this.heard = now;
    if (this.follow) this.rev.cursor++; // moved by the news, not by the person
    this.touch('data');
  }

  on_end({lane, status, metrics}) {
    const log = this.lanes[lane];
    if (log) { log.status = status; log.metrics = metrics || null; }
    this.touch('data');
  }

  on_status({state, text, place}) { this.status = {state, text: text || '', place: place ?? null}; this.touch('status'); }

  on_points({lane, layer, method, frames}) {
    this.points.set(`${lane}/${layer}/${method}`, frames);
    this.touch('data');
  }

  on_figure({lane, position, figures}) { this.points.set(`figure/${lane}/${position ?? null}`, figures); this.touch('data'); }
  on_notes({lane, notes}) { if (notes.some((n) => typeof n.text !== 'string')) throw new Error('a note has no text.'); this.notes[lane] = notes; this.touch('notes'); }
  on_breakpoints({list}) { this.breakpoints = list; this.touch('lists'); }
  on_branches({list}) { this.branches = list; this.touch('lists'); }
  on_lessons({list}) { this.lessons = list; this.touch('lists'); }
  on_methods({list}) { this.methods = list; this.touch('lists'); }
  on_file({name, url}) { this.files = [{name, url}, ...this.files].slice(0, 6); this.touch('lists'); }

  // ---- redraw -------------------------------------------------------------------------------------------------------------

  touch(...what) {
    for (const name of what) this.rev[name]++;
    if (what.includes('data')) { this.tickCache = null; this.divergenceCache = null; }
    if (this.touched) this.touched.push(...what); else this.draw(what);
  }

  draw(what) {
    if (this.frame) return;
    // Only what a decode at full speed sends waits: a browser that draws in software would take the decode's own cores.
    const own = this.status.state !== 'running' || !this.hurried || what.some((name) => name !== 'data');
    const wait = own ? 0 : this.rested - performance.now();
    if (wait <= 0) this.plan();
    else this.restTimer ||= setTimeout(() => { this.restTimer = 0; if (!this.frame) this.plan(); }, wait);
  }

  plan() {
    this.frame = requestAnimationFrame(() => {
      const began = performance.now();
      this.rested = began + REST_MAX_MS; // what comes before it is known how long this draw takes is not drawn on top of it
      this.flush();
      // The next task runs once the browser has laid out and painted what was drawn.
      setTimeout(() => { const now = performance.now(); this.rested = now + Math.min(REST_MAX_MS, REST * (now - began)); });
    });
  }

  /** Draw now what is pending; also what tests time. */
  flush() {
    if (this.frame) cancelAnimationFrame(this.frame);
    clearTimeout(this.restTimer);
    this.frame = this.restTimer = 0;
    for (const draw of this.listeners) draw();
  }

  /** Calls `draw` on an animation frame whenever one of the named revisions moved. Returns the function that stops it. */
  watch(names, draw) {
    let seen = '';
    const look = () => {
      const now = names.map((n) => this.rev[n]).join();
      if (now !== seen) { seen = now; draw(); }
    };
    this.listeners.add(look);
    this.touch();
    return () => this.listeners.delete(look);
  }

  destroy() {
    cancelAnimationFrame(this.frame);
    clearTimeout(this.lateTimer);
    clearTimeout(this.restTimer);
    this.listeners.clear();
    this.clear();
  }

  // ---- lanes and cursor ---------------------------------------------------------------------------------------------------

  /** A recording in a file: nobody answers commands. */
  get offline() { return this.run === 'file'; }

  /** Names of the lanes that have a log. */
  get open() { return LANES.filter((l) => this.lanes[l]); }

  /** The lane that heatmap, timeline and clusters show. */
  get focus() { return this.lanes[this.view.focus] ? this.view.focus : this.open[0] || 'A'; }

  axis(log, i) { return this.view.align === 'pass' ? i : this.view.align === 'time' ? log.steps[i].t : log.tokens[i]; }

  /** Sorted values of the axis at which some lane has a pass. */
  ticks() {
    if (this.tickCache?.align === this.view.align) return this.tickCache.values;
    const set = new Set();
    for (const l of this.open) { const log = this.lanes[l]; for (let i = 0; i < log.n; i++) set.add(this.axis(log, i)); }
    const values = Float64Array.from(set).sort();
    this.tickCache = {align: this.view.align, values};
    return values;
  }

  /** The pass that a lane shows: its last pass at or before the cursor; -1 when it has none. */
  passOf(lane) {
    const log = this.lanes[lane];
    if (!log || !log.n) return -1;
    if (this.follow) return log.n - 1;
    let lo = -1;
    let hi = log.n - 1;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (this.axis(log, mid) <= this.x) lo = mid; else hi = mid - 1;
    }
    return lo;
  }

  get position() {
    const ticks = this.ticks();
    return this.follow && ticks.length ? ticks[ticks.length - 1] : this.x;
  }

  /** Put the cursor at an axis value; at the end it follows the run again only when asked. */
  seek(x, follow = false) {
    if (this.x === x && this.follow === follow) return;
    this.x = x;
    this.follow = follow;
    this.touch('cursor');
  }

  seekPass(lane, i) {
    const log = this.lanes[lane];
    if (log?.n) this.seek(this.axis(log, Math.max(0, Math.min(log.n - 1, i))));
  }

  /** Move by whole ticks of the axis. */
  move(by) {
    const ticks = this.ticks();
    if (!ticks.length) return;
    const x = this.position;
    let k = 0;
    while (k < ticks.length - 1 && ticks[k + 1] <= x) k++;
    const to = Math.max(0, Math.min(ticks.length - 1, k + by));
    this.seek(ticks[to], to === ticks.length - 1 && by > 0);
  }

  home() { const t = this.ticks(); if (t.length) this.seek(t[0]); }
  end() { const t = this.ticks(); if (t.length) this.seek(t[t.length - 1], true); }

  /** Change view settings; changing the alignment keeps the pass of the focused lane. */
  set(changes) {
    const lane = this.focus;
    const pass = this.passOf(lane);
    const realign = changes.align && changes.align !== this.view.align;
    Object.assign(this.view, changes);
    if (realign && !this.follow && pass >= 0) { this.tickCache = null; this.x = this.axis(this.lanes[lane], pass); }
    this.touch('view', 'cursor');
  }

  /** Select one cell, or with null nothing at all; `keep` leaves the brushed selection as it is. */
  select(lane, pos, keep = false) {
    const brushed = this.brush.positions.size > 0 || this.brush.passes !== null;
    if ((lane === null ? !this.sel : this.sel?.lane === lane && this.sel.pos === pos) && (keep || !brushed)) return;
    this.sel = lane === null ? null : {lane, pos};
    if (!keep) this.brush = {positions: new Set(), passes: lane === null ? null : this.brush.passes};
    this.touch('sel');
  }

  /** Brush positions and passes (undefined leaves either as it is); every panel shows them. */
  setBrush({positions, passes, lane = this.focus}) {
    if (positions !== undefined) {
      const list = [...positions];
      const had = this.brush.positions;
      if (list.length === had.size && list.every((p) => had.has(p)) && passes === undefined) return;
      this.brush.positions = new Set(list);
      if (list.length && !this.brush.positions.has(this.sel?.pos)) this.sel = {lane, pos: list[list.length - 1]};
    }
    if (passes !== undefined) this.brush.passes = passes && [Math.min(...passes), Math.max(...passes)];
    this.touch('sel');
  }

  /** Add a position to the brush, or take it away. */
  toggle(lane, pos) {
    const set = new Set(this.brush.positions.size ? this.brush.positions : this.sel ? [this.sel.pos] : []);
    if (!set.delete(pos)) set.add(pos);
    this.setBrush({positions: set, lane});
  }

  /** All positions from the selected cell to this one. */
  extend(lane, pos) {
    const from = this.sel?.pos ?? pos;
    const list = [];
    for (let p = Math.min(from, pos); p <= Math.max(from, pos); p++) list.push(p);
    this.brush.positions = new Set(list);
    this.touch('sel');
  }

  /** Positions selected now: the brushed ones, else the selected cell. */
  positions() { return this.brush.positions.size ? this.brush.positions : this.sel ? [this.sel.pos] : []; }

  point(hover) {
    const a = this.hover;
    if (a === hover || (a && hover && a.lane === hover.lane && a.pos === hover.pos && a.pass === hover.pass)) return;
    this.hover = hover;
    this.touch('hover');
  }

  token(id) { return this.vocab.get(id) || {t: id < 0 ? '' : `#${id}`}; }

  /** A token's text as a cell shows it, remembered. */
  cell(id) {
    const token = this.vocab.get(id);
    return token ? (token.shown ??= cellText(token)) : cellText(this.token(id));
  }

  /** [EOS] is one short word in cells, whatever the tokenizer calls it. */
  nameEos() { for (const l of this.open) for (const id of this.lanes[l].eos) { const token = this.vocab.get(id); if (token?.s) { token.cell = 'eos'; token.shown = undefined; } } }

  /** Ask once for the projected points of a layer. */
  wantPoints(lane, layer, method) {
    const key = `${lane}/${layer}/${method}`;
    if (this.points.has(key)) return this.points.get(key);
    if (!this.asked.has(key)) { this.asked.add(key); this.send({cmd: 'points', lane, layer, method}); }
    return null;
  }

  /** Figures of an observed run (and of one position), asked for once; null until they are there. */
  wantFigure(lane, position) {
    const key = `figure/${lane}/${position}`;
    if (!this.points.has(key) && !this.asked.has(key)) { this.asked.add(key); this.send({cmd: 'figure', lane, position}); }
    return this.points.get(key) || null;
  }

  /** First divergence of the two lanes' tokens and how many positions differ; null with fewer than two lanes. */
  divergence() {
    const {A, B} = this.lanes;
    if (!A || !B || A.header.length !== B.header.length || A.P !== B.P) return null;
    if (this.divergenceCache) return this.divergenceCache;
    const differ = [];
    let first = null;
    for (let g = 0; g < A.G; g++) {
      const a = A.head.tok[g];
      const b = B.head.tok[g];
      if (a < 0 || b < 0 || a === b) continue;
      const pass = Math.max(A.head.pass[g], B.head.pass[g]);
      const item = {pos: g + A.P, g, pass, passA: A.head.pass[g], passB: B.head.pass[g], a, b};
      differ.push(item);
      if (!first || pass < first.pass || (pass === first.pass && g < first.g)) first = item;
    }
    this.divergenceCache = {differ, first, set: new Set(differ.map((d) => d.pos))};
    return this.divergenceCache;
  }
}
