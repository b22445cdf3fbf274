"""Audits of several servers of one model: what they give, and servers that come and go."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import mia_batch
from mia_batch.cli.main import command
from mia_batch.settings import load_settings
from tests.hostile_server import MODEL, HostileServer, TinyModel
from tests.unit.pipeline.conftest import Listener, documents

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Wanted = Callable[..., dict[str, Any]]


@pytest.fixture
def wanted(tmp_path: Path) -> Wanted:
    """Settings of an audit."""
    documents().write_parquet(tmp_path / "corpus.parquet")

    def settings(base_url: object, **changed: Any) -> dict[str, Any]:
        usual = {
            "input": str(tmp_path / "corpus.parquet"),
            "model": MODEL,
            "base_url": base_url,
            "preset": "matched",
            "samples": 3,
            "out": str(tmp_path / "run"),
        }
        return usual | changed

    return settings


def parquet_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*.parquet"))
    }


def test_several_servers_give_the_files_of_one(wanted: Wanted, tmp_path: Path):
    with HostileServer(TinyModel()) as one, HostileServer(TinyModel()) as two:
        alone = mia_batch.audit(**wanted(one.url))
        n_asked = len(one.asked)
        several = mia_batch.audit(**wanted([one.url, two.url], out=str(tmp_path / "several")))
        assert len(one.asked) + len(two.asked) == 2 * n_asked
        assert 0 < len(two.asked) < n_asked
    files = parquet_files(alone.folder)
    assert len(files) > 6
    assert parquet_files(several.folder) == files


def test_a_server_that_ends_in_the_middle_changes_no_file(wanted: Wanted, tmp_path: Path):
    class Ending(Listener):
        def worked(self, texts: int, tokens: int) -> None:
            del texts, tokens
            ends.close()

    with HostileServer(TinyModel()) as one, ExitStack() as ends:
        two = ends.enter_context(HostileServer(TinyModel()))
        alone = mia_batch.audit(**wanted(one.url, max_concurrency=1))
        given = wanted([one.url, two.url], max_concurrency=1, out=str(tmp_path / "several"))
        several = mia_batch.audit(observer=Ending(), **given)
    assert two.closing.is_set()
    assert two.asked
    assert several.manifest.failed["targets"] == 0
    assert parquet_files(several.folder) == parquet_files(alone.folder)


def test_all_servers_are_named_wherever_the_endpoint_is(wanted: Wanted):
    listener = Listener()
    with HostileServer(TinyModel()) as one, HostileServer(TinyModel()) as two:
        settings = wanted([one.url, two.url], report=True)
        both = f"{one.url}, {two.url}"
        run = mia_batch.audit(observer=listener, **settings)
    assert f"probing {both}" in listener.sentences
    assert f"{both} serve {MODEL}, context 2,048 tokens" in listener.sentences
    stored = json.loads((run.folder / "run.json").read_text())
    assert stored["settings"]["base_url"] == stored["requests"]["endpoint"] == both
    assert stored["engines"]["samples of target"]["base_url"] == both
    assert stored["models"]["target"]["endpoint base_url"] == one.url
    assert stored["models"]["target"]["endpoint replicas"] == [one.url, two.url]
    assert both in (run.folder / "report.html").read_text()


def test_servers_come_and_go_but_not_all_at_once(wanted: Wanted):
    with (
        HostileServer(TinyModel()) as one,
        HostileServer(TinyModel()) as two,
        HostileServer(TinyModel()) as three,
    ):
        first = mia_batch.audit(**wanted(one.url))
        assert "endpoint replicas" not in first.manifest.models["target"]
        n_asked = len(one.asked)
        idle = mia_batch.audit(**wanted([one.url, three.url]))  # nothing is left to ask
        assert idle.manifest.requests["endpoint"] == one.url
        with pytest.raises(
            mia_batch.SettingsError, match=f"'endpoint base_url' of model 'target' was '{one.url}'"
        ):
            mia_batch.audit(**wanted(two.url, samples=4))
        mia_batch.audit(**wanted([two.url, one.url], samples=4))
        last = mia_batch.audit(**wanted(f"{three.url},{two.url}", samples=5))
        asked = [
            (each.prompt, each.fields["seed"], each.fields["max_tokens"])
            for server in (one, two, three)
            for each in server.asked
        ]
    assert n_asked < len(asked) == len(set(asked))
    assert last.manifest.models["target"]["endpoint base_url"] == one.url
    assert last.manifest.models["target"]["endpoint replicas"] == [one.url, two.url, three.url]
    assert last.manifest.requests["endpoint"] == f"{one.url}, {two.url}, {three.url}"
    assert last.manifest.settings["base_url"] == f"{three.url}, {two.url}"
    assert last.scores["n_samples"].to_list() == [5] * 6 + [0, 0]
    assert last.samples.row(0, named=True)["candidate"] == first.samples["candidate"][0]


def test_a_run_that_stopped_goes_on_with_more_servers_and_pays_for_nothing_twice(wanted: Wanted):
    prices = {"price_in": 0.0, "price_out": 1e6, "max_concurrency": 1}
    with HostileServer(TinyModel()) as one, HostileServer(TinyModel()) as two:
        with pytest.raises(mia_batch.EngineError, match=r"'max_cost' is 400.* higher"):
            mia_batch.audit(**wanted(one.url, **prices, max_cost=400.0))
        n_asked = len(one.asked)
        run = mia_batch.audit(**wanted([one.url, two.url], **prices, max_cost=1e6))
        asked = [
            (each.prompt, each.fields["seed"], each.fields["max_tokens"])
            for each in [*one.asked, *two.asked]
        ]
    assert 0 < n_asked < len(asked) == len(set(asked))
    assert two.asked
    assert run.scores["n_samples"].sum() == 18


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (["http://a/v1", "http://b/v1", "http://a/v1/"], "names http://a/v1 twice; give each ser"),
        (["http://a/v1", ""], "is '', which is not an address of an endpoint"),
        ("http://a/v1,,http://b/v1", "is '', which is not an address of an endpoint"),
        (["http://a/v1", "b/v1"], "is 'b/v1', which is not an address of an endpoint"),
        ([], "is []: value should have at least 1 item"),
    ],
)
def test_a_wrong_address_among_several_is_named(
    wanted: Wanted, tmp_path: Path, addresses: object, message: str
):
    with pytest.raises(mia_batch.SettingsError) as caught:
        mia_batch.audit(**wanted(addresses))
    assert str(caught.value).startswith(f"setting 'base_url' {message}")
    assert not (tmp_path / "run").exists()


def test_addresses_come_from_options_or_a_file_and_the_dry_run_names_them(
    wanted: Wanted, tmp_path: Path
):
    two = ["http://a/v1", "http://b/v1"]
    given = ["--input", wanted("")["input"], "--model", MODEL, "--dry-run"]
    repeated = CliRunner().invoke(command, [*given, *(f"--base-url={url}" for url in two)])
    (tmp_path / "own.toml").write_text(f"base_url = {json.dumps(two)}")
    listed = CliRunner().invoke(command, [*given, "--config", str(tmp_path / "own.toml")])
    for result in (repeated, listed):
        assert result.exit_code == 0
        lines = [line.split() for line in result.output.splitlines()]
        assert ["base_url", "http://a/v1,", "http://b/v1"] in lines
    stored = load_settings({**wanted(two)}).model_dump(mode="json")
    assert stored["base_url"] == "http://a/v1, http://b/v1"
    assert load_settings(stored).base_url == tuple(two)
    assert load_settings(wanted("http://a/v1")).model_dump(mode="json")["base_url"] == two[0]
