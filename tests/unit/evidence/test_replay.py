"""Continuations that were recorded elsewhere."""

import json
import random
from collections.abc import Iterator
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch.corpus import combine_digests, digest_files
from mia_batch.errors import CorpusError, RunFolderError, SettingsError
from mia_batch.evidence import replay as module
from mia_batch.evidence.parts import (
    RECORDED_BLOCK_TARGETS,
    Block,
    FreshUnits,
    Missing,
    Parts,
)
from mia_batch.evidence.replay import Counts, Partition, Recording, pack
from mia_batch.prompts import continuation
from mia_batch.schemas import Documents, Samples
from mia_batch.targets import Windowing, build_targets
from mia_batch.views import TARGET, View
from tests import frames
from tests.frames import table
from tests.texts import king_james_books

N_TARGETS = 1200
N_SAMPLES = 4
VIEW = View(
    model=TARGET,
    name="continuation",
    make=continuation,
    columns=("prefix", "reference"),
)


@pytest.fixture(scope="module")
def words():
    return king_james_books()["part_00"].split()


@pytest.fixture(scope="module")
def targets(words, tmp_path_factory):
    """A targets table over three blocks; target 7 cannot be sampled."""
    texts = [
        " ".join(words[start : start + 30]) for start in range(0, 30 * N_TARGETS, 30)
    ]
    texts[7] = "word"
    documents = table(
        Documents,
        [
            {"document_id": f"{number}", "text": text}
            for number, text in enumerate(texts)
        ],
    )
    path: Path = tmp_path_factory.mktemp("replay") / "targets.parquet"
    build_targets(documents.lazy(), Windowing()).sink_parquet(path)
    return path


def collected(
    targets: Path, recording: Recording, work: Path, n_samples: int = N_SAMPLES
) -> Iterator[tuple[Block, pl.DataFrame]]:
    """Ask for what the samples in a folder lack, in blocks as replay takes them."""
    parts = Parts(
        folder=work / "samples",
        schema=Samples,
        model="target",
        view="continuation",
        block_targets=RECORDED_BLOCK_TARGETS,
    )
    blocks = Missing(
        FreshUnits(pl.scan_parquet(targets), VIEW), parts, n_samples
    ).blocks()
    return recording.collect(targets, VIEW, blocks, work, "whitespace")


@pytest.fixture(scope="module")
def recorded(targets, words):
    """Four continuations of every target, of 8 to 27 words."""
    table = pl.read_parquet(targets).filter(pl.col("reason").is_null())
    rows = [
        {
            "target_id": row["target_id"],
            "document_id": row["document_id"],
            "prefix": row["prefix"],
            "sample_index": index,
            "candidate": " ".join(
                words[place + index : place + 2 * index + 8 + place % 14]
            ),
            "n_tokens": 10 + index,
            "finish_reason": "length" if place % 2 else "stop",
        }
        for place, row in enumerate(table.iter_rows(named=True))
        for index in range(N_SAMPLES)
    ]
    return pl.DataFrame(rows)


@pytest.fixture(scope="module")
def replay(targets, tmp_path_factory):
    """Collect everything from a recording: the samples table and the recording."""

    def run(source, *, n_samples=N_SAMPLES, candidate_column="candidate"):
        if isinstance(source, pl.DataFrame):
            path = tmp_path_factory.mktemp("recording") / "rows.parquet"
            source.write_parquet(path, row_group_size=1000)
            source = path
        recording = Recording.open(str(source), candidate_column=candidate_column)
        work = tmp_path_factory.mktemp("work")
        parts = [
            samples for _, samples in collected(targets, recording, work, n_samples)
        ]
        assert not (work / "replay").exists()
        return pl.concat(parts), recording

    return run


def test_portions_come_back_in_order_and_a_folder_that_cannot_be_used_is_said(tmp_path):
    partition = Partition(tmp_path / "replay")
    added = [pl.DataFrame({"text": [f"{number}", None, "\0"]}) for number in range(5)]
    for number, rows in enumerate(added):
        partition.append(number % 2, pack(rows))
    assert [rows["text"][0] for rows in partition.read(0)] == ["0", "2", "4"]
    assert all(
        rows.equals(added[1 + 2 * row_number])
        for row_number, rows in enumerate(partition.read(1))
    )
    assert partition.read(2) == []
    partition = Partition(tmp_path / "replay")  # what was left there is removed
    assert partition.read(0) == []
    partition.remove()
    partition.remove()
    assert list(tmp_path.iterdir()) == []
    partition = Partition(tmp_path / "replay")
    (tmp_path / "replay" / "00000003").symlink_to("/dev/full")
    with pytest.raises(RunFolderError, match="cannot be used: No space left on device"):
        partition.append(3, pack(pl.DataFrame({"text": ["a" * 100_000]})))
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunFolderError, match="cannot be used: Not a directory; make room"
    ):
        Partition(tmp_path / "file" / "replay")


