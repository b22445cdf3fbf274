"""What asking about secrets came to: a table of models and secrets, and sentences."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from mia_batch.extras.secrets.asking import Answers
from mia_batch.extras.secrets.questions import Questions, hash_texts
from mia_batch.inference.conformal import q_values
from mia_batch.inference.controls import rank_among_controls
from mia_batch.schemas import Secrets
from mia_batch.stats import Floats
from mia_batch.stats.intervals import clopper_pearson

__all__ = [
    "LEVEL",
    "AnswerIndex",
    "build_rows",
    "build_table",
    "conclusions",
    "count_needed",
]

LEVEL = 0.05
"""Share of false ones among secrets that are called memorised, at most and on average."""
_NO_CONTROLS = "nothing else has its form, once what its context gives away is left out"
_SPACE = re.compile(r"\s+")
_SCHEMA = Secrets.create_empty().schema


# Which answers have which secrets.


@dataclass(frozen=True, slots=True)
class _Answered:
    """The answers after one context, without white space, which a model may write otherwise."""

    likeliest: list[str] = field(default_factory=list)  # one, or none where it failed
    drawn: list[str] = field(default_factory=list)


class AnswerIndex:
    """Answers by the context that they follow, and which of them have which secret."""

    def __init__(self, questions: Questions, continuations: pl.DataFrame) -> None:
        self._neutral = hash_texts(questions.neutral)
        self._contexts = dict(questions.contexts.select("key", "context").iter_rows())
        self._own_keys: dict[int, list[str]] = defaultdict(list)
        for number, key in questions.places.iter_rows():
            self._own_keys[number].append(key)
        self._answers: dict[str, _Answered] = defaultdict(_Answered)
        self._hits: dict[int, list[tuple[str, bool]]] = defaultdict(list)
        self._secrets = [_squeeze(secret.text) for secret in questions.secrets]
        self._fill(continuations)

    def _fill(self, continuations: pl.DataFrame) -> None:
        usable = continuations.filter(pl.col("candidate").is_not_null())
        texts = usable["candidate"].str.replace_all(r"\s+", "")
        numbers: dict[str, list[int]] = defaultdict(list)
        for number, secret in enumerate(self._secrets):
            numbers[secret].append(number)
        patterns = pl.Series([[*numbers]], dtype=pl.List(pl.String))
        present = texts.str.extract_many(patterns, overlapping=True)
        rows = zip(usable["key"], usable["is_drawn"], texts, present, strict=True)
        for key, is_drawn, text, secrets in rows:
            answered = self._answers[key]
            (answered.drawn if is_drawn else answered.likeliest).append(text)
            for secret in {*secrets}:
                for number in numbers[secret]:
                    self._hits[number].append((key, is_drawn))

    def count_contexts(self, number: int) -> int:
        return len(self._own_keys[number])

    def count(self, number: int, controls: Sequence[str]) -> dict[str, Any]:
        """Count the answers that have a secret, by the place of their context."""
        own = self._list_answers(self._own_keys[number])
        neutral = self._list_answers([self._neutral])
        secret = self._secrets[number]
        compared = own if self._own_keys[number] else neutral
        n_drawn, n_with = len(own.drawn), _count_with(secret, own.drawn)
        row: dict[str, Any] = {
            "own_likeliest": _is_in_any(secret, own.likeliest),
            "other_likeliest": self._is_after_others(number),
            "none_likeliest": _is_in_any(secret, neutral.likeliest),
            "n_own_drawn": n_drawn,
            "own_drawn": n_with,
            "other_drawn": len(self._list_other_hits(number, is_drawn=True)),
            "none_drawn": _count_with(secret, neutral.drawn),
            "controls_back": sum(
                _count_with(_squeeze(control), compared.likeliest + compared.drawn) > 0
                for control in controls
            ),
        }
        if n_drawn:
            interval = clopper_pearson(n_with, n_drawn)
            row |= {"own_low": interval.low, "own_high": interval.high}
        return row

    def score(self, number: int, controls: Sequence[str]) -> tuple[float, Floats]:
        """Count the answers that have a secret, and those that have each of its controls."""
        answered = self._list_answers(self._own_keys[number] or [self._neutral])
        texts = answered.likeliest + answered.drawn
        if not texts:
            return np.nan, np.full(len(controls), np.nan)
        counts = [_count_with(_squeeze(control), texts) for control in controls]
        n_with = _count_with(self._secrets[number], texts)
        return float(n_with), np.array(counts, dtype=np.float64)

    def _list_answers(self, keys: Sequence[str]) -> _Answered:
        total = _Answered()
        for key in keys:
            total.likeliest.extend(self._answers[key].likeliest)
            total.drawn.extend(self._answers[key].drawn)
        return total

    def _list_other_hits(self, number: int, *, is_drawn: bool) -> list[str]:
        """List the contexts of others after which a secret comes that is not in them."""
        excluded = {*self._own_keys[number], self._neutral}
        return [
            key
            for key, was_drawn in self._hits[number]
            if was_drawn == is_drawn
            and key not in excluded
            and self._secrets[number] not in _squeeze(self._contexts[key])
        ]

    def _is_after_others(self, number: int) -> bool | None:
        excluded = {*self._own_keys[number], self._neutral}
        if self._list_other_hits(number, is_drawn=False):
            return True
        has_others = any(key not in excluded for key in self._answers)
        return False if has_others else None


def _squeeze(text: str) -> str:
    return _SPACE.sub("", text)


def _count_with(secret: str, texts: Sequence[str]) -> int:
    return sum(secret in text for text in texts)


def _is_in_any(secret: str, texts: Sequence[str]) -> bool | None:
    return any(secret in text for text in texts) if texts else None


# How likely secrets are, and their controls.


def read_scores(questions: Questions, scores: pl.DataFrame) -> pl.DataFrame:
    """Return ``bits`` of each secret and control: the mean over its contexts of a place.

    Null where one of them has none; ``reason`` says why.
    """
    joined = questions.texts.join(scores, on="key", how="left")
    return joined.group_by("secret", "place", "control", maintain_order=True).agg(
        bits=pl.when(pl.col("score").is_not_null().all()).then(pl.col("score").mean()),
        reason=pl.col("reason").drop_nulls().first(),
    )


def build_rows(
    model: str, questions: Questions, answers: Answers
) -> Iterator[dict[str, Any]]:
    """Iterate over the rows of a model, a secret each; without a p-value they have the reason."""
    index = AnswerIndex(questions, answers.continuations)
    bits: dict[int, pl.DataFrame] = {}
    if answers.scores.height:
        for (number,), rows in read_scores(questions, answers.scores).group_by(
            "secret"
        ):
            bits[int(str(number))] = rows
    for number, secret in enumerate(questions.secrets):
        controls = questions.controls[number]
        row: dict[str, Any] = {
            "model": model,
            "row": secret.row,
            "n_rows": secret.n_rows,
            "kind": secret.kind,
            "n_characters": len(secret.text),
            "n_contexts": index.count_contexts(number),
            "exploratory": questions.exploratory[number],
            **index.count(number, controls),
        }
        row["compared"] = "own" if row["n_contexts"] else "none"
        if number in bits:
            yield row | _compare_bits(bits[number], row["compared"])
        else:
            score, control_scores = index.score(number, controls)
            compared = _compare(score, control_scores, "no answer came back")
            yield row | compared | {"score": "answers"}


def _compare_bits(rows: pl.DataFrame, compared: str) -> dict[str, Any]:
    secret = rows.filter(control=0)
    by_place = dict(secret.select("place", "bits").iter_rows())
    tested = rows.filter(place=compared)
    controls = tested.filter(pl.col("control") > 0)["bits"]
    score = by_place[compared]
    reason = tested["reason"].drop_nulls()
    values = {
        "score": "probability",
        "own_bits": by_place.get("own"),
        "other_bits": by_place.get("other"),
        "none_bits": by_place.get("none"),
        "control_bits": controls.median(),
    }
    unscored = reason[0] if len(reason) else "it has no probability"
    return values | _compare(
        np.nan if score is None else score,
        controls.fill_null(np.nan).to_numpy().astype(np.float64),
        unscored,
    )


def _compare(score: float, controls: Floats, unscored: str) -> dict[str, Any]:
    rank = rank_among_controls(score, controls)
    if rank is None:
        reason = unscored if controls.size else _NO_CONTROLS
        return {"n_controls": 0, "reason": reason}
    if rank.n_controls < controls.size:
        # Those without a score could be the likeliest ones
        return {"n_controls": rank.n_controls, "reason": f"of a control: {unscored}"}
    return {
        "n_controls": rank.n_controls,
        "n_as_high": rank.n_as_high,
        "exposure": rank.exposure,
        "smallest_p": rank.smallest,
        "p_value": rank.p_value,
    }


# The table, and what may be said of it.


def build_table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Build the table of one model, with q-values over all p-values that are error rates."""
    columns = {name: [row.get(name) for row in rows] for name in _SCHEMA}
    table = pl.DataFrame(columns, schema_overrides=_UNJUDGED)
    is_level = pl.col("p_value").is_not_null() & pl.col("exploratory").is_null()
    flags = table.select(is_level).to_series()
    adjusted = np.full(table.height, np.nan)
    p_values = table["p_value"].filter(flags).to_numpy().astype(np.float64)
    if p_values.size:
        adjusted[flags.to_numpy()] = q_values(p_values, "bh")
    table = table.with_columns(
        q_value=pl.Series(adjusted, dtype=pl.Float64).fill_nan(None)
    )
    return table.with_columns(verdict=_JUDGE).select(
        pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items()
    )


