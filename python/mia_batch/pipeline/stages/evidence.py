"""The stages that make prompts and ask models about them: fills, samples, log-probabilities."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
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
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import estimated_tokens
from mia_batch.pipeline import costs, sessions
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.corpora import how_to_read
from mia_batch.pipeline.request import list_columns_needed
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.features import FeatureWriter, list_weighed_views
from mia_batch.pipeline.stages.questions import (
    list_views,
    logprob_parts,
    prompt_parts,
    sample_parts,
)
from mia_batch.prompts import after_shots, choose_shots
from mia_batch.recipes import in_half
from mia_batch.schemas import Prompts, Samples, Targets
from mia_batch.tables import in_background, scan, sink
from mia_batch.targets import cluster_name
from mia_batch.views import SHADOW, RunModel, View, list_abilities

# Prompts: those that need no model, those with shots, those that a masked model fills.

# Views, and the settings that give their texts
_SHOTS = (
    "nonmember_shots",
    "member_shots",
)
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
        audit, settings, views = self.audit, self.audit.settings, list_views(self.audit)
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
        # What is needed only once an engine has started is looked at now.
        names = {view.name for view in views}
        for setting in filter(names.__contains__, _SHOTS):
            read_setting_corpus(audit, setting)
        controlled = settings.controls and settings.reference_model is not None
        if controlled or any(view.model == "reference" for view in views):
            audit.find_source("reference")
        for view in views:
            list_prompt_columns(audit, view, audit.run.scan("targets"))

    def run(self) -> None:
        self.validate_dry_run()
        for view in _prompted(self.audit):
            write_prompts(self.audit, view)


class FillsStage(Stage):
    """Make the prompts that a masked model fills."""

    name = "fills"
    activity = "filling gaps in the texts"
    phase = "fills"

    def run(self) -> None:
        audit = self.audit
        missing = {
            view: find_missing_prompts(audit, view)
            for view in _prompted(audit)
            if view.filled
        }
        work = {
            view: found
            for view, each in missing.items()
            if (found := each.count()).left
        }
        if not work:
            return
        with sessions.open_session(audit, "masked", "fills") as session:
            task = partial(FillTask, run_seed=audit.settings.seed)
            wanted = (
                (
                    task(view=view),
                    missing[view].blocks(),
                    prompt_parts(audit, view).store,
                )
                for view in work
            )
            sessions.ask(audit, session, "filling", reduce(add, work.values()), wanted)

    def remaining(self) -> Iterator[tuple[str, str]]:
        audit = self.audit
        for view in (view for view in _prompted(audit) if view.filled):
            units, made = (
                FreshUnits(audit.open_targets_in_order()),
                prompt_parts(audit, view),
            )
            left = Missing(units, made, view.n, shard=audit.shard).count().left
            yield (
                f"{view.name} prompts",
                f"of {left:,} texts, {view.n} each, by masked model",
            )


def _prompted(audit: Audit) -> list[View]:
    asked = (
        replace(view, model="target")
        if RunModel.parse(view.model).is_trained_here
        else view
        for view in list_views(audit)
    )
    return list({view.key: view for view in asked}.values())


def make_shots(audit: Audit, tokenizer: Tokenizer | None, context: int) -> None:
    """Make the prompts that put shots before the targets, as many as fit the model's context."""
    # A run that has chosen before keeps its number.
    for view in (view for view in list_views(audit) if view.name in _SHOTS):
        setting = view.name
        if tokenizer is None:
            raise SettingsError(_NO_TOKENIZER.format(setting))
        corpus = read_setting_corpus(audit, setting)
        recorded = audit.manifest.evidence.get(setting, {})
        digest, most = audit.digest_input(setting, corpus.files), audit.settings.shots
        same = recorded.get("digest") == digest and recorded.get("most") == most
        texts = list_texts(corpus, recorded["n_shots"] if same else most)
        room = context if same else context - _longest(audit, tokenizer, context)
        shots = choose_shots(
            texts, room=room, count_tokens=tokenizer.count_tokens, setting=setting
        )
        audit.agree(
            {setting: {"digest": digest, "most": most, "n_shots": shots.n_shots}}
        )
        audit.observer.stage(
            f"{setting}: {shots.n_shots} texts, {shots.n_tokens:,} tokens"
        )
        write_prompts(audit, replace(view, make=partial(after_shots, shots=shots)))


