/**
 * The tab strip of the right column (ARIA tabs: arrows move, Home and End jump, one tab stop).
 *
 * Contract: `makeTabs(root, store, list) -> {destroy}` with list = [{name, label, title, box, live, also}]; the open one is `store.view.tab`. `live` tabs need a
 * server and are left out of a recording in a file. A panel in a closed tab is hidden and need not draw: `shown(store, name)` says so. `also()` shows a panel beside the open one, `when()`
 * says whether the tab has anything to show.
 */

import {el} from './dom.js';

export const shown = (store, name) => store.view.tab === name;

export function makeTabs(root, store, list) {
  const strip = el('div', {className: 'tabs', role: 'tablist', 'aria-label': 'Panels'});
  const body = el('div', {className: 'tab-body'});
  const tabs = list.map(({name, label, title, box, live, also, when}) => {
    const button = el('button', {type: 'button', role: 'tab', id: `tab-${name}`, text: label, title, 'aria-controls': `panel-${name}`, on: {click: (event) => {
      store.set({tab: name});
      if (event.detail) button.blur(); // after the mouse, arrows belong to the passes again
    }}});
    Object.assign(box, {id: `panel-${name}`, role: 'tabpanel'});
    box.setAttribute('role', 'tabpanel');
    box.setAttribute('aria-labelledby', button.id);
    box.classList.add('tab-panel');
    strip.append(button);
    body.append(box);
    return {name, button, box, live, also, when};
  });
  root.append(strip, body);

  const onKey = (event) => {
    const open = tabs.filter((t) => !t.button.hidden);
    const at = open.findIndex((t) => t.name === store.view.tab);
    const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: open.length - 1}[event.key];
    if (to === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const next = open[(to + open.length) % open.length];
    store.set({tab: next.name});
    draw();
    next.button.focus();
  };
  strip.addEventListener('keydown', onKey);

  function draw() {
    const usable = tabs.filter((t) => !(t.live && store.offline) && (!t.when || t.when()));
    for (const tab of tabs) tab.button.hidden = !usable.includes(tab);
    if (!usable.some((t) => t.name === store.view.tab)) store.view.tab = 'why';
    for (const {name, button, box, also} of tabs) {
      const on = shown(store, name);
      if (button.getAttribute('aria-selected') !== String(on)) { button.setAttribute('aria-selected', String(on)); button.tabIndex = on ? 0 : -1; }
      const visible = on || !!also?.();
      if (box.hidden === visible) box.hidden = !visible;
    }
  }
  const unwatch = store.watch(['view', 'data', 'sel'], draw);
  draw();
  return {draw, destroy() { unwatch(); root.replaceChildren(); }};
}
