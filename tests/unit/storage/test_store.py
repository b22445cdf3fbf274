"""What a store is asked, and the sentences where it refuses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from mia_batch import places
from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.extras.store import objects as stores
from mia_batch.extras.store.objects import Store
from mia_batch.settings import load_settings
from tests.s3 import BUCKET, KEY, SECRET

pytestmark = pytest.mark.usefixtures("on_machine")
GIVEN = {"input": "corpus.parquet", "model": "model"}


@pytest.mark.parametrize("place", ["runs/one", "/runs/one", "s3:/bucket/run", "C:\\runs", "", None])
def test_a_path_is_no_address(place):
    assert not places.is_url(place)


NAME = "name a bucket and a folder in it, such as"
SECRETS = (
    "an address has a bucket and a path, no user, '?' or '#': credentials come from the environment"
)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/run", "ftp:// is not a known object store; known are az://, gs://, s3://"),
        ("s3://bucket", f"{NAME} s3://bucket/run"),
        ("s3://bucket/", f"{NAME} s3://bucket/run"),
        ("s3:///run", f"{NAME} s3://bucket/run"),
        ("gs://bucket//run", f"{NAME} gs://bucket/run"),
        ("s3://bucket/../run", f"{NAME} s3://bucket/run"),
        ("s3://two words/run", f"{NAME} s3://bucket/run"),
        ("s3://me:word@bucket/run", SECRETS),  # never repeated
        ("az://box/run?sig=word", SECRETS),
    ],
)
def test_a_malformed_address_is_refused_before_anything_else(url, said):
    with pytest.raises(SettingsError) as refused:
        load_settings(GIVEN | {"out": url}, use_config=False)
    assert str(refused.value) == f"setting 'out': {said}"


@pytest.mark.parametrize("setting", ["input", "rarity_from", "samples_from", "non_members"])
def test_only_a_run_may_be_in_a_store(setting):
    with pytest.raises(SettingsError) as refused:
        load_settings(GIVEN | {setting: "s3://bucket/run"}, use_config=False)
    said = f"setting {setting!r}: only a run may be in an object store; copy this to a disk first"
    assert said in str(refused.value).splitlines()


def test_an_address_in_a_settings_file_is_no_path_below_its_folder(tmp_path):
    (tmp_path / "settings.toml").write_text('out = "s3://bucket/run"')
    assert load_settings(GIVEN | {"config": tmp_path / "settings.toml"}).out == "s3://bucket/run"


NO_ADDRESS = "the environment variable AWS_ENDPOINT_URL must begin with https:// or http://"
RUN = f"s3://{BUCKET}/run"


@pytest.mark.parametrize(
    ("url", "environment", "said"),
    [
        ("s3://none-such/run", {}, "there is no such bucket; make it, or name another"),
        (RUN, "refusing", "access is denied; check the credentials and what they allow"),
        (
            RUN,
            {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
            "it does not answer; check the network and the endpoint",
        ),
        (
            RUN,
            {"AWS_ALLOW_HTTP": None},
            "its endpoint is http://; set AWS_ALLOW_HTTP=true if that is meant",
        ),
        ("az://container/run", {}, "there are no credentials for it in the environment"),
        (RUN, {"AWS_ENDPOINT_URL": ""}, NO_ADDRESS),
        (RUN, {"AWS_ENDPOINT_URL": "localhost:9000"}, NO_ADDRESS),
        (RUN, {"AWS_ENDPOINT_URL": "http://"}, NO_ADDRESS),
    ],
)
def test_what_a_store_refuses_is_said_without_credentials(
    server, monkeypatch, url, environment, said
):
    refusing = environment == "refusing"
    for name, value in () if refusing else environment.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    with server.refusing_all() if refusing else nullcontext(), pytest.raises(MiaBatchError) as no:
        Store.open(url)
    assert str(no.value) == (said if said == NO_ADDRESS else f"{url} cannot be used: {said}")
    assert isinstance(no.value, SettingsError if said == NO_ADDRESS else RunFolderError)


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
