"""Run folders by default: one for each model, and none that an unanswered request holds."""

import pytest

from mia_batch.errors import EngineError
from tests.hostile_server import HostileServer, TinyModel
from tests.runs import audit, planned
from tests.unit.pipeline.conftest import Listener

NOWHERE = "http://127.0.0.1:9/v1"  # nobody listens


def test_a_request_without_an_answer_holds_no_folder(request_for):
    listener = Listener()
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, probes=4, continue_strongest=0)
        with pytest.raises(EngineError, match="cannot be reached"):
            audit(**settings | {"base_url": NOWHERE, "probe_words": 2, "model": "typo"})
        assert planned(settings)["prompts"] == "24"
        run = audit(observer=listener, **settings)
        n_asked = len(server.asked)
        assert run["samples"].height == 24
        assert audit(**settings).manifest == run.manifest
        assert len(server.asked) == n_asked
    sentence = f"no answer came to an earlier request in {run.folder}: it begins anew"
    assert listener.sentences.count(sentence) == 1
    assert run.manifest.models["target"]["source"]["name"] == "tiny"


def test_an_unanswered_request_goes_on_where_it_was(request_for):
    listener = Listener()
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, probes=4, continue_strongest=0)
        unreached = settings | {"base_url": NOWHERE}
        for _ in range(2):
            with pytest.raises(EngineError, match="cannot be reached"):
                audit(observer=listener, **unreached)
    assert not [line for line in listener.sentences if "begins anew" in line]


def test_two_models_of_one_last_name_have_folders_of_their_own(
    request_for, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with HostileServer(TinyModel()) as server:
        settings = request_for(server, probes=2, continue_strongest=0)
        del settings["out"]
        names = ("tiny", "one/tiny", "two/tiny", "tiny")
        folders = [audit(**settings | {"model": name}).folder for name in names]
    host = server.url.removeprefix("http://").removesuffix("/v1").replace(":", "_")
    expected = ["tiny", f"{host}-one-tiny", f"{host}-two-tiny", "tiny"]
    assert [str(folder) for folder in folders] == [
        f"runs/corpus-{name}" for name in expected
    ]
