"""The stages that make prompts and ask models about them: fills, samples, log-probabilities."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from itertools import chain
from math import log
from operator import add
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from mia_batch.attacks.attack import PROBE
from mia_batch.corpus import ColumnNames, Corpus, read_documents
from mia_batch.corpus.conversations import CONVERSATION
from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence import collect, parts
from mia_batch.evidence.collect import FREQUENCY, FillTask, LogprobTask, SampleTask
from mia_batch.evidence.parts import (
    TARGET_KEY,
    Block,
    FreshUnits,
    Missing,
    Parts,
    Units,
    Work,
)
from mia_batch.evidence.replay import Recording
from mia_batch.evidence.request import EvidenceKind, Workload, forecast
from mia_batch.models.chat import WRITTEN_DATE
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import estimated_tokens
from mia_batch.pipeline import costs, sessions
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.corpora import reading_options
from mia_batch.pipeline.request import list_columns_needed
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.features import FeatureWriter, list_weighed_views
from mia_batch.pipeline.stages.questions import (
    list_views,
    logprob_parts,
    prompt_parts,
    sample_parts,
)
from mia_batch.prompts import after_shots, choose_shots, load_template
from mia_batch.recipes import in_half
from mia_batch.schemas import Prompts, Samples, Targets
from mia_batch.tables import in_background, scan, sink
from mia_batch.targets import cluster_name
from mia_batch.views import (
    MASKED,
    REFERENCE,
    SHADOW,
    TARGET,
    RunModel,
    View,
    find_template_source,
    list_abilities,
)

# Prompts: those that need no model, those with shots, those that a masked model fills.

# Views, and the settings that give their texts
_SHOTS = ("nonmember_shots", "member_shots")
_NO_TOKENIZER = "{}= needs tokenizer=, to see how many texts fit"
_PROMPT_KEY = TARGET_KEY + pl.col("view_index")
_LONGEST_LOOKED_AT = 1000  # texts, by their bytes, for the one of most tokens


@dataclass(frozen=True, slots=True)
class RowUnits:
    """Prompts, or what they are made from, as rows; ``complete`` adds the rest of many at once."""

    rows: pl.DataFrame  # in the targets' order
    complete: Callable[[pl.DataFrame], pl.DataFrame] = pl.DataFrame.clone

    def keys(self) -> Iterator[pl.DataFrame]:
        yield self.rows.select("target_row", target=TARGET_KEY, key=_PROMPT_KEY)

    def slices(self) -> Iterator[pl.DataFrame]:
        for rows in self.rows.iter_slices(parts.TARGETS_AT_ONCE):
            yield self.complete(rows).with_columns(unit_key=_PROMPT_KEY)


class PromptsStage(Stage):
    """Make the prompts of views that need no model."""

    name = "prompts"
    activity = "making prompts"
    phase = "texts"
    makes = ("prompts",)

    def validate_dry_run(self) -> None:
        self._agree_on_views()

    def run(self) -> None:
        self._agree_on_views()
        for view in _list_prompt_views(self.audit):
            write_prompts(self.audit, view)

    def _agree_on_views(self) -> None:
        """Record the settings that change prompts and answers; refuse what views cannot have."""
        audit = self.audit
        settings = audit.settings
        views = list_views(audit)
        values: dict[str, Any] = {}
        if audit.list_attacks_on("logprobs"):
            values["long_texts"] = settings.long_texts
        for view in views:
            values |= view.evidence
        for view in list_views(audit, "samples"):
            values |= view.answers
        if any(view.filled for view in views):
            audit.agree({"source": audit.find_source("masked")}, "masked")
        audit.agree(values)
        if settings.conversations == "answers":
            self._agree_on_templates(views)
        # What is needed only once an engine has started is looked at now.
        view_names = {view.name for view in views}
        for setting in _SHOTS:
            if setting in view_names:
                read_setting_corpus(audit, setting)
        has_controls = settings.controls and settings.reference_model is not None
        if has_controls or any(view.model == "reference" for view in views):
            audit.find_source("reference")
        for view in views:
            list_prompt_columns(audit, view, audit.run.scan("targets"))

    def _agree_on_templates(self, views: Iterable[View]) -> None:
        """Record by which templates models read conversations; say what is particular."""
        audit = self.audit
        is_told = audit.settings.source == "recording" or audit.settings.chat
        models = dict.fromkeys(
            view.model
            for view in views
            if view.make is not None or view.type.needs_conversations
        )
        for model in () if is_told else models:
            if model.is_trained_here:
                continue
            source = find_template_source(audit.settings, model)
            template = load_template(source)
            audit.agree({"chat_template": template.digest}, model)
            if model == REFERENCE and source[2] != "reference_model":
                audit.observer.stage(
                    "the reference model has no chat template; it reads conversations by"
                    f" that of {source[0]}"
                )
            if template.writes_date:
                audit.observer.stage(
                    f"the chat template of {source[0]} writes the date of the day; every"
                    f" prompt has {WRITTEN_DATE:%d %B %Y}, so that runs of several days"
                    " agree"
                )


class FillsStage(Stage):
    """Make the prompts that a masked model fills."""

    name = "fills"
    activity = "filling gaps in the texts"
    phase = "fills"

    def run(self) -> None:
        audit = self.audit
        missing: dict[View, Missing] = {}
        for view in self._views:
            missing[view] = find_missing_prompts(audit, view)
        works = {view: prompts.count() for view, prompts in missing.items()}
        works = {view: work for view, work in works.items() if work.left}
        if not works:
            return
        with sessions.open_session(audit, MASKED, "fills") as session:
            build_task = partial(FillTask, run_seed=audit.settings.seed)
            jobs = (
                (
                    build_task(view=view),
                    missing[view].blocks(),
                    prompt_parts(audit, view).store,
                )
                for view in works
            )
            work = reduce(add, works.values())
            sessions.ask(audit, session, "filling", work, jobs)

    def remaining(self) -> Iterator[tuple[str, str]]:
        audit = self.audit
        for view in self._views:
            units = FreshUnits(audit.open_targets_in_order())
            prompts = prompt_parts(audit, view)
            missing = Missing(units, prompts, view.n, shard=audit.shard)
            n_texts = missing.count().left
            yield (
                f"{view.name} prompts",
                f"of {n_texts:,} texts, {view.n} each, by masked model",
            )

    @property
    def _views(self) -> list[View]:
        return [view for view in _list_prompt_views(self.audit) if view.filled]


def _list_prompt_views(audit: Audit) -> list[View]:
    """List one view per table of prompts; models that the run makes share the target's."""
    views: dict[tuple[str, str], View] = {}
    for view in list_views(audit):
        is_shared = view.model.is_trained_here
        prompt_view = replace(view, model=TARGET) if is_shared else view
        views[prompt_view.key] = prompt_view
    return [*views.values()]


