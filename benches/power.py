"""How strong each attack is for its tokens, on models whose memory is known.

Windows of books are put into a model's training text 0, 1, 2, 4, ... 32 times by coin,
among others that are seen once. Then the model is audited in several ways. Every attack
is measured at every number of times seen, against the windows that were never seen, and
beside the default on the same texts. The default was chosen on the models of seed 0;
those named ``held_out`` confirm it. With ``--grey`` only the default and the attacks on
log-probabilities are measured anew.

    python -m benches.power [--models NAME ...] [--keep FOLDER] [--grey]

``benches.power_report`` prints and draws the stored table.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
from benches.pairs import DATA
from benches.power_report import DEFAULT_WAY, TABLE, report
from benches.results import append_results

import mia_batch
from mia_batch.attacks import defaults
from mia_batch.attacks.from_samples import MATCHED_RARITY_ATTACKS, PETAL_ATTACKS
from mia_batch.extras.sets.demo import DemoSettings
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.audits import rescore
from mia_batch.settings import nested
from mia_batch.stats.intervals import auc_difference, auc_interval, roc_curve

RUNGS = (1, 2, 4, 8, 16, 32)
N_NEVER, N_RUNG, N_OTHERS, WORDS = 240, 48, 1500, 128
FOREIGN = ("don_quijote", "du_cote_de_chez_swann")
MODELS: dict[str, dict[str, Any]] = {
    "small": {"hidden": 128, "layers": 2},
    "medium": {"hidden": 256, "layers": 4},
    "faint": {"hidden": 256, "layers": 4, "learning_rate": 1e-5},
    "held_out_small": {"hidden": 192, "layers": 2, "seed": 1},
    "held_out_wide": {"hidden": 256, "layers": 1, "seed": 2},
    "held_out_foreign": {"hidden": 128, "layers": 2, "seed": 3},
}
PETAL = [attack.name for attack in PETAL_ATTACKS]
PROBES = [name for name in defaults("default") if name.startswith("probe_")] + PETAL
MATCHED = [
    *(attack.name for attack in MATCHED_RARITY_ATTACKS),
    *("samia_matched_v1", "samia_matched_n2_v1", "samia_matched_n3_v1"),
]
WHOLE = ["samia_v1", "rouge_1_v1", "rouge_l_v1", "ngram_coverage_v1"]
GREY = [
    *("loss_v1", "min_k_20_v1", "min_k_plus_plus_20_v1", "gap_k_20_v1"),
    *(
        "pdr_loss_v1",
        "pdr_min_k_20_v1",
        "pdr_min_k_plus_plus_20_v1",
        "aeca_v1",
        "pac_v1",
    ),
]
# A reference model
BESIDE = [
    "informia_v1",
    "reference_difference_v1",
    "ez_mia_v1",
    "wbc_v1",
]
COSTS = ["attack", "tokens", "seconds"]
SAMPLES, MOST_TOKENS = 5, 256  # of whole candidates, instead of the paper's 10 of 1,024
# Words, samples (None: greedy), most points
Asked = tuple[tuple[int, int | None, int], ...]
ASKED: Asked = ((1, None, 120), (3, None, 16), (1, SAMPLES, 16))
ASKED_ELSEWHERE: Asked = ((1, None, 32),)
# Models on which all ways are tried; on others the default's alone
GRID_OF = (
    "small",
    "medium",
)


def write_corpus(folder: Path, model: str) -> pl.DataFrame:
    """Cut books into windows and decide by coin how often each is seen."""
    draw = Random(MODELS[model].get("seed", 0))
    texts = []
    for book in sorted((DATA / "books").glob("*.txt")):
        if (book.stem in FOREIGN) != (model == "held_out_foreign"):
            continue
        words = book.read_text("utf-8").split()
        starts = range(0, len(words) - WORDS + 1, WORDS)
        texts += [
            (" ".join(words[start : start + WORDS]), book.stem) for start in starts
        ]
    draw.shuffle(texts)
    times = [0] * N_NEVER + [rung for rung in RUNGS for _ in range(N_RUNG)]
    draw.shuffle(times)
    asked = texts[: len(times)]
    corpus = pl.DataFrame(
        {
            "text": [text for text, _ in asked],
            "times": times,
            "book": [book for _, book in asked],
        }
    )
    corpus = corpus.with_columns(
        member=pl.col("times") > 0, document_id=pl.int_range(pl.len())
    )
    corpus.with_columns(pl.col("document_id").cast(pl.String)).write_parquet(
        folder / "corpus.parquet"
    )
    others = [text for text, _ in texts[len(times) : len(times) + N_OTHERS]]
    pl.DataFrame({"text": others}).write_parquet(folder / "others.parquet")
    return corpus


def train_model(
    path: Path,
    texts: list[str],
    seen: list[str],
    changed: dict[str, Any],
    end: str = "<|end_of_text|>",
) -> None:
    """Train a tokenizer on all texts, and a model on those that it is to see, in one pass."""
    from mia_batch.extras.sets.demo import new_model, save, train, train_tokenizer

    settings = replace(DemoSettings(context=512, epochs=1, seed=0), **changed)
    tokenizer = train_tokenizer(texts, settings.vocabulary)
    model = new_model(
        tokenizer, settings, hidden=settings.hidden, layers=settings.layers
    )
    rows = [tokenizer.encode(f"{text}{end}").ids for text in seen]
    print(
        f"training {model.num_parameters() / 1e6:.1f} million parameters, {len(rows):,}"
        " windows"
    )
    train(model, rows, settings, 1, None)
    save(model, tokenizer, path)


def train_models(folder: Path, corpus: pl.DataFrame, model: str) -> None:
    """Train the model, and a smaller one that saw no asked window, for attacks that need it."""
    others = pl.read_parquet(folder / "others.parquet")["text"].to_list()
    texts = [*corpus["text"], *others]
    often = corpus.select(pl.col("text").repeat_by("times").list.explode()).drop_nulls()
    train_model(folder / "model", texts, [*often["text"], *others], MODELS[model])
    train_model(folder / "reference", texts, others, {"hidden": 64, "layers": 1})


def audit(
    folder: Path,
    name: str,
    attacks: list[str],
    **settings: Any,
) -> mia_batch.Run:
    if set(attacks) & {*PETAL, *BESIDE}:
        settings["reference_model"] = str(folder / "reference")
    began = time.monotonic()
    run = mia_batch.audit(
        **nested(
            dict(
                input=str(folder / "corpus.parquet"),
                model=str(folder / "model"),
                out=str(folder / name),
                attacks=",".join(attacks),
                **settings,
            )
        )
    )
    print(f"{folder.name}, {name}: {time.monotonic() - began:.0f} s", flush=True)
    return run


def tokens(run: mia_batch.Run, tokenizer: Tokenizer, **within: int) -> dict[str, float]:
    """Tokens that the audited model decodes and is given, a text; of what is scored."""
    samples = run["samples"].filter(model="target")
    prompts = run["prompts"].filter(pl.col("reason").is_null(), model="target")
    for name, most in within.items():
        column = "view_index" if name == "probes" else "sample_index"
        samples = samples.filter(pl.col(column) < most)
        if name == "probes":
            prompts = prompts.filter(pl.col(column) < most)
    if samples.is_empty():
        return {"decoded": 0.0, "prompted": 0.0}
    joined = prompts.join(
        run["targets"].select("target_id", "target", "prefix"), on="target_id"
    )
    contexts = [
        prefix if cut is None else target.encode()[:cut].decode()
        for cut, target, prefix in joined.select("cut", "target", "prefix").iter_rows()
    ]
    given = sum(len(ids) for ids in tokenizer.encode_prompts(contexts))
    n = run["targets"].height
    return {"decoded": int(samples["n_tokens"].sum()) / n, "prompted": given / n}


def measured(
    scores: pl.DataFrame, attacks: list[str], **how: object
) -> list[dict[str, Any]]:
    """Rows of the table: one attack, one way of asking, one number of times seen.

    ``difference`` is the AUC of the default less the attack's, on the same texts.
    """
    rows = []
    for attack, rung in product(attacks, RUNGS):
        some = scores.filter(
            pl.col("times").is_in([0, rung]), pl.col(attack).is_not_null()
        )
        member = (some["times"] > 0).to_numpy()
        value, default = (
            some[name].to_numpy().astype(float) for name in (attack, "default")
        )
        curve = roc_curve(member, value)
        limits = auc_interval(value[member], value[~member])
        gap = auc_difference(member, default, value)
        row = {
            "attack": attack,
            "times": rung,
            "auc": curve.area,
            "auc_low": limits.low,
        }
        row |= {"auc_high": limits.high, "tpr_1": curve.at_fpr(0.01).tpr}
        row |= {"difference": gap.value, "method": None, "low": None, "high": None}
        if gap.interval:
            row |= {
                name: getattr(gap.interval, name) for name in ("method", "low", "high")
            }
        rows.append(row | how)
    return rows


def audits(folder: Path, corpus: pl.DataFrame, *, grey: bool) -> pl.DataFrame:
    """Audit one model in every way, or by default and by log-probabilities alone."""
    tokenizer = Tokenizer.load(str(folder / "model"))
    times = corpus.select(pl.col("document_id").cast(pl.String), "times")
    rows: list[dict[str, Any]] = []
    default = pl.DataFrame()

    def add(run: mia_batch.Run, attacks: list[str], **how: int | None) -> None:
        nonlocal default
        scores = run["scores"].join(times, on="document_id")
        if how == DEFAULT_WAY:
            default = scores.select("document_id", default=pl.col(attacks[0]))
        within = {
            name: most for name, most in how.items() if most and name != "probe_words"
        }
        scores = scores.join(default, on="document_id")
        rows.extend(
            measured(scores, attacks, **how, **tokens(run, tokenizer, **within))
        )

    for words, samples, most in (
        ASKED if folder.name in GRID_OF and not grey else ASKED_ELSEWHERE
    ):
        name = f"probes-{words}-{samples or 'greedy'}"
        points = {"probes": most, "probe_words": words, "samples": samples}
        run = audit(folder, name, PROBES, **points)
        counts = (None,) if samples is None else (1, 2, samples)
        for probes, k in product(
            (32, 2, 4, 8, 16, 64, 96, 120), counts
        ):  # the default first
            if probes <= most:
                run = rescore(run.folder, **nested({"probes": probes, "samples": k}))
                add(run, PROBES, probes=probes, probe_words=words, samples=k)
    sampled: tuple[tuple[str, list[str], dict[str, Any]], ...] = (
        ("matched", MATCHED, {}),
        ("whole", WHOLE, {"max_length": MOST_TOKENS}),
    )
    for name, attacks, changed in () if grey else sampled:
        run = audit(folder, name, attacks, samples=SAMPLES, **changed)
        for k in (1, 2, SAMPLES):
            add(
                rescore(run.folder, **nested({"samples": k})),
                attacks,
                probes=None,
                probe_words=None,
                samples=k,
            )
    own = {"engine": "transformers", "frequencies_from": str(folder / "others.parquet")}
    run = audit(folder, "grey", [*GREY, *BESIDE], evidence="logprobs", **own)
    add(run, [*GREY, *BESIDE], probes=None, probe_words=None, samples=None)
    return pl.DataFrame(rows, infer_schema_length=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=MODELS)
    parser.add_argument(
        "--keep", type=Path, help="folder for corpus, models, runs and tables"
    )
    parser.add_argument(
        "--grey", action="store_true", help="the default and log-probabilities"
    )
    given = parser.parse_args()
    if not DATA.is_dir():
        print("skipped: no real text in ../shared/data")
        return
    with tempfile.TemporaryDirectory() as scratch:
        tables, costs = [], {}
        for name in given.models:
            folder = (given.keep or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            corpus = write_corpus(folder, name)
            if not (folder / "model").exists():
                train_models(folder, corpus, name)
            if not (folder / "table.parquet").exists():
                audits(folder, corpus, grey=given.grey).write_parquet(
                    folder / "table.parquet"
                )
            table = pl.read_parquet(folder / "table.parquet")
            costs[name] = (
                mia_batch.Run(folder / "grey").attacks.select(COSTS).to_dicts()
            )
            tables.append(table.with_columns(model=pl.lit(name)))
    if TABLE.exists():  # what is not measured anew stays
        before = pl.read_parquet(TABLE)
        if given.grey:
            tables = [
                each.select(before.columns).cast(before.schema) for each in tables
            ]
            same = ["model", "attack", *DEFAULT_WAY]
            before = before.join(
                pl.concat(tables), on=same, how="anti", nulls_equal=True
            )
        else:
            before = before.filter(~pl.col("model").is_in(given.models))
        tables.append(before)
    table = pl.concat(tables).sort(
        pl.col("model").replace_strict([*MODELS], range(len(MODELS))),
        maintain_order=True,
    )
    table.write_parquet(TABLE)
    models = {name: MODELS[name] for name in table["model"].unique(maintain_order=True)}
    append_results("power", {"models": models, "costs": costs} | report(table))


if __name__ == "__main__":
    main()
