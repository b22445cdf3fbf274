"""The stages that have a model continue prompts or rewrite texts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import reduce
from operator import add
from pathlib import Path

import polars as pl

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.collect import SampleTask
from mia_batch.evidence.parts import (
    Block,
    FreshUnits,
    Missing,
    Parts,
    PromptUnits,
    Units,
    Work,
    scan_parts,
)
from mia_batch.evidence.replay import Recording
from mia_batch.evidence.request import forecast
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.sessions import (
    ask,
    cost_lines,
    expected,
    expected_work,
    open_session,
    sample_task,
)
from mia_batch.pipeline.stages.features import FeatureWriter, sample_parts, weighed_views
from mia_batch.pipeline.stages.prompts import (
    columns_for,
    prompt_parts,
    prompts_missing,
    write_prompts,
)
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import view_of, views_of
from mia_batch.prompts.views import N_PARAPHRASES, View
from mia_batch.schemas import Paraphrases, Samples, Targets
from mia_batch.tables import in_background, sink

# The stage that has the target model continue prompts.


_MOST_OF_NO_USE = 0.5
_PROMPTS_THAT_DIFFER = 8  # more than so many different prompts have different answers
_PROMPTS_COMPARED = 1024
_SHOWN = 80
_TALLIED = ("target_id", "view_index", "candidate", "answer", "reason")


@dataclass(frozen=True, slots=True)
class Store:
    """Stores the samples of a block, and their features where these can be made by block."""

    samples: Parts
    features: FeatureWriter | None = None

    def __call__(self, block: Block, rows: pl.DataFrame) -> pl.DataFrame:
        """Store rows of a block; return what is tallied of them."""
        if self.samples.store(block, rows) and self.features is not None:
            self.features.write({block.part_name: rows}, block.units)
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


class SamplesStage(Stage):
    """Continuations by one model of the run, from an engine, an endpoint or a recording."""

    part = "evidence"
    keeps = "samples"

    def __init__(self, audit: Audit, model: str) -> None:
        super().__init__(audit)
        self.model = model
        self.name = f"samples of {model}"

    def files(self) -> list[Path]:
        """List its parts; what bears no model's name is the target's."""
        paths = sorted(self.audit.run.path("samples").glob("*.parquet"))
        owners = {path: re.search(r"\.(\w+)-", path.name) for path in paths}
        return [path for path, own in owners.items() if self.model == (own[1] if own else "target")]

    def missing(self) -> dict[View, Missing]:
        """Find what the run lacks, by view."""
        return {view: self._missing(view, self._units(view)) for view in self._views}

    @property
    def _views(self) -> list[View]:
        views = views_of(self.audit, "samples")
        return [view for view in views if view.model == self.model]

    def _units(self, view: View) -> PromptUnits:
        parts = prompt_parts(self.audit, view)
        return PromptUnits(
            self.audit.run.path("targets"), parts, view, askable=True, among=self.audit.among
        )

    def _missing(self, view: View, units: Units) -> Missing:
        audit, retry = self.audit, self.audit.settings.retry_failed
        parts = sample_parts(audit, view)
        recorded = audit.recording is not None  # whose texts cost nothing
        return Missing(
            units,
            parts,
            view.samples,
            retry_failed=retry,
            shard=audit.shard,
            work=None if recorded else expected_work(audit, view),
        )

    def answered(self) -> Work:
        """Count the prompts of all shards that have and lack samples."""
        each = (
            Missing(self._units(view), sample_parts(self.audit, view), view.samples).count()
            for view in self._views
        )
        return reduce(add, each, Work())

    def lacking(self) -> list[str]:
        """Name the attacks that need samples which the run does not have."""
        short = {
            view.key
            for view, missing in self.missing().items()
            if missing.count().left or not prompt_parts(self.audit, view).paths()
        }
        reads = {attack.name: attack.reads_of("samples") for attack in self.audit.attacks}
        return [name for name, pairs in reads.items() if short.intersection(pairs)]

    def run(self) -> None:
        """Sample what is missing, and store each block's samples and features."""
        if self.audit.recording is not None:
            self._replay()
            return
        missing = self.missing()
        if any(each.count().left for each in missing.values()):
            self._sample(missing)

    def left(self) -> Iterator[tuple[str, str]]:
        """Say what there is to decode, and what it may cost."""
        audit = self.audit
        if not self._views:
            return
        if (recording := audit.recording) is not None:
            yield "samples", f"{audit.settings.continuations:,} a target"
            yield from recording.describe()
            return
        targets = audit.target_table()
        fresh = {}
        for view in self._views:
            columns = columns_for(audit, view, targets)
            fresh[view] = self._missing(view, FreshUnits(targets, view, columns, audit.among))
        yield from self._forecast(fresh)

    def _forecast(self, missing: dict[View, Missing]) -> list[tuple[str, str]]:
        audit = self.audit
        measure, budget = expected(audit, self.model)
        each = [forecast(lacks.blocks(), measure, budget(view)) for view, lacks in missing.items()]
        workload = reduce(add, each)
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

        def told(_label: str, texts: int, tokens: int, _passes: int) -> None:
            nonlocal decoded
            decoded += tokens
            audit.observer.worked(texts, tokens)

        work = reduce(add, (lacks.count() for lacks in missing.values()))
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
            ask(audit, session, "sampling", work, wanted, on_answer=told, on_block=count)
        each = decoded / max(n_texts, 1)
        audit.observer.stage(f"decoded {decoded:,} tokens, {each:,.0f} a text")

    def _store(self, view: View) -> Store:
        audit = self.audit
        weighed = weighed_views(audit)  # for which all samples must be there first
        return Store(sample_parts(audit, view), None if weighed else FeatureWriter.of(audit, view))

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
            self._tell(recording)

    def _tell(self, recording: Recording) -> None:
        audit = self.audit
        counts = asdict(recording.counts)
        audit.manifest.engines["samples of target"] = {"engine": "replay", "counts": counts}
        counted = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        audit.observer.stage(f"recording: {counted}")