def make_shots(audit: Audit, tokenizer: Tokenizer | None, context: int) -> None:
    """Make the prompts that put shots before the targets, as many as fit the model's context."""
    # A run that has chosen before keeps its number.
    for view in list_views(audit):
        setting = view.name
        if setting not in _SHOTS:
            continue
        if tokenizer is None:
            raise SettingsError(_NO_TOKENIZER.format(setting))
        corpus = read_setting_corpus(audit, setting)
        recorded = audit.manifest.evidence.get(setting, {})
        choice = {
            "digest": audit.digest_input(setting, corpus.files),
            "most": audit.settings.shots,
        }
        if all(recorded.get(name) == value for name, value in choice.items()):
            texts = list_texts(corpus, recorded["n_shots"])
            room = context
        else:
            texts = list_texts(corpus, audit.settings.shots)
            room = context - _count_longest_tokens(audit, tokenizer, context)
        shots = choose_shots(
            texts, room=room, count_tokens=tokenizer.count_tokens, setting=setting
        )
        audit.agree({setting: {**choice, "n_shots": shots.n_shots}})
        audit.observer.stage(
            f"{setting}: {shots.n_shots} texts, {shots.n_tokens:,} tokens"
        )
        write_prompts(audit, replace(view, make=partial(after_shots, shots=shots)))


def find_missing_prompts(audit: Audit, view: View) -> Missing:
    """Return the prompts of a view that the run does not have."""
    targets = scan(audit.run.order, Targets)
    units = FreshUnits(targets, columns=list_prompt_columns(audit, view, targets))
    shard = audit.shard if view.filled else None  # others are made for all at once
    return Missing(units, prompt_parts(audit, view), view.n, shard=shard)


def list_prompt_columns(
    audit: Audit, view: View, targets: pl.LazyFrame
) -> tuple[str, ...]:
    """List the columns of the corpus that a view's prompts are made from, all of the right type."""
    schema = targets.collect_schema()
    conversation = (CONVERSATION,) if CONVERSATION in schema else ()
    setting = view.column_setting
    column = getattr(audit.settings, setting) if setting else None
    if column is None:
        return conversation
    dtype = schema.get(column)
    if dtype != pl.List(pl.String):
        fault = "missing" if dtype is None else f"of type {dtype}"
        raise SettingsError(
            f"{setting}: column {column!r} of the input is {fault}; it must hold lists"
            " of texts"
        )
    return (*conversation, column)


