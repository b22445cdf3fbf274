"""What the mark of a book shows of how often it was learnt, and how often where it was not.

`manuals`: windows of ../shared/models/manuals-47m (see its README), which it saw a
known number of times. Each is asked as it is and with the other form at each place; how
much further apart both are than of windows never seen is what learning adds. Books with
a draw are then simulated: the difference of a window never seen, its sign drawn, and
that addition.

`trained`: a small model is trained here on marked books, each a known number of times
among other texts, and tested by one audit with all keys. Those that it never saw are
drawn anew 1,000 times.

`dose`: simulates ladders of texts of known copies, and the limits of doses by them.

    python -m benches.mark [manuals] [trained] [dose] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
from benches.manuals import MODEL
from benches.results import append_results
from scipy.stats import kstest, norm

import mia_batch
from mia_batch.corpus import draw
from mia_batch.extras.sets import marks
from mia_batch.inference.verdicts import aligned_ranks, rank_sum_p_value
from mia_batch.inference.yardstick import dose
from mia_batch.stats import Floats

ATTACK, LEVEL = "loss_v1", 0.001
SIZES = 50, 100, 200, 400
BOOKS = {
    "walden": 0,
    "dracula": 0,
    "sherlock_holmes": 0,
    "frankenstein": 1,
    "jane_eyre": 2,
    "great_expectations": 4,
    "republic": 8,
    "moby_dick": 16,
}
"""How often the trained model sees each."""
LEVELS = 8, 0, 16, 4, 32  # copies
MOST = 160  # windows of each number of copies
PARTS = 12  # of 1,024 words, of each book


def rows_of(name: str) -> list[dict[str, Any]]:
    lines = (MODEL / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def p_value(differences: Floats) -> float:
    """Test pairs by the differences of their published texts."""
    return rank_sum_p_value(
        aligned_ranks([(each, np.zeros(1)) for each in differences])
    )


def simulated(
    never: Floats, added: float, rng: np.random.Generator
) -> dict[str, float]:
    """Share of books with p < 0.001, by their number of windows; and the effect of a window."""
    found = {}
    for n in SIZES:
        books = rng.choice(never, (100, n)) * rng.choice([-1, 1], (100, n)) + added
        found[str(n)] = float(np.mean([p_value(each) < LEVEL for each in books]))
    books = rng.choice(never, (200, 400)) * rng.choice([-1, 1], (200, 400)) + added
    return found | {"effect": float(signed_rank(books).mean())}


def signed_rank(books: Floats) -> Floats:
    """Mean standardised signed rank of a window, a line of differences per book."""
    ranks = abs(books).argsort(axis=1).argsort(axis=1) + 0.5
    sums = (ranks * np.sign(books)).sum(axis=1) / np.sqrt((ranks**2).sum(axis=1))
    return np.asarray(sums / books.shape[1] ** 0.5, np.float64)


def manuals(folder: Path) -> None:
    by = {copies: differences(copies, folder) for copies in LEVELS}
    never, rng = by[0], np.random.default_rng(0)
    found = {}
    for copies in sorted(by):
        added = by[copies].mean() - never.mean()
        error = (by[copies].var() / by[copies].size + never.var() / never.size) ** 0.5
        row = {
            "windows": by[copies].size,
            "added": added / never.std(),
            "se": error / never.std(),
        }
        least = simulated(never, max(added - 1.96 * error, 0.0), rng)["effect"]
        found[str(copies)] = (
            row | simulated(never, added, rng) | {"least_effect": least}
        )
    append_results("mark", {"model": "manuals-47m", "copies": rounded(found)})


def differences(copies: int, folder: Path) -> Floats:
    """Score windows seen so often as they are and with the other forms: how far apart both are."""
    windows = [row for row in rows_of("windows") if row["copies"] == copies]
    Random(0).shuffle(windows)
    texts = []
    for row in windows:
        if places := marks.find_places(row["text"], "en"):
            other = marks.build_edition(
                row["text"], 0, len(row["text"]), places, [True] * len(places)
            )
            editions = ("own", row["text"]), ("other", other)
            texts += [
                {"pair": row["id"], "kind": kind, "text": text}
                for kind, text in editions
            ]
    asked = pl.DataFrame(texts[: 2 * MOST]).with_columns(
        document_id=pl.format("{}/{}", "pair", "kind")
    )
    scores = scored(asked, folder / f"copies-{copies}")
    pairs = scores.pivot("kind", index="pair", values=ATTACK)
    return (pairs["own"] - pairs["other"]).to_numpy()


def scored(texts: pl.DataFrame, folder: Path) -> pl.DataFrame:
    """Return texts, each with its score by manuals-47m."""
    folder.mkdir(exist_ok=True)
    texts.write_parquet(folder / "texts.parquet")
    run = mia_batch.audit(
        str(folder / "texts.parquet"),
        str(MODEL),
        out=folder / "run",
        evidence="logprobs",
        attacks=ATTACK,
        engine="transformers",
        report=False,
    )
    return run["scores"].select("document_id", ATTACK).join(texts, on="document_id")


def dose_of(pairs: pl.DataFrame) -> dict[str, Any]:
    """Take half of the windows as ladder, at random, and the others as texts of unknown dose."""
    copies, own = (
        pairs[name].to_numpy().astype(np.float64) for name in ("copies", "own")
    )
    rng, found = np.random.default_rng(0), dict[float, list[Floats]]()
    for _ in range(200):
        ladder = rng.random(copies.size) < 0.5
        value, low, high = dose(own[~ladder], copies[ladder], own[ladder])
        asked = copies[~ladder]
        for level in np.unique(asked):
            at = asked == level
            covers = (~(low[at] > level) & ~(high[at] < level)).mean()
            limits = np.nan_to_num(low[at]), np.nan_to_num(high[at], nan=np.inf)
            row = [covers, np.median(value[at]), *map(np.median, limits)]
            found.setdefault(level, []).append(np.array(row))
    names = "covered", "value", "low", "high"
    middle = {level: np.median(of, axis=0) for level, of in found.items()}
    each = {
        f"{level:g}": dict(
            zip(names, [np.mean(of, axis=0)[0], *middle[level][1:]], strict=True)
        )
        for level, of in found.items()
    }
    return {"manuals-47m": each}


def dose_simulated() -> dict[str, Any]:
    """Share of limits that hold, also of doses between levels and beyond, by the ladder's sizes.

    Of a group the mean of eight windows, which share a part of their noise, is compared
    with ladders of single windows, as an audit does at level group.
    """
    levels, rng = np.array([0.0, 1, 2, 4, 8, 16, 32, 64]), np.random.default_rng(0)
    unequal = np.array([300, 80, 20, 45, 10, 60, 5, 40])
    ladders = {
        "60 a level": (np.full(8, 60), 1),
        "unequal": (unequal, 1),
        "20 a level": (np.full(8, 20), 1),
        "groups, 60 a level": (np.full(8, 60), 8),
        "groups, unequal": (unequal, 8),
    }
    true = np.repeat([0.0, 1, 3, 8, 10, 30, 64, 100], 20)
    found = {}
    for name, (sizes, windows) in ladders.items():
        copies, held = np.repeat(levels, sizes), []
        for _ in range(400):
            _, low, high = dose(
                scores(true, windows, rng), copies, scores(copies, 1, rng)
            )
            held.append(~(low > true) & ~(high < true))
        by = np.mean(held, axis=0).reshape(-1, 20).mean(axis=1)
        found[name] = {
            f"{level:g}": each for level, each in zip(true[::20], by, strict=True)
        }
    return found


def scores(copies: Floats, windows: int, rng: np.random.Generator) -> Floats:
    """Draw the mean score of windows of a text, a third of whose variance is the text's own."""
    own, each = (
        rng.standard_t(4, copies.size),
        rng.standard_t(4, (windows, copies.size)),
    )
    noise = own * 3**-0.5 + each.mean(axis=0) * (2 / 3) ** 0.5
    return np.asarray(
        np.log1p(copies) + noise * (1 + 0.2 * np.log1p(copies)), np.float64
    )


