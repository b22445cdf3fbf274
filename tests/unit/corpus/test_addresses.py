"""Texts at addresses: what servers on loopback send, cut, hold back or change."""

import gzip
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from itertools import chain, repeat
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mia_batch.corpus import (
    describe_addresses,
    digest_files,
    read_documents,
    remote,
    row_groups,
    web,
)
from mia_batch.corpus.addresses import Address, check_address, match_pattern
from mia_batch.errors import CorpusError, SettingsError
from tests.certificates import write_certificate
from tests.file_server import Behaviour, FileServer, serve_data_set
from tests.texts import king_james_chapters

N_ROWS = 1200


@pytest.fixture(scope="module")
def running():
    with FileServer().running() as server:
        yield server


@pytest.fixture
def server(running, monkeypatch):
    """A server that behaves, of no files; nobody waits before a further attempt."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(remote, "pause", lambda _: None)
    monkeypatch.setattr(remote, "_digests", {})
    running.files.clear()
    running.redirects.clear()
    running.listings.clear()
    running.requests.clear()
    running.behaviour = Behaviour()
    return running


@pytest.fixture(scope="module")
def table():
    chapters = king_james_chapters(300, n=12)
    texts = [f"{number}. {chapters[number % 12]}" for number in range(N_ROWS)]
    return pl.DataFrame({"text": texts, "number": range(N_ROWS)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, table):
    """The same rows in each kind of file."""
    folder = tmp_path_factory.mktemp("corpus")
    table.write_parquet(folder / "rows.parquet", row_group_size=100)
    table.write_ipc(folder / "rows.arrow")
    table.write_ipc_stream(folder / "stream.arrow")
    table.write_ndjson(folder / "rows.jsonl")
    table.write_csv(folder / "rows.csv")
    packed = gzip.compress((folder / "rows.jsonl").read_bytes(), mtime=0)
    (folder / "rows.jsonl.gz").write_bytes(packed)
    (folder / "book.txt").write_text("\n\n".join(table["text"][:20]))
    return folder


KINDS = (
    "rows.parquet",
    "rows.arrow",
    "stream.arrow",
    "rows.jsonl",
    "rows.csv",
    "rows.jsonl.gz",
    "book.txt",
)


def read(server, name, content):
    server.files[f"/texts/{name}"] = content
    return read_documents(f"{server.url}/texts/{name}")


def refusal(server, name, content):
    with pytest.raises(CorpusError) as refused:
        read(server, name, content).documents.collect()
    return str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour(),
        Behaviour(has_ranges=False),
        Behaviour(has_ranges=False, chunked=True),
        Behaviour(has_etag=False),
        Behaviour(cut_after=20_000, n_cut=4),
        Behaviour(has_ranges=False, cut_after=20_000, n_cut=4),
        Behaviour(refusals=[(503, {}), (429, {"Retry-After": "3"}), (500, {})]),
    ],
    ids=[
        "ranges",
        "no ranges",
        "of unknown length",
        "no ETag",
        "cut",
        "cut without ranges",
        "busy",
    ],
)
def test_documents_and_hashes_are_those_of_a_copy(server, folder, kind, behaviour):
    content = (folder / kind).read_bytes()
    server.behaviour = behaviour
    corpus = read(server, kind, content)
    local = read_documents(folder / kind)
    assert_frame_equal(corpus.documents.collect(), local.documents.collect())
    n_before = len(server.requests)
    assert digest_files(corpus.files) == {kind: hashlib.sha256(content).hexdigest()}
    assert len(server.requests) == n_before  # hashed as it was read
    assert corpus.digest() == local.digest()
    if behaviour.n_cut is not None and behaviour.cut_after:
        assert behaviour.n_cut == 0  # each cut was met


def test_an_epub_is_read_here_and_there(server, tmp_path):
    path = tmp_path / "book.epub"
    with zipfile.ZipFile(path, "w") as book:
        book.writestr("mimetype", "application/epub+zip")
        book.writestr(
            "META-INF/container.xml",
            "<container><rootfiles><rootfile full-path='b.opf'/></rootfiles></container>",
        )
        book.writestr(
            "b.opf",
            "<package><manifest><item id='a' href='a.xhtml'"
            " media-type='application/xhtml+xml'/></manifest>"
            "<spine><itemref idref='a'/></spine></package>",
        )
        book.writestr("a.xhtml", "<html><body><p>Once upon a time.</p></body></html>")
    corpus = read(server, "book.epub", path.read_bytes())
    assert corpus.documents.collect()["text"][0].strip() == "Once upon a time."


def test_of_parquet_only_the_columns_that_are_needed_are_asked_for(
    server, tmp_path, monkeypatch
):
    monkeypatch.setattr(row_groups, "_SMALL_GAP", 1000)
    noise = [os.urandom(300).hex() for _ in range(2000)]
    table = pl.DataFrame({"text": ["a text"] * 2000, "noise": noise})
    table.write_parquet(tmp_path / "wide.parquet", row_group_size=500)
    content = (tmp_path / "wide.parquet").read_bytes()
    corpus = read(server, "wide.parquet", content)
    server.requests.clear()
    assert corpus.documents.select("text").collect().height == 2000
    assert server.n_bytes_asked < len(content) / 10


def test_row_groups_are_laid_into_files_without_a_name_one_after_the_other(
    server, folder, tmp_path, monkeypatch
):
    """So that some of them alone are on a disk, and none when the process is killed."""
    monkeypatch.setattr(row_groups, "_SMALL_GROUPS", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    content = (folder / "rows.parquet").read_bytes()
    corpus = read(server, "rows.parquet", content)
    sizes = []
    temporary_file = tempfile.TemporaryFile

    def recording(*arguments):
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
        return temporary_file(*arguments)

    monkeypatch.setattr(tempfile, "TemporaryFile", recording)
    server.requests.clear()
    assert corpus.documents.collect().height == N_ROWS
    assert len(sizes) == 1 + N_ROWS // 100  # for the number of rows, and for each group
    assert set(sizes) == {0}
    lengths = []
    for request in server.requests:
        start, _, last = str(request.range).removeprefix("bytes=").partition("-")
        lengths.append(int(last) + 1 - int(start))
    assert max(lengths) < len(content) / 5


@pytest.mark.parametrize("kind", ["rows.parquet", "rows.jsonl", "rows.arrow"])
@pytest.mark.parametrize("has_etag", [True, False])
def test_a_file_that_changes_between_two_readings_ends_the_run(
    server, folder, kind, has_etag
):
    content = (folder / kind).read_bytes()
    server.behaviour.has_etag = has_etag
    corpus = read(server, kind, content)
    server.files[f"/texts/{kind}"] = content[:-1]
    with pytest.raises(CorpusError, match="changed while it was read"):
        corpus.documents.collect()


def test_a_change_of_some_bytes_is_seen_without_an_etag(server, folder):
    content = (folder / "rows.jsonl").read_bytes()
    server.behaviour.has_etag = False
    corpus = read(server, "rows.jsonl", content)
    server.files["/texts/rows.jsonl"] = content.replace(b"God", b"Dog", 1)
    with pytest.raises(CorpusError, match="a second reading had another SHA-256"):
        corpus.documents.collect()


def test_a_second_answer_that_begins_otherwise_is_a_change(server, folder):
    content = (folder / "rows.jsonl").read_bytes()
    server.behaviour = Behaviour(
        has_ranges=False, has_etag=False, cut_after=30_000, n_cut=9
    )
    # What tells its length, what tells its form, what is cut
    answers = chain([content] * 3, repeat(content.replace(b"God", b"Dog", 1)))
    assert "a second answer began otherwise" in refusal(
        server, "rows.jsonl", lambda: next(answers)
    )


CUT = Behaviour(cut_after=10, n_cut=1000)


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (CUT, "cannot be read: the connection was cut, 6 times in a row; check"),
        (Behaviour(refusals=[(403, {})]), "access is denied (status 403); check"),
        (Behaviour(refusals=[(401, {})]), "access is denied (status 401); check"),
        (Behaviour(refusals=[(404, {})]), "there is no such file (status 404); check"),
        (Behaviour(refusals=[(418, {})]), "its server answers with status 418; check"),
        (
            Behaviour(refusals=[(503, {})] * 6),
            "its server answers with status 503, 6 times in a row; check",
        ),
        (
            Behaviour(has_ranges=False, longer_by=10),
            "cannot be read: the connection was cut, 6 times in a row",
        ),
        (
            Behaviour(has_ranges=False, says_length=False),
            "does not say how long it is, so a part could pass for the whole",
        ),
        (Behaviour(starts_at=1), "its server sends other parts than it is asked for"),
        (
            Behaviour(headers={"Content-Encoding": "gzip"}),
            "sends it packed as 'gzip', which it was not asked for",
        ),
    ],
)
def test_what_a_server_refuses_or_does_wrong_is_one_sentence(server, behaviour, said):
    server.behaviour = behaviour
    lines = b'{"text": "%b"}\n' % (b"word " * 100)
    sentence = refusal(server, "some.jsonl", lines)
    assert said in sentence
    assert sentence.startswith(f"{server.url}/texts/some.jsonl cannot be read: ")
    assert "\n" not in sentence


def test_a_server_that_trickles_is_left(server, monkeypatch):
    clock = iter(range(0, 10**6, 40))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(remote, "_SLOWEST", 1 << 20)
    content = b'{"text": "a"}\n' * 60_000
    assert "it sends less than 1 KiB a second, 6 times in a row" in refusal(
        server, "some.jsonl", content
    )


def test_a_server_that_falls_silent_is_left(server, monkeypatch):
    monkeypatch.setattr(web, "_SECONDS_BETWEEN", 0.05)
    server.behaviour.seconds_a_piece = 0.5
    assert "it sent nothing for" in refusal(server, "a.jsonl", b"0" * 900_000)


def test_a_body_without_end_is_left(server, monkeypatch):
    monkeypatch.setattr(remote, "_MOST_UNSIZED", 100_000)
    server.behaviour = Behaviour(has_ranges=False, chunked=True)
    assert "without saying how long it is; give a copy on a disk" in refusal(
        server, "a.jsonl", b'{"text": "a"}\n' * 10_000
    )


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("rows.arrow", "Arrow files can only be read whole"),
        ("rows.parquet", "its server sends no ranges, so it can only be read whole"),
    ],
)
def test_what_can_only_be_read_whole_has_a_limit(
    server, folder, monkeypatch, kind, reason
):
    monkeypatch.setattr(remote, "_MOST_SPOOLED", 1000)
    server.behaviour.has_ranges = kind != "rows.parquet"
    assert reason in refusal(server, kind, (folder / kind).read_bytes())


def test_a_full_disk_is_no_fault_of_the_file():
    full = OSError(28, "No space left on device")

    class Full:
        def write(self, _):
            raise full

    with pytest.raises(CorpusError, match="set TMPDIR to a folder that has some"):
        remote.write_temporary(Full(), b"a")


# Redirects.


def test_redirects_are_followed_and_their_secrets_not_said(server, folder):
    content = (folder / "rows.parquet").read_bytes()
    server.files["/elsewhere.parquet"] = content
    server.redirects["/first.parquet"] = "/second.parquet"
    server.redirects["/second.parquet"] = (
        f"{server.url}/elsewhere.parquet?X-Amz-Signature=secret"
    )
    corpus = read_documents(f"{server.url}/first.parquet")
    assert corpus.n_documents == N_ROWS
    (stamp,) = describe_addresses(corpus.files).values()
    assert stamp == {
        "address": f"{server.url}/first.parquet",
        "size": len(content),
        "etag": f'"{hashlib.md5(content).hexdigest()}"',
        "modified": "2026-08-01T12:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("file:///etc/passwd", "it leads to no address of a page"),
        ("ftp://host/file", "it leads to no address of a page"),
        ("http://me:word@host/file", "it leads to an address with a user's name"),
        ("", "it leads to no address of a page"),
        ("/loop.jsonl", "it leads from address to address, more than 5 times"),
    ],
)
def test_where_a_redirect_may_not_lead(server, target, said):
    server.redirects["/loop.jsonl"] = target
    with pytest.raises(CorpusError) as refused:
        read_documents(f"{server.url}/loop.jsonl")
    assert said in str(refused.value)
    assert "word" not in str(refused.value)


@pytest.mark.parametrize(
    "target", ["127.0.0.1", "localhost", "[::1]", "169.254.169.254"]
)
def test_a_server_outside_may_not_lead_inside(server, monkeypatch, target):
    server.redirects["/a.jsonl"] = f"http://{target}/b.jsonl"
    is_private = web._is_private
    is_first = iter([False])

    def pretend(place, *, is_direct):
        return next(is_first, None) is None and is_private(place, is_direct=is_direct)

    monkeypatch.setattr(web, "_is_private", pretend)
    with pytest.raises(CorpusError, match="an address of this machine or a private"):
        read_documents(f"{server.url}/a.jsonl")
    assert len(server.requests) == 1


def test_https_may_not_lead_to_http():
    place = urlsplit("https://example.org/a.jsonl")
    with pytest.raises(CorpusError, match="from https:// to http://"):
        web._follow(Address(place.geturl()), place, "http://example.org/a.jsonl")


def test_an_authority_that_is_named_is_trusted_and_no_other(
    server, folder, tmp_path, monkeypatch
):
    certificate = write_certificate(tmp_path / "host.pem")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with FileServer().running() as other:
        url = other.encrypt(certificate)
        other.files["/rows.jsonl"] = (folder / "rows.jsonl").read_bytes()
        sentence = "its certificate is not one that is trusted; set SSL_CERT_FILE"
        with pytest.raises(CorpusError, match=sentence):
            read_documents(f"{url}/rows.jsonl")
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        corpus = read_documents(f"{url}/rows.jsonl")
        assert corpus.n_documents == N_ROWS
        assert corpus.notes == ()


def test_the_proxy_of_the_environment_is_asked(server, folder, monkeypatch):
    """This server answers for any host, as a proxy does."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "elsewhere.invalid")
    monkeypatch.setenv("ALL_PROXY", server.url)
    server.files["/rows.jsonl"] = (folder / "rows.jsonl").read_bytes()
    corpus = read_documents("http://texts.invalid/rows.jsonl")
    assert corpus.n_documents == N_ROWS
    assert corpus.notes == (
        "http://texts.invalid/rows.jsonl is read without encryption: whoever is between"
        " can change it",
    )
    server.redirects["/a.jsonl"] = "http://10.0.0.1/rows.jsonl"
    with pytest.raises(CorpusError, match=r"leads to 10\.0\.0\.1, which is an address"):
        read_documents("http://texts.invalid/a.jsonl")
    with pytest.raises(CorpusError, match="it cannot be reached, 6 times in a row"):
        read_documents("http://elsewhere.invalid/rows.jsonl")


