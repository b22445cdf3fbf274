"""Table 3 of PrivLM-Bench for three small models made here, with and without privacy.

An encoder, a decoder and an encoder-decoder of random weights learn to say which of two
books a window of 24 words is from. Each is tuned without privacy, and with DP-SGD at
epsilon 8: utility, membership, exposure of canaries, and the epsilon that an attack
refutes.

With --fault each is tuned by a training that says epsilon 0.5: without clipping, with
noise of another scale, or one that keeps to it (none). Labels are drawn by coin then,
so that they can be known only by heart, and are learnt for longer.

With --claims no model is tuned: of texts, each of which a mechanism of exactly epsilon
tells about, groups share a coin, and it is counted how often a bound refutes the
epsilon. It may in 5 %.

    python -m benches.privacy [bert] [llama] [t5] [--texts 600] [--shadows 4]
    python -m benches.privacy [bert] [llama] [t5] --fault none --fault "no clipping"
    python -m benches.privacy --claims 1000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import product
from math import exp
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import pytest
from benches.pairs import DATA
from benches.results import append_results, versions

from mia_batch.extras.privacy.audit import audit_privacy
from mia_batch.extras.privacy.measures import clopper_pearson_bound, one_run_bound
from mia_batch.extras.privacy.plan import RECIPE_FIELDS, PrivacySettings
from mia_batch.recipes import RECIPES
from tests.bases import save_bases
from tests.broken import Fault, break_trainings

BOOKS = ("moby_dick", "jane_eyre")
WORDS = 24
FAULTS: dict[str, Fault | None] = {
    "none": None,
    "no clipping": "no clipping",
    "noise of another scale": "noise of another scale",
}
USUAL: dict[str, Any] = {
    "task": "classification",
    "epochs": 12,
    "batch_size": 16,
    "max_tokens": 64,
    "learning_rate": 3e-3,
    "canaries": 10,
    "repetitions": 2,
}
BY_HEART = USUAL | {"epochs": 40, "epsilons": (0.5,), "clip": 1e-3, "canaries": 0}
SHOWN = (
    *(
        "variant",
        "epsilon",
        "epsilon_bound",
        "epsilon_ceiling",
        "epsilon_bound_by_rates",
    ),
    *(
        "is_contradicted",
        "utility_measure",
        "utility",
        "utility_low",
        "utility_high",
        "attack",
    ),
    *("auc", "auc_low", "auc_high", "tpr_at_1%", "exposure_rate", "mean_exposure"),
    *("unlearnt_exposure", "exposure_trend", "exposure_trend_p"),
)


def windows(n: int, *, by_coin: bool) -> pl.DataFrame:
    """Draw windows of two books; the label says which, or is drawn by coin."""
    rows = []
    for label, book in enumerate(BOOKS):
        words = (DATA / "books" / f"{book}.txt").read_text("utf-8").split()
        starts = Random(label).sample(
            range(0, len(words) - WORDS, WORDS), n // len(BOOKS)
        )
        rows += [
            (" ".join(words[start : start + WORDS]), str(label)) for start in starts
        ]
    coin = Random(len(BOOKS))
    drawn = [(text, coin.choice("01") if by_coin else label) for text, label in rows]
    return pl.DataFrame(drawn, schema=["text", "label"], orient="row")


def plan_of(settings: dict[str, Any], shadows: int) -> PrivacySettings:
    """Make the plan of some settings, of which some are the recipe's."""
    tuned = {name: value for name, value in settings.items() if name in RECIPE_FIELDS}
    others = {
        name: value for name, value in settings.items() if name not in RECIPE_FIELDS
    }
    return PrivacySettings(
        recipe=replace(RECIPES["privacy"], **tuned), **others, shadows=shadows
    )


def measure(
    base: Path, data: Path, out: Path, plan: PrivacySettings, fault: Fault | None
) -> list[dict[str, Any]]:
    """Audit one base, rightly or by trainings with a fault."""
    with pytest.MonkeyPatch.context() as patch:
        if fault:
            break_trainings(patch, fault)
        found = audit_privacy(
            base=str(base), data=data, out=out, settings=plan, target_column="label"
        )
    rows = found.summary.select(
        name for name in SHOWN if name in found.summary.columns
    ).to_dicts()
    return [{"base": base.name, "fault": fault} | row for row in rows]


def refuted(epsilon: float, texts: int, n_groups: int, n_audits: int) -> dict[str, Any]:
    """Say in which share of audits each bound is above the epsilon that every text has."""
    rng = np.random.default_rng(0)
    bounds = {"one run": one_run_bound, "by rates": clopper_pearson_bound}
    above = dict.fromkeys(bounds, 0)
    for seed in range(n_audits):
        member = rng.random(n_groups) < 0.5
        wrong = rng.random((n_groups, texts)) < 1 / (1 + exp(epsilon))
        score = (member[:, None] ^ wrong).sum(axis=1) + 0.01 * rng.random(n_groups)
        for name, bound in bounds.items():
            above[name] += (
                bound(member, score, delta=0, seed=seed, texts_per_coin=texts).value
                > epsilon
            )
    row = {"epsilon": epsilon, "texts": texts, "groups": n_groups, "audits": n_audits}
    return row | {name: count / n_audits for name, count in above.items()}


def main() -> None:
    """Audit the bases that are asked for, and store the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bases", nargs="*", default=["bert", "llama", "t5"])
    parser.add_argument("--fault", action="append", choices=FAULTS, dest="faults")
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--shadows", type=int, default=4)
    parser.add_argument(
        "--claims", type=int, default=0, help="audits of a known mechanism"
    )
    asked = parser.parse_args()
    if asked.claims:
        made = [
            refuted(*each, 200, asked.claims)
            for each in product((0.5, 1, 2), (1, 3, 10))
        ]
        print(pl.DataFrame(made))
        append_results("privacy_claims", {"rows": made})
        return
    plan = BY_HEART if asked.faults else USUAL
    start, rows = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        bases = save_bases(folder / "bases")
        data = folder / "texts.parquet"
        windows(asked.texts, by_coin=bool(asked.faults)).write_parquet(data)
        for name, fault in product(asked.bases, asked.faults or ["none"]):
            # Others are attacked without
            shadows = asked.shadows if name == "bert" else 0
            out = folder / f"{name} {fault}"
            rows += measure(
                bases[name], data, out, plan_of(plan, shadows), FAULTS[fault]
            )
        for row in rows:
            print(row)
    figures = {
        "texts": asked.texts,
        "plan": plan,
        "seconds": time.perf_counter() - start,
    }
    append_results(
        "privacy", figures | {"rows": rows} | versions("torch", "dp-accounting")
    )


if __name__ == "__main__":
    main()
