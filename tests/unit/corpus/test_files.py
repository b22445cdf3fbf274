"""The files of a corpus: which they are, and how each kind is read."""

import csv
import io
import json
import os
import re
import stat
from hashlib import sha256
from operator import itemgetter
from pathlib import Path

import polars as pl
import pytest

from mia_batch.corpus import ColumnNames, files, read_documents
from mia_batch.corpus.files import Reading, agreed_schema, find_files
from mia_batch.errors import CorpusError
from tests.books import HEADER, HEADERS, LICENCE, page, write_epub
from tests.unit.corpus.test_documents import refusal


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names(source):
    return [file.name for file in source.files]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("a.ndjson", "jsonl"), ("a.jsonl.gz", "jsonl"), ("a.json.GZ", "jsonl")),
        *(
            ("a.jsonl.zst", "jsonl"),
            ("a.json", "jsonl"),
            ("a.tsv.xz", "csv"),
            ("a.csv", "csv"),
        ),
        *(("a.arrow", "columnar"), ("Corpus.PARQUET", "columnar")),
        *(("a.b.txt", "books"), ("a.EPUB", "books")),
    ],
)
def test_the_extension_decides(tmp_path, name, kind):
    touch(tmp_path, name)
    source = find_files(str(tmp_path / name))
    (file,) = source.files
    assert (source.kind, file.name, file.size) == (kind, name, 1)


RUN = ("runs/x/run.json", "runs/x/samples/part.parquet", "runs/x/targets.parquet")


@pytest.mark.parametrize(
    ("made", "asked", "found", "ignored"),
    [
        (
            (
                "b.txt",
                "a/z.txt",
                "a/b/c.txt",
                "a-1.txt",
                ".hidden.txt",
                "_old/b.txt",
                "README.md",
            ),
            ".",
            ["a/b/c.txt", "a/z.txt", "a-1.txt", "b.txt"],
            ["README.md"],
        ),
        (("_a.txt", "b.txt", "_SUCCESS"), ".", ["b.txt"], ["_a.txt"]),
        (("_a.txt", "b.txt"), "*.txt", ["_a.txt", "b.txt"], []),
        (("a.txt", ".git/c.txt", *RUN), ".", ["a.txt"], []),
        (
            ("x/2/b.txt", "x/10/a.txt", "y/1/c.txt", "x/1.txt/d.txt"),
            "x/*/*.txt",
            # Names start after the literal part
            [
                "1.txt/d.txt",
                "10/a.txt",
                "2/b.txt",
            ],
            [],
        ),
        (("x/10/a.txt", "y/1/c.txt"), "**/a.txt", ["x/10/a.txt"], []),
        (("a[1].txt", "a1.txt"), "a[1].txt", ["a[1].txt"], []),  # it exists
    ],
)
def test_folders_and_globs_are_sorted_by_name(tmp_path, made, asked, found, ignored):
    touch(tmp_path, *made)
    source = find_files(f"{tmp_path}/{asked}")
    assert names(source) == found
    assert [path.name for path in source.ignored] == ignored


