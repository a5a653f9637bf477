/**
 * The page as a picture: what is on the screen as one SVG of boxes (svgbox.js; those of pseudo-elements too), text and the canvases' pixels, and from it a PNG.
 *
 * Contract: `viewAsSvg(app) -> string`, self-contained, text as <text>; `svgToPng(svg, scale) -> Promise<Blob>`. What is hidden, out of a scrolled box's
 * sight, or only for screen readers is left out.
 */

import {paintBox, pseudo} from './svgbox.js';

const esc = (text) => text.replace(/[&<>"]/g, (c) => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'}[c])).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, '�');
const n = (v) => Number(v.toFixed(2));
const CONTROLS = new Set(['SELECT', 'INPUT', 'TEXTAREA']);

/** Lines of a text node: [{text, rect}]. */
function linesOf(node) {
  const text = node.data;
  if (!text.trim()) return [];
  const range = document.createRange();
  range.selectNodeContents(node);
  const all = range.getClientRects();
  if (all.length <= 1) return all.length ? [{text, rect: all[0]}] : [];
  const lines = [];
  let from = 0;
  let top = null;
  let rect = null;
  for (let i = 0; i < text.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const r = range.getBoundingClientRect();
    if (!r.width && !r.height) continue;
    if (top !== null && Math.abs(r.top - top) > 3) { lines.push({text: text.slice(from, i), rect}); from = i; rect = null; }
    top = r.top;
    rect = rect ? new DOMRect(rect.x, rect.y, r.right - rect.x, rect.height) : r;
  }
  if (rect) lines.push({text: text.slice(from), rect});
  return lines;
}

export function viewAsSvg(app) {
  const frame = app.getBoundingClientRect();
  const out = [];
  const defs = [];
  const box = (r) => `x="${n(r.left - frame.left)}" y="${n(r.top - frame.top)}" width="${n(r.width)}" height="${n(r.height)}"`;

  function text(line, rect, style, clip, lineSize = parseFloat(style.fontSize)) {
    const size = parseFloat(style.fontSize);
    const shown = style.textTransform === 'uppercase' ? line.toUpperCase() : line;
    const spacing = parseFloat(style.letterSpacing) || 0;
    out.push(`<text x="${n(rect.left - frame.left)}" y="${Math.round(rect.top - frame.top + rect.height / 2 + lineSize * 0.36)}" font-family="${esc(style.fontFamily)}" font-size="${size}" font-weight="${style.fontWeight}" fill="${style.color}"${spacing ? ` letter-spacing="${spacing}"` : ''}${style.fontVariantNumeric === 'normal' ? '' : ` style="font-variant-numeric:${style.fontVariantNumeric}"`} xml:space="preserve"${clip}>${esc(shown)}</text>`);
  }

  /** What CSS alone puts before or after an element's content: a dot, a swatch, a sign. */
  function mark(node, which) {
    const found = pseudo(node, which);
    if (!found) return;
    const {r, style} = found;
    const at = `${n(r.left - frame.left + r.width / 2)} ${n(r.top - frame.top + r.height / 2)}`;
    const minus = `${-n(r.left - frame.left + r.width / 2)} ${-n(r.top - frame.top + r.height / 2)}`;
    out.push(`<g opacity="${style.opacity}"${found.turn ? ` transform="translate(${at}) ${found.turn} translate(${minus})"` : ''}>`);
    paintBox({out, defs, frame}, r, style);
    if (found.text.trim()) text(found.text, r, style, '', parseFloat(getComputedStyle(node).fontSize));
    out.push('</g>');
  }

  function walk(node, bounds, clip, alpha) {
    if (node.nodeType === Node.TEXT_NODE) {
      const style = getComputedStyle(node.parentElement);
      for (const {text: line, rect} of linesOf(node)) {
        const y = rect.top + rect.height / 2;
        if (y < bounds.top || y > bounds.bottom || rect.left > bounds.right || rect.right < bounds.left) continue;
        text(line.replace(/\n/g, ' '), rect, style, rect.right > bounds.right + 1 ? clip : '');
      }
      return;
    }
    if (node.nodeType !== Node.ELEMENT_NODE || node.tagName === 'LINK' || node.tagName === 'STYLE' || node.hidden) return;
    const style = getComputedStyle(node);
    if (style.display === 'none' || style.visibility === 'hidden' || node.classList.contains('sr') || node.tagName === 'OPTION') return;
    const r = node.getBoundingClientRect();
    if (style.display !== 'contents' && (r.bottom < bounds.top || r.top > bounds.bottom || r.right < bounds.left || r.left > bounds.right)) return;
    const opacity = Number(style.opacity);
    if (opacity < 1) out.push(`<g opacity="${opacity}">`);
    paintBox({out, defs, frame}, r, style, !node.matches(':focus-visible'));
    mark(node, '::before');
    if (node.tagName === 'CANVAS') { if (node.width > 1 && r.width) out.push(`<image ${box(r)} preserveAspectRatio="none" href="${node.toDataURL('image/png')}"/>`); } else if (node.tagName === 'svg') {
      const path = node.querySelector('path');
      if (path) out.push(`<path d="${esc(path.getAttribute('d'))}" fill="${style.fill}" transform="translate(${n(r.left - frame.left)} ${n(r.top - frame.top)}) scale(${n(r.width / 16)})"/>`);
    } else if (CONTROLS.has(node.tagName)) {
      const value = node.tagName === 'SELECT' ? node.selectedOptions[0]?.textContent || '' : node.type === 'checkbox' ? (node.checked ? '☑' : '☐') : node.type === 'range' ? '' : node.value || node.placeholder || '';
      if (node.type === 'range') {
        const at = (node.value - node.min) / (node.max - node.min || 1);
        out.push(`<path d="M${n(r.left - frame.left)} ${n(r.top - frame.top + r.height / 2)}h${n(r.width)}" stroke="${style.color}" stroke-width="2" opacity=".4"/><circle cx="${n(r.left - frame.left + at * r.width)}" cy="${n(r.top - frame.top + r.height / 2)}" r="6" fill="${style.accentColor === 'auto' ? style.color : style.accentColor}"/>`);
      } else if (value) text(value, new DOMRect(r.x + (node.type === 'checkbox' ? 0 : parseFloat(style.paddingLeft) + 3), r.y, r.width, r.height), style, '');
      if (node.tagName === 'SELECT') text('▾', new DOMRect(r.right - 14, r.y, 10, r.height), style, '');
    } else {
      let inner = bounds;
      let innerClip = clip;
      if (style.overflowX !== 'visible' && node !== app) {
        inner = {left: Math.max(bounds.left, r.left), right: Math.min(bounds.right, r.right), top: Math.max(bounds.top, r.top), bottom: Math.min(bounds.bottom, r.bottom)};
        defs.push(`<clipPath id="c${defs.length}"><rect ${box(r)}/></clipPath>`);
        innerClip = ` clip-path="url(#c${defs.length - 1})"`;
      }
      for (const child of node.childNodes) walk(child, inner, innerClip, alpha * opacity);
    }
    mark(node, '::after');
    if (opacity < 1) out.push('</g>');
  }
  walk(app, frame, '', 1);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${n(frame.width)}" height="${n(frame.height)}" viewBox="0 0 ${n(frame.width)} ${n(frame.height)}"><defs>${defs.join('')}</defs>${out.join('')}</svg>`;
}

export async function svgToPng(svg, scale = Math.max(2, window.devicePixelRatio || 1)) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(image.width * scale);
  canvas.height = Math.round(image.height * scale);
  canvas.getContext('2d').drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise((done) => canvas.toBlob(done, 'image/png'));
  canvas.width = canvas.height = 1;
  return blob;
}
