/**
 * The right column: the tab strip and its panels.
 *
 * Contract: `mountSide(root, store, {tip, app}) -> {draw, destroy}`. The comparison has a tab of its own and also stands under the why panel while nothing
 * is selected.
 */

import * as breakpoints from './breakpoints.js';
import * as compare from './compare.js';
import {el} from './dom.js';
import * as forks from './forks.js';
import {makeTabs} from './tabs.js';
import * as exporting from './exporting.js';
import * as lessons from './lessons.js';
import * as method from './method.js';
import * as notes from './notes.js';
import * as observe from './observe.js';
import * as timing from './timing.js';
import * as whatif from './whatif.js';
import * as why from './why.js';

export function mountSide(root, store, {tip, app}) {
  const box = (className, label) => el('section', {className, 'aria-label': label});
  const why_ = box('why', 'Why');
  const compare_ = box('compare', 'Comparison');
  const breakpoints_ = box('breaks', 'Breakpoints');
  const whatif_ = box('whatif', 'What if');
  const notes_ = box('notes', 'Notes');
  const export_ = box('export', 'Export');
  const lessons_ = box('lessons', 'Lessons');
  const method_ = box('method', 'Method');
  const timing_ = box('timing', 'Timing');
  const observe_ = box('observe', 'Observe');
  const forks_ = box('forks', 'Forks');
  const panels = [why.mount(why_, store), compare.mount(compare_, store), breakpoints.mount(breakpoints_, store), forks.mount(forks_, store), whatif.mount(whatif_, store),
    timing.mount(timing_, store, {tip}), observe.mount(observe_, store, {tip}),
    notes.mount(notes_, store), exporting.mount(export_, store, {app}), lessons.mount(lessons_, store, {app}), method.mount(method_, store)];
  const tabs = makeTabs(root, store, [
    {name: 'why', label: 'Why', title: 'What happened to the selected token', box: why_},
    {name: 'compare', label: 'Compare', title: 'Lane A against lane B', box: compare_,
      also: () => store.view.tab === 'why' && !store.sel && !!store.lanes.A && !!store.lanes.B},
    {name: 'whatif', label: 'What if', title: 'Judge the recording again with other α, τ_s, h', box: whatif_},
    {name: 'breaks', label: 'Breakpoints', title: 'Pause at events, step to events', box: breakpoints_, live: true},
    {name: 'forks', label: 'Forks', title: 'Run on differently from any pass', box: forks_, live: true},
    {name: 'timing', label: 'Timing', title: 'Where the time of each pass went; memory', box: timing_},
    {name: 'method', label: 'Method', title: 'What the method itself logged in this pass', box: method_},
    {name: 'notes', label: 'Notes', title: 'Notes pinned to a moment', box: notes_},
    {name: 'export', label: 'Export', title: 'Pictures, tables, files, links; open a trace', box: export_},
    {name: 'lessons', label: 'Lessons', title: 'Six short guided lessons', box: lessons_, live: true, also: () => store.lesson},
    {name: 'observe', label: 'Observe', title: 'Staleness and drift of all positions', box: observe_, when: () => observe.observed(store.lanes[store.focus])},
  ]);
  return {draw() {}, destroy() { tabs.destroy(); for (const p of panels) p.destroy(); root.replaceChildren(); }};
}
