"""The yardstick: its levels on a model whose training text is known, and what silence promises.

``levels`` audits windows of ../shared/models/manuals-47m, whose copies are known,
beside windows that were never seen, by the default attack and by log-probabilities:
what is found must follow the number of copies. ``promise`` simulates scores alone: for
books of so many windows, each against 39 others, how far the probability that the
passages give is from the true one, and how often its 95 % interval holds it. ``python
-m benches.yardstick levels`` or ``promise`` takes one of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
from benches.results import append_results
from scipy.stats import norm, t

import mia_batch
from mia_batch.inference.yardstick import naming_probability
from mia_batch.settings import nested

_MODEL = Path(__file__).parents[2] / "shared" / "models" / "manuals-47m"
_COPIES = (0, 1, 4, 16, 64)
_EACH, _NULLS = 40, 50
_ATTACKS = ("min_k_plus_plus_20_v1", "probe_leading_rarity_v1")
_RUNS = 1_000


def levels(attack: str, each: int = _EACH, points: int = 4) -> dict[str, Any]:
    """Measure the levels by an attack; ``each`` windows of every number of copies."""
    lines = (_MODEL / "windows.jsonl").read_text("utf-8").splitlines()
    windows = pl.DataFrame([json.loads(line) for line in lines]).sample(
        fraction=1, shuffle=True, seed=0
    )
    known = pl.concat([windows.filter(copies=n).head(each) for n in _COPIES])
    others = (
        windows.filter(copies=0)
        .slice(each, _NULLS + 5)
        .select("text", document_id="id")
    )
    with TemporaryDirectory() as folder:
        names = {
            name: Path(folder, f"{name}.parquet")
            for name in ("known", "nulls", "asked")
        }
        known.select("text", document_id="id", level="copies").write_parquet(
            names["known"]
        )
        others[:_NULLS].write_parquet(names["nulls"])
        others[_NULLS:].write_parquet(names["asked"])
        run = mia_batch.audit(
            **nested(
                {
                    "input": str(names["asked"]),
                    "non_members": str(names["nulls"]),
                    "non_members_known": "the model's README",
                    "yardstick": str(names["known"]),
                    "model": str(_MODEL),
                    "engine": "transformers",
                    "attacks": attack,
                    "probes": points,
                    "q": 0.2,
                    "report": False,
                    "out": str(Path(folder, "run")),
                }
            )
        )
        return {"attack": attack, "points": points, **figures(run["findings"])}


def figures(findings: pl.DataFrame) -> dict[str, list[float | None]]:
    """Each level's share above the threshold, AUC, and probability of being named, with limits."""
    rows = findings.filter(
        pl.col("check").is_in(["yardstick", "absence"]),
        pl.col("statistic").is_in(["above", "roc_auc", "named"]),
    )
    return {
        f"{row['subject']} {row['statistic']}": [
            None if row[name] is None else round(row[name], 3)
            for name in ("value", "low", "high")
        ]
        for row in rows.iter_rows(named=True)
    }


def promise(
    n_windows: int,
    mean: float,
    *,
    passages: int = 40,
    tails: int | None = None,
    runs: int = _RUNS,
) -> dict[str, Any]:
    """Compare probabilities with the true one; scores are normal, or of Student's t with tails."""
    law = norm() if tails is None else t(tails)
    rng = np.random.default_rng(n_windows)
    bound = float(np.max(law.rvs((39, n_windows), random_state=rng).mean(axis=1)))
    books = law.rvs((200_000 // n_windows, n_windows), random_state=rng).mean(axis=1)
    truth = float(np.mean(books + mean > bound))
    rows = [
        naming_probability(
            law.rvs(passages, random_state=rng) + mean, bound, n_windows, "mean", rng
        )
        for _ in range(runs)
    ]
    values, low, high = (
        np.array([row[name] for row in rows]) for name in ("value", "low", "high")
    )
    return {
        "n_windows": n_windows,
        "passages": passages,
        "tails": tails,
        "truth": round(truth, 3),
        "mean_estimate": round(float(values.mean()), 3),
        "covers": float(np.mean((low <= truth) & (truth <= high))),
        "too_high": float(np.mean(low > truth)),
        "mean_width": round(float(np.mean(high - low)), 3),
    }


if __name__ == "__main__":
    if sys.argv[1:] != ["levels"]:
        cases = [
            promise(n_windows, above / n_windows**0.5, tails=tails)
            for n_windows, above, tails in (
                (2, 2.0, None),
                (10, 4.0, 3),
                (30, 3.5, None),
            )
        ]
        print(*cases, sep="\n")
        append_results("yardstick", {"promise": cases})
    if sys.argv[1:] != ["promise"] and _MODEL.is_dir():
        for attack in _ATTACKS:
            found = levels(attack)
            print(found)
            append_results("yardstick", {"levels": found})