def find_missing_prompts(audit: Audit, view: View) -> Missing:
    targets = scan(audit.run.order, Targets)
    units = FreshUnits(targets, columns=list_prompt_columns(audit, view, targets))
    shard = audit.shard if view.filled else None  # others are made for all at once
    return Missing(units, prompt_parts(audit, view), view.n, shard=shard)


def list_prompt_columns(
    audit: Audit, view: View, targets: pl.LazyFrame
) -> tuple[str, ...]:
    """Name the columns of the corpus that a view's prompts are made from; refuse what cannot be."""
    setting = view.column_setting
    column = getattr(audit.settings, setting) if setting else None
    if column is None:
        return ()
    found = targets.collect_schema().get(column)
    if found != pl.List(pl.String):
        what = "missing" if found is None else f"of type {found}"
        raise SettingsError(
            f"{setting}: column {column!r} of the input is {what}; it must hold lists"
            " of texts"
        )
    return (column,)


def write_prompts(audit: Audit, view: View, missing: Missing | None = None) -> None:
    if view.make is None:
        return
    missing = missing or find_missing_prompts(audit, view)
    if not missing.count().left:
        return
    audit.begin_change()
    for block in missing.blocks():
        rows = view.fill_prompts(view.make(block.units))
        wanted = rows.filter(
            pl.col("view_index").is_between(block.first, block.last - 1)
        )
        sink(wanted, audit.run.path("prompts") / block.part_name, Prompts)


def read_setting_corpus(audit: Audit, setting: str) -> Corpus:
    columns = ColumnNames(text=audit.settings.text_column)
    return read_documents(
        getattr(audit.settings, setting), columns, **how_to_read(audit.settings)
    )


def list_texts(corpus: Corpus, n: int | None = None) -> list[str]:
    there = corpus.documents.select("text").filter(pl.col("text").str.contains(r"\S"))
    texts = there if n is None else there.head(n)
    return texts.collect(engine="streaming")["text"].to_list()


def _longest(audit: Audit, tokenizer: Tokenizer, context: int) -> int:
    """Tokens of the longest target that the context can hold, special tokens included."""
    texts = audit.run.scan("targets").select("target").drop_nulls()
    longest = texts.top_k(_LONGEST_LOOKED_AT, by=pl.col("target").str.len_bytes())
    found = longest.collect(engine="streaming")["target"].to_list()
    lengths = map(len, tokenizer.encode_prompts(found))
    return max((length for length in lengths if length <= context), default=0)


# What one model of the run answers to the views that attacks read of it.


