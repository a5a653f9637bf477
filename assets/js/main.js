/**
 * The page inside Gradio's one HTML component.
 *
 * Contract: `mount(rootElement, {send, samples, style}) -> {receive(jsonString), destroy(), store, grids}`. `send(object)` takes commands to the server
 * (docs/architecture.md, "Page to server"); `samples` = [{name, title}] are the sample traces of the empty state. Everything lives in the
 * root's shadow tree, so the surrounding page's styles and ours do not meet. A second mount of the same root replaces the first.
 */

import * as clusters from './clusters.js';
import * as counters from './counters.js';
import {el, say, segments, select} from './dom.js';
import {KINDS} from './events.js';
import * as grid from './grid.js';
import * as heatmap from './heatmap.js';
import {bindKeys} from './keys.js';
import * as legend from './legend.js';
import * as membership from './membership.js';
import {observed} from './observe.js';
import * as scrubber from './scrubber.js';
import {mountSide} from './side.js';
import {readLink} from './share.js';
import {LANES, Store} from './store.js';
import {makeStatus} from './status.js';
import * as text from './text.js';
import {readTheme, watchTheme} from './theme.js';
import * as timeline from './timeline.js';
import {makeTip} from './tip.js';

const mounted = new WeakMap();

export {stopStrayClock} from './clock.js';

