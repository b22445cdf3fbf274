"""What else windows of manuals-47m show: beside a reference model, and as sets.

The model reads each window once, as ``benches.blackbox`` does: what that keeps is taken
from its file. A small reference model with the same tokenizer is trained here, on parts
of the same books that neither model saw otherwise, and that hold none of the windows.

* ``reference``: attacks with a reference model, at each number of copies.
* ``usage``: 40 windows, of which a known share was learnt 16 times, by ``fieller`` and ``duci``.
* ``agreement``: 40 windows learnt equally often; does PRISM certify that they never were? The
  reference model then learns some of the windows.
* ``masked``: sets that were learnt against as many that were not, by hidden words; the model is
  asked as ``masked_hits_v1`` asks, and, from the one pass, to go on where a hidden word
  begins.

With ``--small FOLDER`` the sets are of a small model that ``benches.power --grey
--keep`` left there with its own reference model: fewer windows, learnt 32 times at
most.

    python -m benches.manuals_sets [NAME ...] [--rows FILE] [--keep FOLDER] [--draws N]
        [--small FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from benches import blackbox
from benches.manuals import MODEL, Way, audited, by_copies, texts
from benches.results import append_results
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

import mia_batch
from mia_batch import Run, prompts
from mia_batch.attacks import families, get
from mia_batch.extras.sets.demo import DemoSettings, train
from mia_batch.inference.comparison import collection_test
from mia_batch.inference.estimates import (
    Flagged,
    contamination_rate,
    null_threshold,
    usage_share,
)
from mia_batch.inference.paired import agreement
from mia_batch.models.tokens import Tokenizer
from mia_batch.settings import Settings, nested
from mia_batch.stats.intervals import auc_difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.stats import Floats

ATTACK = "min_k_plus_plus_20_v1"
ALONE = ("loss_v1", ATTACK)
WITH_REFERENCE = tuple(
    attack.name
    for title in ("Reference models", "Base models, token by token")
    for attack in families()[title]
)
ASKED = {0: 200, 4: 80, 8: 80, 16: 100, 32: 50, 64: 50}  # windows that both models read
CHECKED = {0: 8, 16: 8, 64: 8}  # windows that an audit reads, for its seconds
ROW, PARTS = 256, 150  # tokens of a row that the reference model learns, and parts
SIZE = 40  # windows of a set whose share is asked for, or which is to be certified
CALIBRATION, NULLS, FPR = 50, 100, 0.05
SHARES = (0.0, 0.25, 0.5, 1.0)
EPOCHS, RATE = 4, 5e-4  # what the reference model learns for PRISM
ALL = dict.fromkeys((0, 1, 2, 4, 8, 16, 32, 64), 1000)
SIZES = (5, 10, 20, 30)
GREY = {"evidence": "logprobs", "engine": "transformers"}

Figure = dict[str, Any]


class Given:
    """What is asked about: windows of manuals-47m."""

    # Of a set whose share is asked for; calibration members
    size, known = (
        SIZE,
        CALIBRATION,
    )
    often = 64  # times at most that a window was learnt
    model = MODEL

    def __init__(self, folder: Path, draws: int, rows: pl.DataFrame) -> None:
        self.folder, self.draws = folder, draws
        self.rows = rows  # what the model gives each token of each window

    def texts(self, each: dict[int, int]) -> pl.DataFrame:
        return texts("windows", each)

    def audit(
        self, name: str, attacks: tuple[str, ...], each: dict[int, int], **how: Any
    ) -> Run:
        return audited(self.folder / name, "windows", Way((), attacks, how, each))

    def reference(self) -> Path:
        return reference(self.folder)

    def both(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Evidence by the reference model and by the audited one of windows that both read."""
        others = read_by(self, self.reference(), ASKED)
        return others, read_by_target(self, others)


