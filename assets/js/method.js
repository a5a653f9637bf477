/**
 * What the method itself logged: one generic panel over Step `x`, with names and units for what is known.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`. Lists as long as the model has layers are bars by layer; numbers that come in many passes are lines over
 * passes, with the method's threshold where it has one; lists of positions are counted and can be clicked; anything else is shown as it is. `null` is "n/a".
 */

import {el, layer, MONO, num, say, setFont, sharp, short} from './dom.js';
import {passRule} from './describe.js';
import {drawForm, overlayOf} from './overlay.js';
import {paramsAt} from './params.js';
import {shown} from './tabs.js';

const ROW = 62;
const MOST = 30;
const WORDS = {
  budgets: 'rows each layer may recompute', value_drift: 'drift of values by layer (1 − cosine)', layer_rows: 'rows computed by layer', similarity: 'attention similarity by layer (cosine)',
  entropy: 'largest entropy of the tokens committed', entropies: 'entropies of the tokens committed', reset_layer: 'layer from which all rows were recomputed', tracked: 'tracked positions',
  most_attended: 'most attended row by layer', window: 'window', thresholds: 'thresholds', sinks: 'attention sinks left out', anchors: 'anchors', held: 'held back', edges: 'edges', stable: 'stable positions', kl: 'KL by position',
  size: 'block size', delimiter: 'best delimiter', ends_at_delimiter: 'ends at the delimiter',
};
const UNIT = {entropy: 'nats', entropies: 'nats', kl: 'nats'};
const SKIP = new Set(['memory', 'weights', 'value_states', 'stale_before', 'progress', 'value_kept']);
const LIMITS = {entropy: 'tau_e', similarity: 'gamma', kl: 'kl_threshold'};
/** Lines over passes: [name, value of a pass or undefined, name of the threshold]. */
const SERIES = [
  ['entropy', (x) => x.entropy, 'tau_e'], ['reset layer', (x) => x.reset_layer], ['block size', (x, s, log) => (log.steps.some((q) => q.extra.adablock) ? s.e - s.s : undefined)], ['delimiter confidence', (x) => x.adablock?.delimiter?.confidence, 'delimiter_threshold'],
  ['edges', (x) => x.dawn?.edges?.length], ['held back', (x) => x.dawn?.held?.length], ['median KL', (x) => (x.klass ? median(x.klass.kl) : undefined), 'kl_threshold'], ['stable positions', (x) => x.klass?.stable?.length],
  ['chosen rows', (x) => (x.chosen ? Object.values(x.chosen).reduce((a, l) => a + l.length, 0) : undefined)], ['most value drift', (x) => (x.value_drift ? Math.max(...x.value_drift.filter(Number.isFinite)) : undefined)],
];

function median(list) {
  const a = (list || []).filter((v) => v !== null && Number.isFinite(v)).sort((p, q) => p - q);
  return a.length ? a[a.length >> 1] : undefined;
}
const positional = new Set(['tracked', 'anchors', 'held', 'stable', 'masks', 'committed', 'between', 'rollout']);
const tell = (v) => (v === null || v === undefined ? 'n/a' : typeof v === 'number' ? (Number.isInteger(v) ? String(v) : short(v)) : typeof v === 'boolean' ? (v ? 'yes' : 'no') : typeof v === 'string' ? v : JSON.stringify(v));

