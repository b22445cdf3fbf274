"""Groups asked in rounds, each until it is decided: false lists, power, and windows not asked.

Null audits are stopped by rules that wish for a list; audits with members are compared
with Benjamini-Hochberg on all windows. Then recorded scores of three corpora are
replayed in rounds: parts of books and groups of WikiMIA, of both of which a small model
saw some, and parts of books in the training text of a model of 47 million weights.

    python -m benches.stopping [--runs N]
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import product
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from benches.pairs import DATA
from benches.power import FOREIGN, train_model
from benches.results import append_results

import mia_batch
from mia_batch.inference.conformal import p_values, q_values
from mia_batch.inference.e_values import decide, plan_rounds
from mia_batch.settings import nested

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Scores = NDArray[np.float64]  # a line per group

Q, WINDOWS, ICC = 0.05, 40, 0.1
NULLS = (25, 40, 100)
SIZE, WORDS = 8, 64  # windows of a part or group, and words of each
N_SEEN, TIMES, SPLITS, N_ASKED = 20, 12, 200, 27
ATTACK = "loss_v1"


def draw(
    rng: np.random.Generator, n_groups: int, shift: float = 0, freedom: int = 4
) -> Scores:
    """Windows of groups that share a tenth of their variance, with heavy tails."""
    own, of_windows = (rng.standard_t(freedom, (n_groups, n)) for n in (1, WINDOWS))
    made: Scores = shift + ICC**0.5 * own + (1 - ICC) ** 0.5 * of_windows
    return made


def null_audits(rng: np.random.Generator, runs: int) -> Iterator[dict[str, Any]]:
    """How often any of m null groups is listed, whatever rule stops them."""
    for m, n_null in product((1, 5, 50), NULLS):
        rounds = plan_rounds(WINDOWS, n_null, Q)
        listed: dict[str, list[bool]] = {
            "at the end": [],
            "at the first list": [],
            "the best": [],
        }
        for _ in range(runs):
            groups, nulls = draw(rng, m), draw(rng, n_null)
            made = [decide(groups, nulls, rounds, Q, n_rounds=n) for n in range(1, 5)]
            listed["at the end"].append(bool(made[-1].accepted.any()))
            listed["at the first list"].append(any(one.accepted.any() for one in made))
            # Asks on, after the first round, only about groups that stand above all
            # nulls.
            first = groups[:, : rounds.ends[0]].mean(axis=1)
            dropped = first <= nulls[:, : rounds.ends[0]].mean(axis=1).max()
            asked = groups.copy()
            asked[dropped, rounds.ends[0] :] = np.nan
            listed["the best"].append(
                bool(decide(asked, nulls, rounds, Q).accepted.any())
            )
        for rule, found in listed.items():
            rate, most = np.mean(found), Q + 2 * (Q * (1 - Q) / runs) ** 0.5
            yield {
                "groups": m,
                "nulls": n_null,
                "stopped": rule,
                "rate": rate,
                "most": most,
            }


def compared(
    groups: Scores, nulls: Scores, seen: NDArray[np.bool_]
) -> dict[str, float]:
    """List the same groups with all windows, and in rounds."""
    found = decide(groups, nulls, plan_rounds(groups.shape[1], len(nulls), Q), Q)
    whole = q_values(p_values(groups.mean(axis=1), nulls.mean(axis=1)), "bh") <= Q
    lists = {"all": whole, "rounds": found.accepted}
    asked = found.n_windows.sum() + found.n_null_windows.sum()
    figures = {f"{name}_seen": list_[seen].sum() for name, list_ in lists.items()}
    figures |= {f"{name}_false": list_[~seen].sum() for name, list_ in lists.items()}
    return figures | {"saved": 1 - asked / (groups.size + nulls.size)}


def mean_of(made: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in made])) for name in made[0]}


def power(rng: np.random.Generator, runs: int) -> Iterator[dict[str, Any]]:
    """50 groups, some of them members: how many are listed, and what is saved."""
    for n_null, n_members, shift in product((*NULLS, 300), (15, 30, 45), (1.5, 3.0)):
        seen = np.arange(50) < n_members
        made = []
        for _ in range(runs):
            groups = draw(rng, 50)
            groups[seen] += shift
            made.append(compared(groups, draw(rng, n_null), seen))
        yield {"nulls": n_null, "members": n_members, "shift": shift} | mean_of(made)


def resplit(seen: Scores, unseen: Scores, n_null: int) -> dict[str, float]:
    """Ask about the seen groups and some unseen ones, against others; drawn anew."""
    rng = np.random.default_rng(0)
    which = np.arange(N_ASKED) < min(len(seen), N_SEEN)
    made = []
    for _ in range(SPLITS):
        known, others = rng.permutation(seen)[: which.sum()], rng.permutation(unseen)
        n = N_ASKED - which.sum()
        made.append(
            compared(np.vstack([known, others[:n]]), others[n : n + n_null], which)
        )
    return mean_of(made) | {
        "seen": float(which.sum()),
        "asked": N_ASKED,
        "nulls": n_null,
    }


def parts_of(texts: list[str], name: str) -> pl.DataFrame:
    """Cut texts into parts of so many windows."""
    rows = []
    for number, text in enumerate(texts):
        words = text.split()
        for start in range(0, len(words) - SIZE * WORDS + 1, SIZE * WORDS):
            at = range(start, start + SIZE * WORDS, WORDS)
            rows.append(
                [
                    f"{name} {number} {start}",
                    [" ".join(words[i : i + WORDS]) for i in at],
                ]
            )
    return pl.DataFrame(
        rows, {"group": pl.String, "text": pl.List(pl.String)}, orient="row"
    )


def corpora() -> dict[str, pl.DataFrame]:
    """Parts of books and groups of WikiMIA; the first of each are seen."""
    books = [
        path.read_text("utf-8")
        for path in sorted((DATA / "books").glob("*.txt"))
        if path.stem not in FOREIGN
    ]
    made = {
        "books": parts_of(
            [" ".join(text.split()[3000:15000]) for text in books], "book"
        )
    }
    texts = pl.read_ndjson(DATA / "wikimia" / "64.jsonl")["input"].shuffle(0)
    groups = (
        texts.head(texts.len() // SIZE * SIZE)
        .reshape((-1, SIZE))
        .cast(pl.List(pl.String))
    )
    names = pl.format("wiki {}", pl.int_range(groups.len()))
    made["wikimia"] = pl.select(group=names, text=groups)
    return {
        name: parts.sample(fraction=1, shuffle=True, seed=0)
        for name, parts in made.items()
    }


def scored(folder: Path, model: Path, parts: pl.DataFrame, name: str) -> Scores:
    """Score all windows of an audit's evidence, a line per part."""
    windows = parts.explode("text")
    windows = windows.with_columns(document_id=pl.int_range(pl.len()).cast(pl.String))
    windows.write_parquet(folder / f"{name}.parquet")
    run = mia_batch.audit(
        **nested(
            {
                "input": str(folder / f"{name}.parquet"),
                "model": str(model),
                "out": str(folder / name),
                "evidence": "logprobs",
                "attacks": ATTACK,
                "report": False,
            }
        )
    )
    order = windows.select("document_id").join(
        run["scores"], on="document_id", maintain_order="left"
    )
    return order[ATTACK].to_numpy().reshape(-1, SIZE)


