"""How tight the bounds of near-verbatim extraction are, what they cost, and whether they hold.

`tables`: 1,000 passages of small tables of next tokens, in which the exact probability
can be added up: how often it lies outside the bounds. `demo`: the likeliest passages of
the texts that the demo's model learnt (made by `mia-batch demo`), and `manuals`:
recited passages of ../shared/models/manuals-47m, next to 100,000 samples each, and
10,000. These are real, drawn token by token; those with equal beginnings are read once,
and one that cannot come near is drawn no further. `rounding`: what float32 adds to a
probability, by the same model in float64. `memory`: what searches of several widths
take at their peak, next to what they are expected to take.

    python -m benches.bounds [tables] [demo] [manuals] [memory] [--demo FOLDER]
    [--tokens N ...]
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import resource
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from benches.manuals import MODEL
from benches.results import append_results

from mia_batch.evidence.engines.transformers import Pretrained
from mia_batch.evidence.request import Decoding, EngineSpec
from mia_batch.extras.bounds import ROUNDING, Nearness, bound, memory_needed, reader
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import quiet
from mia_batch.stats.intervals import clopper_pearson
from tests.unit.pipeline.test_bounds import exact_in, passage_of

_SAMPLES = {"demo": 100_000, "manuals-47m": 10_000}
_PLAIN = Decoding(top_k=0)
_AT_ONCE = 256  # texts of a pass
_RANGES = 0.1, 0.01, 0.001


class Passage(NamedTuple):
    verbatim: float
    prompt: list[int]
    near: Nearness


def on_tables(n: int = 1000) -> dict[str, Any]:
    """Bound passages of small tables, and count those whose exact probability lies outside."""
    outside, beyond, gaps = 0, 0, []
    for passage in range(n):
        table, near, width = passage_of(passage)
        found = bound(table, near, width=width, draws=10, seed=passage)
        exact = exact_in(table, near)
        outside += not found.lower <= exact <= found.upper
        beyond += exact > found.likely_upper
        gaps.append(found.upper - found.lower)
    widths = [round(float(each), 4) for each in np.quantile(gaps, [0.5, 0.9])]
    counts = {"outside": int(outside), "above_likely_upper": int(beyond)}
    return {"passages": n, **counts, "gap": widths}


def loaded(folder: Path) -> Pretrained:
    spec = EngineSpec(
        engine="transformers", kind="logprobs", model=str(folder), dtype="float32"
    )
    with quiet():
        return Pretrained(spec)


def likeliest(
    model: Pretrained, folder: Path, texts: list[str], n: int, within: int, most: int
) -> Iterator[Passage]:
    """Take the likeliest ``n`` tokens of each text, at most ``most`` before them."""
    tokenizer = Tokenizer.load(str(folder))
    for text in texts:
        ids = tokenizer.encode([text])[0][:260]
        if len(ids) < n + 40:
            continue
        with torch.inference_mode():
            said = model.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        own = said[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
        sums = np.convolve(own, np.ones(n), "valid")
        start = int(sums[20:].argmax()) + 21
        ends = (int(model.model.config.eos_token_id),)
        near = Nearness(
            truth=np.array(ids[start : start + n]), within=within, edits=True, ends=ends
        )
        yield Passage(
            float(np.exp(sums[start - 1])), ids[max(0, start - most) : start], near
        )


def ordered(passages: Iterable[Passage]) -> list[Passage]:
    return sorted(passages, key=lambda each: -each.verbatim)


@torch.inference_mode()
def sampled(
    model: Pretrained, passage: Passage, n_samples: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Draw samples, and count those that are near, and the tokens that were read for them."""
    near, hits, asked = passage.near, 0, 0
    said = model.model(torch.tensor([passage.prompt]), use_cache=True)
    todo = [
        (said.past_key_values, said.logits[:, -1], near.first, np.array([n_samples]), 0)
    ]
    while todo:
        cache, logits, rows, counts, n = todo.pop()
        p = logits.double().softmax(-1).numpy()
        drawn = rng.multinomial(counts, p / p.sum(1, keepdims=True))
        is_near = (rows + np.arange(rows.shape[1])[::-1]).min(1) <= near.within
        hits += int((drawn[:, list(near.ends)].sum(1) * is_near).sum())
        drawn[:, list(near.ends)] = 0
        parents, tokens = np.nonzero(drawn)
        counts, rows = drawn[parents, tokens], near.add_tokens(rows[parents], tokens)
        on = np.flatnonzero(near.can_come(rows, n + 1))
        if n + 1 == near.truth.size:
            hits += int(counts[on].sum())
            continue
        asked += on.size
        for part in np.split(on, range(_AT_ONCE, on.size, _AT_ONCE)) if on.size else []:
            own = copy.deepcopy(cache)
            own.reorder_cache(torch.from_numpy(parents[part]))
            ids = torch.from_numpy(tokens[part][:, None])
            said = model.model(ids, past_key_values=own, use_cache=True)
            todo.append((own, said.logits[:, -1], rows[part], counts[part], n + 1))
    return hits, asked


