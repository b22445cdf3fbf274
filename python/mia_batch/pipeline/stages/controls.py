"""The stage that looks whether passages that came out are common: by other prompts, elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import sha256
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from mia_batch.attacks.attack import CONTINUATION
from mia_batch.evidence.missing import Missing
from mia_batch.evidence.parts import TARGET_KEY, scan_parts
from mia_batch.evidence.units import TARGETS_AT_ONCE, PromptUnits
from mia_batch.inference.controls import control_rows, counts_of
from mia_batch.kernels import pair_features
from mia_batch.pipeline.sessions.session import open_session, sample_task
from mia_batch.pipeline.stages.elsewhere import other_documents
from mia_batch.pipeline.stages.features import sample_parts
from mia_batch.pipeline.stages.prompts import prompt_parts, write_prompts
from mia_batch.pipeline.stages.repeated import passages_of
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import view_of
from mia_batch.prompts.control import LAST_WORDS, NOTHING_UNRELATED, OtherRows
from mia_batch.schemas import Controls, Prompts, Samples
from mia_batch.tables import sink
from mia_batch.tables.numbers import read_numbers
from mia_batch.targets.clusters import owner_of_targets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from mia_batch.pipeline.context import Audit
    from mia_batch.prompts.view import View

__all__ = ["ControlsStage"]

_ANSWER = {
    **dict.fromkeys(("model", "target_id", "other_document", "reason"), pl.String),
    **dict.fromkeys(("view_index", "n_samples", "longest_words"), pl.UInt32),
}
_VIEWS = ("control", "walk_control")
_RECORDED = "the samples are a recording: there is no model to ask"


class ControlsStage(Stage):
    """Ask for what came out after an unrelated prefix and by a reference model, and search for it.

    Prompts that were made stay as they are, so that a run that was killed, or grows, goes on.
    """

    name = "controls"

    def files(self) -> list[Path]:
        """List the table."""
        path = self.audit.run.path("controls")
        return [path] if path.exists() else []

    def follows(self, lost: Collection[Path]) -> list[Path]:
        """List the table where samples of controls are lost."""
        return self.files() if any("control-" in path.name for path in lost) else []

    def left(self) -> Iterator[tuple[str, str]]:
        """Say how many passages there may be, and what is asked about each."""
        audit, settings = self.audit, self.audit.settings
        if not settings.controls:
            return
        may_come = (pl.col("role") == "target") & pl.col("reason").is_null()
        n = audit.target_table().select(may_come.sum()).collect(engine="streaming").item()
        samples = settings.continuations
        if not any(CONTINUATION in attack.reads for attack in audit.reading("samples")):
            n, samples = min(n, settings.extract_starts * audit.corpora.input.n_documents), 1
        prompts = n * sum(self._view(model, "control").n for model in self._models)
        asked = f", {prompts:,} prompts, {prompts * samples:,} samples" if prompts else ""
        yield "controls", f"of what comes out, at most {n:,} passages{asked}"

    @property
    def _models(self) -> list[str]:
        if self.audit.settings.engine == "replay":
            return []
        with_reference = self.audit.settings.reference_model is not None
        return ["target", *(["reference"] if with_reference else [])]

    def _view(self, model: str, name: str) -> View:
        return view_of(self.audit, model, name)

    @cached_property
    def _passages(self) -> pl.DataFrame:
        return passages_of(self.audit)

    def fingerprint(self) -> dict[str, Any]:
        """Passages, the texts, and the samples of controls."""
        asked = self._passages.select("target_id", "view", "passage").write_ndjson()
        labels = [sample_parts(self.audit, view) for view in self._all_views]
        parts = [path.name for each in labels for path in each.paths()]
        return {
            "passages": sha256(asked.encode()).hexdigest(),
            "targets": self.audit.manifest.made["targets"],
            "parts": sha256("\n".join(parts).encode()).hexdigest(),
            "samples": self.audit.settings.continuations,
            "models": self._models,
        }

    @property
    def _all_views(self) -> list[View]:
        return [self._view(model, name) for model in self._models for name in _VIEWS]

    def run(self) -> None:
        """Ask what is missing, and say what is common."""
        audit = self.audit
        if not audit.settings.controls:
            return
        audit.manifest.agree({"control_words": LAST_WORDS}, audit.run.folder)
        for model in self._models:
            self._ask(model)
        if self.is_fresh and self.files():
            return
        self.forget()
        audit.observer.stage(f"looking for {self._passages.height:,} passages in other documents")
        rows = control_rows(
            self._passages,
            self._all_answers(),
            other_documents(audit, self._passages),
            models=self._models or ["target"],
            without=NOTHING_UNRELATED if self._models else _RECORDED,
        )
        sink(rows, audit.run.path("controls"), Controls)
        audit.manifest.controls = counts_of(rows)
        n, common = (audit.manifest.controls["any"][name] for name in ("passages", "common"))
        audit.observer.stage(f"{common:,} of {n:,} passages that came out are common")
        self.done()

    def _all_answers(self) -> pl.DataFrame:
        none = pl.DataFrame(schema=_ANSWER)
        return pl.concat([none, *map(self._answers, self._all_views)])

    def _ask(self, model: str) -> None:
        audit, lacking = self.audit, {}
        for name in _VIEWS:
            view, parts = self._view(model, name), prompt_parts(audit, self._view(model, name))
            units = _Passages(audit, self._passages, view)
            write_prompts(audit, view, Missing(units, parts, view.n))
            prompts = PromptUnits(audit.run.path("targets"), parts, view, askable=True)
            retry = audit.settings.retry_failed
            had = sample_parts(audit, view)
            lacking[view] = Missing(prompts, had, view.samples, retry_failed=retry)
        work = reduce(add, (each.count() for each in lacking.values()))
        if not work.left:
            return
        progress = audit.observer.progress("asking for controls", done=work.done, left=work.left)
        with open_session(audit, model, "samples") as session, progress:
            for view, missing in lacking.items():
                task = sample_task(audit, session, view)
                told, store = audit.observer.answered, sample_parts(audit, view).store
                for _ in session.executor.collect(task, missing.blocks(), told, store):
                    pass

    def _answers(self, view: View) -> pl.DataFrame:
        """Compare what was said after each prompt with the passage."""
        own = self._passages.lazy().filter(view=view.name).select("target_id", "passage")
        words = self.audit.settings.word_rule
        blocks = pair_features("candidate", "passage", words=words, groups=["blocks"])
        said = (
            scan_parts(self.audit.run.path("samples"), Samples, view.key)
            .filter(pl.col("sample_index") < view.samples)
            .join(own, on="target_id")
            .with_columns(longest_words=blocks.struct.field("longest_block_words"))
            .group_by("target_id", "view_index")
            .agg(
                n_samples=pl.col("candidate").count(),
                longest_words=pl.col("longest_words").max(),
                reason=pl.col("reason").min(),
            )
            .join(self._donors(view), on="target_id", how="left")
            .with_columns(model=pl.lit(view.model))
            .select(pl.col(name).cast(dtype) for name, dtype in _ANSWER.items())
        )
        return said.collect(engine="streaming")

    def _donors(self, view: View) -> pl.LazyFrame:
        """Name the document whose prefix was given for each target: the first that has it."""
        run = self.audit.run
        asked = scan_parts(run.path("prompts"), Prompts, view.key).filter(view_index=0)
        given = asked.select("target_id", prefix="context").drop_nulls()
        donor = pl.coalesce("document_id", "target_id")
        own = run.scan("targets").select("prefix", other_document=donor)
        first = own.join(given, on="prefix", how="semi", maintain_order="left").unique(
            "prefix", keep="first", maintain_order=True
        )
        return given.join(first, on="prefix").drop("prefix")


@dataclass(frozen=True, slots=True)
class _Passages:
    """Passages that prompts are made for, some at a time."""

    audit: Audit
    passages: pl.DataFrame
    view: View

    def keys(self) -> Iterator[pl.DataFrame]:
        """Yield the keys and ``target_row`` of all of them."""
        yield self._own.select("target_row", target=TARGET_KEY, key=TARGET_KEY)

    @property
    def _own(self) -> pl.DataFrame:
        return self.passages.filter(view=self.view.name)

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield them in the targets' order, with ``prefix``, and ``unrelated`` of another owner.

        A model goes on with what it recites after any prefix of it: owners of passages lend theirs
        only where there are no others.
        """
        if self._own.is_empty():
            return
        targets = self.audit.run.scan("targets")
        size = targets.select(pl.len()).collect(engine="streaming").item()
        owners = read_numbers(targets, owner_of_targets().hash(), size, np.uint64)
        has_prefix = pl.col("prefix").str.contains(r"\S").fill_null(value=False)
        may_stand = read_numbers(targets, has_prefix, size, np.bool_)
        recited = np.isin(owners, self.passages["owner"].to_numpy())
        lenders = OtherRows(owners, may_stand & ~recited), OtherRows(owners, may_stand)
        seed = self.audit.settings.seed
        for rows in self._own.iter_slices(TARGETS_AT_ONCE):
            asked = rows.select("owner", "target_id").iter_rows()
            chosen = [_chosen(lenders, owner, name, seed) for owner, name in asked]
            unrelated = pl.Series("other_row", chosen, dtype=pl.get_index_type())
            own = _prefixes(targets, rows["target_row"], "target_row", "prefix")
            other = _prefixes(targets, unrelated, "other_row", "unrelated")
            units = rows.with_columns(unrelated).join(own, on="target_row", maintain_order="left")
            found = units.join(other, on="other_row", maintain_order="left")
            askable = pl.col("unrelated").is_not_null() | (self.view.model == "reference")
            yield found.filter(askable).with_columns(unit_key=TARGET_KEY)


def _chosen(lenders: Iterable[OtherRows], owner: int, name: str, seed: int) -> int | None:
    rows = (lender.choose(owner, name, seed) for lender in lenders)
    return next((row for row in rows if row is not None), None)


def _prefixes(targets: pl.LazyFrame, rows: pl.Series, row: str, name: str) -> pl.DataFrame:
    numbered = targets.select(pl.col("prefix").alias(name)).with_row_index(row)
    return numbered.filter(pl.col(row).is_in(rows.implode())).collect(engine="streaming")
