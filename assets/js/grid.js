/**
 * The token grid of one lane: the tail of the prompt, then a group of lines per block, all cells of one width so that nothing moves
 * when a token lands and both lanes line up position by position.
 *
 * Contract: `mount(root, store, {lane, tip}) -> {draw, destroy}`. Reads the lane's log at the cursor; a click or the arrow keys select
 * a cell; cells carry state by fill, border and mark (see legend.js). A hidden grid of text cells with the roving focus serves screen readers.
 */

import {el, MONO, setFont, sharp, underline} from './dom.js';
import {cellLines} from './describe.js';
import {cellTexts} from './tokens.js';
import {onDrag} from './drag.js';
import {drawOverlay, overlayOf} from './overlay.js';
import {readableGrid} from './gridtext.js';

const GUTTER = 30;
const GAP = 6;

/** Columns and cell size: the most lines per block, so the widest cells, that still fit; where none fit, legible cells and a scrolling grid. */
export function layout(log, w, h) {
  const B = log.header.block_length;
  const blocks = log.header.blocks;
  const inner = w - GUTTER - 8;
  const height = (c, ch) => (blocks.reduce((n, [s, e]) => n + Math.ceil((e - s) / c), 0) + 1) * ch + (blocks.length + 1) * GAP;
  let pick = null;
  let legible = null;
  for (let lines = 1; lines <= B; lines++) {
    const c = Math.ceil(B / lines);
    const cw = Math.min(60, inner / c);
    if (cw < 30 && c > 4) continue;
    legible ??= {c, cw, ch: 17};
    const ch = [23, 21, 19, 17.5, 16, 15].find((size) => height(c, size) <= h);
    if (!ch || (pick && pick.cw > 44)) break;
    pick = {c, cw, ch};
  }
  pick ??= legible || {c: 4, cw: inner / 4, ch: 17};
  const groups = [];
  let y = GAP / 2;
  const prompt = Math.min(log.P, pick.c);
  groups.push({y, from: log.P - prompt, to: log.P, block: -1, lines: 1});
  y += pick.ch + GAP;
  blocks.forEach(([s, e], block) => {
    const lines = Math.ceil((e - s) / pick.c);
    groups.push({y, from: s, to: e, block, lines});
    y += lines * pick.ch + GAP;
  });
  return {...pick, groups, height: y - GAP / 2, promptCells: prompt};
}

