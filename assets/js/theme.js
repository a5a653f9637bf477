/**
 * Colours for canvases: read once per theme from the style sheet's variables, plus the two fixed palettes.
 *
 * Contract: `watchTheme(app, onChange)` keeps `data-theme` on the app element equal to Gradio's `dark` class (body or html), or, where
 * neither `dark` nor `light` is set, to the system's preference. Palettes are safe for colour-blind readers: cividis-like steps
 * (monotone in lightness) and Okabe-Ito for clusters, which always come with a shape as well.
 */

const DARK_STOPS = [[16, 32, 66], [26, 55, 105], [63, 71, 107], [94, 92, 110], [127, 113, 110], [160, 141, 108], [193, 165, 92], [225, 195, 74], [255, 233, 69]];
const LIGHT_STOPS = [[247, 244, 230], [246, 229, 165], [226, 198, 110], [190, 169, 108], [150, 142, 117], [111, 113, 117], [74, 88, 112], [38, 66, 106], [0, 40, 92]];
export const CLUSTER_DARK = ['#e69f00', '#56b4e9', '#22b58a', '#f0e442', '#4a8fe7', '#e2703a', '#d68bb4', '#aab3c2'];
export const CLUSTER_LIGHT = ['#c98a00', '#3a9bd6', '#00805d', '#a89a00', '#0060a8', '#c84f00', '#b3588d', '#7a8290'];

const NAMES = ['bg', 'panel', 'panel2', 'line', 'ink', 'mut', 'acc', 'conf', 'forced', 'drift', 'suf', 'other', 'cell', 'hatch', 'bad', 'ok', 'warn', 'na'];

function table(stops) {
  const out = [];
  for (let i = 0; i < 256; i++) {
    const x = (i / 255) * (stops.length - 1);
    const k = Math.min(stops.length - 2, Math.floor(x));
    out.push(stops[k].map((a, c) => Math.round(a + (stops[k + 1][c] - a) * (x - k))));
  }
  return out;
}

const TABLES = {dark: table(DARK_STOPS), light: table(LIGHT_STOPS)};

/** A pixel of an ImageData's buffer read as Uint32Array. */
export const pixel = ([r, g, b, a = 255]) => new Uint32Array(Uint8Array.of(r, g, b, a).buffer)[0];
const PIXELS = {dark: Uint32Array.from(TABLES.dark, pixel), light: Uint32Array.from(TABLES.light, pixel)};

/** The colours of the app element's present theme. */
export function readTheme(app) {
  const style = getComputedStyle(app);
  const theme = {name: app.dataset.theme};
  for (const name of NAMES) theme[name] = style.getPropertyValue(`--${name}`).trim();
  theme.map = TABLES[theme.name] || TABLES.dark;
  theme.pixels = PIXELS[theme.name] || PIXELS.dark;
  theme.clusters = theme.name === 'light' ? CLUSTER_LIGHT : CLUSTER_DARK;
  theme.reason = [theme.mut, theme.conf, theme.forced, theme.drift, theme.suf, theme.acc, theme.other];
  return theme;
}

export const rgb = ([r, g, b]) => `rgb(${r},${g},${b})`;

export function watchTheme(app, onChange) {
  const system = matchMedia('(prefers-color-scheme: dark)');
  const decide = () => {
    const has = (name) => document.body.classList.contains(name) || document.documentElement.classList.contains(name);
    const gradio = document.querySelector('gradio-app, .gradio-container');
    const dark = has('dark') || (!has('light') && !gradio && system.matches);
    const name = dark ? 'dark' : 'light';
    if (app.dataset.theme !== name) { app.dataset.theme = name; onChange(); }
  };
  const observer = new MutationObserver(decide);
  observer.observe(document.body, {attributes: true, attributeFilter: ['class']});
  observer.observe(document.documentElement, {attributes: true, attributeFilter: ['class']});
  system.addEventListener('change', decide);
  decide();
  return () => { observer.disconnect(); system.removeEventListener('change', decide); };
}
