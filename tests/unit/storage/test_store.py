"""What a store is asked, one writer at a time, and the sentences where it refuses."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from mia_batch import places
from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError
from mia_batch.extras.store import access, copies
from mia_batch.extras.store.copies import Lease, Store
from mia_batch.settings import load_settings
from tests.s3 import BUCKET, KEY, SECRET

pytestmark = pytest.mark.usefixtures("on_machine")
GIVEN = {"input": "corpus.parquet", "model": "model"}


def test_a_path_is_no_address():
    others = ["runs/one", "/runs/one", "s3:/bucket/run", "C:\\runs", "", None]
    assert not any(map(places.is_url, others))


NAME = "name a bucket and a folder in it, such as"
SECRETS = (
    "an address has a bucket and a path, no user, '?' or '#': credentials come from the"
    " environment"
)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "ftp://host/run",
            "ftp:// is not a known object store; known are az://, gs://, s3://",
        ),
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
    assert str(refused.value) == f"out: {said}"


def test_only_a_run_may_be_in_a_store_and_an_address_is_no_path():
    settings = ("canaries", "rarity_from", "samples_from", "yardstick")
    with pytest.raises(SettingsError) as refused:
        load_settings(
            GIVEN | dict.fromkeys(settings, "s3://bucket/run"), use_config=False
        )
    said = "only a run and its texts may have an address; copy this to a disk first"
    lines = str(refused.value).splitlines()
    assert {*lines} >= {f"{setting}: {said}" for setting in settings}
    stored = load_settings(GIVEN | {"out": "s3://bucket/run"}, use_config=False)
    assert stored.out == "s3://bucket/run"


NO_ADDRESS = (
    "the environment variable AWS_ENDPOINT_URL must begin with https:// or http://"
)
SILENT = "it does not answer; check the network and the endpoint"
PLAIN = "its endpoint is http://; set AWS_ALLOW_HTTP=true if that is meant"
RUN = f"s3://{BUCKET}/run"


@pytest.mark.parametrize(
    ("url", "environment", "said"),
    [
        ("s3://none-such/run", {}, "there is no such bucket; make it, or name another"),
        (
            RUN,
            "refusing",
            "access is denied; check the credentials and what they allow",
        ),
        (RUN, {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, SILENT),
        (RUN, {"AWS_ALLOW_HTTP": None}, PLAIN),
        (
            "az://container/run",
            {},
            "there are no credentials for it in the environment",
        ),
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
    with (
        server.refusing_all() if refusing else nullcontext(),
        pytest.raises(MiaBatchError) as no,
    ):
        Store.open(url)
    assert str(no.value) == (
        said if said == NO_ADDRESS else f"{url} cannot be used: {said}"
    )
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
    with pytest.raises(
        SettingsError, match="The config profile \\(nobody\\) could not be"
    ):
        Store.open(url)


def test_without_the_library_the_extra_is_named(monkeypatch, url):
    monkeypatch.setattr(access, "find_spec", lambda _: None)
    with pytest.raises(SettingsError) as refused:
        Store.open(url)
    assert (
        str(refused.value)
        == f"{url} needs the library obstore; install it: pip install 'mia-batch[s3]'"
    )


def test_a_hundred_writers_of_different_objects_lose_nothing(
    server, url, run, tmp_path
):
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
    assert store.names() == {
        f"samples/{number}.part": tag for number, tag in enumerate(tags)
    }


# One writer at a time.


@pytest.fixture
def store(on_machine, url):
    return Store.open(url)


def held(store):
    wait = "wait for it, or choose another --out for another audit"
    return f"{store.url} is held by another live run; {wait}"


def take(store, own=None):
    """The lease, or what was said instead."""
    try:
        return Lease.take(store, own)
    except RunFolderError as error:
        return str(error)


def test_of_a_hundred_that_ask_at_once_one_gets_it(store):
    with ThreadPoolExecutor(100) as pool:
        got = list(pool.map(lambda _: take(store), range(100)))
    (winner,) = [each for each in got if isinstance(each, Lease)]
    assert [each for each in got if each is not winner] == [held(store)] * 99
    winner.release()


def test_of_a_hundred_that_find_the_same_dead_run_one_takes_over(store):
    take(store)
    dead = store.read(".lock")

    def write(number):
        lease = Lease(store, f"copy {number}")
        lease._version = dead.version
        return lease._write("a session")

    with ThreadPoolExecutor(100) as pool:
        assert sorted(pool.map(write, range(100))) == [False] * 99 + [True]


def test_who_lets_go_lets_others_in_and_the_copy_that_wrote_last_goes_on_at_once(store):
    first = take(store)
    assert take(store) == held(store)
    first.release()
    second = take(store)
    assert second.copy != first.copy
    again = take(store, second.copy)  # the copy's own lock says that its run was killed
    assert again.copy == second.copy
    again.release()


def test_a_lease_that_is_over_is_taken_and_its_holder_learns_of_it(store, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Lease, "_keep", lambda _: None)  # it hangs
        first = take(store)
    monkeypatch.setattr(copies, "_SECONDS", 0.0)
    second = take(store)
    assert second.copy != first.copy
    monkeypatch.setattr(copies, "_SECONDS_BETWEEN", 0.0)
    first._keep()
    with pytest.raises(RunFolderError, match="may have been taken over by another run"):
        first.check()
    second.check()
    first.release()  # which leaves the other's alone
    monkeypatch.setattr(copies, "_SECONDS", 90.0)
    assert take(store) == held(store)
    second.release()


def test_an_answer_that_was_lost_is_no_other_run(store, monkeypatch):
    """The store has written the object, but the client sent it again and was refused."""
    put_if = Store.put_if

    def refused(self, *arguments):
        put_if(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_if", refused)
        lease = take(store)
    assert isinstance(lease, Lease)
    assert take(store) == held(store)
    lease.release()


def test_an_answer_to_an_earlier_beat_that_was_lost_is_no_other_run(store, monkeypatch):
    put_if, lease = Store.put_if, take(store)

    def unheard(self, *arguments):
        put_if(self, *arguments)
        raise RunFolderError

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put_if", unheard)
        with pytest.raises(RunFolderError):
            lease._write(lease._session)
    assert lease._write(lease._session)
    assert take(store) == held(store)
    lease.check()
    monkeypatch.setattr(copies, "_SECONDS_OF_TRUST", 0.0)
    with pytest.raises(RunFolderError, match="did not reach the store for too long"):
        lease.check()
    lease.release()


def test_another_object_of_that_name_is_left_alone(store):
    store.put_if(".lock", b"of somebody else", None)
    assert (
        take(store)
        == f"{store.url} holds an object .lock that is not of a run; choose another"
        " --out"
    )
    assert store.read(".lock").content == b"of somebody else"
