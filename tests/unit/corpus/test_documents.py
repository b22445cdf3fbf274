"""A corpus, read into the documents table: columns are found, and every row is checked."""

import bz2
import codecs
import gzip
import json
import lzma
import tempfile
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import polars as pl
import pytest
from backports import zstd

from mia_batch import tables
from mia_batch.corpus import (
    ColumnNames,
    canary_documents,
    commitment,
    draw,
    files,
    read_canaries,
    read_documents,
)
from mia_batch.corpus.documents import check_rows, find_columns, parse_membership
from mia_batch.errors import CorpusError
from mia_batch.schemas import Documents


@pytest.fixture
def corpus(tmp_path):
    """Write columns to a file of the kind that its name says; return its path."""

    def write(name="corpus.parquet", **columns):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        frame = pl.DataFrame(columns)
        writers: dict[str, Any] = {
            ".parquet": frame.write_parquet,
            ".csv": frame.write_csv,
        }
        writers.get(path.suffix, frame.write_ndjson)(path)
        return path

    return write


def refusal(path, columns=None, **settings):
    with pytest.raises(CorpusError) as error:
        read_documents(path, columns, **settings)
    message = str(error.value)
    assert "\n" not in message
    return message


KINDS = ["corpus.parquet", "corpus.jsonl", "corpus.csv"]
FULL = {
    "year": ["1999", "2001"],
    "text": ["one two", 'drei vier\r\n"fünf", 🦆'],
    "document_id": ["a", "b"],
    "member": [True, None],
    "group": ["g", None],
}
OTHER_NAMES = {"body": ["a", "b"], "key": [7, 8], "seen": [1, 0], "author": [3, 4]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("columns", "names", "expected"),
    [
        (FULL, {}, {**FULL, "prefix": [None, None], "reference": [None, None]}),
        ({"text": [None, " "], "document_id": ["x", "y"]}, {}, {"text": [None, " "]}),
        (
            OTHER_NAMES | {"title": ["t", "u"]},
            {"text": "body", "document_id": "key", "label": "seen", "group": "author"},
            {
                "document_id": ["7", "8"],
                "text": ["a", "b"],
                "member": [True, False],
                "group": ["3", "4"],
                "title": ["t", "u"],
            },
        ),
        (
            {"text": ["a", "b"], "author": ["x", "y"]},  # which plays two parts
            {"document_id": "author", "group": "author"},
            {"document_id": ["x", "y"], "group": ["x", "y"]},
        ),
        *(
            (
                {"text": list("abc"), part: [1, 0, None]},
                {},
                {"member": [True, False, None]},
            )
            for part in ("label", "member")
        ),
        (
            {
                "text": list("abcd"),
                "member": [1, None, 0, None],
                "label": [1, 0, None, None],
            },
            {},
            {"member": [True, False, False, None]},
        ),
        (
            {"text": ["a b", "c"], "prefix": ["a", None], "reference": [" b", None]},
            {},
            {"prefix": ["a", None], "reference": [" b", None]},
        ),
        (
            {"text": ["a"], "author": ["b"], "group": ["c"]},
            {"group": "author"},
            {"group": ["b"], "input_group": ["c"]},
        ),
        # by their spelling
        ({"text": ["a"], " label": [1]}, {}, {"text": ["a"], "member": [True]}),
        ({"Text": ["a"], "LABEL": [0]}, {}, {"text": ["a"], "member": [False]}),
        ({"input": ["a"], "Is Member": [1]}, {}, {"text": ["a"], "member": [True]}),
        (
            {"input": ["a"], "text": ["b"], "member ": [0]},
            {},
            {"text": ["b"], "member": [False]},
        ),
        (
            {"text": ["a"], "Membership": ["True "]},
            {},
            {"text": ["a"], "member": [True]},
        ),
    ],
)
def test_every_kind_gives_the_same_documents(corpus, kind, columns, names, expected):
    found = read_documents(corpus(kind, **columns), ColumnNames(**names))
    tables.check(found.documents, Documents, name="documents")
    assert (found.n_documents, found.ignored) == (len(next(iter(columns.values()))), {})
    documents = found.documents.collect()
    assert documents.columns[: len(Documents.column_names())] == [
        *Documents.column_names()
    ]
    assert documents.select(*expected).to_dict(as_series=False) == expected
    parts = {"member" if name == "label" else name for name in columns} - {"year"}
    assert bool(found.notes) == bool(parts - {*Documents.column_names()})


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["a b", "c d"])])
def test_dictionary_columns_are_strings_and_columns_may_be_null(corpus, dtype):
    words = pl.Series(["a b", "c d", None], dtype=dtype)
    path = corpus(text=words, document_id=["1", "2", "3"], group=words)
    documents = read_documents(path).documents.collect()
    assert (
        documents["text"].to_list()
        == documents["group"].to_list()
        == ["a b", "c d", None]
    )
    path = corpus(
        text=["a"], member=[None], group=[None], prefix=[None], reference=[None]
    )
    assert read_documents(path).documents.collect().row(0) == (None, "a", *[None] * 4)