_AUCS = {0: 0.5, 1: 0.5, 2: 0.56, 4: 0.61, 8: 0.70, 16: 0.92, 32: 0.99, 64: 0.999}
"""Of the loss of windows of manuals-47m, see its README."""


def dose_ranges() -> dict[str, Any]:
    """How often the limits of a dose lie within a factor of 3, as texts and windows grow.

    Levels are 3 ** 0.5 apart, scores normal and as far apart as the loss on
    manuals-47m; both the texts of the ladder and those asked about have so many
    windows, independent or with a tenth of their variance in common.
    """
    known, rng = np.array([*_AUCS]), np.random.default_rng(0)
    shifts = 2**0.5 * norm.ppf([*_AUCS.values()])
    levels, found = np.array([0, *3 ** (np.arange(9) / 2)]), dict[str, Any]()
    for windows, common, n in product((1, 8, 32, 128), (0.0, 0.1), (40, 80, 160)):
        error = (common + (1 - common) / windows) ** 0.5
        copies, row = np.repeat(levels, n), {}
        for true in (3.0, 9.0, 27.0):
            of, asked = (
                np.interp(np.log1p(each), np.log1p(known), shifts)
                for each in (copies, np.full(100, true))
            )
            within, held = [], []
            for _ in range(40):
                _, low, high = dose(
                    asked + rng.normal(0, error, 100),
                    copies,
                    of + rng.normal(0, error, of.size),
                )
                within.append((high < 3.01 * low).mean())  # null is not within
                held.append((~(low > true) & ~(high < true)).mean())
            row[f"{true:g}"] = {"within 3": np.mean(within), "held": np.mean(held)}
        found[f"{windows} windows, {common:g} in common, {n} texts a level"] = row
    return found


