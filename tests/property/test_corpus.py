import csv
import gzip
import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mia_batch.corpus import read_documents

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
INVISIBLE = (  # and no text where they part no letters
    "\u00ad\u200b\u200c\u200d\u2060\ufeff"
)
ROWS = st.lists(
    st.tuples(st.one_of(st.none(), TEXTS), st.sampled_from([True, False, None]), TEXTS),
    min_size=1,
    max_size=8,
)


def write_parquet(path, rows):
    columns = {"text": pl.String, "member": pl.Boolean, "note": pl.String}
    pl.DataFrame(rows, schema=columns, orient="row").write_parquet(path)


def write_jsonl(path, rows):
    keys = ("text", "member", "note")
    lines = [
        json.dumps(dict(zip(keys, row, strict=True)), ensure_ascii=False)
        for row in rows
    ]
    path.write_bytes("\n".join(lines).encode())


def write_jsonl_gz(path, rows):
    lines = [
        json.dumps(dict(zip(("text", "member", "note"), row, strict=True)))
        for row in rows
    ]
    path.write_bytes(gzip.compress("\r\n\n".join(lines).encode()))


def write_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerows([("text", "member", "note"), *rows])


WRITERS = [
    ("a.parquet", write_parquet),
    ("a.jsonl", write_jsonl),
    ("a.jsonl.gz", write_jsonl_gz),
    ("a.csv", write_csv),
]


@pytest.mark.parametrize(("name", "write"), WRITERS)
@given(rows=ROWS)
def test_what_was_written_is_read(name, write, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        write(path, rows)
        found = (
            read_documents(path)
            .documents.collect()
            .select("text", "member", "note")
            .rows()
        )
    if name == "a.csv":  # it cannot tell an empty field from null
        rows = [(text or None, member, note or None) for text, member, note in rows]
    assert found == rows


@given(
    texts=st.lists(
        TEXTS.filter(lambda text: not set(INVISIBLE) & set(text)), min_size=1
    )
)
def test_text_files_are_read_as_they_are(texts):
    with tempfile.TemporaryDirectory() as folder:
        for place, text in enumerate(texts):
            Path(folder, f"{place:02}.txt").write_bytes(text.encode())
        found = read_documents(folder).documents.collect()["text"].to_list()
    assert found == texts


@given(
    text=st.text(
        st.sampled_from(f"{INVISIBLE} aé\u0e01\u0645[Pg 1]{{2}}\n\r"), max_size=60
    )
)
def test_no_character_is_lost_unseen(text):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.txt").write_bytes(text.encode())
        (row,) = read_documents(folder).documents.collect().to_dicts()
    lost = len(text) - len(row["text"]) - text.startswith("\ufeff")
    assert (lost, row["n_characters"] - len(row["text"])) == (
        row["cut_inside"],
        row["cut_inside"],
    )
    kept = [
        character
        for character in text
        if character not in f"{INVISIBLE}[Pg 1]{{2}}\n\r"
    ]
    assert [
        character for character in row["text"] if character in "aé\u0e01\u0645"
    ] == kept
