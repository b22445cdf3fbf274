"""How often intervals of `mia-batch bench --against` hold the true ratio, by repeats and spread.

Rates are drawn around one true rate, so that their true ratio is 1: their logarithms are
normal, or have the heavy tails of Student's distribution with three degrees of freedom.

    python -m benches.speed_ratios [--simulations N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from benches.results import append_results

from mia_batch.extras.speed import comparing

REPEATS = ((2, 5), (3, 3), (3, 5), (5, 5))
SPREADS = ((1, 1), (1, 3), (3, 1), (1, 10), (10, 1))
SCALE = 0.03
DEGREES_OF_HEAVY_TAILS = 3


def measure_coverage(n_simulations: int) -> Iterator[dict[str, Any]]:
    comparing.FEWEST_REPEATS = 2  # to show why it is 3
    rng = np.random.default_rng(0)
    for repeats, spreads, tails in product(REPEATS, SPREADS, ("normal", "heavy")):
        n_covered = 0
        widths = []
        for _ in range(n_simulations):
            samples = []
            for n, spread in zip(repeats, spreads, strict=True):
                logs = rng.standard_normal(n)
                if tails == "heavy":
                    logs = rng.standard_t(DEGREES_OF_HEAVY_TAILS, n)
                samples.append(np.exp(SCALE * spread * logs).tolist())
            _, low, high, reason = comparing.compare_rates(*samples)
            if low is None or high is None:
                raise SystemExit(f"no interval: {reason}")
            n_covered += low <= 1 <= high
            widths.append(high / low)
        yield {
            "repeats": repeats,
            "spreads": spreads,
            "tails": tails,
            "covered": n_covered / n_simulations,
            "median_high_to_low": round(float(np.median(widths)), 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=10_000)
    n_simulations = parser.parse_args().simulations
    cases = []
    for case in measure_coverage(n_simulations):
        cases.append(case)
        print(json.dumps(case))
    append_results("speed_ratios", {"simulations": n_simulations, "cases": cases})


if __name__ == "__main__":
    main()
