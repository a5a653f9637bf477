/**
 * Small helpers: elements, sharp canvases, marks.
 *
 * Contract: text always goes in by textContent. `sharp(box, store)` gives a canvas that fills its box at device resolution and
 * touches the store's `size` when the box changes.
 */

export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null) continue;
    if (key === 'text') node.textContent = value;
    else if (key === 'on') for (const [type, f] of Object.entries(value)) node.addEventListener(type, f);
    else if (key in node && !key.includes('-') && key !== 'role') node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((c) => c !== null && c !== undefined));
  return node;
}

/** Set text only when it differs: no layout for nothing. */
export function say(node, text) { if (node.textContent !== text) node.textContent = text; }

const ICONS = {
  play: 'M4 2.5v11l9-5.5z', pause: 'M4 3h3v10H4zM9 3h3v10H9z', back: 'M10.5 3v10L4 8z', next: 'M5.5 3v10L12 8z',
  first: 'M3 3h2v10H3zM13 3v10L6 8z', last: 'M11 3h2v10h-2zM3 3v10l7-5z', close: 'M3.5 4.5l1-1L8 7l3.5-3.5 1 1L9 8l3.5 3.5-1 1L8 9l-3.5 3.5-1-1L7 8z',
};

export function icon(name) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('aria-hidden', 'true');
  const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

/** A row of buttons of which one is pressed. `options` = [[value, label, title?]]. */
export function segments(label, options, get, set) {
  const box = el('div', {className: 'seg', role: 'group', 'aria-label': label});
  const paint = () => { for (const b of box.children) b.setAttribute('aria-pressed', String(b.dataset.value === String(get()))); };
  const fill = (list) => {
    box.replaceChildren(...list.map(([value, text, title]) => {
      const button = el('button', {type: 'button', text, title: title || '', on: {click: () => { set(value); paint(); }}});
      button.dataset.value = value;
      return button;
    }));
    paint();
  };
  fill(options);
  return {box, paint, fill};
}

export function select(label, options, get, set) {
  const node = el('select', {'aria-label': label, on: {change: () => set(node.value)}});
  const fill = (list) => {
    const key = JSON.stringify(list);
    if (node.dataset.key !== key) { node.dataset.key = key; node.replaceChildren(...list.map(([value, text]) => el('option', {value, text}))); }
    node.value = String(get());
  };
  fill(options);
  return {node, fill};
}

export function sharp(box, store) {
  const canvas = el('canvas', {'aria-hidden': 'true'});
  box.append(canvas);
  const ctx = canvas.getContext('2d');
  const self = {canvas, ctx, w: 0, h: 0, dpr: 1};
  const resize = () => {
    const dpr = Math.min(3, window.devicePixelRatio || 1);
    const w = box.clientWidth;
    const h = box.clientHeight;
    if (w === self.w && h === self.h && dpr === self.dpr) return;
    self.w = w; self.h = h; self.dpr = dpr;
    canvas.width = Math.max(1, Math.round(w * dpr));
    canvas.height = Math.max(1, Math.round(h * dpr));
    fonts.delete(ctx);
    store.touch('size');
  };
  const observer = new ResizeObserver(resize);
  observer.observe(box);
  resize();
  self.begin = () => {
    ctx.setTransform(self.dpr, 0, 0, self.dpr, 0, 0);
    ctx.clearRect(0, 0, self.w, self.h);
    ctx.globalAlpha = 1;
    ctx.setLineDash([]);
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    return ctx;
  };
  self.destroy = () => { observer.disconnect(); canvas.width = canvas.height = 1; };
  return self;
}

const fonts = new WeakMap();

/** Set the font only when it differs: each assignment makes the browser bring its styles up to date. */
export function setFont(ctx, font) {
  if (fonts.get(ctx) === font) return;
  fonts.set(ctx, font);
  ctx.font = font;
  ctx.direction = 'ltr'; // 'inherit' would ask the styles at every text
}

/** An offscreen canvas of the same size, for what seldom changes; the old one is used again. */
export function layer(view, old = null) {
  const canvas = old?.canvas || document.createElement('canvas');
  const ctx = old?.ctx || canvas.getContext('2d');
  if (old && canvas.width === view.canvas.width && canvas.height === view.canvas.height) {
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.clearRect(0, 0, canvas.width, canvas.height);
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
  } else {
    canvas.width = view.canvas.width;
    canvas.height = view.canvas.height;
    fonts.delete(ctx);
  }
  ctx.setTransform(view.dpr, 0, 0, view.dpr, 0, 0);
  ctx.textBaseline = 'middle';
  return {canvas, ctx};
}

export const SANS = '"Inter", system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
export const MONO = '"JetBrains Mono", ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

/** The underline of a commit reason: solid, dotted, double, dashed, dash-dot. */
export function underline(ctx, r, x, y, w, color) {
  ctx.fillStyle = color;
  if (r === 1) ctx.fillRect(x, y - 2, w, 2);
  else if (r === 3) { ctx.fillRect(x, y - 4, w, 1.5); ctx.fillRect(x, y - 1.5, w, 1.5); } else {
    const [on, off] = r === 2 ? [2, 2] : r === 4 ? [5, 3] : [1, 1];
    for (let a = 0; a < w; a += on + off) ctx.fillRect(x + a, y - 2, Math.min(on, w - a), 2);
  }
}

/** A cluster's mark: colour and shape both by cluster number. */
export function shape(ctx, k, x, y, r) {
  ctx.beginPath();
  const poly = (n, turn, scale = 1) => { for (let i = 0; i < n; i++) { const a = turn + (i * 2 * Math.PI) / n; ctx.lineTo(x + Math.cos(a) * r * scale, y + Math.sin(a) * r * scale); } };
  switch ((k + (k >> 3)) & 7) {
    case 0: ctx.arc(x, y, r, 0, 7); break;
    case 1: ctx.rect(x - r * 0.86, y - r * 0.86, r * 1.72, r * 1.72); break;
    case 2: poly(3, -Math.PI / 2, 1.25); break;
    case 3: poly(4, 0, 1.25); break;
    case 4: poly(3, Math.PI / 2, 1.25); break;
    case 5: poly(5, -Math.PI / 2, 1.12); break;
    case 6: { const a = r * 0.42; const b = r * 1.15; for (const [p, q] of [[-a, -b], [a, -b], [a, -a], [b, -a], [b, a], [a, a], [a, b], [-a, b], [-a, a], [-b, a], [-b, -a], [-a, -a]]) ctx.lineTo(x + p, y + q); break; }
    default: poly(6, 0, 1.1);
  }
  ctx.closePath();
}

export const num = (v, digits = 2) => (v === null || v === undefined || !Number.isFinite(v) ? 'n/a' : v.toFixed(digits));

/** Three significant figures without exponent where that is readable. */
export function short(v) {
  if (v === null || v === undefined || !Number.isFinite(v)) return 'n/a';
  const a = Math.abs(v);
  if (a !== 0 && a < 0.001) return v.toExponential(1);
  return a >= 100 ? v.toFixed(0) : a >= 10 ? v.toFixed(1) : a >= 1 ? v.toFixed(2) : v.toFixed(3);
}
