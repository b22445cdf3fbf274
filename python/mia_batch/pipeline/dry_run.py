"""A dry run: what a run would do, ask and cost, and all that it would refuse; nothing is asked."""

import os
import shutil
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from errno import EACCES, ENOTDIR
from itertools import chain
from math import ceil, inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, TypeVar

import polars as pl

from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.observer import Clock, Observer
from mia_batch.pipeline import audits, lodged_plan
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.costs import forecast_whole_cost
from mia_batch.pipeline.custody import list_files
from mia_batch.pipeline.earlier_runs import (
    describe_earlier_runs,
    find_speeds,
    list_earlier_runs,
)
from mia_batch.pipeline.folder import (
    HELD,
    UNWRITABLE,
    AuditFolder,
    choose_place,
    reading,
)
from mia_batch.pipeline.request import list_columns_needed
from mia_batch.pipeline.stages import Stage, damage_set_aside
from mia_batch.pipeline.stages.answers import AnswersStage
from mia_batch.pipeline.stages.evidence import EvidenceStage, LogprobsStage
from mia_batch.pipeline.stages.recitals import RecitalsStage
from mia_batch.places import fetched
from mia_batch.settings import Settings
from mia_batch.tables import replacing

Speed: TypeAlias = float | Literal["probe"] | None
_Line: TypeAlias = tuple[str, str]
"""What is said, as name and text."""
AskingStage: TypeAlias = EvidenceStage | AnswersStage | RecitalsStage
Returned = TypeVar("Returned")
_Speeds: TypeAlias = dict[str, tuple[float, str]]
"""Tokens a second by stage, and where they come from."""

_MAX_BOOKS = 12
_MAX_ATTACKS = 6
_MAX_MINUTES = 180
_N_PROBED_TEXTS = 32
_N_CONTINUED_TEXTS = 8
_LOGITS_MEMORY = (
    "128 MiB on a CPU; on a GPU an eighth of what the weights leave free, at most 4 GiB"
)


class _Notes(Observer):
    """Keeps the sentences of stages; what is being done is shown to another observer."""

    def __init__(self, other: Observer) -> None:
        self._other = other
        self._sentences: list[str] = []

    def stage(self, sentence: str) -> None:
        self._sentences.append(sentence)

    def step(self, doing: str) -> None:
        self._other.step(doing)

    def pass_on(self, sentences: Iterable[str]) -> None:
        self._sentences += sentences

    def pop_sentences(self) -> list[str]:
        sentences, self._sentences = self._sentences, []
        return sentences


def plan(
    settings: Settings,
    *,
    speed: Speed = None,
    observer: Observer | None = None,
    write: bool = False,
) -> Iterator[_Line]:
    """Iterate over what is left to do for these settings, as name and text; the run stays as it is.

    With ``write`` the plan of a run that has not begun is written into its folder. What
    a run makes before it asks is made as it makes it, in a folder of its own, so that
    all that it would refuse is raised here, too. Minutes come from a ``speed`` in tokens
    a second, by default that of a run of this model.
    """
    settings = choose_place(settings)
    notes = _Notes(observer or Observer())
    notes.step("looking at the texts and the model")
    fetched(settings.place)
    audit = Audit.begin(settings, notes)
    _check_folder(audit)
    can_probe = not audit.asks_endpoint("target") and audit.recording is None
    planned = lodged_plan.build_plan(audit)
    machine = [*_describe_machine(audit, planned)]
    yield from _describe_texts(audit)
    notes.pass_on(audit.request.notes)
    with _linked_stages(audit) as stages:
        work, refusal = yield from _rehearse(audit, stages, notes)
        yield from _describe_answer(audit, planned)
        asking: list[AskingStage] = [
            stage for stage in stages if isinstance(stage, AskingStage)
        ]
        # Before a few texts are asked, which is counted anew
        n_tokens = {stage.name: _count(stage) for stage in asking if _count(stage)}
        speeds: _Speeds = {}
        if speed == "probe":
            if not can_probe:
                raise SettingsError(
                    "--tokens-per-second probe needs a model that runs here"
                )
            notes.step(f"asking about {_N_PROBED_TEXTS} texts")
            speeds = _measure_speeds(audit, stages[2], asking)
    if speed is None:
        speeds = find_speeds(audit, asking)
    elif speed != "probe":
        if not isinstance(speed, float | int) or not 0 < speed < inf:  # type: ignore[redundant-expr]
            raise SettingsError(
                f"speed= is {speed!r}; give tokens a second, or 'probe'"
            )
        speeds = _choose_speeds(asking, speed)
    yield from _describe_time(n_tokens, speeds, can_probe=can_probe)
    yield from _describe_work(audit, work)
    yield from forecast_whole_cost(audit)
    yield from machine
    if refusal is not None:
        raise refusal
    if write:
        yield "plan file", lodged_plan.write_plan(audit, planned)


