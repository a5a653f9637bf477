// Runs once, when gradio has mounted the bus (gr.HTML's js_on_load: element, trigger, props and watch are in scope; SAMPLES is put in front of it).
// The value is base64 of stream messages, one a line. It goes to the panels as text, in order; nothing here reads model text.
const root = element.querySelector('#polestar-bus');
const doc = document.documentElement;
const send = (command) => trigger('command', command);
const BUTTONS = {
  run: (s) => !['running', 'paused', 'queued', 'loading'].includes(s), pause: (s) => s === 'running', continue: (s) => s === 'paused',
  step: (s) => s === 'running' || s === 'paused', stop: (s) => ['running', 'paused', 'queued', 'loading'].includes(s),
};

// What state the run is in decides which buttons make sense; the document says it too, for the style sheet.
function enter(state) {
  doc.dataset.run = state;
  for (const [name, may] of Object.entries(BUTTONS)) {
    const button = document.getElementById(`ps-${name}`);
    if (button) button.disabled = !may(state);
  }
}

let app = null;
let run = 0; // of the messages that are shown now: r7 is 7, later runs have larger numbers
let next = 0; // seq expected
let hole = 0; // timer: a message was passed over (gradio shows the last of several values that come while the tab is busy)
const ahead = new Map(); // seq -> events of messages beyond it that are here already (two ways lead here: the queue and the pipe)
const early = [];
let born = false; // a canvas came that has not been drawn yet
let pipe = null; // the stream of the run that is going on, beside gradio's queue
let address = ''; // its
const HOLE_MS = 120;

function ask() {
  hole = 0;
  if (ahead.size) send({cmd: 'resend', run: `r${run}`, from: next});
}

function look(text) {
  const message = JSON.parse(text);
  const number = Number(message.run.slice(1));
  if (number < run) return;
  if (number > run) { run = number; next = 0; ahead.clear(); }
  if (message.seq >= next) ahead.set(message.seq, message.events);
  for (; ahead.has(next); next += 1) {
    for (const event of ahead.get(next)) {
      if (event.type === 'status') enter(event.state);
      if (event.type === 'pipe') connect(event.url);
      if (event.type === 'header') born = true;
    }
    ahead.delete(next);
  }
  if (ahead.size) hole ||= setTimeout(ask, HOLE_MS);
  app ? app.receive(text) : early.push(text);
  if (born && pipe) drawn();
}

// The decode waits a moment for this: what the first draw of a canvas takes is not taken from its first passes.
function drawn() {
  born = false;
  const at = address;
  const say = () => { fetch(`${at}/drawn`).catch(() => {}); };
  const calm = window.requestIdleCallback ?? setTimeout;
  requestAnimationFrame(() => setTimeout(() => calm(say, {timeout: 300}))); // the task after a frame runs when it has been painted
}

// When it cannot be had, or breaks, the queue goes on with what is to come.
function connect(url) {
  pipe?.close();
  address = new URL(url, document.baseURI).href;
  const own = pipe = new EventSource(address);
  const close = () => { own.close(); if (pipe === own) pipe = null; };
  own.onmessage = (event) => { for (const text of event.data.split('\n')) look(text); };
  own.addEventListener('end', close);
  own.onerror = () => { close(); send({cmd: 'resend', run: `r${run}`, from: next}); };
}

watch('value', () => {
  if (!props.value) return;
  const bytes = Uint8Array.from(atob(props.value), (c) => c.charCodeAt(0));
  for (const text of new TextDecoder().decode(bytes).split('\n')) look(text);
});

enter('empty');
import(new URL('polestar/js/main.js', document.baseURI).href).then((module) => {
  app = module.mount(root, {send, samples: SAMPLES});
  for (const text of early.splice(0)) app.receive(text);
  window.polestar = {app, send, get seq() { return next; }, get run() { return `r${run}`; }};
  doc.dataset.polestar = 'ready';
  enter(doc.dataset.run); // the buttons are there by now
  module.stopStrayClock();
  send({cmd: 'hello'});
}).catch((error) => {
  root.textContent = `The page's own script did not load (${error.message}); reload the page.`;
  console.error(error);
});
