"""Passages that came out, looked for in a corpus that is known, or in an index of one."""

import shutil
import sys
from bisect import bisect_left, bisect_right
from importlib.util import find_spec
from math import ceil, log2
from pathlib import Path
from random import Random
from types import ModuleType, SimpleNamespace

import numpy as np
import polars as pl
import pytest

from mia_batch.diagnostics.preflight import count_documents
from mia_batch.errors import SettingsError
from mia_batch.report.sentences import known_sentence
from tests.hostile_server import HostileServer, Reply
from tests.runs import audit_books

WORDS = [f"w{number}" for number in range(30)]


def write_books(folder, n=2):
    """Books of plain words, and a recording that goes on as they do; return their texts."""
    (folder / "books").mkdir()
    dice, rows = Random(3), []
    for number in range(n):
        words = dice.choices(WORDS, k=60)
        (folder / "books" / f"{number}.txt").write_text(" ".join(words))
        rows.append({"document_id": f"{number}.txt", "candidate": " ".join(words[30:])})
    pl.DataFrame(rows).write_parquet(folder / "made.parquet")
    return [path.read_text() for path in sorted((folder / "books").iterdir())]


def count_slowly(passages, documents):
    """The same by plain Python: texts of words between single spaces, in lower case."""
    rows = []
    for passage in (text.lower().split() for text in passages):
        places, near = [], 0
        for text in (document.lower().split() for document in documents):
            n = sum(
                text[position : position + len(passage)] == passage
                for position in range(len(text))
            )
            places.append(n)
            runs = {
                tuple(text[position : position + 20])
                for position in range(len(text) - 19)
            }
            near += any(
                tuple(passage[position : position + 20]) in runs
                for position in range(len(passage) - 19)
            )
        first = next(
            (f"document {position}" for position, n in enumerate(places) if n), None
        )
        rows.append((sum(map(bool, places)), sum(places), near, first))
    return rows


def test_counts_are_those_of_plain_python():
    dice = Random(5)
    passages = [
        " ".join(dice.choices(WORDS, k=dice.randint(20, 40))) for _ in range(12)
    ]
    documents = []
    for _ in range(40):
        parts = [" ".join(dice.choices(WORDS, k=dice.randint(0, 15)))]
        for passage in dice.choices(passages, k=dice.randint(0, 3)):
            words = passage.split()
            chosen_words = (
                words if dice.random() < 0.6 else words[dice.randint(0, 10) :]
            )
            parts.append(dice.choice([" ", "\n", " \t "]).join(chosen_words))
        text = " ".join(parts)
        documents.append(text.upper() if dice.random() < 0.5 else text)
    names = [f"document {number}" for number in range(len(documents))]
    counts_of_passages = count_documents(
        pl.Series([*passages, "far too short"]),
        pl.LazyFrame({"text": [*documents, None], "name": [*names, "none"]}),
    )
    figures = counts_of_passages.select(
        "n_documents", "n_occurrences", "n_near_documents", "document"
    )
    assert figures.head(-1).rows() == count_slowly(passages, documents)
    assert max(figures["n_occurrences"].drop_nulls()) > 1
    assert figures.row(-1) == (None, None, None, None)
    assert counts_of_passages["reason"].to_list() == [None] * 12 + [
        "the passage has fewer than 20 words"
    ]


def test_a_hit_is_verified_in_a_folder_of_texts(tmp_path):
    first, _ = write_books(tmp_path)
    known_folder = tmp_path / "known"
    known_folder.mkdir()
    (known_folder / "b.txt").write_text(f"{first.upper()} and {first}")
    (known_folder / "c.txt").write_text(first.replace(" ", "\n  "))
    run = audit_books(tmp_path / "run", tmp_path, known_corpus=str(known_folder))
    rows = (
        run["known"].join(run["targets"], on="target_id").sort("document_id").to_dicts()
    )
    columns = ("n_occurrences", "n_documents", "n_near_documents", "document")
    assert [[row[name] for name in columns] for row in rows] == [
        [3, 2, 2, "b.txt"],
        [0, 0, 0, None],
    ]
    sentence = "stands 3 times in the known corpus, in 2 documents, first in b.txt."
    assert known_sentence(rows[0]).endswith(sentence)
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert sentence in page
    assert "No document of the known corpus has its whole passage." in page
    assert set(run.manifest.inputs["known_corpus"]) == {"b.txt", "c.txt"}
    (known_folder / "c.txt").unlink()
    again = audit_books(tmp_path / "run", tmp_path, known_corpus=str(known_folder))
    assert again["known"]["n_occurrences"].sum() == 2


def index_of(request):
    """An index of two shards, in which one spelling of a text stands three times."""
    assert request.fields["index"] == "some_index"
    if request.fields["query_type"] == "find":
        text = request.fields["query"]
        if not text.startswith(" "):
            return Reply(
                content={
                    "cnt": 3,
                    "segment_by_shard": [[7, 9], [4, 5]],
                    "token_ids": [1],
                }
            )
        return Reply(
            content={"cnt": 0, "segment_by_shard": [[0, 0], [0, 0]], "token_ids": [2]}
        )
    place = request.fields["s"], request.fields["rank"]
    return Reply(content={"doc_ix": {(0, 7): 12, (0, 8): 12, (1, 4): 5}[place]})


def test_an_index_is_asked_by_its_api(tmp_path):
    write_books(tmp_path)
    with HostileServer(index_of) as server:
        run = audit_books(
            tmp_path / "run", tmp_path, known_index=f"{server.url}#some_index"
        )
        sent = [request.fields for request in server.probes]
    rows = run["known"].drop("target_id").unique().to_dicts()
    counts = {"n_occurrences": 3, "n_documents": 2, "document": "document 5"}
    assert rows == [counts | {"n_near_documents": None, "reason": None}]
    # Two passages, each spelled in two ways and found three times
    assert len(sent) == 2 * (2 + 3)
    assert all(
        {*query} <= {"index", "query_type", "query", "s", "rank", "max_disp_len"}
        for query in sent
    )


