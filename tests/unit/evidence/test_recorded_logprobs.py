"""Log-probabilities of another program: which text a row is of, what is refused, what is given."""

import json
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.errors import CorpusError, SettingsError
from mia_batch.evidence.recorded_logprobs import (
    NO_ROW,
    LogprobRecording,
    LogprobSource,
    describe_difference,
)
from mia_batch.evidence.request import Request
from mia_batch.evidence.token_texts import join_tokens
from mia_batch.models.tokens import Tokenizer

TEXT = "one two"
ROW: dict[str, Any] = {"tokens": ["one", " two"], "logprobs": [None, -2.0]}


@pytest.fixture
def opened(tmp_path):
    """Open rows as a file of log-probabilities."""
    numbers = count()
    with ExitStack() as stack:

        def open_rows(
            *rows: dict[str, Any], tokenizer: Tokenizer | None = None
        ) -> LogprobSource:
            path = tmp_path / "rows.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            recording = LogprobRecording.open(str(path), "logprobs_from")
            folder = tmp_path / f"replay-{next(numbers)}"
            return stack.enter_context(recording.opened(folder, tokenizer))

        yield open_rows


def ask(source: LogprobSource, *texts: str) -> list[Any]:
    requests = [
        Request(request_id=number, kind="logprobs", text=text)
        for number, text in enumerate(texts)
    ]
    source.submit(*requests)
    return source.results()


def names(*texts: str) -> list[pl.DataFrame]:
    """The texts that will be asked about, named t0, t1, ..."""
    target_ids = [f"t{number}" for number in range(len(texts))]
    numbered = pl.DataFrame({"target_id": target_ids, "text": [*texts]})
    return [numbered.select("target_id", pl.lit("text").alias("view"), "text")]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["one", " two"], "one two"),
        (["bytes:\\xe2\\x80", "bytes:\\x99", "s"], "\u2019s"),
        (["ca", "f", "Ã©", "Ġau", "Ċ", "lait"], "café au\nlait"),
        (["▁one", "▁tw", "o", "<0x0A>", "<0xC3>", "<0xA9>"], "one two\né"),
        (["▁one"], " one"),
    ],
)
def test_tokens_are_joined_as_programs_write_them(tokens, text):
    assert text in join_tokens(tokens)


def test_tokens_that_are_cut_within_a_character_are_no_text():
    assert join_tokens(["ab", "\ufffd", "\ufffd"]) == ["ab\ufffd\ufffd"]


