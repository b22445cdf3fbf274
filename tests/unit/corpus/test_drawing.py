"""Documents drawn by lot: which they are, how many of each source, and what is read of them."""

import gzip
import json
from hashlib import blake2b

import numpy as np
import polars as pl
import pytest

from mia_batch.corpus import ColumnNames, DrawRequest, read_documents
from mia_batch.corpus.drawing import KeptRows
from mia_batch.errors import CorpusError

N = 200
SOURCES = [["a", "b", None][i % 3] if i % 8 else "c" for i in range(N)]


def write(folder, n_files=1, name="part", kind="parquet", **columns):
    """A folder of numbered texts, the number of a row over all files."""
    table = pl.DataFrame({"text": [f"text {i}" for i in range(N)], **columns})
    folder.mkdir()
    for number in range(n_files):
        rows = table[number * N // n_files : (number + 1) * N // n_files]
        path = folder / f"{name}{number}.{kind}"
        if kind == "parquet":
            rows.write_parquet(path, row_group_size=7)
        elif kind == "csv":
            rows.write_csv(path)
        else:
            lines = "".join(
                json.dumps(row) + "\n" for row in rows.iter_rows(named=True)
            )
            packed = gzip.compress(lines.encode(), mtime=0)
            path.write_bytes(packed if kind.endswith("gz") else lines.encode())
    return folder


def draw(path, n, seed=0, by=None, **options):
    return read_documents(path, draw=DrawRequest(n, seed, by), **options)


def numbers(corpus):
    texts = corpus.documents.collect()["text"]
    return [int(text.removeprefix("text ")) for text in texts]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "csv"])
@pytest.mark.parametrize("n_files", [1, 3])
def test_documents_are_the_rows_drawn_in_every_kind_of_file(tmp_path, kind, n_files):
    folder = write(tmp_path / "c", n_files, kind=kind)
    corpus = draw(folder, 20)
    assert corpus.n_documents == 20
    assert corpus.draw.n_documents == N
    assert numbers(corpus) == corpus.draw.rows.tolist()
    assert numbers(corpus) == sorted({*corpus.draw.rows.tolist()})
    assert corpus.draw.note() == "20 of 200 documents are drawn"


def test_a_draw_is_the_same_everywhere_and_depends_on_the_seed(tmp_path):
    folder = write(tmp_path / "c", kind="jsonl")
    # As computed on the machine that wrote this test
    assert draw(folder, 8).draw.rows.tolist() == [12, 22, 38, 56, 80, 93, 129, 193]
    assert draw(folder, 8).draw.rows.tolist() != draw(folder, 8, 1).draw.rows.tolist()


def test_rows_with_the_lowest_numbers_of_philox_are_drawn(tmp_path):
    """The slow reference: all numbers, sorted."""
    folder = write(tmp_path / "c", 2, src=SOURCES)
    corpus = draw(folder, 9, 5, "src")
    digest = read_documents(folder).digest()
    key = blake2b(f"5:{digest}".encode(), digest_size=16).digest()
    lots = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(N).tolist()
    chosen = []
    for source in ("a", "b", "c", None):
        rows = [row for row in range(N) if SOURCES[row] == source]
        chosen += sorted(rows, key=lots.__getitem__)[:9]
    assert corpus.draw.rows.tolist() == sorted(chosen)


def test_more_documents_add_to_fewer(tmp_path):
    folder = write(tmp_path / "c", src=SOURCES)
    for by in (None, "src"):
        rows = [{*draw(folder, n, 3, by).draw.rows.tolist()} for n in (5, 6, 30, 500)]
        assert rows[0] < rows[1] < rows[2] < rows[3]
        assert len(rows[3]) == N


def test_every_row_is_drawn_as_often(tmp_path):
    folder = write(tmp_path / "c")
    counts = np.zeros(N)
    for seed in range(300):
        counts[draw(folder, 40, seed).draw.rows] += 1
    # A sum of squares as of chance: 199 degrees of freedom, less since without replacement
    chi_square = ((counts - 60) ** 2 / (60 * (1 - 40 / N))).sum()
    assert 150 < chi_square < 260


def test_each_source_gives_so_many_and_nothing_is_a_source_too(tmp_path):
    folder = write(tmp_path / "c", 2, src=SOURCES)
    corpus = draw(folder, 30, 0, "src")
    sizes = {source: SOURCES.count(source) for source in ("a", "b", "c", None)}
    assert [*corpus.draw.sources] == [
        ("a", sizes["a"], 30),
        ("b", sizes["b"], 30),
        ("c", 25, 25),
        (None, sizes[None], 30),
    ]
    drawn = [SOURCES[row] for row in numbers(corpus)]
    assert {name: drawn.count(name) for name in sizes} == {
        "a": 30,
        "b": 30,
        "c": 25,
        None: 30,
    }
    assert corpus.draw.column == "src"
    assert corpus.draw.note() == (
        "115 of 200 documents are drawn, at most 30 of each of 4 values of column 'src'"
    )