def write_index(folder, documents):
    """An index of infini-gram, over bytes: all of its files, as its documentation has them."""
    text = b"".join(b"\xff" + document.encode() for document in documents)
    starts = np.cumsum(
        [0, *(1 + len(document.encode()) for document in documents[:-1])]
    )
    places = np.array(
        sorted(range(len(text)), key=lambda position: text[position:]), "<u8"
    )
    folder.mkdir()
    (folder / "tokenized.0").write_bytes(text)
    (folder / "offset.0").write_bytes(starts.astype("<u8").tobytes())
    width = ceil(log2(len(text)) / 8)
    (folder / "table.0").write_bytes(
        places.view("u1").reshape(-1, 8)[:, :width].tobytes()
    )
    return f"{folder}#bytes"


class Engine:
    """The engine of the package, where it is not installed: the same of the same files."""

    def __init__(self, folder, _eos, *, vocab_size, token_dtype):
        assert (vocab_size, token_dtype) == (255, "u8")
        files = (
            Path(folder, f"{name}.0").read_bytes() for name in ("tokenized", "offset")
        )
        self.text, self.starts = next(files), np.frombuffer(next(files), "<u8")
        self.places = sorted(
            range(len(self.text)), key=lambda position: self.text[position:]
        )

    def find(self, ids):
        starts = [self.text[place : place + len(ids)] for place in self.places]
        ends = bisect_left(starts, bytes(ids)), bisect_right(starts, bytes(ids))
        return {"cnt": ends[1] - ends[0], "segment_by_shard": [ends]}

    def get_doc_by_rank(self, s, rank, max_disp_len):
        assert (s, max_disp_len) == (0, 1)
        return {
            "doc_ix": int(np.searchsorted(self.starts, self.places[rank], "right")) - 1
        }


def test_an_index_on_this_machine_is_asked_by_its_package(tmp_path, monkeypatch):
    if find_spec("infini_gram") is None:
        monkeypatch.setitem(sys.modules, "infini_gram", ModuleType("infini_gram"))
        package = SimpleNamespace(InfiniGramEngine=Engine)
        monkeypatch.setitem(sys.modules, "infini_gram.engine", package)
    first, _ = write_books(tmp_path)
    index_folder = write_index(
        tmp_path / "index", ["other words", f"{first} and {first}", f"so {first}"]
    )
    run = audit_books(tmp_path / "run", tmp_path, known_index=index_folder)
    rows = (
        run["known"].join(run["targets"], on="target_id").sort("document_id").to_dicts()
    )
    columns = ("n_occurrences", "n_documents", "document", "reason")
    assert [[row[name] for name in columns] for row in rows] == [
        [3, 2, "document 1", None],  # a space before it is no further occurrence
        [0, 0, None, None],
    ]
    shutil.rmtree(tmp_path / "index")
    write_index(tmp_path / "index", ["other words", "and others"])
    changed = audit_books(tmp_path / "run", tmp_path, known_index=index_folder)
    assert changed["known"]["n_occurrences"].to_list() == [0, 0]
    (tmp_path / "index" / "table.0").write_bytes(b"cut")
    for wrong_index, message in (
        (index_folder, "no whole index of infini-gram"),
        (index_folder.replace("bytes", "gpt2"), "no whole index"),
        (f"{tmp_path}#bytes", "no whole index"),
    ):
        with pytest.raises(SettingsError, match=message):
            audit_books(tmp_path / "again", tmp_path, known_index=wrong_index)


def test_an_index_without_an_answer_gives_no_count(tmp_path):
    replies = [
        Reply(status=500, content=b"<html>"),
        Reply(status=302, headers={"location": "http://127.0.0.1:1/"}),
        Reply(content={"error": "no such index"}),
        Reply(content={"cnt": 1, "segment_by_shard": [[0, "9"]], "token_ids": [1]}),
        Reply(content={"cnt": 9, "segment_by_shard": [[0, 1 << 70]], "token_ids": [1]}),
        Reply(content=["cnt"]),
        *[Reply(content=b"{     ", cut_after=2)] * 3,
    ]
    write_books(tmp_path, len(replies) + 2)
    replies_left = iter(replies)
    with HostileServer(lambda _: next(replies_left)) as server:
        run = audit_books(
            tmp_path / "run", tmp_path, known_index=f"{server.url}#some_index"
        )
    assert (
        run["known"]["n_occurrences"].null_count()
        == run["known"].height
        == len(replies) + 2
    )
    reasons = run["known"]["reason"].to_list()
    assert all(
        reason.startswith("the index gives no count: ") for reason in reasons[:-2]
    )
    assert "it answers with status 302" in reasons[1]
    assert reasons[-2:] == ["not asked: 3 passages before had no answer"] * 2


def test_a_known_corpus_is_one_place(tmp_path):
    write_books(tmp_path)
    for known_settings, message in (
        ({"known_index": "http://127.0.0.1:1"}, "give ADDRESS#INDEX"),
        ({"known_index": "ftp://127.0.0.1#index"}, "known_index= is 'ftp://127.0.0.1'"),
        (
            {"known_index": "a#b", "known_corpus": str(tmp_path)},
            "are two; leave out one",
        ),
    ):
        with pytest.raises(SettingsError, match=message):
            audit_books(tmp_path / "run", tmp_path, **known_settings)