class Small(Given):
    """What is asked about: windows of a small model of ``benches.power``."""

    size, known = 20, 28
    often = 32

    def __init__(self, folder: Path, draws: int, own: Path) -> None:
        super().__init__(folder, draws, pl.DataFrame())
        self.own, self.model = own, own / "model"

    def texts(self, each: dict[int, int]) -> pl.DataFrame:
        corpus = pl.read_parquet(self.own / "corpus.parquet").rename(
            {"times": "copies"}
        )
        return pl.concat(corpus.filter(copies=n).head(most) for n, most in each.items())

    def audit(
        self, name: str, attacks: tuple[str, ...], each: dict[int, int], **how: Any
    ) -> Run:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        self.texts(each).write_parquet(folder / "texts.parquet")
        own = {"model": str(self.model), "attacks": ",".join(attacks), "report": False}
        own |= {"input": str(folder / "texts.parquet"), "out": str(folder / "run")}
        return mia_batch.audit(**nested(own | how))

    def reference(self) -> Path:
        return self.own / "reference"

    def both(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        own = _evidence(Run(self.own / "grey"), self.texts(ALL)).filter(model="target")
        return read_by(self, self.reference(), ALL), own


def _evidence(run: Run, windows: pl.DataFrame) -> pl.DataFrame:
    names = run["scores"].select("target_id", "document_id")
    copies = windows.select("copies", pl.col("document_id").cast(pl.String))
    return run["logprobs"].join(names, on="target_id").join(copies, on="document_id")


def learn(
    model: Any, path: Path, seen: list[str], epochs: int, how: DemoSettings
) -> None:
    """Have a model learn texts, in rows of so many tokens, and save it."""
    tokenizer = AutoTokenizer.from_pretrained(model.name_or_path or MODEL)
    ids = [tokenizer(text)["input_ids"] for text in seen]
    rows = [each[at : at + ROW] for each in ids for at in range(0, len(each) - 1, ROW)]
    print(
        f"{path.name} learns {sum(map(len, rows)):,} tokens, {epochs} times", flush=True
    )
    train(model, rows, how, epochs, None, partial(print, flush=True))
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)


def reference(folder: Path) -> Path:
    """Train a small model with the same tokenizer on parts of the books that nobody has seen."""
    if not (path := folder / "reference").exists():
        sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2}
        own = {"initializer_range": 0.1, "dtype": "float32"}
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(MODEL, **sizes, **own))
        unseen = texts("parts", {0: PARTS})["text"].to_list()
        learn(model, path, unseen, 1, DemoSettings(seed=0))
    return path


def read_by(given: Given, path: Path, each: dict[int, int]) -> pl.DataFrame:
    """Evidence of some windows by a model that was trained here, as an audit has it."""
    run = given.audit(f"by-{path.name}", ALONE, each, **GREY, model=str(path))
    return _evidence(run, given.texts(each)).drop("target_id")


def read_by_target(given: Given, others: pl.DataFrame) -> pl.DataFrame:
    """Evidence of the same windows by manuals-47m, from what was kept of its one pass."""
    is_top = pl.col("logprob") >= pl.col("rival")
    columns = {
        "vocabulary_mean": "mean",
        "vocabulary_variance": "variance",
        "logprob": "logprob",
    }
    lists = [
        pl.concat_list(pl.lit(None, pl.Float32), name).alias(to)
        for to, name in columns.items()
    ]
    rows = (
        given.rows.sort("place")
        .with_columns(rank=(2 - is_top.cast(pl.Int64)).cast(pl.UInt32))
        .group_by("target_id")
        .agg("mean", "variance", "logprob", "rank", "true_token")
        .with_columns(*lists, rank=pl.concat_list(pl.lit(None, pl.UInt32), "rank"))
        .select("rank", *columns, document_id="target_id", tokens="true_token")
    )
    found = others.drop("rank", *columns).join(rows, on="document_id")
    same = found["token_ids"].list.slice(1).cast(pl.List(pl.Int64)) == found["tokens"]
    if not same.all():
        raise ValueError("the file of rows is of other tokens")
    return found.drop("tokens")


def scored(evidence: pl.DataFrame, attacks: tuple[str, ...]) -> pl.DataFrame:
    made = [get(name).expr.alias(name) for name in attacks]
    return evidence.group_by("document_id", "copies", maintain_order=True).agg(made)


def with_reference(given: Given) -> Iterator[Figure]:
    """AUC by copies, and what an audit of a few of the windows takes and says."""
    attacks = (*WITH_REFERENCE, *ALONE)
    others, own = given.both()
    others = others.select(own.columns).with_columns(model=pl.lit("reference"))
    scores = scored(pl.concat([own, others]), attacks)
    settings = GREY | {"reference_model": str(given.reference())}
    run = given.audit("checked", attacks, CHECKED, **settings)
    costs = run.attacks.select("attack", "tokens", "seconds").rows_by_key(
        "attack", named=True
    )
    joined = run["scores"].join(scores, on="document_id", suffix="_here")
    for attack in attacks:
        apart = (pl.col(attack) - pl.col(f"{attack}_here")).abs().max()
        row: Figure = {
            "texts": "windows",
            "attack": attack,
            "copies": by_copies(scores, attack),
        }
        row["texts"] += ", beside" if attack in ALONE else ""
        row["leads"] = {copies: _lead(scores, attack, copies) for copies in (4, 8, 16)}
        yield row | costs[attack][0] | {"apart_from_audit": joined.select(apart).item()}


