"""Realistic made-up messages in the stream's documented format, for tests of the page's javascript.

Contract: `messages(...)` -> list of JSON strings (docs/architecture.md, "Stream from server to page"), the same for the same arguments.
The decode is invented but keeps the invariants of a real one: each position is committed once, a block ends when it has no [MASK],
confidence exists only where a position was masked, drift only in within-block passes.
"""

from __future__ import annotations

import base64
import json

import numpy as np

NAMES = {"tau_s": "τ_s", "tau_suf": "τ_suf", "tau_upd": "τ_upd", "alpha": "α", "block_length": "block length", "gen_length": "length", "temperature": "T"}
WORDS = [
    " In",
    " April",
    " Natalia",
    " sold",
    " 4",
    "8",
    " clips",
    ".",
    "\n",
    "In",
    " May",
    " she",
    " sold",
    " half",
    " as",
    " many",
    ",",
    " so",
    " 4",
    "8",
    " /",
    " 2",
    " =",
    " 2",
    "4",
    " clips",
    ".",
    "\n",
    "Together",
    " she",
    " sold",
    " 4",
    "8",
    " +",
    " 2",
    "4",
    " =",
    " 7",
    "2",
    " clips",
    " in",
    " April",
    " and",
    " May",
    ".",
    "\n",
    "The",
    " answer",
    " is",
    " 7",
    "2",
    ".",
    "\n",
    "####",
    " 7",
    "2",
    " how",
    "ever",
    " consequently",
    " 12,500",
    "\t",
    "  ",
    "(",
    "x",
    ")",
    " the",
    " of",
    " to",
]
HOSTILE = ["${HOME}", " <img src=x onerror=alert(1)>", " {{value}}", "</script>", "\u202eabc", "&amp;"]
EMOJI = ["f09f", "8c9f", "e282", "ac", "c3"]
EOS, MASK = 0, 1


def b64(values, dtype) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=dtype).tobytes()).decode()


class Vocab:
    def __init__(self) -> None:
        self.tokens = [{"t": "<|endoftext|>", "s": 1}, {"t": "<|mdm_mask|>", "s": 1}, {"t": "<|eot_id|>", "s": 1}, {"t": "<|start_header_id|>", "s": 1}]
        self.words = [self._add({"t": w}) for w in WORDS]
        self.hostile = [self._add({"t": w}) for w in HOSTILE]
        self.bytes = [self._add({"t": "\ufffd", "b": b}) for b in EMOJI]

    def _add(self, token) -> int:
        self.tokens.append(token)
        return len(self.tokens) - 1