@pytest.mark.parametrize(
    ("made", "asked", "sentence"),
    [
        (
            [],
            "missing.parquet",
            "missing.parquet does not exist; give a file, a folder or a glob",
        ),
        (
            [],
            "*.parquet",
            r"\*.parquet holds no file that can be read as a corpus; the extension ",
        ),
        ([], "", "'' is not a path"),
        ([], "a\0/*.csv", r"'a\\x00/\*\.csv' is not a path"),
        (
            [],
            "~nobody-of-this-name/a.csv",
            "cannot be read: Could not determine home directory",
        ),
        ([], "x" * 300, "cannot be read: File name too long"),
        (
            ["corpus.xlsx"],
            "corpus.xlsx",
            r"corpus\.xlsx has an unknown extension; .* one of \.par",
        ),
        (
            ["b.pdf"],
            ".",
            r"\. holds no file .* save PDF and word processors' files as one of these",
        ),
        (["corpus.xlsx"], ".", "holds no file that can be read as a corpus"),
        (
            ["a.txt", "b.csv"],
            ".",
            r"mixes kinds of files, such as .*a\.txt and .*b\.csv; ",
        ),
        # Without waiting for it
        (
            ["pipe.csv"],
            "pipe.csv",
            r"pipe\.csv is not a regular file",
        ),
        (["link.csv"], ".", "cannot be read: No such file or directory"),
    ],
)
def test_a_path_that_is_refused(tmp_path, monkeypatch, made, asked, sentence):
    monkeypatch.chdir(tmp_path)
    for name in made:
        match name:
            case "pipe.csv":
                os.mkfifo(name)
            case "link.csv":
                Path(name).symlink_to(tmp_path / "gone.csv")
            case _:
                Path(name).touch()
    with pytest.raises(CorpusError, match=sentence):
        find_files(asked).refuse_unreadable()


def test_names_that_are_not_utf8_and_folders_without_permission_are_refused(
    tmp_path, without_privileges
):
    touch(tmp_path, os.fsdecode(b"caf\xe9.txt"))
    source = find_files(tmp_path)
    assert source.files == ()
    with pytest.raises(CorpusError, match=r"caf.xe9\.txt: its name is not valid UTF-8"):
        source.refuse_unreadable()
    with pytest.raises(
        CorpusError, match=r"'caf.udce9\.txt' is not a path; give a file"
    ):
        find_files(os.fsdecode(b"caf\xe9.txt"))
    locked = tmp_path / "locked"
    touch(tmp_path, "locked/a.txt")
    locked.chmod(0)
    with (
        without_privileges(),
        pytest.raises(CorpusError, match="cannot be read: Permission denied"),
    ):
        find_files(locked)
    locked.chmod(stat.S_IRWXU)


@pytest.fixture
def lines(tmp_path):
    def write(content, name="a.jsonl"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def rows(path, *names):
    return read_documents(path).documents.select(names).collect().rows()


WILD = 'é🦆 \u2028\u0085\x7f"\\\\ud800/\0\r\n\t ' + "long" * 500_000


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b'\xef\xbb\xbf{"text": "a"}\r\n\r\n \t\n{"text": "b"}\n\n', ["a", "b"]),
        (json.dumps({"text": WILD}).encode(), [WILD]),
        (json.dumps({"text": WILD}, ensure_ascii=False).encode(), [WILD]),
    ],
)
def test_lines_are_read_as_they_are(lines, content, texts):
    assert rows(lines(content), "text") == [(text,) for text in texts]


def test_keys_may_come_late_or_be_missing_and_further_columns_keep_their_values(
    lines, tmp_path
):
    late = b'{"text": "b", "label": 1, "place": "x"}\n'
    path = lines(b'{"text": "a"}\n' * 3000 + late + b"{}\n")
    assert rows(path, "text", "member", "place")[-3:] == [
        *(("a", None, None), ("b", True, "x"), (None, None, None)),
    ]
    path.unlink()
    lines(b'{"text": "a", "x": null}\n', "1.jsonl")
    lines(b'{"text": "b", "x": 1, "y": "z"}\n', "2.jsonl")
    assert rows(tmp_path, "text", "x", "y") == [("a", None, None), ("b", 1, "z")]
    path = lines(
        b'{"text": "a", "n": 9223372036854775807, "f": 1, "d": 123456789012345678901,'
        b' "b": true}\n{"text": "b", "n": -9223372036854775808, "f": 0.5, "d": 1, "m":'
        b' {"k": [1, "\\u00e9"]}}\n'
    )
    assert rows(path, "n", "f", "d", "b", "m") == [
        (2**63 - 1, 1.0, "123456789012345678901", True, None),
        (-(2**63), 0.5, "1", None, '{"k": [1, "é"]}'),
    ]


