"""The studies of `mia-batch study`, reproduced small: docs/studies.md has the figures.

Sweeps of prefix ratio and samples (SaMIA, figures 3 and 4), contamination by copies, size and
learning rate, and books by a threshold of known ones (Min-K% paper, sections 6 and 5), of the
demo's model and passages of Python's documentation. A study that is there goes on.

    python -m benches.studies [--demo demo] [--keep build/studies]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import polars as pl
from benches.results import append_results
from click.testing import CliRunner

from mia_batch.cli.main import command
from mia_batch.extras.sets.demo import hash_order, passages_of

N_INSERTED, N_OTHERS, N_KNOWN, N_ASKED = 240, 1200, 25, 20
SHARED = 8  # words in a row that a passage has in common with none of the demo's


def study(name: str, out: Path, **settings: object) -> pl.DataFrame:
    """Run a study as a user does; several values of a setting are given one after another."""
    asked = ["study", name, "--out", str(out)]
    for setting, value in settings.items():
        for each in value if isinstance(value, list) else [value]:
            asked += [f"--{setting.replace('_', '-')}", str(each)]
    done = CliRunner().invoke(command, asked, catch_exceptions=False)
    if done.exit_code:
        raise SystemExit(done.output)
    print(done.stdout)
    return pl.read_parquet(out / "study.parquet")


def once(path: Path, rows: pl.DataFrame) -> Path:
    if not path.exists():
        rows.write_parquet(path)
    return path


def store(name: str, table: pl.DataFrame, *values: str) -> None:
    shown = table.filter(metric="roc_auc") if "metric" in table.columns else table
    rows = shown.select(*values).rows()
    append_results("studies", {"study": name, "columns": values, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", type=Path, default=Path("demo"))
    parser.add_argument("--keep", type=Path, default=Path("build/studies"))
    asked = parser.parse_args()
    keep, model, corpus = asked.keep, asked.demo / "model", asked.demo / "corpus.parquet"
    keep.mkdir(parents=True, exist_ok=True)
    demo = pl.read_parquet(corpus)

    over = ["prefix-ratio=0.25,0.5,0.75", "samples=1,2,3,5,10"]
    attacks = "samia_matched_v1,samia_matched_n2_v1"
    how = {"input": corpus, "model": model, "preset": "matched", "attacks": attacks}
    found = study("sweep", keep / "sweep", over=over, **how)
    store("sweep", found, "prefix_ratio", "samples", "attack", "value", "low", "high")

    def runs(text: str) -> set[tuple[str, ...]]:
        return {*zip(*(text.split()[at:] for at in range(SHARED)), strict=False)}

    known = set[tuple[str, ...]]().union(*map(runs, demo["text"]))
    passages = passages_of(None, 64)
    new = [known.isdisjoint(runs(text)) for text in passages["text"]]
    texts = hash_order(passages.filter(pl.Series(new)), "x")
    chosen = once(keep / "chosen.parquet", texts.head(N_INSERTED))
    into = once(keep / "into.parquet", texts.slice(N_INSERTED, N_OTHERS))
    over = ["size=200,1000", "learning-rate=1e-4,1e-3"]
    how = {"input": chosen, "into": into, "base": model, "attacks": "min-k,loss"}
    found = study("contamination", keep / "contamination", over=over, copies_mean=4, **how)
    store("contamination", found, "model", "copies", "attack", "value", "low", "high", "n_members")

    sides = [demo.filter(member=side).drop("group").head(N_KNOWN + N_ASKED) for side in (1, 0)]
    labelled = once(keep / "known.parquet", pl.concat(side.head(N_KNOWN) for side in sides))
    unknown = pl.concat(side.tail(N_ASKED) for side in sides).rename({"member": "truth"})
    how = {"known": labelled, "input": once(keep / "asked.parquet", unknown), "model": model}
    how |= {"window_words": 32, "primary": "min_k_20_v1", "non_members_known": "drawn by lot"}
    found = study("books", keep / "books", **how)
    truth = unknown.select(pl.col("document_id").alias("key"), "truth")
    found = found.join(truth, on="key", how="left", maintain_order="left")
    store("books", found, "kind", "truth", "share", "p_value", "verdict")


if __name__ == "__main__":
    main()
