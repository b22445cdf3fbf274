"""Figures of texts from their per-token log-probabilities, and classifiers learnt on them.

What a classifier reads of a text are figures of its own tokens and, of tuned models, of
what these have gained over the base. The figures are standardised within each model,
over all of its asked texts and without their labels. A classifier that is asked about a
model has seen neither that model nor its texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

import mia_batch
from mia_batch.stats.intervals import estimate_auc

__all__ = [
    "CLASSIFIERS",
    "Asked",
    "learn",
    "measure_lead",
    "read_asked",
    "standardise",
]

Floats: TypeAlias = NDArray[np.float64]
Scorer: TypeAlias = "Callable[[Asked], Floats]"
QUANTILES = (5, 10, 25, 50, 75, 90, 95)
WINDOW = 10
LOWEST = 0.2
CERTAIN = 2.0  # nats of entropy
TOKEN_FIGURES = (
    *("logprob", "entropy", "deviation", "log_rank", "top_logprob"),
    *("base", "gain"),
)
LONGEST = 128  # tokens of a text that the network sees, as in the paper
BATCH, PASSES = 64, 8


def _lowest(values: Floats) -> Floats:
    return np.sort(values)[: max(1, int(values.size * LOWEST))]


def _best_window(values: Floats) -> float:
    if values.size < WINDOW:
        return float(values.mean())
    return float(np.convolve(values, np.full(WINDOW, 1 / WINDOW), "valid").max())


def _slope(values: Floats) -> float:
    places = np.linspace(-1, 1, values.size)
    return float(places @ values / (places @ places))


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if values.size else 0.0


def _spread(name: str, values: Floats) -> dict[str, float]:
    quantiles = np.percentile(values, QUANTILES)
    names = [f"{name}_{percent}" for percent in QUANTILES]
    numbers = dict(zip(names, map(float, quantiles), strict=True))
    numbers |= {f"{name}_mean": _mean(values), f"{name}_deviation": float(values.std())}
    numbers |= {f"{name}_best": _best_window(values), f"{name}_slope": _slope(values)}
    return numbers


def _longest_run(is_hit: NDArray[np.bool_]) -> float:
    misses = np.flatnonzero(np.concatenate(([True], ~is_hit, [True])))
    return float(np.diff(misses).max() - 1)


def _list_tokens(row: dict[str, Any]) -> Floats:
    """Return `TOKEN_FIGURES` of a text's tokens; without a base what reads it is NaN."""
    columns = ("logprob", "vocabulary_mean", "vocabulary_variance", "rank")
    numbers = np.array([row[name] for name in (*columns, "top_logprob")], dtype=float)
    logprob, expected, variance, rank, top = numbers
    base = np.full_like(logprob, np.nan)
    if row["base"] is not None:
        base = np.array(row["base"], dtype=float)
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    figures = (logprob, -expected, deviation, np.log(rank), top, base, logprob - base)
    return np.array(figures)[:, np.isfinite(numbers).all(0)]


def _describe_text(tokens: Floats, zlib_size: int) -> dict[str, float]:
    """Compute figures of a text under one model, and of its gain over a base."""
    logprob, entropy, deviation, log_rank, top, base, gain = tokens
    standard = (logprob + entropy) / deviation
    gap = (logprob - top) / deviation
    figures = _spread("logprob", logprob) | _spread("standard", standard)
    figures |= {
        "logprob_lowest": _mean(_lowest(logprob)),
        "standard_lowest": _mean(_lowest(standard)),
        "gap": _mean(gap),
        "gap_lowest": _mean(_lowest(gap)),
        "log_rank": _mean(log_rank),
        "first": _mean(log_rank == 0),
        "first_10": _mean(log_rank <= np.log(10)),
        "longest_first": _longest_run(log_rank == 0),
        "entropy": _mean(entropy),
        "excess": _mean(logprob + entropy),
        "certain": _mean(logprob[entropy < CERTAIN]),
        "zlib": float(logprob.sum()) / zlib_size,
    }
    figures = {f"text_{name}": value for name, value in figures.items()}
    if np.isnan(base).any():
        return figures
    gains = _describe_gain(gain, base, is_first=log_rank == 0, deviation=deviation)
    return figures | {f"gain_{name}": value for name, value in gains.items()}


