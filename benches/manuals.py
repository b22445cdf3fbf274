"""How many copies of a text each attack needs, on a model whose training text is known.

The model ../shared/models/manuals-47m (see its README) saw windows and parts of books,
beginnings of documents and sentences with a number a known number of times. Each is
asked about in the ways of `WAYS`, as an audit asks: in one pass all windows, at points
or for continuations random subsets. The score of a part is the mean over four of its
windows. Every attack is measured at every number of copies against the texts that the
model never saw.

    python -m benches.manuals [--ways NAME ...] [--texts NAME ...] [--most N] [--keep
    FOLDER]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from benches.pairs import DATA
from benches.results import append_results

import mia_batch
from mia_batch.attacks import families
from mia_batch.attacks.attack import TEXT
from mia_batch.settings import nested
from mia_batch.stats.intervals import RocCurve, auc_interval

MODEL = DATA.parent / "models" / "manuals-47m"
LEAST = 100
"""Texts never seen, from which a TPR at an FPR of 1 % is given."""


class Way(NamedTuple):
    """How texts are asked about: ``each`` is how many of each number of copies, None: all."""

    files: tuple[str, ...]
    attacks: tuple[str, ...]
    settings: dict[str, Any]
    each: dict[int, int] | None = None


def _of(*titles: str) -> tuple[str, ...]:
    return tuple(attack.name for title in titles for attack in families()[title])


ONE_PASS = tuple(
    attack.name
    for family in families().values()
    for attack in family
    if attack.evidence == "logprobs"
    and {*attack.reads} == {TEXT}
    and not attack.settings
)
_SOME = {0: 100, 4: 40, 8: 40, 16: 40, 32: 40, 64: 40}
_SIX_TIMES = {0: 120, 4: 40, 8: 40, 16: 40, 32: 30, 64: 30}
_TEXTS_BY_FILE = {
    "parts": {0: 50, 4: 30, 16: 30, 64: 6},
    "documents": {0: 152, 2: 156, 4: 146},
}
WAYS = {
    "one pass": Way(
        ("windows", "parts", "documents", "canaries"),
        (*ONE_PASS, *_of("Token frequencies")),
        {"evidence": "logprobs", "engine": "transformers"}
        | {"frequencies_from": str(MODEL / "documents.jsonl")},
    ),
    "swapped words": Way(
        ("windows",),
        _of("Swapped words"),
        {"evidence": "logprobs", "engine": "transformers"},
        _SIX_TIMES,
    ),
    "next words": Way(
        ("windows",),
        _of("Log-probabilities at points"),
        {"evidence": "probe-logprobs", "engine": "transformers"},
    ),
    "probes": Way(
        ("windows",), _of("Probes"), {"evidence": "samples", "engine": "vllm"}, _SOME
    ),
    "continuations": Way(
        ("windows",),
        ("samia_matched_v1", "samia_matched_n2_v1", *_of("SaMIA, weighed by rarity")),
        {"evidence": "samples", "engine": "vllm"},
        _SOME,  # ten continuations of each: some 900 tokens a text
    ),
}


def texts(name: str, each: dict[int, int] | None) -> pl.DataFrame:
    """Texts of one file with their copies, or a random subset of them."""
    lines = (MODEL / f"{name}.jsonl").read_text("utf-8").splitlines()
    found = pl.DataFrame([json.loads(line) for line in lines]).rename(
        {"id": "document_id"}
    )
    if (each := each or _TEXTS_BY_FILE.get(name)) is not None:
        mixed = found.sample(fraction=1, shuffle=True, seed=0)
        some = pl.concat(
            [mixed.filter(copies=n).head(most) for n, most in each.items()]
        )
        found = found.join(some, on="document_id", how="semi", maintain_order="left")
    return found.with_columns(member=pl.col("copies") > 0)


def by_copies(scores: pl.DataFrame, attack: str) -> dict[str, dict[str, float | None]]:
    """AUC with its limits, and TPR where there are texts enough, at each number of copies."""
    known = scores.select("copies", attack).drop_nulls()
    never = known.filter(copies=0)[attack].to_numpy()
    rows: dict[str, dict[str, float | None]] = {}
    for (copies,), some in (
        known.filter(pl.col("copies") > 0)
        .sort("copies")
        .group_by("copies", maintain_order=True)
    ):
        members = some[attack].to_numpy()
        limits = auc_interval(members, never)
        curve = RocCurve(np.sort(members), np.sort(never))
        tpr = round(curve.at_fpr(0.01).tpr, 3) if never.size >= LEAST else None
        auc = {"auc": curve.area, "low": limits.low, "high": limits.high}
        row = {name: round(float(value), 3) for name, value in auc.items()}
        counts = {"members": members.size, "others": never.size}
        rows[str(copies)] = {**row, "tpr_1": tpr, **counts}
    return rows


def audited(folder: Path, name: str, way: Way) -> mia_batch.Run:
    """Audit the texts of one file in one way."""
    folder.mkdir(parents=True, exist_ok=True)
    texts(name, way.each).write_parquet(folder / "texts.parquet")
    windows = (
        {"window_words": 128, "max_windows_per_document": 4} if name == "parts" else {}
    )
    return mia_batch.audit(
        **nested(
            {
                "input": str(folder / "texts.parquet"),
                "model": str(MODEL),
                "out": str(folder / "run"),
                "attacks": ",".join(way.attacks),
                "report": False,
                **way.settings,
                **windows,
            }
        )
    )


def measure(folder: Path, name: str, way: Way) -> list[dict[str, Any]]:
    """Audit the texts of one file in one way; one row an attack."""
    run = audited(folder, name, way)
    copies = texts(name, way.each).select("document_id", "copies")
    scores = run["scores"].join(copies, on="document_id")
    scores = scores.group_by("document_id", "copies").agg(pl.col(way.attacks).mean())
    costs = run.attacks.select("attack", "tokens", "seconds").rows_by_key(
        "attack", named=True
    )
    return [
        {"texts": name, "attack": attack, "copies": by_copies(scores, attack)}
        | costs[attack][0]
        for attack in way.attacks
        if scores[attack].count() > 0
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=WAYS)
    parser.add_argument("--texts", nargs="+", help="only these files of texts")
    parser.add_argument("--keep", type=Path, help="folder for texts and runs")
    parser.add_argument(
        "--most", type=int, help="texts of each number of copies, twice of 0"
    )
    given = parser.parse_args()
    if not MODEL.is_dir():
        print("skipped: there is no ../shared/models/manuals-47m")
        return
    with TemporaryDirectory() as scratch:
        for name in given.ways:
            way = WAYS[name]
            if way.each and given.most:
                each = {
                    n: min(some, given.most * (2 - (n > 0)))
                    for n, some in way.each.items()
                }
                way = way._replace(each=each)
            folder = (given.keep or Path(scratch)) / name.replace(" ", "-")
            files = [file for file in way.files if file in (given.texts or way.files)]
            rows = [row for file in files for row in measure(folder / file, file, way)]
            append_results("manuals", {"way": name, "rows": rows})


if __name__ == "__main__":
    main()
