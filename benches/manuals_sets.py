"""What sets of windows of manuals-47m show: how many were learnt (DUCI, MC-PDD), or none (PRISM).

Each window is read once by the model of ``benches.manuals``, by its reference model there and, for
PRISM, by the reference model after it learnt some of the windows. Sets are drawn from them.

* ``usage``: 40 windows, of which a known share was learnt 16 times, by ``fieller`` and ``duci``.
* ``agreement``: 40 windows learnt equally often; is it certified that they never were?
* ``masked``: sets that were learnt against as many that were not, by hidden words; the model is
  asked as ``masked_hits_v1`` asks, and, from the one pass, to go on where a hidden word begins.

    python -m benches.manuals_sets [usage] [agreement] [masked] [--keep FOLDER] [--draws N]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from benches.manuals import MODEL, WAYS, Way, audited, learn, reference, texts, with_reference
from benches.results import append_results
from transformers import AutoModelForCausalLM

from mia_batch import prompts
from mia_batch.extras.sets.demo import DemoSettings
from mia_batch.inference.comparison import collection_test
from mia_batch.inference.estimates import (
    Flagged,
    contamination_rate,
    null_threshold,
    usage_share,
)
from mia_batch.inference.paired import agreement
from mia_batch.models.tokens import Tokenizer
from mia_batch.settings import Settings
from mia_batch.stats import Floats

ATTACK = "min_k_plus_plus_20_v1"
SIZE = 40  # windows of a set whose share is asked for, or which is to be certified
CALIBRATION, NULLS, FPR = 50, 100, 0.05
SHARES = (0.0, 0.25, 0.5, 1.0)
LEARNT = {0: 50, 16: 50, 64: 50}  # windows that the reference model learns for PRISM
EPOCHS, RATE = (4,), 5e-4
MASKED = {0: 60, 16: 30, 32: 30, 64: 30}  # windows whose hidden words are asked for
SIZES = (5, 10, 20, 30)

Figure = dict[str, Any]


def one_pass(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Scores of all windows with their copies, and what was read of each token."""
    way = with_reference(WAYS["reference model"], folder)
    run = audited(folder / "reference-model" / "windows", "windows", way)
    copies = texts("windows", way.each).select("document_id", "copies", "text")
    scores = run["scores"].join(copies, on="document_id")
    return scores, run["logprobs"].filter(model="target", view="text")


def usage(folder: Path, draws: int) -> Iterator[Figure]:
    """Estimate the share of a set that was learnt 16 times, from calibration data.

    Its members were learnt as often, or 64 times, which breaks what the estimates assume.
    """
    scores, _ = one_pass(folder)
    by = {n: scores.filter(copies=n)[ATTACK].to_numpy() for n in (0, 16, 64)}
    rng = np.random.default_rng(0)
    for known in (16, 64):
        for share in SHARES:
            found: dict[str, list[tuple[float, float, float]]] = {"fieller": [], "duci": []}
            for seed in range(draws):
                never, learnt = rng.permutation(by[0]), rng.permutation(by[16])
                n = round(share * SIZE)
                asked = np.concatenate([learnt[:n], never[: SIZE - n]])
                nulls, outside = never[SIZE:][:NULLS], never[SIZE + NULLS :][:CALIBRATION]
                members = learnt[SIZE:][:CALIBRATION] if known == 16 else by[known]
                threshold = null_threshold(nulls, FPR)[1]
                flagged = (
                    Flagged(int((each > threshold).sum()), each.size)
                    for each in (asked, outside, members)
                )
                for one in (
                    contamination_rate(*flagged, blind_warns=False),
                    usage_share(asked, outside, members, seed=seed, blind_warns=False),
                ):
                    if one.value is not None:
                        found[one.method].append((one.value, one.low, one.high))
            for method, rows in found.items():
                value, low, high = np.array(rows).T
                yield {
                    "case": f"usage, {method}",
                    "calibration members learnt": known,
                    "share": share,
                    "draws": draws,
                    "estimates": len(rows),
                    "mean": value.mean(),
                    "error": np.abs(value - share).mean(),
                    "largest_error": np.abs(value - share).max(),
                    "covers": ((low <= share) & (share <= high)).mean(),
                    "width": (high - low).mean(),
                }