N_ROWS = (N_TARGETS - 1) * N_SAMPLES


@pytest.fixture(scope="module")
def expected(replay, recorded):
    samples, _ = replay(recorded.drop("document_id", "prefix"))
    assert isinstance(samples, pl.DataFrame)
    return samples


def test_every_sample_comes_in_the_order_of_the_targets(expected, recorded):
    """Short is what ended by length with fewer words than its reference, which has 15."""
    assert Samples.validate(expected).height == N_ROWS
    columns = ["target_id", "sample_index", "candidate", "n_tokens", "finish_reason"]
    expected_rows = recorded.select(columns).cast(
        {"sample_index": pl.UInt32, "n_tokens": pl.UInt32}
    )
    assert expected.select(columns).equals(expected_rows)
    assert expected.select("prompt", "reason").null_count().row(0) == (N_ROWS, N_ROWS)
    n_words = expected["candidate"].str.split(" ").list.len()
    short = (expected["finish_reason"] == "length") & (n_words < 15)
    assert expected["short"].to_list() == short.to_list()
    assert 0 < short.sum() < N_ROWS


@given(seed=st.integers(0, 2**32), portion_bytes=st.sampled_from([1, 20_000, 1 << 23]))
@settings(max_examples=10)
def test_any_order_of_the_file_gives_the_same_table(
    seed, portion_bytes, expected, recorded, replay
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PORTION_BYTES", portion_bytes)
        samples, recording = replay(
            recorded.sample(fraction=1, shuffle=True, seed=seed)
        )
    assert samples.equals(expected)
    assert recording.counts == Counts(rows=N_ROWS, matched=N_ROWS)


FORMS = {
    "by document": lambda rows: rows.drop("target_id", "prefix"),
    "by prefix": lambda rows: rows.drop("target_id", "document_id"),
    "numbered by their order": (
        lambda rows: rows.sort("sample_index", "target_id").drop("sample_index")
    ),
    "renamed": lambda rows: rows.rename({"candidate": "output"}),
    "a second answer to each": lambda rows: pl.concat(
        [rows, rows.with_columns(candidate=pl.lit("a second answer"))]
    ),
}


@pytest.mark.parametrize(
    ("columns", "key", "key_column", "candidate"),
    [
        (("id", "completion", "model"), "document_id", "id", "completion"),
        (("id", "prefix", "generation"), "prefix", "prefix", "generation"),
        (("doc_id", "output", "candidate"), "document_id", "doc_id", "candidate"),
    ],
)
def test_columns_of_recordings_that_others_made_are_known(
    columns, key, key_column, candidate
):
    raw = pl.Schema(dict.fromkeys(columns, pl.String()))
    resolved = module.resolve(raw, candidate="candidate", source_name="made.jsonl")
    assert (resolved.key, resolved.key_column, resolved.candidate) == (
        key,
        key_column,
        candidate,
    )


@pytest.mark.parametrize("form", FORMS)
def test_other_forms_of_the_same_rows(form, expected, recorded, replay, monkeypatch):
    monkeypatch.setattr(module, "_BATCH_ROWS", 50)
    rows = FORMS[form](recorded)
    column = "output" if form == "renamed" else "candidate"
    samples, recording = replay(rows, candidate_column=column)
    assert samples.equals(expected)
    assert recording.most_samples == N_SAMPLES
    counts = Counts(rows=rows.height, matched=N_ROWS, duplicates=rows.height - N_ROWS)
    assert recording.counts == counts
    key = {"by document": "document_id", "by prefix": "prefix"}.get(form, "target_id")
    assert recording.key == key


def test_the_samples_of_a_run_and_json_lines_are_recordings(
    expected, recorded, replay, tmp_path
):
    (tmp_path / "samples").mkdir()
    for number, part in enumerate(expected.iter_slices(100)):
        part.write_parquet(tmp_path / "samples" / f"part-{number}.parquet")
    rows = recorded.drop("target_id", "prefix").with_columns(
        pl.col("document_id").cast(pl.Int64)
    )
    rows.write_ndjson(tmp_path / "rows.jsonl")
    for name in ("samples", "rows.jsonl"):
        samples, recording = replay(tmp_path / name)
        assert samples.equals(expected)
        assert recording.has_finish_reason


def test_columns_may_be_missing_or_nan_and_a_prompt_is_kept_where_it_differs(
    expected, recorded, replay
):
    samples, recording = replay(recorded.drop("finish_reason"))
    assert not recording.has_finish_reason
    assert not samples["short"].any()
    assert samples["candidate"].equals(expected["candidate"])
    n_tokens = pl.when(pl.col("n_tokens") > 10).then(
        pl.col("n_tokens").cast(pl.Float64)
    )
    floats = recorded.with_columns(
        n_tokens=n_tokens.fill_null(float("nan")),
        sample_index=pl.col("sample_index").cast(float),
    )
    assert set(replay(floats)[0]["n_tokens"]) == {None, 11, 12, 13}
    prompt = (
        pl.when(sample_index=0)
        .then("prefix")
        .otherwise(pl.lit("<s>") + pl.col("prefix"))
    )
    samples, _ = replay(recorded.with_columns(prompt=prompt))
    assert (
        samples["prompt"].is_null().to_list()
        == (samples["sample_index"] == 0).to_list()
    )


def test_a_failed_sample_keeps_its_reason_and_gives_way_to_a_text(expected, replay):
    lost = expected.with_row_index().with_columns(
        reason=pl.when(pl.col("index") < 2).then(pl.lit("refused")),
        candidate=pl.when(pl.col("index") > 2).then("candidate"),
    )
    again = lost.slice(1, 1).with_columns(candidate=pl.lit("again"))
    samples, recording = replay(pl.concat([lost, again]))
    assert samples.select("candidate", "reason", "n_tokens", "short").head(
        3
    ).rows() == [
        (None, "refused", None, None),
        ("again", None, 11, expected["short"][1]),
        (None, "the recording has no text", None, None),
    ]
    assert recording.counts == Counts(rows=N_ROWS + 1, matched=N_ROWS, duplicates=1)


def test_what_is_missing_surplus_double_or_foreign_is_counted(
    expected, recorded, replay
):
    strange = recorded.head(5).with_columns(target_id=pl.lit("0" * 32))
    nameless = recorded.head(2).with_columns(target_id=pl.lit(None, pl.String))
    double = recorded.slice(40, 3).with_columns(candidate=pl.lit("a second answer"))
    rows = pl.concat([recorded.slice(10), strange, nameless, double])
    samples, recording = replay(rows, n_samples=3)
    recorded_samples = expected.filter(pl.col("sample_index") < 3)
    missing = samples["reason"] == "the recording has no such sample"
    n_missing = 3 + 3 + 2
    assert missing.sum() == n_missing
    assert samples.filter(missing.fill_null(value=False).not_()).equals(
        recorded_samples.slice(n_missing)
    )
    assert asdict(recording.counts) == {
        "rows": N_ROWS,
        "matched": recorded_samples.height - n_missing,
        "missing": n_missing,
        "surplus": N_TARGETS - 1 - 2,
        "duplicates": 3,
        "unmatched": 7,
    }


def test_targets_of_the_same_prefix_get_the_same_continuations(tmp_path):
    alike = frames.targets(
        *[{"target": "t", "prefix": "one two", "reference": "three"}] * 100
    )
    alike.write_parquet(tmp_path / "targets.parquet")
    rows = pl.DataFrame({"prefix": ["one two"] * 2, "candidate": ["a", "b"]})
    rows.write_parquet(tmp_path / "rows.parquet")
    recording = Recording.open(str(tmp_path / "rows.parquet"))
    collected_parts = collected(tmp_path / "targets.parquet", recording, tmp_path, 2)
    samples = pl.concat([part for _, part in collected_parts])
    assert samples["candidate"].to_list() == ["a", "b"] * 100
    assert recording.counts == Counts(rows=2, matched=200)


def test_going_on_takes_only_what_is_missing(targets, recorded, expected, tmp_path):
    """What is stored for the work meanwhile goes, whether a run was killed or stops half-way."""
    recorded.write_parquet(tmp_path / "rows.parquet")
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "00000000").write_bytes(b"left over")
    (tmp_path / "samples").mkdir()
    part = "block-00000000.target-continuation-00000-00002.attempt-0.parquet"
    done_samples = expected.filter(pl.col("sample_index") < 2).head(100)
    done_samples.write_parquet(tmp_path / "samples" / part)
    recording = Recording.open(str(tmp_path / "rows.parquet"))
    parts = [part for _, part in collected(targets, recording, tmp_path)]
    key = ["target_id", "sample_index"]
    assert pl.concat([done_samples, *parts]).sort(key).equals(expected.sort(key))
    assert recording.counts.missing == 0
    assert not (tmp_path / "replay").exists()
    generator: Any = collected(targets, recording, tmp_path)
    next(generator)
    assert (tmp_path / "replay").exists()
    generator.close()
    assert not (tmp_path / "replay").exists()