LINE, JSON = "; correct or remove the line", "not valid JSON"
EMPTY = " is empty; its first line must name the columns"
UTF_8 = "is not valid UTF-8; save the file as UTF-8"
NAMELESS = "give it a name of its own"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        *(
            (
                "a.jsonl",
                b'{"text": "a"}\n\n' + line + b'\n{"text": "c"}\n',
                f", line 3: {what}",
            )
            for line, what in (
                (b'{"text": "b\xff"}', f"byte 0xff {UTF_8}"),
                (b'{"text": "b\xed\xa0\x80"}', f"byte 0xed {UTF_8}"),
                (
                    b'{"text": "b"',
                    f"{JSON}, EOF while parsing an object at column 12{LINE}",
                ),
                (
                    b'{"text": "b"} {"text": "c"}',
                    f"{JSON}, trailing characters at column 15{LINE}",
                ),
                (b'{"text": "b\x00"}', "not valid JSON, control character"),
                *((none, f"not a JSON object{LINE}") for none in (b'["b"]', b"null")),
                (
                    b'{"text": "\\ud800b"}',
                    "not valid JSON, unexpected end of hex escape",
                ),
                (
                    b'{"text": "\\udc00b"}',
                    "not valid JSON, lone leading surrogate in hex escape",
                ),
                (b'{"text": "b", "x": 1e400}', "error parsing line: InvalidNumber"),
                (
                    b'{"text": ' + b"[" * 100_000,
                    "not valid JSON, recursion limit exceeded",
                ),
            )
        ),
        *(
            ("a.csv", b"text,x\n" + rest, f", line {what}")
            for rest, what in (
                (b"a,1\n\nb,2,3\n", f"4: 3 fields where the header has 2{LINE}"),
                (b'"a\nb",1\nc\n', f"4: 1 fields where the header has 2{LINE}"),
                (
                    b'a,1\n"b,2\nc,3\n',
                    f"3: not valid CSV, unexpected end of data{LINE}",
                ),
                (b'a,1\n"b"c,2\n', f"3: not valid CSV, ',' expected after '\"'{LINE}"),
                (b"a,1\nb\xe9,2\n", f"3: byte 0xe9 {UTF_8}"),
            )
        ),
        *(("a.csv", nothing, EMPTY) for nothing in (b"", b"\n\n", b"\xef\xbb\xbf")),
        ("a.csv", b",text\n0,a\n", f", line 1: column 1 has no name; {NAMELESS}"),
        (
            *("a.csv", b"text,text\na,b\n"),
            f", line 1: column 2 is named 'text' like one before it; {NAMELESS}",
        ),
        *(
            (
                "a.txt",
                start + b" and words that would be scored",
                " is PDF, RTF, HTML, an archive",
            )
            for start in (
                *(b"%PDF-1.4", b"\xef\xbb\xbf{\\rtf1", b"PK\3\4", b"\xd0\xcf\x11\xe0"),
                b"\n<!DOCTYPE HTML>",
            )
        ),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(lines, name, content, said):
    path = lines(content, name)
    assert refusal(path).startswith(f"{path}{said}")


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("1", '"1"', ("a number", "a string")),
        ("true", "1", ("a boolean", "a number")),
        ("[1]", "{}", ("an array", "an object")),
    ],
)
def test_two_types_in_one_column_are_refused(lines, first, second, words):
    path = lines(b'{"text": "a", "x": %s}\n{"text": "b", "x": null}\n' % first.encode())
    other = lines(b'{"text": "c", "x": %s}\n' % second.encode(), "b.jsonl")
    assert (
        refusal(path.parent)
        == f"column 'x' is {words[0]} in {path}, line 1, but {words[1]} in {other},"
        " line 1; give it one type"
    )


