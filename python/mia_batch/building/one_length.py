"""The sets of one length: tested, matched, varied, tested again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.building.cutting import cut, words_of
from mia_batch.building.documents import thrown
from mia_batch.building.matching import Candidates, match
from mia_batch.building.testing import LEAST_PAIRS, ask_outside, ask_within
from mia_batch.diagnostics.blind.texts import MAX_TEXTS_PER_CLASS, seen_of_texts
from mia_batch.schemas import BuiltTexts
from mia_batch.targets.clusters import cluster_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia_batch.building.testing import Tested
    from mia_batch.diagnostics.blind.baseline import BlindVerdict

__all__ = ["Built", "OneLength", "build_length"]

_HELD_OUT = 1 / 3
"""Share of the documents that tests a set that was matched, and is never in it."""

_COLUMNS = BuiltTexts.create_empty().schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One set: its texts, and what two tests say of it."""

    setting: str
    texts: pl.DataFrame
    verdict: BlindVerdict | None
    upper: float | None


@dataclass(slots=True, kw_only=True)
class OneLength:
    """What was made at one length."""

    length: int
    built: list[Built] = field(default_factory=list)
    tests: list[dict[str, object]] = field(default_factory=list)
    away: list[pl.DataFrame] = field(default_factory=list)
    refused: str | None = None

    def add(self, tested: Tested, setting: str, stage: str) -> None:
        """Keep the rows of a test."""
        of = {"length": self.length, "setting": setting, "stage": stage}
        self.tests += [of | row for row in tested.rows]


def build_length(
    documents: pl.DataFrame, length: int, *, settings: Sequence[str], repair: bool, seed: int
) -> OneLength:
    """Build the sets of one length, or say why there is none."""
    made = OneLength(length=length)
    texts, too_short = cut(documents, length, seed)
    made.away.append(too_short)
    texts = texts.with_columns(group_given=pl.col("group"), cluster=cluster_name(texts.columns))
    first = texts.filter(from_word=0)
    members = int(first["member"].sum())
    if min(members, first.height - members) < LEAST_PAIRS:
        return _refuse(made, first, f"has {_counts(first)}")
    before = ask_within(first, seed)
    made.add(before, "original", "before")
    if repair and before.verdict != "not separable":
        held_out = texts.filter(_is_held_out(first, seed))
        made.away.append(_away(held_out, "held out to test the set", length))
        texts = texts.join(held_out, on="document_id", how="anti")
        pairs = match(_candidates(texts), np.random.default_rng(seed))
        if len(pairs) < LEAST_PAIRS:
            what = (
                f"has {_counts(first)}; a third is held out to test the set, and matching leaves "
                f"{len(pairs)} pairs of the others"
            )
            return _refuse(made, texts.filter(from_word=0), what)
        chosen = texts[pairs.ravel()].with_columns(
            pair=pl.Series(np.repeat(np.arange(1, len(pairs) + 1), 2), dtype=pl.UInt32)
        )
        chosen = chosen.with_columns(group=pl.coalesce("group", pl.format("pair {}", "pair")))
    else:
        chosen, held_out = first.with_columns(pair=pl.lit(None, pl.UInt32)), texts.clear()
    rest = texts.join(chosen, on="document_id", how="anti")
    made.away.append(_away(rest, "nothing alike in the other class", length))
    for setting in settings:
        _build(made, setting, chosen, held_out, seed)
    return made


def _is_held_out(documents: pl.DataFrame, seed: int) -> pl.Expr:
    """Draw documents at random, groups whole, a share of each class."""
    of = documents.select("document_id", "member", cluster=cluster_name(documents.columns))
    clusters = of.unique("cluster", maintain_order=True).sample(fraction=1, shuffle=True, seed=seed)
    place = pl.int_range(pl.len()).over("member")
    drawn = clusters.filter(place < _HELD_OUT * pl.len().over("member"))
    return pl.col("document_id").is_in(
        of.join(drawn, on="cluster", how="semi")["document_id"].implode()
    )


def _away(texts: pl.DataFrame, reason: str, length: int) -> pl.DataFrame:
    return thrown(texts.unique("document_id", maintain_order=True), reason, length=length)


def _counts(first: pl.DataFrame) -> str:
    members = int(first["member"].sum())
    return f"{members:,} members and {first.height - members:,} non-members"