def test_documents_of_several_targets_are_refused(recorded, tmp_path):
    recorded.drop("target_id").write_parquet(tmp_path / "rows.parquet")
    recording = Recording.open(str(tmp_path / "rows.parquet"))
    for ids, complaint in (
        (["a", "a"], "several targets"),
        ([None, None], "no identifier"),
    ):
        table = frames.targets(*[{"document_id": name} for name in ids])
        table.write_parquet(tmp_path / "targets.parquet")
        with pytest.raises(SettingsError, match=complaint):
            recording.collect(
                tmp_path / "targets.parquet", VIEW, [], tmp_path, "whitespace"
            )


def test_the_digest_is_of_the_content_in_order(recorded, tmp_path):
    (tmp_path / "rows").mkdir()
    whole = sha256()
    for number, part in enumerate(recorded.iter_slices(200)):
        path = tmp_path / "rows" / f"{number:02}.parquet"
        part.write_parquet(path)
        whole.update(sha256(path.read_bytes()).digest())
    files = Recording.open(str(tmp_path / "rows")).source.files
    assert combine_digests(digest_files(files)) == whole.hexdigest()


def test_odd_texts_survive(targets, replay, tmp_path):
    odd = ["", "\0", "a\0b", "\u2028", "\U0001f600" * 3, '"\\', "x" * 5_000_000, "NaN"]
    first = pl.read_parquet(targets)["target_id"][0]
    rows = [{"target_id": first, "candidate": text} for text in odd]
    lines = [json.dumps(row) for row in random.Random(0).sample(rows, len(rows))]
    pl.DataFrame(rows).write_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), "utf-8")
    for name in ("rows.parquet", "rows.jsonl"):
        samples, recording = replay(tmp_path / name, n_samples=len(odd))
        assert sorted(samples["candidate"].drop_nulls()) == sorted(odd)
        assert recording.most_samples == len(odd)


