/**
 * The token grid for screen readers and the keyboard: real text cells in an ARIA grid, out of sight, with one roving tab stop.
 *
 * Contract: `readableGrid(root, store, lane) -> {sync(log, pass, columns), focus(pos), destroy}`. Cells follow the canvas a moment later
 * (they are not drawn, so they need not be in the frame); arrows move the selection, which the canvas shows.
 */

import {el} from './dom.js';
import {sentence} from './describe.js';

const SETTLE_MS = 180; // after the last move of the cursor
const LIVE_MS = 900; // in a run that goes on: nobody reads cells that change with every pass, and laying them out takes the decode's cores
const LONGEST_MS = 1000; // but no later than this, and a settling, in a run that never rests

export function readableGrid(root, store, lane) {
  const box = el('div', {className: 'sr', role: 'grid', 'aria-label': `Tokens of lane ${lane}`});
  root.append(box);
  let cells = [];
  let built = '';
  let wanted = null;
  let timer = 0;
  let active = 0;
  let first = 0;

  function build(log, columns) {
    const key = `${store.run}/${log.P}/${log.G}/${columns}`;
    if (key === built) return;
    built = key;
    cells = [];
    active = 0;
    const rows = [];
    for (const [s, e] of log.header.blocks) {
      for (let a = s; a < e; a += columns) {
        const row = el('div', {role: 'row'});
        for (let pos = a; pos < Math.min(e, a + columns); pos++) {
          const cell = el('span', {role: 'gridcell', tabIndex: cells.length ? -1 : 0});
          cell.dataset.pos = pos;
          cells.push(cell);
          row.append(cell);
        }
        rows.push(row);
      }
    }
    box.replaceChildren(...rows);
  }

  function fill() {
    timer = 0;
    if (!wanted) return;
    const {log, p, columns} = wanted;
    build(log, columns);
    const state = log.stateAt(p);
    for (const cell of cells) {
      const text = sentence(store, log, state, p, Number(cell.dataset.pos));
      if (cell.textContent !== text) cell.textContent = text;
      const on = store.sel?.lane === lane && store.sel.pos === Number(cell.dataset.pos);
      if ((cell.getAttribute('aria-selected') === 'true') !== on) cell.setAttribute('aria-selected', String(on));
    }
    box.getBoundingClientRect(); // lay the cells out here, in a task of their own, and not in the next redraw
  }

  function go(index) {
    index = Math.max(0, Math.min(cells.length - 1, index));
    if (cells[active]) cells[active].tabIndex = -1;
    active = index;
    cells[active].tabIndex = 0;
    cells[active].focus({preventScroll: true});
    store.select(lane, Number(cells[active].dataset.pos));
  }

  /** Shift and an arrow: the selection grows from the selected cell; the focus stays on it. */
  let reach = 0;
  function extend(index) {
    if (!store.brush.positions.size) reach = active;
    reach = Math.max(0, Math.min(cells.length - 1, reach + index - active));
    store.extend(lane, Number(cells[reach].dataset.pos));
  }

  const onKey = (event) => {
    if (!cells.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -(wanted?.columns || 1), ArrowDown: wanted?.columns || 1}[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.shiftKey) extend(active + step); else go(active + step);
  };
  const onFocus = (event) => { const i = cells.indexOf(event.target); if (i >= 0) { active = i; store.select(lane, Number(cells[i].dataset.pos)); } };
  box.addEventListener('keydown', onKey);
  box.addEventListener('focusin', onFocus);

  return {
    sync(log, p, columns) {
      wanted = log ? {log, p, columns} : null;
      if (!log) { box.replaceChildren(); built = ''; cells = []; return; }
      const now = performance.now();
      if (!timer) first = now;
      else if (now - first > LONGEST_MS) return;
      clearTimeout(timer);
      timer = setTimeout(fill, store.status.state === 'running' && store.follow ? LIVE_MS : SETTLE_MS);
    },
    focus(pos) {
      if (timer) { clearTimeout(timer); fill(); }
      const i = cells.findIndex((c) => Number(c.dataset.pos) === pos);
      if (i >= 0) go(i);
    },
    destroy() { clearTimeout(timer); wanted = null; cells = []; box.remove(); },
  };
}