def certified(folder: Path, draws: int) -> Iterator[Figure]:
    """Count the sets that PRISM certifies at 0.05 as never learnt."""
    chosen = texts("windows", LEARNT)
    table, _ = one_pass(folder)
    table = table.select("document_id", "copies", target=ATTACK).join(
        chosen.select("document_id"), on="document_id"
    )
    models = {"reference": reference(folder)}
    for epochs in EPOCHS:
        path = folder / f"learnt-{epochs}"
        if not path.exists():
            model = AutoModelForCausalLM.from_pretrained(models["reference"])
            how = DemoSettings(seed=0, learning_rate=RATE)
            learn(model, path, chosen["text"].to_list(), epochs, how)
        models[path.name] = path
    for name, path in models.items():
        way = Way(("windows",), (ATTACK,), {**WAYS["one pass"].settings, "model": str(path)})
        way = way._replace(each=LEARNT)
        made = audited(folder / f"by-{name}", "windows", way)["scores"]
        table = table.join(made.select("document_id", **{name: ATTACK}), on="document_id")
    rng = np.random.default_rng(0)
    for name in [*models][1:]:
        for copies in LEARNT:
            own = table.filter(copies=copies).select("target", "reference", name).to_numpy()
            correlations, limits, p_value = agreement(own, np.arange(len(own)))
            p_values = [
                agreement(own[rng.permutation(len(own))[:SIZE]], np.arange(SIZE))[2]
                for _ in range(draws)
            ]
            yield {
                "case": f"agreement, {name.replace('-', ' ')} times by the reference model",
                "copies": copies,
                "windows": len(own),
                "reference": correlations[0],
                "learnt": correlations[1],
                "low": limits[0],
                "high": limits[1],
                "p_value": p_value,
                "sets": draws,
                "no_p_value": sum(each is None for each in p_values) / draws,
                "certified": sum(each is not None and each <= 0.05 for each in p_values) / draws,
            }


def _hidden_words(asked: pl.DataFrame) -> pl.DataFrame:
    """Say where the words begin and end, in bytes of the text, that ``masked_hits_v1`` hides."""
    rows = asked.select("target_id", target="text")
    n = Settings.model_fields["masked_words"].default
    made = prompts.cloze(rows, n=n, words="whitespace").filter(pl.col("reason").is_null())
    made = made.join(rows, on="target_id").select("target_id", "target", word="text")
    word = pl.col("target").str.find(pl.concat_str(pl.lit(r"\b"), "word", pl.lit(r"\b")))
    return made.with_columns(start=word, end=word + pl.col("word").str.len_bytes())


def _told(read: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    """Share of hidden words that the likeliest tokens spell where the word begins, by the pass."""
    tokenizer = Tokenizer.load(str(MODEL))
    words = _hidden_words(asked).drop_nulls().join(read.select("target_id", "rank"), on="target_id")
    whole = words["target"].to_list()
    ends = [
        tokenizer.count_tokens(
            [
                text.encode()[:cut].decode().rstrip(" ")
                for text, cut in zip(whole, cuts, strict=True)
            ]
        )
        for cuts in (words["start"], words["end"])
    ]
    ranks = words["rank"].to_list()
    right = [all(r == 1 for r in rank[a:b]) for rank, a, b in zip(ranks, *ends, strict=True)]
    hits = words.with_columns(hit=pl.Series(right, dtype=pl.Float64))
    return hits.group_by("target_id").agg(score=pl.col("hit").mean())


def masked(folder: Path, draws: int) -> Iterator[Figure]:
    """How often a set of windows that were learnt has p <= 0.05 against as many that were not."""
    scores, read = one_pass(folder)
    way = Way(("windows",), ("masked_hits_v1",), {"evidence": "samples", "engine": "vllm"}, MASKED)
    run = audited(folder / "masked", "windows", way)
    costs = run.attacks.row(0, named=True)
    answered = run["scores"].select("document_id", score="masked_hits_v1")
    told = _told(read, scores).join(scores.select("target_id", "document_id"), on="target_id")
    for name, made in (("asked", answered), ("went on", told), ("one pass", None)):
        table = scores.select("document_id", "copies", score=ATTACK)
        if made is not None:
            table = table.drop("score").join(made.select("document_id", "score"), on="document_id")
        yield from _tested(name, table.drop_nulls(), draws)
    yield {"case": "masked, asked", "tokens": costs["tokens"], "seconds": costs["seconds"]}


def _tested(name: str, table: pl.DataFrame, draws: int) -> Iterator[Figure]:
    rng = np.random.default_rng(0)
    by: dict[int, Floats] = {n: table.filter(copies=n)["score"].to_numpy() for n in MASKED}
    for copies, own in by.items():
        figure = {"case": f"masked, {name}", "copies": copies, "windows": len(own)}
        figure["mean"] = own.mean()
        for n in SIZES:
            p_values = []
            for seed in range(draws if 2 * n <= len(by[0]) else 0):
                nulls = rng.permutation(by[0])
                asked = nulls[n:] if copies == 0 else rng.permutation(own)
                p_values.append(collection_test(asked[:n], nulls[:n], seed).p_value)
            figure[f"found of {n}"] = float(np.mean(np.array(p_values) <= 0.05))
        yield figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cases = {"usage": usage, "agreement": certified, "masked": masked}
    parser.add_argument("what", nargs="*", default=[*cases])
    parser.add_argument(
        "--keep", type=Path, help="folder of models and runs, as of benches.manuals"
    )
    parser.add_argument("--draws", type=int, default=1000, help="sets drawn of each kind")
    given = parser.parse_args()
    if not MODEL.is_dir():
        print("skipped: there is no ../shared/models/manuals-47m")
        return
    with tempfile.TemporaryDirectory() as scratch:
        for what in given.what:
            figures = [*cases[what](given.keep or Path(scratch), given.draws)]
            for figure in figures:
                print(figure, flush=True)
            append_results("manuals_sets", {"what": what, "figures": figures})


if __name__ == "__main__":
    main()