def _lead(scores: pl.DataFrame, attack: str, copies: int) -> list[float] | None:
    """AUC less that of Min-K%++ on the same windows, with its 95 % interval."""
    if attack == ATTACK:
        return None
    some = scores.filter(pl.col("copies").is_in([0, copies])).drop_nulls(
        [attack, ATTACK]
    )
    found = auc_difference(
        (some["copies"] > 0).to_numpy(), *some.select(attack, ATTACK).to_numpy().T
    )
    if found.value is None or found.interval is None:
        return None
    return [round(x, 3) for x in (found.value, found.interval.low, found.interval.high)]


def usage(given: Given) -> Iterator[Figure]:
    """Estimate the share of a set that was learnt 16 times, from calibration data.

    Its members were learnt as often, or more often, which breaks what the estimates
    assume.
    """
    scores, size = scored(given.both()[1], ALONE), given.size
    by = {n: scores.filter(copies=n)[ATTACK].to_numpy() for n in (0, 16, given.often)}
    rng = np.random.default_rng(0)
    for known in (16, given.often):
        for share in SHARES:
            found: dict[str, list[tuple[float, ...]]] = {"fieller": [], "duci": []}
            for seed in range(given.draws):
                never, learnt = rng.permutation(by[0]), rng.permutation(by[16])
                n = round(share * size)
                asked = np.concatenate([learnt[:n], never[: size - n]])
                nulls, outside = (
                    never[size:][:NULLS],
                    never[size + NULLS :][:CALIBRATION],
                )
                members = learnt[size:][: given.known] if known == 16 else by[known]
                threshold = null_threshold(nulls, FPR)[1]
                flagged = (
                    Flagged(int((each > threshold).sum()), each.size)
                    for each in (asked, outside, members)
                )
                for one in (
                    contamination_rate(*flagged, blind_warns=False),
                    usage_share(asked, outside, members, seed=seed, blind_warns=False),
                ):
                    if (
                        one.value is not None
                        and one.low is not None
                        and one.high is not None
                    ):
                        found[one.method].append((one.value, one.low, one.high))
            for method, rows in found.items():
                case = {
                    "case": f"usage, {method}",
                    "calibration": known,
                    "share": share,
                }
                yield case | {"draws": given.draws} | _errors(np.array(rows), share)


def _errors(rows: Floats, share: float) -> Figure:
    value, low, high = rows.T
    covers = (low <= share) & (share <= high)
    figures = {"mean": value.mean(), "error": np.abs(value - share).mean()}
    figures |= {"largest_error": np.abs(value - share).max()}
    figures |= {"covers": covers.mean(), "width": (high - low).mean()}
    return {"estimates": len(rows)} | {
        name: round(float(x), 4) for name, x in figures.items()
    }


def certified(given: Given) -> Iterator[Figure]:
    """Count the sets that PRISM certifies at 0.05 as never learnt."""
    learnt = {0: 50, 16: 50, given.often: 50}
    chosen, first = given.texts(learnt), given.reference()
    if not (path := given.folder / "learnt").exists():
        how = DemoSettings(seed=0, learning_rate=RATE)
        model = AutoModelForCausalLM.from_pretrained(first)
        learn(model, path, chosen["text"].to_list(), EPOCHS, how)
    others, own = given.both()
    models = {
        "target": own,
        "reference": others,
        "learnt": read_by(given, path, learnt),
    }
    for attack in (ATTACK, "loss_v1"):
        table = chosen.select(pl.col("document_id").cast(pl.String), "copies")
        for name, evidence in models.items():
            made = scored(evidence, ALONE).select("document_id", **{name: attack})
            table = table.join(made, on="document_id")
        for copies in learnt:
            yield {"case": f"agreement, {attack}"} | _agreement(table, copies, given)


def _agreement(table: pl.DataFrame, copies: int, given: Given) -> Figure:
    draws, size = given.draws // 50, min(SIZE, 2 * given.size)
    own = table.filter(copies=copies).select("target", "reference", "learnt").to_numpy()
    found, limits, p_value = agreement(own, np.arange(len(own)))
    rng = np.random.default_rng(0)
    sets = [own[rng.permutation(len(own))[:size]] for _ in range(draws)]
    p_values = [agreement(each, np.arange(size))[2] for each in sets]
    figures = {
        "reference": found[0],
        "learnt": found[1],
        "low": limits[0],
        "high": limits[1],
    }
    return {
        "copies": copies,
        "windows": len(own),
        "sets": draws,
        "p_value": p_value,
    } | {
        **{name: round(float(x), 4) for name, x in figures.items()},
        "withheld": sum(each is None for each in p_values) / draws,
        "certified": (
            sum(each is not None and each <= 0.05 for each in p_values) / draws
        ),
    }