export function mount(root, {send, samples = [{name: 'sample', title: 'a sample run'}], style = new URL('../css/polestar.css', import.meta.url).href}) {
  mounted.get(root)?.destroy();
  const shadow = root.shadowRoot || root.attachShadow({mode: 'open'});
  const app = el('div', {className: 'app'});
  shadow.replaceChildren(el('link', {rel: 'stylesheet', href: style, on: {load: () => retheme()}}), app);
  const store = new Store(send);
  store.theme = null;
  const panels = [];
  const undo = [];
  function retheme() { store.theme = readTheme(app); store.touch('theme'); }

  const tip = makeTip(app);
  const play = player(store);

  // ---- head strip ---------------------------------------------------------------------------------------------------------
  const align = segments('Align lanes by', [['pass', 'pass', 'Same pass number in both lanes'], ['time', 'wall time', 'Same time since each decode began'], ['tokens', 'tokens', 'Same number of tokens committed']],
    () => store.view.align, (v) => store.set({align: v}));
  const kind = select('Kind of event that the keys [ and ] go to', KINDS.map(([name, label]) => [name, label]), () => store.view.kind, (v) => store.set({kind: v}));
  const go = (key, title) => el('button', {type: 'button', className: 'ib key', text: key, title, on: {click: () => root.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, composed: true}))}});
  const status = makeStatus(store, {samples, send: store.send});
  const alignBox = el('span', {className: 'group'}, el('span', {className: 'k', text: 'align by'}), align.box);
  const strip = el('header', {className: 'strip'}, status.chip, status.line, el('span', {className: 'sp'}), alignBox,
    el('span', {className: 'group'}, go('[', 'Previous event of this kind'), kind.node, go(']', 'Next event of this kind')),
    el('button', {type: 'button', className: 'ib key', text: '?', title: 'Keys and marks', 'aria-label': 'Help', on: {click: () => guide.toggleHelp()}}));

  // ---- lanes --------------------------------------------------------------------------------------------------------------
  const lanes = el('div', {className: 'lanes'});
  const laneCards = {};
  const grids = {};
  for (const lane of LANES) {
    const head = el('div', {className: 'lane-top'});
    const cells = el('div', {className: 'lane-grid'});
    const answer = el('div', {className: 'lane-text'});
    laneCards[lane] = el('section', {className: 'card lane', 'aria-label': `Lane ${lane}`}, head, cells, answer);
    lanes.append(laneCards[lane]);
    grids[lane] = grid.mount(cells, store, {lane, tip});
    panels.push(counters.mount(head, store, {lane}), grids[lane], text.mount(answer, store, {lane}));
  }
  const legendLine = el('div', {className: 'legend'});

  // ---- lower panels -------------------------------------------------------------------------------------------------------
  const metric = select('Value shown', [['drift', 'drift δ, final layer'], ['delta', 'Δ, drift minus its mean'], ['conf', 'confidence']], () => store.view.metric, (v) => store.set({metric: v}));
  const logScale = segments('Colour scale', [['1', 'log'], ['0', 'linear']], () => (store.view.log ? '1' : '0'), (v) => store.set({log: v === '1'}));
  const fold = segments('Rows', [['1', 'by block', 'Rows are positions within the block being decoded'], ['0', 'all positions']], () => (store.view.fold ? '1' : '0'), (v) => store.set({fold: v === '1'}));
  const focus = segments('Lane shown', [], () => store.focus, (v) => store.set({focus: v}));
  const hm = el('div', {className: 'fill'});
  const tl = el('div', {className: 'tl'});
  const ruleText = el('span', {className: 'h-note'});
  const driftCard = el('section', {className: 'card drift', 'aria-label': 'Drift heatmap and refresh timeline'},
    el('div', {className: 'card-head'}, metric.node, el('span', {className: 'sp'}), fold.box, logScale.box, focus.box), hm,
    el('div', {className: 'card-head'}, el('span', {className: 'h', text: 'Rows and refreshes'}), el('span', {className: 'sp'}), ruleText), tl);
  const layerPick = select('Layer', [], () => store.view.layer, (v) => store.set({layer: Number(v)}));
  const proj = segments('Projection', [['pca', 'PCA'], ['umap', 'UMAP', 'Distances have no unit']], () => store.view.proj, (v) => store.set({proj: v}));
  const cl = el('div', {className: 'fill'});
  const ms = el('div', {className: 'ms'});
  const clNote = el('span', {className: 'h-note'});
  const windowCard = el('section', {className: 'card window', 'aria-label': 'Clusters of the local window'},
    el('div', {className: 'card-head'}, el('span', {className: 'h', text: 'Local window'}), layerPick.node, el('span', {className: 'sp'}), clNote, proj.box), cl,
    el('div', {className: 'card-head'}, el('span', {className: 'h', text: 'Membership'}), el('span', {className: 'h-note', text: 'layers × window; lit: last refresh'})), ms);
  panels.push(heatmap.mount(hm, store, {tip}), timeline.mount(tl, store, {tip, onRule: (line) => say(ruleText, line)}),
    clusters.mount(cl, store, {tip, onNote: (line) => say(clNote, line)}), membership.mount(ms, store, {tip}));

  const scrub = el('section', {className: 'card scrub', 'aria-label': 'Passes'});
  panels.push(scrubber.mount(scrub, store, {play}));
  const side = el('aside', {className: 'side card'});
  panels.push(mountSide(side, store, {tip, app}));
  const guide = legend.mount(legendLine, store, {app});
  panels.push(guide);

  const main = el('div', {className: 'main'}, lanes, legendLine, el('div', {className: 'panels'}, driftCard, windowCard), scrub);
  app.append(strip, status.banner, el('div', {className: 'body'}, main, side), status.empty);

  undo.push(store.watch(['data', 'view', 'status'], () => {
    const open = store.open;
    for (const lane of LANES) laneCards[lane].hidden = !store.lanes[lane];
    app.dataset.lanes = String(open.length);
    alignBox.hidden = open.length < 2;
    focus.box.hidden = open.length < 2;
    const list = open.map((l) => [l, l, store.lanes[l].header.title || store.lanes[l].header.method]);
    if (JSON.stringify(list) !== focus.box.dataset.key) { focus.box.dataset.key = JSON.stringify(list); focus.fill(list); }
    const log = store.lanes[store.focus];
    layerPick.fill(Array.from({length: log?.header.n_layers || 1}, (_, l) => [String(l), `layer ${l}`]));
    for (const part of [align, logScale, fold, focus, proj]) part.paint();
    logScale.box.hidden = store.view.metric === 'conf';
    const watched = observed(log) ? [['full', 'Drift of all positions (shadow)'], ['stale', `K/V staleness, layer ${store.view.layer}`]] : [];
    if (!watched.length && ['full', 'stale'].includes(store.view.metric)) store.view.metric = 'drift';
    metric.fill([['drift', 'Drift δ, final layer'], ['delta', 'Δ, drift minus its mean'], ['conf', 'Confidence'], ...watched]);
    kind.fill(KINDS.map(([name, label]) => [name, label]));
  }));
  undo.push(readLink(store), status.watch(), watchTheme(app, retheme), bindKeys(root, store, {
    space() {
      if (store.status.state === 'running') send({cmd: 'pause'});
      else if (store.status.state === 'paused' && store.follow) send({cmd: 'continue'});
      else play.toggle();
    },
    breakpoint() { if (!store.sel) return false; send({cmd: 'breakpoint', op: 'add', breakpoint: {position: store.sel.pos}}); return true; },
    otherLane() { const open = store.open; if (open.length > 1) store.set({focus: open[(open.indexOf(store.focus) + 1) % open.length]}); },
    help: () => guide.toggleHelp(),
    helpOpen: () => guide.helpOpen,
    interrupt(key) { if (key !== ' ' && key !== '?' && key !== 'l') play.stop(); },
  }));
  undo.push(store.watch(['data', 'cursor', 'view'], () => tip.again()));
  store.touch('data', 'status', 'view');

  const handle = {
    receive: (message) => store.receive(message),
    destroy() {
      play.stop();
      for (const f of undo) f();
      for (const panel of panels) panel.destroy();
      store.destroy();
      shadow.replaceChildren();
      if (mounted.get(root) === handle) mounted.delete(root);
    },
    store, grids,
  };
  mounted.set(root, handle);
  return handle;
}

/** Plays the recording in the browser at the chosen number of passes a second. */
function player(store) {
  let timer = 0;
  const stop = () => { clearInterval(timer); timer = 0; if (store.playing) { store.playing = false; store.touch('status'); } };
  const start = () => {
    const ticks = store.ticks();
    if (!ticks.length) return;
    if (store.position >= ticks[ticks.length - 1]) store.home();
    store.playing = true;
    store.touch('status');
    let last = performance.now();
    let owed = 0;
    timer = setInterval(() => {
      const now = performance.now();
      owed += ((now - last) / 1000) * store.view.speed;
      last = now;
      const n = Math.floor(owed);
      if (!n) return;
      owed -= n;
      store.move(n);
      const t = store.ticks();
      if (!t.length || store.position >= t[t.length - 1]) stop();
    }, 1000 / 60);
  };
  return {toggle: () => (timer ? stop() : start()), stop, start};
}
