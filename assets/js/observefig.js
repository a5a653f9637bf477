/**
 * The paper's motivating figures for an observed run: does cluster drift find the stalest quarter (6a), where staleness gathers (3a), how the selected token
 * came to its final state (3b) and the path of its value state (3c).
 *
 * Contract: `mount(root, store) -> {draw(log), destroy}`. The numbers are the server's (command `figure`, event of that name; polestar/analysis/figures.py), asked
 * once for each run, lane and position, when the run has ended. A figure that does not exist for the run says why in one sentence.
 */

import {el, layer, MONO, num, say, setFont, sharp} from './dom.js';

const H = 104;
const LEFT = 26;

export function mount(root, store) {
  const note = el('p', {className: 'k'});
  const parts = ['selection', 'cumulative', 'progress', 'path'].map((name) => {
    const head = el('div', {className: 'h'});
    const box = el('div', {className: 'cv fig', role: 'img'});
    const sub = el('p', {className: 'k'});
    root.append(head, box, sub);
    return {name, head, box, sub, view: sharp(box, store)};
  });
  root.append(note);

  function axes(ctx, t, v, {lo = 0, hi = 1, from, to}) {
    const w = v.w - LEFT - 6;
    const h = v.h - 16;
    const X = (i) => LEFT + ((i - from) / Math.max(1e-9, to - from)) * w;
    const Y = (a) => 4 + (1 - (a - lo) / Math.max(1e-9, hi - lo)) * (h - 4);
    ctx.strokeStyle = t.line;
    ctx.lineWidth = 1;
    ctx.beginPath(); ctx.moveTo(LEFT, 4); ctx.lineTo(LEFT, h); ctx.lineTo(v.w - 6, h); ctx.stroke();
    setFont(ctx, `10px ${MONO}`);
    ctx.fillStyle = t.mut;
    ctx.textAlign = 'right';
    ctx.fillText(num(hi, hi < 10 ? 1 : 0), LEFT - 3, 8);
    ctx.fillText(num(lo, lo < 0 ? 1 : 0), LEFT - 3, h - 3);
    ctx.textAlign = 'left';
    ctx.fillText(String(from), LEFT, v.h - 5);
    ctx.textAlign = 'right';
    ctx.fillText(String(to), v.w - 6, v.h - 5);
    return {X, Y, h};
  }
  function line(ctx, xs, ys, X, Y, color, dash = []) {
    ctx.strokeStyle = color;
    ctx.lineWidth = 1.7;
    ctx.setLineDash(dash);
    ctx.beginPath();
    let pen = false;
    ys.forEach((v, i) => { if (!Number.isFinite(v)) { pen = false; return; } if (pen) ctx.lineTo(X(xs[i]), Y(v)); else ctx.moveTo(X(xs[i]), Y(v)); pen = true; });
    ctx.stroke();
    ctx.setLineDash([]);
  }

  const drawers = {
    selection(ctx, t, v, d, log) {
      const n = log.header.n_layers;
      const mean = (name, l) => { const a = d[name].filter((_, i) => d.layer[i] === l); return a.length ? a.reduce((x, y) => x + y, 0) / a.length : NaN; };
      const {X, Y, h} = axes(ctx, t, v, {from: 0, to: n - 1});
      const QUARTER = 0.25; // as many are taken as are wanted, so chance finds their share of the window
      const w = Math.min(26, ((v.w - LEFT) / n) * 0.5);
      for (let l = 0; l < n; l++) {
        const a = mean('accuracy', l);
        if (!Number.isFinite(a)) continue;
        const x = Math.max(LEFT + 1, Math.min(v.w - 6 - w, X(l) - w / 2));
        ctx.fillStyle = t.conf;
        ctx.fillRect(x, Y(a), w, h - Y(a));
      }
      ctx.fillStyle = t.warn;
      ctx.fillRect(LEFT, Y(QUARTER), v.w - LEFT - 6, 1.4);
      const all = (name) => d[name].reduce((x, y) => x + y, 0) / d[name].length;
      return d.pass.length ? `by layer: share of the truly stalest quarter found by cluster drift, ${num(all('accuracy'))} on average (line: chance, ${QUARTER}); the clusters chosen hold ${num(all('recall'))} of it, chance would hold ${num(all('chosen'))}` : 'no refresh found anything stale';
    },
    cumulative(ctx, t, v, d) {
      const names = Object.keys(d.groups);
      const {X, Y} = axes(ctx, t, v, {from: 0, to: d.pass.length - 1});
      names.forEach((name, i) => line(ctx, d.pass, d.groups[name], X, Y, [t.drift, t.conf, t.suf, t.mut][i % 4], [[], [5, 2], [2, 2], [6, 2, 1, 2]][i % 4]));
      return `share of all staleness, summed over passes: ${names.map((name, i) => `${name} (${['solid', 'dashed', 'dotted', 'dash-dot'][i % 4]}) ${num(d.groups[name].at(-1))}`).join(', ')}`;
    },
    progress(ctx, t, v, d) {
      const {X, Y} = axes(ctx, t, v, {lo: Math.min(0, ...d.cos), from: d.pass[0], to: Math.max(d.pass.at(-1), d.pass[0] + 1)});
      line(ctx, d.pass, d.cos, X, Y, t.conf);
      const most = Math.max(1e-9, ...d.drift.filter(Number.isFinite));
      line(ctx, d.pass, d.drift.map((q) => (q === null ? NaN : q / most)), X, Y, t.drift, [4, 2]);
      return `cosine to its final log-probabilities (solid), its drift beside it (dashed, largest ${num(most)} nats); committed at pass ${d.committed}: ${d.reason}`;
    },
    path(ctx, t, v, d) {
      const xs = d.xy.map((q) => q[0]);
      const ys = d.xy.map((q) => q[1]);
      const fit = (a, lo, hi) => { const m = Math.min(...a); const s = Math.max(1e-9, Math.max(...a) - m); return (q) => lo + ((q - m) / s) * (hi - lo); };
      const X = fit(xs, 10, v.w - 10);
      const Y = fit(ys, v.h - 10, 10);
      ctx.strokeStyle = t.mut;
      ctx.lineWidth = 1;
      ctx.beginPath();
      d.xy.forEach(([x, y], i) => (i ? ctx.lineTo(X(x), Y(y)) : ctx.moveTo(X(x), Y(y))));
      ctx.stroke();
      d.xy.forEach(([x, y], i) => { ctx.globalAlpha = 0.3 + (0.7 * i) / d.xy.length; ctx.fillStyle = t.conf; ctx.beginPath(); ctx.arc(X(x), Y(y), 2.4, 0, 7); ctx.fill(); });
      ctx.globalAlpha = 1;
      for (const [at, color, r] of [[d.static, t.mut, 5], [d.event, t.drift, 6.5], [d.committed, t.ink, 8]]) {
        const i = d.pass.indexOf(at);
        if (i >= 0) { ctx.strokeStyle = color; ctx.lineWidth = 1.8; ctx.beginPath(); ctx.arc(X(xs[i]), Y(ys[i]), r, 0, 7); ctx.stroke(); }
      }
      const say_ = (name, at) => (at === null ? '' : `, ${name} at pass ${at}`);
      return `two principal directions hold ${num((d.share[0] + d.share[1]) * 100, 0)} % of its path${say_('committed (large ring)', d.committed)}${say_('a drift event would fire (middle)', d.event)}${say_('c ≥ τ_s (small)', d.static)}`;
    },
  };
  const TITLES = {selection: 'Clusters against the stalest quarter', cumulative: 'Where staleness gathers', progress: (pos) => `Progress of position ${pos}`, path: (pos) => `Path of position ${pos}`};

  function draw(log) {
    const t = store.theme;
    if (store.offline) { say(note, 'The figures over the whole run need the app; open this trace there.'); return; }
    const ended = log.status !== 'open';
    const pos = store.sel && store.sel.pos >= log.P ? store.sel.pos : null;
    const found = ended ? store.wantFigure(log.name, pos) : null;
    say(note, !ended ? 'Figures over the whole run come when it has ended.' : !found ? 'The figures are being computed.' : pos === null ? 'Select a token to see how it came to its final state.' : '');
    for (const {name, head, box, sub, view} of parts) {
      const own = name === 'progress' || name === 'path';
      const d = found?.[name];
      head.hidden = sub.hidden = !d;
      box.hidden = !d || !!d.error;
      if (!d) continue;
      say(head, own ? TITLES[name](pos) : TITLES[name]);
      if (d.error) { say(sub, d.error); continue; }
      if (!view.w) continue;
      const screen = view.begin();
      view.picture = layer(view, view.picture);
      const words = drawers[name](view.picture.ctx, t, view, d, log);
      screen.setTransform(1, 0, 0, 1, 0, 0);
      screen.drawImage(view.picture.canvas, 0, 0);
      say(sub, words);
      box.setAttribute('aria-label', `${head.textContent}: ${words}`);
    }
  }
  return {draw, destroy() { for (const p of parts) p.view.destroy(); root.replaceChildren(); }};
}