def write_prompts(audit: Audit, view: View, missing: Missing | None = None) -> None:
    """Write the missing prompts of a view, unless a model makes them."""
    if view.make is None:
        return
    missing = missing or find_missing_prompts(audit, view)
    if not missing.count().left:
        return
    audit.begin_change()
    for block in missing.blocks():
        prompts = view.fill_prompts(view.make(block.units))
        is_missing = pl.col("view_index").is_between(block.first, block.last - 1)
        path = audit.run.path("prompts") / block.part_name
        sink(prompts.filter(is_missing), path, Prompts)


def read_setting_corpus(audit: Audit, setting: str) -> Corpus:
    """Read the corpus that a setting names."""
    columns = ColumnNames(text=audit.settings.text_column)
    return read_documents(
        getattr(audit.settings, setting), columns, **reading_options(audit.settings)
    )


def list_texts(corpus: Corpus, n: int | None = None) -> list[str]:
    """List the first texts of a corpus that are not blank."""
    is_text = pl.col("text").str.contains(r"\S")
    texts = corpus.documents.select("text").filter(is_text)
    if n is not None:
        texts = texts.head(n)
    return texts.collect(engine="streaming")["text"].to_list()


def _count_longest_tokens(audit: Audit, tokenizer: Tokenizer, context: int) -> int:
    """Count tokens of the longest target that fits the context, special tokens included."""
    texts = audit.run.scan("targets").select("target").drop_nulls()
    longest = texts.top_k(_LONGEST_LOOKED_AT, by=pl.col("target").str.len_bytes())
    targets = longest.collect(engine="streaming")["target"].to_list()
    lengths = map(len, tokenizer.encode_prompts(targets))
    return max((length for length in lengths if length <= context), default=0)


# What one model of the run answers to the views that attacks read of it.


class EvidenceStage(Stage):
    """One kind of evidence by one model."""

    phase = "evidence"
    kind: ClassVar[EvidenceKind]

    def __init__(self, audit: Audit, model: RunModel) -> None:
        super().__init__(audit)
        self.model = model
        self.foreseen = Workload()  # of a dry run
        self.foreseen_views: set[str] = set()
        self.name = f"{self.kind} of {model}"
        self.activity = f"asking the {model} model"

    @property
    def is_recorded(self) -> bool:
        """Whether another program has computed this evidence, or is to do so."""
        request = self.audit.request
        if self.kind == "samples":
            return request.recording is not None
        return self.model in request.logprobs or request.settings.texts_to is not None

    @property
    def views(self) -> list[View]:
        views = list_views(self.audit, self.kind)
        return [view for view in views if view.model == self.model]

    def parts(self, view: View) -> Parts:
        if self.kind == "samples":
            return sample_parts(self.audit, view)
        return logprob_parts(self.audit, view)

    def find_missing(
        self, view: View, *, fresh: bool = False, askable: bool = False
    ) -> Missing:
        """Return what the run has not asked; with ``fresh`` of the corpus as it is now."""
        audit = self.audit
        work: pl.Expr | None
        if self.kind == "logprobs":
            work = estimated_tokens("context") + estimated_tokens("text")
        elif self.is_recorded:
            work = None  # its texts cost nothing
        else:
            work = sessions.estimate_work(audit, view)
        units: Units = self._open_prompts(view, askable=askable)
        if fresh:
            targets = audit.open_targets_in_order()
            columns = list_prompt_columns(audit, view, targets)
            units = FreshUnits(targets, view, columns, audit.askable_targets)
        return Missing(
            units,
            self.parts(view),
            self._count_rows(view),
            retry_failed=audit.settings.retry_failed,
            shard=audit.shard,
            work=work,
        )

    def is_incomplete(self, view: View) -> bool:
        """Return whether answers are missing, or prompts; some are made once the model is open."""
        lacks_prompts = not prompt_parts(self.audit, view).paths()
        if self.kind != "samples":
            lacks_prompts = bool(find_missing_prompts(self.audit, view).count().left)
        return lacks_prompts or bool(self.find_missing(view).count().left)

    def validate_dry_run(self) -> None:
        if not self.views or self.is_recorded:
            return
        if not self.model.is_trained_here:
            abilities = self._list_abilities()
            sessions.validate_dry_run(self.audit, self.model, self.kind, abilities)

    def _list_abilities(self) -> frozenset[str]:
        """List what the model's engine must be able to give."""
        return frozenset()

    def count_prompts(self) -> Work:
        work = Work()
        for view in self.views:
            units = self._open_prompts(view)
            work += Missing(units, self.parts(view), self._count_rows(view)).count()
        return work

    def list_unscorable(self) -> list[str]:
        columns_by_view = self.audit.manifest.made.get(self.name, {})
        unscorable: set[str] = set()
        for view in self.views:
            is_incomplete = self.is_incomplete(view)
            columns = {*columns_by_view.get(view.name, [])}
            for attack in self.audit.attacks:
                if view.read_as not in attack.list_reads(self.kind):
                    continue
                has_columns = self.kind == "samples" or (
                    list_columns_needed([attack]) <= columns
                )
                if is_incomplete or not has_columns:
                    unscorable.add(attack.name)
        return sorted(unscorable)

    def _open_prompts(self, view: View, *, askable: bool = False) -> Units:
        audit = self.audit
        return parts.PromptUnits(
            audit.run.order,
            prompt_parts(audit, view),
            view,
            askable=askable or self.kind == "samples",
            among=audit.askable_targets,
        )

    def _count_rows(self, view: View) -> int:
        """Count the rows of one prompt."""
        return view.samples if self.kind == "samples" else 1


