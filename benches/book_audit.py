"""An audit of twelve books of which a model saw some passages: lists, shares, strips, extraction.

Of every book a stretch is cut into parts of 1,024 words. Some of them, drawn by lot,
are put into a model's training text 100 or 10 times, in pieces that begin elsewhere
each time; the others never. The books are then audited as a user would audit them. The
scores are split anew many times into parts that are asked about, nulls and calibration
data, and judged by the package's own functions.

A part is recited if the most likely continuation of the first half of each of its
windows repeats at least 95 % of the words of the second half, in their order. The model
is asked that apart.

    python -m benches.book_audit [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from benches.book_parts import Design, others_of, training_texts, write_books
from benches.book_splits import CASES, Case, Q, area, extracted, picture, splits, strips
from benches.pairs import DATA
from benches.power import train_model
from benches.results import append_results

import mia_batch
from mia_batch.kernels import pair_features
from mia_batch.settings import nested

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MODEL = {"hidden": 192, "layers": 2}
RECITED = 0.95
EXTRACTION = {  # windows followed from, tokens
    "default": (3, 2000),
    "more_tokens": (3, 20_000),
    "many_starts": (64, 20_000),
}
N_SEEN, N_OTHERS, N_NULLS, TIMES = 30, 10, 40, 10
"""Parts of an audit of parts alone: seen so often, never, and never but known."""
ASKED: dict[int | None, list[str]] = {  # samples (None: the default, greedy): attacks
    None: ["probe_leading_rarity_v1"],
    5: ["samia_matched_v1", "samia_matched_n2_v1"],
}


def prepare(
    folder: Path, texts: Mapping[str, str], design: Design, model: dict[str, Any]
) -> pl.DataFrame:
    """Write the books, and train the model unless it is there."""
    parts = write_books(texts, folder / "books", design)
    if not (folder / "model").exists():
        others = others_of(texts, design)
        seen = [*training_texts(parts, design), *others]
        train_model(folder / "model", [*parts["text"], *others], seen, model, end="")
    return parts


def audit(folder: Path, name: str, source: str, **settings: Any) -> mia_batch.Run:
    given: dict[str, Any] = {
        "input": str(folder / source),
        "model": str(folder / "model"),
    }
    given["yardstick"] = "none"
    return mia_batch.audit(**nested(dict(**given, out=str(folder / name), **settings)))


def write_parts(folder: Path, name: str, parts: pl.DataFrame) -> str:
    """Write parts as documents of their own, so that each is a group."""
    path = folder / f"{name}.parquet"
    parts.select("text", document_id="name").write_parquet(path)
    return path.name


def add_recited(folder: Path, parts: pl.DataFrame, **settings: Any) -> pl.DataFrame:
    """Add the share of words that the model repeats in the window where it does worst."""
    source = write_parts(folder, "seen", parts.filter(pl.col("times") > 0))
    settings |= {"preset": "matched", "temperature": 0.0, "samples": 1}
    run = audit(folder, "greedy", source, **settings)
    pair = pair_features("candidate", "reference", groups=["lcs"]).struct.unnest()
    pairs = (
        run["samples"]
        .join(run["targets"], on="target_id")
        .select(pair, name="document_id")
    )
    share = pl.col("lcs_words") / pl.col("words_reference")
    said = pairs.group_by("name").agg(worst=share.min())
    recited = pl.col("worst").fill_null(0) >= RECITED
    return parts.join(said, on="name", how="left", maintain_order="left").with_columns(
        recited=recited
    )


def audit_parts(
    folder: Path, parts: pl.DataFrame, **settings: Any
) -> list[dict[str, Any]]:
    """Audit some parts at level group: how many are reported, rightly and falsely."""
    seen = parts.filter(times=TIMES).sample(N_SEEN, seed=0)
    others = parts.filter(times=0).sample(N_OTHERS + N_NULLS, seed=0)
    asked = write_parts(folder, "asked", pl.concat([seen, others.head(N_OTHERS)]))
    settings["non_members"] = str(
        folder / write_parts(folder, "nulls", others.tail(N_NULLS))
    )
    settings["non_members_known"] = "left out of the training text by lot"
    rows = []
    for samples, attacks in ASKED.items():
        how: dict[str, Any] = {
            "attacks": ",".join(attacks),
            "samples": samples,
            "level": "group",
            "q": Q,
        }
        run = audit(folder, attacks[0], asked, **how, **settings)
        for attack in attacks:
            told = run["verdicts"].filter(
                pl.col("q_value") <= Q, level="document", attack=attack
            )
            right = told["key"].is_in(seen["name"].implode()).sum()
            rows.append(
                {"attack": attack, "reported": right, "false": told.height - right}
            )
    return rows


def measure_extraction(
    run: mia_batch.Run, parts: pl.DataFrame, windows: int
) -> dict[str, Any]:
    """Say what share of the recited parts' characters came out, and how many of unseen parts."""
    found = extracted(run, parts, windows)
    out, recited = pl.col("out"), pl.col("recited")
    whole, behind = out / pl.col("characters"), out / pl.col("behind")
    shares = found.filter(recited).select(
        of_recited=whole.mean(), least=whole.min(), of_what_follows=behind.mean()
    )
    unseen = found.filter(times=0).select(of_unseen=out.sum())
    walks = run.scan("extraction").select(
        walks=pl.len(), tokens=pl.col("n_tokens").sum()
    )
    return pl.concat([shares, unseen, walks.collect()], how="horizontal").row(
        0, named=True
    )


