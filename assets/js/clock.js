/**
 * Gradio's "Loading" sign keeps a clock on requestAnimationFrame that runs on for the life of the page, long after the sign is gone: sixty
 * frames a second that nobody sees, a tenth of a core.
 *
 * Contract: `stopStrayClock()` watches until in each of FRAMES frames in a row exactly one frame was asked for by way of a function kept from before
 * (as that clock does; everybody else asks the window), and takes the last of these back, which ends a chain of them. After LOOKS frames without such
 * a row it gives up, having done nothing. Frame handles count up by one.
 */

const FRAMES = 60; // a second: longer than any transition of the page
const LOOKS = 1200;

export function stopStrayClock(host = window) {
  const request = host.requestAnimationFrame;
  const known = new Set(); // handles since the last look that were asked for at the window
  const watched = (draw) => { const handle = request.call(host, draw); known.add(handle); return handle; };
  let before = 0;
  let alike = 0;
  let looks = 0;
  const look = () => {
    const mine = request.call(host, look);
    const strays = [];
    for (let handle = before + 1; before && handle < mine; handle += 1) if (!known.has(handle)) strays.push(handle);
    known.clear();
    alike = strays.length === 1 ? alike + 1 : 0;
    before = mine;
    looks += 1;
    if (alike === FRAMES) host.cancelAnimationFrame(strays[0]);
    if (alike === FRAMES || looks === LOOKS) {
      host.cancelAnimationFrame(mine);
      if (host.requestAnimationFrame === watched) host.requestAnimationFrame = request;
    }
  };
  host.requestAnimationFrame = watched;
  request.call(host, look);
}
