from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from transformers import AutoConfig

from mia_batch.errors import SettingsError
from mia_batch.models.weights import check_model
from tests.checkpoints import change

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(checkpoint, tmp_path / "model")


def test_a_folder_with_configuration_weights_and_tokenizer_passes(folder: Path):
    check_model(str(folder))


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("config.json", "no config.json"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "no tokenizer"),
    ],
)
def test_a_missing_part_is_named(folder: Path, missing: str, named: str):
    (folder / missing).unlink()
    with pytest.raises(SettingsError, match=f"'model'.*{folder}.*{named}.*save_pretrained"):
        check_model(str(folder))


@pytest.mark.parametrize("path", ["/no/such/folder", "./nothing", "~/model", "a/b/c"])
def test_a_path_that_leads_nowhere_is_not_looked_for_on_the_hub(path: str):
    with pytest.raises(SettingsError, match=f"'model': '{path}' does not exist"):
        check_model(path)


def test_a_file_is_no_checkpoint(folder: Path):
    with pytest.raises(SettingsError, match="is a file; give a checkpoint folder"):
        check_model(str(folder / "config.json"))


@pytest.mark.parametrize("content", ["{", "{}", '{"model_type": "no-such-architecture"}'])
def test_a_configuration_that_cannot_be_read_is_named(folder: Path, content: str):
    (folder / "config.json").write_text(content)
    with pytest.raises(SettingsError, match=r"the configuration of .* cannot be read"):
        check_model(str(folder))


def test_a_name_that_no_hub_could_have_is_refused_without_asking():
    with pytest.raises(SettingsError, match=r"'a b' cannot be found: .* check the spelling"):
        check_model("a b")


def answer(kind: type[Exception]) -> Exception:
    if issubclass(kind, errors.HfHubHTTPError):
        response: Any = SimpleNamespace(headers={}, request=None)
        return kind("no", response=response)
    return kind("no")


def test_a_model_from_the_hubs_cache_needs_no_hub(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError

    snapshot, config = str(folder / "config.json"), AutoConfig.from_pretrained(folder)
    monkeypatch.setattr(huggingface_hub, "model_info", refuse)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: snapshot)
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: config)
    check_model("some/model")
    change(folder, lambda own: {name: own[name] for name in own if name != "lm_head.weight"})
    with pytest.raises(SettingsError, match=r"the weights of 'some/model' lack lm_head\.weight"):
        check_model("some/model")
    (folder / "model.safetensors").unlink()  # the hub has it still
    check_model("some/model")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (errors.RepositoryNotFoundError, "neither a folder here nor on the hub"),
        (errors.RevisionNotFoundError, "no revision 'main2'; check the setting 'revision'"),
        (errors.OfflineModeIsEnabled, "the hub cannot be reached"),
        (ConnectionError, "the hub cannot be reached"),
    ],
)
def test_what_the_hub_answers_becomes_one_sentence(
    kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise answer(kind)

    monkeypatch.setattr(huggingface_hub, "model_info", refuse)
    with pytest.raises(SettingsError, match=f"'some/model' cannot be found: .*{words}"):
        check_model("some/model", "main2")