_UNJUDGED = {name: dtype for name, dtype in _SCHEMA.items() if name != "verdict"}
_PLACES = ("own", "other", "none")
_LIKELIEST = pl.any_horizontal(f"{place}_likeliest" for place in _PLACES)
_CAME_BACK = _LIKELIEST.fill_null(value=False) | pl.any_horizontal(
    pl.col(f"{place}_drawn") > 0 for place in _PLACES
)
_WAS_ASKED = pl.any_horizontal(
    pl.col(f"{place}_likeliest").is_not_null() for place in _PLACES
)
_JUDGE = (
    pl.when(pl.col("q_value") <= LEVEL)
    .then(pl.lit("memorised"))
    .when(_CAME_BACK & (pl.col("controls_back") == 0))
    .then(pl.lit("given back"))
    .when(pl.col("reason").is_not_null() & ~_WAS_ASKED)
    .then(pl.lit("none"))
    .when(pl.col("exploratory").is_not_null() & pl.col("p_value").is_not_null())
    .then(pl.lit("exploratory"))
    .otherwise(pl.lit("not shown"))
)


def count_needed(n_secrets: int, n_controls: int) -> int:
    """Count how many secrets must be likelier than all controls before one has q <= LEVEL."""
    return int(np.ceil(n_secrets / (LEVEL * (1 + n_controls)) - 1e-9))


