"""Which tables `bench demo` makes, and their figures.

Contract: `tables` names rows as jobs; `measure` turns the finished decodes of a table into plain numbers. Sums run over the problems that every row of the
table has finished, so rows can be compared problem by problem. Shares carry Wilson's 95 % interval; figures without a divisor are None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from polestar.bench import paired
from polestar.demo.evaluate import Job, Result, Store
from polestar.demo.problem import Problem

REFERENCE = "fast-dllm-dual"
PARTS = ("methods", "ablation", "tradeoff")
ONE = 2.0  # a τ_s that no confidence reaches; at 1.01 the drift gate would be open to every near-certain token
LEVELS = (0.5, 0.7, 0.9, ONE)
TRADEOFF = ("parallel", "fast-dllm-dual", "polestar")
# Polestar's parameters around the paper's Table 5; the default is among the values.
SCAN: dict[str, tuple[float, ...]] = {
    "alpha": (0.0, 2.5, 5.0, 10.0, 20.0, 40.0),
    "k": (1, 2, 4, 6, 8),
    "tau_upd": (0.0, 1.0, 3.0, 6.0, math.inf),
    "h": (0, 1, 5, 10),
    "tau_s": (0.6, 0.7, 0.8, 0.9, 0.95),
}


@dataclass(frozen=True)
class Table:
    """`rows`: (label, job); `base`: the label of the row that others are compared with, or None for each row's own method."""

    name: str
    title: str
    n: int
    rows: tuple[tuple[str, Job], ...]
    base: str | None
    bases: dict[str, str] = field(default_factory=dict)

    def base_of(self, label: str) -> str | None:
        """The row that `label` is compared with; None when it is that row or there is none."""
        base = self.bases.get(label, self.base)
        return None if base == label or base not in dict(self.rows) else base


def tables(methods: Sequence[str], parts: Sequence[str], *, scan: bool, n: int, tradeoff_n: int, scan_n: int) -> list[Table]:
    """The tables that the options ask for."""
    out = []
    if "methods" in parts:
        base = REFERENCE if REFERENCE in methods else methods[0]
        out.append(Table("methods", "Decoders at the paper's defaults", n, tuple((m, Job.of(m)) for m in methods), base))
    if "ablation" in parts and {"polestar", REFERENCE} <= set(methods):
        rows = [(m, Job.of(m)) for m in ("vanilla", "parallel") if m in methods] + [
            (REFERENCE, Job.of(REFERENCE)),
            ("Polestar-Cache", Job.of("polestar", drift_commit=False, suffix_commit=False)),
            ("+ current-block commit", Job.of("polestar", suffix_commit=False)),
            ("+ suffix commit", Job.of("polestar")),
        ]
        out.append(Table("ablation", "Parts of Polestar (Table 4 of the paper)", n, tuple(rows), REFERENCE))
    if "tradeoff" in parts:
        rows, bases = [], {}
        for method in (m for m in TRADEOFF if m in methods):
            for level in LEVELS:
                label = f"{method}, τ_s {'> 1' if level > 1 else level}"
                rows.append((label, Job.of(method, tau_s=level)))
                bases[label] = f"{method}, τ_s 0.9"
        if rows:
            out.append(Table("tradeoff", "What the threshold buys and costs", min(n, tradeoff_n), tuple(rows), None, bases))
    for name, values in SCAN.items() if scan and "polestar" in methods else ():
        rows, base = [], None
        for value in values:
            job = Job.of("polestar", **{name: value})
            label = f"{value:g}" + ("" if job.settings else " (default)")
            base = base if job.settings else label
            rows.append((label, job))
        out.append(Table(f"scan {name}", name, min(n, scan_n), tuple(rows), base))
    return out


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """Sums and means of judged decodes (see ALGORITHM's metrics: TPF and TPS count non-[EOS] tokens, passes exclude packets).

    `tpf_answer` stops where the first [EOS] and all before it stand; `nfe`, `seconds` are means per problem; `reasons` are shares of commits.
    """

    def total(name: str) -> float:
        return sum(getattr(r, name) for r in results)

    def per(a: float, b: float) -> float | None:
        return a / b if b else None

    n, right = len(results), sum(r.right for r in results)
    value, low, high = paired.share(right, n)
    reasons = Counter()
    for r in results:
        reasons.update(r.reasons)
    return {
        "n": n, "right": right, "accuracy": value, "low": low, "high": high, "nfe": total("nfe") / n, "seconds": total("seconds") / n,
        "tpf": per(total("non_eos"), total("nfe")), "tpf_all": per(total("tokens"), total("nfe")), "tpf_answer": per(total("answer"), total("answer_nfe")),
        "tps": per(total("non_eos"), total("seconds")), "rows_per_token": per(total("rows") + total("packet_rows"), total("tokens")),
        "refreshes": total("refreshes") / n, "reasons": {k: v / total("tokens") for k, v in sorted(reasons.items())},
    }


def compare(a: Sequence[Result], b: Sequence[Result]) -> dict[str, Any]:
    """`a` against `b` on the same problems: accuracy, and ratios of NFE, TPF, rows and seconds."""

    def column(results: Sequence[Result], *names: str) -> list[float]:
        return [sum(getattr(r, n) for n in names) for r in results]

    def of(*names: str) -> dict[str, Any]:
        return paired.ratio(column(a, *names), column(b, *names))

    return {
        "accuracy": paired.mcnemar([r.right for r in a], [r.right for r in b]),
        "nfe": of("nfe"), "rows": of("rows", "packet_rows"), "seconds": of("seconds"),
        "tpf": paired.ratio(column(a, "non_eos"), column(b, "non_eos"), a_per=column(a, "nfe"), b_per=column(b, "nfe")),
    }


def measure(table: Table, families: dict[str, list[Problem]], lengths: dict[str, int], store: Store) -> dict[str, Any]:
    """The table's numbers: rows with `figures`, those by family and kind, and `versus` (see `compare`)."""
    columns: dict[str, list[Result]] = {label: [] for label, _ in table.rows}
    for family, problems in families.items():
        for problem in problems[: table.n]:
            found = {label: store.find(job, problem, lengths[family]) for label, job in table.rows}
            if all(found.values()):
                for label, result in found.items():
                    columns[label].append(result)
    out: dict[str, Any] = {"name": table.name, "title": table.title, "rows": [], "problems": len(next(iter(columns.values())))}
    for label, job in table.rows if out["problems"] else ():
        own, base = columns[label], table.base_of(label)
        out["rows"].append(
            {
                "label": label, "job": job.key, **figures(own), "base": base, "versus": None if base is None else compare(own, columns[base]),
                "by_family": {f: figures(part) for f in families if (part := [r for r in own if r.family == f])},
                "by_kind": _by_kind(own),
            }
        )
    return out


def _by_kind(results: Sequence[Result]) -> dict[str, list[int]]:
    """family/kind -> [right, n]."""
    out: dict[str, list[int]] = {}
    for r in results:
        row = out.setdefault(f"{r.family}/{r.kind}", [0, 0])
        row[0], row[1] = row[0] + r.right, row[1] + 1
    return dict(sorted(out.items()))