# The stage that has a model continue prompts, from an engine, an endpoint or a
# recording.

# Of the answers: scores of fewer would be about the model's refusals
_MOST_USELESS = 0.5
_PROMPTS_THAT_DIFFER = 8  # more than so many different prompts have different answers
_PROMPTS_COMPARED = 1024
_SHOWN = 80
_TALLIED = ("target_id", "view_index", "candidate", "answer", "reason")


@dataclass(slots=True)
class _Tally:
    """Counts the answers of a model, and stops where too many of them are of no use."""

    model: str
    most_useless: float  # share
    n: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    prompts: int = 0
    # Prompts with this text, by its hash
    texts: Counter[int] = field(default_factory=Counter)

    def add(self, rows: pl.DataFrame, *, question: bool) -> None:
        """Count rows of whole prompts; answers to a ``question`` may be the same."""
        was_asked = pl.col("answer").is_not_null() & (pl.col("answer") != "not_asked")
        answers = rows.filter(was_asked)
        self.n += answers.height
        self.reasons.update(answers["reason"].drop_nulls())
        n_useless = self.reasons.total()
        if n_useless > self.most_useless * self.n:
            reason, count = self.reasons.most_common(1)[0]
            self._stop(
                f"{n_useless:,} of {self.n:,} answers",
                f"of no use ({count:,} times: {reason})",
            )
        if not question and self.prompts < _PROMPTS_COMPARED:
            self._compare(answers.filter(pl.col("reason").is_null()))

    def _compare(self, answers: pl.DataFrame) -> None:
        """Stop where too many prompts have the same answer."""
        candidates = answers.unique(["target_id", "view_index", "candidate"])
        self.prompts += answers.select("target_id", "view_index").n_unique()
        self.texts.update(candidates["candidate"].hash())
        if self.prompts < _PROMPTS_THAT_DIFFER or not self.texts:
            return
        text, count = self.texts.most_common(1)[0]
        if count > self.most_useless * self.prompts:
            is_text = pl.col("candidate").hash() == text
            repeated = candidates.filter(is_text)["candidate"]
            shown = repr(repeated[0][:_SHOWN]) if repeated.len() else "one text"
            self._stop(
                f"{count:,} of {self.prompts:,} prompts", f"answered by {shown} alike"
            )

    def _stop(self, share: str, fault: str) -> None:
        raise EngineError(
            f"{share} of {self.model} are {fault}: scores of them would have no meaning."
            " Take another model or another chat_instruction=, or go on all the same"
            " with --max-failed 1; no answer is lost"
        )


def _store_samples(
    samples: Parts, writer: FeatureWriter | None, block: Block, rows: pl.DataFrame
) -> pl.DataFrame:
    """Store a block of samples, and its features; return what is tallied."""
    if samples.store(block, rows) and writer is not None:
        writer.write({block.part_name: rows}, block.units)
    return rows.select(_TALLIED)