def _refuse(made: OneLength, first: pl.DataFrame, what: str) -> OneLength:
    made.refused = (
        f"{made.length} words: the input {what}; with fewer than {LEAST_PAIRS} of each no test "
        "can exclude that they differ without a model"
    )
    made.away.append(thrown(first, "set refused", length=made.length))
    return made


def _candidates(texts: pl.DataFrame) -> Candidates:
    def numbers(column: str) -> np.ndarray:
        rank = texts[column].fill_null("").rank("dense").to_numpy()
        return (rank - 1).astype(np.intp)

    return Candidates(
        label=texts["member"].to_numpy(),
        document=numbers("document_id"),
        cluster=numbers("cluster"),
        source=numbers("source"),
        seen=texts.select(seen_of_texts()),
    )


def _build(
    made: OneLength, setting: str, chosen: pl.DataFrame, held_out: pl.DataFrame, seed: int
) -> None:
    """Make the texts of a setting, and test them."""
    was_matched = held_out.height > 0
    if setting == "paraphrased":
        chosen, held_out = (_paraphrased(each, made.length) for each in (chosen, held_out))
        held_out = held_out.filter(pl.col("target").is_not_null())
        whole = pl.col("target").is_not_null()
        if chosen["pair"].is_not_null().all():  # its partner goes with it
            whole = whole.all().over("pair")
        made.away.append(
            thrown(
                chosen.filter(~whole),
                "no paraphrase of this length",
                length=made.length,
                setting=setting,
            )
        )
        chosen = chosen.filter(whole)
    members = int(chosen["member"].sum())
    if min(members, chosen.height - members) < LEAST_PAIRS:
        made.built.append(Built(setting=setting, texts=chosen.clear(), verdict=None, upper=None))
        return
    within = ask_within(_tested(chosen), seed + 1)
    made.add(within, setting, "after")
    outside = ask_outside(chosen, held_out, seed) if was_matched else None
    if outside is not None:
        made.add(outside, setting, "after")
    if setting == "concatenated":  # what stands before is equal in a pair and tells nothing
        chosen = _after_contexts(chosen, held_out, seed)
    made.built.append(
        Built(
            setting=setting,
            texts=_as_table(chosen, made.length, setting),
            verdict=_worse(within, outside),
            upper=_higher(within, outside),
        )
    )


def _paraphrased(texts: pl.DataFrame, length: int) -> pl.DataFrame:
    """Take the same words of the paraphrases; null where they are too short."""
    spans = texts.select("paraphrase", "from_word").iter_rows()
    targets = [words_of(text, start, length) for text, start in spans]
    return texts.with_columns(target=pl.Series(targets, dtype=pl.String))


def _after_contexts(chosen: pl.DataFrame, held_out: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Put a text of a held-out non-member before each text, the same for both of a pair."""
    contexts = held_out.filter(~pl.col("member"), from_word=0)["target"]
    if contexts.is_empty():
        return chosen.clear()
    order = contexts.sample(fraction=1, shuffle=True, seed=seed)
    place = chosen.select((pl.col("pair") - 1) % order.len()).to_series()
    return chosen.with_columns(target=order.gather(place) + "\n\n" + chosen["target"])


def _tested(chosen: pl.DataFrame) -> pl.DataFrame:
    """Take whole pairs where there are more than the blind baseline looks at."""
    limit = pl.col("pair").is_null() | (pl.col("pair") <= MAX_TEXTS_PER_CLASS)
    return chosen.filter(limit)


def _worse(within: Tested, outside: Tested | None) -> BlindVerdict | None:
    verdicts = {within.verdict, outside.verdict if outside is not None else within.verdict}
    if "separable" in verdicts:
        return "separable"
    return "not separable" if verdicts == {"not separable"} else "undecided"


def _higher(within: Tested, outside: Tested | None) -> float | None:
    uppers = [within.upper, None if outside is None else outside.upper]
    return max((upper for upper in uppers if upper is not None), default=None)


def _as_table(chosen: pl.DataFrame, length: int, setting: str) -> pl.DataFrame:
    table = chosen.with_columns(
        from_document="document_id",
        document_id=pl.format(f"{{}}/{setting}-{length}", "document_id"),
        text="target",
        length=pl.lit(length),
        setting=pl.lit(setting),
    )
    typed = table.select(pl.col(name).cast(kind) for name, kind in _COLUMNS.items())
    return typed.sort("pair", "document_id", "member")