def recorded(folder: Path) -> Iterator[tuple[str, Scores, Scores]]:
    """Name each corpus, and give the scores of its seen and unseen groups."""
    made = corpora()
    seen = [
        text for parts in made.values() for text in parts.head(N_SEEN)["text"].explode()
    ]
    texts = [text for parts in made.values() for text in parts["text"].explode()]
    rows = seen * TIMES
    Random(0).shuffle(rows)
    train_model(folder / "model", texts, rows, {"hidden": 128, "layers": 2})
    for name, parts in made.items():
        scores = scored(folder, folder / "model", parts.head(N_SEEN + 110), name)
        yield name, scores[:N_SEEN], scores[N_SEEN:]
    model = DATA.parent / "models" / "manuals-47m"
    if model.is_dir():
        known = pl.read_ndjson(model / "parts.jsonl").sample(
            fraction=1, shuffle=True, seed=0
        )
        often, never = (
            known.filter(kept)
            for kept in (pl.col("copies") >= 16, pl.col("copies") == 0)
        )
        both = [*often.head(N_SEEN)["text"], *never["text"]]
        parts = parts_of(both, "part")
        first = parts.filter(pl.col("group").str.ends_with(" 0"))
        order = first["group"].str.extract(r"(\d+) ").cast(pl.Int64)
        n_often = len(order.filter(order < N_SEEN))
        scores = scored(folder, model, first.head(n_often + 110), "manuals")
        yield "manuals-47m", scores[:n_often], scores[n_often:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    rng = np.random.default_rng(0)
    made = {
        "null_audits": [*null_audits(rng, runs)],
        "power": [*power(rng, max(runs // 10, 1))],
    }
    if DATA.is_dir():
        made["corpora"] = []
        with tempfile.TemporaryDirectory() as scratch:
            for name, seen, unseen in recorded(Path(scratch)):
                counts = [
                    n
                    for n in NULLS
                    if n <= len(unseen) - N_ASKED + min(len(seen), N_SEEN)
                ]
                made["corpora"] += [
                    {"corpus": name} | resplit(seen, unseen, n) for n in counts
                ]
    with pl.Config(tbl_cols=-1, tbl_rows=-1, tbl_width_chars=160):
        for rows in made.values():
            print(pl.DataFrame(rows))
    append_results(
        "stopping", {"q": Q, "windows": WINDOWS, "icc": ICC, "runs": runs} | made
    )


if __name__ == "__main__":
    main()
