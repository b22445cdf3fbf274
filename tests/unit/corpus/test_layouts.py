"""Folders and files as other tools lay them out: read with every label, or refused."""

import gzip
import json
import os
from pathlib import Path
from zipfile import ZipFile

import polars as pl
import pytest

from mia_batch.corpus import read_documents
from mia_batch.errors import CorpusError
from tests.books import CONTAINER, METADATA, PACKAGE, page, write_epub

ROWS = pl.DataFrame({"text": ["one", "two"]})


def test_labels_in_the_names_of_folders_are_columns(tmp_path):
    for value in ("1", "0", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / f"member={value}" / "source=a%20b"
        folder.mkdir(parents=True)
        ROWS.write_parquet(folder / "part.parquet")
    corpus = read_documents(tmp_path)
    rows = corpus.documents.select("text", "member", "source").collect().rows()
    assert sorted(rows, key=str) == sorted(
        [
            (text, member, "a b")
            for member in (True, False, None)
            for text in ("one", "two")
        ],
        key=str,
    )
    assert corpus.notes[-2:] == (
        "the column 'member' is in the names of folders",
        "the column 'source' is in the names of folders",
    )


def test_a_column_of_the_file_wins_over_the_name_of_its_folder(tmp_path):
    (tmp_path / "label=1").mkdir()
    ROWS.with_columns(label=0).write_parquet(tmp_path / "label=1" / "part.parquet")
    corpus = read_documents(tmp_path)
    assert corpus.documents.collect()["member"].to_list() == [False, False]
    assert corpus.notes == (
        "the files have a column 'label', so what the names of folders say of it is not"
        " read",
    )


def test_what_the_datasets_library_writes_next_to_tables_is_no_data(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        ROWS.write_ipc(tmp_path / split / "data-00000-of-00001.arrow")
        (tmp_path / split / "state.json").write_text("{}")
        (tmp_path / split / "dataset_info.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    corpus = read_documents(tmp_path)
    assert corpus.n_documents == 4
    assert set(corpus.ignored.values()) == {"it describes the data set"}


def test_a_snapshot_of_the_hub_is_read_without_what_describes_it(tmp_path):
    (tmp_path / "data").mkdir()
    ROWS.write_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    for name in ("README.md", ".gitattributes", "dataset_infos.json", ".huggingface"):
        (tmp_path / name).write_text("{}")
    corpus = read_documents(tmp_path)
    assert corpus.n_documents == 2
    assert {place.rpartition("/")[2]: why for place, why in corpus.ignored.items()} == {
        "README.md": "files of kind .md are not read",
        "dataset_infos.json": "it describes the data set",
    }
    assert corpus.notes == ()


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-00000-of-00002.parquet", "data/test-00000-of-00001.parquet"),
        ("train/data-00000-of-00001.parquet", "test/data-00000-of-00001.parquet"),
        ("default/train/0000.parquet", "default/test/0000.parquet"),
        ("test.parquet", "Train.parquet"),
    ],
)
def test_splits_that_are_read_as_one_corpus_are_said(tmp_path, names):
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        ROWS.write_parquet(path)
    corpus = read_documents(tmp_path)
    assert corpus.n_documents == 4
    (note,) = corpus.notes
    assert note.startswith("the files are of the splits test, train, and all are read")
    assert read_documents(tmp_path / names[0]).notes == ()


def test_splits_with_other_columns_are_refused(tmp_path):
    ROWS.write_parquet(tmp_path / "train-00000-of-00002.parquet")
    ROWS.with_columns(label=1).write_parquet(tmp_path / "test-00000-of-00001.parquet")
    with pytest.raises(CorpusError, match=r"has a column 'label' and .* has none"):
        read_documents(tmp_path)


def test_what_the_datasets_library_computed_is_not_read_again(tmp_path):
    ROWS.write_ipc(tmp_path / "data-00000-of-00001.arrow")
    for name in (
        "cache-0123456789abcdef.arrow",
        "cache-0123456789abcdef_00001_of_00002.arrow",
    ):
        ROWS.select(pl.col("text").str.to_uppercase()).write_ipc(tmp_path / name)
    corpus = read_documents(tmp_path)
    assert corpus.documents.collect()["text"].to_list() == ["one", "two"]
    assert set(corpus.ignored.values()) == {
        "it keeps what was computed from the tables beside it"
    }


def test_two_names_of_one_file_are_read_once(tmp_path):
    ROWS.write_ndjson(tmp_path / "a.jsonl")
    (tmp_path / "Latest.jsonl").symlink_to("a.jsonl")
    (tmp_path / "z.jsonl").hardlink_to(tmp_path / "a.jsonl")
    corpus = read_documents(tmp_path)
    assert corpus.n_documents == 2
    assert [file.name for file in corpus.files] == ["a.jsonl"]
    assert set(corpus.ignored.values()) == {"it is another name of a file beside it"}


def test_one_file_in_two_folders_with_labels_keeps_both(tmp_path):
    """As identical files of a data set are in the hub's cache: links to one blob."""
    ROWS.write_ndjson(tmp_path / "blob")
    for value in (0, 1):
        (tmp_path / f"member={value}").mkdir()
        (tmp_path / f"member={value}" / "a.jsonl").symlink_to("../blob")
    corpus = read_documents(tmp_path)
    assert sorted(corpus.documents.collect()["member"]) == [False, False, True, True]


def test_a_name_that_is_no_text_is_set_aside_where_that_is_asked(tmp_path):
    ROWS.write_ndjson(tmp_path / "a.jsonl")
    path = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
    Path(os.fsdecode(path)).write_bytes(b'{"text": "three"}\n')
    with pytest.raises(
        CorpusError, match=r"caf\\xe9\.jsonl: its name is not valid UTF-8"
    ):
        read_documents(tmp_path, bad_input="refuse")
    corpus = read_documents(tmp_path, bad_input="set-aside")
    assert corpus.n_documents == 2
    assert corpus.set_aside == {
        f"{tmp_path}/caf\\xe9.jsonl": "its name is not valid UTF-8"
    }


def test_a_name_that_is_no_text_is_listed_where_its_kind_is_not_read(tmp_path):
    ROWS.write_ndjson(tmp_path / "a.jsonl")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf.\xe9")).touch()
    corpus = read_documents(tmp_path)
    assert corpus.ignored == {
        f"{tmp_path}/caf.\\xe9": "files of kind .\\xe9 are not read"
    }


@pytest.mark.parametrize("name", ["data", "rows"])
def test_rows_below_a_key_are_refused_with_the_way_to_take_them_out(tmp_path, name):
    content = {"version": "1.1", name: ROWS.to_dicts()}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(CorpusError, match=rf"take them out: jq -c '\.{name}\[\]' FILE"):
        read_documents(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps(content, indent=2))
    with pytest.raises(CorpusError, match="an object that goes on over several lines"):
        read_documents(tmp_path / "b.json")


def test_an_array_over_several_lines_is_read(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(ROWS.to_dicts(), indent=2))
    assert read_documents(tmp_path / "a.json").n_documents == 2


def test_what_a_mac_packs_besides_is_not_looked_at(tmp_path):
    ROWS.write_ndjson(tmp_path / "a.jsonl")
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "a.jsonl").write_text("no rows")
    (tmp_path / "._a.jsonl").write_bytes(b"\0\5\x16\7")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    corpus = read_documents(tmp_path)
    assert (corpus.n_documents, corpus.ignored) == (2, {})