def on_samples(
    model: Pretrained, passages: list[Passage], n: int
) -> list[dict[str, Any]]:
    """Bound passages at the cost of 20 samples, next to many."""
    rng, rows = np.random.default_rng(0), []
    for passage in passages:
        hits, asked = sampled(model, passage, n, rng)
        limits = clopper_pearson(hits, n)
        found = bound(
            reader(model, _PLAIN, passage.prompt), passage.near, width=10, draws=10
        )
        row: dict[str, float] = {
            "verbatim": passage.verbatim,
            "sampled": hits / n,
            "read": asked,
        }
        row |= {"low": limits.low, "high": limits.high, **found._asdict()}
        rows.append({name: round(float(value), 5) for name, value in row.items()})
        print(rows[-1], flush=True)
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By the probability: how many bounds fail, and how far the estimate and the lower one are."""
    found, table = {}, pl.DataFrame(rows)
    for least, most in zip(_RANGES, (1.0, *_RANGES), strict=False):
        of = table.filter(
            pl.col("sampled").is_between(least, min(most, 0.9), closed="left")
        )
        off = {
            name: (of[name] / of["sampled"] - 1).to_numpy()
            for name in ("lower", "estimate")
        }
        outside = (of["lower"] > of["high"]) | (of["upper"] < of["low"])
        row: dict[str, Any] = {"passages": of.height, "outside": int(outside.sum())}
        row["above_likely_upper"] = int((of["likely_upper"] < of["low"]).sum())
        row["tokens"] = of["tokens_asked"].mean()
        for name, each in off.items():
            if each.size:
                row[f"{name}_off"] = round(float(np.median(each)), 3)
                row[f"{name}_within_10"] = int((abs(each) <= 0.1).sum())
        found[f"{least:g} to {most:g}"] = row
    return found


@torch.inference_mode()
def rounding(model: Pretrained, passages: list[Passage]) -> float:
    """Give the largest relative error of a true token's probability in float32."""
    exact, worst = copy.deepcopy(model.model).double(), 0.0
    for prompt, truth in ((each.prompt, each.near.truth.tolist()) for each in passages):
        ids, own = torch.tensor([prompt + truth]), slice(len(prompt) - 1, -1)
        wanted = torch.tensor(truth)[:, None]
        one, other = (
            of(ids).logits[0, own].double().log_softmax(-1).gather(1, wanted)
            for of in (model.model, exact)
        )
        worst = max(worst, float((one - other).expm1().abs().max()))
    return worst


def demo(folder: Path, tokens: list[int]) -> Iterator[dict[str, Any]]:
    name = folder / "model"
    texts = (
        pl.read_parquet(folder / "corpus.parquet").filter("member")["text"].to_list()
    )
    model = loaded(name)
    for n, within, every in ((n, n // 10, 2 if n <= 10 else 16) for n in tokens):
        passages = ordered(likeliest(model, name, texts, n, within, 200))[::every]
        rows = on_samples(model, passages, _SAMPLES["demo"])
        how = {
            "model": "demo",
            "tokens": n,
            "within": within,
            "samples": _SAMPLES["demo"],
        }
        error = {"float32": rounding(model, passages), "allowed": ROUNDING}
        yield how | {"by_probability": summary(rows), "rounding": error}


def manuals() -> Iterator[dict[str, Any]]:
    lines = (MODEL / "documents.jsonl").read_text("utf-8").splitlines()
    texts = [row["text"] for row in map(json.loads, lines) if row["copies"] >= 4][:60]
    model, most = loaded(MODEL), _SAMPLES["manuals-47m"]
    every = ordered(likeliest(model, MODEL, texts, 20, 2, 50))
    likely = {
        round(each.verbatim, 1): each for each in every[::-1] if each.verbatim < 0.95
    }
    rows = on_samples(model, [*likely.values()][::-1][:4], most)  # many are one licence
    error = {"float32": rounding(model, every[:20]), "allowed": ROUNDING}
    how = {"model": "manuals-47m", "tokens": 20, "within": 2, "samples": most}
    yield how | {"passages": rows, "rounding": error}


def _peak(name: Path, text: str, width: int) -> dict[str, Any]:
    """Search in this process, which is new; 50 tokens after 50, at most 5 edits."""
    torch.set_num_threads(1)
    model, expected, peak, over = loaded(name), [0], 0, Event()
    special, before, after = Tokenizer.load(str(name), None).encode_after(
        text[:1500], text[1500:]
    )
    near = Nearness(truth=np.array(after[:50]), within=5, edits=True)

    def resident() -> int:
        return (
            int(Path("/proc/self/statm").read_text().split()[1])
            * resource.getpagesize()
        )

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.002):
            peak = max(peak, resident())

    def heard(texts: int, n_tokens: int) -> None:
        expected.append(memory_needed(model, texts, n_tokens))

    start, watcher = resident(), Thread(target=watch)
    watcher.start()
    bound(
        reader(model, Decoding(), special + before[-50:], heard),
        near,
        width=width,
        draws=width,
    )
    over.set()
    watcher.join()
    found, measured = max(expected), peak - start
    sizes = {"expected_mib": found >> 20, "measured_mib": measured >> 20}
    return {"width": width, **sizes, "ratio": round(found / measured, 2)}


def memory(names: list[Path], text: str) -> Iterator[dict[str, Any]]:
    for name, widths in zip(
        names, ((100, 400, 1000, 3000), (10, 100, 200, 300)), strict=False
    ):
        for width in widths:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                yield {
                    "model": name.name,
                    **alone.submit(_peak, name, text, width).result(),
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["tables", "demo", "manuals"])
    parser.add_argument(
        "--demo", type=Path, default=Path("demo"), help="made by mia-batch demo"
    )
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[10, 20], help="of the demo's"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    for part in given.parts:
        if part == "tables":
            append_results("bounds", {"tables": on_tables()})
        elif part == "memory":
            texts = pl.read_parquet(given.demo / "corpus.parquet")["text"].head(30)
            names = [each for each in (given.demo / "model", MODEL) if each.is_dir()]
            append_results("bounds", {"memory": [*memory(names, " ".join(texts))]})
        elif not (given.demo if part == "demo" else MODEL).is_dir():
            print(f"{part} is skipped: its model is not here")
        else:
            for figures in (
                demo(given.demo, given.tokens) if part == "demo" else manuals()
            ):
                append_results("bounds", figures)


if __name__ == "__main__":
    main()
