"""What a store is asked, and the sentences where it refuses."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mia_batch import storage
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.settings import load_settings
from mia_batch.storage import store as stores
from mia_batch.storage.store import Store
from tests.s3 import BUCKET, KEY, SECRET

pytestmark = pytest.mark.usefixtures("on_machine")
GIVEN = {"input": "corpus.parquet", "model": "model"}


@pytest.mark.parametrize("place", ["runs/one", "/runs/one", "s3:/bucket/run", "C:\\runs", "", None])
def test_a_path_is_no_address(place):
    assert not storage.is_url(place)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "ftp://host/run",
            "ftp:// is not a known object store; known are s3://, gs://, az://",
        ),
        ("s3://bucket", "name a bucket and a folder in it, such as s3://bucket/run"),
        ("s3://bucket/", "name a bucket and a folder in it, such as s3://bucket/run"),
        ("s3:///run", "name a bucket and a folder in it, such as s3://bucket/run"),
        ("gs://bucket//run", "name a bucket and a folder in it, such as gs://bucket/run"),
        ("s3://bucket/../run", "name a bucket and a folder in it, such as s3://bucket/run"),
        ("s3://two words/run", "name a bucket and a folder in it, such as s3://bucket/run"),
    ],
)
def test_a_malformed_address_is_refused_before_anything_else(url, said):
    with pytest.raises(SettingsError) as refused:
        load_settings(GIVEN | {"out": url}, use_config=False)
    assert str(refused.value) == f"setting 'out': {said}"


@pytest.mark.parametrize("url", ["s3://me:word@bucket/run", "az://box/run?sig=word"])
def test_an_address_with_a_password_is_refused_and_not_repeated(url):
    with pytest.raises(SettingsError) as refused:
        load_settings(GIVEN | {"out": url}, use_config=False)
    assert "credentials come from the environment" in str(refused.value)
    assert "word" not in str(refused.value)


@pytest.mark.parametrize("setting", ["input", "rarity_from", "samples_from", "non_members"])
def test_only_a_run_may_be_in_a_store(setting):
    with pytest.raises(SettingsError) as refused:
        load_settings(GIVEN | {setting: "s3://bucket/run"}, use_config=False)
    said = f"setting {setting!r}: only a run may be in an object store; copy this to a disk first"
    assert said in str(refused.value).splitlines()


def test_an_address_in_a_settings_file_is_no_path_below_its_folder(tmp_path):
    (tmp_path / "settings.toml").write_text('out = "s3://bucket/run"')
    assert load_settings(GIVEN | {"config": tmp_path / "settings.toml"}).out == "s3://bucket/run"


def refusal(url):
    with pytest.raises(RunFolderError) as refused:
        Store.open(url)
    assert KEY not in str(refused.value)
    assert SECRET not in str(refused.value)
    return str(refused.value)


def test_a_bucket_that_is_not_there(server):
    assert refusal("s3://no-such-bucket/run") == (
        "s3://no-such-bucket/run cannot be used: there is no such bucket; make it, or name another"
    )


def test_keys_that_are_not_allowed(server):
    with server.refusing_all():
        assert refusal(f"s3://{BUCKET}/run") == (
            f"s3://{BUCKET}/run cannot be used: access is denied; check the credentials and what "
            "they allow"
        )


def test_an_endpoint_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert refusal(f"s3://{BUCKET}/run") == (
        f"s3://{BUCKET}/run cannot be used: it does not answer; check the network and the endpoint"
    )


@pytest.mark.parametrize("endpoint", ["", "localhost:9000", "http://"])
def test_an_endpoint_that_is_no_address(endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(SettingsError) as refused:
        Store.open(f"s3://{BUCKET}/run")
    assert str(refused.value) == (
        "the environment variable AWS_ENDPOINT_URL must begin with https:// or http://"
    )


def test_an_endpoint_without_encryption_is_not_used_by_mistake(monkeypatch):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert refusal(f"s3://{BUCKET}/run") == (
        f"s3://{BUCKET}/run cannot be used: its endpoint is http://; set AWS_ALLOW_HTTP=true if "
        "that is meant"
    )


def test_no_credentials_at_all():
    assert refusal("az://container/run") == (
        "az://container/run cannot be used: there are no credentials for it in the environment"
    )


def test_credentials_of_a_profile(server, monkeypatch, tmp_path, url):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    (tmp_path / "credentials").write_text(f"[audits]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "audits")
    store = Store.open(url)
    assert store.put_if("a", b"1", None)
    found = store.read("a")
    assert found is not None
    assert found.content == b"1"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(SettingsError, match="The config profile \\(nobody\\) could not be"):
        Store.open(url)


def test_without_the_library_the_extra_is_named(monkeypatch, url):
    monkeypatch.setattr(stores, "find_spec", lambda _: None)
    with pytest.raises(SettingsError) as refused:
        Store.open(url)
    assert str(refused.value) == (
        f"{url} needs the library obstore; install it: pip install 'mia-batch[s3]'"
    )


def test_the_library_is_not_imported_where_no_address_is_given():
    code = "import sys, mia_batch.pipeline, mia_batch.cli.main; print('obstore' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_hundred_writers_of_different_objects_lose_nothing(server, url, run, tmp_path):
    store = Store.open(url)

    def write(number):
        path = tmp_path / f"{number}.part"
        path.write_bytes(b"%d" % number * 1000)
        return store.put(f"samples/{number}.part", path)

    with ThreadPoolExecutor(100) as pool:
        tags = list(pool.map(write, range(100)))
    assert server.contents(run) == {
        f"samples/{number}.part": b"%d" % number * 1000 for number in range(100)
    }
    assert store.names() == {f"samples/{number}.part": tag for number, tag in enumerate(tags)}
