/**
 * The life of a token as two small charts over passes: confidence against τ_s, and drift δ, its mean, Δ and the gate in nats.
 *
 * Contract: `life(log, pos)` collects the series (NaN where they do not exist); `drawLife(view, t, series, at, cursor)` draws them.
 */

import {layer, MONO, setFont} from './dom.js';
import {paramsAt} from './params.js';

/** Series of a position over the passes of its block. */
export function life(log, pos) {
  const passes = log.steps.filter((s) => pos >= s.s && pos < s.e);
  const read = (a, s) => (a ? a[pos - s.s] : NaN);
  return {
    x: passes.map((s) => s.i),
    conf: passes.map((s) => read(s.conf, s)),
    am: passes.map((s) => (s.am ? s.am[pos - s.s] : -1)),
    drift: passes.map((s) => read(s.drift, s)),
    delta: passes.map((s) => read(s.delta, s)),
    mean: passes.map((s) => read(s.drift, s) - read(s.delta, s)),
    gate: passes.map((s) => read(s.gate, s)),
    tau: passes.map((s) => Number(paramsAt(log, s.i).tau_s)),
  };
}

const LEFT = 30;
const RIGHT = 8;

export function drawLife(view, t, s, commit, cursor, onlyConf) {
  const screen = view.begin();
  const n = s.x.length;
  if (!n) return;
  // Text on a canvas in the page makes the browser bring its styles up to date first; one outside it does not.
  view.picture = layer(view, view.picture);
  const {ctx} = view.picture;
  const x0 = s.x[0];
  const x1 = Math.max(s.x[n - 1], x0 + 4);
  const X = (i) => LEFT + ((i - x0) / (x1 - x0)) * (view.w - LEFT - RIGHT);
  setFont(ctx, `10px ${MONO}`);
  const half = onlyConf ? view.h - 14 : (view.h - 14) * 0.44;
  const panels = [{top: 15, h: half - 17, hi: 1, lines: [['conf', t.conf, [], 2, 'confidence'], ['tau', t.mut, [4, 3], 1, 'τ_s']]}];
  if (!onlyConf) {
    let hi = 0.5;
    for (const k of ['drift', 'delta']) for (const v of s[k]) if (Number.isFinite(v)) hi = Math.max(hi, v);
    for (const k of ['gate']) for (const v of s[k]) if (Number.isFinite(v)) hi = Math.max(hi, Math.min(v, 2));
    panels.push({top: half + 16, h: view.h - 14 - half - 17, hi: hi * 1.08, lines: [['gate', t.mut, [4, 3], 1.4, 'gate'], ['mean', t.drift, [1.5, 2], 1.2, 'mean'], ['drift', t.drift, [], 1.2, 'δ'], ['delta', t.suf, [], 2, 'Δ']]});
  }
  for (const p of panels) {
    const Y = (v) => p.top + p.h - (Math.max(0, Math.min(p.hi, v)) / p.hi) * p.h;
    ctx.strokeStyle = t.line;
    ctx.lineWidth = 1;
    ctx.beginPath(); ctx.moveTo(LEFT, p.top); ctx.lineTo(LEFT, p.top + p.h); ctx.lineTo(view.w - RIGHT, p.top + p.h); ctx.stroke();
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'right';
    ctx.fillText(p.hi === 1 ? '1' : p.hi.toFixed(p.hi < 1 ? 2 : 1), LEFT - 4, p.top + 4);
    ctx.fillText('0', LEFT - 4, p.top + p.h - 3);
    for (const [key, color, dash, width] of p.lines) {
      ctx.strokeStyle = ctx.fillStyle = color;
      ctx.lineWidth = width;
      ctx.setLineDash(dash);
      ctx.beginPath();
      let pen = false;
      s[key].forEach((v, i) => {
        if (!Number.isFinite(v)) { pen = false; return; }
        if (pen) ctx.lineTo(X(s.x[i]), Y(v)); else ctx.moveTo(X(s.x[i]), Y(v));
        if (key !== 'tau' && (n <= 10 || (!pen && !Number.isFinite(s[key][i + 1])))) ctx.fillRect(X(s.x[i]) - 2, Y(v) - 2, 4, 4);
        pen = true;
      });
      ctx.stroke();
      ctx.setLineDash([]);
    }
    let lx = LEFT + 2;
    ctx.textAlign = 'left';
    for (const [, color, dash, width, label] of p.lines) {
      ctx.strokeStyle = color;
      ctx.lineWidth = Math.max(1.5, width);
      ctx.setLineDash(dash);
      ctx.beginPath(); ctx.moveTo(lx, p.top - 9); ctx.lineTo(lx + 12, p.top - 9); ctx.stroke();
      ctx.setLineDash([]);
      ctx.fillStyle = t.mut;
      ctx.fillText(label, lx + 15, p.top - 8.5);
      lx += 21 + ctx.measureText(label).width + 6;
    }
    if (commit >= x0 && commit <= x1) { ctx.fillStyle = t.ink; ctx.fillRect(X(commit) - 0.75, p.top, 1.5, p.h); }
    if (cursor >= x0 && cursor <= x1 && cursor !== commit) { ctx.fillStyle = t.acc; ctx.globalAlpha = 0.7; ctx.fillRect(X(cursor) - 0.5, p.top, 1, p.h); ctx.globalAlpha = 1; }
  }
  ctx.fillStyle = t.mut;
  const mark = (i, align) => { ctx.textAlign = align; ctx.fillText(String(i), X(i), view.h - 5); };
  mark(x0, 'left');
  if (s.x[n - 1] !== x0) mark(s.x[n - 1], 'right');
  if (commit > x0 + (x1 - x0) * 0.12 && commit < s.x[n - 1] - (x1 - x0) * 0.12) mark(commit, 'center');
  screen.setTransform(1, 0, 0, 1, 0, 0);
  screen.drawImage(view.picture.canvas, 0, 0);
}
