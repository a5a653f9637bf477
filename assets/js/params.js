/**
 * Parameters in force at a pass: the header's, with every change of the log up to that pass applied; and those that a fork by another method begins with.
 *
 * Contract: pure; `nameOf(log, name)` -> what people read for a parameter of a lane's method; `paramsAt(log, p)` -> {tau_s, tau_suf, alpha, h, ...} as recorded, missing ones undefined; `paramsOf(methods, name)` -> {name: {symbol, help,
 * default, kind, choices}} or null where the list of methods does not have it; `forkParams(methods, log, p, name)` -> {name: value} by the rule of polestar/fork.py.
 */

export const nameOf = (log, name) => log?.header.names?.[name] || name;

export function paramsAt(log, p) {
  const config = {...log.header.config};
  for (let i = 0; i <= Math.min(p, log.n - 1); i++) for (const [name, , value] of log.steps[i].changes) config[name] = value;
  return config;
}

export function paramsOf(methods, name) {
  const params = methods.find((m) => m.name === name)?.params;
  return params ? Object.fromEntries(params.map((p) => [p.name, p])) : null;
}

const ALWAYS_KEPT = ['gen_length', 'block_length', 'temperature', 'seed'];

/** A method's values in a preset; null where the list of methods does not have them. */
function presetOf(methods, name, preset) {
  const params = paramsOf(methods, name);
  if (!params) return null;
  const {presets} = methods.find((m) => m.name === name);
  return {...Object.fromEntries(Object.values(params).map((p) => [p.name, p.default])), ...(presets?.[preset] || presets?.paper)};
}

/** The other method's preset, and what a person had set of the parameters that both have. */
export function forkParams(methods, log, p, name) {
  const {method, preset} = log.header;
  const now = paramsAt(log, p);
  const values = presetOf(methods, name, preset);
  if (name === method || !values) return now;
  const usual = presetOf(methods, method, preset) || now;
  for (const key of Object.keys(values)) if (key in now && (ALWAYS_KEPT.includes(key) || now[key] !== usual[key])) values[key] = now[key];
  return values;
}
