/**
 * Drift heatmap of the focused lane: passes across, positions down, colour on a fixed scale with a labelled bar.
 *
 * Contract: `mount(root, store, {tip}) -> {draw, destroy}`. Only the block being decoded has drift, so by default the rows are the positions within
 * the block ("by block"); "all positions" shows the whole generation. The picture is kept offscreen: new passes are added to it, and it is begun anew
 * when size, axis or settings change; moving the cursor only redraws the overlay. Missing values are hatched, never drawn as 0. Units: nats (drift, Δ),
 * probability (confidence).
 */

import {el, layer, MONO, num, setFont, sharp, short} from './dom.js';
import {cellLines, noDrift} from './describe.js';
import {onDrag} from './drag.js';
import {passAxis, tickStep} from './passaxis.js';
import {pixel, rgb} from './theme.js';

const SCALES = {
  drift: {lo: 0, hi: 10, logLo: 1e-2, logHi: 10, unit: 'nats', name: 'drift δ'},
  delta: {lo: 0, hi: 10, logLo: 1e-2, logHi: 10, unit: 'nats', name: 'Δ'},
  stale: {lo: 0, hi: 0.5, logLo: 1e-4, logHi: 1, unit: 'E', name: 'staleness'},
  full: {lo: 0, hi: 10, logLo: 1e-2, logHi: 10, unit: 'nats', name: 'drift of all positions'},
  conf: {lo: 0, hi: 1, logLo: 0, logHi: 0, unit: '', name: 'confidence'},
};
const TOP = 15;
const BOTTOM = 14;

export function scaleOf(view) {
  const s = SCALES[view.metric];
  const log = view.log && s.logLo > 0;
  const a = Math.log10(s.logLo);
  const b = Math.log10(s.logHi);
  return {...s, isLog: log, level: (v) => Math.max(0, Math.min(1, log ? (Math.log10(Math.max(v, 1e-12)) - a) / (b - a) : (v - s.lo) / (s.hi - s.lo)))};
}

