"""Laws of all stages, on finished runs of each kind: asked again, lost, damaged, killed, grown."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import mia_batch
from mia_batch.observer import Observer
from mia_batch.pipeline import rescore
from mia_batch.pipeline.audits import build_stages
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import verify
from mia_batch.pipeline.folder import KEPT, PARTS, TABLES, AuditFolder, find_format
from mia_batch.pipeline.stages import damage_set_aside, repair
from mia_batch.pipeline.stages.questions import reopen_audit
from mia_batch.settings import stored_settings
from mia_batch.tables import followed
from tests.damage import damage
from tests.processes import wait_until_gone
from tests.runs import audit, documents, planned, tables_of
from tests.unit.pipeline.conftest import Listener

KINDS = ("texts", "books", "probes", "views", "walks", "controls", "tuned")
_ANSWERS = ["metrics", "verdicts"]
_SUMMARY = ["curves", "rollup"]
MADE_AGAIN = {
    "targets": ["targets", "blind", "blind_metrics", "findings"],
    "blind": ["blind"],
    "blind_metrics": ["blind_metrics"],
    "findings": ["findings"],
    "scores": ["scores", *_ANSWERS, *_SUMMARY],
    "unscored": ["unscored", *_ANSWERS],
    "metrics": ["metrics"],
    "verdicts": ["verdicts"],
    "rollup": ["rollup"],
    "curves": ["curves"],
}
"""Tables, and what goes with each where it is lost."""


@pytest.fixture
def kind(request, copied_of):
    """A copy of a finished run: settings, run, and what its endpoint is asked from now on."""
    return copied_of(request.getfixturevalue(request.param))


@pytest.fixture
def recorded(books, copied_of):
    settings, run, _ = copied_of(books)
    return settings, run, contents(run)


def contents(run) -> dict[str, bytes]:
    return tables_of(run.folder)


def evidence(run) -> dict[str, bytes]:
    names = ("samples/", "logprobs/")
    return {
        name: content
        for name, content in contents(run).items()
        if name.startswith(names)
    }


def stamps(run) -> dict[Path, int]:
    paths = [*run.folder.rglob("*.parquet"), *run.folder.glob("engine.log")]
    return {path: path.stat().st_mtime_ns for path in paths}


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def stages(run):
    return build_stages(
        Audit.reopen(
            AuditFolder(run.folder), stored_settings(run.manifest.settings), Observer()
        )
    )


def list_repairs(run) -> list[str]:
    with AuditFolder(run.folder).held():
        return repair(stages(run))


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_the_same_command_again_makes_nothing(kind, nothing_starts, capfd):
    settings, run, prompts_asked = kind
    assert planned(settings).get("prompts", "0") == "0"
    assert list_repairs(run) == []
    stamps_before, manifest, tables = stamps(run), run.manifest, contents(run)
    again = audit(**settings)
    assert contents(again) == tables
    changed = {
        path.stem
        for path, modified_at in stamps(run).items()
        if stamps_before[path] != modified_at
    }
    # Which are made of the walks each time
    assert changed <= {
        "extraction",
        "extracted_documents",
    }
    for name in (
        "models",
        "engines",
        "passes",
        "times",
        "made",
        "inputs",
        "failed",
        "controls",
    ):
        assert getattr(again.manifest, name) == getattr(manifest, name), name
    assert again.manifest.custody["root"] == manifest.custody["root"]
    assert verify(run.folder).faults == []
    assert prompts_asked == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("change", "finished"),
    [
        (lambda _settings, _run: None, True),
        (lambda settings, _: settings.update(max_failed=0.5), False),
        (lambda _, run: (run.folder / "report.html").unlink(), False),
        (lambda _, run: os.utime(run.path("scores")), False),
        (
            lambda settings, _: os.utime(
                settings["samples_from"], ns=(10**18, 10**18 + 1)
            ),
            False,
        ),
        (lambda settings, _: settings.update(retry_failed=True), False),
    ],
)
def test_a_finished_run_says_so_unless_a_file_or_a_setting_changed(
    change, finished, recorded
):
    settings, run, tables = recorded
    settings |= {"report": True}
    for path in [
        *Path(settings["input"]).rglob("*.txt"),
        Path(settings["samples_from"]),
    ]:
        os.utime(path, ns=(10**18, 10**18))  # the last change must not be just now
    audit(**settings)
    assert run.manifest.unchanged != ""
    change(settings, run)
    heard = Listener()
    again = audit(observer=heard, **settings)
    ends = "and nothing has changed since; this is its answer"
    answers = [sentence for sentence in heard.sentences if sentence.endswith(ends)]
    assert answers == (heard.sentences if finished else [])
    assert contents(again) == tables
    assert (run.folder / "report.html").exists()
    assert verify(run.folder).faults == []


def test_a_run_does_not_fail_for_its_report(recorded, monkeypatch):
    settings, run, tables = recorded
    monkeypatch.setattr(
        "mia_batch.pipeline.results.render_report",
        lambda _: (_ for _ in ()).throw(MemoryError("no")),
    )
    heard = Listener()
    (run.folder / "report.html").unlink(missing_ok=True)
    audit(observer=heard, **settings | {"report": True})
    assert (
        heard.sentences[-1]
        == "the report could not be made (MemoryError: no); the tables of the run are"
        f" whole, and `mia-batch report {run.folder}` tries again"
    )
    assert contents(run) == tables
    assert verify(run.folder).faults == []


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_a_table_that_was_cut_short_is_made_again(recorded, name):
    settings, run, contents_before = recorded
    cut_short(run.folder / f"{name}.parquet")
    lost = [f"{run.folder / lost}.parquet is made again" for lost in MADE_AGAIN[name]]
    assert list_repairs(run) == lost
    audit(**settings)
    assert contents(run) == contents_before


@pytest.mark.parametrize(
    ("kind", "lost", "n_asked"),
    [
        ("probes", ["samples/*", "features/*"], 0),
        ("probes", ["rarity.parquet"], 0),
        ("views", ["logprobs/*target-text-*", "logprobs/*target-lowercase-*"], 0),
        ("walks", ["samples/*.target-walk-*", "extraction.parquet"], 10),
        ("controls", ["samples/*control*", "controls.parquet"], 6),
        ("tuned", ["samples/*generation*", "logprobs/*shadow-0*"], 0),
    ],
    indirect=["kind"],
)
def test_what_is_lost_is_made_again_from_what_is_left(kind, lost, n_asked):
    settings, run, prompts_asked = kind
    contents_before, root = contents(run), run.manifest.custody["root"]
    frames = {name: pl.read_parquet(run.folder / name) for name in contents_before}
    lost_paths = [path for pattern in lost for path in run.folder.glob(pattern)]
    assert len(lost_paths) >= len(lost)
    for number, path in enumerate(lost_paths):
        if number % 2:
            path.unlink()
        else:
            cut_short(path)
    audit(**settings)
    assert len(prompts_asked) == n_asked
    if settings.get("neighbours") == 3:  # in other batches, numbers differ by noise
        assert contents(run).keys() == contents_before.keys()
        for name in ("scores", "unscored"):
            remade = pl.read_parquet(run.path(name))
            assert_frame_equal(
                remade, frames[f"{name}.parquet"], rel_tol=1e-4, abs_tol=1e-5
            )
    else:
        assert contents(run) == contents_before
        assert verify(run.folder).root == root


@pytest.mark.parametrize("size", [0, 7, 11])
def test_features_that_were_cut_short_are_made_again_and_with_them_the_scores(
    recorded, size
):
    settings, run, contents_before = recorded
    (part,) = run.path("features").iterdir()
    part.write_bytes(b"PAR1\xff\xff\xffPAR1"[-size:] if size else b"")
    lost = [part, *map(run.path, ("scores", "unscored", *_ANSWERS, *_SUMMARY))]
    assert list_repairs(run) == [f"{path} is made again" for path in lost]
    audit(**settings)
    assert contents(run) == contents_before


def test_samples_that_were_cut_short_are_set_aside_and_drawn_again(recorded):
    settings, run, contents_before = recorded
    (part,) = run.path("samples").iterdir()
    for path in run.folder.rglob("*.parquet"):
        cut_short(path)
    first, *other_repairs = list_repairs(run)
    assert first == f"{part} was cut short; set aside, its samples are missing again"
    assert len(other_repairs) == 2 + len(MADE_AGAIN)  # prompts and features too
    assert contents(run) == {}
    assert part.with_name(f"{part.name}.broken").exists()
    audit(**settings)
    assert contents(run) == contents_before


ROWS, END = slice(4, 60), slice(-120, -8)


@pytest.mark.parametrize(
    ("table", "changed"),
    [("samples", ROWS), ("samples", END), ("features", ROWS)],
    ids=["rows", "end", "features"],
)
def test_what_a_disk_has_changed_is_made_again_by_the_second_command(
    recorded, table, changed
):
    settings, run, contents_before = recorded
    (part,) = run.path(table).iterdir()
    lost_path = run.path("scores")
    if table == "samples":
        (lost_path,) = run.path("features").iterdir()
    lost_path.unlink()
    damage(part, changed)
    with pytest.raises(mia_batch.RunFolderError) as raised:
        audit(**settings)
    message = f"{part} is made again"
    if table == "samples":
        message = f"{part} is damaged; set aside, its samples are missing again"
        assert part.with_name(f"{part.name}.broken").exists()
    assert str(raised.value).startswith(message)
    assert str(raised.value).endswith(" is made again: give the same command again")
    audit(**settings)
    assert contents(run) == contents_before


@pytest.mark.parametrize(
    ("refused", "kind_of", "words"),
    [
        (
            "Input/output error (os error 5)",
            mia_batch.RunFolderError,
            "cannot be repaired: Input/",
        ),
        ("another", pl.exceptions.ComputeError, "^another$"),
    ],
)
def test_what_is_no_damage_is_said_and_changes_nothing(
    recorded, monkeypatch, refused, kind_of, words
):
    """Patched, because no disk fails on demand; the words are those of Polars."""
    _, run, contents_before = recorded
    stages_of_run = stages(run)
    error = pl.exceptions.ComputeError(refused)

    def scan_parquet(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        if kind_of is mia_batch.RunFolderError:
            patch.setattr(pl, "scan_parquet", scan_parquet)
        with (
            AuditFolder(run.folder).held(),
            pytest.raises(kind_of, match=words),
            damage_set_aside(stages_of_run),
        ):
            raise error
    assert contents(run) == contents_before


def test_what_was_made_from_lost_samples_goes_with_them_and_a_part_that_is_no_file_is_refused(
    recorded,
):
    _, run, _ = recorded
    (part,) = run.path("samples").iterdir()
    part.unlink()
    assert len(list_repairs(run)) == 7
    lost = {"scores", "unscored", *_ANSWERS, *_SUMMARY}
    names_left = {name for name in contents(run) if not name.startswith("prompts/")}
    assert names_left == {f"{name}.parquet" for name in MADE_AGAIN.keys() - lost}
    (run.path("samples") / "x.parquet").mkdir()
    with pytest.raises(
        mia_batch.RunFolderError, match=r"run cannot be repaired: Is a dir"
    ):
        list_repairs(run)


def test_what_killed_writers_left_is_removed_and_nothing_else(recorded):
    settings, run, _ = recorded
    left_files = [
        folder / f".x.parquet.{'0f' * 16}.tmp"
        for folder in (run.folder, run.path("samples"), run.path("features"))
    ]
    mine = [
        run.folder / "mine.tmp",
        run.folder / ".mine.tmp",
        run.path("samples") / ".a.b.tmp",
    ]
    for path in (*left_files, *mine):
        path.write_text("PAR1")
    audit(**settings)
    assert not any(path.exists() for path in left_files)
    assert all(path.exists() for path in mine)


class Killed(BaseException):
    """Ends a run as SIGKILL would: nothing catches it."""


class Killing:
    """Lets so many files change, then ends the run before the next one does."""

    def __init__(self, n_left: int) -> None:
        self.left = n_left

    def put(self, path: Path, content: Path) -> None:
        del path, content
        if self.left == 0:
            raise Killed
        self.left -= 1

    put_copy = put

    def remove(self, path: Path) -> None:
        self.put(path, path)


@pytest.mark.parametrize("run_kind", ["books", "probes"])
def test_a_run_killed_before_any_change_leaves_no_mixture(
    run_kind, recorded, probes, tmp_path
):
    settings, run, contents_before = recorded
    changed_settings = settings | {
        "samples": 1,
        "attacks": "samia_v1,longest_block_v1",
        "replace": True,
    }
    # Their recorded answers: a table of rarity waits for all of them
    if run_kind == "probes":
        answers = {
            "samples_from": str(probes.run.path("samples")),
            "out": str(tmp_path / "own"),
        }
        settings = {
            name: probes.settings[name] for name in ("input", "attacks", "probes")
        }
        settings |= answers | {"report": False}
        run = audit(**settings)
        contents_before, changed_settings = contents(run), settings | {"probes": 2}
    for n in count(0, 4):
        try:
            with followed(run.folder, Killing(n)):
                audit(**changed_settings)
        except Killed:
            pass
        else:
            break
        audit(**settings | {"replace": True})
        assert contents(run) == contents_before, n
    assert n > 12


@pytest.mark.parametrize("year", [1990, 2090])
def test_a_clock_that_is_set_changes_nothing(recorded, year):
    settings, run, contents_before = recorded
    time = datetime(year, 1, 1, tzinfo=UTC).timestamp()
    for path in (run.folder, *run.folder.rglob("*")):
        os.utime(path, (time, time))
    assert contents(audit(**settings)) == contents_before
    fewer = audit(**settings | {"samples": 1})
    assert fewer["scores"]["n_samples"].max() == 1


HOLD = """
import sys, time
from pathlib import Path
from mia_batch.pipeline.folder import AuditFolder
with AuditFolder(Path(sys.argv[1])).held():
    print(flush=True)
    time.sleep(600)
