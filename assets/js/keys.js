/**
 * The keyboard of the page.
 *
 * Contract: `bindKeys(app, store, actions)` -> function that unbinds. Keys typed into a field, or meant for a control that uses them, are left alone;
 * so are keys with Ctrl, Alt or Meta. Keys work while the focus is inside the page's root or nowhere.
 */

import {step} from './breakpoints.js';

const FIELDS = new Set(['INPUT', 'TEXTAREA', 'SELECT', 'OPTION']);

export function bindKeys(host, store, actions) {
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.composedPath()[0];
    const inside = event.composedPath().includes(host);
    if (target instanceof Element && (FIELDS.has(target.tagName) || target.isContentEditable)) return;
    if (!inside && target !== document.body && target !== document.documentElement && target !== document) return;
    const onButton = target instanceof Element && (target.tagName === 'BUTTON' || target.tagName === 'A');
    const act = {
      ' ': () => (onButton ? false : actions.space()),
      ArrowLeft: () => store.move(-1), ArrowRight: () => store.move(1),
      Home: () => store.home(), End: () => store.end(),
      '[': () => goto(-1), ']': () => goto(1),
      b: () => actions.breakpoint(), l: () => actions.otherLane(), '?': () => actions.help(),
      Escape: () => (actions.helpOpen() ? false : store.select(null)),
    }[event.key];
    if (!act) return;
    actions.interrupt(event.key);
    if (act() !== false) event.preventDefault();
  };
  const goto = (direction) => { step(store, store.view.kind, direction); };
  document.addEventListener('keydown', onKey);
  return () => document.removeEventListener('keydown', onKey);
}
