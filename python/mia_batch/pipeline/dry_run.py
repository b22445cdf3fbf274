"""A dry run: what a run would do, ask and cost, and all that it would refuse; nothing is asked."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from errno import EACCES, ENOTDIR
from math import ceil, inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import polars as pl

from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.evidence.request import Workload
from mia_batch.inference.findings import earlier_findings
from mia_batch.observer import Clock, Observer
from mia_batch.pipeline import audits, lodged_plan
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import files_of
from mia_batch.pipeline.earlier_runs import find_speeds, list_earlier_runs
from mia_batch.pipeline.folder import HELD, UNWRITABLE, RunFolder, reading
from mia_batch.pipeline.request import list_columns_needed
from mia_batch.pipeline.sessions import is_remote, whole_cost
from mia_batch.pipeline.stages import Stage, damage_set_aside
from mia_batch.pipeline.stages.evidence import EvidenceStage
from mia_batch.places import fetched
from mia_batch.report import earlier_sentences
from mia_batch.settings import Settings

_MOST_BOOKS, _MOST_NAMED = 12, 6
_MANY_MINUTES = 180
_PROBED = 32  # texts
Speed: TypeAlias = float | Literal["probe"] | None
_Speeds: TypeAlias = dict[str, tuple[float, str]]  # by stage, and where it comes from
_LOGITS_MEMORY = (
    "128 MiB on a CPU; on a GPU an eighth of what the weights leave free, at most 4 GiB"
)


class _Notes(Observer):
    """Keeps sentences of stages; says what is being done to another."""

    def __init__(self, other: Observer) -> None:
        self._other = other
        self.sentences: list[str] = []

    def stage(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def step(self, doing: str) -> None:
        self._other.step(doing)

    def taken(self) -> list[str]:
        said, self.sentences = self.sentences, []
        return said


def plan(
    settings: Settings,
    *,
    speed: Speed = None,
    observer: Observer | None = None,
    write: bool = False,
) -> Iterator[tuple[str, str]]:
    """Say what is left to do for these settings, as name and text; the run is not changed."""
    # With ``write`` the plan of a run that has not begun is written into its folder.
    # What a run makes before it asks is made as it makes it, in a folder of its own, so
    # that all that it would refuse is raised here, too. Minutes come from a ``speed``
    # in tokens a second, by default that of a run of this model.
    notes = _Notes(observer or Observer())
    notes.step("looking at the texts and the model")
    fetched(settings.place)
    audit = Audit.begin(settings, notes)
    _check_folder(audit)
    engine, why = audit.manifest.evidence["engine"], audit.manifest.engine_choice
    remote = is_remote(audit, "target")
    if not (audit.list_attacks_on("samples") or remote):
        engine, why = audit.find_engine("logprobs", list_columns_needed(audit.attacks))
    if audit.shard is not None:
        yield (
            "shard",
            (
                f"{audit.shard}: what follows of samples and log-probabilities is its"
                " share"
            ),
        )
    yield "engine", f"{engine} ({why})"
    names, rest = (
        [each.name for each in audit.attacks],
        len(audit.attacks) - _MOST_NAMED,
    )
    yield (
        "attacks",
        ", ".join(names[:_MOST_NAMED]) + (f" and {rest:,} more" if rest > 0 else ""),
    )
    yield "primary attack", audit.rule.primary
    planned = lodged_plan.plan_of(audit)
    yield from _compared(audit, planned)
    if audit.list_attacks_on("logprobs") and not remote:
        most = settings.logits_memory
        yield (
            "logits memory",
            _LOGITS_MEMORY if most is None else f"at most {most:,} MiB",
        )
    yield (
        "documents",
        f"{audit.corpora.input.n_documents:,}{audits.describe_windows(audit.settings)}",
    )
    yield from (("note", sentence) for sentence in audit.corpora.notes())
    earlier = earlier_findings(list_earlier_runs(audit, audits.hash_texts(audit)))
    yield from (("earlier runs", sentence) for sentence in earlier_sentences(earlier))
    with _copied(audit) as stages:
        yield from _left(audit, stages, notes)
        asked = [stage for stage in stages if isinstance(stage, EvidenceStage)]
        foreseen = {stage.name: stage.foreseen for stage in asked}
        speeds: _Speeds = {}
        if speed == "probe":
            if remote or audit.recording is not None:
                raise SettingsError(
                    "--tokens-per-second probe needs a model that runs here"
                )
            notes.step(f"asking about {_PROBED} texts")
            speeds = _probed(audit, stages[2], asked)
    if speed is None:
        speeds = find_speeds(audit, asked)
    elif speed != "probe":
        if not isinstance(speed, float | int) or not 0 < speed < inf:  # type: ignore[redundant-expr]
            raise SettingsError(
                f"speed= is {speed!r}; give tokens a second, or 'probe'"
            )
        speeds = dict.fromkeys(foreseen, (speed, "as given"))
    yield from _minutes(foreseen, speeds, probes=not remote and audit.recording is None)
    if write:
        yield "plan file", lodged_plan.write_plan(audit, planned)


def _compared(audit: Audit, planned: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Give the SHA-256 of the plan, what it cannot bind, and how it differs from one given."""
    lodged = lodged_plan.check(audit)
    said = f"SHA-256 {lodged_plan.sha256_of(planned)}"
    found = [] if lodged is None else lodged_plan.differences(lodged, planned)
    if lodged is not None and not found:
        said += f", equal to {audit.settings.plan}"
    yield "plan", said
    yield from (("differs from the plan", difference) for difference in found)
    if audit.settings.base_url is not None:
        yield "plan", lodged_plan.NAME_ALONE


