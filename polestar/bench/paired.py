"""Two decoders on the same problems: is the difference more than chance?

Contract: pure functions of lists in the same order of problems. Accuracy is compared by McNemar's exact test on the problems that one side alone gets right;
costs by the ratio of sums with a percentile bootstrap over problems (seed fixed). A difference is claimed only where p < 0.05, or where
the 95 % interval of at least 20 problems leaves 1 out (with fewer a bootstrap interval is too narrow).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import binomtest

ALPHA = 0.05
RESAMPLES = 2000
FEWEST = 20


def share(right: int, n: int) -> tuple[float, float, float]:
    """(share, low, high): Wilson's 95 % interval. Raises ValueError for n = 0."""
    if n <= 0:
        raise ValueError(f"a share of {n} problems does not exist; decode at least one")
    low, high = binomtest(right, n).proportion_ci(method="wilson")
    return right / n, float(low), float(high)


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> dict[str, Any]:
    """`only_a`, `only_b` (problems that one side alone gets right), `p` (exact, two-sided; 1 when they never differ), `difference` (a - b)."""
    only_a = sum(x and not y for x, y in zip(a, b, strict=True))
    only_b = sum(y and not x for x, y in zip(a, b, strict=True))
    p = float(binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0
    return {"n": len(a), "only_a": only_a, "only_b": only_b, "p": p, "difference": (only_a - only_b) / len(a) if a else 0.0, "shown": p < ALPHA}


@lru_cache(maxsize=2)
def _weights(n: int) -> np.ndarray:
    """How often each of n problems is drawn in each resample, [n, RESAMPLES]."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES).T.astype(float)


def ratio(
    a: Sequence[float], b: Sequence[float], *, a_per: Sequence[float] | None = None, b_per: Sequence[float] | None = None
) -> dict[str, Any]:
    """sum(a) / sum(b), or the ratio of sum(a) / sum(a_per) to sum(b) / sum(b_per).

    Returns `value` (None where a divisor is 0), `low`, `high` (95 %), `shown` (1 is outside, and the problems are enough).
    """
    columns = np.array([a, b, np.ones(len(a)) if a_per is None else a_per, np.ones(len(b)) if b_per is None else b_per], dtype=float)

    def of(sums: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return (sums[0] / sums[2]) / (sums[1] / sums[3])

    value = float(of(columns.sum(1)))
    if not np.isfinite(value):
        return {"value": None, "low": None, "high": None, "shown": False}
    drawn = of(columns @ _weights(len(a)))
    drawn = drawn[np.isfinite(drawn)]
    low, high = (float(x) for x in np.quantile(drawn, [ALPHA / 2, 1 - ALPHA / 2]))
    return {"value": value, "low": low, "high": high, "shown": len(a) >= FEWEST and (low > 1 or high < 1)}
