/**
 * What a method's own log (Step `x`) says about positions, for drawing over the token grid.
 *
 * Contract: `overlayOf(log, p)` -> {edges: [[from, to, weight]], rings: [[position, kind]], bars: [[position, 0..1]], spans: [[from, to]], legend: [[kind, words]]} of
 * pass p, empty lists where there is nothing; `drawOverlay(ctx, t, overlay, place, cell)` with `place(pos) -> {x, y} | null`. Kinds have a colour and
 * a form each. Sources of the fields: the method's file in polestar/.
 */

const FORMS = {
  anchor: ['conf', 'square'], held: ['bad', 'cross'], stable: ['ok', 'dot'], tracked: ['drift', 'diamond'], delimiter: ['drift', 'square'],
  masks: ['conf', 'dot'], committed: ['ok', 'dot'], between: ['suf', 'diamond'], block: ['drift', 'square'], rollout: ['drift', 'diamond'], other: ['other', 'dot'],
};
const form = (kind) => FORMS[kind] || FORMS.other;
const whole = (list) => (Array.isArray(list) ? list.filter(Number.isInteger) : []);

/** KL on a log scale from 1e-4 to 10 nats. */
const level = (v) => Math.max(0.04, Math.min(1, (Math.log10(Math.max(v, 1e-12)) + 4) / 5));

export function overlayOf(log, p) {
  const out = {edges: [], rings: [], bars: [], spans: [], legend: []};
  const step = log.steps[p];
  if (!step) return out;
  const x = step.extra;
  const ring = (list, kind, words) => { const at = whole(list); if (at.length) { for (const pos of at) out.rings.push([pos, kind]); out.legend.push([kind, words]); } };
  if (x.dawn) {
    (x.dawn.edges || []).forEach(([from, to], i) => out.edges.push([from, to, x.dawn.weights?.[i] ?? 1]));
    if (out.edges.length) out.legend.push(['edge', 'depends on: attention above τ_edge, from → to']);
    ring(x.dawn.anchors, 'anchor', 'anchor: known and sure, others depend on it');
    ring(x.dawn.held, 'held', 'held back: depends on a token chosen in this pass');
  }
  if (x.klass) {
    (x.klass.kl || []).forEach((v, j) => { if (v !== null && Number.isFinite(v)) out.bars.push([step.s + j, level(v), v]); });
    if (out.bars.length) out.legend.push(['bar', 'KL against the pass before (log scale, 0.0001 to 10 nats)']);
    ring(x.klass.stable, 'stable', 'stable: KL below τ_KL for H passes');
  }
  ring(x.tracked, 'tracked', 'tracked: most attended rows, watched for drift');
  if (x.chosen) for (const [kind, list] of Object.entries(x.chosen)) ring(list, kind, `recomputed: ${kind}`);
  if (x.adablock?.delimiter) ring([x.adablock.delimiter.position], 'delimiter', 'best delimiter in reach');
  if (Array.isArray(x.window) && x.window.length === 2) { out.spans.push(x.window); out.legend.push(['span', 'window that may be recomputed']); }
  if (log.steps.some((s) => s.extra.adablock)) {
    const seen = new Set();
    for (let i = 0; i <= p; i++) { const s = log.steps[i]; const k = `${s.s}/${s.e}`; if (!seen.has(k)) { seen.add(k); out.spans.push([s.s, s.e]); } }
    out.legend.push(['span', 'blocks as the method has set them so far']);
  }
  return out;
}

/** A kind's mark. */
export function drawForm(ctx, t, kind, x, y, r) {
  const [color, shape] = form(kind);
  ctx.strokeStyle = ctx.fillStyle = t[color];
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  if (shape === 'dot') { ctx.arc(x, y, r * 0.75, 0, 7); ctx.fill(); } else if (shape === 'square') { ctx.rect(x - r, y - r, 2 * r, 2 * r); ctx.stroke(); } else if (shape === 'diamond') { ctx.moveTo(x, y - r); ctx.lineTo(x + r, y); ctx.lineTo(x, y + r); ctx.lineTo(x - r, y); ctx.closePath(); ctx.stroke(); } else { ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r); ctx.moveTo(x + r, y - r); ctx.lineTo(x - r, y + r); ctx.stroke(); }
}

export function drawOverlay(ctx, t, overlay, place, {cw, ch, outline}) {
  ctx.strokeStyle = t.drift;
  ctx.lineWidth = 1.2;
  ctx.setLineDash([6, 2]);
  for (const [from, to] of overlay.spans) outline(ctx, from, to);
  ctx.setLineDash([]);
  for (const [pos, v] of overlay.bars) {
    const at = place(pos);
    if (!at) continue;
    ctx.fillStyle = t.suf;
    ctx.fillRect(at.x, at.y + (1 - v) * (ch - 3), 3, v * (ch - 3));
  }
  const most = Math.max(1e-9, ...overlay.edges.map((e) => e[2]));
  for (const [from, to, weight] of overlay.edges) {
    const a = place(from);
    const b = place(to);
    if (!a || !b) continue;
    const [x0, y0, x1, y1] = [a.x + cw / 2, a.y + ch / 2, b.x + cw / 2, b.y + ch / 2];
    const d = Math.hypot(x1 - x0, y1 - y0) || 1;
    const bend = Math.min(26, d * 0.25);
    const [mx, my] = [(x0 + x1) / 2 - ((y1 - y0) / d) * bend, (y0 + y1) / 2 + ((x1 - x0) / d) * bend];
    ctx.globalAlpha = 0.3 + 0.6 * (weight / most);
    ctx.strokeStyle = ctx.fillStyle = t.drift;
    ctx.lineWidth = 0.8 + 1.6 * (weight / most);
    ctx.beginPath(); ctx.moveTo(x0, y0); ctx.quadraticCurveTo(mx, my, x1, y1); ctx.stroke();
    const angle = Math.atan2(y1 - my, x1 - mx);
    ctx.beginPath(); ctx.moveTo(x1, y1); ctx.lineTo(x1 - 7 * Math.cos(angle - 0.4), y1 - 7 * Math.sin(angle - 0.4)); ctx.lineTo(x1 - 7 * Math.cos(angle + 0.4), y1 - 7 * Math.sin(angle + 0.4)); ctx.fill();
  }
  ctx.globalAlpha = 1;
  for (const [pos, kind] of overlay.rings) { const at = place(pos); if (at) drawForm(ctx, t, kind, at.x + 6, at.y + 5, 3); }
}
