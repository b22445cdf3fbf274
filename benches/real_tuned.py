"""A known truth on a real base: SmolLM2's weights, tuned on half of some passages.

The weights are taken out of the GGUF file, so the base is what its quantisation left of
SmolLM2. Which passages are learnt is drawn by coin, all are of one book, and so nothing
but memory of the training tells them apart. Each tuned model is audited beside the
base. The attack on text alone is computed from the ranks of the one pass: they say
which token greedy decoding gives at every point.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import torch
from benches.real_texts import PUBLIC, read_text

import mia_batch
from mia_batch.attacks import get
from mia_batch.attacks.from_samples import with_expected
from mia_batch.extras.tune.jobs import TrainedModel, finetune
from mia_batch.recipes import Recipe
from mia_batch.settings import nested
from mia_batch.stats.intervals import auc_interval, roc_curve

__all__ = [
    "audit_beside_base",
    "compute_auc",
    "draw_passages",
    "measure_tuned",
    "save_base",
    "tune",
]

BOOK = "Opticks"
RANK, RATE, BATCH = 16, 1e-3, 8
WITH_PROBABILITIES = (
    *("loss_v1", "loss_zlib_v1", "min_k_20_v1", "min_k_plus_plus_20_v1"),
    *("top_1_share_v1", "reference_difference_v1", "wbc_v1"),
)
TEXT_ALONE = ("token_hits_v1", "token_hits_less_expected_v1")


def draw_passages(n_passages: int, n_words: int, seed: int = 0) -> pl.DataFrame:
    """Draw passages of a book; half of them, by coin, are members."""
    (book,) = (text for text in PUBLIC if text.title == BOOK)
    content = read_text(book)
    if content is None:
        raise SystemExit(f"the package {book.package} is not installed")
    words = content.split()
    passages = [
        " ".join(words[start : start + n_words])
        for start in range(0, len(words) - n_words + 1, n_words)
    ]
    draw = Random(seed)
    members = [True, False] * (n_passages // 2)
    draw.shuffle(members)
    return pl.DataFrame(
        {"text": draw.sample(passages, len(members)), "member": members}
    )


def save_base(gguf: Path, folder: Path) -> Path:
    """Save the weights and the tokenizer of a GGUF file as a checkpoint in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = model.config
    if hasattr(config, "quantization_config"):  # it would not be saved with one
        del config.quantization_config
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    staging = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    plain.save_pretrained(staging)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(staging)
    staging.rename(folder)
    return folder


def score_text_alone(run: mia_batch.Run) -> pl.DataFrame:
    """Score texts by the tokens that greedy decoding gives at every point."""
    logprobs = run["logprobs"].filter(model="target")
    points = logprobs.select("target_id", "token_ids", "rank")
    points = points.explode("token_ids", "rank").drop_nulls("rank")
    answers = points.lazy().select(
        "target_id",
        model=pl.lit("target"),
        view=pl.lit("token"),
        words_candidate=1,
        leading_characters=(pl.col("rank") == 1).cast(pl.UInt32),
        characters_candidate=1,
        characters_reference=1,
        true_token=pl.col("token_ids").cast(pl.UInt64),
    )
    texts = logprobs.select("target_id").with_row_index("group")
    texts = texts.with_columns(counted=pl.lit(value=True))
    scores = with_expected(answers, texts).group_by("target_id")
    return scores.agg(get(name).expr.alias(name) for name in TEXT_ALONE).collect()


def compute_auc(scores: pl.DataFrame, attack: str) -> dict[str, float]:
    """Return the AUC of an attack with the ends of its interval, of texts that it scores."""
    scored = scores.filter(pl.col(attack).is_not_null())
    is_member = scored["member"].to_numpy()
    values = scored[attack].to_numpy()
    limits = auc_interval(values[is_member], values[~is_member])
    area = roc_curve(is_member, values).area
    numbers = {"auc": area, "low": limits.low, "high": limits.high}
    return {name: round(number, 3) for name, number in numbers.items()}


def measure_aucs(run: mia_batch.Run) -> list[dict[str, Any]]:
    """Return the AUC of each attack with its interval."""
    scores = run["scores"].join(score_text_alone(run), on="target_id")
    return [
        {"attack": attack, **compute_auc(scores, attack)}
        for attack in (*WITH_PROBABILITIES, *TEXT_ALONE)
    ]


def tune(base: Path, data: Path, target: Path, n_epochs: int) -> TrainedModel:
    """Tune a base on the members of some texts."""
    recipe = Recipe(
        epochs=n_epochs,
        learning_rate=RATE,
        rank=RANK,
        batch_size=BATCH,
        max_tokens=256,
    )
    return finetune(base=str(base), data=data, out=target, recipe=recipe)


def audit_beside_base(
    corpus: Path, target: Path, base: Path, out: Path, attacks: Sequence[str]
) -> mia_batch.Run:
    """Audit a tuned model by the log-probabilities that it and its base give."""
    settings = {
        "input": str(corpus),
        "model": str(target),
        "reference_model": str(base),
        "out": str(out),
        "engine": "transformers",
        "evidence": "logprobs",
        "attacks": [*attacks],
        "continue_strongest": 0,
        "report": False,
    }
    return mia_batch.audit(**nested(settings))


def measure_tuned(
    gguf: Path, folder: Path, epochs: list[int], n_passages: int, n_words: int
) -> Iterator[dict[str, Any]]:
    """Tune and audit; yield a row for each number of epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / "base"
    if not base.exists():
        save_base(gguf, base)
    corpus = folder / "passages.parquet"
    draw_passages(n_passages, n_words).write_parquet(corpus)
    for n_epochs in epochs:
        start = time.monotonic()
        target = folder / f"target-{n_epochs}"
        trained = tune(base, corpus, target, n_epochs)
        learnt = time.monotonic()
        out = folder / f"run-{n_epochs}"
        run = audit_beside_base(corpus, target, base, out, WITH_PROBABILITIES)
        yield {
            "epochs": n_epochs,
            "passages": n_passages,
            "words": n_words,
            "last_loss": round(trained.losses[-1]["loss"], 3),
            "seconds_to_tune": round(learnt - start),
            "seconds_to_audit": round(time.monotonic() - learnt),
            "aucs": measure_aucs(run),
        }