class EvidenceStage(Stage):
    """One kind of evidence by one model."""

    phase = "evidence"
    kind: ClassVar[EvidenceKind]

    def __init__(self, audit: Audit, model: str) -> None:
        super().__init__(audit)
        self.model = model
        self.foreseen, self.foreseen_views = Workload(), set[str]()  # of a dry run
        self.name = f"{self.kind} of {model}"
        self.activity = f"asking the {model} model"

    @property
    def views(self) -> list[View]:
        return [
            view
            for view in list_views(self.audit, self.kind)
            if view.model == self.model
        ]

    def parts(self, view: View) -> Parts:
        return (sample_parts if self.kind == "samples" else logprob_parts)(
            self.audit, view
        )

    def find_missing(
        self, view: View, *, fresh: bool = False, askable: bool = False
    ) -> Missing:
        """Find what the run has not asked; with ``fresh`` of the corpus as it is now."""
        audit, units = self.audit, self._asked(view, askable=askable)
        work: pl.Expr | None = estimated_tokens("context") + estimated_tokens("text")
        if self.kind == "samples":
            recorded = audit.recording is not None  # whose texts cost nothing
            work = None if recorded else sessions.estimate_work(audit, view)
        if fresh:
            targets = audit.open_targets_in_order()
            units = FreshUnits(
                targets,
                view,
                list_prompt_columns(audit, view, targets),
                audit.askable_targets,
            )
        again, shard, n_rows = (
            audit.settings.retry_failed,
            audit.shard,
            self._n_rows(view),
        )
        own = self.parts(view)
        return Missing(units, own, n_rows, retry_failed=again, shard=shard, work=work)

    def is_short(self, view: View) -> bool:
        """Whether answers are missing, or prompts; some are made once the model is open."""
        no_prompts = not prompt_parts(self.audit, view).paths()
        if self.kind != "samples":
            no_prompts = bool(find_missing_prompts(self.audit, view).count().left)
        return no_prompts or bool(self.find_missing(view).count().left)

    def validate_dry_run(self) -> None:
        if (
            self.views
            and self.audit.recording is None
            and not RunModel.parse(self.model).is_trained_here
        ):
            sessions.validate_dry_run(self.audit, self.model, self.kind, self._needed())

    def _needed(self) -> frozenset[str]:
        return frozenset()

    def count_prompts(self) -> Work:
        asked = (
            Missing(self._asked(v), self.parts(v), self._n_rows(v)) for v in self.views
        )
        return reduce(add, map(Missing.count, asked), Work())

    def list_unscorable(self) -> list[str]:
        computed, short = self.audit.manifest.made.get(self.name, {}), set[str]()
        for view in self.views:
            is_short, made = self.is_short(view), {*computed.get(view.name, [])}
            for attack in self.audit.attacks:
                has_columns = (
                    self.kind == "samples" or list_columns_needed([attack]) <= made
                )
                if view.read_as in attack.reads_of(self.kind) and (
                    is_short or not has_columns
                ):
                    short.add(attack.name)
        return sorted(short)

    def _asked(self, view: View, *, askable: bool = False) -> Units:
        audit, asks = self.audit, askable or self.kind == "samples"
        prompts, targets = prompt_parts(audit, view), audit.run.order
        return parts.PromptUnits(
            targets, prompts, view, askable=asks, among=audit.askable_targets
        )

    def _n_rows(self, view: View) -> int:
        return view.samples if self.kind == "samples" else 1


# The stage that has a model continue prompts, from an engine, an endpoint or a
# recording.

_MOST_USELESS = (
    0.5  # of the answers: scores of fewer would be about the model's refusals
)
_PROMPTS_THAT_DIFFER = 8  # more than so many different prompts have different answers
_PROMPTS_COMPARED = 1024
_SHOWN = 80
_TALLIED = ("target_id", "view_index", "candidate", "answer", "reason")


@dataclass(slots=True)
class _Tally:
    """Counts the answers of a model, and stops where more than ``most`` of them are of no use."""

    model: str
    most: float
    n: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    prompts: int = 0
    # Prompts with this text, by its hash
    texts: Counter[int] = field(default_factory=Counter)

    def add(self, rows: pl.DataFrame, *, question: bool) -> None:
        """Count rows of whole prompts; answers to a ``question`` may be the same."""
        asked = rows.filter(
            pl.col("answer").is_not_null(), pl.col("answer") != "not_asked"
        )
        self.n += asked.height
        self.reasons.update(asked["reason"].drop_nulls())
        if (lost := self.reasons.total()) > self.most * self.n:
            (why, count), *_ = self.reasons.most_common(1)
            self._stop(
                f"{lost:,} of {self.n:,} answers", f"of no use ({count:,} times: {why})"
            )
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
            self._stop(
                f"{count:,} of {self.prompts:,} prompts", f"answered by {shown} alike"
            )

    def _stop(self, which: str, what: str) -> None:
        raise EngineError(
            f"{which} of {self.model} are {what}: scores of them would have no meaning."
            " Take another model or another chat_instruction=, or go on all the same"
            " with --max-failed 1; no answer is lost"
        )