LONG, ODD = "word " * 100_000, "a\u2028b\x85c\x0b\x0c\x1c\0d"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        # all is text, and an empty field null
        (
            b'text,document_id,year\n007,01,1999\n,02,\n"",03," "\n',
            [("007", "01", "1999"), (None, "02", None), (None, "03", " ")],
        ),
        # quoted fields keep their line ends
        (
            b'\xef\xbb\xbf"text","l, m"\r\n"a\r\nb ""q""\nc",1\r\n\r\nd,2\r\n\r\n',
            [('a\r\nb "q"\nc', "1"), ("d", "2")],
        ),
        (b'text\tlabel, x\na, b\t1\n"c\td"\t0', [("a, b", "1"), ("c\td", "0")]),
        (f"text,x\n{ODD},1\n".encode(), [(ODD, "1")]),
        (b'text,x\n5" nail,1\nb,2\n', [('5" nail', "1"), ("b", "2")]),
        (f"text\n{LONG}\n".encode(), [(LONG,)]),
        (
            b"document_id,text\n"
            + b"".join(b"%d,some text\n" % n for n in range(1000)),
            [(str(n), "some text") for n in range(1000)],
        ),
    ],
)
def test_a_table_is_read_as_it_is(lines, content, found, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_CHARS", 100)
    before = csv.field_size_limit()
    path = lines(content, "a.tsv" if b"\t" in content else "a.csv")
    header = next(
        csv.reader(io.StringIO(content.decode("utf-8-sig")), dialect=dialect(path))
    )
    assert rows(path, *header) == found
    assert csv.field_size_limit() == before  # which is of the whole process


def dialect(path):
    return "excel-tab" if path.suffix == ".tsv" else "excel"


def test_columns_of_parts_may_be_in_another_order(lines, tmp_path):
    lines(b"text,x\na,1\n", "1.csv")
    lines(b"x,text\n2,b\n", "2.csv")
    assert rows(tmp_path, "text", "x") == [("a", "1"), ("b", "2")]


TEXTS = [f"text number {n:05d} of many" for n in range(5000)]


@pytest.fixture
def plain(tmp_path):
    """A file of 5,000 texts, not compressed, so that a byte of a text is a byte of the file."""
    path = tmp_path / "a.parquet"
    pl.DataFrame({"text": TEXTS}).write_parquet(path, compression="uncompressed")
    return path


def test_one_large_row_group_is_read_in_slices(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_SLICE_BYTES", 1000)
    path = tmp_path / "a.parquet"
    pl.DataFrame({"text": TEXTS, "n": range(5000)}).write_parquet(
        path, row_group_size=5000
    )
    found = read_documents(path)
    assert path.stat().st_size > 5 * 1000
    assert found.documents.collect()["text"].to_list() == TEXTS
    assert (
        found.documents.filter(pl.col("n") == 4999).select("text").collect().item()
        == TEXTS[-1]
    )


INVALID = (b"number 03333", b"number\xff03333")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        *(
            (itemgetter(slice(size)), "cannot be read as Parquet: ")
            for size in (0, 3, 1000, -1)
        ),
        (
            lambda whole: whole.replace(*INVALID),
            "is broken at row 3334: .*invalid UTF-8; restore",
        ),
        (lambda whole: whole[:4] + b"\xff" * 56 + whole[60:], "is broken at row 1: "),
    ],
)
def test_a_damaged_file_is_refused_with_the_first_row_that_is_hit(plain, damage, said):
    plain.write_bytes(damage(plain.read_bytes()))
    assert re.match(f"{re.escape(str(plain))} {said}", refusal(plain))


def test_a_file_that_broke_after_the_check_is_said_when_read(plain):
    found = read_documents(plain)
    plain.write_bytes(b"PAR1")
    with pytest.raises(CorpusError, match="cannot be read as Parquet"):
        found.documents.collect()


