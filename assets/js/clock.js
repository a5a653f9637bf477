/**
 * Gradio's "Loading" sign keeps a clock on requestAnimationFrame that runs on for the life of the page, long after the sign is gone: sixty
 * frames a second that nobody sees, a tenth of a core.
 *
 * Contract: `stopStrayClock()` watches until in each of FRAMES frames in a row somebody else asked for exactly one frame, and takes the last of
 * these back, which ends a chain of them. Where nobody asks for frames it gives up after LOOKS frames, having done nothing. Frame handles count up by one.
 */

const FRAMES = 60; // a second: longer than any transition of the page
const LOOKS = 600;

export function stopStrayClock(host = window) {
  let before = 0;
  let alike = 0;
  let looks = 0;
  const look = () => {
    const mine = host.requestAnimationFrame(look);
    alike = before && mine - before === 2 ? alike + 1 : 0;
    before = mine;
    looks += 1;
    if (alike === FRAMES) host.cancelAnimationFrame(mine - 1);
    if (alike === FRAMES || looks === LOOKS) host.cancelAnimationFrame(mine);
  };
  host.requestAnimationFrame(look);
}
