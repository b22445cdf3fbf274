"""The stages that ask models: samples of the target model, log-probabilities of every model."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from mia_batch.evidence.blocks import (
    BLOCK_TARGETS,
    LOGPROB_BLOCK_TARGETS,
    RECORDED_BLOCK_TARGETS,
    Missing,
)
from mia_batch.evidence.frequencies import stored_frequencies
from mia_batch.evidence.logprobs import FREQUENCY, LogprobTask
from mia_batch.evidence.parts import Parts
from mia_batch.evidence.sampling import SampleTask
from mia_batch.evidence.units import FreshUnits, PromptUnits
from mia_batch.evidence.workload import forecast
from mia_batch.pipeline.context import engine_columns
from mia_batch.pipeline.prompts import (
    make_shots,
    prompt_parts,
    prompts_missing,
    texts_for,
    views_of,
)
from mia_batch.pipeline.scores import write_features
from mia_batch.pipeline.sessions import cost_lines, expected, open_session
from mia_batch.pipeline.stage import Stage
from mia_batch.schemas import LogProbs, Samples
from mia_batch.tables import sink
from mia_batch.tables.background import in_background

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import polars as pl

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.units import Units
    from mia_batch.pipeline.context import Audit
    from mia_batch.prompts.view import View

__all__ = ["LogprobsStage", "SamplesStage"]


class SamplesStage(Stage):
    """Continuations of the target model, from an engine, an endpoint or a recording."""

    name = "samples"
    keeps = "samples"

    def files(self) -> list[Path]:
        """List all parts."""
        return sorted(self.audit.run.path("samples").glob("*.parquet"))

    def parts(self) -> Parts:
        """Name the parts."""
        recorded = self.audit.settings.samples_from is not None
        return Parts(
            folder=self.audit.run.path("samples"),
            schema=Samples,
            model="target",
            view="continuation",
            block_targets=RECORDED_BLOCK_TARGETS if recorded else BLOCK_TARGETS,
        )

    def missing(self) -> Missing:
        """Find what the run lacks."""
        audit, view = self.audit, self._view
        parts = prompt_parts(audit, view)
        return self._missing(PromptUnits(audit.run.path("targets"), parts, view, askable=True))

    @property
    def _view(self) -> View:
        return views_of(self.audit, "samples")[0]

    def _missing(self, units: Units) -> Missing:
        settings = self.audit.settings
        retry = settings.retry_failed
        return Missing(units, self.parts(), settings.samples, retry_failed=retry)

    def lacking(self) -> list[str]:
        """Name the attacks that need samples, where the run lacks any."""
        reading = [attack.name for attack in self.audit.reading("samples")]
        return reading if reading and self.missing().count().left else []

    def run(self) -> None:
        """Sample what is missing, and store each block's samples and features."""
        if not self.audit.reading("samples"):
            return
        if self.audit.recording is not None:
            self._replay()
        elif (missing := self.missing()).count().left:
            self._sample(missing)

    def left(self) -> Iterator[tuple[str, str]]:
        """Say what there is to decode, and what it may cost."""
        audit = self.audit
        if not audit.reading("samples"):
            return
        if (recording := audit.recording) is not None:
            yield "samples", f"{audit.settings.samples:,} a target"
            yield from recording.describe()
            return
        yield from self._forecast(self._missing(FreshUnits(audit.target_table(), self._view)))[1]

    def _forecast(self, missing: Missing) -> tuple[Any, list[tuple[str, str]]]:
        audit = self.audit
        measure, budget = expected(audit)
        workload = forecast(missing.blocks(), measure, budget)
        lines = [*workload.lines()]
        if audit.manifest.evidence["engine"] == "openai":
            lines += cost_lines(audit.settings, workload)
        return workload, lines

    def _sample(self, missing: Missing) -> None:
        audit, settings = self.audit, self.audit.settings
        workload, lines = self._forecast(missing)
        for name, text in lines:
            audit.observer.stage(f"{name}: {text}")
        decoded = 0

        def told(_label: str, texts: int, tokens: int, _passes: int) -> None:
            nonlocal decoded
            decoded += tokens
            audit.observer.worked(texts, tokens)

        with open_session(audit, "target", "samples") as session:
            task = SampleTask(
                model="target",
                view="continuation",
                measure=session.measure,
                budget=audit.budget(session.max_model_len, session.max_attempts),
                words=settings.word_rule,
                run_seed=settings.seed,
            )
            work = missing.count()
            with audit.observer.progress("sampling", done=work.done, left=work.left):
                for block, rows in session.executor.collect(task, missing.blocks(), told):
                    self._store(block, rows)
        audit.observer.stage(workload.outcome(decoded))

    def _store(self, block: Block, rows: pl.DataFrame) -> None:
        run = self.audit.run
        sink(rows, run.path("samples") / block.part_name, Samples)
        write_features(self.audit, {block.part_name: rows}, block.units)

    def _replay(self) -> None:
        audit, recording = self.audit, self.audit.recording
        if recording is None:
            return
        audit.manifest.agree({"recording": recording.digest()}, audit.run)
        missing = self.missing()
        work = missing.count()
        if not work.left:
            return
        for name, text in recording.describe():
            audit.observer.stage(f"{name}: {text}")
        blocks = recording.collect(
            audit.run.path("targets"), missing.blocks(), audit.run.folder, audit.settings.word_rule
        )
        progress = audit.observer.progress("sampling", done=work.done, left=work.left)
        with progress, closing(blocks), in_background() as later:
            for number, (block, rows) in enumerate(blocks):
                if number == 0:  # from here on the recording is known to be of this corpus
                    audit.save()
                later(self._store, block, rows)
                audit.observer.worked(block.units.height, int(rows["n_tokens"].sum()))
        counts = asdict(recording.counts)
        audit.manifest.engines["samples of target"] = {"engine": "replay", "counts": counts}
        counted = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        audit.observer.stage(f"recording: {counted}")


