/**
 * A small part of Markdown, as elements: headings, paragraphs, lists, quotes, **bold**, *italic*, `code`.
 *
 * Contract: `frontMatter(source) -> {meta, body}`; `parse(body) -> blocks`, a block being {kind: 'h'|'p'|'ul'|'ol'|'quote', text | items, level};
 * `render(blocks, {code}) -> [element]`. Everything goes in by textContent: a tag or a link in the text is shown as it is written. `code(text)` may answer
 * null to leave a code span out.
 */

import {el} from './dom.js';

export function frontMatter(source) {
  const text = source.replace(/\r\n?/g, '\n');
  const m = text.match(/^---\n([\s\S]*?)\n---\n?/);
  const meta = {};
  if (m) for (const line of m[1].split('\n')) { const at = line.indexOf(':'); if (at > 0) meta[line.slice(0, at).trim()] = line.slice(at + 1).trim(); }
  return {meta, body: m ? text.slice(m[0].length) : text};
}

export function parse(body) {
  const blocks = [];
  let open = null;
  for (const line of body.split('\n')) {
    const item = line.match(/^\s{0,3}(?:([-*])|(\d{1,3})[.)])\s+(.*)$/);
    const head = line.match(/^(#{1,4})\s+(.*)$/);
    const quote = line.match(/^>\s?(.*)$/);
    if (!line.trim()) open = null;
    else if (head) { blocks.push({kind: 'h', level: head[1].length, text: head[2].trim()}); open = null; } else if (item) {
      const kind = item[1] ? 'ul' : 'ol';
      const last = blocks[blocks.length - 1];
      if (last?.kind === kind) last.items.push(item[3]); else blocks.push({kind, items: [item[3]]});
      open = blocks[blocks.length - 1];
    } else if (quote) { if (open?.kind === 'quote') open.text += ` ${quote[1]}`; else blocks.push(open = {kind: 'quote', text: quote[1]}); } else if (open?.items) open.items[open.items.length - 1] += ` ${line.trim()}`; else if (open) open.text += ` ${line.trim()}`; else blocks.push(open = {kind: 'p', text: line.trim()});
  }
  return blocks;
}

/** Text with its spans, as nodes. */
export function inline(text, {code = (t) => el('code', {text: t})} = {}) {
  const out = [];
  const pattern = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/g;
  let at = 0;
  for (const m of text.matchAll(pattern)) {
    if (m.index > at) out.push(document.createTextNode(text.slice(at, m.index)));
    const node = m[1] !== undefined ? code(m[1]) : m[2] !== undefined ? el('b', {text: m[2]}) : el('em', {text: m[3]});
    if (node) out.push(node);
    at = m.index + m[0].length;
  }
  if (at < text.length) out.push(document.createTextNode(text.slice(at)));
  return out;
}

export function render(blocks, options = {}) {
  return blocks.map((b) => {
    if (b.kind === 'h') return el(b.level === 1 ? 'h3' : 'h4', {}, ...inline(b.text, options));
    if (b.items) return el(b.kind, {}, ...b.items.map((item) => el('li', {}, ...inline(item, options))));
    return el(b.kind === 'quote' ? 'blockquote' : 'p', {}, ...inline(b.text, options));
  });
}
