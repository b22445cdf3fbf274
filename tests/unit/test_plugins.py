"""What is found by entry points."""

from importlib.metadata import EntryPoint

import click
import pytest

from mia_batch import plugins
from mia_batch.errors import SettingsError


def test_the_extras_are_found_and_loaded():
    names = (
        "bench",
        "build-set",
        "demo",
        "finetune",
        "invert",
        "mark",
        "paraphrase",
        "privacy",
    )
    assert {*names} <= {*plugins.plugins("commands")}
    assert all(
        isinstance(plugins.extra("commands", name), click.Command) for name in names
    )
    assert callable(plugins.extra("executors", "ray").engines)
    assert callable(plugins.extra("models", "tuned").train_or_load)
    assert {"s3", "gs", "az"} <= {*plugins.plugins("places")}


@pytest.mark.parametrize(
    ("point", "said"),
    [
        (
            "json:nothing",
            "the place 'broken' of json:nothing cannot be loaded: module 'json' has",
        ),
        (
            "no_such_module",
            "the place 'broken' of no_such_module cannot be loaded: No module",
        ),
    ],
)
def test_what_cannot_be_loaded_is_named(monkeypatch, point, said):
    found = [EntryPoint("broken", point, "mia_batch.places")]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found)
    with pytest.raises(SettingsError, match=said):
        plugins.extra("places", "broken")
    with pytest.raises(
        SettingsError, match=r"^no installed package has 'other' of mia_batch.places"
    ):
        plugins.extra("places", "other")