def test_files_without_rows_and_columns_of_any_type_are_read_and_names_of_folders_are_none(
    tmp_path,
):
    pl.DataFrame({"text": ["a"]}).write_parquet(tmp_path / "1.parquet")
    pl.DataFrame({"text": []}, schema={"text": pl.String}).write_parquet(
        tmp_path / "0.parquet"
    )
    assert read_documents(tmp_path).documents.collect()["text"].to_list() == ["a"]
    path = tmp_path / "year=1999" / "[a]*.parquet"
    path.parent.mkdir()
    further = {"l": [[1], None], "s": [{"a": 1}, {"a": 2}], "d": [b"x", None]}
    frame = pl.DataFrame({"text": ["a", "b"], **further})
    frame.write_parquet(path)
    documents = read_documents(path).documents.collect()
    assert documents.select(*further).equals(frame.select(*further))
    assert "year" not in documents


NULL, INT, STRING = pl.Null(), pl.Int64(), pl.String()


@pytest.mark.parametrize(
    ("one", "other", "agreed"),
    [
        ({"a": INT, "b": NULL}, None, {"a": INT, "b": NULL}),
        ({"a": NULL, "b": INT}, {"b": NULL, "a": STRING}, {"a": STRING, "b": INT}),
        (
            {"a": INT},
            {"a": INT, "b": INT},
            "^y has a column 'b' and x has none; give files",
        ),
        (
            {"a": INT, "b": INT},
            {"a": INT},
            "^x has a column 'b' and y has none; give files",
        ),
        (
            {"a": INT},
            {"a": pl.Int32()},
            "^column 'a' is Int64 in x but Int32 in y; give it one",
        ),
    ],
)
def test_schemas_of_several_files(one, other, agreed):
    schemas = {"x": pl.Schema(one)} | ({"y": pl.Schema(other)} if other else {})
    if isinstance(agreed, dict):
        assert agreed_schema(schemas) == pl.Schema(agreed)
    else:
        with pytest.raises(CorpusError, match=agreed):
            agreed_schema(schemas)


def test_arrow_files_and_streams_are_read(tmp_path):
    frame = pl.DataFrame({"text": TEXTS, "n": range(5000)})
    frame.write_ipc(tmp_path / "1.arrow")
    frame.write_ipc_stream(tmp_path / "2.arrow")  # as the datasets library writes them
    frame.write_ipc(tmp_path / "3.feather", compression="zstd")
    found = read_documents(tmp_path)
    assert found.documents.collect()["text"].to_list() == 3 * TEXTS
    assert found.documents.collect()["n"].sum() == 3 * sum(range(5000))


@pytest.mark.parametrize(
    "content", [b"", b"ARROW1\0\0", b"\xff\xff\xff\xff\x10\0\0\0rubbish"]
)
def test_a_broken_arrow_file_is_refused(tmp_path, content):
    path = tmp_path / "a.arrow"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path} cannot be read as Arrow: ")