export function mount(root, store) {
  const head = el('div', {className: 'h'}, el('span'));
  const rule = el('p', {className: 'now'});
  const said = el('p', {className: 'k'});
  const keep = el('input', {type: 'checkbox', id: 'overlay-keep', on: {change: () => store.set({overlay: keep.checked})}});
  const keepRow = el('div', {className: 'line'}, keep, el('label', {htmlFor: 'overlay-keep', className: 'k', text: 'keep the marks in the grid'}));
  const legend = el('div', {className: 'marks'});
  const facts = el('dl', {className: 'facts'});
  const barsHead = el('div', {className: 'h', text: 'By layer, at this pass'});
  const barsBox = el('div', {className: 'cv'});
  const linesHead = el('div', {className: 'h', text: 'Over the passes'});
  const linesBox = el('div', {className: 'cv'});
  root.append(head, rule, said, legend, keepRow, facts, barsHead, barsBox, linesHead, linesBox);
  const bars = sharp(barsBox, store);
  const lines = sharp(linesBox, store);

  const chips = (list) => el('span', {className: 'chips'}, ...list.slice(0, MOST).map((pos) => el('button', {type: 'button', className: 'chip-b', text: String(pos), on: {click: () => store.select(store.focus, pos)}})), list.length > MOST ? el('span', {className: 'k', text: `and ${list.length - MOST} more`}) : null);

  function fact(out, name, v, log) {
    if (SKIP.has(name) || (Array.isArray(v) && v.length === log.header.n_layers && !positional.has(name) && v.every((q) => q === null || typeof q === 'number'))) return;
    const label = WORDS[name] || name.replace(/_/g, ' ');
    let value;
    if (Array.isArray(v) && (positional.has(name) || name === 'chosen')) value = v.length ? [el('span', {text: `${v.length} `}), chips(v)] : [document.createTextNode('none')];
    else if (name === 'edges') value = [document.createTextNode(v.length ? `${v.length}: ${v.slice(0, 6).map(([a, b]) => `${a}→${b}`).join(', ')}${v.length > 6 ? ', …' : ''}` : 'none')];
    else if (name === 'kl') { const a = v.filter((q) => q !== null); value = [document.createTextNode(a.length ? `median ${short(median(a))}, largest ${short(Math.max(...a))} nats` : 'n/a')]; } else if (name === 'delimiter') value = [document.createTextNode(v ? `position ${v.position}, confidence ${num(v.confidence, 3)}` : 'none in reach')];
    else if (name === 'similarity') value = [document.createTextNode(v.map((q) => (q > 1.001 ? 'n/a' : tell(q))).join(', '))];
    else if (Array.isArray(v) && v.every((q) => typeof q === 'number')) value = [document.createTextNode(v.length ? `${v.slice(0, 8).map((q) => tell(q)).join(', ')}${v.length > 8 ? `, … (${v.length})` : ''} ${UNIT[name] || ''}` : 'none')];
    else if (v && typeof v === 'object' && !Array.isArray(v)) { out.push(el('dt', {className: 'group', text: label}), el('dd', {})); for (const [k, q] of Object.entries(v)) fact(out, k, q, log); return; } else value = [document.createTextNode(`${tell(v).slice(0, 160)} ${v === null ? '' : UNIT[name] || ''}`)];
    out.push(el('dt', {text: label}), el('dd', {}, ...value));
  }

  function draw() {
    const t = store.theme;
    const log = store.lanes[store.focus];
    if (!shown(store, 'method') || !t || !log?.n) return;
    const p = Math.max(0, store.passOf(store.focus));
    const step = log.steps[p];
    const x = step.extra;
    const title = log.header.title || log.header.method;
    say(head.firstChild, `${title} · pass ${p}`);
    say(rule, passRule(step));
    const known = SERIES.map(([name, read, limit]) => ({name, limit, values: log.steps.map((s) => read(s.extra, s, log))})).filter((s) => s.values.some((v) => Number.isFinite(v)));
    const layers = Object.entries(x).filter(([name, v]) => !SKIP.has(name) && !positional.has(name) && Array.isArray(v) && v.length === log.header.n_layers && v.some((q) => typeof q === 'number') && v.every((q) => q === null || typeof q === 'number'));
    const names = Object.keys(x).filter((n) => !SKIP.has(n));
    say(said, /entropy/i.test(log.header.method) ? 'Reconstructed: the authors have published no code.' : !names.length && !known.length ? `${title} logs nothing beyond what the other panels show.` : !names.length ? 'Nothing of its own in this pass.' : '');
    const overlay = overlayOf(log, p);
    legend.replaceChildren(...overlay.legend.map(([kind, words]) => {
      const c = el('canvas', {width: 28, height: 28, 'aria-hidden': 'true'});
      const ctx = c.getContext('2d');
      ctx.scale(2, 2);
      if (kind === 'span') { ctx.strokeStyle = t.drift; ctx.setLineDash([4, 2]); ctx.strokeRect(1.5, 3, 11, 8); } else if (kind === 'edge') { ctx.strokeStyle = t.drift; ctx.lineWidth = 1.5; ctx.beginPath(); ctx.moveTo(1, 11); ctx.quadraticCurveTo(4, 2, 12, 4); ctx.moveTo(9, 1.5); ctx.lineTo(12, 4); ctx.lineTo(8.5, 6.5); ctx.stroke(); } else if (kind === 'bar') { ctx.fillStyle = t.suf; ctx.fillRect(5, 3, 3, 9); } else drawForm(ctx, t, kind, 7, 7, 3.4);
      return el('div', {className: 'line'}, c, el('span', {className: 'k', text: words}));
    }));
    keepRow.hidden = !overlay.legend.length;
    keep.checked = !!store.view.overlay;
    const out = [];
    for (const name of names) fact(out, name, x[name], log);
    facts.replaceChildren(...out);
    drawBars(t, log, layers, paramsAt(log, p));
    drawLines(t, log, known, p);
  }

  function size(box, head, rows) {
    head.hidden = box.hidden = !rows;
    const h = `${rows * ROW}px`;
    if (box.style.height !== h) box.style.height = h;
  }

  function drawBars(t, log, list, params) {
    size(barsBox, barsHead, list.length);
    if (!list.length || !bars.w) return;
    const screen = bars.begin();
    bars.picture = layer(bars, bars.picture);
    const {ctx} = bars.picture;
    setFont(ctx, `10px ${MONO}`);
    list.forEach(([name, values], row) => {
      const y = row * ROW;
      const real = values.filter((v) => Number.isFinite(v));
      const limit = LIMITS[name] ? Number(params[LIMITS[name]]) : NaN;
      // A cosine is at most 1: larger ones are layers without a measurement.
      const hi = name === 'similarity' ? 1 : Math.max(1e-12, ...real, Number.isFinite(limit) ? limit : 0);
      ctx.fillStyle = t.mut;
      ctx.textAlign = 'left';
      ctx.fillText(WORDS[name] || name.replace(/_/g, ' '), 0, y + 7);
      ctx.textAlign = 'right';
      ctx.fillText(tell(hi), bars.w - 2, y + 20);
      const w = (bars.w - 44) / values.length;
      const h = ROW - 32;
      values.forEach((v, l) => {
        const bx = l * w;
        if (!Number.isFinite(v) || v > hi * 1.001) { ctx.fillStyle = t.hatch; for (let k = 0; k < h; k += 4) ctx.fillRect(bx, y + 16 + k, w - 1.5, 1); } else { ctx.fillStyle = l === store.view.layer ? t.acc : t.conf; const b = Math.max(1, (v / hi) * h); ctx.fillRect(bx, y + 16 + h - b, w - 1.5, b); }
        if (w > 14 || l % 4 === 0) { ctx.fillStyle = t.mut; ctx.textAlign = 'center'; ctx.fillText(String(l), bx + w / 2, y + 16 + h + 7); }
      });
      if (Number.isFinite(limit)) { ctx.fillStyle = t.warn; ctx.fillRect(0, y + 16 + h - (limit / hi) * h, values.length * w, 1.2); }
    });
    screen.setTransform(1, 0, 0, 1, 0, 0);
    screen.drawImage(bars.picture.canvas, 0, 0);
  }

  function drawLines(t, log, list, p) {
    size(linesBox, linesHead, list.length);
    if (!list.length || !lines.w) return;
    const screen = lines.begin();
    lines.picture = layer(lines, lines.picture);
    const {ctx} = lines.picture;
    setFont(ctx, `10px ${MONO}`);
    const params = paramsAt(log, log.n - 1);
    const X = (i) => 2 + (i / Math.max(1, log.n - 1)) * (lines.w - 48);
    list.forEach(({name, values, limit}, row) => {
      const y = row * ROW + 15;
      const h = ROW - 22;
      const at = limit ? Number(params[limit]) : NaN;
      const real = values.filter((v) => Number.isFinite(v));
      const hi = Math.max(1e-12, ...real, Number.isFinite(at) && at < Math.max(...real) * 5 ? at : 0) * 1.05;
      ctx.fillStyle = t.mut;
      ctx.textAlign = 'left';
      ctx.fillText(`${name}: ${tell(values[p] ?? null)}${Number.isFinite(at) ? ` (threshold ${tell(at)})` : ''}`, 0, y - 8);
      ctx.textAlign = 'right';
      ctx.fillText(tell(hi / 1.05), lines.w - 2, y + 5);
      ctx.fillText('0', lines.w - 2, y + h - 4);
      ctx.fillStyle = t.line;
      ctx.fillRect(0, y + h, lines.w - 44, 1);
      if (Number.isFinite(at) && at <= hi) { ctx.fillStyle = t.warn; ctx.fillRect(0, y + h - (at / hi) * h, lines.w - 44, 1.2); }
      ctx.strokeStyle = ctx.fillStyle = t.conf;
      ctx.lineWidth = 1.4;
      ctx.beginPath();
      let pen = false;
      values.forEach((v, i) => {
        if (!Number.isFinite(v)) { pen = false; return; }
        const py = y + h - (v / hi) * h;
        if (pen) ctx.lineTo(X(i), py); else ctx.moveTo(X(i), py);
        if (log.n < 60 || (!pen && !Number.isFinite(values[i + 1]))) ctx.fillRect(X(i) - 1.5, py - 1.5, 3, 3);
        pen = true;
      });
      ctx.stroke();
      ctx.fillStyle = t.acc;
      ctx.fillRect(X(p), y - 2, 1, h + 3);
    });
    screen.setTransform(1, 0, 0, 1, 0, 0);
    screen.drawImage(lines.picture.canvas, 0, 0);
  }

  const unwatch = store.watch(['data', 'cursor', 'view', 'size', 'theme'], draw);
  return {draw, destroy() { unwatch(); bars.destroy(); lines.destroy(); root.replaceChildren(); }};
}
