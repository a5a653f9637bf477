/**
 * Keep and share: the view as PNG or SVG, tables as CSV, the run as HTML, trace or Parquet, a short link; and opening a trace from a file.
 *
 * Contract: `mount(root, store, {app}) -> {draw, destroy}`. Pictures and CSV are made here; the rest is asked of the server, whose answer (event `file`) is a
 * link. A file is sent to the server whole; the answer is a name, or one sentence, and the page shows what it showed before.
 */

import {el, say} from './dom.js';
import {linkTo} from './share.js';
import {svgToPng, viewAsSvg} from './svg.js';
import {TABLES, csv} from './tables.js';

/** Hand a blob to the browser as a download. */
export function save(blob, name) {
  const url = URL.createObjectURL(blob);
  const a = el('a', {href: url, download: name});
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 5000);
}

/** Send a trace file to the server and open it; throws one sentence. */
export async function openFile(store, file, lane = null) {
  let answer;
  try {
    const response = await fetch('polestar/open', {method: 'POST', body: file, headers: {'content-type': 'application/octet-stream', 'x-name': encodeURIComponent(file.name).slice(0, 300)}});
    answer = response.headers.get('content-type')?.includes('json') ? await response.json() : null;
    if (!answer) throw new Error(`the server answered ${response.status}`);
  } catch (error) {
    throw new Error(`${file.name} could not be sent to the server (${error.message}); try again.`);
  }
  if (answer.error) throw new Error(answer.error);
  store.send({cmd: 'open', name: answer.name, lane});
}

export function mount(root, store, {app}) {
  const button = (text, title, f, className = 'btn') => el('button', {type: 'button', className, text, title, on: {click: f}});
  const problem = el('p', {className: 'problem', role: 'alert', hidden: true});
  const attempt = (f) => async () => { problem.hidden = true; try { await f(); } catch (error) { say(problem, error.message); problem.hidden = false; } };
  const base = () => `polestar-${store.open.map((l) => store.lanes[l].header.method).join('-vs-') || 'view'}`;
  const picture = () => { store.flush(); return viewAsSvg(app); };
  const view = el('div', {className: 'chips'},
    button('PNG', 'The view as it stands, in twice its size', attempt(async () => save(await svgToPng(picture()), `${base()}.png`))),
    button('SVG', 'The view as it stands; text stays text', attempt(() => save(new Blob([picture()], {type: 'image/svg+xml'}), `${base()}.svg`))));
  const tables = el('div', {className: 'chips'}, ...Object.entries(TABLES).map(([name, t]) => {
    const b = button(`${t.title} (CSV)`, `Both lanes' ${t.title.toLowerCase()} as a table`, attempt(() => save(new Blob([csv(t.rows(store))], {type: 'text/csv;charset=utf-8'}), `${base()}-${name}.csv`)));
    b.dataset.both = t.both ? '1' : '';
    return b;
  }));
  const ask = (what) => () => store.send({cmd: 'export', what, lane: store.focus});
  const run = el('div', {className: 'chips'}, button('HTML', 'One file that opens offline and scrubs', ask('html')), button('Trace', 'The log itself; opens here again', ask('trace')), button('Parquet', 'Tables for pandas', ask('parquet')));
  const files = el('ul', {className: 'rows', 'aria-label': 'Files'});
  const link = el('input', {type: 'text', readOnly: true, 'aria-label': 'Short link', on: {focus: () => link.select()}});
  const copied = el('span', {className: 'k', role: 'status'});
  const linkRow = el('div', {className: 'line'}, link, button('copy link', 'Restores settings, pass and selection', attempt(async () => {
    link.value = linkTo(store);
    link.select();
    say(copied, '');
    try { await navigator.clipboard.writeText(link.value); say(copied, 'copied'); } catch { say(copied, 'press Ctrl+C to copy'); }
  })), copied);
  const file = el('input', {type: 'file', id: 'trace-file', accept: '.safetensors', 'aria-label': 'Trace file', on: {change: attempt(async () => { if (file.files[0]) await openFile(store, file.files[0], into.value || null); file.value = ''; })}});
  const into = el('select', {'aria-label': 'Open into'}, el('option', {value: '', text: 'replace all'}), el('option', {value: 'A', text: 'lane A'}), el('option', {value: 'B', text: 'lane B'}));
  const online = el('div', {className: 'add'}, el('div', {className: 'h', text: 'The run'}), run, files, el('div', {className: 'h', text: 'Link to this moment'}), linkRow,
    el('div', {className: 'h', text: 'Open a trace'}), el('div', {className: 'line'}, file, into), el('p', {className: 'k', text: 'Or drop the file anywhere on the page; it opens there too, and on lane B beside lane A.'}));
  root.append(el('div', {className: 'h', text: 'The view'}), view, el('div', {className: 'h', text: 'Tables'}), tables, online, problem);

  // Dropping a file anywhere on the page.
  const veil = el('div', {className: 'veil', hidden: true, 'aria-hidden': 'true'}, el('b', {text: 'Drop a trace to open it'}));
  app.append(veil);
  const carries = (event) => event.dataTransfer && [...event.dataTransfer.types].includes('Files') && !store.offline;
  const over = (event) => { if (carries(event)) { event.preventDefault(); veil.hidden = false; } };
  const leave = (event) => { if (!event.relatedTarget) veil.hidden = true; };
  const drop = (event) => {
    veil.hidden = true;
    if (!carries(event)) return;
    event.preventDefault();
    const lane = event.composedPath().some((node) => node.getAttribute?.('aria-label') === 'Lane B') ? 'B' : into.value || null;
    const [first] = event.dataTransfer.files;
    if (first) openFile(store, first, lane).catch((error) => store.fail(error.message));
  };
  for (const [type, f] of [['dragover', over], ['dragleave', leave], ['drop', drop]]) window.addEventListener(type, f);

  function draw() {
    online.hidden = store.offline;
    for (const b of tables.children) { b.disabled = !store.open.length; b.hidden = b.dataset.both === '1' && store.open.length < 2; }
    files.replaceChildren(...store.files.map((f) => el('li', {}, el('a', {className: 'grow', href: f.url, download: f.name, text: f.name}))));
  }
  const unwatch = store.watch(['lists', 'data', 'view'], draw);
  return {draw, destroy() {
    unwatch();
    for (const [type, f] of [['dragover', over], ['dragleave', leave], ['drop', drop]]) window.removeEventListener(type, f);
    veil.remove();
    root.replaceChildren();
  }};
}