def measure_strips(
    run: mia_batch.Run, parts: pl.DataFrame, design: Design
) -> dict[str, Any]:
    """Give the AUC of stretches that were seen, against those that never were; draw them."""
    strip = strips(run, parts)
    drawn = [*picture(strip, design.often)]
    print("\n".join(drawn), flush=True)
    seen = [design.seldom, design.often]
    books = strip.partition_by("book", as_dict=True, maintain_order=True)
    of_books = {str(book): area(one, seen) for (book,), one in books.items()}
    of_times = {str(times): area(strip, [times]) for times in seen}
    return of_times | {"books": of_books, "picture": drawn}


def measure(
    folder: Path,
    parts: pl.DataFrame,
    design: Design,
    *,
    cases: Sequence[Case] = CASES,
    extraction: Mapping[str, tuple[int, int]] = EXTRACTION,
    **settings: Any,
) -> dict[str, Any]:
    """Audit the books, and say how right the answers are."""
    settings["window_words"] = design.words
    parts = add_recited(folder, parts, **settings)
    figures: dict[str, Any] = {"recited": parts["recited"].sum()}
    run = mia_batch.Run(folder / "books-run")
    for name, (starts, tokens) in extraction.items():
        limits = {"extract": True, "extract_starts": starts, "extract_tokens": tokens}
        audit(folder, run.folder.name, "books", **limits, **settings)
        figures[f"extraction_{name}"] = measure_extraction(run, parts, design.windows)
    figures["strips"] = measure_strips(run, parts, design)
    part = pl.format("{} {}", "document_id", pl.col("window_index") // design.windows)
    scores = run["scores"].filter(role="target").with_columns(name=part)
    figures["splits"] = [splits(scores, ASKED[None][0], parts, case) for case in cases]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="folder for books, model and runs")
    given = parser.parse_args()
    if not DATA.is_dir():
        print("skipped: no real text in ../shared/data")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder, design = given.keep or Path(scratch), Design()
        books = sorted((DATA / "books").glob("*.txt"))
        texts = {path.stem: path.read_text("utf-8") for path in books}
        parts = prepare(folder, texts, design, MODEL)
        figures = measure(folder, parts, design)
        figures["parts"] = audit_parts(folder, parts, window_words=design.words)
    with pl.Config(tbl_cols=-1, tbl_rows=-1, tbl_width_chars=250):
        for name, value in figures.items():
            print(name, pl.DataFrame(value) if isinstance(value, list) else value)
    append_results("book_audit", {"model": MODEL, "design": asdict(design)} | figures)


if __name__ == "__main__":
    main()