def _left(
    audit: Audit, stages: Sequence[Stage], notes: _Notes
) -> Iterator[tuple[str, str]]:
    refusal = None
    audits.resume(audit, stages)
    for stage in stages:
        stage.prepare()
    yield from (("note", sentence) for sentence in notes.taken())
    for stage, named in zip(
        stages, ("note", "power"), strict=False
    ):  # targets, and preflight
        notes.step(stage.activity)
        try:
            stage.run()
        except SettingsError as error:
            if named == "note":
                raise
            refusal = error
        # Follows below
        known = (
            stage.activity,
            f"{audit.manifest.targets['total']:,} target",
        )
        said = (
            sentence for sentence in notes.taken() if not sentence.startswith(known)
        )
        yield from ((named, sentence) for sentence in said)
    notes.step("looking at what is to be asked")
    stages[2].validate_dry_run()  # of prompts
    for stage in stages:
        stage.validate()
    for stage in stages:
        stage.validate_dry_run()
    if (test := audit.build_rounds_test()) is not None:
        audit.askable_targets = test.may_be_asked(-1)
    found = [line for stage in stages for line in stage.remaining()]
    yield from _books(audit, stages)
    yield from found
    yield from whole_cost(audit)
    if refusal is not None:
        raise refusal


def _check_folder(audit: Audit) -> None:
    folder = audit.run.folder
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        why = EACCES if there.is_dir() else ENOTDIR
        raise RunFolderError(UNWRITABLE.format(folder, os.strerror(why)))
    if audit.shard is None:
        with reading(folder, HELD):
            pass