# Which addresses are read.

KEY = "an address has no user, no '?' with a key and no '#'"


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (
            "ftp://host/a.jsonl",
            "ftp:// is not read; addresses of texts begin with az://",
        ),
        ("https://me:word@host/a.jsonl", KEY),
        ("https://host/a.jsonl?X-Amz-Signature=word", KEY),
        ("https://host/a.jsonl#word", KEY),
        ("s3://key:word@bucket/a.jsonl", KEY),
        ("s3://bucket/a.jsonl?sig=word", KEY),
        ("https:///a.jsonl", "name a file, such as https://host/"),
        ("https://host:0/a.jsonl", "name a file, such as https://host/"),
        ("https://host:word/a.jsonl", "this is not an address that can be read"),
        ("https://host/folder/", "name a single file"),
        ("https://host/*.jsonl", "a pattern needs a list of files"),
        ("s3://bucket/../a.jsonl", "no empty names, '.' or '..'"),
        ("hf://org/name/a.jsonl", "name a data set of the hub and files in it"),
        ("hf://datasets/name", "name a data set of the hub and files in it"),
    ],
)
def test_an_address_that_is_not_read(address, said):
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        check_address(address)
    assert "word" not in str(refused.value).replace("host:word", "")
    with pytest.raises(CorpusError):
        read_documents(address)


