"""How strong each attack is for its tokens, on models whose memory is known.

Windows of books are put into a model's training text 0, 1, 2, 4, ... 32 times by coin, among others
that are seen once. Then the model is audited in several ways, and every attack is measured at every
number of times seen, against the windows that were never seen. The best settings of this table are
those of the package; a later attack must beat it.

    python -m benches.power [--models NAME ...] [--whole] [--keep FOLDER]

``--whole`` decodes whole candidates, too, as the SaMIA paper does: this takes most of the time.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from itertools import product
from math import log2
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
from benches.pairs import DATA
from benches.results import append_results

import mia_batch
from mia_batch.attacks.probing import MATCHED_RARITY_ATTACKS, PROBE_ATTACKS
from mia_batch.demo.settings import DemoSettings
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.auditing import rescore
from mia_batch.stats.intervals import auc_interval
from mia_batch.stats.roc import roc_curve

RUNGS = (1, 2, 4, 8, 16, 32)
N_NEVER, N_RUNG, N_OTHERS, WORDS = 240, 48, 1500, 128
MODELS: dict[str, dict[str, Any]] = {
    "small": {"hidden": 128, "layers": 2},
    "medium": {"hidden": 256, "layers": 4},
    "faint": {"hidden": 256, "layers": 4, "learning_rate": 3e-4},
}
PROBES = [attack.name for attack in PROBE_ATTACKS]
MATCHED = [
    *(attack.name for attack in MATCHED_RARITY_ATTACKS),
    *("samia_matched_v1", "samia_matched_n2_v1", "samia_matched_n3_v1"),
]
WHOLE = ["samia_v1", "rouge_1_v1", "rouge_l_v1", "ngram_coverage_v1"]
GREY = ["loss_v1", "min_k_20_v1"]


def write_corpus(folder: Path, seed: int = 0) -> pl.DataFrame:
    """Cut the English books into windows and decide by coin how often each is seen."""
    draw = Random(seed)
    texts = []
    for book in sorted((DATA / "books").glob("*.txt")):
        if book.stem in ("don_quijote", "du_cote_de_chez_swann"):
            continue
        words = book.read_text("utf-8").split()
        starts = range(0, len(words) - WORDS + 1, WORDS)
        texts += [(" ".join(words[start : start + WORDS]), book.stem) for start in starts]
    draw.shuffle(texts)
    times = [0] * N_NEVER + [rung for rung in RUNGS for _ in range(N_RUNG)]
    draw.shuffle(times)
    asked = texts[: len(times)]
    corpus = pl.DataFrame(
        {"text": [text for text, _ in asked], "times": times, "book": [book for _, book in asked]}
    )
    corpus = corpus.with_columns(member=pl.col("times") > 0, document_id=pl.int_range(pl.len()))
    corpus.with_columns(pl.col("document_id").cast(pl.String)).write_parquet(
        folder / "corpus.parquet"
    )
    others = [text for text, _ in texts[len(times) : len(times) + N_OTHERS]]
    pl.DataFrame({"text": others}).write_parquet(folder / "others.parquet")
    return corpus


def train_model(folder: Path, corpus: pl.DataFrame, changed: dict[str, Any]) -> Path:
    """Train a model on windows as often as they are to be seen, in one pass."""
    from mia_batch.demo.train import new_model, save, train, train_tokenizer

    settings = replace(DemoSettings(context=512, epochs=1, seed=0), **changed)
    others = pl.read_parquet(folder / "others.parquet")["text"].to_list()
    seen = [
        text for text, times in corpus.select("text", "times").iter_rows() for _ in range(times)
    ]
    tokenizer = train_tokenizer([*corpus["text"], *others], settings.vocabulary)
    model = new_model(tokenizer, settings, hidden=settings.hidden, layers=settings.layers)
    rows = [tokenizer.encode(f"{text}<|end_of_text|>").ids for text in [*seen, *others]]
    print(f"training {model.num_parameters() / 1e6:.1f} million parameters, {len(rows):,} windows")
    train(model, rows, settings, 1, None)
    path = folder / "model"
    save(model, tokenizer, path)
    return path


def audit(
    folder: Path,
    name: str,
    attacks: list[str],
    **settings: Any,  # noqa: ANN401 - settings
) -> mia_batch.Run:
    return mia_batch.audit(
        input=str(folder / "corpus.parquet"),
        model=str(folder / "model"),
        out=str(folder / name),
        attacks=",".join(attacks),
        **settings,
    )


def tokens(run: mia_batch.Run, tokenizer: Tokenizer, **within: int) -> tuple[float, float]:
    """Tokens decoded and tokens of prompts, a text; of probes and samples that are scored."""
    samples = run.samples
    prompts = run.prompts.filter(pl.col("reason").is_null())
    for name, most in within.items():
        column = "view_index" if name == "probes" else "sample_index"
        samples = samples.filter(pl.col(column) < most)
        if name == "probes":
            prompts = prompts.filter(pl.col(column) < most)
    if samples.is_empty():
        return 0.0, 0.0
    joined = prompts.join(run.targets.select("target_id", "target", "prefix"), on="target_id")
    contexts = [
        prefix if cut is None else target.encode()[:cut].decode()
        for cut, target, prefix in joined.select("cut", "target", "prefix").iter_rows()
    ]
    given = sum(len(ids) for ids in tokenizer.encode_prompts(contexts))
    n_texts = run.targets.height
    return int(samples["n_tokens"].sum()) / n_texts, given / n_texts


def measured(
    run: mia_batch.Run, corpus: pl.DataFrame, attacks: list[str], **how: object
) -> list[dict[str, Any]]:
    """Rows of the table: one attack, one way of asking, one number of times seen."""
    scores = run.scores.join(
        corpus.select(pl.col("document_id").cast(pl.String), "times"), on="document_id"
    )
    rows = []
    for attack, rung in product(attacks, RUNGS):
        some = scores.filter(pl.col("times").is_in([0, rung]), pl.col(attack).is_not_null())
        member, value = (some["times"] > 0).to_numpy(), some[attack].to_numpy().astype(float)
        curve = roc_curve(member, value)
        limits = auc_interval(value[member], value[~member])
        rows.append(
            {"attack": attack, "times": rung, "auc": curve.area, "low": limits.low}
            | {"high": limits.high, "tpr_1": curve.at_fpr(0.01).tpr, **how}
        )
    return rows


def audits(folder: Path, corpus: pl.DataFrame, *, whole: bool) -> pl.DataFrame:
    """Audit one model in every way."""
    tokenizer = Tokenizer.load(str(folder / "model"))
    rows: list[dict[str, Any]] = []
    usual = dict.fromkeys(("probes", "samples", "probe_words"))

    def add(run: mia_batch.Run, attacks: list[str], **how: int) -> None:
        within = {name: most for name, most in how.items() if name in ("probes", "samples")}
        decoded, given = tokens(run, tokenizer, **within)
        spent = {"decoded": decoded, "prompted": given}
        rows.extend(measured(run, corpus, attacks, **usual | how | spent))

    grey = audit(folder, "grey", GREY, evidence="logprobs", engine="transformers")
    add(grey, GREY)
    matched = audit(folder, "matched", MATCHED, samples=5)
    for k in (1, 2, 5):
        add(rescore(matched.folder, samples=k), MATCHED, samples=k)
    if whole:
        add(audit(folder, "whole", WHOLE, samples=5, max_length=512), WHOLE, samples=5)
    asked: tuple[tuple[int, int | None], ...] = ((1, None), (3, None), (1, 5))
    for words, n in asked:
        name = f"probes-{words}-{n or 'greedy'}"
        run = audit(folder, name, PROBES, probes=32, probe_every=4, probe_words=words, samples=n)
        counts = (1,) if n is None else (1, 2, 5)
        for probes, k in product((2, 4, 8, 16, 32), counts):
            changed: dict[str, Any] = {"probes": probes}
            changed |= {} if n is None else {"samples": k}
            shown = {"probes": probes, "probe_words": words, "samples": 0 if n is None else k}
            run = rescore(run.folder, **changed)
            counted = tokens(run, tokenizer, probes=probes, samples=k)
            spent = {"decoded": counted[0], "prompted": counted[1]}
            rows.extend(measured(run, corpus, PROBES, **shown | spent))
    return pl.DataFrame(rows, infer_schema_length=None)


def times_until(rows: pl.DataFrame, auc: float) -> float | None:
    """Times seen at which the AUC is reached, between two rungs by their logarithm."""
    before = (0.5, 0.5)  # AUC of chance at half a time
    for times, found in rows.sort("times").select("times", "auc").iter_rows():
        if found >= auc:
            low_times, low = before
            share = (auc - low) / max(found - low, 1e-9)
            return float(2 ** (log2(low_times) + max(share, 0) * log2(times / low_times)))
        before = (times, found)
    return None


def summary(table: pl.DataFrame) -> pl.DataFrame:
    """One line an attack: its best way, when it reaches AUC 0.75, and tokens for 0.9 at 16."""
    lines = []
    ways = ["probes", "probe_words", "samples", "decoded", "prompted"]
    for (model, attack), rows in table.group_by("model", "attack", maintain_order=True):
        each = [(way, group) for way, group in rows.group_by(ways, maintain_order=True)]
        reached = [(times_until(group, 0.75) or np.inf, way) for way, group in each]
        best, way = min(reached, key=lambda item: (item[0], item[1][3] or 0))
        enough = rows.filter(pl.col("times") == 16, pl.col("auc") >= 0.9)["decoded"].min()
        lines.append(
            {"model": model, "attack": attack, "times_075": None if best == np.inf else best}
            | dict(zip(ways, way, strict=True))
            | {"tokens_09_at_16": enough}
        )
    return pl.DataFrame(lines, infer_schema_length=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=MODELS)
    parser.add_argument("--whole", action="store_true", help="whole candidates, too")
    parser.add_argument("--keep", type=Path, help="folder for corpus, models and runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        tables = []
        for name in given.models:
            folder = (given.keep or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            corpus = write_corpus(folder)
            if not (folder / "model").exists():
                train_model(folder, corpus, MODELS[name])
            tables.append(
                audits(folder, corpus, whole=given.whole).with_columns(model=pl.lit(name))
            )
    table = pl.concat(tables)
    table.write_parquet(Path(__file__).parent / "results" / "power.parquet")
    found = summary(table)
    with pl.Config(tbl_rows=-1, tbl_cols=-1, float_precision=2):
        print(found)
    append_results("power", {"summary": found.to_dicts()})


if __name__ == "__main__":
    main()
