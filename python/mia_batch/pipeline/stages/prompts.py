"""The stage that makes the prompts of the views that a run's attacks read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, ClassVar

import polars as pl

from mia_batch.corpus import ColumnNames, Corpus, read_documents
from mia_batch.errors import SettingsError
from mia_batch.evidence.collect import FillTask
from mia_batch.evidence.parts import (
    LOGPROB_BLOCK_TARGETS,
    TARGET_KEY,
    TARGETS_AT_ONCE,
    FreshUnits,
    Missing,
    Parts,
    PromptUnits,
    Work,
)
from mia_batch.evidence.request import EvidenceKind
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.corpora import how_to_read
from mia_batch.pipeline.sessions import ask, open_session
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import views_of
from mia_batch.prompts.views import RunModel, View, after_shots, choose_shots
from mia_batch.schemas import Prompts
from mia_batch.tables import sink

_SHOTS = ("nonmember_shots", "member_shots")
"""Views, and the settings that give their texts."""
_PROMPT_KEY = TARGET_KEY + pl.col("view_index")
_LONGEST_LOOKED_AT = 1000  # texts, by their bytes, for the one of most tokens


def prompt_parts(audit: Audit, view: View) -> Parts:
    """Name the parts of a view's prompts; those that take a model's work are small.

    Models that the run makes are asked what the target is asked.
    """
    return Parts(
        folder=audit.run.path("prompts"),
        schema=Prompts,
        model="target" if RunModel.of(view.model).is_made else view.model,
        view=view.name,
        block_targets=LOGPROB_BLOCK_TARGETS if view.filled else TARGETS_AT_ONCE,
    )


@dataclass(frozen=True, slots=True)
class RowUnits:
    """Prompts, or what they are made from, as rows that a stage has: `evidence.parts.Units`.

    ``complete`` adds what is not there of all rows at once.
    """

    rows: pl.DataFrame  # in the targets' order
    complete: Callable[[pl.DataFrame], pl.DataFrame] = pl.DataFrame.clone

    def keys(self) -> Iterator[pl.DataFrame]:
        yield self.rows.select("target_row", target=TARGET_KEY, key=_PROMPT_KEY)

    def slices(self) -> Iterator[pl.DataFrame]:
        for rows in self.rows.iter_slices(TARGETS_AT_ONCE):
            yield self.complete(rows).with_columns(unit_key=_PROMPT_KEY)


class EvidenceStage(Stage):
    """What one model of the run answers to the views that attacks read of it."""

    part = "evidence"
    kind: ClassVar[EvidenceKind]

    def __init__(self, audit: Audit, model: str) -> None:
        super().__init__(audit)
        self.model = model
        self.name = f"{self.kind} of {model}"

    @property
    def views(self) -> list[View]:
        return [view for view in views_of(self.audit, self.kind) if view.model == self.model]

    def parts(self, view: View) -> Parts:
        raise NotImplementedError

    def prompts(self, view: View) -> PromptUnits:
        return PromptUnits(
            self.audit.run.path("targets"),
            prompt_parts(self.audit, view),
            view,
            askable=self.kind == "samples",
            among=self.audit.among,
        )

    def fresh_prompts(self, view: View) -> FreshUnits:
        """Open the prompts as they would be made of the corpus as it is now."""
        targets = self.audit.target_table()
        return FreshUnits(targets, view, columns_for(self.audit, view, targets), self.audit.among)

    def answered(self) -> Work:
        n_rows = {view: view.samples if self.kind == "samples" else 1 for view in self.views}
        counts = (
            Missing(self.prompts(view), self.parts(view), n).count() for view, n in n_rows.items()
        )
        return reduce(add, counts, Work())


class PromptsStage(Stage):
    """Make the prompts of views that need no model."""

    name = "prompts"
    part = "texts"
    makes = ("prompts",)

    def run(self) -> None:
        audit = self.audit
        audit.manifest.agree(self._evidence(), audit.run.folder)
        self._check()
        for view in _prompted(audit):
            if view.make is not None:
                write_prompts(audit, view, prompts_missing(audit, view))

    def _check(self) -> None:
        """Look whether everything is there that is needed only once an engine has started."""
        audit, settings = self.audit, self.audit.settings
        views = views_of(audit)
        names = {view.name for view in views}
        for setting in filter(names.__contains__, _SHOTS):
            texts_for(audit, setting)
        controlled = settings.controls and settings.reference_model is not None
        if controlled or any(view.model == "reference" for view in views):
            audit.source("reference")
        for view in views:
            columns_for(audit, view, audit.run.scan("targets"))

    def _evidence(self) -> dict[str, Any]:
        """Name the settings that change prompts, with their values."""
        audit, settings = self.audit, self.audit.settings
        values: dict[str, Any] = {}
        if audit.reading("logprobs"):
            values["long_texts"] = settings.long_texts
        for view in views_of(audit):
            values |= view.evidence
        for view in views_of(audit, "samples"):
            values |= view.answers
        if any(view.filled for view in views_of(audit)):
            audit.manifest.agree_model(
                "masked", {"source": audit.source("masked")}, audit.run.folder
            )
        return values


class FillsStage(Stage):
    """Make the prompts that a masked model fills."""

    name = "fills"
    part = "fills"

    def run(self) -> None:
        audit = self.audit
        missing = {view: prompts_missing(audit, view) for view in _prompted(audit) if view.filled}
        filled = {view: each for view, each in missing.items() if each.count().left}
        if not filled:
            return
        work = reduce(add, map(Missing.count, filled.values()))
        seed = audit.settings.seed
        with open_session(audit, "masked", "fills") as session:
            wanted = (
                (FillTask(view=view, run_seed=seed), each.blocks(), prompt_parts(audit, view).store)
                for view, each in filled.items()
            )
            ask(audit, session, "filling", work, wanted)

    def left(self) -> Iterator[tuple[str, str]]:
        audit = self.audit
        for view in (view for view in _prompted(audit) if view.filled):
            units, parts = FreshUnits(audit.target_table()), prompt_parts(audit, view)
            left = Missing(units, parts, view.n, shard=audit.shard).count().left
            yield f"{view.name} prompts", f"of {left:,} texts, {view.n} each, by masked model"


def _prompted(audit: Audit) -> list[View]:
    """Return the views whose prompts are made; models of the run's own share the target's."""
    asked = (
        replace(view, model="target") if RunModel.of(view.model).is_made else view
        for view in views_of(audit)
    )
    return list({view.key: view for view in asked}.values())


def make_shots(audit: Audit, tokenizer: Tokenizer | None, context: int) -> None:
    """Make the prompts that put shots before the targets, as many as fit the model's context.

    A run that has chosen before keeps its number. Raises `SettingsError` if not even one shot
    fits, there is no tokenizer to tell, or the run was made with others.
    """
    for view in views_of(audit):
        if view.name not in _SHOTS:
            continue
        setting = view.name
        if tokenizer is None:
            raise SettingsError(
                f"setting {setting!r} needs setting 'tokenizer', to see how many texts fit"
            )
        corpus = texts_for(audit, setting)
        recorded = audit.manifest.evidence.get(setting, {})
        digest, most = audit.digest_input(setting, corpus.files), audit.settings.shots
        same = recorded.get("digest") == digest and recorded.get("most") == most
        texts = texts_of(corpus, recorded["n_shots"] if same else most)
        room = context if same else context - _longest(audit, tokenizer, context)
        shots = choose_shots(texts, room=room, count_tokens=tokenizer.count_tokens, setting=setting)
        described = {"digest": digest, "most": most, "n_shots": shots.n_shots}
        audit.manifest.agree({setting: described}, audit.run.folder)
        audit.observer.stage(f"{setting}: {shots.n_shots} texts, {shots.n_tokens:,} tokens")
        made = replace(view, make=partial(after_shots, shots=shots))
        write_prompts(audit, made, prompts_missing(audit, made))


def prompts_missing(audit: Audit, view: View) -> Missing:
    """Find the targets that lack prompts of a view."""
    targets = audit.run.scan("targets")
    units = FreshUnits(targets, columns=columns_for(audit, view, targets))
    shard = audit.shard if view.filled else None  # others are made for all at once
    return Missing(units, prompt_parts(audit, view), view.n, shard=shard)


def columns_for(audit: Audit, view: View, targets: pl.LazyFrame) -> tuple[str, ...]:
    """Name the columns of the corpus that a view's prompts are made from.

    Raises `SettingsError` where the targets lack one, or it does not hold texts.
    """
    setting = view.column_setting
    column = getattr(audit.settings, setting) if setting else None
    if column is None:
        return ()
    found = targets.collect_schema().get(column)
    if found != pl.List(pl.String):
        what = "missing" if found is None else f"of type {found}"
        raise SettingsError(
            f"setting {setting!r}: column {column!r} of the input is {what}; it must hold lists of "
            "texts"
        )
    return (column,)


def write_prompts(audit: Audit, view: View, missing: Missing) -> None:
    """Store the prompts that a view's targets lack."""
    if view.make is None or not missing.count().left:
        return
    audit.begin_change()
    for block in missing.blocks():
        rows = view.rows(view.make(block.units))
        wanted = rows.filter(pl.col("view_index").is_between(block.first, block.last - 1))
        sink(wanted, audit.run.path("prompts") / block.part_name, Prompts)


def texts_for(audit: Audit, setting: str) -> Corpus:
    """Open the texts that a setting names."""
    columns = ColumnNames(text=audit.settings.text_column)
    return read_documents(getattr(audit.settings, setting), columns, **how_to_read(audit.settings))


def texts_of(corpus: Corpus, n: int | None = None) -> list[str]:
    """Take the texts that are not empty, the first ``n`` or all."""
    there = corpus.documents.select("text").filter(pl.col("text").str.contains(r"\S"))
    texts = there if n is None else there.head(n)
    return texts.collect(engine="streaming")["text"].to_list()


def _longest(audit: Audit, tokenizer: Tokenizer, context: int) -> int:
    """Tokens of the longest target that the context can hold, special tokens included."""
    texts = (
        audit.run.scan("targets")
        .select("target", n_bytes=pl.col("target").str.len_bytes())
        .drop_nulls()
        .top_k(_LONGEST_LOOKED_AT, by="n_bytes")
        .collect(engine="streaming")["target"]
    )
    lengths = map(len, tokenizer.encode_prompts(texts.to_list()))
    return max((length for length in lengths if length <= context), default=0)
