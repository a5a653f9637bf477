/**
 * Observe mode: what a shadow full recompute at each pass showed. Staleness of K/V per layer and position (section C.2), drift of all positions (Figure 4).
 *
 * Contract: `mount(root, store, {tip}) -> {draw, destroy}`. Shows the last observed pass at or before the cursor; a selection of positions is marked.
 * Fixed scales, those of the heatmap: staleness 0.0001 to 1 on the log scale, 0 to 0.5 on the linear one; drift 0.01 to 10 nats (log).
 */

import * as figures from './observefig.js';
import {el, MONO, num, say, setFont, sharp, short} from './dom.js';
import {scaleOf} from './heatmap.js';
import {shown} from './tabs.js';
import {rgb} from './theme.js';

const LEFT = 26;

export const observed = (log) => !!log && log.steps.some((s) => s.stale || s.fulldrift);

export function mount(root, store, {tip}) {
  const warn = el('p', {className: 'first-order'}, el('b', {text: 'This mode\'s speed means nothing: '}), el('span', {text: 'a full recompute runs beside every pass.'}));
  const head = el('div', {className: 'h', text: 'Staleness of K/V'});
  const box = el('div', {className: 'cv stale', role: 'img'});
  const sub = el('p', {className: 'k'});
  const head2 = el('div', {className: 'h', text: 'Drift of all positions'});
  const box2 = el('div', {className: 'cv full', role: 'img'});
  const sub2 = el('p', {className: 'k'});
  const more = el('p', {className: 'k', text: 'Over all passes: choose "staleness" or "drift of all positions" above the heatmap.'});
  const rest = el('div', {className: 'add'});
  root.append(warn, head, box, sub, head2, box2, sub2, more, rest);
  const wholeRun = figures.mount(rest, store);
  const view = sharp(box, store);
  const view2 = sharp(box2, store);

  const at = (log, name) => { for (let i = store.passOf(log.name); i >= 0; i--) if (log.steps[i][name]) return log.steps[i]; return null; };

  function draw() {
    const t = store.theme;
    const log = store.lanes[store.focus];
    if (!shown(store, 'observe') || !t || !log || !view.w) return;
    const L = log.header.length;
    const n = log.header.n_layers;
    const s = at(log, 'stale');
    const ctx = view.begin();
    if (s) {
      const cw = (view.w - LEFT) / L;
      const rh = (view.h - 14) / n;
      setFont(ctx, `10px ${MONO}`);
      let top = 0;
      const colour = scaleOf({metric: 'stale', log: store.view.log});
      for (let l = 0; l < n; l++) {
        let sum = 0;
        for (let p = 0; p < L; p++) {
          const v = s.stale[l * L + p];
          if (!Number.isFinite(v)) continue;
          sum += v;
          ctx.fillStyle = rgb(t.map[Math.round(colour.level(v) * 255)]);
          ctx.fillRect(LEFT + p * cw, l * rh, Math.max(0.7, cw), rh - (rh > 5 ? 0.8 : 0));
        }
        top = Math.max(top, sum / L);
        if (rh > 9 || l % Math.ceil(10 / rh) === 0) { ctx.fillStyle = l === store.view.layer ? t.ink : t.mut; ctx.textAlign = 'right'; ctx.fillText(String(l), LEFT - 5, l * rh + rh / 2); }
      }
      ctx.fillStyle = t.mut;
      ctx.textAlign = 'left';
      ctx.fillText('0', LEFT, view.h - 6);
      ctx.textAlign = 'right';
      ctx.fillText(String(L - 1), view.w, view.h - 6);
      ctx.strokeStyle = t.acc;
      ctx.lineWidth = 1;
      ctx.strokeRect(LEFT + s.s * cw, 0.5, (s.e - s.s) * cw, view.h - 15);
      for (const pos of store.positions()) { ctx.fillStyle = t.ink; ctx.fillRect(LEFT + pos * cw, 0, Math.max(1, cw), 2); ctx.fillRect(LEFT + pos * cw, view.h - 16, Math.max(1, cw), 2); }
      say(sub, `layers down, positions across, at pass ${s.i}; ${colour.isLog ? 'log colour from 0.0001 to 1' : 'colour from 0 to 0.5'}; most stale layer: mean ${short(top)}`);
      box.setAttribute('aria-label', `Staleness of keys and values at pass ${s.i}, ${n} layers by ${L} positions; mean of the stalest layer ${short(top)}`);
    } else say(sub, 'n/a at this pass');
    const f = at(log, 'fulldrift');
    const ctx2 = view2.begin();
    if (f) {
      const scale = scaleOf({metric: 'drift', log: true});
      const cw = (view2.w - LEFT) / L;
      let most = 0;
      for (let p = 0; p < L; p++) {
        const v = f.fulldrift[p];
        if (!Number.isFinite(v)) continue;
        most = Math.max(most, v);
        ctx2.fillStyle = rgb(t.map[Math.round(scale.level(v) * 255)]);
        ctx2.fillRect(LEFT + p * cw, 0, Math.max(0.7, cw), view2.h);
      }
      say(sub2, `final layer, at pass ${f.i}, log colour from 0.01 to 10 nats; largest ${short(most)} nats`);
      box2.setAttribute('aria-label', `Drift of all positions at pass ${f.i}; largest ${short(most)} nats`);
    } else say(sub2, 'n/a at this pass');
    wholeRun.draw(log);
  }

  const locate = (event, v) => {
    const log = store.lanes[store.focus];
    if (!log) return null;
    const r = v.canvas.getBoundingClientRect();
    const pos = Math.floor(((event.clientX - r.left - LEFT) / (v.w - LEFT)) * log.header.length);
    const l = Math.floor(((event.clientY - r.top) / (v.h - (v === view ? 14 : 0))) * log.header.n_layers);
    return pos >= 0 && pos < log.header.length ? {log, pos, l: Math.min(log.header.n_layers - 1, l)} : null;
  };
  for (const [b, v] of [[box, view], [box2, view2]]) {
    b.addEventListener('pointermove', (event) => {
      const hit = locate(event, v);
      if (!hit) { tip.hide(); return; }
      const s = at(hit.log, v === view ? 'stale' : 'fulldrift');
      if (!s) return;
      store.point({lane: store.focus, pos: hit.pos});
      tip.show(event.clientX, event.clientY, [`position ${hit.pos}`, v === view ? [`staleness, layer ${hit.l}`, short(s.stale[hit.l * hit.log.header.length + hit.pos])] : ['drift', `${short(s.fulldrift[hit.pos])} nats`]]);
    });
    b.addEventListener('pointerleave', () => { store.point(null); tip.hide(); });
    b.addEventListener('click', (event) => { const hit = locate(event, v); if (hit) { store.select(store.focus, hit.pos); if (v === view) store.set({layer: hit.l}); } });
  }
  const unwatch = store.watch(['data', 'cursor', 'sel', 'view', 'size', 'theme'], draw);
  return {draw, destroy() { unwatch(); wholeRun.destroy(); view.destroy(); view2.destroy(); root.replaceChildren(); }};
}
