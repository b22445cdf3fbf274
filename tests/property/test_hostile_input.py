"""What was made to fill the memory, to run or to mislead: one sentence, whatever its size."""

import bz2
import gzip
import io
import json
import lzma
import re
import zipfile
from collections import Counter
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mia_batch import tables
from mia_batch.corpus import books, files, read_documents
from mia_batch.corpus.files import PACKED, find_files
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.models.checkpoint_tokens import MOST_GROWTH, _compute_step_growth
from mia_batch.models.weights import check_size
from mia_batch.report import names

FEW = settings(max_examples=20)


@pytest.fixture
def limits(monkeypatch):
    """Sets limits of the readers, so that small files pass them."""

    def lower(**of):
        for name, value in of.items():
            monkeypatch.setattr(tables if name == "MOST_VALUES" else files, name, value)

    return lower


def refusal(path):
    with pytest.raises(CorpusError) as caught:
        read_documents(path).documents.collect()
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_table_has_a_limit_of_columns(tmp_path, limits, name):
    limits(MOST_COLUMNS=5)
    for n_columns in (5, 6):
        row = {"text": ["one two"]} | {f"c{i}": ["1"] for i in range(n_columns - 1)}
        frame = pl.DataFrame(row)
        write: dict[str, Any] = {
            "a.csv": frame.write_csv,
            "a.jsonl": frame.write_ndjson,
        }
        write.get(name, frame.write_parquet)(tmp_path / name)
        if n_columns == 5:
            assert read_documents(tmp_path / name).n_documents == 1
    assert "has 6 columns, of which at most 5 can be read; leave out" in refusal(
        tmp_path / name
    )


def test_keys_of_all_rows_together_have_the_same_limit(tmp_path, limits):
    limits(MOST_COLUMNS=5)
    rows = [json.dumps({"text": "one two", f"k{i}": 1}) for i in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    assert "line 5: has 6 columns" in refusal(tmp_path / "a.jsonl")


@FEW
@given(st.lists(st.text('ab",\n', min_size=1, max_size=40), min_size=1, max_size=3))
def test_a_record_of_csv_is_read_or_refused_by_its_length(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    rows = ['"{}"\n'.format(text.replace('"', '""')) for text in texts]
    path.write_text("text\n" + "".join(rows))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "_LONGEST_CSV_RECORD", 30)
        if max(map(len, rows)) > 30:
            assert "a.csv has a record of more than 0 MiB; cut it" in refusal(path)
        else:
            assert read_documents(path).documents.collect()["text"].to_list() == texts


@pytest.mark.parametrize("form", ["{}", '[{}, {{"text": "a"}}]'])
@pytest.mark.parametrize(
    "values", ["[]," * 300 + "[]", "1," * 300 + "1", '{"a":{}},' * 200 + "1"]
)
def test_a_record_of_json_has_a_limit_of_values(tmp_path, limits, form, values):
    limits(MOST_VALUES=100, _READ_CHARS=50)
    (tmp_path / "a.json").write_text(form.format('{"text": [' + values + "]}") + "\n")
    assert "holds more than" in refusal(tmp_path / "a.json")


def _packed(suffix, content):
    pack: dict[str, Any] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": vars(files)["zstd"].compress,
    }
    return pack[suffix](content)


@pytest.mark.parametrize("suffix", PACKED)
def test_a_packed_file_unpacks_to_what_one_of_its_size_can_hold(
    tmp_path, limits, suffix
):
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(_packed(suffix, b'{"text": "one two three"}\n' * 4_000))
    assert read_documents(path).n_documents == 4_000
    limits(_MOST_UNPACKED=1 << 16, _MOST_TIMES_PACKED=2)
    assert "unpacks to more than 2 times its size and 0 MiB; unpack it" in refusal(path)


def test_rows_of_a_dictionary_count_as_often_as_they_stand_there(tmp_path, limits):
    path = tmp_path / "a.parquet"
    pl.DataFrame({"text": ["word " * 1000] * 5000}).write_parquet(path)
    assert path.stat().st_size < 25_000
    frames = [frame.height for frame in files.read_columnar_rows(*_columnar(path))]
    assert sum(frames) == 5000
    assert max(frames) * 5000 <= 8 << 20  # bytes
    limits(_MOST_UNPACKED=1 << 20)
    assert "unpacks to more than 200 times its size" in refusal(path)