def _describe_gain(
    gain: Floats, base: Floats, *, is_first: NDArray[np.bool_], deviation: Floats
) -> dict[str, float]:
    by_base = gain[np.argsort(base)]
    fifth = max(1, int(gain.size * LOWEST))
    return _spread("gain", gain) | {
        "base": _mean(base),
        "share": _mean(gain > 0),
        "above_half": _mean(gain > 0.5),
        "above_1": _mean(gain > 1),
        "gains": _mean(np.maximum(gain, 0)),
        "losses": _mean(np.minimum(gain, 0)),
        "of_errors": _mean(gain[~is_first]),
        "of_hits": _mean(gain[is_first]),
        "hardest": _mean(by_base[:fifth]),
        "middle": _mean(by_base[fifth:-fifth]),
        "easiest": _mean(by_base[-fifth:]),
        "worst": -_best_window(-gain),
        "standard": _mean(gain / deviation),
        "relative": _mean(gain) / _mean(-base),
        "steady": _mean(gain[1:] * gain[:-1]),
    }


class Asked(NamedTuple):
    """The texts that one model was asked about, in the order of their names."""

    family: str
    name: str
    pool: str  # models of one pool were asked about the same texts
    is_member: NDArray[np.bool_]
    documents: list[str | None]
    scores: dict[str, Floats]  # of attacks
    figures: dict[str, Floats]  # of texts: ``text_*``, over a base ``gain_*``
    tokens: list[Floats]  # of each text: a row for each of `TOKEN_FIGURES`


def read_asked(
    run: mia_batch.Run, attacks: Sequence[str], family: str, name: str, pool: str
) -> Asked:
    """Compute figures of the texts of a run from its table of log-probabilities."""
    logprobs = run["logprobs"].filter(view="text")
    base = logprobs.filter(model="reference").select("target_id", base="logprob")
    target = logprobs.filter(model="target").join(base, on="target_id", how="left")
    scores = run["scores"].select("target_id", "document_id", "member", *attacks)
    table = scores.join(target, on="target_id").sort("target_id")
    tokens = [_list_tokens(row) for row in table.iter_rows(named=True)]
    figures = [
        _describe_text(numbers, zlib_size)
        for numbers, zlib_size in zip(tokens, table["zlib_size"], strict=True)
    ]
    return Asked(
        family=family,
        name=name,
        pool=pool,
        is_member=table["member"].to_numpy(),
        documents=table["document_id"].to_list(),
        scores={attack: table[attack].to_numpy() for attack in attacks},
        figures={column.name: column.to_numpy() for column in pl.DataFrame(figures)},
        tokens=tokens,
    )


def standardise(figures: Floats) -> Floats:
    """Standardise within one model, without labels; outliers are drawn in to 4 deviations."""
    deviation = figures.std(0)
    centred = figures - figures.mean(0)
    standard: Floats = centred / np.where(deviation > 0, deviation, 1)
    return standard.clip(-4, 4)


def _new_trees() -> HistGradientBoostingClassifier:
    return HistGradientBoostingClassifier(
        max_iter=150,
        learning_rate=0.05,
        max_leaf_nodes=8,
        min_samples_leaf=40,
        l2_regularization=1.0,
        random_state=0,
    )


def _learn_figures(
    new_classifier: Callable[[], Any],
    asked: Sequence[Asked],
    labels: NDArray[np.bool_],
    *,
    with_base: bool,
) -> Scorer:
    starts = ("text_", "gain_") if with_base else ("text_",)
    names = [name for name in asked[0].figures if name.startswith(starts)]

    def arrange(model: Asked) -> Floats:
        return standardise(np.column_stack([model.figures[name] for name in names]))

    classifier = new_classifier()
    classifier.fit(np.concatenate([arrange(model) for model in asked]), labels)
    return lambda model: np.asarray(classifier.predict_proba(arrange(model))[:, 1])


