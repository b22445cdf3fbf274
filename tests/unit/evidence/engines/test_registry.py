from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import registry
from mia_batch.evidence.engines import registry as machine
from mia_batch.evidence.engines.registry import EngineType, engine_types, load_engine, why_not
from mia_batch.evidence.request import EngineSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def choose(name: str) -> tuple[str, str]:
    return registry.choose_engine(name, "samples", frozenset())


def runs_on_cpu(name: str) -> bool:
    return engine_types()[name].on_cpu()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are found; tests take some out."""
    names = {"vllm", "torch", "transformers"}
    monkeypatch.setattr(machine, "find_spec", lambda name: name if name in names else None)
    return names


@pytest.fixture
def gpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "version", lambda _: "0.32.0")


@pytest.fixture
def cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "version", lambda _: "0.32.0+cpu")
    monkeypatch.setattr(machine, "which", lambda _: "/usr/bin/lscpu")


def show_gpu(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    monkeypatch.setattr(machine, "_ACCELERATORS", ("null",) if there else ("no such device",))


@pytest.mark.usefixtures("installed", "cpu_build")
def test_auto_takes_vllm_where_it_runs_on_the_cpu():
    assert choose("auto") == ("vllm", "vLLM's CPU build is installed")


@pytest.mark.usefixtures("installed", "gpu_build")
def test_auto_takes_vllm_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch):
    show_gpu(monkeypatch, there=True)
    assert choose("auto") == ("vllm", "vLLM's GPU build is installed")


@pytest.mark.usefixtures("installed", "gpu_build")
def test_auto_takes_transformers_where_vllm_lacks_its_gpu(monkeypatch: pytest.MonkeyPatch):
    show_gpu(monkeypatch, there=False)
    engine, why = choose("auto")
    assert engine == "transformers"
    assert why.endswith("vLLM's GPU build is installed and this machine shows no GPU")


def test_auto_takes_transformers_where_vllm_is_missing(installed: set[str]):
    installed.remove("vllm")
    engine, why = choose("auto")
    assert engine == "transformers"
    assert "pip install 'mia-batch[vllm]'" in why


def test_a_missing_engine_that_was_asked_for_is_named_with_what_to_install(installed: set[str]):
    installed.remove("vllm")
    with pytest.raises(SettingsError, match=r"'engine': 'vllm' .*'mia-batch\[vllm\]'"):
        choose("vllm")


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_either_package_of_transformers_is_named(installed: set[str], package: str):
    installed.remove(package)
    match = rf"'transformers' .* package {package} .*'mia-batch\[transformers\]'"
    with pytest.raises(SettingsError, match=match):
        choose("transformers")


def test_without_any_engine_both_ways_out_are_named(installed: set[str]):
    installed.clear()
    match = r"no engine can run .*'mia-batch\[vllm\]'.*'mia-batch\[transformers\]'"
    with pytest.raises(SettingsError, match=match):
        choose("auto")


@pytest.mark.usefixtures("installed", "cpu_build")
def test_the_cpu_build_needs_lscpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "which", lambda _: None)
    with pytest.raises(SettingsError, match=r"lscpu .*util-linux"):
        choose("vllm")


@pytest.mark.usefixtures("installed")
def test_what_was_asked_for_and_can_run_is_taken():
    assert choose("transformers") == ("transformers", "asked for")


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
        "import json, sys; from mia_batch.evidence.engines.registry import choose_engine; "
        "choose_engine('auto', 'samples', frozenset()); print(json.dumps(sorted(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert {"torch", "transformers", "vllm"}.isdisjoint(json.loads(run.stdout))


BOTH_MOMENTS = {"vocabulary_mean", "vocabulary_variance"}


@pytest.mark.parametrize(
    ("engine", "columns", "words"),
    [
        ("transformers", {*BOTH_MOMENTS, "rank", "support_mass", "noise"}, None),
        ("vllm", set(), None),
        ("openai", set(), None),
        (
            "vllm",
            BOTH_MOMENTS,
            "engine vllm cannot compute mean and variance over the vocabulary",
        ),
        (
            "openai",
            {"rank", "support_mass"},
            "engine openai cannot compute exact ranks and the mass that decoding keeps",
        ),
        (
            "vllm",
            {*BOTH_MOMENTS, "rank", "support_mass"},
            "engine vllm cannot compute mean and variance over the vocabulary, exact ranks and "
            "the mass that decoding keeps",
        ),
        ("vllm", {"noise"}, "engine vllm cannot compute noise on embeddings"),
        (
            "openai",
            {"noise", "rank"},
            "engine openai cannot compute exact ranks and noise on embeddings",
        ),
        ("replay", set(), "engine replay gives no logprobs"),
    ],
)
def test_what_an_engine_cannot_compute_is_known_without_it(
    engine: str, columns: set[str], words: str | None
):
    assert why_not(engine, "logprobs", frozenset(columns)) == words


@pytest.mark.usefixtures("installed", "cpu_build")
def test_where_the_engine_lacks_a_column_transformers_computes_it():
    engine, why = registry.choose_engine("auto", "logprobs", frozenset({"rank"}))
    assert (engine, why) == ("transformers", "engine vllm cannot compute exact ranks")


@pytest.fixture
def adapter(tmp_path: Path) -> Callable[..., str]:
    """Write what describes an adapter, and a header of its weights."""

    def write(kind: str = "LORA", modules: tuple[str, ...] = ("q_proj",), **settings: Any) -> str:
        described = {"peft_type": kind, "base_model_name_or_path": "b", "task_type": "CAUSAL_LM"}
        (tmp_path / "adapter_config.json").write_text(json.dumps(described | settings))
        header = json.dumps({f"model.layers.0.{name}.lora_A.weight": {} for name in modules})
        weights = len(header).to_bytes(8, "little") + header.encode()
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
        return str(tmp_path)

    return write


@pytest.mark.usefixtures("installed", "cpu_build")
def test_auto_takes_vllm_for_a_plain_lora_adapter(installed: set[str], adapter: Callable[..., str]):
    installed.add("peft")
    model = adapter(r=8, lora_alpha=16, bias="none", use_dora=False)
    chosen = registry.choose_engine("auto", "samples", frozenset(), model=model)
    assert chosen == ("vllm", "vLLM's CPU build is installed")


@pytest.mark.usefixtures("cpu_build")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "IA3"}, r"runs adapters of kind LORA, and .* is IA3"),
        ({"kind": "PREFIX_TUNING", "num_virtual_tokens": 5}, "kind LORA, and .* is PREFIX_TUNING"),
        ({"r": 8, "use_dora": True, "bias": "all"}, "plain LoRA .* has use_dora, bias"),
        ({"init_lora_weights": "pissa"}, "has init_lora_weights"),
        ({"r": 8, "rank_pattern": {"q_proj": 513}}, "ranks up to 512, and .* has more"),
        ({"modules": ("q_proj", "lm_head")}, "leaves out what .* adds to lm_head"),
        ({"modules": ()}, "reads LoRA weights in safetensors only"),
    ],
)
def test_transformers_runs_the_adapters_that_vllm_cannot(
    installed: set[str], adapter: Callable[..., str], settings: dict[str, Any], words: str
):
    installed.add("peft")
    model = adapter(**settings)
    for name in ("auto", "vllm"):
        engine, why = registry.choose_engine(name, "logprobs", frozenset(), model=model)
        assert engine == "transformers"
        assert re.search(f"engine vllm .*{words}", why)
    with pytest.raises(SettingsError, match=f"{words}.*; take engine transformers"):
        load_engine(EngineSpec(engine="vllm", kind="logprobs", model=model))


def test_an_unknown_engine_is_refused_with_those_that_are_known():
    with pytest.raises(SettingsError, match=r"'engine' is 'vlm'; known are auto, vllm, transf"):
        choose("vlm")


class Point:
    """An entry point of another package."""

    name, value = "mine", "mine.engines:ENGINE"

    def __init__(self, loaded: object) -> None:
        self.loaded = loaded

    def load(self) -> object:
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch):
    """Let another package add an engine; what was found is forgotten before and after."""

    def add(loaded: object) -> None:
        engine_types.cache_clear()
        monkeypatch.setattr(registry, "entry_points", lambda group: [Point(loaded)])

    yield add
    engine_types.cache_clear()


def test_another_package_adds_an_engine_by_an_entry_point(plug_in):
    plug_in(EngineType(name="mine", start="mine.engines:start", kinds=frozenset({"samples"})))
    assert choose("mine") == ("mine", "asked for")
    assert why_not("mine", "logprobs", frozenset()) == "engine mine gives no logprobs"


@pytest.mark.parametrize(
    ("loaded", "words"),
    [
        (ImportError("no module named x"), "'mine' of mine.engines:ENGINE cannot be loaded: no mo"),
        ("no engine", "mine.engines:ENGINE is not an EngineType with a name of its own"),
        (EngineType(name="vllm", start=""), "is not an EngineType with a name of its own"),
    ],
)
def test_a_broken_plug_in_gets_a_sentence(plug_in, loaded: object, words: str):
    plug_in(loaded)
    with pytest.raises(EngineError, match=words):
        engine_types()