def _stored(
    own: Parts, writer: FeatureWriter | None, block: Block, rows: pl.DataFrame
) -> pl.DataFrame:
    if own.store(block, rows) and writer is not None:
        writer.write({block.part_name: rows}, block.units)
    return rows.select(_TALLIED)


class SamplesStage(EvidenceStage):
    """Continuations by one model of the run."""

    kind = "samples"
    costly_content = "samples"

    def list_files(self) -> list[Path]:
        """List its parts; what bears no model's name is the target's."""
        paths = sorted(self.audit.run.path("samples").glob("*.parquet"))
        owners = {path: re.search(r"\.(\w+)-", path.name) for path in paths}
        return [
            path
            for path, own in owners.items()
            if self.model == (own[1] if own else "target")
        ]

    def run(self) -> None:
        missing = {view: self.find_missing(view) for view in self.views}
        if (recording := self.audit.recording) is not None:
            self._replay(recording, missing)
        elif any(each.count().left for each in missing.values()):
            self._sample(missing)

    def remaining(self) -> Iterator[tuple[str, str]]:
        views, recording = self.views, self.audit.recording
        if views and recording is not None:
            yield "samples", f"{self.audit.settings.continuations:,} a text"
            yield from recording.describe()
        elif views:
            yield from self._forecast(
                {view: self.find_missing(view, fresh=True) for view in views}
            )

    def validate_dry_run(self) -> None:
        super().validate_dry_run()
        audit, recording = self.audit, self.audit.recording
        if recording is None or not self.views:
            return
        audit.digest_input("samples_from", recording.source.files, "recording")
        for view in self.views:  # whether it is of these texts shows in the first block
            with closing(
                self._recorded(recording, view, self.find_missing(view, fresh=True))
            ) as blocks:
                next(blocks, None)

    def _recorded(
        self, recording: Recording, view: View, missing: Missing
    ) -> Generator[tuple[Block, pl.DataFrame]]:
        run, rule = self.audit.run, self.audit.settings.word_rule
        return recording.collect(
            run.path("targets"), view, missing.blocks(), run.folder, rule
        )

    def _forecast(self, missing: dict[View, Missing]) -> list[tuple[str, str]]:
        measure, budget = sessions.forecast_reading(self.audit, self.model)
        each = [
            forecast(m.blocks(), measure, budget(view)) for view, m in missing.items()
        ]
        asked = (
            view.name for view, own in zip(missing, each, strict=True) if own.prompts
        )
        workload, self.foreseen_views = reduce(add, each), {*asked}
        if workload.too_long and not workload.prompts:
            room = next(budget(view).max_model_len for view in missing)
            raise SettingsError(
                f"none of the {workload.too_long:,} prompts fits the model's context of"
                f" {room:,} tokens; set fewer --window-words, or take a model with a"
                " longer context"
            )
        self.foreseen, lines = workload, [*workload.lines()]
        if costs.is_asked_remotely(self.audit, self.model):
            lines += costs.forecast_cost(self.audit, workload)
        of_whom = "" if self.model == "target" else f"{self.model}: "
        return [(f"{of_whom}{name}", text) for name, text in lines]

    def _sample(self, missing: dict[View, Missing]) -> None:
        audit = self.audit
        for name, text in self._forecast(missing):
            # "samples:" names a setting
            named = "samples to draw" if name == "samples" else name
            audit.observer.stage(f"{named}: {text}")
        decoded = n_texts = 0
        tally = _Tally(
            f"the {self.model} model", max(_MOST_USELESS, audit.settings.max_failed)
        )
        for view in missing:
            there = parts.scan_parts(
                audit.run.path("samples"), Samples, view.key
            ).select(_TALLIED)
            for rows in there.collect_batches(maintain_order=True):
                tally.add(rows, question=view.is_question)

        def on_answer(_label: str, texts: int, tokens: int, _passes: int) -> None:
            nonlocal decoded
            decoded += tokens
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
            self._store,
            on_answer=on_answer,
            on_block=count,
        )
        each = decoded / max(n_texts, 1)
        audit.observer.stage(f"decoded {decoded:,} tokens, {each:,.0f} a text")

    def _store(self, view: View) -> Callable[[Block, pl.DataFrame], pl.DataFrame]:
        audit = self.audit
        at_once = "features" in audit.manifest.made and not list_weighed_views(audit)
        writer = FeatureWriter.build(audit, view) if at_once else None
        return partial(_stored, self.parts(view), writer)  # other machines are sent it

    def _replay(self, recording: Recording, missing: dict[View, Missing]) -> None:
        audit = self.audit
        audit.digest_input("samples_from", recording.source.files, "recording")
        for view, each in missing.items():
            work = each.count()
            if not work.left:
                continue
            for name, text in recording.describe():
                audit.observer.stage(f"{name}: {text}")
            blocks = self._recorded(recording, view, each)
            progress = audit.observer.progress("sampling", **asdict(work))
            store = self._store(view)
            with progress, closing(blocks), in_background() as later:
                for number, (block, rows) in enumerate(blocks):
                    # From here on the recording is known to be of this corpus
                    if number == 0:
                        audit.save()
                    later(store, block, rows)
                    audit.observer.worked(
                        block.units.height, int(rows["n_tokens"].sum())
                    )
            counts = asdict(recording.counts)
            audit.manifest.engines["samples of target"] = {
                "engine": "replay",
                "counts": counts,
            }
            counted = ", ".join(f"{count:,} {name}" for name, count in counts.items())
            audit.observer.stage(f"recording: {counted}")