def test_endings_in_capitals_are_known(tmp_path):
    content = b"\xef\xbb\xbf" + b"TEXT,Label\r\none,member \r\ntwo,Non-Member\r\n"
    (tmp_path / "A.CSV.GZ").write_bytes(gzip.compress(content))
    corpus = read_documents(tmp_path / "A.CSV.GZ")
    assert corpus.documents.collect()["member"].to_list() == [True, False]


def test_semicolons_between_fields_are_named(tmp_path):
    (tmp_path / "a.csv").write_text("text;label\none;1\n")
    with pytest.raises(
        CorpusError, match="semicolons seem to stand between its fields"
    ):
        read_documents(tmp_path / "a.csv")


def test_an_empty_part_is_no_fault(tmp_path):
    ROWS.write_ndjson(tmp_path / "part-0.jsonl")
    (tmp_path / "part-1.jsonl").write_bytes(b"")
    assert read_documents(tmp_path).n_documents == 2


@pytest.mark.parametrize(
    "texts", [[["a", "b"]], [b"bytes"], [{"en": "a"}]], ids=["lists", "bytes", "pairs"]
)
def test_a_text_that_is_no_string_is_refused(tmp_path, texts):
    pl.DataFrame({"text": texts}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(
        CorpusError, match=r"is the text but holds type .*; it must hold"
    ):
        read_documents(tmp_path / "a.parquet")


def test_a_link_to_nothing_is_set_aside_where_that_is_asked(tmp_path):
    (tmp_path / "good.txt").write_text("some words")
    (tmp_path / "lost.txt").symlink_to(tmp_path / "nowhere.txt")
    with pytest.raises(CorpusError, match=r"lost\.txt cannot be read: No such file"):
        read_documents(tmp_path, bad_input="refuse")
    corpus = read_documents(tmp_path, bad_input="set-aside")
    assert corpus.n_documents == 1
    assert [place.rpartition("/")[2] for place in corpus.set_aside] == ["lost.txt"]


@pytest.mark.parametrize("second", ['"text"', '"te\\u0078t"', '"t\\u0065xt"'])
def test_a_key_that_comes_twice_is_refused_with_its_line(tmp_path, second):
    path = tmp_path / "rows.jsonl"
    inner = '{"text": "says \\"text\\": and {\\"text\\": 1}", "more": {"text": 1}}'
    path.write_text(f'{inner}\n{{"text": "a", {second}: "b"}}\n')
    with pytest.raises(CorpusError, match=r"line 2: two keys 'text' in one object"):
        read_documents(path)
    assert read_documents(path, bad_input="set-aside").n_documents == 1


@pytest.mark.parametrize("answer", ["output", "response"])
def test_the_input_of_instructions_is_not_taken_for_the_text(tmp_path, answer):
    rows = pl.DataFrame({"instruction": ["do"], "input": [""], answer: ["done"]})
    rows.write_ndjson(tmp_path / "rows.jsonl")
    with pytest.raises(CorpusError, match=f"text_column=, such as '{answer}'"):
        read_documents(tmp_path / "rows.jsonl")


PAGES = {"a.xhtml": page("<p>First words.</p>"), "b.xhtml": page("<p>Last words.</p>")}
TEXT = "First words.\n\nLast words."


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ({"META-INF/container.xml": "\n\n" + CONTAINER}, {}),
        ({"META-INF/container.xml": CONTAINER.replace('"OEBPS/', '"/OEBPS/')}, {}),
        ({}, {"metadata": METADATA.replace("The  Title", "Time & Tide &nbsp;")}),
    ],
)
def test_faults_that_readers_of_books_forgive(tmp_path, written, instead):
    write_epub(tmp_path / "book.epub", PAGES, further=written, **instead)
    assert (
        read_documents(tmp_path / "book.epub").documents.collect()["text"].item()
        == TEXT
    )