def decode(
    *,
    lane="A",
    method="polestar",
    title="Polestar",
    seed=0,
    prompt_length=26,
    gen_length=128,
    block_length=32,
    n_layers=6,
    K=8,
    k=4,
    rate=3.0,
    level="full",
    live=True,
    hostile=False,
    passes=None,
    answer_seed=0,
    n_heads=4,
    observe=False,
    memory=False,
):
    """(header, vocab map, steps) of one invented decode; `passes` stretches it to that many passes."""
    rng = np.random.default_rng(seed)
    vocab = Vocab()
    L = prompt_length + gen_length
    truth_rng = np.random.default_rng(answer_seed)
    n_answer = int(gen_length * 0.62)
    truth = [vocab.words[i % len(vocab.words)] for i in range(n_answer)] + [EOS] * (gen_length - n_answer)
    truth[20:25] = vocab.bytes[:5]
    if hostile:
        truth[4 : 4 + len(vocab.hostile)] = vocab.hostile
    for g in truth_rng.choice(n_answer, 6, replace=False):
        if g > 26:
            truth[g] = vocab.words[int(truth_rng.integers(len(vocab.words)))]
    prompt = [3, 2] + [vocab.words[int(i)] for i in rng.integers(0, len(vocab.words), prompt_length - 3)] + [2]
    if hostile:
        prompt[4 : 4 + len(vocab.hostile)] = vocab.hostile
    blocks = [[s, min(s + block_length, L)] for s in range(prompt_length, L, block_length)]
    config = {
        "tau_s": 0.9,
        "tau_suf": 0.9,
        "tau_upd": 3,
        "alpha": 10.0,
        "h": 5,
        "K": K,
        "k": k,
        "block_length": block_length,
        "gen_length": gen_length,
        "prefix_blocks": 2,
        "suffix_blocks": 1,
        "seed": seed,
        "temperature": 0.0,
    }
    header = {
        "method": method,
        "title": title,
        "preset": "paper" if method == "polestar" else "",
        "config": config,
        "model": "demo",
        "revision": None,
        "device": "cpu",
        "dtype": "float32",
        "prompt_ids": prompt,
        "gen_length": gen_length,
        "block_length": block_length,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "mask_id": MASK,
        "eos_ids": [EOS],
        "prompt_length": prompt_length,
        "length": L,
        "blocks": blocks,
        "level": level,
        "live": live,
        "versions": {},
        "names": {name: NAMES.get(name, name) for name in config},
    }
    is_polestar = method == "polestar"
    masked = np.ones(L, bool)
    masked[:prompt_length] = False
    drift_on = is_polestar or method == "fast-dllm-dual"
    steps, now, since, last = [], 0.0, 0, 0
    per_block = None if passes is None else max(2, passes // len(blocks))
    base_conf = rng.uniform(0.15, 0.75, L)
    history = []
    centroids = rng.normal(0, 2.2, (n_layers, K, 2))
    for b, (s, e) in enumerate(blocks):
        win = np.r_[np.arange(max(0, s - 2 * block_length), s), np.arange(e, min(L, e + block_length))]
        labels = np.stack([(np.arange(len(win)) * K // max(1, len(win)) + rng.integers(0, 2, len(win))) % K for _ in range(n_layers)]).astype(np.uint8)
        first, t_block, history = True, 0, []
        while masked[s:e].any() or first:
            if not masked[s:e].any():
                break
            B = e - s
            ages = t_block
            conf = np.clip(base_conf[s:e] + 0.035 * ages * rng.uniform(0.4, 1.6, B) + rng.normal(0, 0.05, B), 0.02, 0.995)
            conf[~masked[s:e]] = np.nan
            am = np.where(
                masked[s:e], [truth[j - prompt_length] if rng.random() < 0.75 else vocab.words[int(rng.integers(len(vocab.words)))] for j in range(s, e)], -1
            )
            refresh = is_polestar and not first and (last > 3 or since > 3)
            drift = delta = gate = None
            if not first and drift_on:
                drift = np.exp(rng.normal(-3.2, 1.1, B)) + (rng.random(B) < 0.05) * rng.uniform(0.3, 1.6, B)
                if is_polestar:
                    mean = np.mean(history, 0) if history else np.zeros(B)
                    delta = drift - mean
                    history = [*history, drift][-5:]
                    gate = np.where(masked[s:e], 10 * (0.9 - conf) ** 2, np.nan)
            commits, want = [], None
            limit = B if per_block is None else max(1, int(np.ceil(masked[s:e].sum() / max(1, per_block - t_block))))
            order = [int(j) for j in np.argsort(-np.nan_to_num(conf, nan=-1)) if masked[s + j]]
            quota = min(limit, 1 + int(rng.poisson(rate)))
            for n_c, j in enumerate(order):
                tok = truth[s + j - prompt_length]
                c = float(conf[j])
                if delta is not None and c < 0.9 and delta[j] >= gate[j]:
                    want = ("drift", float(delta[j]), float(gate[j]))
                elif n_c < quota and (c >= 0.9 or n_c < quota - 1):
                    conf[j] = c = max(c, float(rng.uniform(0.9, 0.995)))
                    want = ("confidence", None, None)
                elif n_c == 0:
                    want = ("forced", None, None)
                else:
                    continue
                if len(commits) >= limit:
                    break
                am[j] = tok
                if rng.random() < 0.04 and lane == "B":
                    tok = vocab.words[int(rng.integers(len(vocab.words)))]
                    am[j] = tok
                commits.append([s + j, int(tok), c, *want])
            sel = cs = prows = None
            if refresh:
                cs = np.exp(rng.normal(-4, 1, (n_layers, K)))
                sel = np.zeros((n_layers, K), np.uint8)
                for layer in range(n_layers):
                    sel[layer, np.argsort(-cs[layer])[:k]] = 1
                prows = np.array([int(sel[layer][labels[layer]].sum()) for layer in range(n_layers)], np.uint16)
                if e < L and rng.random() < 0.6:
                    for pos in rng.choice(np.arange(e, min(L, e + block_length)), 2, replace=False):
                        if masked[pos] and truth[pos - prompt_length] == EOS:
                            commits.append([int(pos), EOS, float(rng.uniform(0.9, 0.99)), "suffix", None, None])
            kind = "within" if not first else "entry-full" if b % 2 == 0 or not is_polestar else "entry-window"
            rows = L if kind == "entry-full" else len(win) + B if kind == "entry-window" else B
            dt = 0.004 + rows * 0.00011 + (0.004 if refresh else 0) + rng.uniform(0, 0.002)
            now += dt
            step = {
                "i": len(steps),
                "b": b,
                "s": s,
                "e": e,
                "k": kind,
                "rf": int(refresh),
                "why": (f"N {last} > τ_upd 3" if last > 3 else f"M {since} > τ_upd 3") if refresh else "",
                "N": None if first or not is_polestar else last,
                "M": None if first or not is_polestar else since,
                "rows": rows,
                "prows": None if prows is None else b64(prows, "<u2"),
                "t": round(now, 6),
                "dt": round(dt, 6),
                "c": commits,
                "conf": b64(conf, "<f4"),
                "am": b64(am, "<i4"),
                "drift": None if drift is None else b64(drift, "<f4"),
                "delta": None if delta is None else b64(delta, "<f4"),
                "gate": None if gate is None else b64(gate, "<f4"),
                "win": b64(win, "<u2") if first and is_polestar else None,
                "lab": b64(labels, "u1") if first and is_polestar else None,
                "cs": None if cs is None else b64(cs, "<f4"),
                "sel": None if sel is None else b64(sel, "u1"),
                "pts": None,
                "cand": None,
                "stale": None,
                "fulldrift": None,
                "ph": {"attention": dt * 0.35, "mlp": dt * 0.3, "head": dt * 0.05, "log": 0.001}
                | ({"proxy": dt * 0.1, "packets": dt * 0.08} if refresh else {"clustering": dt * 0.15} if first and is_polestar else {}),
                "par": [],
                "x": {},
            }
            if observe:
                age = np.maximum(0, np.abs(np.arange(L) - s) / L)
                stale = np.abs(rng.normal(0.02, 0.02, (n_layers, L))) + age[None] * np.linspace(0.05, 0.9, n_layers)[:, None]
                stale[:, s:e] = 0
                step["stale"] = b64(stale, "<f4")
                step["fulldrift"] = b64(np.exp(rng.normal(-4 + 2 * age, 1, L)), "<f4") if steps else None
            if memory and first:
                step["x"]["memory"] = {"device": 180_000_000 + 1_000_000 * len(steps), "host": 24_000_000, "parts": {"kv": 150_000_000}}
            if level == "full":
                if is_polestar and (first or refresh):
                    spread = np.stack([centroids[i, labels[i]] for i in range(n_layers)])
                    pts = np.concatenate([spread + np.random.default_rng(b).normal(0, 0.55, spread.shape) + rng.normal(0, 0.05, spread.shape), centroids], 1)
                    step["pts"] = b64(pts, "<f4")
                tok = rng.integers(4, len(vocab.tokens), (B, 5))
                tok[:, 0] = np.where(am >= 0, am, -1)
                p = np.sort(rng.dirichlet(np.ones(5), B), 1)[:, ::-1] * (1 - np.nan_to_num(conf, nan=0))[:, None]
                p[:, 0] = conf
                step["cand"] = {"tok": b64(tok, "<i4"), "p": b64(p, "<f4")}
            if first:
                since = 0
            if refresh:
                since = 0
            last = len(commits)
            since += last
            for c in commits:
                masked[c[0]] = False
            steps.append(step)
            first = False
            t_block += 1
    return header, {str(i): t for i, t in enumerate(vocab.tokens)}, steps


def metrics(header, steps):
    tokens = {c[0]: c[1] for s in steps for c in s["c"]}
    own = sum(t != EOS for t in tokens.values())
    seconds = steps[-1]["t"]
    reasons: dict[str, int] = {}
    for s in steps:
        for c in s["c"]:
            reasons[c[3]] = reasons.get(c[3], 0) + 1
    n = len(steps)
    return {
        "nfe": n,
        "tpf": own / n,
        "tpf_all": len(tokens) / n,
        "tps": own / seconds,
        "tps_all": len(tokens) / seconds,
        "seconds": seconds,
        "tokens": len(tokens),
        "non_eos": own,
        "rows": sum(s["rows"] for s in steps),
        "rows_per_token": sum(s["rows"] for s in steps) / len(tokens),
        "reasons": reasons,
        "text": "",
    }


def messages(*, run="r1", compare=True, per_message=4, end=True, status="done", **kw) -> list[str]:
    """The whole stream of a run: header, vocabulary, steps of lane A then B, ends, status."""
    out: list[str] = []

    def send(*events) -> None:
        out.append(json.dumps({"v": 1, "run": run, "seq": len(out), "events": list(events)}))

    lanes = [("A", "polestar", "Polestar", 3.0, 0)] + ([("B", "fast-dllm-dual", "Fast-dLLM dual cache", 2.4, 1)] if compare else [])
    seed = kw.pop("seed", 0)
    rate = kw.pop("rate", None)
    send({"type": "status", "state": "running", "text": "", "place": None})
    for lane, method, title, own_rate, extra in lanes:
        header, vocab, steps = decode(lane=lane, method=method, title=title, rate=rate or own_rate, seed=seed + extra, **kw)
        send({"type": "header", "lane": lane, "header": header}, {"type": "vocab", "map": vocab})
        for i in range(0, len(steps), per_message):
            send({"type": "steps", "lane": lane, "steps": steps[i : i + per_message]})
        if end:
            send({"type": "end", "lane": lane, "status": "done", "metrics": metrics(header, steps)})
    if end:
        send({"type": "status", "state": status, "text": "", "place": None})
    return out


def debug_events() -> list[dict]:
    """One of each event that belongs to the debugger: breakpoints, forks, notes, methods."""
    return [
        {
            "type": "breakpoints",
            "list": [
                {"id": 1, "text": "drift commit with Δ above 0.5", "enabled": True, "fired": "pass 12: position 47 committed (drift), Δ 0.61"},
                {"id": 2, "text": "refresh", "enabled": False, "fired": None},
            ],
        },
        {
            "type": "branches",
            "list": [
                {"id": "b1", "parent": None, "at": None, "label": "Polestar", "lane": "A"},
                {"id": "b2", "parent": "b1", "at": 12, "label": "α 10 → 4", "lane": "B"},
                {"id": "b3", "parent": "b1", "at": 18, "label": "position 47 = clips", "lane": None},
            ],
        },
        {
            "type": "notes",
            "lane": "A",
            "notes": [{"pass": 12, "position": 47, "text": "Here the two lanes part."}, {"pass": 20, "position": None, "text": "Second block begins."}],
        },
        {
            "type": "methods",
            "list": [{"name": "polestar", "title": "Polestar"}, {"name": "fast-dllm-dual", "title": "Fast-dLLM dual"}, {"name": "klass", "title": "KLASS"}],
        },
    ]
