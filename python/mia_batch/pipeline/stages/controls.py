"""Controls: whether passages that came out also come by other prompts, or stand elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cached_property, partial, reduce
from hashlib import sha256
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mia_batch.attacks.attack import CONTINUATION, among
from mia_batch.corpus import Corpus
from mia_batch.diagnostics.preflight import find_elsewhere
from mia_batch.evidence.parts import Missing, PromptUnits, scan_parts
from mia_batch.inference.memory import VERBATIM_WORDS, control_rows, counts_of, verbatim_runs
from mia_batch.kernels import pair_features, word_spans
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.sessions import ask, open_session, sample_task
from mia_batch.pipeline.stages.features import sample_parts
from mia_batch.pipeline.stages.prompts import RowUnits, prompt_parts, write_prompts
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import view_of
from mia_batch.prompts.views import LAST_WORDS, NOTHING_UNRELATED, OtherRows, View
from mia_batch.schemas import Controls, Prompts, Samples
from mia_batch.tables import read_numbers, sink
from mia_batch.targets import owner_of_documents, owner_of_targets

# Passages that stand in other documents of a run's texts, reference sets included.


def other_documents(audit: Audit, passages: pl.DataFrame) -> pl.DataFrame:
    """Say of each passage in which other document it stands, row by row."""
    corpora = audit.corpora
    sets = {"target": corpora.input, **corpora.reference_sets}
    documents = pl.concat(
        [_named(corpus, role) for role, corpus in sets.items() if role != "yardstick"]
    )
    return find_elsewhere(passages, documents).rename({"name": "other_document"})


def _named(corpus: Corpus, role: str) -> pl.LazyFrame:
    places = corpus.documents.with_row_index("place", 1)
    number = pl.format(f"document {{}} of the {role} texts", "place")
    return places.select(
        "text",
        owner=owner_of_documents(role).hash(),
        name=pl.coalesce("document_id", number),
    )


# Passages that came out of the target model word for word.


def passages_of(audit: Audit) -> pl.DataFrame:
    """Find what came out: one row per target, in the targets' order.

    ``target_id``, ``target_row``, ``owner`` (a hash of its group, else document), ``view`` that
    asks for it as a control, ``text`` that is asked for, null where it is the target's own
    reference, and ``passage``. Continuations come first; where only a walk came out, its first
    words are the passage.
    """
    continued, walked = _continued(audit), _walked(audit)
    walked = walked.join(continued, on="target_id", how="anti")
    rows = pl.concat([continued, walked])
    own = (
        audit.run.scan("targets")
        .with_row_index("target_row")
        .select("target_id", "target_row", "role", owner=owner_of_targets().hash())
        .filter(pl.col("role") == "target")
        .drop("role")
        .join(rows.lazy(), on="target_id", maintain_order="left")
    )
    return own.collect(engine="streaming").sort("target_row")


def _continued(audit: Audit) -> pl.DataFrame:
    """Find the longest run of the best continuation of each target, where it is long enough."""
    run = audit.run
    targets = run.scan("targets")
    found = verbatim_runs(targets, run.scan("features"), audit.settings.continuations)
    best = found.with_row_index("row").filter(pl.col("longest_words") >= VERBATIM_WORDS)
    key = ["target_id", "sample_index"]
    if best.is_empty():
        return _laid_out(pl.DataFrame(schema=dict.fromkeys(("target_id", "passage"), pl.String)))
    named = (
        targets.select("target_id", "reference")
        .with_row_index("row")
        .join(best.lazy(), on="row", maintain_order="left")
    )
    start, length = "longest_block_chars_start", "longest_block_chars"
    places = run.scan("features").filter(among([CONTINUATION])).select(*key, start, length)
    passage = pl.col("reference").str.slice(pl.col(start), pl.col(length))
    runs = named.join(places, on=key).select("target_id", passage=passage)
    return _laid_out(runs.collect(engine="streaming"))


def _walked(audit: Audit) -> pl.DataFrame:
    """Take of each stretch that came out as much as was asked for in its first round."""
    run = audit.run
    empty = pl.DataFrame(schema=dict.fromkeys(("target_id", "passage", "text"), pl.String))
    if not run.path("extraction").exists():
        return _laid_out(empty, "walk_control")
    length = pl.col("end") - pl.col("start")
    long = run.scan("extraction").filter(pl.col("n_words") >= VERBATIM_WORDS)
    long = long.sort("n_words", descending=True).unique("target_id", keep="first")
    asked = scan_parts(run.path("prompts"), Prompts, ("target", "walk")).filter(view_index=0)
    starts = word_spans("text", words=audit.settings.word_rule).struct.field("starts")
    passage = pl.col("text").str.slice(starts.list.first(), pl.col("length"))
    stretches = long.select("target_id", length=length).join(asked, on="target_id")
    found = stretches.select("target_id", "text", passage=passage).collect(engine="streaming")
    return _laid_out(found, "walk_control")


def _laid_out(found: pl.DataFrame, view: str = "control") -> pl.DataFrame:
    text = "text" if "text" in found.columns else pl.lit(None, pl.String)
    return found.select("target_id", "passage", text=text, view=pl.lit(view))


# The stage that looks whether passages that came out are common: by other prompts, elsewhere.


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

    makes = ("controls",)

    def follows(self, lost: Collection[Path]) -> list[Path]:
        return self.files() if any("control-" in path.name for path in lost) else []

    def left(self) -> Iterator[tuple[str, str]]:
        audit, settings = self.audit, self.audit.settings
        if not settings.controls:
            return
        may_come = (pl.col("role") == "target") & pl.col("reason").is_null()
        n = audit.target_table().select(may_come.sum()).collect(engine="streaming").item()
        samples = settings.continuations
        if not any(CONTINUATION in attack.reads for attack in audit.reading("samples")):
            n, samples = min(n, settings.extract_starts * audit.corpora.input.n_documents), 1
        prompts = n * sum(view_of(audit, model, "control").n for model in self._models)
        asked = f", {prompts:,} prompts, {prompts * samples:,} samples" if prompts else ""
        yield "controls", f"of what comes out, at most {n:,} passages{asked}"

    @property
    def _models(self) -> list[str]:
        if self.audit.settings.engine == "replay":
            return []
        with_reference = self.audit.settings.reference_model is not None
        return ["target", *(["reference"] if with_reference else [])]

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
        return [view_of(self.audit, model, name) for model in self._models for name in _VIEWS]

    def run(self) -> None:
        audit = self.audit
        if not audit.settings.controls:
            return
        audit.manifest.agree({"control_words": LAST_WORDS}, audit.run.folder)
        for model in self._models:
            self._ask(model)
        if self.is_fresh:
            return
        self.forget()
        audit.observer.stage(f"looking for {self._passages.height:,} passages in other documents")
        rows = control_rows(
            self._passages,
            pl.concat([pl.DataFrame(schema=_ANSWER), *map(self._answers, self._all_views)]),
            other_documents(audit, self._passages),
            models=self._models or ["target"],
            without=NOTHING_UNRELATED if self._models else _RECORDED,
        )
        sink(rows, audit.run.path("controls"), Controls)
        audit.manifest.controls = counts_of(rows)
        n, common = (audit.manifest.controls["any"][name] for name in ("passages", "common"))
        audit.observer.stage(f"{common:,} of {n:,} passages that came out are common")
        self.done()

    def _ask(self, model: str) -> None:
        audit, missing = self.audit, {}
        for name in _VIEWS:
            view = view_of(audit, model, name)
            parts = prompt_parts(audit, view)
            passages = self._passages.filter(view=name).with_columns(
                view_index=pl.lit(0, pl.UInt32)
            )
            complete = partial(self._with_prefixes, alone=model == "reference")
            units = RowUnits(passages, complete)
            write_prompts(audit, view, Missing(units, parts, view.n))
            prompts = PromptUnits(audit.run.path("targets"), parts, view, askable=True)
            retry = audit.settings.retry_failed
            missing[view] = Missing(
                prompts, sample_parts(audit, view), view.samples, retry_failed=retry
            )
        work = reduce(add, (each.count() for each in missing.values()))
        if not work.left:
            return
        with open_session(audit, model, "samples") as session:
            wanted = (
                (sample_task(audit, session, view), each.blocks(), sample_parts(audit, view).store)
                for view, each in missing.items()
            )
            ask(audit, session, "asking for controls", work, wanted)

    @cached_property
    def _lenders(self) -> tuple[OtherRows, OtherRows]:
        """Targets whose prefix may stand before a passage; owners of passages are in the second.

        A model goes on with what it recites after any prefix of it, so these lend theirs only
        where there are no others.
        """
        targets = self.audit.run.scan("targets")
        size = targets.select(pl.len()).collect(engine="streaming").item()
        owners = read_numbers(targets, owner_of_targets().hash(), size, np.uint64)
        has_prefix = pl.col("prefix").str.contains(r"\S").fill_null(value=False)
        may_stand = read_numbers(targets, has_prefix, size, np.bool_)
        recited = np.isin(owners, self._passages["owner"].to_numpy())
        return OtherRows(owners, may_stand & ~recited), OtherRows(owners, may_stand)

    def _with_prefixes(self, rows: pl.DataFrame, *, alone: bool) -> pl.DataFrame:
        """Join the own ``prefix``, and ``unrelated`` of another owner.

        Where no other has one, passages are left out unless the own prefix stands ``alone``.
        """
        targets, seed = self.audit.run.scan("targets"), self.audit.settings.seed
        chosen = []
        for owner, name in rows.select("owner", "target_id").iter_rows():
            lent = (lender.choose(owner, name, seed) for lender in self._lenders)
            chosen.append(next((row for row in lent if row is not None), None))
        unrelated = pl.Series("other_row", chosen, dtype=pl.get_index_type())
        own = _prefixes(targets, rows["target_row"], "target_row", "prefix")
        other = _prefixes(targets, unrelated, "other_row", "unrelated")
        units = rows.with_columns(unrelated).join(own, on="target_row", maintain_order="left")
        found = units.join(other, on="other_row", maintain_order="left")
        return found.filter(pl.col("unrelated").is_not_null() | alone)

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


def _prefixes(targets: pl.LazyFrame, rows: pl.Series, row: str, name: str) -> pl.DataFrame:
    numbered = targets.select(pl.col("prefix").alias(name)).with_row_index(row)
    return numbered.filter(pl.col(row).is_in(rows.implode())).collect(engine="streaming")
