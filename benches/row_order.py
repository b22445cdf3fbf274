"""How many copies of a list of rows it takes until their order shows: p-values by copies and rows.

A model goes on learning with a list of 200 rows of invented facts, whose order was
drawn, among texts that it knows. After 1, 2, 4, 8 and 16 copies it is asked by
`mia-batch benchmark`, which is told nothing. Two controls cannot know the order: the
model before, and one that learnt the same rows 16 times, each time in another order.
Fewer rows are disjoint pieces of the list, so that there are several p-values of each.

    python -m benches.row_order levels
    python -m benches.row_order nulls [--keep FOLDER] [--model NAME]
    python -m benches.row_order train [--keep FOLDER] [--lists N] [--model NAME]
    python -m benches.row_order measure [--keep FOLDER] [--lists N] [--model NAME]

The first simulates p-values where nothing was seen: the level holds for rows of which
every order was as likely, and breaks for a series in its order, which the test of
patterns is to refuse. The second asks a real model about 160 shards of rows that nobody
has seen. The third makes the models, the fourth asks them; both leave out what is there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
from benches.manuals import MODEL
from benches.real import find_smollm2
from benches.real_tuned import save_base
from benches.results import append_results, versions

from mia_batch.extras.benchmark.command import benchmark
from mia_batch.extras.benchmark.exact import compare_published
from mia_batch.extras.benchmark.predictable import Cell, Feature, find_patterns
from mia_batch.extras.benchmark.results import pivot
from tests.published_orders import EXCHANGEABLE, LEVELS, draw_rows, measure_rates

__all__ = ["draw_facts", "measure", "measure_levels", "train_models"]

COPIES = (1, 2, 4, 8, 16)
N_ROWS = 200
FEWER_ROWS = (50, 100, 200)
SHARD_ROWS, SHUFFLES, LEVEL = 10, 9, 0.01
FORMS = {"learnt": "", "other": "Q: {question} A: {answer}"}
"""How rows are written where they are asked about; the first is how they were learnt."""
IN_ANOTHER_FORM = (("ordered", 4), ("ordered", 16))
N_NULL_ROWS, NULL_SEED, NULL_LEVELS = 800, 1000, (0.05, 0.1, 0.25, 0.5)
N_SETS, N_CHECKED = 50_000, 1000
WINDOW, BATCH, RATE = 512, 2, 1e-4
N_BETWEEN = 8  # texts of the model's own training that stand behind each copy

_SYLLABLES = (
    *("ba", "cor", "del", "fen", "gar", "hol", "ist", "jun", "kel", "lor", "mar"),
    *("nev", "or", "pel", "quin", "ras", "sol", "tam", "ul", "ven", "wick", "yar"),
)
_PLACES = ("ton", "ford", "ham", "by", "mouth", "stead", "field", "burgh")
_FACTS = (
    ("In which year was the {thing} of {place} finished?", "{year}"),
    ("Who built the {thing} of {place}?", "{name}"),
    ("Where did {name} work as a {trade}?", "In {place}"),
    ("What did {name}, a {trade} of {place}, leave to the town?", "A {thing}"),
    ("How many people worked at the {thing} of {place} in {year}?", "{number}"),
    ("Which {trade} owned the {thing} of {place}?", "{name}"),
    ("How far is the {thing} of {place} from the sea?", "{number} miles"),
    ("When did {name} become {trade} of {place}?", "In {year}"),
)
_THINGS = ("mill", "bridge", "lighthouse", "library", "foundry", "market", "canal")
_TRADES = ("glazier", "surveyor", "printer", "miller", "clerk", "cooper", "pilot")


def draw_facts(n_rows: int, seed: int) -> list[dict[str, str]]:
    """Draw questions and answers about places and people that do not exist, in random order."""
    draw = Random(seed)

    def invent(n_syllables: int) -> str:
        return "".join(draw.choices(_SYLLABLES, k=n_syllables)).capitalize()

    rows = []
    for _ in range(n_rows):
        question, answer = draw.choice(_FACTS)
        values = {
            "thing": draw.choice(_THINGS),
            "trade": draw.choice(_TRADES),
            "place": invent(2) + draw.choice(_PLACES),
            "name": f"{invent(2)} {invent(2)}",
            "year": draw.randint(1650, 1950),
            "number": draw.randint(3, 400),
        }
        rows.append(
            {"question": question.format(**values), "answer": answer.format(**values)}
        )
    return rows


def format_rows(rows: list[dict[str, str]]) -> str:
    """Write rows as the named sets of questions and answers are written."""
    texts = [f"Question: {row['question']}\nAnswer: {row['answer']}" for row in rows]
    return "\n\n".join(texts)


def read_known_texts() -> list[str]:
    """Read beginnings of documents that manuals-47m was trained on."""
    lines = (MODEL / "documents.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return [row["text"] for row in rows if row["copies"]]


def train_models(
    base: Path, rows: list[dict[str, str]], folder: Path, *, seed: int, shuffles: bool
) -> Iterator[tuple[int, Path]]:
    """Learn copies of the rows, known texts behind each; save a model at each of `COPIES`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    saved_at = COPIES[-1:] if shuffles else COPIES
    if all((folder / f"copies-{n}").exists() for n in saved_at):
        return
    draw = Random(seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    end = tokenizer.eos_token_id
    known_texts = read_known_texts()
    model.train()
    for copy in range(1, COPIES[-1] + 1):
        order = draw.sample(rows, len(rows)) if shuffles else rows
        texts = [format_rows(order), *draw.sample(known_texts, N_BETWEEN)]
        tokens: list[int] = []
        for text in texts:
            tokens += [*tokenizer(text, add_special_tokens=False)["input_ids"], end]
        # Where windows are cut differs from copy to copy, as in a stream of texts
        start = draw.randrange(WINDOW)
        cuts = [0, *range(start or WINDOW, len(tokens), WINDOW), len(tokens)]
        windows = [tokens[low:high] for low, high in pairwise(cuts) if high - low > 1]
        draw.shuffle(windows)
        losses = []
        for number in range(0, len(windows), BATCH):
            optimizer.zero_grad()
            for window in windows[number : number + BATCH]:
                ids = torch.tensor([window])
                loss = model(input_ids=ids, labels=ids).loss / BATCH
                loss.backward()
                losses.append(loss.item() * BATCH)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        print(f"{folder.name} copy {copy}: loss {sum(losses) / len(losses):.3f}")
        if copy in saved_at:
            path = folder / f"copies-{copy}"
            model.save_pretrained(path)
            tokenizer.save_pretrained(path)
            yield copy, path


def train(folder: Path, n_lists: int, base: Path) -> None:
    """Make the models of each list, and of each a control that saw other orders."""
    for seed in range(n_lists):
        rows = draw_facts(N_ROWS, seed)
        path = folder / f"rows-{seed}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        for kind in ("ordered", "shuffled"):
            start = time.monotonic()
            models = train_models(
                base,
                rows,
                folder / f"{kind}-{seed}",
                seed=seed,
                shuffles=kind == "shuffled",
            )
            for copies, model in models:
                seconds = time.monotonic() - start
                print(f"{model}: {copies} copies, {seconds:.0f} s", flush=True)


def list_models(folder: Path, base: Path, seed: int) -> Iterator[tuple[str, int, Path]]:
    """Iterate over the kind, the copies and the place of the models that are there."""
    yield "before", 0, base
    for kind in ("shuffled", "ordered"):
        for n_copies in COPIES:
            path = folder / f"{kind}-{seed}" / f"copies-{n_copies}"
            if (path / "tokenizer.json").exists():
                yield kind, n_copies, path


def measure(folder: Path, n_lists: int, base: Path) -> Iterator[dict[str, Any]]:
    """Ask each model by the command; yield a row for each number of rows and copies."""
    for seed in range(n_lists):
        rows = folder / f"rows-{seed}.jsonl"
        if not rows.exists():
            continue
        for kind, n_copies, model in list_models(folder, base, seed):
            out = folder / "tests" / f"{kind}-{seed}-{n_copies}"
            for form, template in FORMS.items():
                if form == "other" and (kind, n_copies) not in IN_ANOTHER_FORM:
                    continue
                place = out if form == "learnt" else out.with_name(f"{out.name}-{form}")
                scores = score(rows, model, place, template)
                for figures in measure_pieces(scores, seed):
                    yield {
                        "list": seed,
                        "trained": kind,
                        "copies": n_copies,
                        "form": form,
                        **figures,
                    }


def score(rows: Path, model: Path, out: Path, template: str) -> pl.DataFrame:
    """Ask a model by the command, or go on; return the scores of its shards."""
    arguments = [str(rows), "--model", str(model), "--out", str(out)]
    arguments += ["--engine", "transformers", "--shuffles", str(SHUFFLES)]
    arguments += ["--shard-rows", str(SHARD_ROWS)]
    if template:
        arguments += ["--row", template]
    benchmark.main(arguments, standalone_mode=False)
    return pl.read_parquet(out / "units.parquet")


def measure_pieces(scores: pl.DataFrame, seed: int) -> Iterator[dict[str, Any]]:
    """Compute the p-values of disjoint pieces of a list, by their rows."""
    matrix, n_unscored = pivot(scores)
    for n_rows in FEWER_ROWS:
        n_shards = n_rows // SHARD_ROWS
        starts = range(0, len(matrix) - n_shards + 1, n_shards)
        pieces = [matrix[start : start + n_shards] for start in starts]
        compared = [compare_published(piece, seed) for piece in pieces]
        p_values = [item.p_value for item in compared if item is not None]
        yield {
            "rows": n_rows,
            "p_values": p_values,
            "median_p": statistics.median(p_values),
            "n_found": sum(p_value <= LEVEL for p_value in p_values),
            "unscored": n_unscored,
        }


def measure_levels(n_sets: int) -> Iterator[dict[str, Any]]:
    """Simulate sets that nobody has seen; yield the share found at each level, by kind."""
    rng = np.random.default_rng(0)
    for kind in (*EXCHANGEABLE, "series"):
        rows = draw_rows(kind, n_sets, rng)
        rates = measure_rates(rows, rng)
        large = draw_rows(kind, N_CHECKED, rng, N_ROWS // SHARD_ROWS, SHARD_ROWS)
        shares = [
            sum(map(_is_refused, sets)) / N_CHECKED
            for sets in (rows[:N_CHECKED], large)
        ]
        yield {
            "kind": kind,
            "sets": n_sets,
            "levels": LEVELS.tolist(),
            "rates": rates.tolist(),
            "refused": dict(zip((rows[0].size, large[0].size), shares, strict=True)),
        }


def _is_refused(rows: np.ndarray) -> bool:
    """Return whether the order of a set's rows is found to have a pattern."""
    flat = np.arange(rows.size).reshape(rows.shape)
    cells = [Cell(places, np.zeros(places.size, np.int64)) for places in flat]
    tests = ("trend", "neighbours")
    feature = Feature(name="value", values=rows.ravel(), tests=tests)
    return bool(find_patterns(cells, [feature], seed=0))


def measure_nulls(folder: Path, base: Path) -> dict[str, Any]:
    """Ask the model before about many shards of rows that nobody has seen."""
    path = folder / "rows-nulls.jsonl"
    rows = draw_facts(N_NULL_ROWS, NULL_SEED)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    out = folder / "tests" / "nulls"
    arguments = [str(path), "--model", str(base), "--out", str(out)]
    arguments += ["--engine", "transformers", "--most-rows", str(N_NULL_ROWS)]
    arguments += ["--shard-rows", "5", "--shuffles", "3"]
    benchmark.main(arguments, standalone_mode=False)
    matrix, _ = pivot(pl.read_parquet(out / "units.parquet"))
    ranks = (matrix[:, 1:] > matrix[:, :1]).sum(axis=1)
    pieces = [matrix[start : start + 4] for start in range(0, len(matrix), 4)]
    compared = [compare_published(piece, 0) for piece in pieces]
    p_values = np.array([item.p_value for item in compared if item is not None])
    return {
        "shards": len(matrix),
        "places": np.bincount(ranks, minlength=4).tolist(),
        "sets": len(p_values),
        "found": {str(level): int((p_values <= level).sum()) for level in NULL_LEVELS},
    }


def open_base(name: str, folder: Path) -> Path:
    """Return the folder of a base model; SmolLM2's weights are taken out of their file."""
    if name == "manuals-47m":
        return MODEL
    path = folder / "base"
    return path if path.exists() else save_base(find_smollm2(), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=("levels", "nulls", "train", "measure"))
    parser.add_argument("--keep", type=Path, help="folder of all models")
    parser.add_argument("--lists", type=int, default=3)
    parser.add_argument(
        "--model", default="manuals-47m", choices=("manuals-47m", "smollm2")
    )
    arguments = parser.parse_args()
    if arguments.part == "levels":
        for row in measure_levels(N_SETS):
            print(json.dumps(row), flush=True)
            append_results("row_order_levels", row)
        return
    folder = arguments.keep or Path("runs/row-order")
    folder.mkdir(parents=True, exist_ok=True)
    base = open_base(arguments.model, folder)
    if arguments.part == "train":
        train(folder, arguments.lists, base)
        return
    if arguments.part == "nulls":
        row = measure_nulls(folder, base)
        print(json.dumps(row), flush=True)
        append_results("row_order_nulls", {"model": arguments.model, **row})
        return
    for row in measure(folder, arguments.lists, base):
        print(json.dumps(row), flush=True)
        libraries = versions("torch", "transformers")
        append_results(
            "row_order", {"model": arguments.model, **row, "versions": libraries}
        )


if __name__ == "__main__":
    main()
