/**
 * Why: what happened to the selected position, with the numbers of the rule that committed it.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`. Shows the selected cell of its lane at the cursor; what does not exist for the method or the
 * instrumentation level says "n/a". "Static 0.9" is the confidence rule alone on the recorded confidences.
 */

import * as brush from './brush.js';
import {REASONS, REASON_LABEL} from './codec.js';
import {blockOf, noDrift, tokenName} from './describe.js';
import {draftEdit} from './forks.js';
import {el, num, say, sharp, short} from './dom.js';
import {paramsAt} from './params.js';
import {drawLife, life} from './whychart.js';

const STATIC = 0.9;

/** The rule's two lines: symbols, then numbers. */
export function rule(commit, params) {
  const c = num(commit.conf, 2);
  const tau = Number.isFinite(Number(params.tau_s)) ? Number(params.tau_s).toFixed(2) : 'τ_s';
  switch (REASONS[commit.r]) {
    case 'confidence': return ['c ≥ τ_s', `${c} ≥ ${tau}`];
    case 'forced': return ['best masked position of the pass', `c = ${c} < ${tau}, but every pass commits one token`];
    case 'drift': return ['Δ ≥ α (τ_s − c)²', `${short(commit.delta)} ≥ ${params.alpha} · (${tau} − ${c})² = ${short(commit.gate)}`];
    case 'suffix': return ['c ≥ τ_suf, in a refresh packet', `${c} ≥ ${params.tau_suf ?? 'τ_suf'}`];
    default: return [commit.reason, `c = ${c}`];
  }
}

/** What the static threshold alone would have done, from the recorded confidences. */
export function staticStory(log, pos, commit) {
  const s = life(log, pos);
  const first = s.conf.findIndex((v) => v >= STATIC);
  const when = first < 0 ? -1 : s.x[first];
  if (!commit) return when < 0 ? `static ${STATIC} alone: not reached so far` : `static ${STATIC} alone: pass ${when}`;
  if (REASONS[commit.r] === 'suffix') return commit.conf >= STATIC ? `static ${STATIC} alone would have waited for block ${blockOf(log, pos)} to start` : `static ${STATIC} alone: not at this pass`;
  if (when === commit.at) return `static ${STATIC} alone: the same pass`;
  if (when >= 0 && when < commit.at) return `static ${STATIC} alone: already at pass ${when}`;
  return `static ${STATIC} alone would have waited: c was ${num(commit.conf, 2)} (later confidences were never computed)`;
}

/** How the best guess changed: "·sold (pass 3) → ·clips (pass 5)". */
export function guessStory(store, s) {
  const said = [];
  let last = -1;
  s.am.forEach((id, k) => { if (id >= 0 && id !== last) { last = id; said.push(`${tokenName(store, id)} (pass ${s.x[k]})`); } });
  if (!said.length) return '';
  return said.length === 1 ? `best guess: ${said[0]}, unchanged` : `best guess: ${said.length > 5 ? `${said.slice(0, 2).join(' → ')} → … ${said.length - 4} more … → ${said.slice(-2).join(' → ')}` : said.join(' → ')}`;
}