def _columnar(path):
    found, reading = find_files(path).files, files.Reading()
    return found, files.read_columnar_schema(found, reading), ["text"], reading


FLOODS = [
    "<",
    "<a ",
    "</",
    "<!",
    "&",
    "<p>",
    "<td>",
    "<i/>",
    "<b><i>",
    "<a b=",
    "<a '",
    "]]>",
]
FLOODS += ["\0", "<!--", "<![CDATA[", "<script>", "<?xml ", '<a href="#n1">']


@FEW
@given(
    st.lists(st.sampled_from(FLOODS), min_size=1, max_size=3).map("".join),
    st.integers(1, 300),
)
def test_a_page_costs_a_step_for_each_element_at_most(unit, n):
    calls = Counter[str]()

    class Counting(books.Pages):
        def _write(self, text):
            calls["write"] += 1
            super()._write(text)

    pages = Counting()
    try:
        pages.add((unit * n).encode())
    except books.BookError as error:
        assert "nested more than 512 deep" in str(error)  # noqa: PT017 - most floods are read
    assert calls["write"] <= 2 * pages._n_elements + 2


def test_signs_that_begin_no_tag_stay_as_they_are():
    assert books.read_html(b"<" * 5000).text == "<" * 5000


@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_an_element_has_a_limit_of_attributes(monkeypatch, quote):
    monkeypatch.setattr(books, "_MOST_ATTRIBUTES", 100)
    for n, is_read in ((40, True), (400, False)):
        names_of = " ".join(
            f"a{i}={quote}{'<' if quote else 'x'}{quote}" for i in range(n)
        )
        page = f"<p>before</p><p {names_of}>text</p>".encode()
        if is_read:
            assert books.read_html(page).text == "before\n\ntext"
        else:
            with pytest.raises(
                books.BookError, match="an element of more than 100 attributes"
            ):
                books.read_html(page)


def test_a_package_has_a_limit_of_parts_and_of_entities(monkeypatch):
    monkeypatch.setattr(books, "_MOST_LISTED", 50)
    attributes = " ".join(f"a{i}=''" for i in range(300))
    for inside in ("<a/>" * 60, "&amp;" * 60, f"<a {attributes}/>"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(
                "META-INF/container.xml", f"<container>{inside}</container>"
            )
        with pytest.raises(books.BookError, match="lists more than 50 parts"):
            books.read_epub(file)


ENDS = [
    "*** END OF THE PROJECT GUTENBERG EBOOK X ***",
    "End of the Project Gutenberg-tm",
]
ENDS += ["Updated editions will replace the previous", "End of Project Gutenberg"]


@FEW
@given(st.lists(st.sampled_from(ENDS), min_size=1, max_size=4), st.integers(1, 40))
def test_marks_of_an_end_are_read_once_however_often_they_stand_there(marks, n):
    text = "word " * 50 + "\n" + "\n".join(marks * n) + "\n" + "word " * 900
    with pytest.MonkeyPatch.context() as patched:
        searches = []
        starts = books._find_starts

        def counted_starts(*of):
            searches.append(of)
            return starts(*of)

        patched.setattr(books, "_find_starts", counted_starts)
        cut = books.find_book(text)
    assert len(searches) == 2
    assert cut.start == 0
    assert cut.end in (len(text), len(text.rstrip()), 249, 250)


def test_links_are_followed_within_the_folder_and_where_they_are_named(tmp_path):
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "private.txt").write_text("a private text\n")
    (folder / "deep" / "own.txt").write_text("an own text\n")
    (folder / "inside.txt").symlink_to("deep/own.txt")
    assert len(find_files(folder).files) == 2
    (folder / "outside.txt").symlink_to("../private.txt")
    for asked in (folder, folder / "*.txt"):
        assert re.search(
            r"is a link to .*private\.txt, which lies outside of", refusal(asked)
        )
    assert [file.name for file in find_files(folder / "outside.txt").files] == [
        "outside.txt"
    ]
    (tmp_path / "up").symlink_to(tmp_path)
    assert find_files(tmp_path / "up" / "private.txt").files[0].size == 15