def write_needed_texts(settings: Settings, observer: Observer) -> int:
    """Write the texts whose log-probabilities the attacks read, and return how many.

    A line has ``target_id``, ``view`` and ``text``. What another program computes of
    them is what ``logprobs_from`` takes.
    """
    path = Path(str(settings.texts_to))
    if path.exists():
        raise SettingsError(f"texts_to= is {str(path)!r}, which is there; name another")
    notes = _Notes(observer)
    audit = Audit.begin(settings, notes)
    n_texts = 0
    with _linked_stages(audit) as stages:
        _, refusal = _run_to_end(_rehearse(audit, stages, notes))
        if refusal is not None:
            raise refusal
        readers = [stage for stage in stages if isinstance(stage, LogprobsStage)]
        of_target = [stage for stage in readers if stage.model == "target"]
        with replacing(path) as file:
            for rows in chain.from_iterable(
                stage.iterate_texts() for stage in of_target
            ):
                rows.write_ndjson(file)
                n_texts += rows.height
    return n_texts


def _run_to_end(lines: Generator[_Line, None, Returned]) -> Returned:
    """Return what a generator returns, whose lines nobody reads."""
    while True:
        try:
            next(lines)
        except StopIteration as end:
            result: Returned = end.value
            return result


def _describe_texts(audit: Audit) -> Iterator[_Line]:
    """Iterate over what is known of the texts before they are cut."""
    corpus = audit.corpora.input
    documents = f"{corpus.n_documents:,}"
    if corpus.draw is not None:
        documents = corpus.write_number()
    yield "documents", f"{documents}{audits.describe_windows(audit.settings)}"
    yield from (("note", sentence) for sentence in audit.corpora.notes())
    earlier_runs = list_earlier_runs(audit, audits.hash_texts(audit))
    for sentence in describe_earlier_runs(audit, earlier_runs):
        yield "earlier runs", sentence


def _describe_answer(audit: Audit, planned: dict[str, Any]) -> Iterator[_Line]:
    """Iterate over the attacks, and how they differ from a plan that was lodged."""
    names = [attack.name for attack in audit.attacks]
    n_shown = _MAX_ATTACKS if len(names) > _MAX_ATTACKS + 1 else len(names)
    n_others = len(names) - n_shown
    first_names = ", ".join(names[:n_shown])
    yield "attacks", first_names + (f" and {n_others:,} more" if n_others else "")
    yield "primary attack", audit.rule.primary
    lodged = lodged_plan.check(audit)
    if lodged is not None:
        for difference in lodged_plan.list_differences(lodged, planned):
            yield "differs from the plan", difference


def _describe_work(audit: Audit, work: Sequence[_Line]) -> Iterator[_Line]:
    """Iterate over what is left to do; of a run that has all it needs that nothing is."""
    if work:
        yield from work
    else:
        outcome = ": the run is finished" if audit.manifest.custody else ""
        yield "left", f"nothing is left to ask{outcome}"


def _describe_machine(audit: Audit, planned: dict[str, Any]) -> Iterator[_Line]:
    """Iterate over what answers, and the hash of what is planned."""
    settings = audit.settings
    engine, reason = audit.manifest.evidence["engine"], audit.manifest.engine_choice
    if settings.source == "engine" and not audit.list_attacks_on("samples"):
        columns = list_columns_needed(audit.attacks)
        engine, reason = audit.find_engine("logprobs", columns)
    if audit.shard is not None:
        yield (
            "shard",
            f"{audit.shard}: what follows of samples and log-probabilities is its share",
        )
    yield "engine", f"{engine} ({reason})"
    if settings.source == "engine" and audit.list_attacks_on("logprobs"):
        limit = settings.logits_memory
        yield (
            "logits memory",
            _LOGITS_MEMORY if limit is None else f"at most {limit:,} MiB",
        )
    yield "plan", _describe_hash(audit, planned)
    if settings.base_url is not None:
        yield "plan", lodged_plan.NAME_ALONE


