"""Parts of books, whole: how many of those that were trained on are reported, and how many others.

A model sees 30 parts of ten books ten times, drawn by lot; 130 parts of the same books
stay unseen. An audit at level group asks about the 30 and ten others, against 40 that
were never seen. The same scores are then split anew many times: which unseen parts are
asked about, and which are nulls.

Last, 5, 10 or 15 seen parts among 25 are asked about, against 25, 40 and 100 unseen
ones: what the list names, how many of the highest the bound claims, what all attacks
show together, and what came out word for word.

    python -m benches.books
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benches.pairs import DATA
from benches.power import FOREIGN, WORDS, train_model
from benches.results import append_results

import mia_batch
from mia_batch.inference.comparison import collection_test, summarise
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.inference.sets import max_t, top_bound
from mia_batch.settings import nested

if TYPE_CHECKING:
    from numpy.typing import NDArray

WINDOWS, PARTS_OF_BOOK, N_SEEN, TIMES = 8, 16, 30, 10
N_OTHERS = 1000  # windows of the books' other parts, seen once
N_ASKED, N_NULL, Q = 40, 40, 0.05
SPLITS, NULL_AUDITS = 200, 100
FEW_ASKED, FEW_SEEN, FEW_NULLS, FEW_AUDITS = 25, (0, 5, 10, 15), (25, 40, 100), 1000
VERBATIM = "samia_matched_v1"  # its continuations are looked at for what came out
MODEL = {"hidden": 128, "layers": 2}
ASKED: dict[int | None, list[str]] = {  # samples (None: the default, greedy): attacks
    None: ["probe_leading_rarity_v1"],
    5: ["samia_matched_v1", "samia_matched_n2_v1"],
}


def write_parts(folder: Path) -> pl.DataFrame:
    """Draw parts of each book, and which of all are seen; the rest is for training alone."""
    draw = Random(0)
    rows, others = [], []
    for book in sorted((DATA / "books").glob("*.txt")):
        if book.stem in FOREIGN:
            continue
        words, size = book.read_text("utf-8").split(), WORDS * WINDOWS
        starts = list(range(0, len(words) - size + 1, size))
        draw.shuffle(starts)
        for number, start in enumerate(starts):
            at = range(start, start + size, WORDS)
            windows = [" ".join(words[first : first + WORDS]) for first in at]
            if number < PARTS_OF_BOOK:
                rows += [(f"{book.stem}-{number}", text) for text in windows]
            else:
                others += windows
    parts = pl.DataFrame(rows, ["group", "text"], orient="row")
    parts = parts.with_columns(document_id=pl.int_range(pl.len()).cast(pl.String))
    pl.DataFrame({"text": draw.sample(others, N_OTHERS)}).write_parquet(
        folder / "others.parquet"
    )
    names = parts["group"].unique(maintain_order=True).to_list()
    # The first are seen, the next are asked about, the next are nulls
    draw.shuffle(names)
    order = pl.DataFrame({"group": names, "place": range(len(names))})
    return parts.join(order, on="group", maintain_order="left")


def audit(
    folder: Path,
    parts: pl.DataFrame,
    n_null: int,
    attacks: list[str],
    samples: int | None,
) -> mia_batch.Run:
    place = pl.col("place")
    for name, low, high in (
        ("asked", 0, N_ASKED),
        ("nulls", N_ASKED, N_ASKED + n_null),
    ):
        some = parts.filter(place >= low, place < high).drop("place")
        some.write_parquet(folder / f"{name}.parquet")
    return mia_batch.audit(
        **nested(
            {
                "input": str(folder / "asked.parquet"),
                "non_members": str(folder / "nulls.parquet"),
                "non_members_known": "left out of the training text by lot",
                "model": str(folder / "model"),
                "out": str(folder / attacks[0]),
                "attacks": ",".join(attacks),
                "samples": samples,
                "level": "group",
                "q": Q,
            }
        )
    )


def reported(
    asked: NDArray[np.float64], nulls: NDArray[np.float64]
) -> NDArray[np.bool_]:
    return q_values(p_values(asked, nulls), "bh") <= Q


def resplit(seen: NDArray[np.float64], unseen: NDArray[np.float64]) -> dict[str, float]:
    """Split the unseen parts anew: discoveries, false ones, and lists where all are unseen."""
    rng = np.random.default_rng(0)
    found, false = [], []
    for _ in range(SPLITS):
        some = rng.permutation(unseen)
        n = N_ASKED - seen.size
        told = reported(np.concatenate([seen, some[:n]]), some[n : n + N_NULL])
        found.append(told[: seen.size].sum())
        false.append(told[seen.size :].sum() / max(told.sum(), 1))
    order = (rng.permutation(unseen) for _ in range(NULL_AUDITS))
    lists = [
        reported(some[:N_ASKED], some[N_ASKED : N_ASKED + N_NULL]).any()
        for some in order
    ]
    return {
        "seen_reported": float(np.mean(found)),
        "false_share": float(np.mean(false)),
        "standard_error": float(np.std(false, ddof=1) / SPLITS**0.5),
        "null_audits_with_a_list": float(np.mean(lists)),
    }


def verbatim(
    run: mia_batch.Run, parts: pl.DataFrame, n_parts: int
) -> NDArray[np.bool_]:
    """Say of which parts, in their order, a continuation repeats 20 words in a row."""
    long = run.scan("features").filter(pl.col("longest_block_words") >= VERBATIM_WORDS)
    ids = long.select("target_id").unique()
    named = (
        run.scan("targets").join(ids, on="target_id").select("group").unique().collect()
    )
    places = parts.join(named, on="group", how="semi")["place"].unique().to_numpy()
    return np.isin(np.arange(n_parts), places)


def few(
    of_parts: dict[str, NDArray[np.float64]],
    came_out: NDArray[np.bool_],
    n_null: int,
    n_seen: int,
) -> dict[str, float | int]:
    """Audit few parts many times, by the first attack, and by all together.

    ``wrong``: share of audits whose bound is above the number of seen parts among the
    highest.
    """
    rng = np.random.default_rng(n_null + n_seen)
    names = [*of_parts]
    seen = np.arange(N_SEEN)
    found: list[dict[str, Any]] = []
    for seed in range(FEW_AUDITS):
        others = N_SEEN + rng.permutation(of_parts[names[0]].size - N_SEEN)
        asked = np.concatenate(
            [rng.permutation(seen)[:n_seen], others[: FEW_ASKED - n_seen]]
        )
        nulls = others[FEW_ASKED - n_seen :][:n_null]
        own, null = of_parts[names[0]][asked], of_parts[names[0]][nulls]
        told = reported(own, null)
        top = top_bound(own, asked.size, null)
        highest = (
            np.argsort(-own, kind="stable")[: top.of_top]
            if top.at_least
            else np.array([], int)
        )
        every = np.array([of_parts[name] for name in names])
        found.append(
            {
                "listed": told[:n_seen].sum(),
                "falsely_listed": told[n_seen:].sum(),
                "any_list": told.any(),
                "false_share": told[n_seen:].sum() / max(told.sum(), 1),
                "at_least": top.at_least,
                "of_top": top.of_top,
                "wrong": top.at_least > (highest < n_seen).sum(),
                "all_attacks": (
                    max_t(every[:, asked], every[:, nulls], seed).p_values.min() <= Q
                ),
                "first_attack": collection_test(own, null, seed).p_value <= Q,
                "came_out": came_out[asked[:n_seen]].sum(),
                "came_out_of_others": came_out[asked[n_seen:]].sum(),
            }
        )
    means = {name: float(np.mean([row[name] for row in found])) for name in found[0]}
    return {"nulls": n_null, "seen": n_seen} | means


def main() -> None:
    if not DATA.is_dir():
        print("skipped: no real text in ../shared/data")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        parts = write_parts(folder)
        others = pl.read_parquet(folder / "others.parquet")["text"].to_list()
        seen = parts.filter(pl.col("place") < N_SEEN)
        texts = seen["text"].to_list() * TIMES + others
        train_model(folder / "model", [*parts["text"], *others], texts, MODEL)
        names = seen["group"].unique().to_list()
        n_parts = parts["place"].n_unique()
        lines = np.arange(parts.height).reshape(n_parts, WINDOWS)
        rows: list[dict[str, Any]] = []
        every: dict[str, NDArray[np.float64]] = {}
        came_out = np.zeros(n_parts, np.bool_)
        for samples, attacks in ASKED.items():
            verdicts = audit(folder, parts, N_NULL, attacks, samples)["verdicts"]
            run = audit(folder, parts, n_parts - N_ASKED, attacks, samples)
            scores = run["scores"].join(
                parts.select("group", "place").unique(), on="group"
            )
            for attack in attacks:
                told = verdicts.filter(
                    pl.col("q_value") <= Q, level="group", attack=attack
                )["key"]
                right = told.is_in(names).sum()
                in_order = scores.sort("place", "document_id")[attack].to_numpy()
                of_parts = summarise(in_order[lines], "mean")
                every[attack] = of_parts
                row = {"attack": attack, "reported": right, "false": len(told) - right}
                rows.append(row | resplit(of_parts[:N_SEEN], of_parts[N_SEEN:]))
                print(rows[-1], flush=True)
            if VERBATIM in attacks:
                came_out = verbatim(run, parts, n_parts)
        audits = [few(every, came_out, *case) for case in product(FEW_NULLS, FEW_SEEN)]
    nominal = Q * (N_ASKED - N_SEEN) / N_ASKED
    print(
        f"{N_SEEN} of {N_ASKED} parts were seen; q = {Q}: at most {nominal} false on"
        " average"
    )
    with pl.Config(tbl_cols=-1, tbl_width_chars=200):
        print(pl.DataFrame(rows))
        print(pl.DataFrame(audits))
    sizes = {
        "seen": N_SEEN,
        "asked": N_ASKED,
        "nulls": N_NULL,
        "q": Q,
        "splits": SPLITS,
    }
    append_results(
        "books",
        sizes
        | {
            "null_audits": NULL_AUDITS,
            "model": MODEL,
            "rows": rows,
            "few": audits,
        },
    )


if __name__ == "__main__":
    main()