"""


def test_a_live_run_holds_its_folder_and_a_killed_one_does_not(recorded):
    settings, run, contents_before = recorded
    command = [sys.executable, "-c", HOLD, run.folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        for call in (lambda: audit(**settings), lambda: rescore(run.folder)):
            with pytest.raises(
                mia_batch.RunFolderError, match="is held by another live run"
            ):
                call()
        with pytest.raises(mia_batch.RunFolderError, match="held by a live run"):
            verify(run.folder)
        holder.kill()
    wait_until_gone(holder.pid)
    assert (run.folder / ".lock").exists()
    assert contents(audit(**settings)) == contents_before


@pytest.mark.parametrize(
    ("kind", "more_settings"),
    [
        ("texts", {"samples": 5}),
        ("probes", {"probes": 7}),
        pytest.param("probes", {"samples": 3}, marks=pytest.mark.long),
        (
            "views",
            {"neighbours": 5, "attacks": "neighbour_difference_v1,samia_matched_v1"},
        ),
    ],
    indirect=["kind"],
)
def test_more_keeps_what_there_is_equals_a_run_at_once_and_fewer_asks_nothing(
    kind, more_settings
):
    settings, run, _ = kind
    # Greedy answers are one a point: others are no more of them
    if more_settings == {"samples": 3}:
        settings |= {"samples": 1, "out": f"{settings['out']}-drawn"}
        run = audit(**settings)
    if "attacks" in more_settings:
        settings |= {"attacks": more_settings["attacks"], "replace": True}
    scores_before, parts = audit(**settings)["scores"], evidence(run)
    grown = audit(**settings | more_settings)
    evidence_after = evidence(grown)
    assert parts.items() < evidence_after.items()
    at_once = audit(**settings | more_settings | {"out": f"{settings['out']}-at once"})
    for name in ("scores", "unscored", "metrics"):
        assert_frame_equal(grown[name], at_once[name], rel_tol=1e-4, abs_tol=1e-5)
    assert not grown["scores"].equals(scores_before)
    fewer = audit(**settings)
    assert fewer["scores"].equals(scores_before)
    assert evidence(fewer) == evidence_after


def test_a_longer_corpus_keeps_the_answers_about_the_shorter_one(copied):
    run = mia_batch.Run(copied["out"])
    evidence_before, scores_before = evidence(run), run["scores"]
    longer = pl.concat(
        [documents(), documents(12).slice(6, 4).with_columns(member=None)]
    )
    longer = longer.with_columns(document_id=pl.format("d{}", pl.int_range(pl.len())))
    longer.write_parquet(copied["input"])
    stamped = stamps(run)
    plan_left = planned(copied)
    assert (plan_left["documents"], plan_left["prompts"]) == ("12", "4")
    assert stamps(run) == stamped
    grown = audit(**copied)["scores"]
    assert evidence_before.items() <= evidence(run).items()
    assert grown["n_samples"].tail(4).to_list() == [3] * 4
    assert grown.head(8).equals(scores_before)


# Versions of tables.

VERSIONS = {"preflight": 3, "verdicts": 10, "summary": 6}
"""Numbers in stored runs by stage; the other stages have none yet."""


def test_versions_of_tables_are_those_of_stored_runs(books):
    manifest = books.run.manifest
    forms = {name: facts.get("form") for name, facts in manifest.made.items()}
    assert forms == dict.fromkeys(manifest.made) | VERSIONS | {"dress": 1}
    assert manifest.format == find_format() == 3


@pytest.mark.parametrize("table", [*TABLES, *PARTS])
def test_the_version_of_each_table_counts(table, books, monkeypatch):
    """Tables of evidence are refused in another version; others are made anew, and no more."""
    schema = (TABLES | PARTS)[table]
    other_tables = {
        name for name in TABLES | PARTS if (TABLES | PARTS)[name] is not schema
    }
    stages = [
        stage
        for stage in build_stages(reopen_audit(books.run))
        if {*stage.makes, *stage.adds_to} - KEPT
    ]
    versions_before = {stage.name: stage.version for stage in stages}
    monkeypatch.setattr(schema, "version", schema.version + 1)
    if table in KEPT:
        assert find_format() == 4
        assert {stage.name: stage.version for stage in stages} == versions_before
        return
    assert find_format() == 3
    for stage in stages:
        has_changed = not other_tables.issuperset({*stage.makes, *stage.adds_to})
        assert (stage.version > versions_before[stage.name]) == has_changed
    assert {stage.name: stage.version for stage in stages} != versions_before


def test_a_table_of_another_version_is_made_anew_and_one_of_evidence_refused(
    books, copied_of, monkeypatch
):
    settings, run, _ = copied_of(books)
    monkeypatch.setattr(TABLES["rollup"], "version", 5)
    with monkeypatch.context() as patch:
        patch.setattr(PARTS["samples"], "version", 2)
        with pytest.raises(
            mia_batch.RunFolderError, match=r"format 3 of its tables, this .* has 4\)"
        ):
            audit(**settings)
    times = {name: run.path(name).stat().st_mtime_ns for name in ("rollup", "scores")}
    again = audit(**settings)
    assert again.manifest.made["summary"]["form"] == 7
    assert again.manifest.made["verdicts"] == run.manifest.made["verdicts"]
    assert run.path("rollup").stat().st_mtime_ns > times["rollup"]
    assert run.path("scores").stat().st_mtime_ns == times["scores"]
