/**
 * Parameters in force at a pass: the header's, with every change of the log up to that pass applied.
 *
 * Contract: pure; `paramsAt(log, p)` -> {tau_s, tau_suf, alpha, h, ...} as recorded, missing ones undefined.
 */

export const NAMES = {tau_s: 'τ_s', tau_suf: 'τ_suf', tau_upd: 'τ_upd', alpha: 'α'};

export function paramsAt(log, p) {
  const config = {...log.header.config};
  for (let i = 0; i <= Math.min(p, log.n - 1); i++) for (const [name, , value] of log.steps[i].changes) config[name] = value;
  return config;
}
