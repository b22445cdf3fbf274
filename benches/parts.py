"""Whole audits of parts of books with the default, on manuals-47m, whose truth is known.

27 parts of 1,024 words are asked about, 5 of them seen 4 times in training, 5 seen 16
times, 5 seen 64 times and 12 never, against 25, 40 or 100 others that were never seen.
One audit of each size is run as a user runs it; then all parts are scored by four
windows each, and 1,000 such audits are drawn from their scores.

    python -m benches.parts [--draws N] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
from benches.pairs import DATA
from benches.results import append_results, versions

import mia_batch
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.sets import top_bound
from mia_batch.settings import nested

MODEL = DATA.parent / "models" / "manuals-47m"
ASKED = {4: 5, 16: 5, 64: 5, 0: 12}
COMPARED = (25, 40, 100)
PRIMARY = "min_k_plus_plus_20_v1"
Q = DecisionRule(
    primary=PRIMARY, level="group", null_set="parts that were never seen"
).q


def drawn(
    parts: pl.DataFrame, n_compared: int, draw: Random
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Draw parts to ask about, of the 64 copies as many as there are, and parts to compare with."""
    of = {
        copies: part
        for (copies,), part in parts.group_by("copies", maintain_order=True)
    }
    chosen = {
        copies: draw.sample(range(rows.height), rows.height)
        for copies, rows in of.items()
    }
    asked = pl.concat(of[copies][chosen[copies][:n]] for copies, n in ASKED.items())
    return asked, of[0][chosen[0][ASKED[0] :][:n_compared]]


def audited(parts: pl.DataFrame, folder: Path, **settings: object) -> mia_batch.Run:
    """Audit parts by default, cut into windows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = parts.select("text", document_id="id", group="id")
    rows.write_parquet(folder / "parts.parquet")
    given: dict[str, Any] = {
        "input": str(folder / "parts.parquet"),
        "model": str(MODEL),
    }
    given |= {"out": str(folder / "run"), "window_words": 128, "report": False}
    return mia_batch.audit(**nested(given | settings))


def as_a_user(parts: pl.DataFrame, folder: Path, n_compared: int) -> dict[str, Any]:
    """Run one whole audit; say what it answers and takes."""
    asked, others = drawn(parts, n_compared, Random(n_compared))
    folder.mkdir(parents=True, exist_ok=True)
    others.select("text", document_id="id", group="id").write_parquet(
        folder / "others.parquet"
    )
    began = time.monotonic(), time.process_time()
    known = {
        "non_members": str(folder / "others.parquet"),
        "level": "group",
        "anyway": True,
    }
    run = audited(asked, folder, **known, non_members_known="drawn by coin")
    units = run["rollup"].filter(pl.col("level") != "outside")
    found = units.join(asked.select(key="id", copies="copies"), on="key")
    named = found.filter(pl.col("q_value") <= Q)["copies"].to_list()
    return {
        "case": f"whole audit against {n_compared}",
        "answer": run.answer,
        **{f"named_{copies}": named.count(copies) for copies in ASKED},
        "seconds": round(time.monotonic() - began[0]),
    }


def simulated(parts: pl.DataFrame, n_compared: int, draws: int) -> dict[str, Any]:
    """Draw many audits from the parts' scores: what each list and bound says, against the truth."""
    draw, lists, false, bounds, too_many = Random(0), [], [], [], 0
    for _ in range(draws):
        asked, others = drawn(parts, n_compared, draw)
        scores, nulls = asked["score"].to_numpy(), others["score"].to_numpy()
        copies = asked["copies"].to_numpy()
        named = copies[q_values(p_values(scores, nulls), "bh") <= Q]
        lists.append([(named == each).sum() for each in ASKED])
        false.append((named == 0).sum() / max(1, named.size))
        bound = top_bound(scores, scores.size, nulls)
        bounds.append(bound.at_least)
        above = scores > np.sort(nulls)[-bound.rank]
        too_many += bound.at_least > (copies[above] > 0).sum()
    of_each = dict(zip(ASKED, np.mean(lists, axis=0).round(3).tolist(), strict=True))
    return {
        "case": f"{draws:,} draws against {n_compared}",
        **{f"named_{copies}": n for copies, n in of_each.items()},
        "false_on_list": round(float(np.mean(false)), 4),
        "at_least": round(float(np.mean(bounds)), 2),
        "at_least_too_many": round(float(too_many / draws), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--keep", type=Path, help="folder in which runs stay and go on")
    given = parser.parse_args()
    parts = pl.read_ndjson(MODEL / "parts.jsonl")
    figures = []
    with tempfile.TemporaryDirectory() as made:
        folder = given.keep or Path(made)
        for n in COMPARED:
            figures.append(as_a_user(parts, folder / str(n), n))
            print(figures[-1], flush=True)
        run = audited(
            parts, folder / "all", continue_strongest=0, max_windows_per_document=4
        )
        means = run["scores"].group_by("document_id").agg(score=pl.col(PRIMARY).mean())
        scored = parts.join(means, left_on="id", right_on="document_id")
        for n in COMPARED:
            figures.append(simulated(scored, n, given.draws))
            print(figures[-1], flush=True)
    append_results(
        "parts", {"model": MODEL.name, "figures": figures} | versions("torch")
    )


if __name__ == "__main__":
    main()