@pytest.mark.parametrize("parts", ["parts", "parts/*", "parts/**/*"])
@pytest.mark.parametrize("kind", [".parquet", ".jsonl", ".csv"])
def test_parts_are_read_in_the_order_of_their_names(corpus, tmp_path, parts, kind):
    for name, text in [("2", "c"), ("10", "b"), ("1", "a")]:
        corpus(f"parts/{name}{kind}", text=[text, text], place=[name, name])
    found = read_documents(tmp_path / parts)
    assert [PurePath(file.name).stem for file in found.files] == ["1", "10", "2"]
    assert found.documents.collect()["text"].to_list() == list("aabbcc")
    assert found.n_documents == 6


def test_the_digest_is_of_the_content_alone(tmp_path):
    (tmp_path / "x").mkdir()
    for name in ("a.csv", "x/b.csv"):
        (tmp_path / name).write_bytes(b"text\na\n")
    content = sha256(b"text\na\n").digest()
    found = read_documents(tmp_path / "a.csv")
    one = read_documents(tmp_path / "x" / "b.csv").digest()
    assert found.digest() == one == sha256(content).hexdigest()
    assert read_documents(tmp_path).digest() == sha256(content + content).hexdigest()
    (tmp_path / "a.csv").unlink()
    with pytest.raises(
        CorpusError, match=r"a\.csv cannot be read: No such file or directory"
    ):
        found.digest()


def test_documents_are_read_anew_each_time_and_only_as_asked(corpus):
    documents = read_documents(corpus(**FULL)).documents
    assert documents.select(pl.len()).collect().item() == 2
    assert documents.select("prefix").collect().height == 2
    assert (
        documents.filter(pl.col("member")).select("text").collect().item() == "one two"
    )
    assert documents.select("year").tail(1).collect().item() == "2001"


OPPOSITES = (("prefix", "reference"), ("reference", "prefix"))
REFUSED = [
    (
        {"texts": ["a"], "title": ["b"]},
        (
            " has no column 'text' (did you mean 'texts'?), only 'texts', 'title'; "
            "name the text with text_column="
        ),
    ),
    *(
        (
            {"text": ["a"], part: values},
            (
                f": column {part!r} is the {part} but holds type {came}; it must hold"
                f" {wanted}"
            ),
        )
        for part, values, came, wanted in (
            ("text", [1], "Int64", "strings"),
            ("text", [b"a"], "Binary", "strings"),
            ("text", [["a"]], "List(String)", "strings"),
            ("document_id", [1.0], "Float64", "strings or integers"),
            ("group", [True], "Boolean", "strings or integers"),
            ("member", [["a"]], "List(String)", "booleans, or 0 and 1"),
            ("label", [b"1"], "Binary", "booleans, or 0 and 1"),
        )
    ),
    (
        {"text": ["a"], "Label": [1], "label ": [0]},
        (
            ": columns 'Label' and 'label ' may both be the label; name one with"
            " label_column="
        ),
    ),
    *(
        (
            {"text": ["a"], there: ["a"]},
            f" has a column {there!r} but no {no!r}; give both or ne",
        )
        for there, no in OPPOSITES
    ),
    *(
        (
            {"text": ["a", "b"], there: ["a", "b"], no: ["c", None]},
            (
                f", row 2: column {no!r} is null but {there!r} is not; give both or"
                " neither"
            ),
        )
        for there, no in OPPOSITES
    ),
    (
        {"text": ["a", "b"], "member": [True, False], "label": [1, 1]},
        (
            ", row 2: column 'member' is False but 'label' says the opposite; make them"
            " agree"
        ),
    ),
    *(
        (
            {"text": ["a", "b", "c"], column: [None, type(value)(0), value]},
            (
                f", row 3: column {column!r} is {value!r}, which says nothing of"
                " membership; write 1 or 0 (true or false, member or non-member"
            ),
        )
        for column, values in (("label", (2, -1, "yes")), ("member", (7, "seen")))
        for value in values
    ),
    (
        # Of a later batch
        {
            "text": ["some text"] * 50_001,
            "label": [0] * 50_000 + [3],
        },
        (
            ", row 50001: column 'label' is 3, which says nothing of membership; write"
            " 1 or 0 (tr"
        ),
    ),
]


