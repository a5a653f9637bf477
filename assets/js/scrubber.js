/**
 * The scrubber: one track per lane on the alignment axis, commits of each pass stacked by reason, refreshes and block entries
 * marked, one cursor. Works while the run goes and after, without the server.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`. Drag or click moves the cursor; the track is a slider for keyboard and screen reader.
 */

import {REASONS} from './codec.js';
import {el, icon, layer, MONO, say, select, setFont, sharp} from './dom.js';

const LEFT = 22;
const RIGHT = 12;

export function mount(root, store, {play}) {
  const button = (name, title, act) => el('button', {type: 'button', className: 'ib', title, 'aria-label': title, on: {click: act}}, icon(name));
  const playButton = button('play', 'Play the recording (space)', () => play.toggle());
  const where = el('span', {className: 'where'});
  const follow = el('button', {type: 'button', className: 'follow', text: 'follow', title: 'Stay at the last pass (End)', on: {click: () => store.end()}});
  const speed = select('Passes a second when playing', [[2, '2/s'], [8, '8/s'], [24, '24/s'], [60, '60/s']], () => store.view.speed, (v) => store.set({speed: Number(v)}));
  const box = el('div', {className: 'cv', role: 'slider', tabIndex: 0, 'aria-label': 'Pass cursor', 'aria-valuemin': '0'});
  root.append(el('div', {className: 'scrub-buttons'},
    el('div', {className: 'row'}, button('first', 'First pass (Home)', () => store.home()), button('back', 'Back one pass (left arrow)', () => store.move(-1)), playButton,
      button('next', 'Forward one pass (right arrow)', () => store.move(1)), button('last', 'Last pass (End)', () => store.end())),
    el('div', {className: 'row'}, where, el('span', {className: 'sp'}), speed.node, follow)), box);
  const view = sharp(box, store);
  let picture = null;
  let key = '';

  const span = () => { const t = store.ticks(); return t.length ? Math.max(t[t.length - 1], 1e-9) : 1; };
  const room = () => (store.view.align === 'pass' && store.open.some((l) => store.lanes[l].status === 'open') ? Math.max(40, Math.ceil((span() + 2) / 20) * 20) : span());
  const unit = () => (store.view.align === 'pass' ? (view.w - LEFT - RIGHT) / (room() + 1) : 0);
  const X = (v) => LEFT + unit() / 2 + (v / room()) * (view.w - LEFT - RIGHT - unit());

  function paint(t) {
    picture = layer(view, picture);
    const {ctx} = picture;
    const lanes = store.open;
    const th = (view.h - 16) / lanes.length;
    setFont(ctx, `10px ${MONO}`);
    lanes.forEach((lane, row) => {
      const log = store.lanes[lane];
      const base = 2 + (row + 1) * th - 6;
      const top = 2 + row * th + 3;
      ctx.fillStyle = t.mut;
      ctx.textAlign = 'center';
      ctx.fillText(lane, 9, (top + base) / 2);
      ctx.fillStyle = t.line;
      ctx.fillRect(LEFT, base, view.w - LEFT - RIGHT, 1);
      let most = 4;
      for (const s of log.steps) most = Math.max(most, Math.min(12, s.commits.length));
      const w = Math.max(1, Math.min(7, (unit() || (view.w - LEFT - RIGHT) / (log.n + 1)) - 1));
      let block = -1;
      for (const s of log.steps) {
        const x = X(store.axis(log, s.i));
        if (s.block !== block) { block = s.block; if (s.i) { ctx.fillStyle = t.mut; ctx.globalAlpha = 0.5; ctx.fillRect(x - w / 2 - 1, top - 2, 1, base - top + 5); ctx.globalAlpha = 1; } }
        const counts = new Array(REASONS.length).fill(0);
        for (const c of s.commits) counts[c.r]++;
        const scale = Math.min(1, most / Math.max(1, s.commits.length)) * ((base - top) / most);
        let y = base;
        for (let r = 1; r < counts.length; r++) { if (!counts[r]) continue; const h = counts[r] * scale; ctx.fillStyle = t.reason[r]; ctx.fillRect(x - w / 2, y - h, w, Math.max(1, h - 0.5)); y -= h; }
        if (s.refresh) { ctx.fillStyle = t.drift; ctx.beginPath(); ctx.moveTo(x, base + 1.5); ctx.lineTo(x + 2.5, base + 5.5); ctx.lineTo(x - 2.5, base + 5.5); ctx.fill(); }
      }
    });
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'center';
    const max = room();
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].map((s) => (store.view.align === 'time' ? s / 100 : s)).find((s) => ((view.w - LEFT - RIGHT) / max) * s > 46) || max;
    for (let v = 0; v <= max + 1e-9; v += step) ctx.fillText(store.view.align === 'time' ? `${v.toFixed(step < 0.1 ? 2 : 1)} s` : String(Math.round(v)), X(v), view.h - 6);
    for (const lane of lanes) for (const note of store.notes[lane]) { // a pin for each note
      if (note.pass < 0 || note.pass >= store.lanes[lane].n) continue;
      const x = X(store.axis(store.lanes[lane], note.pass));
      const y = 2 + lanes.indexOf(lane) * th + 3;
      ctx.fillStyle = t.warn;
      ctx.beginPath(); ctx.arc(x, y, 3, 0, 7); ctx.fill();
      ctx.fillRect(x - 0.5, y, 1, 8);
    }
    const d = store.divergence();
    if (d?.first) {
      const lane = store.lanes.A.head.pass[d.first.g] >= store.lanes.B.head.pass[d.first.g] ? 'A' : 'B';
      const x = X(store.axis(store.lanes[lane], d.first.pass));
      ctx.strokeStyle = t.bad;
      ctx.setLineDash([2, 2]);
      ctx.beginPath(); ctx.moveTo(x, 0); ctx.lineTo(x, view.h - 14); ctx.stroke();
      ctx.setLineDash([]);
    }
  }

  function draw() {
    const t = store.theme;
    const ctx = view.begin();
    const ticks = store.ticks();
    const face = store.playing ? 'pause' : 'play';
    if (playButton.dataset.face !== face) { playButton.dataset.face = face; playButton.replaceChildren(icon(face)); }
    if (follow.getAttribute('aria-pressed') !== String(store.follow)) follow.setAttribute('aria-pressed', String(store.follow));
    if (!ticks.length || !t || !view.w) { say(where, ''); return; }
    const k = [store.run, store.rev.data, store.rev.notes, view.w, view.h, view.dpr, t.name, store.rev.theme, store.view.align].join();
    if (k !== key) { key = k; paint(t); }
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.drawImage(picture.canvas, 0, 0);
    ctx.setTransform(view.dpr, 0, 0, view.dpr, 0, 0);
    const log = store.lanes[store.focus];
    if (store.brush.passes && log) {
      const [a, b] = store.brush.passes.map((i) => X(store.axis(log, Math.min(i, log.n - 1))));
      ctx.globalAlpha = 0.16;
      ctx.fillStyle = t.acc;
      ctx.fillRect(a - 3, 0, b - a + 6, view.h - 14);
      ctx.globalAlpha = 1;
    }
    const x = X(store.position);
    ctx.fillStyle = t.acc;
    ctx.fillRect(x - 1, 0, 2, view.h - 12);
    ctx.beginPath(); ctx.moveTo(x - 5, 0); ctx.lineTo(x + 5, 0); ctx.lineTo(x, 6); ctx.fill();
    const pass = store.passOf(store.focus);
    const label = store.view.align === 'pass' ? `pass ${store.position}` : store.view.align === 'time' ? `${store.position.toFixed(2)} s` : `${store.position} tokens`;
    say(where, label);
    box.setAttribute('aria-valuemax', String(span()));
    box.setAttribute('aria-valuenow', String(store.position));
    box.setAttribute('aria-valuetext', `${label}${store.view.align === 'pass' ? '' : `, pass ${pass} of lane ${store.focus}`}`);
  }

  let dragging = false;
  const toCursor = (event) => {
    const px = event.clientX - view.canvas.getBoundingClientRect().left;
    const ticks = store.ticks();
    if (!ticks.length) return;
    const want = ((px - LEFT - unit() / 2) / (view.w - LEFT - RIGHT - unit())) * room();
    let best = 0;
    for (let i = 1; i < ticks.length; i++) if (Math.abs(ticks[i] - want) <= Math.abs(ticks[best] - want)) best = i;
    const live = store.status.state === 'running';
    store.seek(ticks[best], live && best === ticks.length - 1);
  };
  const onDown = (event) => { dragging = true; box.setPointerCapture(event.pointerId); play.stop(); toCursor(event); };
  const onMove = (event) => { if (dragging) toCursor(event); };
  const onUp = () => { dragging = false; };
  box.addEventListener('pointerdown', onDown);
  box.addEventListener('pointermove', onMove);
  box.addEventListener('pointerup', onUp);
  box.addEventListener('pointercancel', onUp);
  const unwatch = store.watch(['data', 'cursor', 'sel', 'view', 'size', 'theme', 'status', 'notes'], draw);
  return {draw, destroy() { unwatch(); view.destroy(); picture = null; root.replaceChildren(); }};
}
