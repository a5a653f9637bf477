/**
 * Guided lessons: short texts that drive the real page.
 *
 * Contract: `mount(root, store, {app}) -> {draw, destroy}`. Texts are the server's (event `lessons`), Markdown with front matter (title, trace, order): the first
 * numbered list is the steps, code spans that are actions (actions.js) are done when their step opens and not shown; what follows the list is shown after
 * the last step. Text goes in by textContent only.
 */

import {act, needsLog, readAction} from './actions.js';
import {el, say} from './dom.js';
import {frontMatter, parse, render} from './markdown.js';

/** A lesson's parts: {title, trace, order, intro, steps: [{text, actions}], after}. */
export function readLesson({name, title, order, markdown}) {
  const {meta, body} = frontMatter(markdown);
  const blocks = parse(body);
  const at = blocks.findIndex((b) => b.kind === 'ol');
  const steps = (at < 0 ? [] : blocks[at].items).map((text) => ({text, actions: [...text.matchAll(/`([^`]+)`/g)].map((m) => readAction(m[1])).filter(Boolean)}));
  return {name, title: title || meta.title || name, trace: meta.trace || null, order: Number(order ?? meta.order ?? 99), intro: at < 0 ? blocks : blocks.slice(0, at), steps, after: at < 0 ? [] : blocks.slice(at + 1)};
}

const code = (text) => (readAction(text) ? null : el('code', {text}));

export function mount(root, store, {app}) {
  let open = null;
  let at = -1;
  let waiting = [];
  let reveal = false;
  let before = null; // the run that was shown when a new one was asked for
  const list = el('div', {className: 'lesson-list'});
  const page = el('article', {className: 'lesson', 'aria-live': 'polite'});
  root.append(el('div', {className: 'h', text: 'Lessons'}), list, page);

  function light(selector) {
    for (const node of app.querySelectorAll('.lit-part')) node.classList.remove('lit-part');
    const node = selector && app.querySelector(selector);
    if (!node) return;
    node.classList.add('lit-part');
    node.scrollIntoView?.({block: 'nearest'});
  }
  const trouble = el('p', {className: 'problem', role: 'alert', hidden: true});
  const whatif = (values) => { store.wantWhatif = values; store.set({tab: 'whatif'}); store.touch('lists'); };

  function perform(actions) {
    trouble.hidden = true;
    const run = store.run;
    let asked = false; // another log is on its way: what needs one waits for it
    for (const action of actions) {
      if (needsLog(action) && (asked || !store.open.some((l) => store.lanes[l].n))) { waiting.push(action); before = asked ? run : null; continue; }
      const sent = store.opened;
      try { act(store, action, {light, whatif}); } catch (error) { say(trouble, error.message); trouble.hidden = false; }
      asked ||= action.verb === 'run' || (action.verb === 'open' && (sent !== store.opened || !!action.args.lane));
    }
  }

  function go(k) {
    at = Math.max(-1, Math.min(open.steps.length, k));
    light(null);
    waiting = [];
    if (at >= 0 && at < open.steps.length) perform(open.steps[at].actions);
    draw();
    store.touch('view');
  }

  function start(name) {
    const found = store.lessons.find((l) => l.name === name);
    if (!found) return;
    open = readLesson(found);
    store.send({cmd: 'lesson', name});
    if (open.trace && store.opened !== open.trace) store.send({cmd: 'open', name: open.trace, lane: null});
    go(-1);
    reveal = true;
    show();
  }
  /** A lesson that was begun is scrolled to, where the page is too small for all: once there is a log, for the panels have no size before. */
  function show() {
    if (!reveal || !store.open.some((l) => store.lanes[l].n)) return;
    reveal = false;
    requestAnimationFrame(() => page.scrollIntoView({block: 'nearest'}));
  }
  store.startLesson = (name = null) => start(name ?? [...store.lessons].map(readLesson).sort((a, b) => a.order - b.order)[0].name);
  function leave() { open = null; light(null); waiting = []; draw(); store.touch('view'); }

  function draw() {
    store.lesson = !!open;
    root.classList.toggle('pinned', !!open);
    list.hidden = !!open;
    page.hidden = !open;
    if (!open) {
      const all = store.lessons.map(readLesson).sort((a, b) => a.order - b.order || a.title.localeCompare(b.title));
      list.replaceChildren(...(all.length ? all.map((l, i) => el('button', {type: 'button', className: 'lesson-card', on: {click: () => start(l.name)}}, el('b', {text: `${i + 1}. ${l.title}`}), el('span', {className: 'k', text: `${l.steps.length} steps`})))
        : [el('p', {className: 'k hint', text: 'No lessons are here. A lesson is a Markdown file in assets/lessons.'})]));
      return;
    }
    const body = at < 0 ? render(open.intro, {code}) : at < open.steps.length ? render([{kind: 'p', text: open.steps[at].text}], {code}) : render(open.after, {code});
    const last = open.steps.length - (open.after.length ? 0 : 1);
    const button = (text, f, primary) => el('button', {type: 'button', className: `btn${primary ? ' primary' : ''}`, text, on: {click: f}});
    const next = at < last ? button(at < 0 ? 'start' : at === open.steps.length - 1 ? 'try it' : 'next', () => go(at + 1), true) : button('done', leave, true);
    page.replaceChildren(el('div', {className: 'line'}, el('b', {className: 'grow', text: open.title}), el('button', {type: 'button', className: 'link plain', text: 'all lessons', on: {click: () => { leave(); store.set({tab: 'lessons'}); }}})), ...body, trouble,
      el('div', {className: 'line'}, at >= 0 ? button('back', () => go(at - 1)) : null, el('span', {className: 'sp'}), el('span', {className: 'k', text: at < 0 ? '' : at < open.steps.length ? `${at + 1} of ${open.steps.length}` : ''}), next));
  }

  const undo = [store.watch(['lists'], () => { if (!open) draw(); }), store.watch(['data'], () => {
    show();
    if (!open || !waiting.length || store.run === before || !store.open.some((l) => store.lanes[l].n)) return;
    const log = store.lanes[store.focus];
    if (log.status === 'open' && log.header.live) return;
    const list_ = waiting;
    waiting = [];
    perform(list_);
  })];
  return {draw, destroy() { for (const f of undo) f(); root.replaceChildren(); }};
}