def test_an_address_that_became_a_path_is_known():
    with pytest.raises(
        CorpusError, match=r"address https://\.\.\. was made a path"
    ) as refused:
        read_documents(Path("https://me:word@host/a.jsonl"))
    assert "word" not in str(refused.value)


def test_what_browsers_copy_is_left_off():
    address = "https://huggingface.co/datasets/o/n/resolve/main/a.jsonl"
    assert check_address(f"{address}?download=true") == address


@pytest.mark.parametrize(
    ("name", "pattern", "is_matched"),
    [
        ("a.jsonl", "*.jsonl", True),
        ("b/a.jsonl", "*.jsonl", False),
        ("b/a.jsonl", "**/*.jsonl", True),
        ("a.jsonl", "**/*.jsonl", True),
        ("b/c/a.jsonl", "b/**/a.jsonl", True),
        ("b/.c/a.jsonl", "**/a.jsonl", False),
        (".a.jsonl", "*.jsonl", False),
        (".a.jsonl", ".*.jsonl", True),
        ("a1.jsonl", "a[0-9].jsonl", True),
        ("ab.jsonl", "a?.jsonl", True),
        ("/".join("a" * 40), "/".join(["**"] * 20) + "/b", False),
    ],
)
def test_patterns_are_those_of_a_disk(tmp_path, monkeypatch, name, pattern, is_matched):
    assert match_pattern(name, pattern) is is_matched
    if name.count("/") < 10:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        matches = [
            *map(Path, __import__("glob").glob(f"{tmp_path}/{pattern}", recursive=True))
        ]
        assert (path in matches) is is_matched


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(web, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'mia-batch\[addresses\]'"):
        read_documents("https://host/a.jsonl")


# Data sets at the hub.

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_oneThatIsNoToken"


@pytest.fixture
def hub(server, folder, tmp_path, monkeypatch):
    """A hub that has one data set, and a cache of its own."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        server.url + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    content = (folder / "rows.parquet").read_bytes()
    files = {
        "README.md": b"# Texts",
        ".gitattributes": b"*.parquet filter=lfs",
        "data/test-00000-of-00001.parquet": content,
        "data/train-00000-of-00001.parquet": content,
    }
    serve_data_set(server, "org/texts", COMMIT, files)
    return server


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ("", ["data/test-00000-of-00001.parquet", "data/train-00000-of-00001.parquet"]),
        ("/data", ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]),
        ("/data/train-*", ["train-00000-of-00001.parquet"]),
        ("/**/test-*.parquet", ["data/test-00000-of-00001.parquet"]),
        ("/data/train-00000-of-00001.parquet", ["train-00000-of-00001.parquet"]),
    ],
)
@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_a_data_set_of_the_hub_is_read_at_one_commit(hub, files, names, revision):
    corpus = read_documents(f"hf://datasets/org/texts{revision}{files}")
    assert [file.name for file in corpus.files] == names
    assert corpus.n_documents == N_ROWS * len(names)
    stamps = describe_addresses(corpus.files)
    assert {stamp["revision"] for stamp in stamps.values()} == {COMMIT}
    notes = [note for note in corpus.notes if "names no commit" in note]
    assert len(notes) == (0 if revision == f"@{COMMIT}" else 1)
    for request in hub.requests:
        assert (
            request.path.startswith("/api/")
            or COMMIT in request.path
            or "blobs" in request.path
        )


def test_the_token_goes_to_the_hub_and_not_where_it_leads(hub, folder):
    with FileServer().running() as elsewhere:
        content = (folder / "rows.parquet").read_bytes()
        elsewhere.files["/blob"] = content
        for path in hub.redirects:
            hub.redirects[path] = f"{elsewhere.url}/blob"
        corpus = read_documents("hf://datasets/org/texts/data/train-*")
        assert corpus.n_documents == N_ROWS
    sent = [request.headers.get("Authorization") for request in hub.requests]
    assert f"Bearer {TOKEN}" in sent
    assert elsewhere.requests
    for request in elsewhere.requests:
        assert TOKEN not in str(request.headers)
    assert TOKEN not in str(describe_addresses(corpus.files))


def test_content_that_the_hub_knows_otherwise_is_refused(hub, folder):
    path = "data/train-00000-of-00001.parquet"
    content = (folder / "rows.parquet").read_bytes()
    hub.files[f"/blobs/{path}"] = content[:500] + b"\0" + content[501:]
    with pytest.raises(CorpusError, match=r"and the hub says|is broken at row"):
        read_documents(f"hf://datasets/org/texts/{path}")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("hf://datasets/org/other/a.parquet", "the hub refuses it (status 404)"),
        ("hf://datasets/org/texts@gone/data", "the hub refuses it (status 404)"),
        ("hf://datasets/org/texts/none", "holds no file; check the address"),
        ("hf://datasets/org/texts/README.md", "no file that can be read as a corpus"),
    ],
)
def test_what_the_hub_does_not_have(hub, address, said):
    with pytest.raises(CorpusError) as refused:
        read_documents(address)
    assert said in str(refused.value)
    assert TOKEN not in str(refused.value)


def lay_cache(cache, repository, commit, files):
    """Lay files into a folder as the hub's library does: blobs, and links to them."""
    place = cache / f"datasets--{repository.replace('/', '--')}"
    (place / "blobs").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    for path, content in files.items():
        blob = place / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = place / "snapshots" / commit / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))


