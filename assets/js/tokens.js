/**
 * Token text as it is shown: spaces and line ends made visible, byte tokens joined when they complete a character.
 *
 * Contract: pure functions of token records {t, s, b}; the strings go to fillText or textContent only.
 */

const MARKS = {' ': '·', '\n': '⏎', '\r': '␍', '\t': '⇥', '\u00a0': '⍽', '\u200b': '∅'};

/** Text with every blank or control character replaced by a mark. */
export function visible(text) {
  let out = '';
  for (const ch of text) {
    const code = ch.codePointAt(0);
    if (MARKS[ch]) out += MARKS[ch];
    else if (code < 32) out += String.fromCharCode(0x2400 + code);
    else if (code === 0x7f || (code >= 0x80 && code < 0xa0) || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069)) out += '�';
    else out += ch;
  }
  return out;
}

/** Direction controls: model text must not turn the text around it. */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;

const bytesOf = (hex) => Uint8Array.from(hex.match(/../g) || [], (h) => parseInt(h, 16));

/** "E2 82" for a token that is part of a character. */
export const hexText = (token) => (token.b.match(/../g) || []).join(' ').toUpperCase();

/** One token alone, as a cell shows it. */
export function cellText(token) {
  if (token.b) return hexText(token);
  if (token.cell) return token.cell;
  if (token.s) return token.t.replace(/^<\|?|\|?>$/g, '') || token.t;
  return visible(token.t);
}

const decoder = new TextDecoder('utf-8', {fatal: true});
const runs = new Map(); // few different ones in a log

function decodeRun(bytes) {
  const key = bytes.join();
  if (runs.has(key)) return runs.get(key);
  let text = null;
  try { text = decoder.decode(bytes); } catch { /* not a whole character */ }
  if (runs.size > 2000) runs.clear();
  runs.set(key, text);
  return text;
}

/**
 * Cell texts of a row of token ids (-1 masked). Byte tokens that stand side by side and complete a character show it in
 * the first cell and a continuation mark in the others; until then each shows its bytes.
 */
export function cellTexts(ids, lookup, textOf = (id) => cellText(lookup(id))) {
  const out = new Array(ids.length);
  for (let i = 0; i < ids.length; i++) {
    if (ids[i] < 0) { out[i] = ''; continue; }
    const token = lookup(ids[i]);
    if (!token.b) { out[i] = textOf(ids[i]); continue; }
    let bytes = [];
    let done = -1;
    for (let j = i; j < ids.length && j < i + 4 && ids[j] >= 0 && lookup(ids[j]).b; j++) {
      bytes = bytes.concat([...bytesOf(lookup(ids[j]).b)]);
      const text = decodeRun(Uint8Array.from(bytes));
      if (text !== null) { out[i] = visible(text); done = j; break; }
    }
    if (done < 0) out[i] = hexText(token);
    for (let j = i + 1; j <= done; j++) out[j] = '◂';
    if (done > i) i = done;
  }
  return out;
}

/** Bytes as [text, true] where they are whole characters and ["⟨E2 82⟩", false] where not. */
function characters(bytes) {
  const out = [];
  let loose = [];
  const flush = () => { if (loose.length) out.push([`⟨${loose.map((x) => x.toString(16).padStart(2, '0').toUpperCase()).join(' ')}⟩`, false]); loose = []; };
  for (let i = 0; i < bytes.length;) {
    const b = bytes[i];
    const n = b < 0x80 ? 1 : b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : b >= 0xc0 ? 2 : 0;
    const text = n && i + n <= bytes.length ? decodeRun(Uint8Array.from(bytes.slice(i, i + n))) : null;
    if (text === null) { loose.push(b); i++; } else { flush(); out.push([text, true]); i += n; }
  }
  flush();
  return out;
}

/**
 * The answer as pieces [{text, kind}], kind 'text' | 'mask' | 'after' | 'bytes': runs of masks become one piece; what follows
 * the first [EOS] is 'after'.
 */
export function pieces(ids, end, lookup) {
  const out = [];
  const add = (kind, text) => {
    const last = out[out.length - 1];
    if (last && last.kind === kind) last.text += text; else out.push({kind, text});
  };
  for (let i = 0; i < ids.length; i++) {
    const after = i >= end;
    if (ids[i] < 0) { add(after ? 'after' : 'mask', '░'); continue; }
    const token = lookup(ids[i]);
    if (token.b) {
      let j = i;
      let bytes = [];
      while (j < ids.length && ids[j] >= 0 && lookup(ids[j]).b) bytes = bytes.concat([...bytesOf(lookup(ids[j++]).b)]);
      for (const [text, whole] of characters(bytes)) add(after ? 'after' : whole ? 'text' : 'bytes', text);
      i = j - 1;
    } else add(after ? 'after' : 'text', token.t.replace(TURNS, '�'));
  }
  return out;
}
