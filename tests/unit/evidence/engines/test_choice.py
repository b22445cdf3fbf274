from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mia_batch.errors import SettingsError
from mia_batch.evidence.engines import choice
from mia_batch.evidence.engines.choice import cannot_score, choose_engine, runs_on_cpu
from mia_batch.evidence.scorer import Scoring


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are found; tests take some out."""
    names = {"vllm", "torch", "transformers"}
    monkeypatch.setattr(choice, "find_spec", lambda name: name if name in names else None)
    return names


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "version", lambda _: "0.32.0")


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "version", lambda _: "0.32.0+cpu")
    monkeypatch.setattr(choice, "which", lambda _: "/usr/bin/lscpu")


def show_gpu(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    monkeypatch.setattr(choice, "_has_accelerator", lambda: there)


@pytest.mark.usefixtures("installed", "cpu_build")
def test_auto_takes_vllm_where_it_runs_on_the_cpu():
    assert choose_engine("auto") == ("vllm", "vLLM's CPU build is installed")


@pytest.mark.usefixtures("installed", "gpu_build")
def test_auto_takes_vllm_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch):
    show_gpu(monkeypatch, there=True)
    assert choose_engine("auto") == ("vllm", "vLLM's GPU build is installed")


@pytest.mark.usefixtures("installed", "gpu_build")
def test_auto_takes_transformers_where_vllm_lacks_its_gpu(monkeypatch: pytest.MonkeyPatch):
    show_gpu(monkeypatch, there=False)
    engine, why = choose_engine("auto")
    assert engine == "transformers"
    assert why.endswith("vLLM's GPU build is installed and this machine shows no GPU")


def test_auto_takes_transformers_where_vllm_is_missing(installed: set[str]):
    installed.remove("vllm")
    engine, why = choose_engine("auto")
    assert engine == "transformers"
    assert "pip install 'mia-batch[vllm]'" in why


def test_a_missing_engine_that_was_asked_for_is_named_with_what_to_install(installed: set[str]):
    installed.remove("vllm")
    with pytest.raises(SettingsError, match=r"'engine': 'vllm' .*'mia-batch\[vllm\]'"):
        choose_engine("vllm")


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_either_package_of_transformers_is_named(installed: set[str], package: str):
    installed.remove(package)
    match = rf"'transformers' .* package {package} .*'mia-batch\[transformers\]'"
    with pytest.raises(SettingsError, match=match):
        choose_engine("transformers")


def test_without_any_engine_both_ways_out_are_named(installed: set[str]):
    installed.clear()
    match = r"no engine can run .*'mia-batch\[vllm\]'.*'mia-batch\[transformers\]'"
    with pytest.raises(SettingsError, match=match):
        choose_engine("auto")


@pytest.mark.usefixtures("installed", "cpu_build")
def test_the_cpu_build_needs_lscpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choice, "which", lambda _: None)
    with pytest.raises(SettingsError, match=r"lscpu .*util-linux"):
        choose_engine("vllm")


@pytest.mark.usefixtures("installed")
def test_what_was_asked_for_and_can_run_is_taken():
    assert choose_engine("transformers") == ("transformers", "asked for")


@pytest.mark.usefixtures("cpu_build")
def test_the_cpu_build_runs_on_the_cpu_even_beside_a_gpu(monkeypatch: pytest.MonkeyPatch):
    show_gpu(monkeypatch, there=True)
    assert runs_on_cpu("vllm")
    assert not runs_on_cpu("transformers")


@pytest.mark.usefixtures("gpu_build")
def test_without_a_gpu_transformers_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch):
    show_gpu(monkeypatch, there=False)
    assert runs_on_cpu("transformers")
    assert not runs_on_cpu("vllm")


def test_choosing_imports_no_engine():
    code = (
        "import json, sys; from mia_batch.evidence.engines import choose_engine; "
        "choose_engine('auto'); print(json.dumps(sorted(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert {"torch", "transformers", "vllm"}.isdisjoint(json.loads(run.stdout))


@pytest.mark.parametrize(
    ("engine", "scoring", "words"),
    [
        ("transformers", Scoring(moments=True, rank=True, kept_mass=True), None),
        ("vllm", Scoring(), None),
        ("openai", Scoring(), None),
        (
            "vllm",
            Scoring(moments=True),
            "engine vllm cannot compute mean and variance over the vocabulary",
        ),
        (
            "openai",
            Scoring(rank=True, kept_mass=True),
            "engine openai cannot compute exact ranks and the mass that decoding keeps",
        ),
        (
            "vllm",
            Scoring(moments=True, rank=True, kept_mass=True),
            "engine vllm cannot compute mean and variance over the vocabulary, exact ranks and "
            "the mass that decoding keeps",
        ),
    ],
)
def test_what_an_engine_cannot_score_is_known_without_it(
    engine: str, scoring: Scoring, words: str | None
):
    assert cannot_score(engine, scoring) == words
