/**
 * One CSS box as SVG: background, gradient, inset shadow, borders and outline; and where a pseudo-element's box is.
 *
 * Contract: `paintBox({out, defs, frame}, r, style, outlined)` appends elements to `out` (gradients to `defs`), in pixels from `frame`; `pseudo(node, which) ->
 * {r, style, text, turn}` or null where there is none (`turn`: its transform about the middle, or ''). Marks of the page are small boxes: gradients are linear, with stops in pixels or percent;
 * shadows are inset and without blur; a pseudo-element stands at the beginning or end of its element's line, or is placed absolutely in it.
 */

const px = (text) => parseFloat(text) || 0;
const n = (v) => Number(v.toFixed(2));
export const clear = (color) => color === 'transparent' || /rgba\(.*, 0\)$/.test(color);

/** Split at commas that are outside of brackets. */
const parts = (text) => text.split(/,(?![^(]*\))/).map((p) => p.trim());

/** A linear gradient as a definition and the fill that refers to it; null for anything else. */
function gradient(image, r, {defs, frame}) {
  const found = /^(repeating-)?linear-gradient\((.*)\)$/.exec(image);
  if (!found) return null;
  const list = parts(found[2]);
  const turn = /^-?[\d.]+deg$/.test(list[0]) ? (px(list.shift()) * Math.PI) / 180 : Math.PI;
  const dx = Math.sin(turn);
  const dy = -Math.cos(turn);
  const length = Math.abs(r.width * dx) + Math.abs(r.height * dy);
  const stops = list.flatMap((item) => {
    const [, color, at] = /^(\S+?\(.*?\)|\S+)\s*(.*)$/.exec(item);
    return (at ? at.split(/\s+/) : [null]).map((a) => [color, a === null ? null : a.endsWith('%') ? (px(a) / 100) * length : px(a)]);
  });
  stops[0][1] ??= 0;
  stops[stops.length - 1][1] ??= length;
  stops.forEach((s, i) => { s[1] ??= length * (i / (stops.length - 1)); });
  const end = found[1] ? stops[stops.length - 1][1] : Math.max(length, stops[stops.length - 1][1]);
  const x0 = r.left - frame.left + r.width / 2 - (dx * length) / 2;
  const y0 = r.top - frame.top + r.height / 2 - (dy * length) / 2;
  const id = `g${defs.length}`;
  defs.push(`<linearGradient id="${id}" gradientUnits="userSpaceOnUse" spreadMethod="${found[1] ? 'repeat' : 'pad'}" x1="${n(x0)}" y1="${n(y0)}" x2="${n(x0 + dx * end)}" y2="${n(y0 + dy * end)}">${stops.map(([color, at]) => `<stop offset="${Number((at / end).toFixed(4))}" stop-color="${color}"/>`).join('')}</linearGradient>`);
  return `url(#${id})`;
}

/** Insets of a box-shadow, as rectangles at its edges (no blur). */
function inset(shadow, r, radius, {out, frame}) {
  for (const one of shadow === 'none' ? [] : parts(shadow)) {
    const found = /^(.*?)\s+(-?[\d.]+)px (-?[\d.]+)px 0px (-?[\d.]+)px inset$/.exec(one);
    if (!found || clear(found[1])) continue;
    const [, color, , dy, spread] = found;
    const x = r.left - frame.left;
    const y = r.top - frame.top;
    if (Number(spread) > 0) out.push(`<rect x="${n(x + spread / 2)}" y="${n(y + spread / 2)}" width="${n(r.width - spread)}" height="${n(r.height - spread)}" rx="${n(radius)}" fill="none" stroke="${color}" stroke-width="${spread}"/>`);
    else if (Number(dy)) out.push(`<rect x="${n(x)}" y="${n(dy < 0 ? y + r.height + Number(dy) : y)}" width="${n(r.width)}" height="${Math.abs(dy)}" fill="${color}"/>`);
  }
}