def test_names_with_backslashes_are_found(tmp_path):
    items = "".join(f'<item id="{name}" href="{name}"/>' for name in PAGES)
    spine = "".join(f'<itemref idref="{name}"/>' for name in PAGES)
    package = PACKAGE.format(metadata=METADATA, items=items, spine=spine)
    further = {
        "META-INF\\container.xml": CONTAINER,
        "OEBPS\\book.opf": package,
        **{f"OEBPS\\{name}": content for name, content in PAGES.items()},
    }
    with ZipFile(tmp_path / "backslash.epub", "w") as archive:
        for name, content in further.items():
            archive.writestr(name, content)
    book = read_documents(tmp_path / "backslash.epub").documents.collect()
    assert book["text"].item() == TEXT


AOZORA = """吾輩は猫である
夏目漱石

-------------------------------------------------------
【テキスト中に現れる記号について】

《》：ルビ
（例）吾輩《わがはい》

｜：ルビの付く文字列の始まりを特定する記号
（例）一番｜獰悪《どうあく》

［＃］：入力者注
-------------------------------------------------------

［＃８字下げ］一［＃「一」は中見出し］

吾輩《わがはい》は猫である。一番｜獰悪《どうあく》な種族。

底本：「夏目漱石全集1」筑摩書房
入力：柴田卓治
"""


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_aozoras_header_readings_notes_and_source_are_left_out(tmp_path, line_end):
    path = tmp_path / "neko.txt"
    path.write_bytes(AOZORA.replace("\n", line_end).encode())
    book = read_documents(path).documents.collect().row(0, named=True)
    text = book["text"].replace(line_end, "\n")
    assert text == "一\n\n吾輩は猫である。一番獰悪な種族。"
    assert (book["title"], book["author"]) == ("吾輩は猫である", "夏目漱石")
    assert book["ruby_readings"] == 6