def ask_samples(
    audit: Audit,
    model: str,
    activity: str,
    missing: dict[View, Missing],
    store: Callable[[View], Callable[[Block, pl.DataFrame], Any]] | None = None,
    same: str | None = None,
    **listening: Callable[..., None],
) -> None:
    work = reduce(add, map(Missing.count, missing.values()))
    if not work.left:
        return
    stores = store or (lambda view: sample_parts(audit, view).store)
    with sessions.open_session(audit, model, "samples", started_engine=same) as session:
        task = partial(sessions.build_sample_task, audit, session)
        wanted = (
            (task(view), each.blocks(), stores(view)) for view, each in missing.items()
        )
        sessions.ask(audit, session, activity, work, wanted, **listening)


# The stage that asks a model for log-probabilities, and the texts that shadow models
# learn.

# Roles of the texts that shadow models may learn
LEARNT = (
    "target",
    "non_member",
    "calibration",
)


def assign_halves(audit: Audit, model: str) -> pl.DataFrame:
    """Deal out the texts: windows of a document go together, and so do texts that are the same."""
    # Others, such as canaries, are ``learnt`` by no model, so that each is new to all
    # of them unless it is the same as a text that is. A window that several documents
    # have is learnt where one of them is: it may be in more than half of the models.
    document = pl.format(
        "document {}", cluster_name(["target_id", "window_index", "document_id"])
    )
    name = (
        pl.when(pl.col("n_windows") > 1)
        .then(document)
        .otherwise(pl.format("{}", "target"))
    )
    rows = (
        audit.run.scan("targets")
        .filter(pl.col("target").is_not_null())
        .select("target_id", "target", name=name, learnt=pl.col("role").is_in(LEARNT))
        .collect(engine="streaming")
    )
    own = in_half(
        rows["name"].to_list(), RunModel.parse(model).number, audit.settings.seed
    )
    return rows.with_columns(
        trained=pl.Series(own, dtype=pl.Boolean) & pl.col("learnt").any().over("name")
    ).with_columns(pl.col("trained").any().over("target"))