def _describe_hash(audit: Audit, planned: dict[str, Any]) -> str:
    """Return the SHA-256 of the plan, and what it is of."""
    text = f"SHA-256 {lodged_plan.compute_sha256(planned)}"
    lodged = lodged_plan.check(audit)
    if lodged is not None and not lodged_plan.list_differences(lodged, planned):
        text += f", equal to {audit.settings.plan}"
    return f"{text}, of the texts, the model, the attacks and the settings"


def _rehearse(
    audit: Audit, stages: Sequence[Stage], notes: _Notes
) -> Generator[_Line, None, tuple[list[_Line], SettingsError | None]]:
    """Do what a run does before it asks, and iterate over what that says of the texts.

    Returned is what would be left to do, and why that would be refused, if it would.
    """
    refusal = None
    audits.resume(audit, stages)
    for stage in stages:
        stage.prepare()
    lines = [("note", sentence) for sentence in notes.pop_sentences()]
    targets_stage, preflight_stage, prompts_stage, *_ = stages
    for stage, name in ((targets_stage, "note"), (preflight_stage, "power")):
        notes.step(stage.activity)
        try:
            stage.run()
        except SettingsError as error:
            if name == "note":
                yield from lines
                raise
            refusal = error
        # How many targets there are follows below
        repeated = (stage.activity, f"{audit.manifest.targets['total']:,} target")
        lines += (
            (name, sentence)
            for sentence in notes.pop_sentences()
            if not sentence.startswith(repeated)
        )
    notes.step("looking at what is to be asked")
    prompts_stage.validate_dry_run()
    for stage in stages:
        stage.validate()
    for stage in stages:
        stage.validate_dry_run()
    test = audit.build_rounds_test()
    if test is not None:
        audit.askable_targets = test.may_be_asked(-1)
    yield from targets_stage.remaining()
    others = (stage for stage in stages if stage is not targets_stage)
    work = [line for stage in others for line in stage.remaining()]
    yield from _describe_books(audit, stages)
    yield from _describe_comparison(audit)
    yield from lines
    return work, refusal


_NOTHING_COMPARED = (
    "what comes out word for word, and an order of the texts; whether the model knows"
    " each takes comparison texts (--non-members)"
)


def _describe_comparison(audit: Audit) -> Iterator[_Line]:
    """Say what a run can answer that has only texts of unknown membership."""
    helps = pl.col("role").is_in(["non_member", "calibration", "canary"])
    is_compared = (helps | pl.col("member").is_not_null()).any()
    has_answer = audit.open_targets().select(is_compared).collect().item()
    if audit.settings.source != "recording" and not has_answer:
        yield "answers", _NOTHING_COMPARED


def _check_folder(audit: Audit) -> None:
    """Refuse a folder that cannot be written, or that a live run works in."""
    folder = audit.run.folder
    existing = next(
        path for path in (folder, *folder.absolute().parents) if path.exists()
    )
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        code = EACCES if existing.is_dir() else ENOTDIR
        raise RunFolderError(UNWRITABLE.format(folder, os.strerror(code)))
    if audit.shard is None:
        with reading(folder, HELD):
            pass


@contextmanager
def _linked_stages(audit: Audit) -> Iterator[list[Stage]]:
    """Let the stages work on links to the run's files, so that they change none of the run's."""
    run = audit.run
    with TemporaryDirectory(prefix="mia-batch-") as folder:
        audit.run = AuditFolder(Path(folder))
        for name in list_files(run) if run.folder.is_dir() else ():
            link = audit.run.folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((run.folder / name).absolute())
        if (run.folder / "run.json").exists():
            shutil.copy(run.folder / "run.json", audit.run.folder)
        stages = audits.build_stages(audit)
        try:
            with audit.run.held(), damage_set_aside(stages):
                yield stages
        except MiaBatchError as error:
            if folder not in str(error):
                raise
            raise type(error)(str(error).replace(folder, str(run.folder))) from error
        finally:
            audit.run = run