def test_batches_do_not_show(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BATCH_BYTES", 10)
    for number in range(20):
        (tmp_path / f"{number:02d}.txt").write_text("x" * number)
    documents = read_documents(tmp_path).documents
    assert documents.collect()["text"].to_list() == [
        "x" * number for number in range(20)
    ]
    assert documents.select("document_id").collect().height == 20


def texts_of(folder, encoding=None):
    found, reading = find_files(folder).files, Reading(encoding)
    frames = files.read_book_rows(
        found, files.FORMATS["books"].read_schema(found, reading), ["text"], reading
    )
    return pl.concat(frames)["text"].to_list()


def test_an_encoding_is_that_of_files_that_say_none(tmp_path):
    (tmp_path / "a.txt").write_bytes("café ça".encode("cp1252"))
    (tmp_path / "b.txt").write_bytes("café ça".encode())
    (tmp_path / "c.txt").write_bytes("café ça".encode("utf-16"))
    (tmp_path / "d.html").write_bytes("<p>café ça".encode("cp1252"))
    (tmp_path / "e.html").write_bytes(
        '<meta charset="cp850"><p>café ça'.encode("cp850")
    )
    page_of = {"x": page("").replace(' encoding="utf-8"', "")}
    further = {
        "OEBPS/x": page_of["x"].replace("<body>", "<body>café ça").encode("cp1252")
    }
    write_epub(tmp_path / "f.epub", page_of, further=further)
    assert texts_of(tmp_path, "cp1252") == ["café ça"] * 6


@pytest.mark.parametrize(
    ("says", "encoding"),
    [
        ("Character set encoding: ISO-8859-1", "cp1252"),
        ("Character Set Encoding: ISO Latin-1 (with curly quotes)", "cp1252"),
        ("Character set codering: Windows Code Page 1252", "cp1252"),
        ("Codierung: CP-850", "cp850"),
        ("Character set encoding: ASCII, with a few ISO-8859-1 characters", "latin-1"),
        ("Character set encoding: ISO-8859-1", "utf-8"),
    ],
)
def test_the_encoding_of_gutenbergs_header_is_believed(tmp_path, says, encoding):
    text = HEADERS["the"].replace("Character set encoding: UTF-8", says) + "café ça"
    assert says in text
    (tmp_path / "a.txt").write_bytes(text.replace("\n", "\r\n").encode(encoding))
    assert texts_of(tmp_path) == ["café ça"]


def test_a_text_that_is_not_in_the_encoding_of_its_header_is_refused(tmp_path):
    text = HEADERS["the"].replace("encoding: UTF-8", "encoding: ASCII") + "café"
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    line = text.count("\n") + 1
    with pytest.raises(
        CorpusError, match=rf"a\.txt, line {line}: byte 0xe9 is not valid ASCII; "
    ):
        texts_of(tmp_path)
    assert texts_of(tmp_path, "cp1252") == ["café"]


def test_line_ends_are_kept_and_other_columns_do_not_exist(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a\r\nb\rc\n\fd\x0be")
    assert texts_of(tmp_path) == ["a\r\nb\rc\n\fd\x0be"]
    with pytest.raises(
        CorpusError, match="has no column 'year', only 'document_id', 'text', 't"
    ):
        read_documents(tmp_path, ColumnNames(group="year"))


def test_kinds_of_books_are_mixed(tmp_path):
    write_epub(tmp_path / "a.epub", {"x": page("<p>one</p>")})
    (tmp_path / "b.HTM").write_text(HEADER.partition("Produced")[0] + "two" + LICENCE)
    (tmp_path / "c.txt").write_text(HEADER + " two\n" + LICENCE)
    (tmp_path / "d.html").write_text(page("<p>three</p>", head="<title>D</title>"))
    (tmp_path / "notes.md").touch()
    found = read_documents(tmp_path)
    documents = found.documents.collect()
    assert documents.select("document_id", "text", "title", "author").rows() == [
        ("a.epub", "one", "The Title", "One Author; Two"),
        ("b.HTM", "two", None, None),
        ("c.txt", " two", "The Raven Book and Other Poems", "Edgar A. Poe"),
        ("d.html", "three", "D", None),
    ]
    assert documents["group"].to_list() == documents["document_id"].to_list()
    assert found.ignored == {f"{tmp_path}/notes.md": "files of kind .md are not read"}
    assert (
        documents["sha256"][2] == sha256((tmp_path / "c.txt").read_bytes()).hexdigest()
    )
    assert documents.select("n_characters", "cut_start", "cut_end").row(2) == (
        *(len(HEADER + " two\n" + LICENCE), len(HEADER), len("\n" + LICENCE)),
    )
    documents = read_documents(
        tmp_path / "c.txt", ColumnNames(group="author")
    ).documents.collect()
    assert documents["group"].to_list() == ["Edgar A. Poe"]
    assert documents["document_id"].to_list() == ["c.txt"]
