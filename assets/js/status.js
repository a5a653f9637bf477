/**
 * What the page is doing: the chip and line in the head strip, the empty and loading screens, the error banner.
 *
 * Contract: `makeStatus(store, {samples, send}) -> {chip, line, banner, empty, watch()}`. A recording alone says "replay"; only a run whose header
 * says live, and that is running, says "live". Where the run is the other lane's (a fork beside what it came from, or a lane that has ended), both are named.
 */

import {el, icon, say} from './dom.js';

const RUN = {running: 'live', paused: 'paused', stopped: 'stopped', done: 'done'};
const ENDED = {done: 'finished', stopped: 'stopped', error: 'failed'};

/** "A recorded · B live" where the run is the other lane's; '' where it is this one's, or there is none. */
function apart(store) {
  const {state} = store.status;
  const log = store.lanes[store.focus];
  const going = (l) => state !== 'running' || l.status === 'open';
  const other = store.open.find((name) => name !== store.focus && store.lanes[name].header.live !== false && going(store.lanes[name]));
  if (!other || !RUN[state]) return '';
  const recorded = log.header.live === false;
  if (!recorded && going(log)) return '';
  return `${store.focus} ${recorded ? 'recorded' : ENDED[log.status]} · ${other} ${RUN[state]}`;
}

/** [style, chip text, line] for the present state. */
export function words(store) {
  const {state, place} = store.status;
  const text = store.status.text === state ? '' : store.status.text;
  const log = store.lanes[store.focus];
  const p = store.passOf(store.focus);
  const step = log?.steps[p];
  const two = apart(store);
  const at = step ? `${two && `lane ${store.focus}: `}pass ${p} · block ${step.block}` : '';
  const behind = step && !two && !store.follow && state === 'running' ? ` (run is at pass ${log.n - 1})` : '';
  const replay = log && log.header.live === false;
  if (two) return [{running: 'live', done: 'done'}[state] || 'paused', two, [at, text].filter(Boolean).join(' · ')];
  switch (state) {
    case 'loading': return ['busy', 'loading', text];
    case 'queued': return ['busy', 'waiting', text || (place ? `place ${place} in line` : 'in line')];
    case 'running': return [replay ? 'replay' : 'live', replay ? 'replay' : 'live', [at + behind, text].filter(Boolean).join(' · ')];
    case 'paused': return ['paused', 'paused', [at, text].filter(Boolean).join(' · ')];
    case 'stopped': return ['paused', 'stopped', [at, text || 'what was decoded so far is kept'].filter(Boolean).join(' · ')];
    case 'error': return ['error', 'error', at];
    case 'replay': return ['replay', 'replay', [at, text].filter(Boolean).join(' · ')];
    case 'done': return [replay ? 'replay' : 'done', replay ? 'replay' : 'done', [at, text].filter(Boolean).join(' · ')];
    default: return ['idle', 'no run', text];
  }
}

export function makeStatus(store, {samples, send}) {
  const chip = el('span', {className: 'state', role: 'status'});
  const line = el('span', {className: 'state-line'});
  const sentence = el('span', {className: 'sentence'});
  const banner = el('div', {className: 'banner', role: 'alert', hidden: true}, sentence,
    el('button', {type: 'button', className: 'ib', 'aria-label': 'Dismiss', on: {click: () => { store.problem = ''; dismissed = store.rev.status + 1; store.touch('status'); }}}, icon('close')));
  let dismissed = -1;
  const headline = el('h2');
  const para = el('p');
  const bar = el('div', {className: 'bar'}, el('i'));
  const buttons = el('div', {className: 'buttons'});
  let offered = '';
  /** A recording to look at (Polestar's where there is one), the others in a list, and the first lesson. */
  function offer() {
    const key = JSON.stringify([store.methods, store.lessons.length]);
    if (key === offered) return;
    offered = key;
    const title = (s) => store.methods.find((m) => m.name === s.name)?.title || s.title;
    const first = samples.find((s) => s.name === 'polestar') || samples[0];
    const rest = samples.filter((s) => s !== first);
    const others = el('select', {'aria-label': 'Another recorded run', on: {change: () => { if (others.value) send({cmd: 'open', name: others.value}); others.value = ''; }}},
      el('option', {value: '', text: 'another recording…'}), ...rest.map((s) => el('option', {value: s.name, text: title(s)})));
    buttons.replaceChildren(...(first ? [el('button', {type: 'button', className: 'btn primary', text: samples.length > 1 ? `Open a recorded run: ${title(first)}` : `Open ${first.title}`, on: {click: () => send({cmd: 'open', name: first.name})}})] : []),
      ...(rest.length ? [others] : []), ...(store.lessons.length ? [el('button', {type: 'button', className: 'btn', text: 'Start the first lesson', on: {click: () => { store.set({tab: 'lessons'}); store.startLesson?.(); }}})] : []));
  }
  const empty = el('div', {className: 'empty'}, el('div', {className: 'empty-card'}, el('div', {className: 'star', text: '✦', 'aria-hidden': 'true'}), headline, para, bar, buttons));

  function draw() {
    offer();
    const [style, short, long] = words(store);
    const {state, text, place} = store.status;
    if (chip.dataset.state !== style) chip.dataset.state = style;
    say(chip, short);
    say(line, long);
    line.title = long;
    const problem = state === 'error' ? text || 'The run failed and gave no reason; look at the terminal.' : store.problem;
    const show = !!problem && dismissed !== store.rev.status;
    banner.hidden = !show || !store.open.length;
    if (show) say(sentence, problem);
    const nothing = !store.open.some((l) => store.lanes[l].n);
    empty.hidden = !nothing;
    if (!nothing) return;
    bar.hidden = !['loading', 'queued', 'running'].includes(state);
    buttons.hidden = ['loading', 'queued', 'running'].includes(state);
    empty.dataset.state = state;
    if (problem) { say(headline, 'That did not work'); say(para, problem); } else if (state === 'loading') { say(headline, 'Loading'); say(para, text); } else if (state === 'queued') {
      say(headline, place ? `You are number ${place} in line` : 'Waiting in line');
      say(para, text || 'The model decodes one run at a time; yours starts by itself.');
    } else if (state === 'running') { say(headline, 'First pass'); say(para, text || 'The first forward pass is being computed.'); } else {
      say(headline, 'Watch a diffusion language model decode, pass by pass');
      say(para, text || `Write a prompt at the left and press Run${samples.length ? ', or look at a recorded run first' : ''}.`);
    }
  }
  return {chip, line, banner, empty, watch: () => store.watch(['data', 'cursor', 'view', 'status', 'lists'], draw)};
}