def test_sources_may_be_folders_or_a_column_of_a_role(tmp_path):
    folder = tmp_path / "c"
    for name in ("x", "y"):
        write(tmp_path / name, kind="jsonl")
        (folder / f"lang={name}").mkdir(parents=True)
        (tmp_path / name / "part0.jsonl").rename(folder / f"lang={name}" / "p.jsonl")
    by_folder = draw(folder, 3, 0, "lang")
    assert [*by_folder.draw.sources] == [("x", N, 3), ("y", N, 3)]
    grouped = write(tmp_path / "g", kind="csv", shelf=["p", "q"] * (N // 2))
    names = ColumnNames(group="shelf")
    by_role = read_documents(grouped, names, draw=DrawRequest(3, 0, "shelf"))
    assert by_role.draw is not None
    assert by_role.draw.column == "group"
    assert by_role.documents.collect()["group"].sort().to_list() == [*"pppqqq"]


def test_who_orders_rows_cannot_choose_which_are_drawn(tmp_path):
    first = write(tmp_path / "a", kind="jsonl")
    second = write(tmp_path / "b", kind="jsonl")
    path = second / "part0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[1], lines[0], *lines[2:]]))
    assert {*draw(first, 20).draw.rows} != {*draw(second, 20).draw.rows}
    # The name of a file alone changes nothing
    path.write_text("".join(lines))
    path.rename(second / "other.jsonl")
    assert draw(first, 20).draw.rows.tolist() == draw(second, 20).draw.rows.tolist()


def test_only_drawn_rows_are_checked_and_places_are_those_of_the_files(tmp_path):
    labels = [2 if row % 2 else None for row in range(N)]
    folder = write(tmp_path / "c", 2, kind="jsonl", label=labels)
    corpus = draw(folder, 40, bad_input="set-aside")
    wrong = [row for row in corpus.draw.rows.tolist() if row % 2]
    places = [
        f"{folder / f'part{row // 100}.jsonl'}, line {row % 100 + 1}" for row in wrong
    ]
    assert [*corpus.set_aside] == places
    assert numbers(corpus) == [row for row in corpus.draw.rows.tolist() if row % 2 == 0]
    with pytest.raises(CorpusError) as refusal:
        draw(folder, 40)
    assert str(refusal.value).startswith(
        f"{places[0]}: column 'label' is 2, which says"
    )


def test_rows_that_are_set_aside_are_not_drawn_from(tmp_path):
    folder = write(tmp_path / "c", 2, kind="jsonl")
    path = folder / "part0.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[3] = "no JSON\n"
    path.write_text("".join(lines))
    corpus = draw(folder, 400, bad_input="set-aside")
    assert corpus.draw.n_documents == N - 1
    assert numbers(corpus) == [row for row in range(N) if row != 3]
    assert [*corpus.set_aside] == [f"{path}, line 4"]


def test_books_are_drawn_as_files(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02}.txt").write_text(f"text {number}")
    corpus = draw(tmp_path, 4)
    assert numbers(corpus) == corpus.draw.rows.tolist()
    assert corpus.documents.collect()["document_id"].to_list() == [
        f"{row:02}.txt" for row in corpus.draw.rows
    ]


@pytest.mark.parametrize(
    ("columns", "by", "sentence"),
    [
        ({"src": ["s"] * N}, "scr", "has no column 'scr' (did you mean 'src'?), only"),
        ({}, "text", "column 'text' names no sources, since it holds texts"),
        ({"tags": [["a"]] * N}, "tags", "column 'tags' names no sources"),
        ({"say": ["s" * 201] * N}, "say", "column 'say' has a value of 201 characters"),
    ],
)
def test_what_names_no_sources_is_refused(tmp_path, columns, by, sentence):
    folder = write(tmp_path / "c", **columns)
    with pytest.raises(CorpusError) as refusal:
        draw(folder, 3, 0, by)
    assert sentence in str(refusal.value)
    assert str(refusal.value).endswith("with draw_by=")


def test_too_many_sources_and_pairs_of_texts_are_refused(tmp_path):
    path = tmp_path / "c.parquet"
    table = pl.DataFrame({"text": ["t"] * 301, "url": [*map(str, range(301))]})
    table.write_parquet(path)
    with pytest.raises(CorpusError, match="'url' has more than 300 values"):
        draw(path, 3, 0, "url")
    draw_of_all = draw(path, 3).draw
    assert draw_of_all.describe() == {
        "asked": 3,
        "by": None,
        "column": None,
        "n_documents": 301,
        "n_drawn": 3,
        "rows_sha256": draw_of_all.describe()["rows_sha256"],
        "sources": [[None, 301, 3]],
    }
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("member,nonmember\na b,c d\n")
    with pytest.raises(CorpusError, match="two texts a row, a member and another"):
        draw(pairs, 1)


def test_drawn_rows_are_kept_only_where_they_are_small(monkeypatch):
    n_read = 0

    def read(columns):
        nonlocal n_read
        n_read += 1
        yield pl.DataFrame({"a": ["x" * 100] * 9, "b": [1] * 9}).select(columns)

    kept = KeptRows(read, ["a", "b"])
    for columns in (["b"], ["a", "b"], ["b", "a"], ["a"]):
        assert [frame.columns for frame in kept.read(columns)] == [columns]
    assert n_read == 2  # the second time with all columns
    monkeypatch.setattr("mia_batch.corpus.drawing._MOST_KEPT", 500)
    n_read = 0
    large = KeptRows(read, ["a", "b"])
    for _ in range(3):
        assert sum(frame.height for frame in large.read(["a", "b"])) == 9
    assert n_read == 3