@pytest.mark.parametrize(("columns", "sentence"), REFUSED)
def test_a_corpus_that_is_refused(corpus, columns, sentence):
    path = corpus(**columns)
    assert refusal(path).startswith(f"{path}{sentence}")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_refused_with_its_places(corpus, name):
    first = {"corpus.csv": 2}.get(name, 1)  # of the first text
    unit = "row" if name == "corpus.parquet" else "line"
    path = corpus(name, text=["a", "b", "c"], document_id=["x", "y", "x"])
    assert (
        refusal(path)
        == f"{path}, {unit} {first + 2}: document_id 'x' is also in {path}, {unit}"
        f" {first}; identifiers must be unique"
    )
    path = corpus(name, text=["a", "b"], document_id=["x", None])
    assert (
        refusal(path)
        == f"{path}, {unit} {first + 1}: column 'document_id' is null; give every"
        " document an identifier or none"
    )
    assert (
        refusal(path, ColumnNames(document_id="key"))
        == f"{path} has no column 'key', only 'text', 'document_id'; name the"
        " document_id with document_id_column="
    )
    path = corpus(name, text=pl.Series([], dtype=pl.String))
    assert refusal(path) == f"{path} has no rows; give a corpus with at least one text"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        *(
            (
                "a.jsonl",
                json.dumps({"text": value}),
                "column 'text' is the text but holds",
            )
            for value in (1, 1.5, True, ["a"], {"a": "b"})
        ),
        (
            "a.jsonl",
            '{"text": "a", "document_id": 1}\n' * 2,
            "document_id '1' is also in",
        ),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": "b\\nc", "label": 7}',
            ", line 2: column 'label' is 7, which says",
        ),
        ("a.jsonl", "\n \n", "has no rows; give a corpus with at least one text"),
        (
            "a.json",
            '[{"text": "a"}, {"text": ]',
            "item 2: not valid JSON, Expecting value",
        ),
        ("a.json", '[{"text": "a"}', "item 2: not valid JSON, Expecting value"),
        ("a.json", '[{"text": "a"}] x', "item 2: there is text after the array"),
        ("a.json", '[{"text": "a"}, 3]', "item 2: not a JSON object"),
        (
            "a.json",
            '{"text": "a",\n"b": 1}',
            "begins with an object that goes on over several lines",
        ),
    ],
)
def test_a_corpus_of_json_that_is_refused(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    assert said in refusal(tmp_path / name)


def test_a_duplicate_across_parts_and_batches_is_found(corpus, tmp_path):
    keys = [str(key) for key in range(10_000)]
    first = corpus("parts/1.parquet", text=["a"] * 10_000, document_id=keys)
    second = corpus("parts/2.parquet", text=["a", "b"], document_id=["new", "9999"])
    assert refusal(tmp_path / "parts").startswith(
        f"{second}, row 2: document_id '9999' is also in {first}, row 10000; "
    )


@pytest.mark.parametrize(
    "name", ["prompt", "model", "reason", "role", "n_words", "samia_v1"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_column_named_like_one_of_ours_is_kept_under_another_name(corpus, kind, name):
    path = corpus(kind, **{"text": ["a"], name: ["b"], f"input_{name}": ["c"]})
    found = read_documents(path, reserved={"samia_v1"})
    documents = found.documents.collect()
    assert documents[f"input_input_{name}"].to_list() == ["b"]
    assert documents[f"input_{name}"].to_list() == ["c"]
    assert found.notes == (f"column {name!r} is kept as 'input_input_{name}'",)


@pytest.mark.parametrize("names", [("member", "nonmember"), ("member", "non_member")])
def test_texts_in_pairs_are_two_documents_a_row(corpus, names):
    member, other = names
    path = corpus(**{member: ["a", "b"], other: ["c", "d"], "document_id": ["x", "y"]})
    found = read_documents(path)
    assert found.n_documents == 4
    documents = found.documents.collect().select("text", "member", "pair_id").rows()
    assert documents == [
        ("a", True, "x"),
        ("c", False, "x"),
        ("b", True, "y"),
        ("d", False, "y"),
    ]
    assert found.notes == (
        f"each row is two texts: a member in {member!r}, another in {other!r}",
    )
    assert (
        found.documents.select("member").collect()["member"].to_list()
        == [True, False] * 2
    )


def test_an_array_of_records_is_read_like_lines_and_what_is_no_number_is_null(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(files, "_READ_CHARS", 1000)  # which cuts records anywhere
    records = [
        {"text": f"text {n} \u2028 ]", "n": [n, {"k": "}"}]} for n in range(1000)
    ]
    for name, indent in (("a.json", None), ("b.json", 2)):
        (tmp_path / name).write_text("\n " + json.dumps(records, indent=indent) + "\n")
        found = read_documents(tmp_path / name).documents.collect()
        assert found["text"].to_list() == [record["text"] for record in records]
        assert json.loads(found["n"][7]) == [7, {"k": "}"}]
    lines = (
        '{"text": "NaN a", "x": NaN, "y": [Infinity, 1]}\n{"text": "b", "x": 0.5, "y":'
        " []}\n"
    )
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.json").write_text(f"[{lines.strip().replace(chr(10), ', ')}]")
    for name in ("a.jsonl", "b.json"):
        found = (
            read_documents(tmp_path / name).documents.select("text", "x", "y").collect()
        )
        first, second = found.with_columns(pl.col("y").str.replace_all(" ", "")).rows()
        assert (first, second) == (("NaN a", None, "[null,1]"), ("b", 0.5, "[]"))


PACK: dict[str, Any] = {"gz": gzip.compress, "bz2": bz2.compress}
PACK |= {"xz": lzma.compress, "zst": zstd.compress}


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize(
    ("ending", "content"),
    [
        ("jsonl", b'{"text": "a"}\n'),
        ("json", b'{"text": "a"}\n'),  # as C4 and Dolma are
        ("json", b'[{"text": "a"}]'),
        ("csv", b"text\na\n"),
        ("tsv", b"text\tx\na\t1\n"),
    ],
)
def test_packed_files_are_read_and_one_that_unpacks_to_a_line_without_end_is_refused(
    tmp_path, monkeypatch, ending, content, packed
):
    path, pack = tmp_path / f"a.{ending}.{packed}", PACK[packed]
    path.write_bytes(pack(content) + pack(b"\n"))
    assert read_documents(path).documents.collect()["text"].to_list() == ["a"]
    path.write_bytes(pack(content)[:-3])
    assert f"{path} cannot be read: " in refusal(path)
    for name in ("LONGEST_RECORD", "_LONGEST_CSV_RECORD"):
        monkeypatch.setattr(files, name, 1 << 20)
    path.write_bytes(pack(b'["' * (content[:1] == b"[") + b"a" * (3 << 20)))
    assert "more than 1 MiB" in refusal(path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-be"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"text": "é 🦆"}\n'),
        ("a.json", '[{"text": "é 🦆"}]'),
        *(("a.csv", "text\né 🦆"), ("a.tsv", "text\né 🦆")),
    ],
)
def test_a_byte_order_mark_is_believed(tmp_path, name, content, encoding):
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    (tmp_path / name).write_bytes(mark + content.encode(encoding))
    assert read_documents(tmp_path / name).documents.collect()["text"].item() == "é 🦆"


def test_an_encoding_may_be_named(tmp_path):
    (tmp_path / "a.csv").write_bytes("text\ncafé\n".encode("latin-1"))
    assert refusal(tmp_path / "a.csv", bad_input="refuse").endswith(
        "line 2: byte 0xe9 is not valid UTF-8; save the file as UTF-8; or name its"
        " encoding with encoding=, or set aside what cannot be read with bad_input="
        " set-aside"
    )
    found = read_documents(tmp_path / "a.csv", encoding="latin-1").documents.collect()
    assert found["text"].item() == "café"


def test_bad_files_rows_and_duplicates_are_set_aside_with_their_reasons(tmp_path):
    (tmp_path / "1.jsonl").write_text(
        '{"text": "a", "label": 1}\n{"text": "\\ud800"}\nnull\n'
    )
    (tmp_path / "2.jsonl").write_text(
        '{"text": "b", "label": 7}\n{"text": "c", "label": 0}\n'
    )
    (tmp_path / "3.jsonl.gz").write_bytes(b"no gzip")
    found = read_documents(tmp_path, bad_input="set-aside")
    assert found.n_documents == 2
    assert found.documents.collect().select("text", "member").rows() == [
        ("a", True),
        ("c", False),
    ]
    assert [file.name for file in found.files] == ["1.jsonl", "2.jsonl"]
    assert found.set_aside == {
        f"{tmp_path}/1.jsonl, line 2": (
            "not valid JSON, unexpected end of hex escape at column 17"
        ),
        f"{tmp_path}/1.jsonl, line 3": "not a JSON object",
        f"{tmp_path}/2.jsonl, line 1": (
            "column 'label' is 7, which says nothing of membership"
        ),
        f"{tmp_path}/3.jsonl.gz": "cannot be read: Not a gzipped file (b'no')",
    }
    (tmp_path / "a.csv").write_text("document_id,text\n1,a\n2,b,c\n1,d\n3,e\n")
    found = read_documents(tmp_path / "a.csv", bad_input="set-aside")
    assert found.documents.collect()["text"].to_list() == ["a", "e"]
    assert (
        found.documents.filter(pl.col("text") == "e").collect()["document_id"].item()
        == "3"
    )
    assert [place[-6:] for place in found.set_aside] == ["line 3", "line 4"]


@pytest.mark.parametrize("content", [b"null\n", b"\x00"])
def test_nothing_left_is_refused(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    said = refusal(tmp_path / "a.jsonl", bad_input="set-aside")
    assert "a.jsonl has no row that can be read (" in said
    assert "; 1 set aside in all)" in said


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.csv", "a.txt"])
def test_a_file_without_permission_is_refused(name, without_privileges):
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is closed to others
        Path(folder).chmod(0o755)
        path = Path(folder, name)
        path.touch(mode=0)
        with without_privileges():
            assert refusal(path) == f"{path} cannot be read: Permission denied"


def check(frame, **names):
    def refuse(row, what):
        raise CorpusError(f"row {row}: {what}")

    def frames(wanted):
        yield frame.select(wanted)

    columns = find_columns(ColumnNames(**names), frame.schema, location="corpus")
    return check_rows(frames, columns, find_place="row {}".format, reject=refuse)


def test_equal_hashes_of_different_identifiers_are_no_duplicates(monkeypatch):
    monkeypatch.setattr(
        pl.Expr, "hash", lambda self: self.str.len_bytes().cast(pl.UInt64)
    )
    monkeypatch.setattr(
        pl.Series, "hash", lambda self: self.str.len_bytes().cast(pl.UInt64)
    )
    assert check(pl.DataFrame({"text": ["a"] * 3, "document_id": [11, 22, 33]})) == 3
    with pytest.raises(CorpusError, match="row 3: document_id '22' is also in row 1"):
        check(pl.DataFrame({"text": ["a"] * 4, "document_id": [11, 22, 33, 22]}))


def test_a_value_is_shown_on_one_line_and_in_part():
    with pytest.raises(CorpusError) as error:
        check(
            pl.DataFrame({"text": ["a"], "{x} {}": ["wrong\n" * 1000]}), label="{x} {}"
        )
    message = str(error.value)
    assert message.startswith("row 0: column '{x} {}' is 'wrong\\nwrong")
    assert "', which says nothing of membership; write 1 or 0 (" in message
    assert len(message) < 220


RAW = pl.Schema(
    {"x": pl.Object(), "text": pl.String(), "label": pl.Int64(), "y": pl.Int8()}
)


def test_only_the_columns_behind_a_column_are_needed():
    columns = find_columns(ColumnNames(document_id="y"), RAW, location="corpus")
    assert columns.find_raw_columns(["member"]) == ["label"]
    assert columns.find_raw_columns(["x", "document_id"]) == ["x", "y"]
    assert columns.find_raw_columns(["prefix"]) == ["text"]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        *(
            (
                RAW | {name: pl.String()},
                r"a name that Polars takes for a pattern; rename it$",
            )
            for name in ("*", "^.*$")
        ),
        (
            pl.Schema({f"x{number}": pl.Int64() for number in range(30)}),
            r"'x19', \.\.\.; name the text with text_column=$",
        ),
    ],
)
def test_names_of_columns_that_are_refused(raw, said):
    with pytest.raises(CorpusError, match=said):
        find_columns(ColumnNames(), raw, location="corpus")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([True, False, None], [True, False, None]),
        ([1, 0, 2, -1, None], [True, False, None, None, None]),
        ([1.0, -0.0, 0.5, float("nan"), float("inf")], [True, False, None, None, None]),
        (
            ["1", "0", "TRUE", "False", "1.0", "0.0"],
            [True, False, True, False, True, False],
        ),
        (["", "yes", "01", None], [None] * 4),
        (
            ["Member", "non-member", "Non member", "nonmember"],
            [True, False, False, False],
        ),
        ([" 1", "0 ", " True"], [True, False, True]),
        ([None, None], [None, None]),
    ],
)
def test_membership(values, expected):
    column = pl.Series("x", values)
    found = column.to_frame().select(parse_membership("x", column.dtype)).to_series()
    assert found.dtype == pl.Boolean
    assert found.to_list() == expected