class LogprobsStage(EvidenceStage):
    """Log-probabilities by one model of the run, of all views that the attacks read of it."""

    kind = "logprobs"
    costly_content = "log-probabilities"
    reuses_engine = True

    def list_files(self) -> list[Path]:
        folder = self.audit.run.path("logprobs")
        return sorted(folder.glob(f"block-*.{self.model.replace('/', '~')}-*.parquet"))

    def run(self) -> None:
        audit, views = self.audit, self.views
        with audit.changing_manifest():
            columns = {view.name: self._columns(view) for view in views}
            self._agree_frequencies(columns.values())
        groups = [views]
        # Which is asked in another way at points
        if costs.is_asked_remotely(audit, self.model):
            points = [view for view in views if view.type.reads_next_token]
            groups = [[view for view in views if view not in points], points]
        for group in groups:
            if any(self.is_short(view) for view in group):
                self._ask(group, {view.name: columns[view.name] for view in group})

    def validate(self) -> None:
        uncounted = (
            costs.is_asked_remotely(self.audit, self.model)
            and not self.audit.settings.tokenizer
        )
        for view in self.views if uncounted else ():
            if view.name in _SHOTS:
                raise SettingsError(_NO_TOKENIZER.format(view.name))

    def validate_dry_run(self) -> None:
        super().validate_dry_run()
        self._agree_frequencies(map(self._read, self.views))

    def _needed(self) -> frozenset[str]:
        columns = frozenset().union(*map(self._read, self.views))
        return columns - {FREQUENCY} | list_abilities(self.views)

    def _agree_frequencies(self, columns: Iterable[frozenset[str]]) -> None:
        if any(FREQUENCY in wanted for wanted in columns):
            files = read_setting_corpus(self.audit, "frequencies_from").files
            self.audit.digest_input("frequencies_from", files, "frequencies_from")

    def _ask(self, views: list[View], columns: dict[str, frozenset[str]]) -> None:
        audit, wanted = self.audit, frozenset[str]().union(*columns.values())
        for view in views:
            for name, text in costs.forecast_logprob_cost(
                audit, view, self.find_missing(view)
            ):
                audit.observer.stage(f"{name}: {text}")
        at_points = all(view.type.reads_next_token for view in views)
        needed = wanted - {FREQUENCY} | list_abilities(views)
        passes = {view.name: 0 for view in views}
        with sessions.open_session(
            audit, self.model, "logprobs", needed, at_points=at_points
        ) as session:
            frequencies = trained = None
            with audit.changing_manifest():
                if self.model == "target":
                    make_shots(audit, session.tokenizer, session.max_model_len)
                    audit.save()
                    if FREQUENCY in wanted and session.tokenizer is not None:
                        texts = read_setting_corpus(audit, "frequencies_from").documents
                        path = audit.run.folder / "frequencies.parquet"
                        frequencies = collect.stored_frequencies(
                            path, texts, session.tokenizer
                        )
                if session.tokenizer is not None and not at_points:
                    engine = audit.manifest.engines[f"logprobs of {self.model}"]
                    engine["chance"] = log(session.tokenizer.vocabulary)  # nats
            if RunModel.parse(self.model).role == SHADOW:
                trained = assign_halves(audit, self.model).select(
                    "target_id", "trained"
                )
            by_label = {
                self.parts(view).label: (view, columns[view.name]) for view in views
            }
            seed = audit.settings.seed
            task = LogprobTask(
                views=by_label,
                run_seed=seed,
                log_inverse_frequency=frequencies,
                trained=trained,
            )

            def on_answer(label: str, texts: int, tokens: int, n: int) -> None:
                passes[by_label[label][0].name] += n
                audit.observer.worked(texts, tokens)

            missing = [self.find_missing(view) for view in views]
            work = reduce(
                add, (self.find_missing(view, askable=True).count() for view in views)
            )

            def blocks() -> Iterator[Block]:
                for block in chain.from_iterable(each.blocks() for each in missing):
                    # Rows of what cannot be asked, which follow, are no progress.
                    audit.observer.worked(-block.units["reason"].count(), 0)
                    yield block

            try:
                asked = [(task, blocks(), self.parts(views[0]).store)]
                sessions.ask(
                    audit,
                    session,
                    "log-probabilities",
                    work,
                    asked,
                    on_answer=on_answer,
                )
            finally:
                with audit.changing_manifest():
                    counts = audit.manifest.passes
                    for key, n in (
                        (f"{self.model} {name}", n) for name, n in passes.items()
                    ):
                        counts[key] = counts.get(key, 0) + n
                    audit.save()
        each = ", ".join(f"{name} {n:,}" for name, n in passes.items() if n)
        total = sum(passes.values())
        audit.observer.stage(
            f"forward passes of the {self.model} model: {total:,} ({each})"
        )

    def remaining(self) -> Iterator[tuple[str, str]]:
        """Count forward passes: what one takes is known only once the model is open."""
        for view in self.views:
            missing = self.find_missing(view, fresh=True)
            left = missing.count().left
            # Fewer than units: some texts have no further point
            if view.make is not None:
                left = sum(block.units.height for block in missing.blocks())
            if left:
                self.foreseen_views.add(view.name)
            named = (
                f"{left:,} forward pass" if left == 1 else f"{left:,} forward passes"
            )
            if (
                view.key == PROBE
                and left
                and not costs.is_asked_remotely(self.audit, self.model)
            ):
                named = f"at most {named}, for points of a text may share one"
            yield f"{self.model} {view.name}", named + self._sizes(view, missing)
            yield from costs.forecast_logprob_cost(self.audit, view, missing)

    def _sizes(self, view: View, missing: Missing) -> str:
        """Say how many tokens are read and what does not fit, where the texts are known by now."""
        audit = self.audit
        if view.make is None or RunModel.parse(self.model).is_trained_here:
            return ""
        measure, budget = sessions.forecast_reading(audit, self.model)
        whole = audit.settings.long_texts == "refuse"
        room = budget(view).max_model_len if whole else sys.maxsize
        found = forecast(missing.blocks(), measure, room)
        self.foreseen += found
        about = "about " if found.estimated else ""
        long = f"; {about}{found.too_long:,} do not fit the context of {room:,} tokens"
        tokens = (
            f", {about}{found.read_tokens:,} tokens to read" if found.prompts else ""
        )
        return tokens + (long if found.too_long else "")

    def is_incomplete(self) -> bool:
        """Whether texts have no rows yet, as the corpus is now; nothing is written."""
        return any(
            self.find_missing(view, fresh=True).count().left for view in self.views
        )

    def forget_all(self) -> None:
        self.remove(self.list_files())
        for view in self.views:
            self.audit.manifest.passes.pop(f"{self.model} {view.name}", None)

    def _columns(self, view: View) -> frozenset[str]:
        """Decide what is computed with log-probabilities: what was before, and what is needed."""
        # Where that is more than the parts have, they are removed, to be made again.
        audit, needed = self.audit, self._read(view)
        made = audit.manifest.made.setdefault(self.name, {})
        before = made.get(view.name, [])
        if not needed.issubset(before):
            self.remove(self.parts(view).paths())
            made[view.name] = sorted(needed.union(before))
            audit.manifest.passes.pop(f"{self.model} {view.name}", None)
            audit.save()
        return frozenset(needed.union(before))

    def _read(self, view: View) -> frozenset[str]:
        asking = self.audit.attacks_and_placebo
        reading = [
            attack for attack in asking if view.read_as in attack.reads_of("logprobs")
        ]
        counted = any(FREQUENCY in attack.columns for attack in reading)
        return list_columns_needed(reading) | ({FREQUENCY} if counted else set())