def _learn_tokens(
    asked: Sequence[Asked], labels: NDArray[np.bool_], *, with_base: bool
) -> Scorer:
    """Learn a small convolutional network over the texts' tokens."""
    import torch
    from torch import nn

    n_figures = len(TOKEN_FIGURES) if with_base else TOKEN_FIGURES.index("base")

    def arrange(model: Asked) -> torch.Tensor:
        """Stack texts: the figures of their tokens, and which tokens there are."""
        every = np.concatenate(model.tokens, axis=1)[:n_figures]
        mean, deviation = every.mean(1, keepdims=True), every.std(1, keepdims=True)
        stacked = np.zeros((len(model.tokens), n_figures + 1, LONGEST), np.float32)
        for text, numbers in zip(stacked, model.tokens, strict=True):
            shown = numbers[:n_figures, :LONGEST]
            text[:-1, : shown.shape[1]] = np.clip((shown - mean) / deviation, -5, 5)
            text[-1, : shown.shape[1]] = 1
        return torch.from_numpy(stacked)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv1d(n_figures + 1, 32, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(32, 32, 5, padding=2),
            nn.GELU(),
        )
        head = nn.Linear(32, 1)

        def judge(texts: torch.Tensor) -> torch.Tensor:
            is_token = texts[:, -1:]
            pooled = (network(texts) * is_token).sum(2) / is_token.sum(2)
            logits: torch.Tensor = head(pooled)[:, 0]
            return logits

        texts = torch.cat([arrange(model) for model in asked])
        answers = torch.from_numpy(labels.astype(np.float32))
        weights = [*network.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(weights, lr=2e-3, weight_decay=0.05)
        n_steps = PASSES * -(-len(texts) // BATCH)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, n_steps)
        for _ in range(PASSES):
            order = torch.randperm(len(texts))
            for start in range(0, len(texts), BATCH):
                rows = order[start : start + BATCH]
                loss = nn.functional.binary_cross_entropy_with_logits(
                    judge(texts[rows]), answers[rows]
                )
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call] # torch gives it no types
                optimizer.step()
                schedule.step()

    def score(model: Asked) -> Floats:
        with torch.no_grad():
            return judge(arrange(model)).double().numpy()

    return score


CLASSIFIERS: dict[str, Callable[..., Scorer]] = {
    "logistic regression": partial(
        _learn_figures, partial(LogisticRegression, C=0.01, max_iter=2000)
    ),
    "boosted trees": partial(_learn_figures, _new_trees),
    "network over tokens": _learn_tokens,
}


def learn(
    kind: str,
    asked: Sequence[Asked],
    *,
    with_base: bool,
    shuffle: np.random.Generator | None = None,
) -> Scorer:
    """Learn members from several models; return what scores the texts of another.

    With ``shuffle`` labels are dealt anew within each model: nothing can be learnt.
    """
    labels = [
        model.is_member if shuffle is None else shuffle.permutation(model.is_member)
        for model in asked
    ]
    return CLASSIFIERS[kind](asked, np.concatenate(labels), with_base=with_base)


def measure_lead(
    asked: Sequence[Asked], first: Sequence[Floats], second: Sequence[Floats]
) -> dict[str, float]:
    """Return the mean difference of two AUCs over models, with limits of 95 %.

    The influences of a text (DeLong, DeLong and Clarke-Pearson 1988) add up over the
    models that were asked about it.
    """
    lead = 0.0
    influences = {model.pool: np.zeros(model.is_member.size) for model in asked}
    for model, scores, other_scores in zip(asked, first, second, strict=True):
        area, influence = estimate_auc(model.is_member, scores)
        other_area, other_influence = estimate_auc(model.is_member, other_scores)
        lead += (area.value - other_area.value) / len(asked)
        influences[model.pool] += (influence - other_influence) / len(asked)
    error = sum(float(influence @ influence) for influence in influences.values())
    margin = 1.96 * error**0.5
    return {"lead": lead, "low": lead - margin, "high": lead + margin}
