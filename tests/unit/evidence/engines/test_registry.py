"""Which engine is chosen, what is asked of each model first, and what comes in one batch."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mia_batch import plugins
from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import registry
from mia_batch.evidence.request import Continuation, EngineSpec, Request
from mia_batch.models.weights import check_weights
from tests.adapters import save_adapter
from tests.architectures import ARCHITECTURES, made, saved
from tests.checkpoints import byte_level_tokenizer, change, save_tokenizer, times
from tests.engine_conformance import text_request


def choose(name: str) -> tuple[str, str]:
    return registry.choose_engine(name, "samples", frozenset())


@pytest.fixture
def installed(monkeypatch):
    names = {"vllm", "torch", "transformers"}
    monkeypatch.setattr(
        registry, "find_spec", lambda name: name if name in names else None
    )
    return names


@pytest.fixture
def gpu_build(monkeypatch):
    monkeypatch.setattr(registry, "version", lambda _: "0.32.0")


@pytest.fixture
def cpu_build(monkeypatch):
    monkeypatch.setattr(registry, "version", lambda _: "0.32.0+cpu")
    monkeypatch.setattr(registry, "which", lambda _: "/usr/bin/lscpu")


def show_gpu(monkeypatch: pytest.MonkeyPatch, *, has_gpu: bool) -> None:
    monkeypatch.setattr(
        registry, "_ACCELERATORS", ("null",) if has_gpu else ("no such device",)
    )


VLLM_MISSING = "pip install 'mia-batch[vllm]'"
NO_ENGINE = r"no engine can run .*'mia-batch\[vllm\]'.*'mia-batch\[transformers\]'"


@pytest.mark.parametrize(
    ("name", "absent", "build", "gpu", "chosen_engine", "reason_pattern"),
    [
        ("auto", [], "cpu", False, "vllm", "^vLLM's CPU build is installed$"),
        ("auto", [], "gpu", True, "vllm", "^vLLM's GPU build is installed$"),
        (
            "auto",
            [],
            "gpu",
            False,
            "transformers",
            "GPU build is installed and .* shows no GPU$",
        ),
        ("auto", ["vllm"], "gpu", False, "transformers", re.escape(VLLM_MISSING)),
        ("transformers", [], "gpu", False, "transformers", "^asked for$"),
        (
            "vllm",
            ["vllm"],
            "cpu",
            False,
            None,
            f"engine: 'vllm' .*{re.escape(VLLM_MISSING)}",
        ),
        ("vllm", ["lscpu"], "cpu", False, None, "lscpu .*util-linux"),
        (
            "transformers",
            ["torch"],
            "cpu",
            False,
            None,
            r"package torch .*batch\[transformers\]'",
        ),
        (
            "transformers",
            ["transformers"],
            "cpu",
            False,
            None,
            "'transformers' .* package transf",
        ),
        ("auto", ["vllm", "torch"], "cpu", False, None, NO_ENGINE),
        (
            "vlm",
            [],
            "cpu",
            False,
            None,
            "engine= is 'vlm'; known are auto, vllm, transf",
        ),
    ],
)
def test_which_engine_is_taken(
    installed,
    monkeypatch,
    name,
    absent,
    build,
    gpu,
    chosen_engine,
    reason_pattern,
    request,
):
    request.getfixturevalue(f"{build}_build")
    installed.difference_update(absent)
    if "lscpu" in absent:
        monkeypatch.setattr(registry, "which", lambda _: None)
    show_gpu(monkeypatch, has_gpu=gpu)
    if chosen_engine is None:
        with pytest.raises(SettingsError, match=reason_pattern):
            choose(name)
    else:
        engine, reason = choose(name)
        assert engine == chosen_engine
        assert re.search(reason_pattern, reason)


@pytest.mark.parametrize(
    ("build", "gpu", "on_cpu"),
    [("cpu", True, {"vllm"}), ("gpu", False, {"transformers"})],
)
def test_which_engine_runs_on_the_cpu(monkeypatch, request, build, gpu, on_cpu):
    request.getfixturevalue(f"{build}_build")
    show_gpu(monkeypatch, has_gpu=gpu)
    assert {
        name
        for name in ("vllm", "transformers")
        if registry.engine_types()[name].on_cpu()
    } == on_cpu


MOMENTS = {"vocabulary_mean", "vocabulary_variance"}


@pytest.mark.parametrize(
    ("engine", "columns", "words"),
    [
        (
            "transformers",
            {*MOMENTS, "rank", "top_logprob", "support_mass", "noise"},
            None,
        ),
        ("vllm", set(), None),
        ("vllm", {"noise"}, "engine vllm cannot compute noise on embeddings"),
        (
            "openai",
            {"top_logprob"},
            "engine openai cannot compute the probability of the likeliest token",
        ),
        (
            "openai",
            {"rank", "noise"},
            "engine openai cannot compute exact ranks and noise on embeddings",
        ),
        (
            "vllm",
            {*MOMENTS, "rank", "support_mass"},
            (
                "engine vllm cannot compute mean and variance over the vocabulary,"
                " exact ranks and the mass that decoding keeps"
            ),
        ),
        (
            "replay",
            {"support_mass"},
            "engine replay cannot compute the mass that decoding keeps",
        ),
    ],
)
def test_what_an_engine_cannot_compute_is_known_without_it(engine, columns, words):
    assert registry.why_not(engine, "logprobs", frozenset(columns)) == words


@pytest.mark.usefixtures("installed", "cpu_build")
def test_what_the_engine_cannot_compute_transformers_does():
    engine, engine_reason = registry.choose_engine(
        "auto", "logprobs", frozenset({"rank"})
    )
    assert (engine, engine_reason) == (
        "transformers",
        "engine vllm cannot compute exact ranks",
    )


@pytest.mark.parametrize(
    ("build", "kind", "gpus", "chosen_engine", "reason_pattern"),
    [
        ("cpu", "points", 1, "transformers", "all points of a text at once"),
        (
            "gpu",
            "logprobs",
            1,
            "transformers",
            "reads texts faster than vLLM on a GPU: .* 23,920",
        ),
        ("gpu", "logprobs", 2, "vllm", "GPU build"),
        ("gpu", "samples", 1, "vllm", "GPU build"),
        ("cpu", "logprobs", 1, "vllm", "CPU build"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_on_a_gpu_transformers_reads_and_vllm_writes(
    monkeypatch, request, build, kind, gpus, chosen_engine, reason_pattern
):
    request.getfixturevalue(f"{build}_build")
    show_gpu(monkeypatch, has_gpu=True)
    points = kind == "points"
    kind = "logprobs" if points else kind
    engine, reason = registry.choose_engine(
        "auto", kind, frozenset(), gpus=gpus, at_points=points
    )
    assert engine == chosen_engine
    assert re.search(reason_pattern, reason)
    assert registry.choose_engine("vllm", kind, frozenset(), gpus=gpus) == (
        "vllm",
        "asked for",
    )


@pytest.mark.parametrize(
    ("bytes_set", "room", "most_bytes"),
    [
        (None, None, 128 << 20),
        (None, 3 << 30, 3 << 30),
        (None, 8 << 30, 4 << 30),
        (5 << 30, 1 << 20, 5 << 30),
    ],
)
def test_memory_for_logits_is_as_set_or_follows_the_accelerator(
    bytes_set, room, most_bytes
):
    assert registry.logits_bytes(spec("m", logits_bytes=bytes_set), room) == most_bytes


@pytest.fixture
def adapter(tmp_path):
    """Write what describes an adapter, and a header of its weights."""

    def write(kind="LORA", modules=("q_proj",), **settings):
        described = {
            "peft_type": kind,
            "base_model_name_or_path": "b",
            "task_type": "CAUSAL_LM",
        }
        (tmp_path / "adapter_config.json").write_text(json.dumps(described | settings))
        header = json.dumps(
            {f"model.layers.0.{name}.lora_A.weight": {} for name in modules}
        )
        weights = len(header).to_bytes(8, "little") + header.encode()
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
        return str(tmp_path)

    return write


@pytest.mark.usefixtures("installed", "cpu_build")
def test_auto_takes_vllm_for_a_plain_lora_adapter(installed, adapter):
    installed.add("peft")
    model = adapter(r=8, lora_alpha=16, bias="none", use_dora=False)
    choice = registry.choose_engine("auto", "samples", frozenset(), model=model)
    assert choice == ("vllm", "vLLM's CPU build is installed")


@pytest.mark.usefixtures("cpu_build")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "IA3"}, r"runs adapters of kind LORA, and .* is IA3"),
        (
            {"kind": "PREFIX_TUNING", "num_virtual_tokens": 5},
            "kind LORA, and .* is PREFIX_TUNING",
        ),
        ({"r": 8, "use_dora": True, "bias": "all"}, "plain LoRA .* has use_dora, bias"),
        ({"init_lora_weights": "pissa"}, "has init_lora_weights"),
        ({"r": 8, "rank_pattern": {"q_proj": 513}}, "ranks up to 512, and .* has more"),
        ({"modules": ("q_proj", "lm_head")}, "leaves out what .* adds to lm_head"),
        ({"modules": ()}, "reads LoRA weights in safetensors only"),
    ],
)
def test_transformers_runs_the_adapters_that_vllm_cannot(
    installed, adapter, settings, words
):
    installed.add("peft")
    model = adapter(**settings)
    for name in ("auto", "vllm"):
        engine, engine_reason = registry.choose_engine(
            name, "logprobs", frozenset(), model=model
        )
        assert engine == "transformers"
        assert re.search(f"engine vllm .*{words}", engine_reason)
    with pytest.raises(
        SettingsError, match=f"{words}.*; leave the setting engine at auto"
    ):
        registry.load_engine(EngineSpec(engine="vllm", kind="logprobs", model=model))


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
def plug_in(monkeypatch):
    def add(loaded):
        registry.engine_types.cache_clear()
        monkeypatch.setattr(plugins, "entry_points", lambda group: [Point(loaded)])

    yield add
    registry.engine_types.cache_clear()


def test_another_package_adds_an_engine_by_an_entry_point(plug_in):
    plug_in(
        registry.EngineType(
            name="mine", start="mine.engines:start", kinds=frozenset({"samples"})
        )
    )
    assert choose("mine") == ("mine", "asked for")
    assert (
        registry.why_not("mine", "logprobs", frozenset())
        == "engine mine gives no logprobs"
    )


@pytest.mark.parametrize(
    ("loaded", "words"),
    [
        (
            ImportError("no module named x"),
            "'mine' of mine.engines:ENGINE cannot be loaded: no mo",
        ),
        (
            "no engine",
            "mine.engines:ENGINE is not an EngineType with a name of its own",
        ),
        (
            registry.EngineType(name="vllm", start=""),
            "is not an EngineType with a name of its own",
        ),
    ],
)
def test_a_broken_plug_in_gets_a_sentence(plug_in, loaded, words):
    plug_in(loaded)
    with pytest.raises(EngineError, match=words):
        registry.engine_types()


@pytest.mark.parametrize(
    ("files", "least_bytes", "most_bytes"),
    [
        ({"memory.max": "3000\n", "memory.current": "1000\n"}, 2000, 2000),
        ({"memory.max": "max\n", "memory.current": "1000\n"}, 2**24, 2**50),
        ({}, 2**24, 2**50),
    ],
    ids=["limit", "no limit", "no control groups"],
)
def test_memory_is_what_container_and_machine_leave(
    tmp_path, monkeypatch, files, least_bytes, most_bytes
):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(registry, "_CGROUP", tmp_path)
    assert least_bytes <= registry.available_memory() <= most_bytes


pytestmark = pytest.mark.usefixtures("one_thread")
NAN = float("nan")
TOO_LARGE = (
    "dtype: .* has or computes values too large for float16; take bfloat16 or float32"
)


def spec(model: Path | str, **changes: Any) -> EngineSpec:
    options = {"engine": "transformers", "kind": "logprobs"}
    return EngineSpec(model=str(model), **(options | changes))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_random_model_of_any_architecture_passes(architecture, tmp_path):
    model = str(saved(tmp_path, architecture))
    check_weights(model)
    engine = registry.load_engine(spec(model))
    engine.submit(text_request(0, [0, 50, 51]))
    assert engine.step()[0].error is None


@pytest.mark.parametrize(
    ("changed", "dtype", "words"),
    [
        (
            times(NAN, "1.mlp.up"),
            "float32",
            r"not finite numbers .* in model\.layers\.1\.mlp\.up",
        ),
        (
            times(NAN, "lm_head"),
            "float32",
            r"not finite numbers .* in lm_head\.weight; give anoth",
        ),
        (
            times(1e30, "0.mlp"),
            "float32",
            "not finite numbers, though its weights are; give anoth",
        ),
        (times(1e6, "1.mlp.up"), "float16", TOO_LARGE),
        (times(3e4, "0.mlp.up", "0.mlp.down"), "float16", TOO_LARGE),
    ],
)
def test_a_model_whose_numbers_are_not_finite_is_refused_with_their_cause(
    checkpoint, tmp_path, changed, dtype, words
):
    model = change(shutil.copytree(checkpoint, tmp_path / "model"), changed)
    with pytest.raises(SettingsError, match=words):
        registry.load_engine(spec(model, dtype=dtype))


def test_an_adapter_whose_numbers_are_not_finite_is_named_before_its_base(
    checkpoint, tmp_path
):
    adapter = change(
        save_adapter(tmp_path, checkpoint), times(NAN, "0.self_attn.q_proj.lora_B")
    )
    with pytest.raises(SettingsError, match=r"lora_B\.weight; give another checkpoint"):
        registry.load_engine(spec(adapter))


@pytest.mark.filterwarnings("ignore")  # transformers warns, too
def test_a_model_that_looks_at_later_tokens_is_refused(tmp_path):
    made("Bert", initializer_range=0.2).save_pretrained(tmp_path)
    save_tokenizer(byte_level_tokenizer(), tmp_path)
    with pytest.raises(
        SettingsError, match=r"later tokens, so it has no .*; give a causal"
    ):
        registry.load_engine(spec(tmp_path, kind="samples"))


@pytest.mark.parametrize(
    ("dtype", "moved", "is_refused"),
    [
        ("float32", 1e-4, False),
        ("float32", 2e-3, True),
        ("bfloat16", 0.1, False),
        ("bfloat16", 0.5, True),
    ],
)
def test_log_probabilities_may_move_as_much_as_rounding_explains(
    dtype, moved, is_refused
):
    first_read = np.linspace(-9, -1, 11, dtype=np.float32)
    second_read = first_read + np.float32(moved)
    second_read[-1] -= 5  # of another token
    refused = pytest.raises(SettingsError, match="'m' looks at later tokens")
    with refused if is_refused else nullcontext():
        registry.check_health("m", None, dtype, [first_read, second_read])


def test_the_texts_differ_in_their_last_token_and_fit_the_context():
    first_text, second_text = registry.health_check_texts(600, 256)
    assert first_text[:-1] == second_text[:-1]
    assert first_text[-1] != second_text[-1]
    assert len(first_text) == len(second_text) == 32
    assert [len(check_text) for check_text in registry.health_check_texts(5, 7)] == [
        7,
        7,
    ]
    assert max(map(max, registry.health_check_texts(5, 7))) < 5


# Batches, ends of texts, and what no engine can answer.


def test_ends_come_from_every_file_of_a_checkpoint():
    assert registry.end_token_ids(2, [2, 7], None) == {2, 7}
    assert registry.end_token_ids(None, None, None) == set()
    assert registry.end_token_ids(0) == {0}


@pytest.mark.parametrize(
    ("token_ids", "max_tokens", "ids_kept", "finish"),
    [
        ([5, 6, 2, 7], 10, [5, 6, 2], "stop"),
        ([5, 6, 2, 7], 2, [5, 6], "length"),
        ([5, 6, 2], 3, [5, 6, 2], "stop"),
    ],
)
def test_a_text_is_cut_after_its_end_or_its_budget(
    token_ids, max_tokens, ids_kept, finish
):
    continuation = registry.cut_at_end(token_ids, frozenset({2}), max_tokens)
    assert continuation == Continuation(token_ids=ids_kept, finish_reason=finish)


SAMPLES: dict[str, Any] = {"kind": "samples", "context_ids": [1, 2]}


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        (SAMPLES | {"context_ids": [1]}, None),
        (SAMPLES | {"context_ids": [0, 8, 8]}, None),
        (SAMPLES | {"context_ids": []}, "the prompt has no tokens"),
        (
            SAMPLES | {"context_ids": [1] * 4},
            "4 tokens, which leaves no room in .* context of 4",
        ),
        (SAMPLES | {"context_ids": [9]}, "outside the model's vocabulary of 9"),
        (SAMPLES | {"context_ids": [-1]}, "outside the model's vocabulary of 9"),
        (SAMPLES | {"n": 0}, "at least one sample"),
        (SAMPLES | {"max_tokens": 0}, "and one token"),
        (([1], [2]), None),
        (([1, 2, 0], [8]), None),
        (([], []), "a text of 0 tokens has none to score from token 0 on"),
        (([1], []), "a text of 1 tokens has none"),
        (([1, 2], []), "none to score from token 2 on"),
        (([], [1, 2]), "none to score from token 0 on"),
        (([1], [1] * 4), "5 tokens, more than the model's context of 4"),
        (([1], [9]), "outside the model's vocabulary of 9"),
        (([-1], [1]), "outside the model's vocabulary of 9"),
    ],
)
def test_what_no_engine_can_answer_has_its_reason(request_fields, words):
    if isinstance(request_fields, tuple):
        request_fields = dict(
            zip(("context_ids", "text_ids"), request_fields, strict=True),
            kind="logprobs",
        )
    reason = registry.why_impossible(
        Request(request_id=0, **request_fields), max_model_len=4, vocab_size=9
    )
    assert (reason is None) if words is None else re.search(words, reason or "")