TEXTS = ["ein Vers", "ein\u2028anderer \u00e4", 'ein "dritter"']
VERSE = commitment("verse", TEXTS)


def line(name="verse", texts=TEXTS, seed=7, **changes):
    hashed = commitment(name, texts)
    fields = {"set": name, "texts": texts, "commitment": hashed, "seed": seed}
    fields["published"] = draw(hashed, len(texts), seed)
    return json.dumps(fields | changes, ensure_ascii=False)


def read_lines(tmp_path, *lines):
    path = tmp_path / "canaries.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return read_canaries(path)


def test_the_commitment_is_the_hash_of_json_and_the_draw_is_numpys_from_seed_and_commitment():
    content = (
        '{"set":"verse","texts":["ein Vers","ein\u2028anderer \u00e4","ein'
        ' \\"dritter\\""]}'
    )
    assert sha256(content.encode()).hexdigest() == VERSE
    assert draw(VERSE, 3, 7) == np.random.default_rng([7, int(VERSE, 16)]).integers(3)


@pytest.mark.parametrize(
    "drawn",
    [
        lambda n: draw(VERSE, 3, n),
        lambda n: draw(commitment(f"set {n}", TEXTS), 3, 7),  # of one seed
    ],
)
def test_draws_are_independent(drawn):
    counts = np.bincount([drawn(n) for n in range(3000)])
    assert counts.tolist() == pytest.approx([1000] * 3, abs=90)