export function mount(root, store, {lane, tip}) {
  const box = el('div', {className: 'cv grid-cv'});
  root.append(box);
  const view = sharp(box, store);
  const text = readableGrid(root, store, lane, () => draw());
  const fitCache = new Map();
  let L = null;
  let key = '';
  let scroll = 0;
  let hatch = null;
  let hatchKey = '';
  let followed = -1;
  let page = null;

  const log = () => store.lanes[lane];

  function fit(ctx, s, w) {
    const k = `${s}|${w | 0}`;
    let f = fitCache.get(k);
    if (f) return f;
    const full = ctx.measureText(s).width;
    if (full <= w) f = [s, full];
    else if (full * 0.64 <= w) f = [s, w];
    else {
      const chars = [...s];
      let n = chars.length - 1;
      while (n > 1 && ctx.measureText(`${chars.slice(0, n).join('')}…`).width * 0.7 > w) n--;
      f = [`${chars.slice(0, n).join('')}…`, w];
    }
    if (fitCache.size > 4000) fitCache.clear();
    fitCache.set(k, f);
    return f;
  }

  function pattern(ctx, color) {
    const k = `${color}/${view.dpr}`;
    if (k === hatchKey) return hatch;
    const size = 5 * view.dpr;
    const c = document.createElement('canvas');
    c.width = c.height = size;
    const x = c.getContext('2d');
    x.strokeStyle = color;
    x.lineWidth = view.dpr;
    for (const d of [-size, 0, size]) { x.beginPath(); x.moveTo(d, size); x.lineTo(d + size, 0); x.stroke(); }
    hatch = ctx.createPattern(c, 'repeat');
    hatch.setTransform(new DOMMatrix().scale(1 / view.dpr));
    hatchKey = k;
    return hatch;
  }

  const place = (pos) => {
    for (const group of L.groups) {
      if (pos < group.from || pos >= group.to) continue;
      const off = group.block < 0 ? L.promptCells - (group.to - group.from) : 0;
      const j = pos - group.from + off;
      return {x: GUTTER + (j % L.c) * L.cw, y: group.y + Math.floor(j / L.c) * L.ch - scroll, group};
    }
    return null;
  };

  function hit(x, y) {
    if (!L || x < GUTTER) return null;
    const col = Math.floor((x - GUTTER) / L.cw);
    if (col >= L.c) return null;
    for (const group of L.groups) {
      const line = Math.floor((y + scroll - group.y) / L.ch);
      if (line < 0 || line >= group.lines) continue;
      const pos = group.from + line * L.c + col;
      return pos < group.to ? pos : null;
    }
    return null;
  }

  const clampScroll = () => { scroll = L ? Math.max(0, Math.min(scroll, L.height - view.h)) : 0; };

  function reveal(pos, margin = 0) {
    const at = L && place(pos);
    if (!at) return;
    if (at.y - margin < 0) scroll += at.y - margin - 4;
    else if (at.y + L.ch + margin > view.h) scroll += at.y + L.ch + margin - view.h + 4;
    clampScroll();
  }

  /** Outline of the lines that hold positions [from, to). */
  function outline(ctx, from, to) {
    for (const group of L.groups) {
      const a = Math.max(from, group.from);
      const b = Math.min(to, group.to);
      if (a >= b) continue;
      const p0 = place(a);
      const p1 = place(b - 1);
      const x = p0.y === p1.y ? p0.x : GUTTER;
      const right = p0.y === p1.y ? p1.x + L.cw : GUTTER + L.c * L.cw;
      ctx.beginPath();
      ctx.roundRect(x - 2.5, p0.y - 2.5, right - x + 4, p1.y + L.ch - p0.y + 4, 5);
      ctx.stroke();
    }
  }

  /** The cells of the whole grid, kept offscreen with what each shows; position labels are drawn once. */
  function sheet(t) {
    const k = `${key}/${view.dpr}/${t.name}/${store.rev.theme}/${L.c}`;
    if (page?.key === k) return page;
    const canvas = page?.canvas || document.createElement('canvas');
    canvas.width = view.canvas.width;
    canvas.height = Math.max(view.canvas.height, Math.ceil((L.height + 2) * view.dpr));
    const ctx = canvas.getContext('2d');
    setFont(ctx, '1px sans-serif'); // a resized canvas has lost its font
    ctx.setTransform(view.dpr, 0, 0, view.dpr, 0, 0);
    ctx.textBaseline = 'middle';
    setFont(ctx, `9.5px ${MONO}`);
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'right';
    for (const group of L.groups) {
      for (let line = 0; line < group.lines; line++) {
        ctx.globalAlpha = line ? 0.55 : 1;
        ctx.fillText(String(group.from + line * L.c), GUTTER - 7, group.y + line * L.ch + L.ch / 2 - 1);
      }
    }
    ctx.globalAlpha = 1;
    setFont(ctx, `${L.ch >= 20 ? 12.5 : L.ch >= 16.5 ? 11.5 : 10.8}px ${MONO}`);
    ctx.textAlign = 'center';
    page = {key: k, canvas, ctx, keys: []};
    return page;
  }

  function drawCell(ctx, t, x, y, o) {
    const {text: s, r, fresh, after, current, prompt} = o;
    const w = L.cw - 2;
    const h = L.ch - 2.5;
    ctx.globalAlpha = 1;
    ctx.clearRect(x - 1.5, y - 1.5, L.cw, L.ch);
    ctx.globalAlpha = after ? 0.42 : 1;
    if (prompt) ctx.globalAlpha = 0.62;
    else if (r === 0) {
      ctx.globalAlpha = current ? 1 : 0.6;
      ctx.fillStyle = pattern(ctx, t.hatch);
      ctx.fillRect(x, y, w, h);
      ctx.globalAlpha = 1;
    } else {
      ctx.fillStyle = t.cell;
      ctx.beginPath();
      ctx.roundRect(x, y, w, h, 3);
      ctx.fill();
      if (fresh) { ctx.globalAlpha = after ? 0.15 : 0.24; ctx.fillStyle = t.reason[r]; ctx.fill(); ctx.globalAlpha = after ? 0.42 : 1; }
      underline(ctx, r, x + 1, y + h, w - 2, t.reason[r]);
    }
    if (s) {
      const [shown, width] = fit(ctx, s, w - 2.5);
      ctx.fillStyle = r === 0 ? t.mut : t.ink;
      ctx.fillText(shown, x + w / 2, y + h / 2 - (r ? 0.8 : 0), Math.min(width + 0.5, w - 1));
    }
    ctx.globalAlpha = 1;
    if (fresh) {
      ctx.strokeStyle = t.acc;
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      ctx.roundRect(x + 0.25, y + 0.25, w - 0.5, h - 0.5, 3);
      ctx.stroke();
    }
    if (o.shift) { // what-if: a wedge to the left, earlier; to the right, later
      ctx.fillStyle = o.shift < 0 ? t.ok : t.warn;
      const bx = o.shift < 0 ? x + 1 : x + w - 1;
      ctx.beginPath();
      ctx.moveTo(bx, y + h / 2); ctx.lineTo(bx - o.shift * 5, y + h / 2 - 4.5); ctx.lineTo(bx - o.shift * 5, y + h / 2 + 4.5);
      ctx.fill();
    }
    if (o.lit) { ctx.fillStyle = t.acc; ctx.beginPath(); ctx.arc(x + L.cw - 5.5, y + 3, 1.8, 0, 7); ctx.fill(); }
    if (o.differ) {
      ctx.fillStyle = t.bad;
      ctx.beginPath();
      ctx.moveTo(x, y); ctx.lineTo(x + 6, y); ctx.lineTo(x, y + 6);
      ctx.fill();
      if (o.differ > 1) { ctx.strokeStyle = t.bad; ctx.lineWidth = 1.5; ctx.setLineDash([2, 2]); ctx.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1); ctx.setLineDash([]); }
    }
  }

  function draw() {
    const lg = log();
    const t = store.theme;
    const ctx = view.begin();
    if (!lg || !view.w || !t) { text.sync(null); return; }
    const k = `${view.w}x${view.h}/${lg.header.length}/${lg.P}/${lg.header.block_length}/${store.run}`;
    if (k !== key) { key = k; L = layout(lg, view.w, view.h); fitCache.clear(); scroll = 0; followed = -1; }
    const p = store.passOf(lane);
    const step = lg.steps[p];
    const state = lg.stateAt(p);
    if (step && followed !== step.block && L.height > view.h) {
      followed = step.block;
      reveal(Math.min(step.e, lg.header.length) - 1, L.ch * 2 + GAP);
      reveal(step.s, GAP);
    }
    clampScroll();
    const end = lg.endOf(state);
    const texts = cellTexts(state.tok, (id) => store.token(id), (id) => store.cell(id));
    const differ = store.divergence();
    const win = lg.windowAt(p);
    const lit = new Set();
    if (win && step?.refresh && step.sel) {
      const row = store.view.layer * win.K;
      win.win.forEach((pos, j) => { if (step.sel[row + win.lab[store.view.layer * win.win.length + j]]) lit.add(pos); });
    }
    const marks = store.whatif?.lane === lane ? store.whatif.marks : null;
    const paper = sheet(t);
    for (const group of L.groups) {
      const bottom = group.y + group.lines * L.ch - scroll;
      if (bottom < 0 || group.y - scroll > view.h) continue;
      const current = !!step && group.block === step.block;
      const shift = group.block < 0 ? L.promptCells - (group.to - group.from) : 0;
      for (let pos = group.from; pos < group.to; pos++) {
        const j = pos - group.from + shift;
        const y = group.y + Math.floor(j / L.c) * L.ch;
        if (y - scroll < -L.ch || y - scroll > view.h) continue;
        const o = {text: '', ghost: '', r: 0, fresh: false, after: false, current, prompt: group.block < 0, lit: lit.has(pos), differ: 0, shift: marks?.get(pos) || 0};
        if (o.prompt) o.text = store.cell(lg.header.prompt_ids[pos]);
        else {
          const g = pos - lg.P;
          o.r = state.why[g];
          if (o.r) {
            o.text = texts[g];
            o.fresh = state.pass[g] === p;
            o.after = g >= end;
            if (differ && differ.set.has(pos)) o.differ = differ.first.pos === pos ? 2 : 1;
          } else if (current && step.am && step.am[pos - step.s] >= 0) o.text = o.ghost = store.cell(step.am[pos - step.s]);
        }
        const k = `${o.text}|${o.r}${o.fresh}${o.after}${current}${o.lit}${o.differ}${o.shift}`;
        if (paper.keys[pos] === k) continue;
        paper.keys[pos] = k;
        drawCell(paper.ctx, t, GUTTER + (j % L.c) * L.cw, y, o);
      }
    }
    ctx.drawImage(paper.canvas, 0, Math.round(scroll * view.dpr), view.canvas.width, view.canvas.height, 0, 0, view.w, view.h);
    ctx.save();
    ctx.beginPath();
    ctx.rect(0, 0, view.w, view.h);
    ctx.clip();
    if (win) {
      ctx.strokeStyle = t.mut;
      ctx.lineWidth = 1;
      ctx.setLineDash([3, 3]);
      const w = win.win;
      for (let a = 0; a < w.length;) { let b = a + 1; while (b < w.length && w[b] === w[b - 1] + 1) b++; outline(ctx, w[a], w[b - 1] + 1); a = b; }
      ctx.setLineDash([]);
    }
    if (step) { ctx.strokeStyle = t.acc; ctx.lineWidth = 1.5; outline(ctx, step.s, step.e); }
    if (step && (store.view.tab === 'method' || store.view.overlay)) drawOverlay(ctx, t, overlayOf(lg, p), place, {cw: L.cw, ch: L.ch, outline});
    const ring = (pos, color, width) => {
      const at = place(pos);
      if (!at) return;
      ctx.strokeStyle = color;
      ctx.lineWidth = width;
      ctx.beginPath();
      ctx.roundRect(at.x - 1, at.y - 1, L.cw, L.ch - 0.5, 4);
      ctx.stroke();
    };
    if (store.hover && store.hover.pos !== undefined) ring(store.hover.pos, t.mut, 1.2);
    const {positions, passes} = store.brush;
    for (const pos of positions) ring(pos, t.ink, 1.3);
    if (passes && lane === store.focus) {
      for (const group of L.groups) for (let pos = group.block < 0 ? group.to : group.from; pos < group.to; pos++) {
        const at = lg.head.pass[pos - lg.P];
        if (at < passes[0] || at > passes[1]) continue;
        const {x, y} = place(pos);
        ctx.fillStyle = t.acc;
        ctx.fillRect(x, y - 1.5, L.cw - 2, 1.5);
      }
    }
    if (store.sel) ring(store.sel.pos, t.ink, store.sel.lane === lane ? 2.2 : 1);
    if (L.height > view.h + 1) {
      ctx.fillStyle = t.line;
      const bar = (view.h / L.height) * view.h;
      ctx.beginPath();
      ctx.roundRect(view.w - 4, (scroll / L.height) * view.h, 3, bar, 1.5);
      ctx.fill();
    }
    ctx.restore();
    text.sync(lg, p, L.c);
  }

  const local = (event) => { const r = view.canvas.getBoundingClientRect(); return hit(event.clientX - r.left, event.clientY - r.top); };
  const onMove = (event) => {
    const pos = local(event);
    if (pos === null || !log()) { store.point(null); tip.hide(); return; }
    store.point({lane, pos});
    tip.show(event.clientX, event.clientY, cellLines(store, log(), store.passOf(lane), pos));
  };
  const onLeave = () => { store.point(null); tip.hide(); };
  const onClick = (event) => {
    const pos = local(event);
    if (pos === null) return;
    if (event.shiftKey) store.extend(lane, pos);
    else if (event.ctrlKey || event.metaKey) store.toggle(lane, pos);
    else { store.select(lane, pos); text.focus(pos); }
  };
  const undrag = onDrag(box, view, (x0, y0, x1, y1) => {
    const a = hit(x0, y0);
    const b = hit(x1, y1);
    if (a === null || b === null) return;
    const list = [];
    for (let p = Math.min(a, b); p <= Math.max(a, b); p++) list.push(p);
    store.setBrush({positions: list, lane});
  });
  const onWheel = (event) => {
    if (!L || L.height <= view.h) return;
    const before = scroll;
    scroll += event.deltaY;
    clampScroll();
    if (scroll !== before) { event.preventDefault(); draw(); }
  };
  tip.over(box, onMove, onLeave);
  box.addEventListener('click', onClick);
  box.addEventListener('wheel', onWheel, {passive: false});
  const unwatch = store.watch(['data', 'cursor', 'sel', 'hover', 'view', 'size', 'theme'], () => {
    if (store.sel && store.sel.lane === lane && L && store.sel.pos !== reveal.last) { reveal.last = store.sel.pos; reveal(store.sel.pos); }
    draw();
  });
  return {draw, hit, place: (pos) => place(pos), layout: () => L, destroy() { unwatch(); undrag(); view.destroy(); if (page) page.canvas.width = page.canvas.height = 1; page = null; text.destroy(); box.remove(); root.replaceChildren(); }};
}
