"""What a manifest keeps: times of stages, and what several shards bring together."""

import json
import re
from contextlib import nullcontext
from threading import Thread
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.evidence.parts import Shard
from mia_batch.observer import Clock, Observer
from mia_batch.pipeline import Run, dry_run, plan, timing
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.folder import AuditFolder, Manifest, list_live_shards
from mia_batch.pipeline.request import AuditRequest
from mia_batch.pipeline.stages import run_timed
from mia_batch.settings import load_settings
from tests.processes import wait_until
from tests.runs import audit_books, planned, rescore, words, write_books
from tests.unit.inference.scored import plan as build_rule


@pytest.fixture
def called(tmp_path, monkeypatch):
    """Take steps of stages, each in two seconds; the manifest is stored before as it is."""
    clock, days = (
        iter(range(0, 1000, 2)),
        iter(f"day {number}" for number in range(1, 9)),
    )
    monkeypatch.setattr("mia_batch.pipeline.stages.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(timing, "now", lambda: next(days))

    def call(*steps, **content):
        manifest = Manifest(evidence={"x": 1}, **content)
        audit: Any = SimpleNamespace(
            manifest=manifest, turn=nullcontext(), observer=Observer()
        )
        audit.changing_manifest = nullcontext
        audit.run = AuditFolder(tmp_path)
        audit.manifest.write(tmp_path)
        stages: Any = [
            (SimpleNamespace(name=name, activity=name), step) for name, step in steps
        ]
        run_timed(audit, stages)
        return audit.manifest.times

    return call


def stop():
    raise KeyboardInterrupt


def test_steps_of_a_stage_are_added_up_to_those_of_earlier_calls(called):
    steps = [(name, lambda: None) for name in ("a", "b", "a")]
    assert called(*steps) == {
        "begin": "day 1",
        "end": "day 2",
        "seconds": {"a": 4.0, "b": 2.0},
    }
    times_before = {"begin": "day 0", "end": "day 0", "seconds": {"a": 1.5, "c": 1.0}}
    times_after = called(*steps, times=times_before, made={"a": 1})
    seconds = {"a": 5.5, "b": 2.0, "c": 1.0}
    assert times_after == {"begin": "day 0", "end": "day 3", "seconds": seconds}


def test_what_stops_on_its_way_is_stored_without_what_it_planned(called, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        called(("a", lambda: None), ("b", stop), made={"a": 1})
    loaded = Manifest.load(tmp_path)
    assert loaded is not None
    assert loaded.times == {"end": "day 1", "seconds": {"a": 2.0, "b": 2.0}}


def test_a_finished_run_stays_as_it_is(called, tmp_path):
    custody = {"root": "00"}
    assert called(("a", lambda: None), made={"a": 1}, custody=custody) == {}
    with pytest.raises(KeyboardInterrupt):
        called(("a", stop), made={"a": 1}, custody=custody)
    loaded = Manifest.load(tmp_path)
    assert loaded is not None
    assert (loaded.custody, loaded.times) == (custody, {})


def test_times_are_kept_while_nothing_changes_and_added_up_when_something_does(
    tmp_path, monkeypatch
):
    write_books(tmp_path)
    clock = iter(range(1000))
    monkeypatch.setattr("mia_batch.pipeline.stages.time.monotonic", lambda: next(clock))
    days = iter(f"2026-01-{day:02}" for day in range(1, 32))
    monkeypatch.setattr(timing, "now", lambda: next(days))
    first = audit_books(tmp_path / "run", tmp_path).manifest
    assert first.times["seconds"]["scores"] == 3.0  # looked ahead, checked and ran
    assert (first.times["begin"], first.times["end"]) == ("2026-01-01", "2026-01-02")
    assert first.requests == {}
    assert audit_books(tmp_path / "run", tmp_path).manifest.times == first.times
    later = rescore(
        tmp_path / "run", attacks=["samia_matched_v1"], replace=True
    ).manifest.times
    assert later["seconds"]["scores"] == 5.0  # prepared and ran again
    assert later["seconds"]["targets"] == 4.0
    assert (later["begin"], later["end"]) == ("2026-01-01", "2026-01-03")
    manifest = Run(tmp_path / "run").manifest
    manifest.times = {}  # as of an older version
    manifest.write(tmp_path / "run")
    older = rescore(
        tmp_path / "run", attacks=["samia_matched_n2_v1"], replace=True
    ).manifest.times
    assert older["end"] == "2026-01-04"
    assert "begin" not in older


def load(**settings):
    return load_settings(
        {"input": "x.parquet", "model": "m"} | settings, use_config=False
    )


@pytest.mark.parametrize(
    "text", ["0/8", "9/8", "3", "3/", "/8", "-1/8", "1/0", "a/b", "1/2/3", "٣/٨"]
)
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(
        SettingsError, match=rf"^shard= is '{text}': write I/N with I from"
    ):
        load(shard=text)


def test_each_block_belongs_to_one_shard_and_no_run_remembers_it():
    blocks = pl.Series("block", range(10), dtype=pl.UInt32).to_frame()
    shards = [Shard.parse(f"{number}/3") for number in (1, 2, 3)]
    own_blocks = [
        blocks.filter(shard.contains(pl.col("block")))["block"].to_list()
        for shard in shards
    ]
    assert own_blocks == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    settings = load(shard="03/8")
    assert settings.shard == "3/8"
    assert "shard" not in settings.model_dump(mode="json")


@pytest.mark.parametrize(
    ("source_settings", "reason"),
    [
        (
            {"base_url": "http://127.0.0.1:1/v1"},
            "'openai': an endpoint is asked by one process; ra",
        ),
        (
            {"samples_from": "made.parquet"},
            "'replay': a recording is read by one process",
        ),
    ],
)
def test_endpoints_and_recordings_are_not_sharded(source_settings, reason):
    with pytest.raises(
        SettingsError, match=rf"shard= cannot be used with engine {reason}"
    ):
        Audit.begin(load(shard="1/2", **source_settings), Observer())


def test_a_dry_run_speaks_of_the_share_and_measures_its_speed(
    checkpoint, tmp_path, monkeypatch
):
    texts = [
        f"{number} one two three four five six seven" for number in range(3 * 64 + 10)
    ]
    pl.DataFrame({"text": texts}).write_parquet(tmp_path / "corpus.parquet")
    settings = {
        "input": str(tmp_path / "corpus.parquet"),
        "model": str(checkpoint),
        "engine": "transformers",
        "preset": "matched",
        "out": str(tmp_path / "run"),
    }
    prompts = [
        dict(plan(load(**settings, shard=f"{n}/4")))["prompts"] for n in (1, 2, 3, 4)
    ]
    assert prompts == ["64", "64", "64", "10"]
    assert dict(plan(load(**settings)))["prompts"] == "202"

    class Slow(Clock):
        def work_ended(self) -> None:
            self.seconds = 1000.0

    monkeypatch.setattr(dry_run, "Clock", Slow)
    time = dict(plan(load(**settings), speed="probe"))["time"]
    minutes = re.fullmatch(
        r"about (\d+) minutes at \d+ tokens/s \(measured on 32 texts\)", time
    )
    assert minutes is not None, time
    assert int(minutes[1]) > 202 / 32 * 1000 / 60
    assert not (tmp_path / "run").exists()


def test_minutes_come_from_a_run_that_asked_the_same_in_the_same_way(texts, tmp_path):
    record = json.loads((texts.run.folder / "run.json").read_text())
    near = tmp_path / "near" / "run.json"
    near.parent.mkdir()

    def time(
        speed: float = 100.0, *, kind: str = "continuation", **changed: Any
    ) -> str:
        key = f"samples of target: {kind}"
        record_stored = record | {"times": {"tokens_per_second": {key: speed}}}
        models = {"target": record["models"]["target"] | changed.pop("target", {})}
        evidence = record["evidence"] | changed.pop("evidence", {})
        near.write_text(
            json.dumps(record_stored | {"models": models, "evidence": evidence})
        )
        return planned(texts.settings | {"out": str(tmp_path / "new")} | changed)[
            "time"
        ]

    time_ending = "at 100 tokens/s (as near measured with transformers on cpu)"
    assert time().removeprefix("about 1 minute ") == time_ending
    assert time(evidence={"seed": 7}).endswith(time_ending)
    unknown = [
        time(kind="probe"),  # another kind of question
        time(kind="continuation, probe"),
        time(samples=4),
        time(window_words=5),
        time(evidence={"dtype": "bfloat16"}),
        time(target={"samples engine": "vllm"}),
        time(target={"source": {"digest": "of another model"}}),
        time(speed=0.0),
    ]
    assert {line.partition(":")[0] for line in unknown} == {"unknown"}


def test_shards_wait_for_who_makes_what_all_need_and_are_kept_apart(tmp_path):
    run = AuditFolder(tmp_path / "run")
    messages: list[str] = []
    joined: list[Shard] = []

    def second():
        with run.shared(Shard(2, 2), messages.append):
            joined.extend(list_live_shards(run.folder, Shard(2, 2)))

    waiting = Thread(target=second)
    with run.shared(Shard(1, 2), messages.append) as turn:
        waiting.start()
        wait_until(lambda: messages, "the second waits")
        assert joined == []
        turn.release()
        waiting.join()
        with (
            pytest.raises(RunFolderError, match="is held by another live run"),
            run.held(),
        ):
            pass
    assert messages == ["waiting for what all shards need, which shard 1/2 makes"]
    assert joined == [Shard(1, 2)]
    with run.held():
        assert not [*run.folder.glob(".shard*")]
        refused = pytest.raises(RunFolderError, match="is held by another live run")
        with refused, run.shared(Shard(1, 2), messages.append):
            pass


def test_shards_change_a_manifest_in_turns_each_from_what_all_have_stored(tmp_path):
    first_shard, two = (
        Audit(
            AuditRequest(load(shard=f"{n}/2"), (), build_rule(primary="loss_v1")),
            AuditFolder(tmp_path),
            Observer(),
        )
        for n in (1, 2)
    )

    def ask(audit: Audit, n_passes: int, seconds: float, **of_model: str) -> None:
        def step() -> None:
            with timing.asking(audit), audit.changing_manifest():
                audit.agree({"source": "a", **of_model}, "target")
                passes = audit.manifest.passes
                passes["target text"] = passes.get("target text", 0) + n_passes

        stage: Any = SimpleNamespace(name="logprobs", activity="asking")
        run_timed(audit, [(stage, step)])

    clock, days = iter([0, 1.5, 2, 3, 3, 3, 3, 3]), map(str, range(10, 99))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mia_batch.pipeline.stages.time.monotonic", lambda: next(clock))
        patch.setattr(timing, "now", lambda: next(days))
        ask(first_shard, 3, 1.5)
        first_shard.manifest.passes["target other"] = (
            5  # which others do not see: it is not settled
        )
        ask(two, 8, 1.0, tokenizer="t")
        loaded = Manifest.load(tmp_path)
        assert loaded is not None
        assert loaded.passes == {"target text": 11}
        assert (loaded.times["begin"], loaded.times["seconds"]) == (
            "10",
            {"logprobs": 2.5},
        )
        assert loaded.requests["times"]["first"] == "11"
        assert loaded.requests["times"]["last"] < loaded.times["end"]
        assert loaded.models == {"target": {"source": "a", "tokenizer": "t"}}
        with pytest.raises(
            SettingsError, match="'tokenizer' of model 'target' was 't', is now"
        ):
            ask(first_shard, 1, 1.0, tokenizer="u")
    loaded_after = Manifest.load(tmp_path)
    assert loaded_after is not None
    assert (loaded_after.models, loaded_after.passes) == (loaded.models, loaded.passes)
    finished = Manifest(custody={"root": "00"})
    finished.write(tmp_path)
    with two.changing_manifest():
        two.manifest.passes["target text"] = 9
    assert Manifest.load(tmp_path) == finished


def test_a_dry_run_names_the_texts_first_and_then_what_it_can_answer(
    checkpoint, tmp_path
):
    (tmp_path / "mine.txt").write_text(" ".join(words("mine", 300)))
    (tmp_path / "new.txt").write_text(" ".join(words("new", 300)))
    settings = {
        "input": str(tmp_path / "mine.txt"),
        "model": str(checkpoint),
        "engine": "transformers",
        "out": str(tmp_path / "run"),
    }
    alone = [*plan(load_settings(settings, use_config=False))]
    names = [name for name, _ in alone]
    assert names[:5] == ["documents", "targets", "mine.txt", "answers", "note"]
    assert dict(alone)["answers"].endswith("takes comparison texts (--non-members)")
    compared = {
        "non_members": str(tmp_path / "new.txt"),
        "non_members_known": "written after the model",
        "anyway": True,
    }
    lines = [*plan(load_settings(settings | compared, use_config=False))]
    assert "answers" not in dict(lines)
