/**
 * Dragging over a canvas to select.
 *
 * Contract: `onDrag(box, view, update, end) -> function that unbinds`; `update(x0, y0, x1, y1)` in the canvas's own pixels, from the moment the pointer has
 * moved five of them; the click that ends a drag does not reach the panel.
 */

export function onDrag(box, view, update, end = () => {}) {
  let from = null;
  let moved = false;
  let swallow = false;
  const local = (event) => { const r = view.canvas.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top]; };
  const down = (event) => { swallow = false; if (event.button === 0 && !event.ctrlKey && !event.metaKey) { from = local(event); moved = false; } };
  const move = (event) => {
    if (!from) return;
    const to = local(event);
    if (!moved && Math.hypot(to[0] - from[0], to[1] - from[1]) < 5) return;
    if (!moved) box.setPointerCapture(event.pointerId);
    moved = true;
    update(...from, ...to);
  };
  const up = () => { if (moved) { swallow = true; end(); } from = null; moved = false; };
  const click = (event) => { if (swallow) { swallow = false; event.stopImmediatePropagation(); } };
  box.addEventListener('pointerdown', down);
  box.addEventListener('pointermove', move);
  box.addEventListener('pointerup', up);
  box.addEventListener('pointercancel', up);
  box.addEventListener('click', click, true);
  return () => { for (const [type, f] of [['pointerdown', down], ['pointermove', move], ['pointerup', up], ['pointercancel', up]]) box.removeEventListener(type, f); box.removeEventListener('click', click, true); };
}
