/**
 * Where each pass's time went (the paper's Figure 12, for the run that is shown), and memory over the passes (Figure 13) where it was measured.
 *
 * Contract: `mount(root, store, {tip}) -> {draw, destroy}`. Phases are those of the step's `ph`, in seconds; "other" is the pass's time that no phase claims.
 * `log` and `observe` are not part of the decode's seconds and are listed apart. Memory is `x.memory` = {device, host, parts}, in bytes beside the model,
 * logged at block entries; absent is "n/a".
 */

import {el, layer, MONO, num, say, setFont, sharp} from './dom.js';
import {shown} from './tabs.js';

const OUTSIDE = new Set(['log', 'observe']);
const ORDER = ['attention', 'mlp', 'head', 'commit', 'clustering', 'proxy', 'packets', 'quantise', 'offload'];
const KINDS = [['entry', 'entry', (s) => s.kind !== 'within'], ['refresh', 'refresh', (s) => s.kind === 'within' && s.refresh], ['plain', 'plain', (s) => s.kind === 'within' && !s.refresh]];
const LEFT = 30;

/** {names, of(step) -> seconds by name, total, means: {name: {entry, refresh, plain}}, counts}; names in a fixed order. */
export function phases(log) {
  const seen = new Set();
  for (const s of log.steps) for (const name in s.phases) if (!OUTSIDE.has(name)) seen.add(name);
  const names = [...ORDER.filter((n) => seen.has(n)), ...[...seen].filter((n) => !ORDER.includes(n)).sort()];
  const rest = (s) => Math.max(0, s.dt - names.reduce((a, n) => a + (s.phases[n] || 0), 0));
  const of = (s) => [...names.map((n) => s.phases[n] || 0), rest(s)];
  const all = [...names, 'other'];
  const counts = {};
  const means = Object.fromEntries(all.map((n) => [n, {}]));
  for (const [kind, , test] of KINDS) {
    const steps = log.steps.filter(test);
    counts[kind] = steps.length;
    const sums = all.map(() => 0);
    for (const s of steps) of(s).forEach((v, i) => { sums[i] += v; });
    all.forEach((n, i) => { means[n][kind] = steps.length ? sums[i] / steps.length : null; });
  }
  const total = all.map(() => 0);
  let outside = 0;
  for (const s of log.steps) { of(s).forEach((v, i) => { total[i] += v; }); for (const n of OUTSIDE) outside += s.phases[n] || 0; }
  return {names: all, of, means, counts, total, outside};
}

export const memoryOf = (step) => (step.extra.memory && typeof step.extra.memory === 'object' ? step.extra.memory : null);
const MB = (bytes) => (Number.isFinite(bytes) ? `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB` : 'n/a');