def test_files_of_a_cache_of_the_hub_are_links_to_its_blobs(tmp_path):
    snapshot = tmp_path / "datasets--a--b" / "snapshots" / "1234" / "data"
    blobs = tmp_path / "datasets--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "f00").write_text('{"text": "one two"}\n')
    (snapshot / "a.jsonl").symlink_to("../../../blobs/f00")
    assert read_documents(snapshot).n_documents == 1
    (snapshot / "b.jsonl").symlink_to("../../../blobs/f00")
    assert read_documents(snapshot).n_documents == 2


@pytest.mark.parametrize("part", [None, "text_config"])
@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"num_hidden_layers": 100_000}, "names 100,000 layers"),
        ({"n_layer": 3_000}, "names 3,000 layers"),
        (
            {"num_hidden_layers": 60, "num_experts": 50_000},
            "names 60 layers of 50,000 experts",
        ),
    ],
)
def test_a_configuration_that_no_model_has_is_refused(part, sizes, said):
    check_size(
        "m", {"num_hidden_layers": 61, "n_routed_experts": 384, "vocab_size": 10**6}
    )
    with pytest.raises(SettingsError, match=said):
        check_size("m", {part: sizes} if part else sizes)


LETTER = {"String": "e"}


@pytest.mark.parametrize(
    ("step", "growth"),
    [
        ({"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}, 1),
        ({"type": "Replace", "pattern": LETTER, "content": "x" * 10**5}, 10**5),
        ({"type": "Replace", "pattern": {"String": "abcd"}, "content": "x" * 8}, 2),
        ({"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 10**5}, 10**5),
        ({"type": "Prepend", "prepend": "x" * 10**5}, 10**5),
        ({"normalizers": [{"pattern": LETTER, "content": "e" * 30}] * 4}, 30**4),
        ({"type": "Precompiled", "precompiled_charsmap": "BAAAAAAAAABhYgBhYmMA"}, 3),
        ({"type": "NFKC"}, 1),
    ],
)
def test_the_growth_of_a_text_by_a_tokenizer_is_known_before_it_is_used(step, growth):
    assert _compute_step_growth(step) == growth
    assert (growth > MOST_GROWTH) == (growth >= 10**5)


HOSTILE = st.text(
    st.sampled_from([*"ab_ =+-@<>[]()|*`\\$&%#!{}~^:/.\t\r\n", "\u202e", "\u2066"])
)
HOSTILE |= st.sampled_from(
    ["<script>", "[a](http://x)", "www.x.org", "=1+1", " @SUM(1)", "\ta"]
)


@given(HOSTILE)
def test_a_name_neither_runs_nor_links_nor_turns_direction_in_any_form(name):
    for write in names.FORMS.values():
        assert not set(write(name)) & {"\u202e", "\u2066", "\0", "\r"}
    assert "\n" not in names.markdown(name) + names.latex(name) + names.html(name)
    bare = names.markdown(name).replace("\\\\", "")
    for sign in "*`[]<>|{}!#$&@":
        assert bare.count(sign) == bare.count(f"\\{sign}")
    assert bare.count("://") == bare.count("\\://")
    assert "www." not in bare
    assert "<" not in names.html(name)
    bare = (
        names.latex(name)
        .replace(r"\textbackslash{}", "")
        .replace(r"\textasciitilde{}", "")
    )
    for sign in "&%$#_":
        assert bare.count(sign) == bare.count(f"\\{sign}")
    assert not names.cell(name).lstrip().startswith((*"=+-@",))


@given(HOSTILE, HOSTILE)
def test_cells_and_headers_of_a_table_calculate_nothing(heading, text):
    written = names.as_csv(pl.DataFrame({heading: [text, None], "number": [-1.0, 2.0]}))
    read = pl.read_csv(
        io.StringIO(written), infer_schema=False, truncate_ragged_lines=True
    )
    assert not read.columns[0].lstrip().startswith((*"=+-@",))
    assert written.endswith(",2.0\n")