def dosed(folder: Path) -> None:
    windows = pl.DataFrame(rows_of("windows")).select(
        "text", "copies", document_id=pl.col("id")
    )
    pairs = scored(windows, folder / "dose").rename({ATTACK: "own"})
    append_results("mark", {"dose": rounded(dose_of(pairs))})
    append_results("mark", {"dose_simulated": rounded(dose_simulated())})
    append_results("mark", {"dose_ranges": rounded(dose_ranges())})


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, float | np.floating):
        return round(float(value), 4) if np.isfinite(value) else None
    return value


def train(books: dict[str, tuple[str, int]], folder: Path) -> Path:
    """Train a small model: each book so often, cut elsewhere than an audit cuts it."""
    import torch

    from mia_batch.extras.sets.demo import (
        DemoSettings,
        new_model,
        save,
        train_tokenizer,
    )

    torch.set_num_threads(1)
    others = [row["text"] for row in rows_of("documents")[::2]]
    tokenizer = train_tokenizer([*others, *(text for text, _ in books.values())], 2048)
    rows, length, random = list[list[int]](), 256, Random(0)
    for text, copies in [(" ".join(others), 1), *books.values()]:
        for _ in range(copies):
            ids = tokenizer.encode(text).ids[random.randrange(length) :]
            rows += [
                ids[at : at + length] for at in range(0, len(ids) - length + 1, length)
            ]
    random.shuffle(rows)
    model = new_model(tokenizer, DemoSettings(), hidden=128, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    n_steps = len(rows) // 8
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=n_steps + 1
    )
    print(f"{len(rows)} rows of {length} tokens, {n_steps} steps", flush=True)
    for step in range(n_steps):
        batch = torch.tensor(rows[8 * step : 8 * step + 8])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(step, round(loss.item(), 3), flush=True)
    save(model, tokenizer, folder / "model")
    return folder / "model"


