/**
 * Membership strip: layers down, window positions across, each cell in the colour of its cluster; clusters that the last refresh chose
 * are lit.
 *
 * Contract: `mount(root, store, {tip}) -> {draw, destroy}`. A click picks the layer of the cluster view and the position. The gap is where the block
 * sits between prefix and suffix.
 */

import {el, layer as sheet, MONO, setFont, sharp} from './dom.js';

const LEFT = 22;
const BOTTOM = 13;

export function mount(root, store, {tip}) {
  const box = el('div', {className: 'cv'});
  root.append(box);
  const view = sharp(box, store);
  let geo = null;
  let picture = null;
  let pictureKey = '';

  /** Runs of one cluster are one rectangle; the gaps between positions are ruled over them. */
  function paint(ctx, t) {
    const {n, W, cw, rh, X, win, sel, split} = geo;
    const gx = cw > 4 ? 0.7 : 0;
    const gy = rh > 5 ? 1.2 : 0;
    for (let l = 0; l < n; l++) {
      for (let j = 0; j < W;) {
        const k = win.lab[l * W + j];
        let e = j + 1;
        while (e < W && win.lab[l * W + e] === k && X(e) - X(e - 1) < cw + 1) e++;
        const on = !sel || sel[l * win.K + k];
        ctx.globalAlpha = on ? 1 : 0.3;
        ctx.fillStyle = t.clusters[k & 7];
        const w = X(e - 1) + cw - X(j);
        ctx.fillRect(X(j), l * rh, w, rh - gy);
        if (sel && on && rh > 8) { ctx.fillStyle = t.ink; ctx.fillRect(X(j), l * rh + rh - gy - 2, w, 1.4); }
        j = e;
      }
    }
    ctx.globalAlpha = 1;
    ctx.fillStyle = t.panel;
    if (gx) for (let j = 0; j < W; j++) ctx.fillRect(X(j) + cw - gx, 0, gx, n * rh);
    setFont(ctx, `10px ${MONO}`);
    ctx.textAlign = 'right';
    const every = Math.ceil(n / Math.max(1, Math.floor((view.h - BOTTOM) / 12)));
    for (let l = 0; l < n; l += every) { ctx.fillStyle = l === store.view.layer ? t.acc : t.mut; ctx.fillText(String(l), LEFT - 6, l * rh + rh / 2); }
    ctx.strokeStyle = t.acc;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(LEFT - 2, store.view.layer * rh - 1, view.w - LEFT + 1, rh);
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'left';
    const y = view.h - 5;
    ctx.fillText(`prefix ${split === 0 ? 'none' : win.win[0]}`, LEFT, y);
    if (split > 0) ctx.fillText(`suffix ${win.win[split]}`, Math.min(X(split), view.w - 70), y);
    else if (split < 0) { ctx.textAlign = 'right'; ctx.fillText('no suffix', view.w - 2, y); }
  }

  function draw() {
    const t = store.theme;
    const ctx = view.begin();
    geo = null;
    const lane = store.focus;
    const log = store.lanes[lane];
    if (!log || !t || !view.w) return;
    const p = store.passOf(lane);
    const win = log.windowAt(p);
    if (!win) {
      setFont(ctx, `10px ${MONO}`);
      ctx.fillStyle = t.mut;
      ctx.textAlign = 'center';
      ctx.fillText(p < 0 ? '' : 'n/a', view.w / 2, view.h / 2);
      return;
    }
    const n = log.header.n_layers;
    const W = win.win.length;
    const split = win.win.findIndex((pos) => pos >= log.steps[p].s);
    const gap = split > 0 ? 8 : 0;
    const cw = (view.w - LEFT - gap - 2) / W;
    const rh = (view.h - BOTTOM) / n;
    const refresh = log.refreshOf[p];
    const sel = refresh >= 0 ? log.steps[refresh].sel : null;
    const X = (j) => LEFT + j * cw + (split > 0 && j >= split ? gap : 0);
    geo = {n, W, cw, rh, X, win, refresh, sel, split};
    const key = [store.run, lane, win.at, refresh, store.view.layer, view.w, view.h, view.dpr, store.rev.theme].join();
    if (key !== pictureKey || !picture) { pictureKey = key; picture = sheet(view, picture); paint(picture.ctx, t); }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.drawImage(picture.canvas, 0, 0);
    ctx.setTransform(view.dpr, 0, 0, view.dpr, 0, 0);
    for (const [pos, color] of [...[...store.brush.positions].map((q) => [q, t.ink]), [store.hover?.pos, t.mut], [store.sel?.pos, t.ink]]) {
      const j = pos === undefined ? -1 : win.win.indexOf(pos);
      if (j >= 0) { ctx.strokeStyle = color; ctx.strokeRect(X(j) - 0.5, -0.5, cw + 0.5, n * rh); }
    }
  }

  const locate = (event) => {
    if (!geo) return null;
    const r = view.canvas.getBoundingClientRect();
    const x = event.clientX - r.left;
    const l = Math.floor((event.clientY - r.top) / geo.rh);
    for (let j = 0; j < geo.W; j++) if (x >= geo.X(j) && x < geo.X(j) + geo.cw) return l < geo.n ? {l, j, pos: geo.win.win[j], k: geo.win.lab[l * geo.W + j]} : null;
    return null;
  };
  const onMove = (event) => {
    const at = locate(event);
    if (!at) { store.point(null); tip.hide(); return; }
    store.point({lane: store.focus, pos: at.pos});
    const lit = geo.sel && geo.sel[at.l * geo.win.K + at.k];
    tip.show(event.clientX, event.clientY, [`layer ${at.l} · position ${at.pos}`, ['cluster', `${at.k} of ${geo.win.K}`],
      ['last refresh', geo.refresh < 0 ? 'none in this block' : lit ? `chosen at pass ${geo.refresh}` : 'not chosen']]);
  };
  const onLeave = () => { store.point(null); tip.hide(); };
  const onClick = (event) => { const at = locate(event); if (at) { store.set({layer: at.l}); store.select(store.focus, at.pos); } };
  tip.over(box, onMove, onLeave);
  box.addEventListener('click', onClick);
  const unwatch = store.watch(['data', 'cursor', 'sel', 'hover', 'view', 'size', 'theme'], draw);
  return {draw, destroy() { unwatch(); view.destroy(); picture = null; box.remove(); }};
}