@given(st.text(min_size=1, max_size=30), st.data())
def test_any_cut_of_a_text_is_joined_to_it(text, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    places = [0, *cuts, len(text)]
    tokens = [text[a:b] for a, b in pairwise(places)]
    assert join_tokens(tokens)[0] == text


def test_numbers_come_as_they_are_and_the_first_token_has_none(opened):
    row = ROW | {
        "mean": [None, -3.5],
        "variance": [None, 1.25],
        "rank": [None, 7],
        "top": [None, -0.5],
        "token_ids": [4, 9],
    }
    (answer,) = ask(opened(row), TEXT)
    assert answer.error is None
    assert not answer.bos
    assert {name: values.tolist()[1] for name, values in answer.tokens.items()} == {
        "logprob": -2.0,
        "vocabulary_mean": -3.5,
        "vocabulary_variance": 1.25,
        "rank": 7,
        "top_logprob": -0.5,
        "token_ids": 9,
    }
    assert np.isnan(answer.tokens["logprob"][0])
    assert answer.tokens["rank"][0] == 0
    assert answer.tokens["logprob"].dtype == np.float32


@pytest.mark.parametrize(
    ("row", "logprobs", "has_start"),
    [
        # A start token that stands among the tokens is left out
        (
            {"tokens": ["<s>", "one", " two"], "logprobs": [None, -1, -2]},
            [-1, -2],
            True,
        ),
        ({"tokens": ["", "one", " two"], "logprobs": [0, -1, -2]}, [-1, -2], True),
        # One that does not stand there
        ({"tokens": ["one", " two"], "logprobs": [-1, -2]}, [-1, -2], True),
        # None, where some programs write 0
        ({"tokens": ["one", " two"], "logprobs": [0, -2]}, [None, -2], False),
        ({"tokens": ["one", " two"], "logprobs": [None, 0]}, [None, 0], False),
        # Rounding above 0
        ({"tokens": ["one", " two"], "logprobs": [None, 1e-6]}, [None, 0], False),
    ],
)
def test_a_start_token_is_left_out(opened, row, logprobs, has_start):
    (answer,) = ask(opened(row), TEXT)
    row_logprobs = [
        None if np.isnan(n) else n for n in answer.tokens["logprob"].tolist()
    ]
    assert row_logprobs == logprobs
    assert answer.bos == has_start


def test_a_word_in_brackets_that_begins_a_text_is_no_start_token(opened):
    row = {"tokens": ["<b>", "one"], "logprobs": [None, -1]}
    (answer,) = ask(opened(row), "<b>one")
    assert len(answer.tokens["logprob"]) == 2


def test_token_ids_are_joined_by_the_tokenizer(opened, checkpoint):
    tokenizer = Tokenizer.load(str(checkpoint))
    text = "The road went on."
    (ids,) = tokenizer.encode([text])
    starts = tokenizer.find_starts()
    assert starts is not None
    start = starts[0]
    with_start = [*start, *ids]
    row = {
        "token_ids": with_start,
        "logprobs": [None, *[-1.0] * (len(with_start) - 1)],
    }
    (answer,) = ask(opened(row, tokenizer=tokenizer), text)
    assert answer.tokens["token_ids"].tolist() == ids
    assert answer.bos == bool(start)
    letters = [token for (token,) in tokenizer.encode([*text])]
    other_cut = {
        "token_ids": [*start, *letters],
        "logprobs": [None, *[-1.0] * (len([*start, *letters]) - 1)],
    }
    with pytest.raises(CorpusError, match=r"rows.jsonl, line 1: its token ids are not"):
        opened(other_cut, tokenizer=tokenizer)
    with pytest.raises(
        SettingsError, match="token ids without their texts; give token"
    ):
        opened(row)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"logprobs": [-2.0]}, "line 2: column 'tokens' .* as many entries are needed"),
        ({"logprobs": [None, None]}, "'logprobs' .* only the first token may have no"),
        ({"tokens": ["one", None]}, "'tokens' .* only the first token may have no"),
        ({"logprobs": [None, 0.5]}, "'logprobs' .* not natural log-probabilities"),
        ({"logprobs": [None, -9999.0]}, "not natural log-probabilities"),
        ({"rank": [None, 0]}, "column 'rank' is .*, not ranks, which count from 1"),
        ({"mean": [None, 0.1]}, "column 'mean' is .*, not means of log-probabilities"),
        ({"variance": [None, -1.0]}, "column 'variance' is .*, not variances"),
        ({"top": [None, -3.0]}, "column 'top' .* likelier than the likeliest one"),
        ({"token_ids": [-1, 4]}, "column 'token_ids' .*, not token ids"),
        (
            {"text": "one too"},
            "from character 6 on they are 'wo', and the text has 'oo'",
        ),
        ({"model": "b"}, "column 'model' is 'b', and 'a' in rows before; give a file"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_its_line(opened, changes, sentence):
    whole = ROW | {
        "mean": [None, -3.5],
        "variance": [None, 1.0],
        "rank": [None, 2],
        "top": [None, -1.0],
        "token_ids": [4, 9],
        "model": "a",
        "text": TEXT,
    }
    opened(whole)
    with pytest.raises(CorpusError, match=sentence):
        opened(whole, whole | changes)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"tokens": ["a"], "text": "a"}], "has no column 'logprobs'"),
        ([{"logprobs": [-1.0], "text": "a"}], "has no column 'tokens' or 'token_ids'"),
        ([{"tokens": "a", "logprobs": [-1.0]}], "'tokens' holds String; it must hold"),
        ([{"tokens": ["a"], "logprobs": ["x"]}], "line 1: cannot parse 'x'"),
        ([ROW | {"logprobs": [None]}, ROW], "line 1: column 'tokens'"),
        ([], "has no column 'logprobs'.* its columns are none"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(opened, rows, sentence):
    with pytest.raises(CorpusError, match=sentence):
        opened(*rows)


def test_a_file_without_numbers_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    empty = pl.DataFrame({"tokens": [["a"]], "logprobs": [None]})
    empty.cast({"logprobs": pl.List(pl.Float64)}).write_parquet(path)
    recording = LogprobRecording.open(str(path), "logprobs_from")
    with (
        pytest.raises(CorpusError, match="has no log-probabilities; give a file"),
        recording.opened(tmp_path / "replay", None),
    ):
        pass
    assert not (tmp_path / "replay").exists()


def test_rows_are_counted_by_what_became_of_them(opened):
    other_row = {"tokens": ["three"], "logprobs": [-1.0]}
    source = opened(ROW, other_row, ROW, ROW | {"logprobs": None})
    source.check_texts(names(TEXT, "four"))
    answers = ask(source, TEXT, "four")
    assert [answer.error for answer in answers] == [None, NO_ROW]
    counts = source.counts
    assert (counts.rows, counts.matched, counts.missing) == (3, 1, 1)
    assert (counts.repeated, counts.unused) == (1, 1)


def test_two_series_of_one_text_are_refused(opened):
    source = opened(ROW, ROW | {"logprobs": [None, -2.5]})
    with pytest.raises(CorpusError, match=r"line 1 and .*line 2 give one text two"):
        ask(source, TEXT)


def test_a_file_without_the_texts_of_a_view_is_refused(opened):
    (texts,) = names("One two")
    lowercase = texts.with_columns(view=pl.lit("lowercase"), text=pl.lit("one two"))
    source = opened({"tokens": ["One", " two"], "logprobs": [None, -2.0]})
    source.check_texts([texts])
    with pytest.raises(SettingsError, match=r"no row of .* of view 'lowercase'"):
        source.check_texts([texts, lowercase])


@pytest.mark.parametrize(
    ("rows", "texts", "error", "message"),
    [
        (
            [ROW],
            ["else"],
            SettingsError,
            "text of view 'text', of .* first is 'else'",
        ),
        (
            [ROW | {"target_id": "t0"}, ROW | {"target_id": "t1"}],
            [TEXT, "one six"],
            CorpusError,
            "line 2: .*character 5 .* has 'six'",
        ),
        # Read in two ways
        (
            [ROW, {"tokens": ["<s>", "three"], "logprobs": [None, -1.0]}],
            [TEXT, "three"],
            SettingsError,
            "line 2: the first token .*line 1: it has",
        ),
    ],
)
def test_a_file_of_other_texts_is_refused(opened, rows, texts, error, message):
    with pytest.raises(error, match=message):
        opened(*rows).check_texts(names(*texts))


def test_a_text_of_one_token_has_nothing_that_precedes_it(opened):
    (answer,) = ask(opened({"tokens": ["one"], "logprobs": [None]}), "one")
    assert answer.error == "the text has no token that something precedes"


def test_a_difference_is_shown_where_it_begins():
    sentence = describe_difference(["Theend", "The end"], "The start")
    assert "from character 5 on they are 'end', and the text has 'start'" in sentence


def test_what_was_stored_meanwhile_is_removed(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW))
    recording = LogprobRecording.open(str(path), "logprobs_from")
    folder = tmp_path / "replay"
    (folder / "left").mkdir(parents=True)  # by a run that was killed
    with recording.opened(folder, None):
        assert sorted(file.name for file in folder.iterdir()) == ["logprob"]
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables_of_other_types_are_read(tmp_path, kind):
    rows = pl.DataFrame(
        {"tokens": [["one", " two"]], "logprobs": [[None, -2.0]], "rank": [[None, 3]]},
        schema_overrides={"logprobs": pl.List(pl.Float32), "rank": pl.List(pl.UInt8)},
    )
    path = Path(tmp_path / f"rows.{kind}")
    if kind == "parquet":
        rows.write_parquet(path)
    else:
        rows.write_ipc(path)
    recording = LogprobRecording.open(str(path), "logprobs_from")
    with recording.opened(tmp_path / "replay", None) as source:
        (answer,) = ask(source, TEXT)
    assert answer.tokens["logprob"].tolist()[1] == -2.0
    assert answer.tokens["rank"].tolist() == [0, 3]
