/**
 * The local window's hidden states at one layer, as points: colour and shape by cluster, centroids numbered, the clusters that
 * the last refresh chose lit.
 *
 * Contract: `mount(root, store, {tip}) -> {draw, destroy}`. PCA coordinates come with the steps (level full); UMAP is asked for once per layer and
 * drawn when it is there, PCA meanwhile. One scale for the whole run and layer, so points do not jump. Axes have no unit.
 */

import {array} from './codec.js';
import {onDrag} from './drag.js';
import {el, layer as sheet, MONO, setFont, shape, sharp} from './dom.js';
import {tokenName} from './describe.js';

const PAD = 14;

const decode = (text) => array(text, 'f32');

function wrap(ctx, text, x, y, width) {
  const lines = [''];
  for (const word of text.split(' ')) {
    const next = `${lines[lines.length - 1]} ${word}`.trim();
    if (ctx.measureText(next).width > width && lines[lines.length - 1]) lines.push(word); else lines[lines.length - 1] = next;
  }
  lines.forEach((line, i) => ctx.fillText(line, x, y + (i - (lines.length - 1) / 2) * 16));
}

/** A window position: filled for the prefix, open for the suffix. */
function shapeDot(ctx, t, k, x, y, open) {
  shape(ctx, k, x, y, 4);
  ctx.fillStyle = open ? t.panel : t.clusters[k & 7];
  ctx.fill();
  ctx.strokeStyle = open ? t.clusters[k & 7] : t.panel;
  ctx.lineWidth = open ? 1.8 : 0.7;
  ctx.stroke();
}