def _describe_books(audit: Audit, stages: Sequence[Stage]) -> Iterator[_Line]:
    """Iterate over books, or groups: how many windows are asked, what is left out and why."""
    key = "group" if audit.rule.level == "group" else "document_id"
    table = audit.open_targets().filter(
        pl.col("role") == "target", pl.col(key).is_not_null()
    )
    is_first = pl.coalesce("document_id", "target_id").is_first_distinct()
    counts = table.group_by(key).agg(
        n_windows=pl.col("n_windows").filter(is_first).sum(),
        n_asked=pl.col("reason").null_count(),
        reasons=pl.col("reason").drop_nulls(),
    )
    books = counts.sort(key).collect(engine="streaming")
    if books.is_empty() or (key == "document_id" and books["n_windows"].max() == 1):
        return
    n_unfit = Counter[str]()
    for stage in stages:
        if isinstance(stage, EvidenceStage):
            n_unfit += stage.foreseen.unfit
    n_shown = _MAX_BOOKS if books.height > _MAX_BOOKS + 1 else books.height
    for name, n_windows, n_asked, reasons in books.head(n_shown).iter_rows():
        noun = "window" if n_windows == 1 else "windows"
        facts = [f"{n_asked:,} of {n_windows:,} {noun} asked"]
        facts += [
            f"{reasons.count(reason):,} left out: {reason}"
            for reason in dict.fromkeys(reasons)
        ]
        if n_unfit[name]:
            facts.append(f"{n_unfit[name]:,} prompts do not fit the model's context")
        yield str(name), "; ".join(facts)
    others = books[n_shown:]
    if others.height:
        n_asked, n_windows = others["n_asked"].sum(), others["n_windows"].sum()
        yield f"{others.height:,} more", f"{n_asked:,} of {n_windows:,} windows asked"


def _measure_speeds(
    audit: Audit, prompts_stage: Stage, asking: Sequence[AskingStage]
) -> _Speeds:
    """Ask about a few texts as the run would, in a folder that goes; nobody sees the answers."""
    texts = (
        audit.open_targets()
        .filter(pl.col("reason").is_null(), role="target")
        .head(_N_PROBED_TEXTS)
    )
    targets = texts.select("target_id").collect(engine="streaming")
    audit.askable_targets = targets.to_series()
    speeds = {}
    with closing(audit.kept_engine):
        prompts_stage.run()
        for stage in asking:
            audit.observer = clock = Clock()
            n_texts = _N_PROBED_TEXTS
            if isinstance(stage, RecitalsStage):
                n_texts = _N_CONTINUED_TEXTS
                stage.continue_some(targets["target_id"].head(n_texts).to_list())
            else:
                stage.run()
            if clock.tokens:
                speed = clock.tokens / clock.seconds
                speeds[stage.name] = speed, f"measured on {n_texts} texts"
    return speeds


def _choose_speeds(asking: Sequence[AskingStage], speed: float) -> _Speeds:
    """Take a speed that is given for all but continuations, if others read texts alone."""
    # To read a token takes a fraction of the time that it takes to write one.
    reads = any(isinstance(stage, LogprobsStage) for stage in asking if _count(stage))
    return {
        stage.name: (speed, "as given")
        for stage in asking
        if not (reads and isinstance(stage, RecitalsStage))
    }


def _count(stage: AskingStage) -> int:
    """Count the tokens that a stage takes, as speeds count them."""
    return stage.foreseen.first_tokens or stage.foreseen.read_tokens


def _describe_time(
    n_tokens: dict[str, int], speeds: _Speeds, *, can_probe: bool
) -> Iterator[_Line]:
    """Return how long it takes to ask, at speeds that are known; else what would tell it."""
    unknown = [name for name in n_tokens if name not in speeds]
    advice = "--tokens-per-second X takes X tokens a second"
    if can_probe:
        advice = f"--tokens-per-second probe measures it on {_N_PROBED_TEXTS} texts"
    if unknown and unknown != [RecitalsStage.name]:
        yield "time", f"unknown: {advice}"
        return
    known_seconds = {
        name: n / speeds[name][0] for name, n in n_tokens.items() if name in speeds
    }
    if known_seconds:
        parts = dict.fromkeys(
            f"{speed:,.0f} tokens/s ({where})"
            for speed, where in (speeds[name] for name in known_seconds)
        )
        total = _write_duration(sum(known_seconds.values()))
        text = f"about {total} at {' and '.join(parts)}"
        if unknown:
            text += f", and the continuations, whose time is unknown: {advice}"
        elif len(known_seconds) > 1 and RecitalsStage.name in known_seconds:
            continuing = _write_duration(known_seconds[RecitalsStage.name])
            text += f"; continuations take {continuing} of it, if none ends early"
        yield "time", text
    elif unknown:
        yield "time", f"unknown: {advice}"


def _write_duration(seconds: float) -> str:
    minutes = ceil(seconds / 60)
    if minutes >= _MAX_MINUTES:
        return f"{minutes / 60:,.1f} hours"
    return "1 minute" if minutes == 1 else f"{minutes:,} minutes"
