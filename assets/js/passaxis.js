/**
 * The pass axis that heatmap and timeline share: equal columns, one per pass of the focused lane, so both line up.
 *
 * Contract: `passAxis(store, width)` -> {x(i), cw, n, left, right, at(px)}; while a run goes on room for 40 passes at least, then for a half or a third
 * more each time it is full, so that columns do not shrink at every pass; of a finished one, for its passes.
 */

export const LEFT = 42;
export const RIGHT = 54;

/** 40, 60, 80, 120, 160, 240, ... */
function roomFor(passes) {
  let room = 40;
  while (room < passes) room = Math.log2(room / 40) % 1 ? (room / 3) * 4 : room * 1.5;
  return room;
}

export function passAxis(store, width) {
  const log = store.lanes[store.focus];
  const longest = log ? log.n : 0;
  const room = log && log.status !== 'open' ? Math.max(16, longest) : roomFor(longest + 2);
  const cw = Math.max(0.2, (width - LEFT - RIGHT) / room);
  return {cw, n: longest, room, left: LEFT, right: width - RIGHT, x: (i) => LEFT + i * cw, at: (px) => Math.floor((px - LEFT) / cw)};
}

/** A tidy tick step for `room` passes in `px` pixels. */
export function tickStep(room, px) {
  for (const s of [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000]) if ((px / room) * s >= 34) return s;
  return 2000;
}