class SamplesStage(EvidenceStage):
    """Continuations by one model of the run."""

    kind = "samples"
    costly_content = "samples"

    def list_files(self) -> list[Path]:
        """List its parts; what bears no model's name is the target's."""
        files = []
        for path in sorted(self.audit.run.path("samples").glob("*.parquet")):
            name = re.search(r"\.(\w+)-", path.name)
            if self.model == (name[1] if name else "target"):
                files.append(path)
        return files

    def run(self) -> None:
        missing = {view: self.find_missing(view) for view in self.views}
        recording = self.audit.request.recording
        if recording is not None:
            self._replay(recording, missing)
        elif any(prompts.count().left for prompts in missing.values()):
            self._sample(missing)

    def remaining(self) -> Iterator[tuple[str, str]]:
        views = self.views
        recording = self.audit.request.recording
        if views and recording is not None:
            yield "samples", f"{self.audit.settings.continuations:,} a text"
            yield from recording.describe()
        elif views:
            missing = {view: self.find_missing(view, fresh=True) for view in views}
            yield from self._forecast(missing)

    def validate_dry_run(self) -> None:
        super().validate_dry_run()
        recording = self.audit.request.recording
        if recording is None or not self.views:
            return
        self.audit.digest_input("samples_from", recording.source.files, "recording")
        for view in self.views:  # whether it is of these texts shows in the first block
            missing = self.find_missing(view, fresh=True)
            with closing(self._collect_recorded(recording, view, missing)) as blocks:
                next(blocks, None)

    def _collect_recorded(
        self, recording: Recording, view: View, missing: Missing
    ) -> Generator[tuple[Block, pl.DataFrame]]:
        run = self.audit.run
        rule = self.audit.settings.word_rule
        return recording.collect(
            run.path("targets"), view, missing.blocks(), run.folder, rule
        )

    def _forecast(self, missing: dict[View, Missing]) -> list[tuple[str, str]]:
        """Forecast the work of the missing samples; return its lines."""
        measure, budget = sessions.forecast_reading(self.audit, self.model)
        workloads = {
            view: forecast(prompts.blocks(), measure, budget(view))
            for view, prompts in missing.items()
        }
        self.foreseen_views = {
            view.name for view, workload in workloads.items() if workload.prompts
        }
        total = reduce(add, workloads.values())
        if total.too_long and not total.prompts:
            room = next(budget(view).max_model_len for view in missing)
            raise SettingsError(
                f"none of the {total.too_long:,} prompts fits the model's context of"
                f" {room:,} tokens; set fewer --window-words, or take a model with a"
                " longer context"
            )
        self.foreseen = total
        if not (total.prompts or total.too_long):
            return []
        lines = [*total.lines()]
        if self.audit.asks_endpoint(self.model):
            lines += costs.forecast_cost(self.audit, total)
        of_model = "" if self.model == "target" else f"{self.model}: "
        return [(f"{of_model}{name}", text) for name, text in lines]

    def _sample(self, missing: dict[View, Missing]) -> None:
        audit = self.audit
        for name, text in self._forecast(missing):
            # "samples:" names a setting
            label = "samples to draw" if name == "samples" else name
            audit.observer.stage(f"{label}: {text}")
        n_decoded = 0
        n_texts = 0
        tally = self._tally_stored(missing)

        def on_answer(_label: str, texts: int, tokens: int, _passes: int) -> None:
            nonlocal n_decoded
            n_decoded += tokens
            audit.observer.worked(texts, tokens)

        def count(task: SampleTask, block: Block, rows: pl.DataFrame) -> None:
            nonlocal n_texts
            n_texts += block.units["target_id"].n_unique()
            tally.add(rows, question=task.view.is_question)

        ask_samples(
            audit,
            self.model,
            "sampling",
            missing,
            self._build_store,
            on_answer=on_answer,
            on_block=count,
            tokens=self.foreseen.first_tokens,
        )
        mean = n_decoded / max(n_texts, 1)
        audit.observer.stage(f"decoded {n_decoded:,} tokens, {mean:,.0f} a text")

    def _tally_stored(self, views: Iterable[View]) -> _Tally:
        """Tally the answers that the run has."""
        most_useless = max(_MOST_USELESS, self.audit.settings.max_failed)
        tally = _Tally(f"the {self.model} model", most_useless)
        folder = self.audit.run.path("samples")
        for view in views:
            samples = parts.scan_parts(folder, Samples, view.key).select(_TALLIED)
            for rows in samples.collect_batches(maintain_order=True):
                tally.add(rows, question=view.is_question)
        return tally

    def _build_store(self, view: View) -> Callable[[Block, pl.DataFrame], pl.DataFrame]:
        """Build what stores a block, with its features unless these need all samples."""
        audit = self.audit
        writer = None
        if "features" in audit.manifest.made and not list_weighed_views(audit):
            writer = FeatureWriter.build(audit, view)
        return partial(_store_samples, self.parts(view), writer)  # can be pickled

    def _replay(self, recording: Recording, missing: dict[View, Missing]) -> None:
        audit = self.audit
        audit.digest_input("samples_from", recording.source.files, "recording")
        for view, prompts in missing.items():
            work = prompts.count()
            if not work.left:
                continue
            for name, text in recording.describe():
                audit.observer.stage(f"{name}: {text}")
            blocks = self._collect_recorded(recording, view, prompts)
            with audit.observer.progress("sampling", **asdict(work)):
                self._store_recorded(view, blocks)
            counts = asdict(recording.counts)
            audit.manifest.engines["samples of target"] = {
                "engine": audit.manifest.evidence["engine"],
                "counts": counts,
            }
            sentence = ", ".join(f"{count:,} {name}" for name, count in counts.items())
            audit.observer.stage(f"recording: {sentence}")

    def _store_recorded(
        self, view: View, blocks: Generator[tuple[Block, pl.DataFrame]]
    ) -> None:
        audit = self.audit
        store = self._build_store(view)
        with closing(blocks), in_background() as later:
            for number, (block, rows) in enumerate(blocks):
                # From here on the recording is known to be of this corpus
                if number == 0:
                    audit.save()
                later(store, block, rows)
                n_tokens = int(rows["n_tokens"].sum())
                audit.observer.worked(block.units.height, n_tokens)


