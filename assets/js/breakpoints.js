/**
 * Breakpoints and stepping: what the run pauses at, and the way to the next or previous event.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`. The list is the server's (event `breakpoints`); the form sends conditions, combined by "and".
 * Stepping back and forward moves on the log at once; where the log ends and the run is paused, forward runs on to the next such event. A breakpoint belongs to
 * no run, so any position is taken; one that the runs shown now cannot commit is said beside it.
 */

import {conditionRow} from './conditions.js';
import {el, icon, say} from './dom.js';
import {KINDS, findEvent} from './events.js';

const QUICK = [['refresh', 'refresh'], ['block_entry', 'block entry'], ['commit', 'drift event', 'drift'], ['commit', 'suffix pre-commit', 'suffix'], ['commit', 'forced commit', 'forced']];

/** Forward (1) or back (-1) to the next event of a kind; forward beyond the log is the server's to do. True when something happened. */
export function step(store, kind, direction) {
  const lane = store.focus;
  const log = store.lanes[lane];
  if (!log) return false;
  const to = findEvent(log, store.passOf(lane), kind, direction);
  if (to >= 0) { store.seekPass(lane, to); return true; }
  if (direction < 0 || !['paused', 'running'].includes(store.status.state)) return false;
  store.end();
  store.send({cmd: 'step', what: kind, lane});
  return true;
}

/** Why a breakpoint at a position cannot fire in what is shown now, in one sentence; '' where it can. */
export function cannotFire(store, position) {
  const wrong = (log) => (position >= log.header.length ? `is outside the canvas of ${log.header.length} positions` : position < log.P ? `belongs to the prompt of ${log.P} positions` : '');
  const said = position === null || position === undefined ? [] : store.open.map((lane) => [lane, wrong(store.lanes[lane])]).filter(([, text]) => text);
  if (!said.length) return '';
  const all = said.length === store.open.length;
  if (all && said.every(([, text]) => text === said[0][1])) return `position ${position} ${said[0][1]} shown now; it cannot fire in ${said.length > 1 ? 'these runs' : 'this run'}`;
  return `position ${position} ${said.map(([lane, text]) => `${text} of lane ${lane}`).join(' and ')}; it cannot fire ${all ? 'in these runs' : 'there'}`;
}

export function mount(root, store) {
  const list = el('ul', {className: 'rows', 'aria-label': 'Breakpoints'});
  const none = el('p', {className: 'k hint', text: 'The run pauses at the event itself and says which breakpoint fired. Press b on a cell for its position, or add one here.'});
  const rows = [];
  const conds = el('div', {className: 'conds'});
  const problem = el('p', {className: 'problem', role: 'alert', hidden: true});
  const add = (name) => {
    const row = conditionRow(name, {onRemove: (r) => { if (rows.length > 1) { rows.splice(rows.indexOf(r), 1); r.node.remove(); } }});
    rows.push(row);
    conds.append(row.node);
    return row;
  };
  add('commit');
  const form = el('form', {className: 'add', 'aria-label': 'New breakpoint', on: {submit: (event) => {
    event.preventDefault();
    const breakpoint = {};
    problem.hidden = true;
    try { for (const row of rows) row.read(breakpoint); } catch (error) { say(problem, error.message); problem.hidden = false; return; }
    store.send({cmd: 'breakpoint', op: 'add', breakpoint});
  }}}, conds, el('div', {className: 'line'}, el('button', {type: 'button', className: 'btn', text: '+ and', on: {click: () => add('delta_above')}}), el('span', {className: 'sp'}),
    el('button', {type: 'submit', className: 'btn primary', text: 'Add breakpoint'})), problem);
  const quick = el('div', {className: 'chips'}, ...QUICK.map(([name, label, value]) => el('button', {type: 'button', className: 'chip-b', text: label, title: `Pause at each ${label}`,
    on: {click: () => store.send({cmd: 'breakpoint', op: 'add', breakpoint: value ? {[name]: value} : {[name]: true}})}})));
  const clear = el('button', {type: 'button', className: 'link plain', text: 'remove all', on: {click: () => store.send({cmd: 'breakpoint', op: 'clear'})}});
  const stepRow = ([kind, label]) => el('div', {className: 'step-row'}, el('button', {type: 'button', className: 'ib', 'aria-label': `Back to ${label}`, title: 'Back, on the log', on: {click: () => moved(step(store, kind, -1), label)}}, icon('back')),
    el('span', {text: label.replace(/ (pre-)?commit$/, '')}), el('button', {type: 'button', className: 'ib', 'aria-label': `Forward to ${label}`, title: 'Forward on the log; beyond its end the run goes on to it', on: {click: () => moved(step(store, kind, 1), label)}}, icon('next')));
  const said = el('p', {className: 'k', role: 'status'});
  const moved = (yes, label) => say(said, yes ? '' : `no ${label} further on that side`);
  root.append(el('div', {className: 'h', text: 'Step to'}), el('div', {className: 'steps-grid'}, ...KINDS.map(stepRow)), said,
    el('div', {className: 'h line'}, el('span', {text: 'Breakpoints'}), el('span', {className: 'sp'}), clear), none, list, el('div', {className: 'h', text: 'Pause at'}), quick, form);

  const canvases = () => store.open.map((lane) => [store.lanes[lane].P, store.lanes[lane].header.length]).join(';');
  let drawnFor = '';
  function draw() {
    drawnFor = canvases();
    none.hidden = store.breakpoints.length > 0;
    clear.hidden = !store.breakpoints.length;
    list.replaceChildren(...store.breakpoints.map((b) => {
      const id = `bp-${b.id}`;
      const out = cannotFire(store, b.position);
      const box = el('input', {type: 'checkbox', id, checked: b.enabled !== false, on: {change: () => store.send({cmd: 'breakpoint', op: box.checked ? 'enable' : 'disable', id: b.id})}});
      return el('li', {className: b.fired ? 'fired' : ''}, box, el('label', {htmlFor: id, text: b.text}, b.fired ? el('span', {className: 'why-fired', text: b.fired}) : null, out ? el('span', {className: 'cannot', role: 'note', text: out}) : null),
        el('button', {type: 'button', className: 'ib tiny', 'aria-label': `Remove breakpoint ${b.text}`, text: '×', on: {click: () => store.send({cmd: 'breakpoint', op: 'remove', id: b.id})}}));
    }));
  }
  const undo = [store.watch(['lists'], draw), store.watch(['data'], () => { if (canvases() !== drawnFor) draw(); })];
  return {draw, destroy() { for (const f of undo) f(); root.replaceChildren(); }};
}
