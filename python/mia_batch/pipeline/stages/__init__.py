"""The stages of an audit: audit, dry run and repair walk one list of them, see `audits`."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from mia_batch.errors import RunFolderError
from mia_batch.evidence.parts import Work
from mia_batch.pipeline import timing
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import KEPT, Manifest, find_version
from mia_batch.tables import READ_ERRORS, is_sound, is_whole, move, remove

__all__ = ["Stage", "damage_set_aside", "repair", "run_timed"]

Phase = Literal["texts", "fills", "evidence", "models", "scores", "answers"]
"""The walks that take a stage: shards stop after evidence, rounds repeat what leads from evidence
to scores, models are checked before any is asked, scoring anew makes scores and answers."""


class Stage:
    """One step from tables to tables.

    Parameters
    ----------
    audit
        The audit that it is a step of.

    Attributes
    ----------
    name
        Its name in the manifest.
    phase
        The walks that take it.
    makes
        Its tables, each a file or a folder of parts.
    reads
        Tables whose loss takes its own with them.
    reads_views
        Pieces of names of parts whose loss takes its own tables with them.
    extends
        Stages to whose tables it adds.
    adds_to
        Tables of an earlier stage that it makes anew with rows of its own.
    costly_content
        What it makes where that costs an engine's time: damaged files are then set
        aside, not removed.
    reuses_engine
        Whether it can go on with the engine of the stage before.
    activity
        What is shown while it runs and nothing else is shown.
    """

    name: str
    phase: ClassVar[Phase | None] = None
    makes: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()
    reads_views: ClassVar[tuple[str, ...]] = ()
    extends: ClassVar[tuple[str, ...]] = ()
    adds_to: ClassVar[tuple[str, ...]] = ()
    costly_content: ClassVar[str | None] = None
    reuses_engine: ClassVar[bool] = False
    activity: str = "working"

    def __init__(self, audit: Audit) -> None:
        self.audit = audit

    def list_files(self) -> list[Path]:
        """List the files of its tables that exist."""
        files: list[Path] = []
        for path in map(self.audit.run.path, self.makes):
            files += sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        return [file for file in files if file.exists()]

    def list_outdated(self, lost: Collection[Path]) -> list[Path]:
        """List its files that must go where files of earlier stages are lost."""
        inputs = {self.audit.run.path(name) for name in self.reads}
        for path in lost:
            is_input = bool(inputs & {path, path.parent})
            if is_input or any(view in path.name for view in self.reads_views):
                return self.list_files()
        return []

    def count_prompts(self) -> Work:
        """Count what all shards have asked, and what is still to be asked."""
        return Work()

    def list_unscorable(self) -> list[str]:
        """List the attacks that need evidence which the run does not have."""
        return []

    def fingerprint(self) -> dict[str, Any]:
        """Return what its tables are made from, as JSON: where it differs they are made anew."""
        return {}

    def remaining(self) -> Iterator[tuple[str, str]]:
        """Iterate over what is still to be done, as name and text; nothing is written."""
        yield from ()

    def validate_dry_run(self) -> None:
        """Refuse in a dry run what the run itself would refuse once it comes to ask or to make."""

    def prepare(self) -> None:
        """Decide what is out of date, before any stage runs."""

    def validate(self) -> None:
        """Refuse what could not be made later, when the texts are there and no model was asked."""

    def run(self) -> None:
        if self.is_fresh:
            return
        self.audit.observer.stage(self.activity)
        self.mark_outdated()
        self.make()
        self.mark_done()

    def make(self) -> None:
        """Make its tables, which are not there or out of date."""
        raise NotImplementedError

    @property
    def is_fresh(self) -> bool:
        """Return whether its tables exist, made from what it would make them from now."""
        tables = {path.stem for path in self.list_files()}
        fingerprint = self.audit.manifest.made.get(self.name)
        return self.required_tables <= tables and fingerprint == self._fingerprint()

    @property
    def required_tables(self) -> set[str]:
        """The tables that it makes in any case."""
        return {*self.makes}

    def remove(self, outdated: Collection[Path]) -> None:
        if outdated:
            self.audit.refuse_other_shards(f"{self.name} are to be made anew")
        for path in outdated:
            remove(path)

    def mark_outdated(self) -> None:
        """Record that its tables are out of date: killed from here on, they are made again."""
        fingerprints = self.audit.manifest.made
        outdated = fingerprints.keys() & {self.name, *self.extends}
        for name in outdated:
            del fingerprints[name]
        if outdated:
            self.audit.save()
        self.audit.begin_change()

    def mark_done(self) -> None:
        self.audit.manifest.made[self.name] = self._fingerprint()
        self.audit.save()

    @property
    def version(self) -> int:
        """The version of all its tables that can be made anew."""
        return find_version({*self.makes, *self.adds_to} - KEPT)

    def _fingerprint(self) -> dict[str, Any]:
        """Return its fingerprint with the version of its tables, once one has changed."""
        form = {"form": self.version} if self.version > 1 else {}
        return form | self.fingerprint()


def run_timed(audit: Audit, steps: Iterable[tuple[Stage, Callable[[], None]]]) -> None:
    """Run steps of stages and record how long each stage took, if anything changed."""
    if not audit.manifest.made:  # else an older version began it
        audit.manifest.times.setdefault("begin", timing.now())
    seconds: defaultdict[str, float] = defaultdict(float)
    try:
        for stage, step in steps:
            audit.observer.step(stage.activity)
            start = time.monotonic()
            try:
                step()
            finally:
                seconds[stage.name] += time.monotonic() - start
    except BaseException:
        with suppress(RunFolderError, OSError), audit.turn:
            manifest = Manifest.load(audit.run.folder)
            if manifest and not manifest.custody:
                timing.add_seconds(manifest, seconds)
                manifest.write(audit.run.folder)
        raise
    with audit.changing_manifest():
        if not audit.manifest.custody:
            timing.add_seconds(audit.manifest, seconds)


@contextmanager
def damage_set_aside(stages: Sequence[Stage]) -> Iterator[None]:
    """Look for damaged tables where one could not be read, set them aside, and raise which."""
    try:
        yield
    except READ_ERRORS as error:
        audit = stages[0].audit
        with audit.turn:
            audit.refuse_other_shards(f"a table is damaged ({error})")
            sentences = repair(stages, is_sound, "is damaged")
        if not sentences:
            raise
        raise RunFolderError(
            f"{'; '.join(sentences)}: give the same command again"
        ) from error


def repair(
    stages: Sequence[Stage],
    is_good: Callable[[Path], bool] = is_whole,
    fault: str = "was cut short",
) -> list[str]:
    """Remove tables that are not good and what was made from them; return a sentence on each.

    What an engine made gets ``.broken`` after its name. What was made from it goes too,
    because a GPU draws other samples the second time. The latest stage's tables go
    first: killed in between, it begins again.
    """
    lost: set[Path] = set()
    to_remove: list[tuple[Stage, Path]] = []
    set_aside = []
    made_again = []
    try:
        for stage in stages:
            bad = {path for path in stage.list_files() if not is_good(path)}
            bad.update(stage.list_outdated(lost))
            to_remove += [(stage, path) for path in sorted(bad)]
            lost |= bad
        for stage, path in reversed(to_remove):
            if stage.costly_content is None:
                remove(path)
                made_again.append(f"{path} is made again")
            else:
                move(path, path.with_name(f"{path.name}.broken"))
                set_aside.append(
                    f"{path} {fault}; set aside, its {stage.costly_content} are missing again"
                )
    except OSError as error:
        folder = stages[0].audit.run.folder
        raise RunFolderError(
            f"{error.filename or folder} cannot be repaired: {error.strerror}; choose"
            " another --out"
        ) from error
    return set_aside[::-1] + made_again[::-1]