export function mount(root, store) {
  const title = el('span', {text: 'Why'});
  const chip = el('span', {className: 'tok mono'});
  const story = el('span', {className: 'k'});
  const symbols = el('div', {className: 'mono'});
  const filled = el('div', {className: 'mono'});
  const staticLine = el('div', {className: 'k'});
  const box = el('div', {className: 'rule'}, symbols, filled, staticLine);
  const chart = el('div', {className: 'cv life'});
  const candHead = el('div', {className: 'h', text: 'Candidates'});
  const guesses = el('div', {className: 'k guesses'});
  const cand = el('div', {className: 'cands'});
  const kv = el('dl', {className: 'kv'});
  const clusters = el('div', {className: 'layers'});
  const clusterHead = el('div', {className: 'h', text: 'Cluster by layer'});
  const act = (text, title, f) => el('button', {type: 'button', className: 'chip-b', text, title, on: {click: f}});
  const forkButton = act('', 'Run on from here with other parameters, another method or an edited canvas', () => store.set({tab: 'forks'}));
  const putInput = el('input', {type: 'text', 'aria-label': 'Token to put here', placeholder: 'token', spellcheck: false, autocomplete: 'off'});
  const doing = el('form', {className: 'acts', on: {submit: (event) => { event.preventDefault(); if (putInput.value) { draftEdit(store, store.sel.pos, putInput.value); putInput.value = ''; } }}},
    act('break here', 'Pause when this position is committed (b)', () => store.send({cmd: 'breakpoint', op: 'add', breakpoint: {position: store.sel.pos}})), forkButton,
    act('re-mask', 'Fork with [MASK] at this position', () => draftEdit(store, store.sel.pos, null)), putInput, el('button', {type: 'submit', className: 'chip-b', text: 'put', title: 'Fork with this token at this position'}));
  const full = el('div', {className: 'why-body'}, el('div', {className: 'why-top'}, chip, story), doing, box, chart, guesses, el('div', {className: 'h', text: 'At this pass'}), kv, candHead, cand, clusterHead, clusters);
  const none = el('p', {className: 'k hint', text: 'Click a token, or move to the grid with Tab and the arrow keys: its confidence, drift and the rule that committed it appear here.'});
  const head = el('div', {className: 'h'}, title);
  const brushed = el('div', {className: 'brushed', hidden: true});
  root.append(brushed, head, none, full);
  const selection = brush.mount(brushed, store);
  const view = sharp(chart, store);

  let shownCand = '';
  let shownClusters = '';

  function rows(list) {
    while (kv.children.length > list.length) kv.lastChild.remove();
    while (kv.children.length < list.length) kv.append(el('div', {}, el('dt'), el('dd')));
    list.forEach(([a, b], i) => { const [dt, dd] = kv.children[i].children; say(dt, a); dt.title = a; say(dd, b); });
  }

  function draw() {
    const t = store.theme;
    const lane = store.sel && (store.lanes[store.sel.lane] ? store.sel.lane : store.open[0]);
    const log = lane && store.lanes[lane];
    none.hidden = !!log;
    full.hidden = !log;
    say(title, log ? `Why · position ${store.sel.pos} · lane ${lane}` : 'Why');
    if (!log || !t) return;
    const pos = store.sel.pos;
    const p = store.passOf(lane);
    if (pos < log.P) {
      say(chip, tokenName(store, log.header.prompt_ids[pos]));
      chip.className = 'tok mono';
      say(story, 'part of the prompt');
      for (const node of [box, chart, guesses, doing, candHead, cand]) node.hidden = true;
      rows([['drift δ', 'n/a']]);
      drawClusters(log, p, pos);
      return;
    }
    box.hidden = chart.hidden = guesses.hidden = false;
    doing.hidden = store.offline;
    say(forkButton, `fork from pass ${p}`);
    const state = log.stateAt(p);
    const now = state.tok[pos - log.P];
    const commit = log.commitAt(pos, p);
    const later = commit ? null : log.commitAt(pos);
    const n = log.numbers(p, pos);
    say(chip, now >= 0 ? tokenName(store, now) : n && n.am !== null ? `${tokenName(store, n.am)}?` : '[MASK]');
    chip.className = `tok mono r-${commit ? REASONS[commit.r] : 'masked'}`;
    const blockNo = blockOf(log, pos);
    say(story, commit ? `block ${blockNo}, committed at pass ${commit.at}: ${REASON_LABEL[REASONS[commit.r]]}` : `block ${blockNo}, masked at pass ${p}${later ? `; committed at pass ${later.at}` : ''}`);
    const params = paramsAt(log, commit ? commit.at : p);
    box.className = `rule r-${commit ? REASONS[commit.r] : 'masked'}`;
    if (commit) { const [a, b] = rule(commit, params); say(symbols, a); say(filled, b); } else if (n && n.conf !== null) {
      say(symbols, n.gate !== null ? 'not yet: Δ < α (τ_s − c)²' : 'not yet: c < τ_s');
      say(filled, n.gate !== null ? `${short(n.delta)} < ${short(n.gate)},  c = ${num(n.conf, 2)}` : `c = ${num(n.conf, 2)}${Number.isFinite(Number(params.tau_s)) ? ` < ${Number(params.tau_s).toFixed(2)}` : ''}`);
    } else { say(symbols, 'waiting for its block'); say(filled, ''); }
    say(staticLine, staticStory(log, pos, commit));
    const s = life(log, pos);
    const driftless = !s.drift.some(Number.isFinite);
    chart.classList.toggle('flat', driftless);
    chart.hidden = !s.x.length;
    if (s.x.length && view.w) drawLife(view, t, s, (commit || later)?.at ?? -1, p, driftless);
    say(guesses, guessStory(store, s));
    const at = n || (commit ? log.numbers(commit.at, pos) : null);
    const lack = at || !commit ? noDrift(log, at ? [at.step] : []) : 'n/a'; // outside its block a commit has no drift at all
    rows([
      ['argmax', at && at.am !== null ? tokenName(store, at.am) : 'n/a'],
      ['confidence', at && at.conf !== null ? num(at.conf, 3) : commit ? num(commit.conf, 3) : 'n/a'],
      ['drift δ, nats', at && at.drift !== null ? short(at.drift) : lack],
      [`mean of last ${params.h ?? 'h'}`, at && at.drift !== null && at.delta !== null ? short(at.drift - at.delta) : lack],
      ['Δ', at && at.delta !== null ? short(at.delta) : lack],
      ['gate', at && at.gate !== null ? short(at.gate) : 'n/a'],
      ...ofMethod(at, commit, log),
      ...stale(log, p, pos),
    ]);
    drawCandidates(log, n, commit, pos);
    drawClusters(log, p, pos);
  }

  /** Numbers of the method's own rule: KL, entropy at the commit. */
  function ofMethod(at, commit, log) {
    const out = [];
    const kl = at?.step.extra.klass?.kl?.[at.j];
    if (at?.step.extra.klass) out.push(['KL, nats', Number.isFinite(kl) ? short(kl) : 'n/a']);
    const made = commit && log.steps[commit.at];
    const entropy = made?.extra.entropies?.[made.commits.findIndex((c) => c.pos === commit.pos)];
    if (Number.isFinite(entropy)) out.push(['entropy at commit', short(entropy)]);
    return out;
  }

  function stale(log, p, pos) {
    for (let i = p; i >= 0; i--) {
      const a = log.steps[i].stale;
      if (a) return [[`K/V staleness, layer ${store.view.layer}`, short(a[store.view.layer * log.header.length + pos])]];
    }
    return [];
  }

  function drawCandidates(log, n, commit, pos) {
    const source = n?.step.cand && (n.step.cand.tok[n.j * 5] >= 0) ? n : commit ? log.numbers(commit.at, pos) : null;
    candHead.hidden = cand.hidden = false;
    const key = `${store.run}/${log.name}/${pos}/${source?.step.i}/${store.vocab.size}`;
    if (key === shownCand) return;
    shownCand = key;
    if (!source?.step.cand) { say(candHead, 'Candidates'); cand.replaceChildren(el('span', {className: 'k', text: log.header.level === 'full' ? 'n/a at this pass' : 'n/a (kept at level full)'})); return; }
    say(candHead, `Candidates at pass ${source.step.i}`);
    const list = [];
    for (let k = 0; k < 5; k++) {
      const id = source.step.cand.tok[source.j * 5 + k];
      const pr = source.step.cand.p[source.j * 5 + k];
      if (id < 0 || !Number.isFinite(pr)) continue;
      const fill = el('i');
      fill.style.width = `${Math.max(0, Math.min(100, pr * 100))}%`;
      list.push(el('span', {className: 'mono', text: tokenName(store, id)}), el('span', {className: 'meter'}, fill), el('span', {className: 'v', text: num(pr, 3)}));
    }
    cand.replaceChildren(...(list.length ? list : [el('span', {className: 'k', text: 'n/a'})]));
  }

  function drawClusters(log, p, pos) {
    const win = log.windowAt(p);
    const j = win ? win.win.indexOf(pos) : -1;
    clusterHead.hidden = clusters.hidden = false;
    const key = `${store.run}/${log.name}/${pos}/${win?.at}/${p < 0 ? -1 : log.refreshOf[p]}/${store.view.layer}/${store.rev.theme}`;
    if (key === shownClusters) return;
    shownClusters = key;
    if (j < 0) { clusters.replaceChildren(el('span', {className: 'k', text: win ? 'not in the local window now' : 'n/a'})); return; }
    const W = win.win.length;
    const refresh = log.refreshOf[p];
    const sel = refresh >= 0 ? log.steps[refresh].sel : null;
    clusters.replaceChildren(...Array.from({length: log.header.n_layers}, (_, l) => {
      const k = win.lab[l * W + j];
      const on = sel && sel[l * win.K + k];
      const node = el('button', {type: 'button', className: `lay${on ? ' on' : ''}${l === store.view.layer ? ' cur' : ''}`, title: `layer ${l}: cluster ${k}${on ? `, refreshed at pass ${refresh}` : ''}`,
        on: {click: () => store.set({layer: l})}}, el('small', {text: String(l)}), el('b', {text: String(k)}));
      node.style.setProperty('--k', store.theme.clusters[k & 7]);
      return node;
    }));
  }

  const unwatch = store.watch(['data', 'cursor', 'sel', 'view', 'size', 'theme'], draw);
  return {draw, destroy() { unwatch(); selection.destroy(); view.destroy(); root.replaceChildren(); }};
}
