/**
 * Notes pinned to a moment (a pass, and a position where one is selected); they are kept in the trace.
 *
 * Contract: `mount(root, store) -> {draw, destroy}`. The list is the server's (event `notes`, one per lane); adding, changing and removing are commands. A
 * recording in a file shows its notes and takes no new ones.
 */

import {el, say} from './dom.js';
import {LANES} from './store.js';

export function mount(root, store) {
  const list = el('ul', {className: 'rows', 'aria-label': 'Notes'});
  const none = el('p', {className: 'k hint', text: 'Nothing noted yet. A note stays with its pass (and position) and is saved in the trace.'});
  const text = el('textarea', {'aria-label': 'New note', placeholder: 'What is to be seen here?'});
  const where = el('span', {className: 'k'});
  const pin = el('input', {type: 'checkbox', id: 'note-pin', checked: true});
  const pinLabel = el('label', {htmlFor: 'note-pin', className: 'k'});
  const form = el('form', {className: 'add', 'aria-label': 'Add a note', on: {submit: (event) => {
    event.preventDefault();
    const log = store.lanes[store.focus];
    if (!log?.n || !text.value.trim()) return;
    store.send({cmd: 'note', op: 'add', lane: store.focus, pass: Math.max(0, store.passOf(store.focus)), position: pin.checked && store.sel ? store.sel.pos : null, text: text.value.trim()});
    text.value = '';
  }}}, text, el('div', {className: 'line'}, where, el('span', {className: 'line'}, pin, pinLabel), el('span', {className: 'sp'}), el('button', {type: 'submit', className: 'btn primary', text: 'Pin note'})));
  root.append(el('div', {className: 'h', text: 'Notes'}), none, list, form);
  let editing = null;

  function row(lane, note, index) {
    const go = el('button', {type: 'button', className: 'link plain', text: `pass ${note.pass}${note.position === null || note.position === undefined ? '' : `, position ${note.position}`}${store.open.length > 1 ? ` · ${lane}` : ''}`,
      on: {click: () => { store.seekPass(lane, note.pass); if (note.position !== null && note.position !== undefined) store.select(lane, note.position); }}});
    const key = `${lane}/${index}`;
    if (editing === key) {
      const box = el('textarea', {'aria-label': 'Note', value: note.text});
      return el('li', {}, el('form', {className: 'grow add', on: {submit: (event) => { event.preventDefault(); editing = null; store.send({cmd: 'note', op: 'edit', lane, index, text: box.value.trim()}); draw(); }}}, go, box,
        el('div', {className: 'line'}, el('span', {className: 'sp'}), el('button', {type: 'button', className: 'btn', text: 'cancel', on: {click: () => { editing = null; draw(); }}}), el('button', {type: 'submit', className: 'btn primary', text: 'save'}))));
    }
    const buttons = store.offline ? [] : [
      el('button', {type: 'button', className: 'ib tiny', text: '✎', 'aria-label': `Change the note of pass ${note.pass}`, on: {click: () => { editing = key; draw(); }}}),
      el('button', {type: 'button', className: 'ib tiny', text: '×', 'aria-label': `Remove the note of pass ${note.pass}`, on: {click: () => store.send({cmd: 'note', op: 'remove', lane, index})}})];
    return el('li', {}, el('div', {className: 'grow'}, go, el('div', {className: 'note-text', text: note.text})), ...buttons);
  }

  function draw() {
    const all = LANES.flatMap((lane) => (store.lanes[lane] ? store.notes[lane].map((note, index) => ({lane, note, index})) : []));
    all.sort((a, b) => a.note.pass - b.note.pass);
    none.hidden = all.length > 0;
    list.replaceChildren(...all.map((x) => row(x.lane, x.note, x.index)));
  }
  function place() {
    form.hidden = store.offline || !store.lanes[store.focus]?.n;
    say(where, `pass ${Math.max(0, store.passOf(store.focus))} of ${store.focus}`);
    pin.parentElement.hidden = !store.sel;
    say(pinLabel, store.sel ? `position ${store.sel.pos}` : '');
  }
  const undo = [store.watch(['notes', 'data', 'view'], () => { if (store.view.tab === 'notes') draw(); }), store.watch(['cursor', 'sel', 'data', 'view'], place)];
  return {draw, destroy() { for (const f of undo) f(); root.replaceChildren(); }};
}