/** Red, green, blue, opacity (0 to 255) of a colour as a canvas gives it back: #rrggbb, or rgba(r, g, b, a) where it is translucent. */
function channels(color) {
  if (color[0] === '#') return [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  const [r, g, b, a] = color.match(/[\d.]+/g).map(Number);
  return [r, g, b, Math.round(a * 255)];
}

/** The brushed passes as a shaded band on a pass axis. */
export function shade(ctx, t, ax, [from, to], y, h) {
  ctx.globalAlpha = 0.14;
  ctx.fillStyle = t.acc;
  ctx.fillRect(ax.x(from), y, ax.x(to + 1) - ax.x(from), h);
  ctx.globalAlpha = 0.9;
  ctx.fillRect(ax.x(from), y, 1, h);
  ctx.fillRect(ax.x(to + 1) - 1, y, 1, h);
  ctx.globalAlpha = 1;
}

export function mount(root, store, {tip}) {
  const box = el('div', {className: 'cv'});
  root.append(box);
  const view = sharp(box, store);
  let picture = null;
  let key = '';
  let plot = null;

  const valuesOf = (step, log) => {
    const {metric, fold, layer: l} = store.view;
    if (metric === 'conf') return [step.conf, step.s];
    if (metric === 'stale' || metric === 'full') { // every position has a value; by block, those of the block are shown
      const row = metric === 'full' ? step.fulldrift : step.stale?.subarray(l * log.header.length, (l + 1) * log.header.length);
      return row ? (fold ? [row.subarray(step.s, step.e), step.s] : [row.subarray(log.P), log.P]) : [null, 0];
    }
    return [store.view.metric === 'drift' ? step.drift : step.delta, step.s];
  };

  /** Axis, background, colour bar: what does not depend on the passes. */
  function begin(log, t) {
    picture = layer(view, picture);
    const {ctx} = picture;
    const ax = passAxis(store, view.w);
    const fold = store.view.fold;
    const rows = fold ? log.header.block_length : log.G;
    const h = view.h - TOP - BOTTOM;
    const rh = h / rows;
    const scale = scaleOf(store.view);
    plot = {log, ax, rows, rh, h, fold, scale, any: false, drawn: 0, block: -1, clear: 0};
    ctx.fillStyle = t.na;
    plot.na = pixel(channels(ctx.fillStyle));
    ctx.fillRect(ax.left, TOP, ax.right - ax.left, h);
    setFont(ctx, `10px ${MONO}`);
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'right';
    const every = rows <= 32 ? 8 : rows <= 128 ? 16 : 64;
    for (let r = 0; r < rows; r += every) ctx.fillText(fold ? `+${r}` : String(log.P + r), ax.left - 5, TOP + r * rh + Math.max(5, rh / 2));
    ctx.textAlign = 'center';
    const step = tickStep(ax.room, ax.right - ax.left);
    for (let i = 0; i < ax.room; i += step) ctx.fillText(String(i), ax.x(i) + ax.cw / 2, TOP + h + BOTTOM - 5);
    bar(ctx, t, scale, view.w - 46, TOP, h);
  }

  /** The cells of these passes, as pixels: thousands of small rectangles would take ten times as long. */
  function colour(log, t, steps, gapX, gapY) {
    const {ctx} = picture;
    const {ax, rh, h, fold, scale} = plot;
    const at = (v) => Math.round(v * view.dpr);
    const left = at(ax.x(steps[0].i));
    const top = at(TOP);
    const strip = ctx.createImageData(Math.max(1, at(ax.x(steps[steps.length - 1].i + 1)) - left), Math.max(1, at(TOP + h) - top));
    const cells = new Uint32Array(strip.data.buffer);
    cells.fill(plot.na);
    for (const step of steps) {
      const [values, from] = valuesOf(step, log);
      const x0 = at(ax.x(step.i)) - left;
      const x1 = Math.max(x0 + 1, at(ax.x(step.i + 1) - gapX) - left);
      for (let j = 0; values && j < values.length; j++) {
        if (!Number.isFinite(values[j])) continue;
        plot.any = true;
        const y = TOP + (fold ? j : from + j - log.P) * rh;
        const y0 = at(y) - top;
        const y1 = Math.max(y0 + 1, at(y + rh - gapY) - top);
        const value = t.pixels[Math.round(scale.level(values[j]) * 255)];
        for (let row = y0; row < y1; row++) cells.fill(value, row * strip.width + x0, row * strip.width + x1);
      }
    }
    ctx.putImageData(strip, left, top);
  }

  /** The passes that are not in the picture yet. */
  function add(log, t) {
    const {ctx} = picture;
    const {ax, rh, h, fold, scale} = plot;
    const gapX = ax.cw > 5 ? 0.8 : 0;
    const gapY = rh > 4 ? 0.7 : 0;
    const fresh = log.steps.slice(plot.drawn, log.n);
    plot.drawn = log.n;
    if (fresh.length) colour(log, t, fresh, gapX, gapY);
    ctx.fillStyle = t.hatch;
    for (const step of fresh) {
      if (valuesOf(step, log)[0]) continue;
      const y0 = fold ? 0 : step.s - log.P;
      const y1 = fold ? step.e - step.s : step.e - log.P;
      for (let y = TOP + y0 * rh + 2; y < TOP + y1 * rh; y += 5) ctx.fillRect(ax.x(step.i), y, ax.cw - gapX, 1);
    }
    // Commits: a ring where cells are big enough, else a dot; drift events are filled, forced ones dotted.
    for (const step of fresh) {
      let outside = 0;
      const crowd = step.commits.length > 12; // rings on nearly every cell would hide them
      for (const c of step.commits) {
        const inside = c.pos >= step.s && c.pos < step.e;
        if (!inside && fold) { outside++; continue; }
        const y = TOP + (fold ? c.pos - step.s : c.pos - log.P) * rh;
        mark(ctx, t, c.r, ax.x(step.i), y, ax.cw - gapX, rh - gapY, !valuesOf(step, log)[0], crowd);
      }
      if (outside) { ctx.fillStyle = t.suf; ctx.beginPath(); const x = ax.x(step.i) + (ax.cw - gapX) / 2; ctx.moveTo(x - 3, TOP + h + 1); ctx.lineTo(x + 3, TOP + h + 1); ctx.lineTo(x, TOP + h + 5); ctx.fill(); }
      if (step.refresh) { ctx.fillStyle = t.acc; ctx.fillRect(ax.x(step.i), TOP - 3, ax.cw - gapX, 2); }
    }
    // Blocks: a rule and a label at each entry.
    setFont(ctx, `10px ${MONO}`);
    ctx.textAlign = 'left';
    for (const step of fresh) {
      if (step.block === plot.block) continue;
      plot.block = step.block;
      const x = ax.x(step.i);
      if (step.i) { ctx.fillStyle = t.panel; ctx.fillRect(x - 1, TOP, 1.6, h); }
      const label = `b${step.block} · ${step.s}`;
      if (x >= plot.clear) { ctx.fillStyle = t.mut; ctx.fillText(label, x, 5.5); plot.clear = x + ctx.measureText(label).width + 6; }
    }
    if (!plot.any && log.n) {
      setFont(ctx, '12px system-ui, sans-serif');
      ctx.textAlign = 'center';
      ctx.fillStyle = t.mut;
      const name = SCALES[store.view.metric].name;
      const early = ['drift', 'delta'].includes(store.view.metric) && noDrift(log, log.steps) !== 'n/a';
      ctx.fillText(early ? `${name}: no history yet` : `${name}: n/a for ${log.header.title || log.header.method}${log.n < 2 ? ' yet' : ''}`, (ax.left + ax.right) / 2, TOP + h / 2);
    }
  }

  function mark(ctx, t, r, x, y, w, h, bare, crowd) {
    if (bare) { // nothing to see below it: a quiet bar in the reason's colour, since such a pass may commit a whole block
      ctx.globalAlpha = 0.55;
      ctx.fillStyle = t.reason[r];
      ctx.fillRect(x + w * 0.25, y + h * 0.2, Math.max(1, w * 0.5), Math.max(1, h * 0.6));
      ctx.globalAlpha = 1;
      return;
    }
    if (w >= 5 && h >= 3.2) {
      ctx.strokeStyle = t.name === 'dark' ? `rgba(255,255,255,${crowd ? 0.35 : 0.88})` : `rgba(8,14,28,${crowd ? 0.35 : 0.85})`;
      ctx.lineWidth = 1;
      ctx.setLineDash(r === 2 ? [1.5, 1.5] : r === 4 ? [4, 2] : []);
      ctx.strokeRect(x + 0.6, y + 0.6, w - 1.2, h - 1.2);
      ctx.setLineDash([]);
      if (r === 3) { ctx.fillStyle = t.drift; ctx.fillRect(x + w / 2 - 2, y + 0.5, 4, h - 1); }
    } else {
      const s = Math.max(1.5, Math.min(w, h, 3));
      ctx.fillStyle = r === 1 ? (t.name === 'dark' ? '#fff' : '#08101f') : t.reason[r];
      ctx.fillRect(x + w / 2 - s / 2, y + h / 2 - s / 2, s, s);
    }
  }

  function bar(ctx, t, scale, x, y, h) {
    for (let k = 0; k < h; k++) { ctx.fillStyle = rgb(t.map[Math.round((1 - k / h) * 255)]); ctx.fillRect(x, y + k, 8, 1.5); }
    ctx.strokeStyle = t.line;
    ctx.lineWidth = 1;
    ctx.strokeRect(x + 0.5, y + 0.5, 8, h - 1);
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'left';
    setFont(ctx, `10px ${MONO}`);
    const ticks = scale.isLog ? [10, 1, 0.1, 0.01, 0.001, 0.0001].filter((v) => v <= scale.logHi && v >= scale.logLo) : scale.hi === 1 ? [1, 0.75, 0.5, 0.25, 0] : scale.hi === 0.5 ? [0.5, 0.25, 0] : [10, 7.5, 5, 2.5, 0];
    for (const v of ticks) {
      const at = y + (1 - scale.level(v)) * h;
      ctx.fillRect(x + 8, Math.min(y + h - 1, at), 3, 1);
      ctx.fillText((scale.isLog && v === scale.logLo ? '≤' : scale.isLog && v === scale.logHi && v === 10 ? '≥' : '') + (v && v < 0.001 ? v.toExponential() : String(v).replace(/^0\./, '.')), x + 13, Math.max(y + 6, Math.min(y + h - 4, at))); // the top one clear of the unit above it
    }
    if (scale.unit) ctx.fillText(scale.unit, x - 2, 5.5);
  }

  function draw() {
    const t = store.theme;
    const ctx = view.begin();
    const log = store.lanes[store.focus];
    if (!log || !t || !view.w) return;
    const v = store.view;
    const k = [store.run, store.focus, passAxis(store, view.w).room, log.status, view.w, view.h, view.dpr, t.name, store.rev.theme, v.log, v.metric, v.fold, v.metric === 'stale' ? v.layer : 0].join();
    if (k !== key || log !== plot.log || log.n < plot.drawn || (log.n > plot.drawn && !plot.any)) { key = k; begin(log, t); add(log, t); } else if (log.n > plot.drawn) add(log, t);
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.drawImage(picture.canvas, 0, 0);
    ctx.setTransform(view.dpr, 0, 0, view.dpr, 0, 0);
    const {ax, rh, h, fold} = plot;
    const p = store.passOf(store.focus);
    const step = log.steps[p];
    if (p >= 0) {
      ctx.strokeStyle = t.acc;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(ax.x(p) - 1, TOP - 1, Math.max(2, ax.cw) + 1, h + 2);
    }
    const {positions, passes} = store.brush;
    if (passes) shade(ctx, t, ax, passes, TOP, h);
    for (const q of positions) {
      const b = fold ? (step && q >= step.s && q < step.e ? q - step.s : -1) : q - log.P;
      if (b >= 0) { ctx.fillStyle = t.ink; ctx.fillRect(ax.left - 4, TOP + b * rh, 3, Math.max(1.5, rh - 0.5)); }
    }
    const pos = store.sel?.pos;
    if (pos !== undefined && pos >= log.P) {
      ctx.strokeStyle = t.ink;
      ctx.lineWidth = 1.2;
      const blocks = log.header.blocks;
      const b = blocks.findIndex(([s, e]) => pos >= s && pos < e);
      if (fold) {
        let x0 = -1;
        let x1 = -1;
        for (const s of log.steps) if (s.block === b) { if (x0 < 0) x0 = s.i; x1 = s.i + 1; }
        if (x0 >= 0) ctx.strokeRect(ax.x(x0), TOP + (pos - blocks[b][0]) * rh - 0.5, (x1 - x0) * ax.cw, Math.max(3, rh));
      } else ctx.strokeRect(ax.left, TOP + (pos - log.P) * rh - 0.5, ax.right - ax.left, Math.max(3, rh));
    }
    const hov = store.hover;
    if (hov?.pos !== undefined && step) {
      const pass = hov.pass ?? p;
      const s = log.steps[pass];
      if (s) {
        const r = fold ? (hov.pos >= s.s && hov.pos < s.e ? hov.pos - s.s : -1) : hov.pos - log.P;
        if (r >= 0) { ctx.strokeStyle = t.mut; ctx.lineWidth = 1; ctx.strokeRect(ax.x(pass) - 0.5, TOP + r * rh - 0.5, Math.max(3, ax.cw), Math.max(3, rh)); }
      }
    }
  }

  const undrag = onDrag(box, view, (x0, y0, x1, y1) => {
    const log = store.lanes[store.focus];
    if (!plot || !log) return;
    const clamp = (v, lo, hi) => Math.max(lo, Math.min(hi, v));
    const pass = (x) => clamp(plot.ax.at(x), 0, log.n - 1);
    const row = (y) => clamp(Math.floor((y - TOP) / plot.rh), 0, plot.rows - 1);
    const [p0, p1] = [pass(Math.min(x0, x1)), pass(Math.max(x0, x1))];
    const [r0, r1] = [row(Math.min(y0, y1)), row(Math.max(y0, y1))];
    const list = new Set();
    if (plot.fold) for (let i = p0; i <= p1; i++) { const s = log.steps[i]; for (let r = r0; r <= r1 && s.s + r < s.e; r++) list.add(s.s + r); } else for (let r = r0; r <= r1; r++) list.add(log.P + r);
    store.setBrush({positions: list, passes: [p0, p1]});
  });

  function locate(event) {
    const log = store.lanes[store.focus];
    if (!plot || !log) return null;
    const r = view.canvas.getBoundingClientRect();
    const pass = plot.ax.at(event.clientX - r.left);
    const row = Math.floor((event.clientY - r.top - TOP) / plot.rh);
    if (pass < 0 || pass >= log.n || row < 0 || row >= plot.rows) return null;
    const step = log.steps[pass];
    const pos = plot.fold ? step.s + row : log.P + row;
    return pos < (plot.fold ? step.e : log.header.length) ? {lane: store.focus, pos, pass} : null;
  }
  const onMove = (event) => {
    const at = locate(event);
    store.point(at);
    if (!at) { tip.hide(); return; }
    const log = store.lanes[at.lane];
    const n = log.numbers(at.pass, at.pos);
    const lines = cellLines(store, log, at.pass, at.pos);
    if (n && n.delta !== null && !lines.some((l) => l[0] === 'Δ')) lines.push(['Δ', short(n.delta)]);
    if (n && n.gate !== null && !lines.some((l) => l[0] === 'gate')) lines.push(['gate α(τ_s − c)²', short(n.gate)]);
    lines.splice(1, 0, ['pass', `${at.pass} of ${num(log.n, 0)}`]);
    tip.show(event.clientX, event.clientY, lines);
  };
  const onLeave = () => { store.point(null); tip.hide(); };
  const onClick = (event) => { const at = locate(event); if (at) { store.seekPass(at.lane, at.pass); store.select(at.lane, at.pos); } };
  tip.over(box, onMove, onLeave);
  box.addEventListener('click', onClick);
  const unwatch = store.watch(['data', 'cursor', 'sel', 'hover', 'view', 'size', 'theme'], draw);
  return {draw, destroy() { unwatch(); undrag(); view.destroy(); picture = null; box.remove(); }};
}
