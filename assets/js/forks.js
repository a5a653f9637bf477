/**
 * Forks: run on from the pass under the cursor with changed parameters, another method, or an edited canvas; and the tree of what was forked so far.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`. The draft (`store.draft`) holds edits {position: text | token id | null} and changes {name: value}; other
 * panels add to it by `draftEdit`. The pass is the lane's pass at the cursor; -1 is "before the first". The tree is the server's (event `branches`).
 */

import {el, say} from './dom.js';
import {tokenName} from './describe.js';
import {forkParams, nameOf, paramsOf} from './params.js';

/** Put text (or null: [MASK]) at a position in the draft and show the form. */
export function draftEdit(store, pos, value) {
  store.draft.edits.set(pos, value);
  store.touch('lists');
  store.set({tab: 'forks'});
}

/** What a person typed as a parameter's value. */
export function readValue(text) {
  const t = text.trim();
  if (t === 'true' || t === 'false') return t === 'true';
  if (t === '') return null;
  return Number.isFinite(Number(t)) ? Number(t) : t;
}

const shownValue = (v) => (v === null || v === undefined ? '' : String(v));

export function mount(root, store) {
  const where = el('p', {className: 'now'});
  const lane = el('select', {'aria-label': 'Show the fork in lane', on: {change: () => { store.draft.to = lane.value; }}}, el('option', {value: 'A', text: 'lane A'}), el('option', {value: 'B', text: 'lane B'}));
  const method = el('select', {'aria-label': 'Method of the fork', on: {change: () => choose(method.value || null)}});
  const dropped = el('p', {className: 'k', role: 'status'});
  const changes = el('div', {className: 'conds'});
  const param = el('select', {'aria-label': 'Parameter to change', on: {change: () => { if (param.value) { store.draft.changes.set(param.value, undefined); store.touch('lists'); } }}});
  const edits = el('div', {className: 'conds'});
  const put = el('input', {type: 'text', 'aria-label': 'Token for the selected position', placeholder: 'token', spellcheck: false, autocomplete: 'off'});
  const putButton = el('button', {type: 'submit', className: 'btn', text: 'put'});
  const maskButton = el('button', {type: 'button', className: 'btn', text: 're-mask', on: {click: () => { store.draft.edits.set(store.sel.pos, null); store.touch('lists'); }}});
  const at = el('span', {className: 'k'});
  const putRow = el('form', {className: 'line', on: {submit: (event) => { event.preventDefault(); if (put.value === '' || !store.sel) return; store.draft.edits.set(store.sel.pos, put.value); put.value = ''; store.touch('lists'); }}}, at, put, putButton, maskButton);
  const go = el('button', {type: 'button', className: 'btn primary', text: 'Fork', on: {click: send}});
  const problem = el('p', {className: 'problem', role: 'alert', hidden: true});
  const tree = el('ul', {className: 'rows tree', 'aria-label': 'Branches'});
  const none = el('p', {className: 'k hint', text: 'Forks of this run stand here. An unchanged fork reproduces the original; the engine checks that.'});
  const field = (label, node) => el('label', {className: 'field'}, el('span', {className: 'k', text: label}), node);
  root.append(el('div', {className: 'h', text: 'Fork'}), where, field('method', method), field('parameters', param), dropped, changes, el('div', {className: 'k', text: 'canvas at the selected position'}), putRow, edits,
    el('div', {className: 'line'}, field('into', lane), el('span', {className: 'sp'}), el('button', {type: 'button', className: 'link plain', text: 'clear', on: {click: () => { store.draft = fresh(store); say(dropped, ''); store.touch('lists'); }}}), go), problem,
    el('div', {className: 'h', text: 'Branches'}), none, tree);

  const source = () => store.lanes[store.focus];
  /** What people read for a parameter of the fork's method, or of the one that it leaves. */
  const symbol = (name) => paramsOf(store.methods, store.draft.method || source()?.header.method)?.[name]?.symbol || nameOf(source(), name);

  /** Fork by another method: changes of parameters that it does not have go, and that is said. */
  function choose(name) {
    const d = store.draft;
    const has = paramsOf(store.methods, name || source()?.header.method);
    const gone = has ? [...d.changes.keys()].filter((n) => !(n in has)) : [];
    say(dropped, gone.length ? `${method.selectedOptions[0].textContent} has no ${gone.map(symbol).join(', ')}: taken out` : '');
    for (const n of gone) d.changes.delete(n);
    d.method = name;
    store.touch('lists');
  }

  function send() {
    const log = source();
    const d = store.draft;
    problem.hidden = true;
    const out = {};
    for (const [name, value] of d.changes) {
      if (value === undefined || value === null) { say(problem, `The new value of ${symbol(name)} is empty; write one or take the row away.`); problem.hidden = false; return; }
      out[name] = value;
    }
    asked = store.status;
    store.send({cmd: 'fork', lane: log.name, pass: store.passOf(log.name), changes: out, method: d.method, edits: Object.fromEntries([...d.edits].map(([pos, v]) => [String(pos), v])), to: lane.value});
  }

  /** Why the fork that was asked for was refused, said beside its button as well: a status that does not begin one. */
  let asked = null;
  function answered() {
    if (!asked || store.status === asked) return;
    asked = null;
    if (['loading', 'queued', 'running'].includes(store.status.state) || !store.status.text) return;
    say(problem, store.status.text);
    problem.hidden = false;
  }

  let shownMethods = '';
  function draw() {
    const log = source();
    go.disabled = !log;
    if (!log) { say(where, 'No run yet.'); return; }
    const p = store.passOf(log.name);
    say(where, p < 0 ? `from before the first pass of lane ${log.name}` : `from pass ${p} of lane ${log.name}, block ${log.steps[p].block} (the cursor)`);
    const list = store.methods.length ? store.methods : store.open.map((l) => ({name: store.lanes[l].header.method, title: store.lanes[l].header.title}));
    const options = [['', `same: ${log.header.title || log.header.method}`], ...list.filter((m) => m.name !== log.header.method).map((m) => [m.name, m.title || m.name])];
    const key = JSON.stringify(options);
    if (key !== shownMethods) { shownMethods = key; method.replaceChildren(...options.map(([value, text]) => el('option', {value, text}))); }
    method.value = store.draft.method || '';
    lane.value = store.draft.to;
    const pos = store.sel?.pos;
    const usable = pos !== undefined && pos >= log.P;
    say(at, usable ? `${pos}` : 'none');
    for (const node of [put, putButton, maskButton]) node.disabled = !usable;
  }

  let shownDraft = '';
  function drawDraft() {
    const log = source();
    const d = store.draft;
    const by = d.method || log?.header.method;
    const config = log ? forkParams(store.methods, log, store.passOf(log.name), by) : {};
    const about = paramsOf(store.methods, by) || {};
    const names = Object.keys(config).filter((n) => !['gen_length', 'block_length'].includes(n));
    const key = JSON.stringify([[...d.changes.keys()], [...d.edits], config, by, store.vocab.size > 0]);
    if (key === shownDraft) return;
    shownDraft = key;
    const help = (n) => (about[n] ? `${about[n].help} Default: ${shownValue(about[n].default)}.` : '');
    param.replaceChildren(el('option', {value: '', text: 'change one…'}), ...names.filter((n) => !d.changes.has(n)).map((n) => el('option', {value: n, text: `${symbol(n)} = ${shownValue(config[n])}`, title: help(n)})));
    param.value = '';
    changes.replaceChildren(...[...d.changes.keys()].flatMap((name) => {
      const value = shownValue(d.changes.get(name) ?? config[name]);
      const set = () => d.changes.set(name, readValue(input.value));
      const choices = about[name]?.kind === 'bool' ? ['true', 'false'] : about[name]?.choices || [];
      const input = choices.length ? el('select', {'aria-label': `New value of ${name}`, on: {change: set}}, ...choices.map((c) => el('option', {value: c, text: c})))
        : el('input', {type: 'text', 'aria-label': `New value of ${name}`, spellcheck: false, autocomplete: 'off', on: {input: set}});
      input.value = value;
      set();
      return [el('div', {className: 'cond', title: help(name)}, el('span', {className: 'mono grow', text: symbol(name)}), el('span', {className: 'k', text: `${shownValue(config[name])} →`}), input,
        el('button', {type: 'button', className: 'ib tiny', 'aria-label': `Keep ${name} as it was`, text: '×', on: {click: () => { d.changes.delete(name); store.touch('lists'); }}})),
      ...(help(name) ? [el('p', {className: 'k', text: help(name)})] : [])];
    }));
    edits.replaceChildren(...[...d.edits].map(([pos, value]) => el('div', {className: 'cond'}, el('span', {className: 'mono grow', text: `position ${pos} ← ${value === null ? '[MASK]' : typeof value === 'number' ? tokenName(store, value) : JSON.stringify(value)}`}),
      el('button', {type: 'button', className: 'ib tiny', 'aria-label': `Undo the edit of position ${pos}`, text: '×', on: {click: () => { d.edits.delete(pos); store.touch('lists'); }}}))));
  }

  function drawTree() {
    none.hidden = store.branches.length > 0;
    const rows = [];
    const walk = (parent, depth) => {
      for (const b of store.branches.filter((x) => (x.parent ?? null) === parent)) {
        const open = (to) => el('button', {type: 'button', className: 'ib tiny', text: to, 'aria-pressed': String(b.lane === to), 'aria-label': `Open ${b.label} in lane ${to}`, title: `Open in lane ${to}`, on: {click: () => store.send({cmd: 'branch', id: b.id, lane: to})}});
        const li = el('li', {}, el('span', {className: 'grow'}, el('span', {text: b.label}), b.at === null || b.at === undefined || b.label.includes(`from pass ${b.at}`) ? null : el('span', {className: 'k', text: ` · from pass ${b.at}`})), open('A'), open('B'));
        li.style.marginLeft = `${Math.min(depth, 5) * 12}px`;
        rows.push(li);
        walk(b.id, depth + 1);
      }
    };
    walk(null, 0);
    tree.replaceChildren(...rows);
  }
  const undo = [store.watch(['data', 'cursor', 'sel', 'view', 'lists'], () => { if (store.view.tab === 'forks') { draw(); drawDraft(); } }), store.watch(['lists'], drawTree), store.watch(['status'], answered)];
  return {draw, destroy() { for (const f of undo) f(); root.replaceChildren(); }};
}

/** An empty draft; the fork is shown in the other lane, so that both stand side by side. */
export function fresh(store) {
  return {edits: new Map(), changes: new Map(), method: null, to: store?.lanes && store.focus === 'B' ? 'A' : 'B'};
}
