"""Texts in an object store, a real server of S3: which objects are read, and as what version."""

import json
from hashlib import sha256

import obstore
import polars as pl
import pytest
from polars.testing import assert_series_equal

from mia_batch.corpus import (
    describe_addresses,
    digest_files,
    read_documents,
    remote,
)
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.store import access
from tests.file_server import Behaviour, FileServer
from tests.s3 import BUCKET, KEY, SECRET

pytestmark = pytest.mark.usefixtures("on_machine")
LINES = b'{"text": "one"}\n{"text": "two"}\n'


@pytest.fixture
def objects(server, run):
    """Put objects below a folder that no other test has."""
    store = server.store(run)

    def put(contents):
        for name, content in contents.items():
            obstore.put(store, name, content)

    return put


FOLDER = {
    "a.jsonl": LINES,
    "deep/b.jsonl": LINES,
    "deep/er/c.jsonl": LINES,
    "_d.jsonl": LINES,
    ".e.jsonl": LINES,
    "_temporary/f.jsonl": LINES,
    "old run/run.json": b"{}",
    "old run/targets.jsonl": LINES,
    "README.md": b"# Texts",
}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", ["a.jsonl", "deep/b.jsonl", "deep/er/c.jsonl"]),
        ("/", ["a.jsonl", "deep/b.jsonl", "deep/er/c.jsonl"]),
        ("/a.jsonl", ["a.jsonl"]),
        ("/deep", ["b.jsonl", "er/c.jsonl"]),
        ("/deep/*.jsonl", ["b.jsonl"]),
        ("/?.jsonl", ["a.jsonl"]),
        ("/d*/**/*.jsonl", ["deep/b.jsonl", "deep/er/c.jsonl"]),
        ("/old run/targets.jsonl", ["targets.jsonl"]),
    ],
    ids=range(8),
)
def test_which_objects_an_address_names(objects, url, pattern, names):
    objects(FOLDER)
    corpus = read_documents(f"{url}{pattern}")
    assert [file.name for file in corpus.files] == names
    assert corpus.documents.collect().height == 2 * len(names)
    ignored = {place.removeprefix(url): why for place, why in corpus.ignored.items()}
    expected = {
        "/README.md": "files of kind .md are not read",
        "/_d.jsonl": "files whose names begin with _ are not read",
    }
    assert ignored == (expected if pattern in ("", "/") else {})


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("/none.jsonl", "holds no file; check the address, and what the credentials"),
        ("/none/*.jsonl", "holds no file; check the address, and what the credentials"),
        ("/*.md", "holds no file that can be read as a corpus"),
    ],
    ids=range(3),
)
def test_an_address_without_texts(objects, url, pattern, said):
    objects(FOLDER)
    with pytest.raises(CorpusError) as refused:
        read_documents(f"{url}{pattern}")
    assert str(refused.value).startswith(f"{url}{pattern} {said}")


def test_an_object_that_changes_or_goes_ends_the_run(objects, url, server, run):
    objects({"a.jsonl": LINES})
    corpus = read_documents(url)
    objects({"a.jsonl": LINES + LINES})
    with pytest.raises(CorpusError, match=r"a\.jsonl changed while it was read \(the"):
        corpus.documents.collect()
    obstore.delete(server.store(run), "a.jsonl")
    with pytest.raises(CorpusError, match=r"\(it is no longer there\)"):
        corpus.documents.collect()


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(cut_after=1000, n_cut=3),
        Behaviour(refusals=[(503, {}), (500, {})]),
        Behaviour(seconds_a_piece=0.02),
    ],
    ids=["cut", "busy", "slow"],
)
def test_a_store_that_cuts_and_falters_is_asked_again(behaviour, monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "pause", lambda _: None)
    table = pl.DataFrame({"text": [f"text {number}" for number in range(2000)]})
    table.write_parquet(tmp_path / "a.parquet", row_group_size=500)
    content = (tmp_path / "a.parquet").read_bytes()
    with FileServer().running() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        server.files["/bucket/a.parquet"] = content
        server.behaviour = behaviour
        corpus = read_documents("s3://bucket/a.parquet")
        assert_series_equal(corpus.documents.collect()["text"], table["text"])
        n_requests = len(server.requests)
        digests = digest_files(corpus.files)
        assert len(server.requests) == n_requests
    assert digests == {"a.parquet": sha256(content).hexdigest()}
    assert behaviour.n_cut == 0
    assert behaviour.refusals == []


def test_what_is_known_of_an_object_has_no_secret(objects, url, server):
    objects({"a.jsonl": LINES})
    corpus = read_documents(url)
    (stamp,) = describe_addresses(corpus.files).values()
    assert stamp["address"] == f"{url}/a.jsonl"
    assert stamp.keys() == {"address", "size", "etag", "modified"}
    with server.refusing_all(), pytest.raises(CorpusError) as refused:
        read_documents(url)
    assert str(refused.value) == (
        f"{url} cannot be used: access is denied; check the credentials and what they"
        " allow"
    )
    assert digest_files(corpus.files).keys() == {"a.jsonl"}
    with server.refusing_all(), pytest.raises(CorpusError) as refused:
        corpus.documents.collect()
    assert "a.jsonl cannot be read: access is denied" in str(refused.value)
    for text in (json.dumps(stamp), str(refused.value)):
        assert KEY not in text
        assert SECRET not in text


def test_a_bucket_that_is_not_there():
    with pytest.raises(CorpusError, match="there is no such bucket; make it, or name"):
        read_documents("s3://none-such/a.jsonl")
    assert BUCKET != "none-such"


def test_without_the_library_the_extra_is_named(monkeypatch, url):
    monkeypatch.setattr(access, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'mia-batch\[s3\]'"):
        read_documents(url)