export function mount(root, store, {tip, onNote}) {
  const box = el('div', {className: 'cv'});
  root.append(box);
  const view = sharp(box, store);
  const bounds = new Map();
  let dots = [];
  let picture = null;
  let pictureKey = '';
  let lasso = null;

  /** Window, coordinates and selection in force at the cursor; null with the reason where there are none. */
  function scene(log, lane) {
    const p = store.passOf(lane);
    const win = log.windowAt(p);
    if (!win) return {why: p < 0 ? '' : `${log.header.title || log.header.method} keeps no clusters`};
    const n = log.header.n_layers;
    const W = win.win.length;
    const at = log.pointsOf[p];
    const layer = Math.min(store.view.layer, n - 1);
    const refresh = log.refreshOf[p];
    const lit = (k) => refresh >= 0 && !!log.steps[refresh].sel?.[layer * win.K + k];
    const scores = refresh >= 0 ? log.steps[refresh].cs : null;
    const out = {p, win, W, layer, refresh, lit, score: (k) => scores?.[layer * win.K + k], label: (j) => win.lab[layer * W + j], note: ''};
    if (store.view.proj === 'umap') {
      const frames = store.wantPoints(lane, layer, 'umap');
      const frame = frames && [...frames].reverse().find((f) => f.i <= p && f.i >= win.at);
      if (frame) {
        frame.points ??= decode(frame.xy);
        return {...out, at: frame.i, xy: frame.points, offset: 0, key: `${store.run}/${lane}/${layer}/umap`, all: () => frames.map((f) => (f.points ??= decode(f.xy)))};
      }
      out.note = frames ? 'no UMAP for this pass; PCA' : 'UMAP is being computed; PCA meanwhile';
    }
    if (at < 0) return {...out, why: `hidden states are kept at level full; this run has level ${log.header.level || 'steps'}`};
    const size = (W + win.K) * 2;
    return {...out, at, xy: log.steps[at].pts, offset: layer * size, key: `${store.run}/${lane}/${layer}/pca`,
      all: () => log.steps.filter((s) => s.pts).map((s) => s.pts.subarray(layer * (s.pts.length / n), (layer + 1) * (s.pts.length / n)))};
  }

  function frame(sc, log) {
    const k = `${sc.key}/${log.status === 'open' ? Math.round(4 * Math.log2(log.pointsOf.length)) : 'end'}`;
    let b = bounds.get(k);
    if (b) return b;
    const xs = [];
    const ys = [];
    for (const pts of sc.all()) for (let i = 0; i + 1 < pts.length; i += 2) if (Number.isFinite(pts[i]) && Number.isFinite(pts[i + 1])) { xs.push(pts[i]); ys.push(pts[i + 1]); }
    // A few far points must not squeeze the rest: the frame holds 96 % of the run's points, the others sit on its edge.
    const range = (a) => {
      if (!a.length) return [-1, 1];
      a.sort((x, y) => x - y);
      const lo = a[Math.floor(a.length * 0.02)];
      const hi = a[Math.floor((a.length - 1) * 0.98)];
      const pad = (hi - lo) * 0.04;
      return hi - lo < 1e-9 ? [lo - 1, hi + 1] : [lo - pad, hi + pad];
    };
    b = {x: range(xs), y: range(ys), key: k};
    if (bounds.size > 60) bounds.clear();
    bounds.set(k, b);
    return b;
  }

  function draw() {
    const t = store.theme;
    const ctx = view.begin();
    const lane = store.focus;
    const log = store.lanes[lane];
    if (!log || !t || !view.w) { dots = []; return; }
    const sc = scene(log, lane);
    onNote(sc.note || '');
    if (sc.why !== undefined) {
      dots = [];
      ctx.fillStyle = t.mut;
      setFont(ctx, '12px system-ui, sans-serif');
      ctx.textAlign = 'center';
      wrap(ctx, sc.why, view.w / 2, view.h / 2, view.w - 40);
      return;
    }
    const b = frame(sc, log);
    const k = [sc.key, sc.at, sc.win.at, sc.refresh, view.w, view.h, view.dpr, store.rev.theme, b.key].join();
    if (k !== pictureKey || !picture) { pictureKey = k; picture = sheet(view, picture); paint(picture.ctx, t, log, sc, b); }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.drawImage(picture.canvas, 0, 0);
    ctx.setTransform(view.dpr, 0, 0, view.dpr, 0, 0);
    const ring = (pos, color) => { const d = dots.find((q) => q.pos === pos); if (d) { ctx.strokeStyle = color; ctx.lineWidth = 2; ctx.beginPath(); ctx.arc(d.x, d.y, 7.5, 0, 7); ctx.stroke(); } };
    if (store.hover?.pos !== undefined) ring(store.hover.pos, t.mut);
    for (const pos of store.brush.positions) ring(pos, t.ink);
    if (lasso) { ctx.strokeStyle = t.acc; ctx.lineWidth = 1; ctx.setLineDash([3, 3]); ctx.strokeRect(...lasso); ctx.setLineDash([]); }
    if (store.sel) ring(store.sel.pos, t.ink);
  }

  function paint(ctx, t, log, sc, b) {
    dots = [];
    const share = (v, [lo, hi]) => Math.max(-0.02, Math.min(1.02, (v - lo) / (hi - lo)));
    const X = (v) => PAD + share(v, b.x) * (view.w - 2 * PAD);
    const Y = (v) => view.h - PAD - share(v, b.y) * (view.h - 2 * PAD);
    ctx.strokeStyle = t.line;
    ctx.lineWidth = 1;
    if (b.x[0] < 0 && b.x[1] > 0) { ctx.beginPath(); ctx.moveTo(X(0), 4); ctx.lineTo(X(0), view.h - 4); ctx.stroke(); }
    if (b.y[0] < 0 && b.y[1] > 0) { ctx.beginPath(); ctx.moveTo(4, Y(0)); ctx.lineTo(view.w - 4, Y(0)); ctx.stroke(); }
    const anyLit = sc.refresh >= 0;
    const prefixEnd = log.steps[sc.p].s;
    for (let j = 0; j < sc.W; j++) {
      const x = X(sc.xy[sc.offset + 2 * j]);
      const y = Y(sc.xy[sc.offset + 2 * j + 1]);
      if (!Number.isFinite(x + y)) continue;
      const k = sc.label(j);
      ctx.globalAlpha = !anyLit || sc.lit(k) ? 1 : 0.4;
      shapeDot(ctx, t, k, x, y, sc.win.win[j] >= prefixEnd);
      dots.push({x, y, pos: sc.win.win[j], k, j});
    }
    ctx.globalAlpha = 1;
    const taken = [];
    for (let k = 0; k < sc.win.K; k++) {
      const x = X(sc.xy[sc.offset + 2 * (sc.W + k)]);
      const y = Y(sc.xy[sc.offset + 2 * (sc.W + k) + 1]);
      if (!Number.isFinite(x + y)) continue;
      const on = sc.lit(k);
      const near = taken.filter((q) => Math.hypot(q.x - x, q.y - y) < 15).length;
      taken.push({x, y});
      const cx = Math.max(10, Math.min(view.w - 10, x + near * 15));
      ctx.fillStyle = t.panel;
      ctx.strokeStyle = on ? t.acc : t.mut;
      ctx.lineWidth = on ? 2.4 : 1.2;
      ctx.beginPath(); ctx.arc(cx, y, 8, 0, 7); ctx.fill(); ctx.stroke();
      ctx.fillStyle = on ? t.ink : t.mut;
      setFont(ctx, `${on ? 'bold ' : ''}10.5px ${MONO}`);
      ctx.textAlign = 'center';
      ctx.fillText(String(k), cx, y + 0.5);
      dots.push({x: cx, y, centroid: k});
    }
  }

  const nearest = (event) => {
    const r = view.canvas.getBoundingClientRect();
    let best = null;
    let d2 = 140;
    for (const d of dots) { const q = (d.x - event.clientX + r.left) ** 2 + (d.y - event.clientY + r.top) ** 2; if (q < d2) { d2 = q; best = d; } }
    return best;
  };
  const onMove = (event) => {
    const d = nearest(event);
    const log = store.lanes[store.focus];
    if (!d || !log) { store.point(null); tip.hide(); return; }
    const sc = scene(log, store.focus);
    if (d.centroid !== undefined) {
      let members = 0;
      for (let j = 0; j < sc.W; j++) if (sc.label(j) === d.centroid) members++;
      const s = sc.score(d.centroid);
      store.point(null);
      tip.show(event.clientX, event.clientY, [`centroid ${d.centroid} · layer ${sc.layer}`, ['members', String(members)],
        ['drift score', Number.isFinite(s) ? `${s.toPrecision(3)} nats` : 'n/a'], ['last refresh', sc.refresh < 0 ? 'none in this block' : sc.lit(d.centroid) ? `chosen at pass ${sc.refresh}` : 'not chosen']]);
      return;
    }
    store.point({lane: store.focus, pos: d.pos});
    const state = log.stateAt(store.passOf(store.focus));
    tip.show(event.clientX, event.clientY, [`position ${d.pos}`, ['token', tokenName(store, log.tokenAt(state, d.pos))], ['cluster', `${d.k} of ${sc.win.K}${sc.lit(d.k) ? ', refreshed' : ''}`]]);
  };
  const undrag = onDrag(box, view, (x0, y0, x1, y1) => {
    const [l, r, u, d] = [Math.min(x0, x1), Math.max(x0, x1), Math.min(y0, y1), Math.max(y0, y1)];
    lasso = [l, u, r - l, d - u];
    store.setBrush({positions: dots.filter((q) => q.pos !== undefined && q.x >= l && q.x <= r && q.y >= u && q.y <= d).map((q) => q.pos).sort((a, b) => a - b)});
    draw();
  }, () => { lasso = null; draw(); });
  const onLeave = () => { store.point(null); tip.hide(); };
  const onClick = (event) => { const d = nearest(event); if (d?.pos !== undefined) store.select(store.focus, d.pos); };
  tip.over(box, onMove, onLeave);
  box.addEventListener('click', onClick);
  const unwatch = store.watch(['data', 'cursor', 'sel', 'hover', 'view', 'size', 'theme'], draw);
  return {draw, destroy() { unwatch(); undrag(); view.destroy(); picture = null; bounds.clear(); box.remove(); }};
}