class LogprobsStage(Stage):
    """Log-probabilities by one model of the run, of all views that the attacks read of it."""

    keeps = "log-probabilities"

    def __init__(self, audit: Audit, model: str) -> None:
        super().__init__(audit)
        self.model = model
        self.name = f"logprobs of {model}"

    def files(self) -> list[Path]:
        """List all parts of this model."""
        folder = self.audit.run.path("logprobs")
        return sorted(folder.glob(f"block-*.{self.model.replace('/', '~')}-*.parquet"))

    def run(self) -> None:
        """Ask about every text that has no row yet."""
        audit = self.audit
        views = [view for view in views_of(audit, "logprobs") if view.model == self.model]
        columns = {view.name: self._columns(view) for view in views}
        counts_tokens = any(FREQUENCY in wanted for wanted in columns.values())
        if counts_tokens:
            digest = texts_for(audit, "frequencies_from").digest()
            audit.manifest.agree({"frequencies_from": digest}, audit.run)
        if not any(self._left(view) for view in views):
            return
        computed = frozenset().union(*columns.values()) - {FREQUENCY}
        with open_session(audit, self.model, "logprobs", computed) as session:
            frequencies = None
            if self.model == "target":
                make_shots(audit, session.tokenizer, session.max_model_len)
                if counts_tokens and session.tokenizer is not None:
                    texts = texts_for(audit, "frequencies_from").documents
                    path = audit.run.folder / "frequencies.parquet"
                    frequencies = stored_frequencies(path, texts, session.tokenizer)
            missing = {view: self._missing(view) for view in views}
            work = reduce(add, map(Missing.count, missing.values()))
            progress = audit.observer.progress("log-probabilities", done=work.done, left=work.left)
            passes = {view.name: 0 for view in views}
            views_by_label = {self._parts(view).label: (view, columns[view.name]) for view in views}
            task = LogprobTask(views=views_by_label, log_inverse_frequency=frequencies)

            def told(label: str, texts: int, tokens: int, n: int) -> None:
                passes[views_by_label[label][0].name] += n
                audit.observer.worked(texts, tokens)

            blocks = (block for lacking in missing.values() for block in lacking.blocks())
            try:
                with progress:
                    for block, rows in session.executor.collect(task, blocks, told):
                        sink(rows, audit.run.path("logprobs") / block.part_name, LogProbs)
            finally:
                for name, n in passes.items():
                    key = f"{self.model} {name}"
                    audit.manifest.passes[key] = audit.manifest.passes.get(key, 0) + n
                audit.save()
        each = ", ".join(f"{name} {n:,}" for name, n in passes.items() if n)
        total = sum(passes.values())
        audit.observer.stage(f"forward passes of the {self.model} model: {total:,} ({each})")

    def left(self) -> Iterator[tuple[str, str]]:
        """Count forward passes: what one takes is known only once the model is open."""
        for view in views_of(self.audit, "logprobs"):
            if view.model == self.model:
                units = FreshUnits(self.audit.target_table(), view)
                left = Missing(units, self._parts(view)).count().left
                yield f"{self.model} {view.name}", f"{left:,} forward passes"

    def lacking(self) -> list[str]:
        """Name the attacks that need evidence which the run does not have."""
        audit, found = self.audit, []
        for view in views_of(audit, "logprobs"):
            if view.model != self.model:
                continue
            made = audit.manifest.made.get(self.name, {}).get(view.name, [])
            whole = not self._left(view)
            for attack in audit.reading("logprobs"):
                there = whole and engine_columns([attack]) <= {*made}
                if view.key in attack.reads and not there:
                    found.append(attack.name)
        return sorted(set(found))

    def _columns(self, view: View) -> frozenset[str]:
        """Decide what is computed beside log-probabilities: what was before, and what is needed.

        Where that is more than the parts have, they are removed, to be made again.
        """
        audit = self.audit
        reading = [attack for attack in audit.reading("logprobs") if view.key in attack.reads]
        needed = set(engine_columns(reading))
        if any(FREQUENCY in attack.columns for attack in reading):
            needed.add(FREQUENCY)
        made = audit.manifest.made.setdefault(self.name, {})
        before = made.get(view.name, [])
        if not needed.issubset(before):
            for part in self._parts(view).paths():
                part.unlink()
            made[view.name] = sorted(needed.union(before))
            audit.manifest.passes.pop(f"{self.model} {view.name}", None)
            audit.save()
        return frozenset(needed.union(before))

    def _parts(self, view: View) -> Parts:
        return Parts(
            folder=self.audit.run.path("logprobs"),
            schema=LogProbs,
            model=view.model,
            view=view.name,
            block_targets=LOGPROB_BLOCK_TARGETS,
        )

    def _missing(self, view: View) -> Missing:
        audit = self.audit
        units = PromptUnits(audit.run.path("targets"), prompt_parts(audit, view), view)
        return Missing(units, self._parts(view), retry_failed=audit.settings.retry_failed)

    def _left(self, view: View) -> bool:
        """Whether rows are missing, or prompts that are made once the model is open."""
        prompts = prompts_missing(self.audit, view)
        return bool(prompts.count().left or self._missing(view).count().left)