export function mount(root, store, {tip}) {
  const head = el('div', {className: 'h'}, el('span', {text: 'Time of each pass'}));
  const note = el('p', {className: 'k'});
  const box = el('div', {className: 'cv times'});
  const body = el('tbody');
  const table = el('table', {className: 'cmp phases', 'aria-label': 'Milliseconds per pass by phase'}, el('thead', {}, el('tr', {}, ...['ms per pass', ...KINDS.map((k) => k[1]), 'share'].map((text) => el('th', {text, scope: 'col'})))), body);
  const memHead = el('div', {className: 'h', text: 'Memory'});
  const memBox = el('div', {className: 'cv memory'});
  const memNote = el('p', {className: 'k'});
  root.append(head, note, box, table, memHead, memBox, memNote);
  const view = sharp(box, store);
  const memView = sharp(memBox, store);
  let key = '';
  let data = null;

  const X = (v, i, n) => LEFT + (i / Math.max(1, n)) * (v.w - LEFT - 4);

  function paint(log, t) {
    view.picture = layer(view, view.picture);
    const {ctx} = view.picture;
    const colors = [...t.clusters, t.mut];
    const most = Math.max(1e-9, ...log.steps.map((s) => data.of(s).reduce((a, b) => a + b, 0)));
    const h = view.h - 16;
    setFont(ctx, `10px ${MONO}`);
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'right';
    ctx.fillText((most * 1000).toPrecision(2), LEFT - 4, 7);
    ctx.fillText('ms', LEFT - 4, 18);
    ctx.fillText('0', LEFT - 4, h);
    const w = Math.max(0.4, (view.w - LEFT - 4) / log.n - 0.6);
    for (const s of log.steps) {
      let y = h;
      data.of(s).forEach((v, i) => { const d = (v / most) * (h - 2); ctx.fillStyle = i === data.names.length - 1 ? t.mut : colors[i % 8]; ctx.fillRect(X(view, s.i, log.n), y - d, w, d); y -= d; });
      if (s.refresh) { ctx.fillStyle = t.drift; ctx.fillRect(X(view, s.i, log.n), h + 1, w, 2); }
    }
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'left';
    ctx.fillText('0', LEFT, view.h - 5);
    ctx.textAlign = 'right';
    ctx.fillText(String(log.n - 1), view.w - 4, view.h - 5);
  }

  function drawTable(log, t) {
    const whole = data.total.reduce((a, b) => a + b, 0) || 1;
    const colors = [...t.clusters];
    const cell = (v) => el('td', {text: v === null ? '–' : num(v * 1000, v < 0.01 ? 2 : 1)});
    body.replaceChildren(...data.names.map((n, i) => {
      const dot = el('i', {className: 'dot'});
      dot.style.background = i === data.names.length - 1 ? t.mut : colors[i % 8];
      return el('tr', {}, el('th', {scope: 'row'}, dot, el('span', {text: n})), ...KINDS.map(([k]) => cell(data.means[n][k])), el('td', {text: `${((data.total[i] / whole) * 100).toFixed(0)} %`}));
    }), el('tr', {}, el('th', {text: 'sum', scope: 'row'}), ...KINDS.map(([k]) => cell(data.counts[k] ? data.names.reduce((a, n) => a + data.means[n][k], 0) : null)), el('td', {text: '100 %'})),
    el('tr', {}, el('th', {text: 'passes', scope: 'row'}), ...KINDS.map(([k]) => el('td', {text: String(data.counts[k])})), el('td', {text: String(log.n)})));
  }

  function drawMemory(log, t) {
    const known = log.steps.filter(memoryOf);
    memBox.hidden = !known.length;
    if (!known.length) { say(memNote, 'n/a: this recording holds no memory figures.'); return; }
    const ctx = memView.begin();
    const lines = [['device', t.conf, []], ['host', t.drift, [4, 3]]];
    const most = Math.max(1, ...known.map((s) => Math.max(memoryOf(s).device || 0, memoryOf(s).host || 0)));
    const h = memView.h - 6;
    for (const [name, color, dash] of lines) {
      ctx.strokeStyle = color;
      ctx.lineWidth = 1.6;
      ctx.setLineDash(dash);
      ctx.beginPath();
      known.forEach((s, i) => { // holds until the next entry
        const v = memoryOf(s)[name];
        const y = 3 + (1 - (v || 0) / most) * (h - 3);
        ctx.lineTo(X(memView, s.i, log.n), y);
        ctx.lineTo(X(memView, known[i + 1]?.i ?? log.n, log.n), y);
      });
      ctx.stroke();
      ctx.setLineDash([]);
    }
    const p = Math.max(0, store.passOf(store.focus));
    const at = [...known].reverse().find((s) => s.i <= p) || known[0];
    const now = memoryOf(at);
    const parts = Object.entries(now.parts || {}).map(([name, bytes]) => `${name} ${MB(bytes)}`).join(', ');
    ctx.fillStyle = t.acc;
    ctx.fillRect(X(memView, p + 0.5, log.n), 0, 1, memView.h);
    say(memNote, `beside the model, since pass ${at.i}: device ${MB(now.device)} (solid)${parts ? `, of which ${parts}` : ''}; pinned host ${MB(now.host)} (dashed)`);
  }

  function draw() {
    const t = store.theme;
    const log = store.lanes[store.focus];
    if (!shown(store, 'timing') || !t || !log?.n || !view.w) return;
    const k = [store.run, store.focus, log.n, log.status, view.w, view.h, view.dpr, t.name, store.rev.theme].join();
    if (k !== key) {
      key = k;
      data = phases(log);
      paint(log, t);
      drawTable(log, t);
    }
    say(head.firstChild, `Time of each pass · lane ${store.focus}`);
    const observed = log.steps.some((s) => s.stale);
    say(note, observed ? 'Observe mode: this mode\'s speed means nothing.' : data.outside > 0 ? `Writing the log took ${num(data.outside * 1000, 1)} ms more; it is not part of the decode's seconds.` : '');
    const ctx = view.begin();
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.drawImage(view.picture.canvas, 0, 0);
    ctx.setTransform(view.dpr, 0, 0, view.dpr, 0, 0);
    const p = store.passOf(store.focus);
    if (p >= 0) { ctx.strokeStyle = t.acc; ctx.lineWidth = 1.5; ctx.strokeRect(X(view, p, log.n) - 1, 0.5, Math.max(2, (view.w - LEFT - 4) / log.n) + 1, view.h - 15); }
    drawMemory(log, t);
  }

  const passAt = (event) => {
    const log = store.lanes[store.focus];
    if (!log?.n) return -1;
    const i = Math.floor(((event.clientX - view.canvas.getBoundingClientRect().left - LEFT) / (view.w - LEFT - 4)) * log.n);
    return i >= 0 && i < log.n ? i : -1;
  };
  box.addEventListener('pointermove', (event) => {
    const i = passAt(event);
    if (i < 0 || !data) { tip.hide(); return; }
    const s = store.lanes[store.focus].steps[i];
    tip.show(event.clientX, event.clientY, [`pass ${i} · ${num(s.dt * 1000, 1)} ms`, ...data.of(s).map((v, k) => [data.names[k], `${num(v * 1000, 2)} ms`]).filter((x) => x[1] !== '0.00 ms')]);
  });
  box.addEventListener('pointerleave', () => tip.hide());
  box.addEventListener('click', (event) => { const i = passAt(event); if (i >= 0) store.seekPass(store.focus, i); });
  const unwatch = store.watch(['data', 'cursor', 'view', 'size', 'theme'], draw);
  return {draw, destroy() { unwatch(); view.destroy(); memView.destroy(); root.replaceChildren(); }};
}