def _told(rows: pl.DataFrame) -> pl.DataFrame:
    """Share of the words that ``masked_hits_v1`` hides that the likeliest tokens spell, one by one.

    Where such a word begins the model goes on with it, greedily, if each of its tokens
    is the likeliest.
    """
    windows = blackbox.windows()
    n = Settings.model_fields["masked_words"].default
    words = prompts.cloze(windows, n=n, words="whitespace").filter(
        pl.col("reason").is_null()
    )
    words = words.join(windows, on="target_id").select(
        "target_id", "target", word="text"
    )
    start = pl.col("target").str.find(
        pl.concat_str(pl.lit(r"\b"), "word", pl.lit(r"\b"))
    )
    words = words.with_columns(
        at=start, end=start + pl.col("word").str.len_bytes()
    ).drop_nulls()
    tokenizer, encoded = (
        Tokenizer.load(str(MODEL)),
        [each.encode() for each in words["target"]],
    )
    places = {
        name: tokenizer.count_tokens(
            [
                text[:cut].decode().rstrip(" ")
                for text, cut in zip(encoded, words[name], strict=True)
            ]
        )
        for name in ("at", "end")
    }
    words = words.with_columns(pl.Series(name, each) for name, each in places.items())
    top = rows.select("target_id", "place", top=pl.col("logprob") >= pl.col("rival"))
    inside = words.join(top, on="target_id").filter(
        (pl.col("place") >= pl.col("at")) & (pl.col("place") < pl.col("end"))
    )
    hits = inside.group_by("target_id", "word").agg(hit=pl.col("top").all().cast(float))
    return hits.group_by(document_id="target_id").agg(score=pl.col("hit").mean())


def masked(given: Given) -> Iterator[Figure]:
    """How often a set of windows that were learnt has p <= 0.05 against as many that were not."""
    each = {0: 60, 16: 30, 32: 30, given.often: 30}
    how = {"evidence": "samples", "engine": "vllm"}
    run = given.audit("masked", ("masked_hits_v1",), each, **how)
    copies = given.texts(ALL).select("copies", pl.col("document_id").cast(pl.String))
    made = {"asked": run["scores"].select("document_id", score="masked_hits_v1")}
    if given.rows.height:
        made["went on"] = _told(given.rows)
    made["one pass"] = scored(given.both()[1], ALONE).select(
        "document_id", score=ATTACK
    )
    for name, scores in made.items():
        yield from _tested(
            name, scores.join(copies, on="document_id"), [*each], given.draws
        )
    costs = run.attacks.row(0, named=True)
    yield {
        "case": "masked, asked",
        "tokens": costs["tokens"],
        "seconds": costs["seconds"],
    }


def _tested(
    name: str, table: pl.DataFrame, times: list[int], draws: int
) -> Iterator[Figure]:
    rng = np.random.default_rng(0)
    by: dict[int, Floats] = {
        n: table.filter(copies=n)["score"].to_numpy() for n in times
    }
    for copies, own in by.items():
        figure = {"case": f"masked, {name}", "copies": copies, "windows": len(own)}
        figure["mean"] = round(float(own.mean()), 4)
        for n in SIZES:
            p_values = []
            for seed in range(draws):
                nulls = rng.permutation(by[0])
                asked = nulls[n:] if copies == 0 else rng.permutation(own)
                p_values.append(collection_test(asked[:n], nulls[:n], seed).p_value)
            figure[f"found of {n}"] = float(np.mean(np.array(p_values) <= 0.05))
        yield figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cases = {"reference": with_reference, "usage": usage}
    cases |= {"agreement": certified, "masked": masked}
    parser.add_argument("what", nargs="*", default=[*cases])
    parser.add_argument("--rows", type=Path, help="file of benches.blackbox --keep")
    parser.add_argument(
        "--keep", type=Path, help="folder of models and runs, used again"
    )
    parser.add_argument(
        "--small", type=Path, help="a small model's folder of benches.power --keep"
    )
    parser.add_argument(
        "--draws", type=int, default=1000, help="sets drawn of each kind"
    )
    given = parser.parse_args()
    if not MODEL.is_dir():
        print("skipped: there is no ../shared/models/manuals-47m")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        here: Given
        if given.small:
            here = Small(folder, given.draws, given.small)
        else:
            known = given.rows is not None and given.rows.exists()
            rows = (
                pl.read_parquet(given.rows)
                if known
                else blackbox.read(blackbox.windows())
            )
            here = Given(folder, given.draws, rows)
        for what in given.what:
            figures = [*cases[what](here)]
            for figure in figures:
                print(figure, flush=True)
            if what == "reference":
                append_results("manuals", {"way": "reference model", "rows": figures})
            else:
                model = {"model": given.small.name} if given.small else {}
                append_results(
                    "manuals_sets", {"what": what, "figures": figures} | model
                )


if __name__ == "__main__":
    main()