@pytest.fixture
def cached(folder, tmp_path):
    content = (folder / "rows.parquet").read_bytes()
    files = {"README.md": b"# Texts", "data/train-00000-of-00001.parquet": content}
    lay_cache(tmp_path / "hub", "org/texts", COMMIT, files)


def test_what_the_cache_has_is_not_fetched(hub, cached):
    corpus = read_documents("hf://datasets/org/texts/data/*.parquet")
    assert corpus.n_documents == 2 * N_ROWS
    resolved = {request.path for request in hub.requests if "/resolve/" in request.path}
    assert [path.rpartition("/")[2] for path in resolved] == [
        "test-00000-of-00001.parquet"
    ]


def test_offline_the_cache_alone_is_read(hub, cached, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    corpus = read_documents("hf://datasets/org/texts/data/*.parquet")
    assert corpus.n_documents == N_ROWS
    assert "is read from the hub's cache" in corpus.notes[0]
    with pytest.raises(CorpusError, match="is not in the hub's cache, and HF_HUB_OFF"):
        read_documents("hf://datasets/org/other/data/*.parquet")
    assert not hub.requests


# Footers that were made to lead astray.


@pytest.mark.parametrize("at", range(0, 400, 23))
def test_a_footer_with_a_wrong_byte_is_read_as_a_copy_is_or_refused(
    server, table, tmp_path, at
):
    path = tmp_path / "rows.parquet"
    table.head(20).write_parquet(path, row_group_size=10)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[-8:-4], "little")
    position = len(content) - 8 - length + at % length
    content[position] ^= 0x15
    path.write_bytes(content)
    outcomes: list[pl.DataFrame | None] = []
    for place in (path, f"{server.url}/texts/rows.parquet"):
        server.files["/texts/rows.parquet"] = bytes(content)
        try:
            outcomes.append(read_documents(place).documents.collect())
        except CorpusError:
            outcomes.append(None)
    local, remote_frame = outcomes
    if remote_frame is not None:
        assert local is not None
        assert_frame_equal(remote_frame, local)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PAR1", "it is too short"),
        (b"PAR1" + b"\0" * 40, "its last bytes are not those of Parquet"),
        (b"PAR1" + b"\0" * 40 + b"\xff\xff\xff\x7fPAR1", "its footer would have"),
        (b"PAR1\x19\xfc\xff\xff\xff\x0f\0\x07\0\0\0PAR1", "its footer ends too early"),
        (b"PAR1" + b"\x1c" * 99 + b"c\0\0\0PAR1", "its footer is nested too deep"),
        (b"PAR1" + b"\x19" * 9999 + b"\x0f\x27\0\0PAR1", "is nested too deep"),
        (
            b"PAR1\x19\xfc\x80\x89\x7a" + bytes(2_000_000) + b"\x85\x84\x1e\0PAR1",
            "its footer has more than 1,000,000 values",
        ),
        (b"PAR1" + b"\xff" * 99 + b"c\0\0\0PAR1", "its footer"),
        (
            b"PAR1" + b"\0" * 9 + b"\x09\0\0\0PAR1",
            "its footer lacks what Parquet needs",
        ),
    ],
)
def test_a_footer_that_is_none(server, monkeypatch, content, said):
    monkeypatch.setattr(row_groups, "_MOST_VALUES", 1_000_000)
    assert said in refusal(server, "a.parquet", content)


def test_memory_does_not_grow_with_a_file(server):
    """Of 60 MB, in a process of its own."""
    server.files["/texts/large.jsonl"] = bytes(60_000_000)
    program = (
        "import resource, sys\n"
        "from mia_batch.corpus import digest_files, find_files\n"
        "files = find_files(sys.argv[1]).files\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "print(*digest_files(files).values())\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    arguments = [sys.executable, "-c", program, f"{server.url}/texts/large.jsonl"]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    digest, n_kilobytes = result.stdout.split()
    assert digest == hashlib.sha256(bytes(60_000_000)).hexdigest()
    assert int(n_kilobytes) < 30_000


def test_a_hub_that_lists_files_elsewhere_is_refused(hub):
    for listing in hub.listings.values():
        if isinstance(listing, list):
            listing[0]["path"] = "../../../../etc/hosts.txt"
    with pytest.raises(
        CorpusError, match="a file whose path leads out of the data set"
    ):
        read_documents("hf://datasets/org/texts")


def test_a_hub_that_does_not_answer_is_said(hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CorpusError, match="the hub does not answer; check the network"):
        read_documents("hf://datasets/org/texts/data")