def ask_samples(
    audit: Audit,
    model: RunModel,
    activity: str,
    missing: dict[View, Missing],
    build_store: Callable[[View], Callable[[Block, pl.DataFrame], Any]] | None = None,
    tokens: int = 0,
    **listeners: Callable[..., None],
) -> None:
    """Ask a model for missing samples, if there are any, and store them."""
    work = reduce(add, map(Missing.count, missing.values()))
    if not work.left:
        return
    build = build_store or (lambda view: sample_parts(audit, view).store)
    with sessions.open_session(audit, model, "samples") as session:
        build_task = partial(sessions.build_sample_task, audit, session)
        jobs = (
            (build_task(view), prompts.blocks(), build(view))
            for view, prompts in missing.items()
        )
        sessions.ask(audit, session, activity, work, jobs, tokens=tokens, **listeners)


# The stage that asks a model for log-probabilities, and the texts that shadow models
# learn.

# Roles of the texts that shadow models may learn
LEARNT = ("target", "non_member", "calibration")


def assign_halves(audit: Audit, model: RunModel) -> pl.DataFrame:
    """Return which texts a shadow model is ``trained`` on: equal ones and a document's together."""
    # Others, such as canaries, are ``learnt`` by no model, so that each is new to all
    # of them unless it is the same as a text that is. A window that several documents
    # have is learnt where one of them is: it may be in more than half of the models.
    document = pl.format(
        "document {}", cluster_name(["target_id", "window_index", "document_id"])
    )
    is_window = pl.col("n_windows") > 1
    name = pl.when(is_window).then(document).otherwise(pl.format("{}", "target"))
    rows = (
        audit.run.scan("targets")
        .filter(pl.col("target").is_not_null())
        .select("target_id", "target", name=name, learnt=pl.col("role").is_in(LEARNT))
        .collect(engine="streaming")
    )
    half = in_half(rows["name"].to_list(), model.number, audit.settings.seed)
    is_learnt = pl.col("learnt").any().over("name")
    rows = rows.with_columns(trained=pl.Series(half, dtype=pl.Boolean) & is_learnt)
    return rows.with_columns(pl.col("trained").any().over("target"))


