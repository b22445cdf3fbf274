"""The stage that has a model continue prompts, from an engine, an endpoint or a recording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial, reduce
from operator import add
from pathlib import Path

import polars as pl

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.collect import SampleTask
from mia_batch.evidence.parts import Block, Missing, Parts, scan_parts
from mia_batch.evidence.request import forecast
from mia_batch.pipeline.sessions import (
    ask,
    cost_lines,
    expected,
    expected_work,
    open_session,
    sample_task,
)
from mia_batch.pipeline.stages.features import FeatureWriter, sample_parts, weighed_views
from mia_batch.pipeline.stages.prompts import EvidenceStage, prompt_parts
from mia_batch.prompts.views import View
from mia_batch.schemas import Samples
from mia_batch.tables import in_background

# The stage that has the target model continue prompts.


_MOST_OF_NO_USE = 0.5
_PROMPTS_THAT_DIFFER = 8  # more than so many different prompts have different answers
_PROMPTS_COMPARED = 1024
_SHOWN = 80
_TALLIED = ("target_id", "view_index", "candidate", "answer", "reason")


def store_samples(
    parts: Parts, features: FeatureWriter | None, block: Block, rows: pl.DataFrame
) -> pl.DataFrame:
    """Store the samples of a block, and their features; return what is tallied of them."""
    if parts.store(block, rows) and features is not None:
        features.write({block.part_name: rows}, block.units)
    return rows.select(_TALLIED)


@dataclass(slots=True)
class _Tally:
    """Counts the answers of a model, and stops where they are mostly of no use.

    ``most`` is the share that may be.
    """

    model: str
    most: float
    n: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    prompts: int = 0
    texts: Counter[int] = field(default_factory=Counter)  # prompts with this text, by its hash

    def add(self, rows: pl.DataFrame, *, question: bool) -> None:
        """Count rows of whole prompts; answers to a ``question`` may be the same."""
        asked = rows.filter(pl.col("answer").is_not_null(), pl.col("answer") != "not_asked")
        self.n += asked.height
        self.reasons.update(asked["reason"].drop_nulls())
        if (lost := self.reasons.total()) > self.most * self.n:
            (why, count), *_ = self.reasons.most_common(1)
            self._stop(f"{lost:,} of {self.n:,} answers", f"of no use ({count:,} times: {why})")
        if question or self.prompts >= _PROMPTS_COMPARED:
            return
        texts = asked.filter(pl.col("reason").is_null())
        each = texts.unique(["target_id", "view_index", "candidate"])
        self.prompts += texts.select("target_id", "view_index").n_unique()
        self.texts.update(each["candidate"].hash())
        (text, count), *_ = self.texts.most_common(1) or [(0, 0)]
        if self.prompts >= _PROMPTS_THAT_DIFFER and count > self.most * self.prompts:
            said = each.filter(pl.col("candidate").hash() == text)["candidate"]
            shown = repr(said[0][:_SHOWN]) if said.len() else "one text"
            self._stop(f"{count:,} of {self.prompts:,} prompts", f"answered by {shown} alike")

    def _stop(self, which: str, what: str) -> None:
        raise EngineError(
            f"{which} of {self.model} are {what}: scores of them would have no meaning. Take "
            "another model or another 'chat_instruction', or go on all the same with "
            "--max-failed 1; no answer is lost"
        )


class SamplesStage(EvidenceStage):
    """Continuations by one model of the run, from an engine, an endpoint or a recording."""

    kind = "samples"
    keeps = "samples"

    def files(self) -> list[Path]:
        """List its parts; what bears no model's name is the target's."""
        paths = sorted(self.audit.run.path("samples").glob("*.parquet"))
        owners = {path: re.search(r"\.(\w+)-", path.name) for path in paths}
        return [path for path, own in owners.items() if self.model == (own[1] if own else "target")]

    def parts(self, view: View) -> Parts:
        return sample_parts(self.audit, view)

    def missing(self, *, fresh: bool = False) -> dict[View, Missing]:
        """Find what the run lacks, by view; with ``fresh`` of the corpus as it is now."""
        audit = self.audit
        recorded = audit.recording is not None  # whose texts cost nothing
        return {
            view: Missing(
                self.fresh_prompts(view) if fresh else self.prompts(view),
                self.parts(view),
                view.samples,
                retry_failed=audit.settings.retry_failed,
                shard=audit.shard,
                work=None if recorded else expected_work(audit, view),
            )
            for view in self.views
        }

    def lacking(self) -> list[str]:
        short = {
            view.key
            for view, missing in self.missing().items()
            if missing.count().left or not prompt_parts(self.audit, view).paths()
        }
        reads = {attack.name: attack.reads_of("samples") for attack in self.audit.attacks}
        return [name for name, pairs in reads.items() if short.intersection(pairs)]

    def run(self) -> None:
        if self.audit.recording is not None:
            self._replay()
            return
        missing = self.missing()
        if any(each.count().left for each in missing.values()):
            self._sample(missing)

    def left(self) -> Iterator[tuple[str, str]]:
        audit = self.audit
        if not self.views:
            return
        if (recording := audit.recording) is not None:
            yield "samples", f"{audit.settings.continuations:,} a target"
            yield from recording.describe()
            return
        yield from self._forecast(self.missing(fresh=True))

    def _forecast(self, missing: dict[View, Missing]) -> list[tuple[str, str]]:
        audit = self.audit
        measure, budget = expected(audit, self.model)
        workload = reduce(
            add,
            (forecast(each.blocks(), measure, budget(view)) for view, each in missing.items()),
        )
        if workload.too_long and not workload.prompts:
            room = next(budget(view).max_model_len for view in missing)
            raise SettingsError(
                f"none of the {workload.too_long:,} prompts fits the model's context of {room:,} "
                "tokens; set fewer --window-words, or take a model with a longer context"
            )
        lines = [*workload.lines()]
        if self.model == "target" and audit.manifest.evidence["engine"] == "openai":
            lines += cost_lines(audit.settings, workload)
        if self.model == "target":
            return lines
        return [(f"{self.model}: {name}", text) for name, text in lines]

    def _sample(self, missing: dict[View, Missing]) -> None:
        audit = self.audit
        for name, text in self._forecast(missing):
            audit.observer.stage(f"{name}: {text}")
        decoded = n_texts = 0

        def on_answer(_label: str, texts: int, tokens: int, _passes: int) -> None:
            nonlocal decoded
            decoded += tokens
            audit.observer.worked(texts, tokens)

        work = reduce(add, (each.count() for each in missing.values()))
        name = f"the {self.model} model"
        tally = _Tally(name, max(_MOST_OF_NO_USE, audit.settings.max_failed))
        for view in missing:
            there = scan_parts(audit.run.path("samples"), Samples, view.key).select(_TALLIED)
            for rows in there.collect_batches(maintain_order=True):
                tally.add(rows, question=view.question)

        def count(task: SampleTask, block: Block, rows: pl.DataFrame) -> None:
            nonlocal n_texts
            n_texts += block.units["target_id"].n_unique()
            tally.add(rows, question=task.view.question)

        with open_session(audit, self.model, "samples") as session:
            wanted = (
                (sample_task(audit, session, view), each.blocks(), self._store(view))
                for view, each in missing.items()
            )
            ask(audit, session, "sampling", work, wanted, on_answer=on_answer, on_block=count)
        each = decoded / max(n_texts, 1)
        audit.observer.stage(f"decoded {decoded:,} tokens, {each:,.0f} a text")

    def _store(self, view: View) -> Callable[[Block, pl.DataFrame], pl.DataFrame]:
        weighed = weighed_views(self.audit)  # for which all samples must be there first
        writer = None if weighed else FeatureWriter.of(self.audit, view)
        return partial(store_samples, self.parts(view), writer)

    def _replay(self) -> None:
        audit, recording = self.audit, self.audit.recording
        if recording is None:
            return
        digest = audit.digest_input("samples_from", recording.source.files)
        audit.manifest.agree({"recording": digest}, audit.run.folder)
        for view, missing in self.missing().items():
            work = missing.count()
            if not work.left:
                continue
            for name, text in recording.describe():
                audit.observer.stage(f"{name}: {text}")
            blocks = recording.collect(
                audit.run.path("targets"),
                view,
                missing.blocks(),
                audit.run.folder,
                audit.settings.word_rule,
            )
            progress = audit.observer.progress("sampling", done=work.done, left=work.left)
            store = self._store(view)
            with progress, closing(blocks), in_background() as later:
                for number, (block, rows) in enumerate(blocks):
                    if number == 0:  # from here on the recording is known to be of this corpus
                        audit.save()
                    later(store, block, rows)
                    audit.observer.worked(block.units.height, int(rows["n_tokens"].sum()))
            counts = asdict(recording.counts)
            audit.manifest.engines["samples of target"] = {"engine": "replay", "counts": counts}
            counted = ", ".join(f"{count:,} {name}" for name, count in counts.items())
            audit.observer.stage(f"recording: {counted}")