def trained(folder: Path) -> None:
    marked, all_parts, every = {}, rows_of("parts"), folder / "keys.jsonl"
    for name, copies in BOOKS.items():
        texts = [row["text"] for row in all_parts if row["book"] == name][:PARTS]
        (book := folder / f"{name}.txt").write_text("\n\n".join(texts), "utf-8")
        key, out = folder / f"{name}.jsonl", folder / f"{name}-marked.txt"
        if not out.exists():
            marks.prepare(book, key, random=Random(name))
            marks.publish(book, key, Random(f"{name} seed").randrange(10**9), out)
        marked[name] = (out.read_text("utf-8"), copies)
    model = folder / "model"
    if not model.exists():
        train(marked, folder)
    keys = [(folder / f"{name}.jsonl").read_text("utf-8") for name in BOOKS]
    every.write_text("".join(keys), "utf-8")
    run = mia_batch.audit(
        str(folder / "walden-marked.txt"),
        str(model),
        out=folder / "run",
        texts={"max_windows_per_document": 1},
        evidence="logprobs",
        attacks=ATTACK,
        engine="transformers",
        verdict={"canaries": str(every)},
        report=False,
    )
    scores = run["scores"].filter(role="canary").select("group", "member", ATTACK)
    pairs = scores.pivot("member", index="group", values=ATTACK).sort("group")
    rows, p_of_draws = list[dict[str, Any]](), list[float]()
    for name, copies in BOOKS.items():
        key = folder / f"{name}.jsonl"
        names = [each["set"] for each in marks.read_sets(key)]
        own = pairs.filter(pl.col("group").is_in(names))
        differences = (own["true"] - own["false"]).to_numpy()
        row = {"book": name, "copies": copies, "p_value": p_value(differences)}
        row |= {"windows": differences.size, "higher": float((differences > 0).mean())}
        row |= {
            "effect": signed_rank(differences[None])[0],
            "se": differences.size**-0.5,
        }
        rows.append(row)
        print(row, flush=True)
        if not copies:
            p_of_draws += drawn_anew(key, own, 1000)
    p = np.array(p_of_draws)
    sizes = {
        str(level): float((p <= level).mean()) for level in (0.001, 0.01, 0.05, 0.5)
    }
    never = {
        "draws": p.size,
        "below_0.001": int((p < LEVEL).sum()),
        "share_at_most": sizes,
    }
    never["ks_p"] = float(kstest(p, "uniform").pvalue)
    append_results(
        "mark", {"model": "trained here", "books": rounded(rows), "never": never}
    )


def drawn_anew(key: Path, pairs: pl.DataFrame, n: int) -> Iterator[float]:
    """p-values of the same book with other seeds."""
    values = {row["group"]: row for row in pairs.iter_rows(named=True)}
    sets = [each for each in marks.read_sets(key) if each["set"] in values]
    size = np.array(
        [values[each["set"]]["true"] - values[each["set"]]["false"] for each in sets]
    )
    first = np.where([each["published"] == 0 for each in sets], size, -size)
    for seed in range(n):
        drawn = np.array([draw(each["commitment"], 2, seed) for each in sets])
        yield p_value(np.where(drawn == 0, first, -first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["manuals", "trained", "dose"])
    parser.add_argument("--keep", type=Path, help="folder for texts, model and runs")
    given = parser.parse_args()
    if not MODEL.is_dir():
        print("skipped: there is no ../shared/models/manuals-47m")
        return
    with TemporaryDirectory() as scratch:
        for name in given.parts:
            (folder := given.keep or Path(scratch, name)).mkdir(exist_ok=True)
            {"manuals": manuals, "trained": trained, "dose": dosed}[name](folder)


if __name__ == "__main__":
    main()