ROW = '{"target_id": "a", "candidate": "b"'


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("empty.jsonl", "", "has no rows"),
        ("blank.jsonl", "\n\n", "has no rows"),
        ("rows.csv", "target_id,candidate\na,b\n", "is csv, which has no types"),
        ("rows.txt", "a", "is txt, which has no types"),
        ("rows.dat", "a", "unknown extension"),
        ("none.parquet", None, "does not exist"),
        ("csv.jsonl", "target_id,candidate\na,b\n", "line 1: not valid JSON"),
        ("csv.parquet", "target_id,candidate\na,b\n", "cannot be read as Parquet"),
        ("cut.jsonl", '{"target_id": "a", "cand', "not valid JSON"),
        ("lone.jsonl", '{"target_id": "a", "candidate": "\\ud800"}', "not valid JSON"),
        (
            "other.jsonl",
            '{"target_id": "a", "text": "b"}',
            "no column 'candidate'.*'text'",
        ),
        (
            "unnamed.jsonl",
            '{"of": "a", "candidate": "b"}',
            "names no targets.*'of', 'candidate'",
        ),
        ("null.jsonl", '{"target_id": null, "candidate": "b"}', "names no targets"),
        (
            "number.jsonl",
            '{"target_id": 1, "candidate": "b"}',
            "'target_id' holds type Int64",
        ),
        (
            "list.jsonl",
            '{"target_id": "a", "candidate": ["b"]}',
            "holds nested JSON values",
        ),
        *(
            (
                "index.jsonl",
                f'{ROW}, "sample_index": {value}}}',
                f"line 1: .* is {value}, not the i",
            )
            for value in (0.5, -1, 4294967296)
        ),
        (
            "gap.jsonl",
            f'{ROW}, "sample_index": 0}}\n{ROW}}}',
            "line 2: .* is null, not the index",
        ),
        (
            "tokens.jsonl",
            f'{ROW}, "n_tokens": -3}}',
            "'n_tokens' is -3, not a number of tokens",
        ),
        (
            "end.jsonl",
            f'{ROW}, "finish_reason": "eos"}}',
            "'eos', none of 'stop', 'length', 'repeats'",
        ),
    ],
)
def test_what_is_no_recording_is_refused_in_a_sentence(
    name, content, complaint, tmp_path
):
    if content is not None:
        (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(CorpusError, match=complaint) as refusal:
        Recording.open(str(tmp_path / name))
    assert "\n" not in str(refusal.value)