class LogprobsStage(EvidenceStage):
    """Log-probabilities by one model of the run, of all views that the attacks read of it."""

    kind = "logprobs"
    costly_content = "log-probabilities"
    reuses_engine = True

    def list_files(self) -> list[Path]:
        folder = self.audit.run.path("logprobs")
        return sorted(folder.glob(f"block-*.{self.model.replace('/', '~')}-*.parquet"))

    def run(self) -> None:
        views = self.views
        with self.audit.changing_manifest():
            columns = {view.name: self._settle_columns(view) for view in views}
            self._agree_frequencies(columns.values())
        groups = [views]
        # Which is asked in another way at points
        if self.audit.asks_endpoint(self.model):
            points = [view for view in views if view.type.reads_next_token]
            groups = [[view for view in views if view not in points], points]
        for group in groups:
            if any(self.is_incomplete(view) for view in group):
                self._ask(group, {view.name: columns[view.name] for view in group})

    def validate(self) -> None:
        if not self.audit.asks_endpoint(self.model):
            return
        if self.audit.settings.tokenizer:
            return
        for view in self.views:
            if view.name in _SHOTS:
                raise SettingsError(_NO_TOKENIZER.format(view.name))

    def validate_dry_run(self) -> None:
        super().validate_dry_run()
        if self.views and self.model in self.audit.request.logprobs:
            with self._open_session(frozenset(), at_points=False):
                pass
        self._agree_frequencies(map(self._list_columns, self.views))

    def _open_session(
        self, abilities: frozenset[str], *, at_points: bool
    ) -> AbstractContextManager[sessions.Session]:
        """Open what answers: another program's numbers where there are any, or the model."""
        audit = self.audit
        recording = audit.request.logprobs.get(self.model)
        if recording is not None:
            texts = self.iterate_texts()
            return sessions.open_recorded(audit, self.model, recording, texts)
        return sessions.open_session(
            audit, self.model, "logprobs", abilities, at_points=at_points
        )

    def iterate_texts(self) -> Iterator[pl.DataFrame]:
        """Iterate over ``target_id``, ``view`` and ``text`` of what has no log-probabilities."""
        for view in self.views:
            for block in self.find_missing(view, fresh=True).blocks():
                asked = block.units.filter(pl.col("reason").is_null())
                yield asked.select("target_id", pl.lit(view.name).alias("view"), "text")

    def _list_abilities(self) -> frozenset[str]:
        columns = frozenset().union(*map(self._list_columns, self.views))
        return columns - {FREQUENCY} | list_abilities(self.views)

    def _agree_frequencies(self, columns: Iterable[frozenset[str]]) -> None:
        if any(FREQUENCY in names for names in columns):
            files = read_setting_corpus(self.audit, "frequencies_from").files
            self.audit.digest_input("frequencies_from", files, "frequencies_from")

    def _ask(self, views: list[View], columns: dict[str, frozenset[str]]) -> None:
        audit = self.audit
        for view in views:
            missing = self.find_missing(view)
            for name, text in costs.forecast_logprob_cost(audit, view, missing):
                audit.observer.stage(f"{name}: {text}")
        all_columns = frozenset[str]().union(*columns.values())
        at_points = all(view.type.reads_next_token for view in views)
        abilities = all_columns - {FREQUENCY} | list_abilities(views)
        n_passes = {view.name: 0 for view in views}
        names = {self.parts(view).label: view.name for view in views}

        def on_answer(label: str, texts: int, tokens: int, passes: int) -> None:
            n_passes[names[label]] += passes
            audit.observer.worked(texts, tokens)

        with self._open_session(abilities, at_points=at_points) as session:
            task = self._build_task(session, views, columns, at_points=at_points)
            missing_by_view = [self.find_missing(view) for view in views]
            work = reduce(
                add, (self.find_missing(view, askable=True).count() for view in views)
            )
            blocks = self._iterate_blocks(missing_by_view)
            jobs = [(task, blocks, self.parts(views[0]).store)]
            try:
                sessions.ask(
                    audit,
                    session,
                    "log-probabilities",
                    work,
                    jobs,
                    on_answer=on_answer,
                )
            finally:
                if not self.is_recorded:
                    self._record_passes(n_passes)
        if self.is_recorded:
            return
        by_view = ", ".join(f"{name} {n:,}" for name, n in n_passes.items() if n)
        total = sum(n_passes.values())
        audit.observer.stage(
            f"forward passes of the {self.model} model: {total:,} ({by_view})"
        )

    def _build_task(
        self,
        session: sessions.Session,
        views: list[View],
        columns: dict[str, frozenset[str]],
        *,
        at_points: bool,
    ) -> LogprobTask:
        """Build the task, after what needs the model's tokenizer is made and recorded."""
        audit = self.audit
        tokenizer = session.tokenizer
        frequencies = None
        with audit.changing_manifest():
            if self.model == "target":
                make_shots(audit, tokenizer, session.max_model_len)
                audit.save()
                has_frequency = any(FREQUENCY in names for names in columns.values())
                if has_frequency and tokenizer is not None:
                    corpus = read_setting_corpus(audit, "frequencies_from")
                    path = audit.run.folder / "frequencies.parquet"
                    frequencies = collect.stored_frequencies(
                        path, corpus.documents, tokenizer
                    )
            if tokenizer is not None and not at_points:
                engine = audit.manifest.engines[f"logprobs of {self.model}"]
                engine["chance"] = log(tokenizer.vocabulary)  # nats
        trained = None
        if self.model.role == SHADOW:
            trained = assign_halves(audit, self.model).select("target_id", "trained")
        return LogprobTask(
            views={
                self.parts(view).label: (view, columns[view.name]) for view in views
            },
            run_seed=audit.settings.seed,
            log_inverse_frequency=frequencies,
            trained=trained,
        )

    def _iterate_blocks(self, missing: list[Missing]) -> Iterator[Block]:
        for block in chain.from_iterable(rows.blocks() for rows in missing):
            # Rows of what cannot be asked, which follow, are no progress.
            self.audit.observer.worked(-block.units["reason"].count(), 0)
            yield block

    def _record_passes(self, n_passes: dict[str, int]) -> None:
        with self.audit.changing_manifest():
            counts = self.audit.manifest.passes
            for name, n in n_passes.items():
                key = f"{self.model} {name}"
                counts[key] = counts.get(key, 0) + n
            self.audit.save()

    def remaining(self) -> Iterator[tuple[str, str]]:
        """Count forward passes: what one takes is known only once the model is open."""
        recording = self.audit.request.logprobs.get(self.model)
        if self.views and recording is not None:
            yield from recording.describe()
        if self.is_recorded:
            return
        for view in self.views:
            missing = self.find_missing(view, fresh=True)
            n_passes = missing.count().left
            # Fewer than units: some texts have no further point
            if view.make is not None:
                n_passes = sum(block.units.height for block in missing.blocks())
            if not n_passes:
                continue
            self.foreseen_views.add(view.name)
            noun = "forward pass" if n_passes == 1 else "forward passes"
            text = f"{n_passes:,} {noun}"
            is_remote = self.audit.asks_endpoint(self.model)
            if view.key == PROBE and not is_remote:
                text = f"at most {text}, for points of a text may share one"
            yield f"{self.model} {view.name}", text + self._sizes(view, missing)
            yield from costs.forecast_logprob_cost(self.audit, view, missing)

    def _sizes(self, view: View, missing: Missing) -> str:
        """Return how many tokens are read and what does not fit, where the texts exist by now."""
        if view.make is None or self.model.is_trained_here:
            return ""
        measure, budget = sessions.forecast_reading(self.audit, self.model)
        room = sys.maxsize
        if self.audit.settings.long_texts == "refuse":
            room = budget(view).max_model_len
        workload = forecast(missing.blocks(), measure, room)
        self.foreseen += workload
        about = "about " if workload.estimated else ""
        sizes = ""
        if workload.prompts:
            sizes = f", {about}{workload.read_tokens:,} tokens to read"
        if workload.too_long:
            unfit = f"{about}{workload.too_long:,}"
            sizes += f"; {unfit} do not fit the context of {room:,} tokens"
        return sizes

    def has_new_texts(self) -> bool:
        """Return whether texts have no rows yet, as the corpus is now; nothing is written."""
        missing = (self.find_missing(view, fresh=True) for view in self.views)
        return any(rows.count().left for rows in missing)

    def forget_all(self) -> None:
        self.remove(self.list_files())
        for view in self.views:
            self.audit.manifest.passes.pop(f"{self.model} {view.name}", None)

    def _settle_columns(self, view: View) -> frozenset[str]:
        """Return what is computed with log-probabilities: what was before, and what is needed."""
        # Where that is more than the parts have, they are removed, to be made again.
        audit = self.audit
        needed = self._list_columns(view)
        columns_by_view = audit.manifest.made.setdefault(self.name, {})
        present = columns_by_view.get(view.name, [])
        columns = needed.union(present)
        if not needed.issubset(present):
            self.remove(self.parts(view).paths())
            columns_by_view[view.name] = sorted(columns)
            audit.manifest.passes.pop(f"{self.model} {view.name}", None)
            audit.save()
        return frozenset(columns)

    def _list_columns(self, view: View) -> frozenset[str]:
        """List the columns that attacks read of a view."""
        attacks = [
            attack
            for attack in self.audit.attacks_and_placebo
            if view.read_as in attack.list_reads("logprobs")
        ]
        columns = list_columns_needed(attacks)
        if any(FREQUENCY in attack.columns for attack in attacks):
            columns |= {FREQUENCY}
        return columns