@contextmanager
def _copied(audit: Audit) -> Iterator[list[Stage]]:
    """Let the stages work on links to the run's files, so that they change none of the run's."""
    own = audit.run
    with TemporaryDirectory(prefix="mia-batch-") as folder:
        audit.run = RunFolder(Path(folder))
        for name in files_of(own) if own.folder.is_dir() else ():
            (audit.run.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (audit.run.folder / name).symlink_to((own.folder / name).absolute())
        if (own.folder / "run.json").exists():
            shutil.copy(own.folder / "run.json", audit.run.folder)
        stages = audits.build_stages(audit)
        try:
            with audit.run.held(), damage_set_aside(stages):
                yield stages
        except MiaBatchError as error:
            if folder not in str(error):
                raise
            raise type(error)(str(error).replace(folder, str(own.folder))) from error
        finally:
            audit.run = own


def _books(audit: Audit, stages: Sequence[Stage]) -> Iterator[tuple[str, str]]:
    """Say of each book, or group, how many windows are asked, and what is left out and why."""
    key = "group" if audit.rule.level == "group" else "document_id"
    table = audit.open_targets().filter(
        pl.col("role") == "target", pl.col(key).is_not_null()
    )
    own = pl.coalesce("document_id", "target_id").is_first_distinct()
    counts = table.group_by(key).agg(
        n_windows=pl.col("n_windows").filter(own).sum(),
        asked=pl.col("reason").null_count(),
        reasons=pl.col("reason").drop_nulls(),
    )
    books = counts.sort(key).collect(engine="streaming")
    if books.is_empty() or (key == "document_id" and books["n_windows"].max() == 1):
        return
    asked = [stage for stage in stages if isinstance(stage, EvidenceStage)]
    unfit = sum((stage.foreseen.unfit for stage in asked), Counter[str]())
    for name, n_windows, n_asked, reasons in books.head(_MOST_BOOKS).iter_rows():
        left_out = [
            f"{reasons.count(why):,} left out: {why}" for why in dict.fromkeys(reasons)
        ]
        if n := unfit[name]:
            left_out.append(f"{n:,} prompts do not fit the model's context")
        windows = "window" if n_windows == 1 else "windows"
        yield (
            str(name),
            "; ".join([f"{n_asked:,} of {n_windows:,} {windows} asked", *left_out]),
        )
    if (rest := books[_MOST_BOOKS:]).height:
        n_asked, n_windows = rest["asked"].sum(), rest["n_windows"].sum()
        yield f"{rest.height:,} more", f"{n_asked:,} of {n_windows:,} windows asked"


def _probed(audit: Audit, prompts: Stage, asked: Sequence[EvidenceStage]) -> _Speeds:
    """Ask about a few texts as the run would, in a folder that goes; nobody sees the answers."""
    texts = (
        audit.open_targets()
        .filter(pl.col("reason").is_null(), role="target")
        .head(_PROBED)
    )
    audit.askable_targets = (
        texts.select("target_id").collect(engine="streaming").to_series()
    )
    speeds = {}
    with closing(audit.kept_engine):
        prompts.run()
        for stage in asked:
            audit.observer = clock = Clock()
            stage.run()
            if clock.tokens:
                speed = clock.tokens / clock.seconds
                speeds[stage.name] = speed, f"measured on {_PROBED} texts"
    return speeds


def _minutes(
    foreseen: dict[str, Workload], speeds: _Speeds, *, probes: bool
) -> Iterator[tuple[str, str]]:
    """Say how long it takes to ask, at speeds that are known; else what would tell it."""
    work = {
        name: n
        for name, of in foreseen.items()
        if (n := of.first_tokens or of.read_tokens)
    }
    if not work:
        return
    if unknown := [name for name in work if name not in speeds]:
        how = "give --tokens-per-second X"
        how += ", or `probe` for X, which asks a model that runs here" if probes else ""
        yield "time", f"unknown for {', '.join(unknown)}: {how}"
        return
    minutes = ceil(sum(n / speeds[name][0] for name, n in work.items()) / 60)
    long = (
        f"{minutes:,} minutes"
        if minutes < _MANY_MINUTES
        else f"{minutes / 60:,.1f} hours"
    )
    each = (
        f"{speed:,.0f} tokens/s ({where})"
        for speed, where in map(speeds.__getitem__, work)
    )
    about = f"about {'1 minute' if minutes == 1 else long}"
    yield "time", f"{about} at {' and '.join(dict.fromkeys(each))}"
