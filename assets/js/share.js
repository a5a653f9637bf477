/**
 * Short links: settings and position in the page's address.
 *
 * Contract: `linkTo(store) -> url`; `readLink(store, send) -> function that stops waiting`. The fragment is `#ps=` + base64url of JSON {s: settings, o: opened
 * trace, x: cursor, al: alignment, sel: [lane, position], v: view}. Settings go to the server, which fills its controls; the position is taken up as soon as the
 * log reaches it. A link that cannot be read is said in one sentence and changes nothing.
 */

const VIEW = ['align', 'layer', 'proj', 'log', 'metric', 'fold', 'focus', 'tab'];
const MARK = '#ps=';

const pack = (value) => btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(value)))).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
const unpack = (text) => JSON.parse(new TextDecoder('utf-8', {fatal: true}).decode(Uint8Array.from(atob(text.replace(/-/g, '+').replace(/_/g, '/')), (c) => c.charCodeAt(0))));

/** Settings of the run that is shown, in the names of the controls; `lane_b` are lane B's that are not lane A's (all, where its preset is another). */
export function settingsOf(store) {
  const {A, B} = store.lanes;
  if (!A) return {};
  const h = A.header;
  const all = {...h.config, prompt: h.prompt_text || '', model: h.model, method_a: h.method, preset: h.preset || 'paper', compare: !!B};
  if (!B) return all;
  const own = B.header.preset && B.header.preset !== all.preset ? {preset_b: B.header.preset} : {};
  return {...all, method_b: B.header.method, ...own, lane_b: Object.fromEntries(Object.entries(B.header.config).filter(([name, v]) => own.preset_b || h.config[name] !== v))};
}

export function linkTo(store) {
  const state = {s: settingsOf(store), x: store.position, v: Object.fromEntries(VIEW.map((k) => [k, store.view[k]]))};
  if (store.sel) state.sel = [store.sel.lane, store.sel.pos];
  const live = store.open.some((l) => store.lanes[l].header.live);
  if (store.opened && !live) state.o = store.opened;
  return location.href.split('#')[0] + MARK + pack(state);
}

export function readLink(store) {
  const at = location.hash;
  if (!at.startsWith(MARK)) return () => {};
  let state;
  try { state = unpack(at.slice(MARK.length)); if (!state || typeof state !== 'object') throw new Error('not an object'); } catch {
    store.fail('The link in the address is damaged; the page starts with its own settings.');
    return () => {};
  }
  for (const k of VIEW) if (state.v && typeof state.v[k] === typeof store.view[k]) store.view[k] = state.v[k];
  if (Number.isInteger(state.v?.layer)) store.view.layer = state.v.layer;
  const timer = setTimeout(() => {
    if (state.s && typeof state.s === 'object' && Object.keys(state.s).length) store.send({cmd: 'settings', values: state.s});
    if (typeof state.o === 'string') store.send({cmd: 'open', name: state.o});
  }, 0);
  const stop = store.watch(['data'], () => {
    const ticks = store.ticks();
    if (!ticks.length || ticks[ticks.length - 1] < state.x) return;
    if (Number.isFinite(state.x)) store.seek(state.x);
    if (Array.isArray(state.sel) && store.lanes[state.sel[0]]) store.select(state.sel[0], Number(state.sel[1]));
    stop();
  });
  return () => { clearTimeout(timer); stop(); };
}
