"""What trying gives: audits repeated with other comparison books until one is significant.

Nobody is a member. *Added*: comparison books are added five by five, from 20 to 100. *Swapped*: 40
comparison books are replaced by 40 others, up to ten times. Each audit stops at its first
significant attempt: p of all books together, a list, or "at least M". *First* stops after one;
*alone* takes each attempt as the only one; *counted* multiplies p and q by the factor of
`mia_batch.inference.attempts`, and withholds the bound from the second attempt on.

    python -m benches.trying [--runs N]
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.results import append_results, versions

from mia_batch.inference.attempts import Attempts
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.sets import top_bound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.stats import Floats

SEED = 20_261_128
N_BOOKS, N_ORDERS = 50, 2_000
LEVEL = 0.05


def added(rng: np.random.Generator) -> Iterator[Floats]:
    nulls = rng.standard_normal(100)
    yield from (nulls[:n] for n in range(20, 101, 5))


def swapped(rng: np.random.Generator) -> Iterator[Floats]:
    yield from (rng.standard_normal(40) for _ in range(10))


def attempt(
    scores: Floats, nulls: Floats, sums: dict[int, Floats]
) -> tuple[float, float, int]:
    """Return p of all books together, the smallest q, and how many stand out at least."""
    ranks = np.concatenate([scores, nulls]).argsort().argsort()
    observed = ranks[: scores.size].sum()
    together = (1 + (sums[nulls.size] >= observed).sum()) / (1 + sums[nulls.size].size)
    smallest = q_values(p_values(scores, nulls), "bh").min()
    return (
        float(together),
        float(smallest),
        top_bound(scores, scores.size, nulls).at_least,
    )


def permuted(rng: np.random.Generator, n_null: int) -> Floats:
    """Draw rank sums of the audited books where they are like the others."""
    orders = rng.permuted(np.tile(np.arange(N_BOOKS + n_null), (N_ORDERS, 1)), axis=1)
    return np.asarray(orders[:, :N_BOOKS].sum(axis=1), np.float64)


def simulate(name: str, runs: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(SEED)
    tries = {"added": added, "swapped": swapped}[name]
    sizes = range(20, 101, 5) if name == "added" else [40]
    sums = {n: permuted(rng, n) for n in sizes}
    found = {"first": np.zeros(3), "alone": np.zeros(3), "counted": np.zeros(3)}
    for _ in range(runs):
        scores = rng.standard_normal(N_BOOKS)
        hits = np.zeros((2, 3), dtype=bool)
        for n, nulls in enumerate(tries(rng), start=1):
            p, q, at_least = attempt(scores, nulls, sums)
            alone = np.array([p <= LEVEL, q <= LEVEL, at_least > 0])
            factor = Attempts(n).factor
            counted = np.array(
                [factor * p <= LEVEL, factor * q <= LEVEL, at_least > 0 and n == 1]
            )
            found["first"] += alone * (n == 1)
            hits |= [alone, counted]
        found["alone"] += hits[0]
        found["counted"] += hits[1]
    for how, counts in found.items():
        together, listed, bound = (counts / runs).round(4).tolist()
        yield {
            "case": f"{name}, {how}",
            "together": together,
            "listed": listed,
            "at_least": bound,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    runs = parser.parse_args().runs
    figures = [row for name in ("added", "swapped") for row in simulate(name, runs)]
    for row in figures:
        print("  ".join(f"{value:>24}" for value in row.values()))
    append_results(
        "trying", {"runs": runs, "versions": versions("numpy"), "figures": figures}
    )


if __name__ == "__main__":
    main()
