/**
 * The tooltip: lines of text near the pointer, kept inside the page's root.
 *
 * Contract: `show(clientX, clientY, lines)` with lines of [label, value] or a plain string; `hide()`; `over(box, move, leave)` calls `move(event)` where the pointer
 * moves over `box` and, from `again()` on, where it rests there while what it points at changes. Text by textContent only.
 */

import {el} from './dom.js';

export function makeTip(app) {
  const box = el('div', {className: 'tip', role: 'tooltip', hidden: true});
  app.append(box);
  let rests = null; // the pointer on a panel: {move, event}
  return {
    over(panel, move, leave) {
      panel.addEventListener('pointermove', (event) => { rests = {move, event, panel}; move(event); });
      panel.addEventListener('pointerleave', (event) => { if (rests?.panel === panel) rests = null; leave(event); });
    },
    again() { if (rests?.panel.isConnected) rests.move(rests.event); },
    show(x, y, lines) {
      box.replaceChildren(...lines.map((line) => (typeof line === 'string'
        ? el('div', {className: 'tip-line', text: line})
        : el('div', {className: 'tip-row'}, el('span', {text: line[0]}), el('b', {text: line[1]})))));
      box.hidden = false;
      const frame = app.getBoundingClientRect();
      const w = box.offsetWidth;
      const h = box.offsetHeight;
      let left = x - frame.left + 14;
      let top = y - frame.top + 16;
      if (left + w > frame.width - 6) left = x - frame.left - w - 12;
      if (top + h > frame.height - 6) top = y - frame.top - h - 12;
      box.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
    },
    hide() { box.hidden = true; },
  };
}