def test_sets_are_read_in_order_and_made_documents(tmp_path):
    sets = read_lines(tmp_path, line(), line("other", ["a", "b"], seed=0), "")
    assert [(each.name, each.texts) for each in sets] == [
        ("verse", tuple(TEXTS)),  # whose separators of lines do not cut it
        ("other", ("a", "b")),
    ]
    assert sets[0].published == draw(VERSE, 3, 7)
    table = canary_documents(sets[:1])
    Documents.validate(table)
    assert table["document_id"].to_list() == ["verse/0", "verse/1", "verse/2"]
    assert table["text"].to_list() == TEXTS
    assert table["group"].unique().to_list() == ["verse"]
    assert table["member"].arg_true().to_list() == [sets[0].published]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        *((none, "this is not a set of canaries") for none in ("{", "\n", "[1]")),
        (line().replace('"seed"', '"sead"'), "'seed': "),
        (line(texts=["a"]), "'texts': "),
        (line(published="1"), "'published': "),
        (line(note="x"), "'note': "),
        (line(texts=["a", "a"]), "has a text twice"),
        (line(commitment="0" * 64), "are not those committed"),
        (
            line(texts=["a", "b"], commitment=commitment("verse", ["b", "a"])),
            "not those committed",
        ),
        (line(published=99), "draws another text"),
        (line(published=1 - draw(VERSE, 3, 7) % 2), "draws another text"),
        (line(name="first"), "'first' comes twice"),
    ],
)
def test_what_is_wrong_with_canaries_is_said_with_its_line(tmp_path, broken, message):
    with pytest.raises(CorpusError, match=f"canaries.jsonl, line 2: .*{message}"):
        read_lines(tmp_path, line(name="first"), broken)
    with pytest.raises(CorpusError, match="cannot be read as canaries"):
        read_canaries(tmp_path / "none.jsonl")