# The stage that has a model rewrite texts, for those who audit another with DE-COP.


_TOO_FEW = "{} of {} answers end and differ from the text and from each other; three are needed"
_PARAPHRASE = pl.col("candidate").str.strip_chars()
_COUNTS = (
    pl.col("finish_reason").ne_missing(pl.lit("length"))
    & (_PARAPHRASE != "")
    & (pl.col("target").str.strip_chars() != _PARAPHRASE)
)
_WORDS = r"\S+"


class RewritingStage(SamplesStage):
    """Texts in other words, as samples, and as a table that an audit takes."""

    def __init__(self, audit: Audit) -> None:
        super().__init__(audit, "target")

    @property
    def _views(self) -> list[View]:
        return [view_of(self.audit, "target", "rewriting")]

    def _store(self, view: View) -> Store:
        return Store(sample_parts(self.audit, view))

    def run(self) -> None:
        """Ask for what is missing, and write the table of all."""
        audit, run = self.audit, self.audit.run
        (view,) = self._views
        write_prompts(audit, view, prompts_missing(audit, view))
        super().run()
        table = _table(run.scan("targets"), scan_parts(run.path("samples"), Samples, view.key))
        rows = table.collect(engine="streaming")
        audit.begin_change()
        sink(rows, self.path, Paraphrases)
        audit.observer.stage(_sentence(rows))

    @property
    def path(self) -> Path:
        """The table of paraphrases."""
        return self.audit.run.path("paraphrases")


def _table(targets: pl.LazyFrame, samples: pl.LazyFrame) -> pl.LazyFrame:
    """Put what was said beside the texts, in their order."""
    asked = targets.select("target_id", "target")
    said = (
        samples.join(asked, on="target_id")
        .sort("target_id", "sample_index")
        .group_by("target_id")
        .agg(
            n=pl.len(),
            refused=pl.col("reason").drop_nulls().first(),
            paraphrases=_PARAPHRASE.filter(_COUNTS).unique(maintain_order=True),
        )
    )
    is_window, n = pl.col("n_windows") > 1, pl.col("paraphrases").list.len()
    number = pl.format("{}#{}", "document_id", "window_index")
    own = targets.select(Targets.column_names())  # further columns may be called as ours
    return own.join(said, on="target_id", how="left", maintain_order="left").select(
        document_id=pl.when(is_window).then(number).otherwise("document_id"),
        text="target",
        member="member",
        group=pl.when(is_window).then(pl.coalesce("group", "document_id")).otherwise("group"),
        paraphrases=pl.when(n > 0).then("paraphrases"),
        paraphrases_reason=pl.when(pl.col("target").is_null())
        .then("reason")
        .when(n < N_PARAPHRASES)
        .then(pl.coalesce("refused", pl.format(_TOO_FEW, n, "n"))),
    )


def _sentence(rows: pl.DataFrame) -> str:
    """Say how many texts can be asked about, and how long what was made of them is."""
    whole = rows.filter(pl.col("paraphrases_reason").is_null())
    said = f"{whole.height:,} of {rows.height:,} texts have three paraphrases"
    if whole.is_empty():
        return said
    words = pl.col("text", "paraphrases").str.count_matches(_WORDS).mean()
    text, made = whole.explode("paraphrases").select(words).row(0)
    return f"{said}, which have {made / text:.2f} times the words of the texts"