/** `outlined` false leaves the outline out: a focus ring is the person's, not the view's. */
export function paintBox(to, rect, style, outlined = true) {
  const {out, frame} = to;
  const left = Math.round(rect.left - frame.left) + frame.left; // a browser paints boxes on whole pixels
  const top = Math.round(rect.top - frame.top) + frame.top;
  const r = new DOMRect(left, top, Math.round(rect.right - left), Math.round(rect.bottom - top));
  const radius = Math.min(px(style.borderTopLeftRadius), r.height / 2);
  const x = r.left - frame.left;
  const y = r.top - frame.top;
  const fill = (color) => out.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(r.width)}" height="${n(r.height)}"${radius ? ` rx="${n(radius)}"` : ''} fill="${color}"/>`);
  if (r.width && r.height) {
    if (!clear(style.backgroundColor)) fill(style.backgroundColor);
    const image = style.backgroundImage === 'none' ? null : gradient(style.backgroundImage, r, to);
    if (image) fill(image);
    inset(style.boxShadow, r, radius, to);
  }
  for (const [side, x1, y1, x2, y2] of [['Top', r.left, r.top, r.right, r.top], ['Bottom', r.left, r.bottom, r.right, r.bottom], ['Left', r.left, r.top, r.left, r.bottom], ['Right', r.right, r.top, r.right, r.bottom]]) {
    const w = px(style[`border${side}Width`]);
    const kind = style[`border${side}Style`];
    const color = style[`border${side}Color`];
    if (!w || kind === 'none' || clear(color) || (radius && side !== 'Bottom')) continue;
    const dash = dashes(kind, w, radius ? 2 * (r.width + r.height - 2 * w) : side === 'Top' || side === 'Bottom' ? r.width : r.height);
    if (radius && px(style.borderTopWidth)) { out.push(`<rect x="${n(x + w / 2)}" y="${n(y + w / 2)}" width="${n(Math.max(0, r.width - w))}" height="${n(Math.max(0, r.height - w))}" rx="${n(Math.max(0, radius - w / 2))}" fill="none" stroke="${color}" stroke-width="${w}"${dash}/>`); continue; }
    if (kind === 'double' && side === 'Bottom') { // two thin lines
      const thin = Math.max(1, Math.floor((w + 1) / 3));
      for (const up of [thin / 2, w - thin / 2]) out.push(`<path d="M${n(x1 - frame.left)} ${n(r.bottom - frame.top - up)}H${n(x2 - frame.left)}" stroke="${color}" stroke-width="${thin}"/>`);
      continue;
    }
    const dx = side === 'Left' ? w / 2 : side === 'Right' ? -w / 2 : 0;
    const dy = side === 'Top' ? w / 2 : side === 'Bottom' ? -w / 2 : 0;
    out.push(`<path d="M${n(x1 - frame.left + dx)} ${n(y1 - frame.top + dy)}L${n(x2 - frame.left + dx)} ${n(y2 - frame.top + dy)}" stroke="${color}" stroke-width="${w}"${dash}/>`);
  }
  const w = !outlined || style.outlineStyle === 'none' ? 0 : px(style.outlineWidth);
  if (w && !clear(style.outlineColor)) {
    const d = px(style.outlineOffset) + w / 2;
    out.push(`<rect x="${n(x - d)}" y="${n(y - d)}" width="${n(r.width + 2 * d)}" height="${n(r.height + 2 * d)}" rx="${n(Math.max(0, radius + d))}" fill="none" stroke="${style.outlineColor}" stroke-width="${w}"/>`);
  }
}

/** Dashes as a browser lays them: whole ones at both ends, the gap between stretched to fit. */
function dashes(kind, w, length) {
  if (kind !== 'dashed' && kind !== 'dotted') return '';
  const dash = kind === 'dotted' ? w : w >= 3 ? 2 * w : 3 * w;
  const gap = kind === 'dotted' || w >= 3 ? w : 2 * w;
  const few = Math.floor((length + gap) / (dash + gap));
  const gaps = [few, few + 1].filter((count) => count > 1).map((count) => (length - count * dash) / (count - 1)).filter((g) => g > 0);
  const best = gaps.sort((a, b) => Math.abs(a - gap) - Math.abs(b - gap))[0];
  return ` stroke-dasharray="${n(dash)} ${n(best ?? gap)}"`;
}

export function pseudo(node, which) {
  const style = getComputedStyle(node, which);
  if (!style.content.startsWith('"') || style.display === 'none' || style.visibility === 'hidden') return null;
  const text = style.content.slice(1, -1).replace(/\\(.)/g, '$1');
  const own = getComputedStyle(node);
  const r = node.getBoundingClientRect();
  const edges = (a, b) => (style.boxSizing === 'border-box' ? 0 : px(style[`border${a}Width`]) + px(style[`border${b}Width`]) + px(style[`padding${a}`]) + px(style[`padding${b}`]));
  const width = px(style.width) + edges('Left', 'Right');
  const height = px(style.height) + edges('Top', 'Bottom');
  let left = r.left + px(own.borderLeftWidth);
  let top = r.top + px(own.borderTopWidth);
  if (style.position === 'absolute') {
    left += px(style.left);
    top += px(style.top);
  } else {
    const line = document.createRange();
    line.selectNodeContents(node);
    const held = line.getBoundingClientRect();
    const flex = own.display.includes('flex');
    left += px(own.paddingLeft);
    if (which === '::after' && held.width) left = held.right + (flex ? px(own.columnGap) : 0);
    top = (held.height && !flex ? held.top + held.height / 2 : r.top + r.height / 2) - height / 2;
  }
  const turn = style.transform === 'none' ? '' : style.transform;
  return {r: new DOMRect(left, top, width, height), style, text, turn};
}
