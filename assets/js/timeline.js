/**
 * Refresh timeline of the focused lane, on the heatmap's pass axis: rows recomputed per pass by kind, and the token counts N and M against
 * τ_upd.
 *
 * Contract: `mount(root, store, {tip, onRule}) -> {draw, destroy}`; `onRule(text)` gets which rule fired at the cursor. Kinds differ by colour and form:
 * entry-full filled, entry-window hatched, refresh filled with a wedge on top, reuse a low bar.
 */

import {el, layer, MONO, setFont, sharp} from './dom.js';
import {onDrag} from './drag.js';
import {shade} from './heatmap.js';
import {noRefresh, passRule} from './describe.js';
import {nameOf} from './params.js';
import {passAxis} from './passaxis.js';

const TOP = 8;
const COUNT = 26;

const packetRows = (step) => { if (!step.prows) return 0; let n = 0; for (const r of step.prows) n += r; return n / step.prows.length; };

/** τ_upd as [[pass from which it holds, value], ...]: the header's, and every change during the run. */
export function thresholds(log) {
  const out = [[0, Number(log.header.config.tau_upd)]];
  for (const step of log.steps) for (const [name, , value] of step.changes) if (name === 'tau_upd') out.push([step.i, Number(value)]);
  return out;
}

export function mount(root, store, {tip, onRule}) {
  const box = el('div', {className: 'cv'});
  root.append(box);
  const view = sharp(box, store);
  let picture = null;
  let key = '';
  let ax = null;

  function paint(log, t) {
    picture = layer(view, picture);
    const {ctx} = picture;
    ax = passAxis(store, view.w);
    const h = view.h - TOP - COUNT - 8;
    const base = TOP + h;
    const L = log.header.length;
    setFont(ctx, `10px ${MONO}`);
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'right';
    ctx.fillText(String(L), ax.left - 5, TOP + 2);
    ctx.fillText('rows', ax.left - 5, base - 5);
    ctx.fillStyle = t.line;
    ctx.fillRect(ax.left, base, ax.right - ax.left, 1);
    const gap = ax.cw > 5 ? 1 : 0;
    for (const step of log.steps) {
      const x = ax.x(step.i);
      const w = Math.max(0.6, ax.cw - gap);
      const main = Math.max(2, (step.rows / L) * h);
      if (step.kind === 'entry-full') { ctx.fillStyle = t.acc; ctx.fillRect(x, base - main, w, main); } else if (step.kind === 'entry-window') {
        ctx.fillStyle = t.acc;
        ctx.globalAlpha = 0.3;
        ctx.fillRect(x, base - main, w, main);
        ctx.globalAlpha = 1;
        for (let y = base - main; y < base; y += 4) ctx.fillRect(x, y, w, 1.5);
      } else {
        ctx.fillStyle = step.refresh ? t.drift : t.forced;
        ctx.globalAlpha = step.refresh ? 1 : 0.55;
        ctx.fillRect(x, base - main, w, main);
        ctx.globalAlpha = 1;
        if (step.refresh) {
          const extra = (packetRows(step) / L) * h;
          ctx.fillStyle = t.drift;
          ctx.globalAlpha = 0.45;
          ctx.fillRect(x, base - main - extra, w, extra);
          ctx.globalAlpha = 1;
          const top = base - main - extra - 1;
          ctx.beginPath(); ctx.moveTo(x + w / 2, top - 4); ctx.lineTo(x + w / 2 + 3, top); ctx.lineTo(x + w / 2 - 3, top); ctx.fill();
        }
      }
      if (step.changes.length) { ctx.fillStyle = t.ink; ctx.beginPath(); const cx = x + w / 2; ctx.moveTo(cx, 0); ctx.lineTo(cx + 3, 4); ctx.lineTo(cx, 8); ctx.lineTo(cx - 3, 4); ctx.fill(); }
    }
    counts(ctx, t, log, base + 6);
  }

  /** N as dots, M as steps, τ_upd as a line; both triggers compare with >. */
  function counts(ctx, t, log, top) {
    const taus = thresholds(log);
    const tau = taus[taus.length - 1][1];
    const some = log.steps.some((s) => s.M !== null || s.N !== null);
    ctx.textAlign = 'right';
    ctx.fillStyle = t.mut;
    ctx.fillText('tokens', ax.left - 5, top + COUNT / 2);
    if (!some) { ctx.textAlign = 'left'; ctx.fillText(noRefresh(log), ax.left + 4, top + COUNT / 2); return; }
    const most = Math.max(8, ...taus.map(([, v]) => (Number.isFinite(v) ? v * 2.5 : 0)));
    const y = (v) => top + COUNT - Math.min(1, v / most) * COUNT;
    if (Number.isFinite(tau)) {
      ctx.strokeStyle = t.mut;
      ctx.setLineDash([3, 3]);
      ctx.beginPath();
      taus.forEach(([i, v], k) => { ctx.lineTo(ax.x(i), y(v)); ctx.lineTo(k + 1 < taus.length ? ax.x(taus[k + 1][0]) : ax.right, y(v)); });
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.textAlign = 'left';
      ctx.fillText(`τ_upd ${tau}`, ax.right + 6, y(tau));
    }
    ctx.strokeStyle = t.drift;
    ctx.lineWidth = 1.4;
    ctx.beginPath();
    let pen = false;
    for (const s of log.steps) {
      if (s.M === null) { pen = false; continue; }
      const x = ax.x(s.i);
      if (pen) ctx.lineTo(x, y(s.M)); else ctx.moveTo(x, y(s.M));
      ctx.lineTo(x + ax.cw, y(s.M));
      pen = true;
    }
    ctx.stroke();
    ctx.fillStyle = t.conf;
    for (const s of log.steps) if (s.N !== null) { const r = Math.min(2.2, Math.max(0.8, ax.cw / 2)); ctx.beginPath(); ctx.arc(ax.x(s.i) + ax.cw / 2, y(s.N), r, 0, 7); ctx.fill(); }
  }

  function draw() {
    const t = store.theme;
    const ctx = view.begin();
    const log = store.lanes[store.focus];
    if (!log || !t || !view.w) { onRule(''); return; }
    const k = [store.run, store.focus, log.n, log.status, view.w, view.h, view.dpr, t.name, store.rev.theme].join();
    if (k !== key) { key = k; paint(log, t); }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.drawImage(picture.canvas, 0, 0);
    ctx.setTransform(view.dpr, 0, 0, view.dpr, 0, 0);
    const p = store.passOf(store.focus);
    if (p >= 0) {
      ctx.strokeStyle = t.acc;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(ax.x(p) - 1, 1, Math.max(2, ax.cw) + 1, view.h - 2);
    }
    if (store.brush.passes) shade(ctx, t, ax, store.brush.passes, 1, view.h - 2);
    const step = log.steps[p];
    onRule(step ? `pass ${p}: ${passRule(step)} · ${step.rows} rows${step.prows ? ` + ${Math.round(packetRows(step))} in packets` : ''}` : '');
  }

  const passAt = (event) => {
    const log = store.lanes[store.focus];
    if (!ax || !log) return -1;
    const i = ax.at(event.clientX - view.canvas.getBoundingClientRect().left);
    return i >= 0 && i < log.n ? i : -1;
  };
  const onMove = (event) => {
    const i = passAt(event);
    if (i < 0) { tip.hide(); return; }
    const s = store.lanes[store.focus].steps[i];
    const lines = [`pass ${i} · block ${s.block}`, passRule(s), ['rows recomputed', String(s.rows)]];
    if (s.prows) lines.push(['packet rows by layer', [...s.prows].join(' ')]);
    if (s.N !== null) lines.push(['N, tokens of last pass', String(s.N)]);
    if (s.M !== null) lines.push(['M, since last refresh', String(s.M)]);
    if (Number.isFinite(s.dt)) lines.push(['time', `${(s.dt * 1000).toFixed(1)} ms`]);
    for (const [name, was, now] of s.changes) lines.push([`${nameOf(store.lanes[store.focus], name)} changed`, `${was} → ${now}`]);
    tip.show(event.clientX, event.clientY, lines);
  };
  const onLeave = () => tip.hide();
  const onClick = (event) => { const i = passAt(event); if (i >= 0) store.seekPass(store.focus, i); };
  tip.over(box, onMove, onLeave);
  box.addEventListener('click', onClick);
  const undrag = onDrag(box, view, (x0, y0, x1) => {
    const log = store.lanes[store.focus];
    if (!ax || !log) return;
    const pass = (x) => Math.max(0, Math.min(log.n - 1, ax.at(x)));
    store.setBrush({passes: [pass(x0), pass(x1)]});
  });
  const unwatch = store.watch(['data', 'cursor', 'sel', 'view', 'size', 'theme'], draw);
  return {draw, destroy() { unwatch(); undrag(); view.destroy(); picture = null; box.remove(); }};
}
