"""Folders and files as other tools lay them out: read with every label, or refused."""

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
    assert read_documents(tmp_path).documents.collect()["member"].to_list() == [
        False,
        False,
    ]


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