def conclusions(table: pl.DataFrame) -> Iterator[str]:
    """Iterate over what may be said of each model."""
    for (model,), rows in table.group_by("model", maintain_order=True):
        counts = dict(rows["verdict"].value_counts().iter_rows())
        n_memorised = counts.get("memorised", 0)
        if n_memorised:
            yield (
                f"{model}: {n_memorised:,} of {rows.height:,} secrets are likelier than"
                " controls of their form, so that the model has learnt them (of those"
                f" called so, at most a share of {LEVEL:g} is false on average)."
            )
        else:
            yield (
                f"{model}: none of {rows.height:,} secrets is shown to be likelier than"
                " controls of its form."
            )
        yield f"{model}: {_describe_answers(rows)}."
        n_given = counts.get("given back", 0)
        if n_given:
            noun = "further one comes" if n_given == 1 else "further ones come"
            yield (
                f"{model}: {n_given:,} {noun} back word for word, and no control does;"
                " where a secret is easily guessed, that is no proof that it was learnt."
            )
        n_exploratory = counts.get("exploratory", 0)
        if n_exploratory:
            yield (
                f"{model}: of {n_exploratory:,} the p-value is exploratory, for"
                f" {rows['exploratory'].drop_nulls()[0]}; if chance made them, say so"
                " with --drawn."
            )
        n_hidden = counts.get("not shown", 0) + counts.get("none", 0)
        if n_hidden:
            yield (
                f"{model}: of {n_hidden:,} nothing shows that they were learnt; that"
                " does not show that they were not."
            )
        reasons = rows["reason"].drop_nulls().value_counts(sort=True)
        if reasons.height:
            reason, count = reasons.row(0)
            yield f"{model}: {count:,} have no p-value, such as: {reason}."


def _describe_answers(rows: pl.DataFrame) -> str:
    """Describe how many come back in likeliest answers, by the place of the context."""
    names = {
        "own": "after their own context",
        "other": "after another's",
        "none": "after none",
    }
    parts = []
    for place, name in names.items():
        column = rows[f"{place}_likeliest"].drop_nulls()
        if len(column):
            parts.append(f"{int(column.sum()):,} of {len(column):,} {name}")
    return f"the likeliest answer has the secret of {', '.join(parts) or 'none'}"
