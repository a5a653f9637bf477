/**
 * What a lesson's step may do to the page.
 *
 * Contract: `readAction(text) -> {verb, words, args} or null` (null: plain code, not an action); `act(store, action, {light})` does it, or throws one sentence.
 * Actions name events rather than numbers where they can, so that a lesson survives a recording made anew:
 *
 *     goto pass=12 | goto start | goto end | goto drift [nth=2] | goto divergence     (events: block, refresh, drift, suffix, forced)
 *     select position=47 | select committed | select drift                            (of the pass that is shown: the first commit, of that reason)
 *     highlight grid | heatmap | timeline | clusters | membership | scrubber | panel | answer | strip
 *     tab whatif | show metric=conf fold=0 layer=2 proj=pca align=time focus=B | whatif tau_s=0.8
 *     open trace=vanilla lane=B | run method=polestar compare=fast-dllm-dual prompt="Reverse: a b c" alpha=4
 */

import {KINDS, findEvent} from './events.js';
import {jump} from './compare.js';

const VERBS = new Set(['goto', 'select', 'highlight', 'tab', 'show', 'whatif', 'open', 'run']);
const PLACES = {grid: '.lane-grid', heatmap: '.drift .fill', timeline: '.tl', clusters: '.window .fill', membership: '.ms', scrubber: '.scrub', panel: '.side', answer: '.lane-text', strip: '.strip', counters: '.lane-top'};
const SHOW = {metric: String, align: String, proj: String, focus: String, layer: Number, fold: (v) => v === '1', log: (v) => v === '1'};
const NAMED = new Set(['method', 'compare', 'prompt']);

export function readAction(text) {
  const parts = text.match(/(?:[^\s"=]+="[^"]*")|[^\s]+/g) || [];
  if (!VERBS.has(parts[0]) || parts.length < 2) return null;
  const args = {};
  const words = [];
  for (const part of parts.slice(1)) { const at = part.indexOf('='); if (at > 0) args[part.slice(0, at)] = part.slice(at + 1).replace(/^"|"$/g, ''); else words.push(part); }
  return {verb: parts[0], words, args, text};
}

const value = (v) => (v === 'true' ? true : v === 'false' ? false : v !== '' && Number.isFinite(Number(v)) ? Number(v) : v);

/** Whether the action needs a log that holds something. */
export const needsLog = ({verb}) => verb === 'goto' || verb === 'select' || verb === 'whatif';

export function act(store, action, {light, whatif}) {
  const {verb, words, args, text} = action;
  const lane = store.focus;
  const log = store.lanes[lane];
  const wrong = (why) => new Error(`The lesson's step "${text}" cannot be done: ${why}.`);
  switch (verb) {
    case 'goto': {
      if (args.pass !== undefined) { store.seekPass(lane, Number(args.pass)); return; }
      if (words[0] === 'start') { store.home(); return; }
      if (words[0] === 'end') { store.end(); return; }
      if (words[0] === 'divergence') { const d = store.divergence(); if (!d?.first) throw wrong('the lanes do not differ'); jump(store, d.first); return; }
      if (!KINDS.some(([name]) => name === words[0])) throw wrong('there is no such event');
      let at = -1;
      for (let k = 0; k < Number(args.nth || 1); k++) { at = findEvent(log, at, words[0], 1); if (at < 0) throw wrong(`this recording has no such ${words[0]}`); }
      store.seekPass(lane, at);
      return;
    }
    case 'select': {
      if (args.position !== undefined) { store.select(lane, Number(args.position)); return; }
      const commits = log.steps[store.passOf(lane)]?.commits || [];
      const c = commits.find((x) => words[0] === 'committed' || x.reason === words[0]);
      if (!c) throw wrong(`this pass has no such commit`);
      store.select(lane, c.pos);
      return;
    }
    case 'highlight': if (!PLACES[words[0]]) throw wrong('the page has no such part'); light(PLACES[words[0]]); return;
    case 'tab': store.set({tab: words[0]}); return;
    case 'show': {
      const changes = {};
      for (const [k, v] of Object.entries(args)) { if (!SHOW[k]) throw wrong(`there is no setting ${k}`); changes[k] = SHOW[k](v); }
      store.set(changes);
      return;
    }
    case 'whatif': whatif(Object.fromEntries(Object.entries(args).map(([k, v]) => [k, Number(v)]))); return;
    case 'open': if (store.opened !== args.trace || args.lane) store.send({cmd: 'open', name: args.trace, lane: args.lane || null}); return;
    case 'run': store.send({cmd: 'run', method: args.method || null, method_b: args.compare || null, prompt: args.prompt ?? null, changes: Object.fromEntries(Object.entries(args).filter(([k]) => !NAMED.has(k)).map(([k, v]) => [k, value(v)]))}); return;
    default: throw wrong('the page does not know it');
  }
}
