"""The stage that asks a model for log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from math import log
from operator import add
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.attacks.attack import NEXT_TOKEN
from mia_batch.evidence.collect import FREQUENCY, LogprobTask, abilities, stored_frequencies
from mia_batch.evidence.parts import LOGPROB_BLOCK_TARGETS, Missing, Parts
from mia_batch.models.weights import estimated_tokens
from mia_batch.pipeline.choice import engine_columns
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.sessions import Session, ask, is_remote, open_session, text_cost
from mia_batch.pipeline.stages.prompts import EvidenceStage, make_shots, prompts_missing, texts_for
from mia_batch.prompts.views import SHADOW, RunModel, View
from mia_batch.recipes import in_half
from mia_batch.schemas import LogProbs
from mia_batch.targets import cluster_name

# Which texts a run tunes its shadow models on.


LEARNT = ("target", "non_member", "calibration")
"""Roles of the texts that shadow models may learn."""


def halves(audit: Audit, model: str) -> pl.DataFrame:
    """Deal out the texts: windows of a document go together, and so do texts that are the same.

    Others, such as canaries, are ``learnt`` by no model, so that each is new to all of them unless
    it is the same as a text that is. A window that several documents have is learnt where one of
    them is: it may be in more than half of the models.
    """
    document = pl.format("document {}", cluster_name(["target_id", "window_index", "document_id"]))
    name = pl.when(pl.col("n_windows") > 1).then(document).otherwise(pl.format("{}", "target"))
    rows = (
        audit.run.scan("targets")
        .filter(pl.col("target").is_not_null())
        .select("target_id", "target", name=name, learnt=pl.col("role").is_in(LEARNT))
        .collect(engine="streaming")
    )
    own = in_half(rows["name"].to_list(), RunModel.of(model).number, audit.settings.seed)
    return rows.with_columns(
        trained=pl.Series(own, dtype=pl.Boolean) & pl.col("learnt").any().over("name")
    ).with_columns(pl.col("trained").any().over("target"))


# The stage that asks a model for log-probabilities.


class LogprobsStage(EvidenceStage):
    """Log-probabilities by one model of the run, of all views that the attacks read of it."""

    kind = "logprobs"
    keeps = "log-probabilities"
    turns = True

    def files(self) -> list[Path]:
        folder = self.audit.run.path("logprobs")
        return sorted(folder.glob(f"block-*.{self.model.replace('/', '~')}-*.parquet"))

    def run(self) -> None:
        audit = self.audit
        views = self.views
        with audit.settling():
            columns = {view.name: self._columns(view) for view in views}
        if any(FREQUENCY in wanted for wanted in columns.values()):
            files = texts_for(audit, "frequencies_from").files
            digest = audit.digest_input("frequencies_from", files)
            audit.manifest.agree({"frequencies_from": digest}, audit.run.folder)
        groups = [views]
        if is_remote(audit, self.model):  # which is asked in another way at points
            points = [view for view in views if view.key in NEXT_TOKEN]
            groups = [[view for view in views if view not in points], points]
        for group in groups:
            if any(self._left(view) for view in group):
                self._ask(group, {view.name: columns[view.name] for view in group})

    def _ask(self, views: list[View], columns: dict[str, frozenset[str]]) -> None:
        """Ask about every text of some views that has no row yet, in one session."""
        audit = self.audit
        wanted = frozenset().union(*columns.values())
        needed = wanted - {FREQUENCY} | abilities(views)
        for view in views:
            for name, text in self._cost(view, self._missing(view)):
                audit.observer.stage(f"{name}: {text}")
        at_points = all(("target", view.name) in NEXT_TOKEN for view in views)
        with open_session(audit, self.model, "logprobs", needed, at_points=at_points) as session:
            frequencies = self._prepared(session, wanted) if self.model == "target" else None
            if session.tokenizer is not None and not at_points:
                engine = audit.manifest.engines[f"logprobs of {self.model}"]
                engine["chance"] = log(session.tokenizer.vocabulary)  # nats
            missing = {view: self._missing(view) for view in views}
            work = reduce(add, map(Missing.count, missing.values()))
            passes = {view.name: 0 for view in views}
            views_by_label = {self.parts(view).label: (view, columns[view.name]) for view in views}
            trained = None  # where the model is tuned on other texts, if at all
            if RunModel.of(self.model).role == SHADOW:
                trained = halves(audit, self.model).select("target_id", "trained")
            task = LogprobTask(
                views=views_by_label,
                run_seed=audit.settings.seed,
                log_inverse_frequency=frequencies,
                trained=trained,
            )

            def on_answer(label: str, texts: int, tokens: int, n: int) -> None:
                passes[views_by_label[label][0].name] += n
                audit.observer.worked(texts, tokens)

            blocks = (block for each in missing.values() for block in each.blocks())
            try:
                asked = [(task, blocks, self.parts(views[0]).store)]
                ask(audit, session, "log-probabilities", work, asked, on_answer=on_answer)
            finally:
                for name, n in passes.items():
                    key = f"{self.model} {name}"
                    audit.manifest.passes[key] = audit.manifest.passes.get(key, 0) + n
                audit.save()
        each = ", ".join(f"{name} {n:,}" for name, n in passes.items() if n)
        total = sum(passes.values())
        audit.observer.stage(f"forward passes of the {self.model} model: {total:,} ({each})")

    def _prepared(self, session: Session, columns: frozenset[str]) -> NDArray[np.float32] | None:
        """Make the shots, and return the frequencies of tokens where they are wanted."""
        audit = self.audit
        with audit.settling():
            make_shots(audit, session.tokenizer, session.max_model_len)
            audit.save()
            if FREQUENCY not in columns or session.tokenizer is None:
                return None
            texts = texts_for(audit, "frequencies_from").documents
            path = audit.run.folder / "frequencies.parquet"
            return stored_frequencies(path, texts, session.tokenizer)

    def left(self) -> Iterator[tuple[str, str]]:
        """Count forward passes: what one takes is known only once the model is open."""
        for view in self.views:
            missing = self._fresh(view)
            left = missing.count().left
            if view.make is not None:  # fewer than units: some texts have no further point
                left = sum(block.units.height for block in missing.blocks())
            yield f"{self.model} {view.name}", f"{left:,} forward passes"
            yield from self._cost(view, missing)

    def is_incomplete(self) -> bool:
        """Whether texts lack rows, as the corpus is now; nothing is written."""
        return any(self._fresh(view).count().left for view in self.views)

    def _fresh(self, view: View) -> Missing:
        return Missing(self.fresh_prompts(view), self.parts(view), shard=self.audit.shard)

    def forget_all(self) -> None:
        """Remove all that an earlier model of this name has answered."""
        manifest = self.audit.manifest
        self.remove(self.files())
        for view in self.views:
            manifest.passes.pop(f"{self.model} {view.name}", None)

    def _cost(self, view: View, missing: Missing) -> Iterator[tuple[str, str]]:
        if is_remote(self.audit, self.model):
            yield from text_cost(self.audit.settings, view, missing)

    def lacking(self) -> list[str]:
        audit, found = self.audit, []
        for view in self.views:
            made = audit.manifest.made.get(self.name, {}).get(view.name, [])
            whole = not self._left(view)
            for attack in audit.attacks:
                there = whole and engine_columns([attack]) <= {*made}
                if view.read_as in attack.reads_of("logprobs") and not there:
                    found.append(attack.name)
        return sorted(set(found))

    def _columns(self, view: View) -> frozenset[str]:
        """Decide what is computed beside log-probabilities: what was before, and what is needed.

        Where that is more than the parts have, they are removed, to be made again.
        """
        audit = self.audit
        reading = [attack for attack in audit.asking if view.read_as in attack.reads_of("logprobs")]
        needed = set(engine_columns(reading))
        if any(FREQUENCY in attack.columns for attack in reading):
            needed.add(FREQUENCY)
        made = audit.manifest.made.setdefault(self.name, {})
        before = made.get(view.name, [])
        if not needed.issubset(before):
            self.remove(self.parts(view).paths())
            made[view.name] = sorted(needed.union(before))
            audit.manifest.passes.pop(f"{self.model} {view.name}", None)
            audit.save()
        return frozenset(needed.union(before))

    def parts(self, view: View) -> Parts:
        return Parts(
            folder=self.audit.run.path("logprobs"),
            schema=LogProbs,
            model=view.model,
            view=view.name,
            block_targets=LOGPROB_BLOCK_TARGETS,
        )

    def _missing(self, view: View) -> Missing:
        return Missing(
            self.prompts(view),
            self.parts(view),
            retry_failed=self.audit.settings.retry_failed,
            shard=self.audit.shard,
            work=estimated_tokens("context") + estimated_tokens("text"),
        )

    def _left(self, view: View) -> bool:
        """Whether rows are missing, or prompts that are made once the model is open."""
        prompts = prompts_missing(self.audit, view)
        return bool(prompts.count().left or self._missing(view).count().left)
