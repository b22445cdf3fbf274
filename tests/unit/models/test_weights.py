"""Checkpoints and adapters that are incomplete, or of another kind, before anything starts."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pydantic
import pytest
import torch
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from mia_batch.errors import SettingsError
from mia_batch.models import weights as adapters
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import (
    Measure,
    base_of,
    cause_of,
    check_model,
    check_weights,
    estimate_tokens,
    first_error_in,
    identify_model,
    read_adapter,
    tokenizer_source,
)
from tests.adapters import KINDS, VIRTUAL_TOKENS, save_adapter, save_gpt2
from tests.architectures import made, saved
from tests.bases import save_bases
from tests.checkpoints import CONTEXT, change

Tensors = dict[str, Tensor]


UP = "model.layers.1.mlp.up_proj.weight"
ONES = torch.ones(64)


def without(*parts: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {
        name: each for name, each in tensors.items() if not any(part in name for part in parts)
    }


def renamed(before: str, after: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(before, after): each for name, each in tensors.items()}


@pytest.mark.parametrize(
    ("changed", "described", "fault"),
    [
        (without(UP), {}, f"lack {UP}, which a LlamaForCausalLM of its config.json needs"),
        (without("layers.1"), {}, "lack model.layers.1.input_layernorm.weight and 8 more, which"),
        (without("lm_head"), {}, "lack lm_head.weight, which"),
        (renamed("model.", "module.model."), {}, "lack model.embed_tokens.weight and 19 more"),
        (
            lambda own: own | {UP: torch.ones(64, 64)},
            {},
            f"have {UP} of shape [64, 64], and a LlamaForCausalLM of its config.json needs [128, ",
        ),
        (lambda own: own, {"vocab_size": 601}, "have lm_head.weight of shape [600, 64], and"),
        (
            lambda own: own | {"model.layers.0.self_attn.q_proj.bias": ONES},
            {},
            "have model.layers.0.self_attn.q_proj.bias, for which a LlamaForCausalLM of its "
            "config.json has no place",
        ),
        (
            lambda own: own,
            {"num_hidden_layers": 1},
            "have model.layers.1.input_layernorm.weight and 8 more, for which",
        ),
    ],
)
def test_a_tensor_that_is_missing_or_has_no_place_is_named(
    folder: Path, changed: Callable[[Tensors], Tensors], described: dict[str, Any], fault: str
):
    change(folder, changed, **described)
    with pytest.raises(SettingsError) as caught:
        check_model(str(folder))
    assert str(caught.value).startswith(f"setting 'model': the weights of '{folder}' {fault}")
    assert str(caught.value).endswith("; copy it again, or correct its config.json")


@pytest.mark.parametrize("lost", [["experts.2.w1"], ["experts.2.w1", "experts.2.w3"]])
def test_an_expert_that_is_missing_is_named(tmp_path: Path, lost: list[str]):
    change(saved(tmp_path, "Mixtral"), without(*lost))
    name = "model.layers.0.block_sparse_moe.experts.2.w1.weight"
    with pytest.raises(
        SettingsError, match=f"lack {name} and {2 * len(lost) - 1} more, which a Mix"
    ):
        check_weights(str(tmp_path))


MASK = torch.ones(1, 1, 8, 8)


@pytest.mark.parametrize(
    ("architecture", "changed"),
    [
        ("GPT2", renamed("transformer.", "")),
        ("GPT2", lambda own: own | {f"transformer.h.{i}.attn.bias": MASK for i in (0, 1)}),
        ("GPT2", lambda own: own | {"transformer.h.1.attn.masked_bias": torch.tensor(-1e4)}),
        ("GPTJ", lambda own: own | {"transformer.h.0.attn.bias": MASK.bool()}),
        ("GPTNeoX", lambda own: own | {"gpt_neox.layers.0.attention.rotary_emb.inv_freq": ONES}),
        ("Llama", lambda own: own | {"model.layers.0.self_attn.rotary_emb.inv_freq": ONES}),
        ("Llama", lambda own: own | {"lm_head.weight": own["model.embed_tokens.weight"]}),  # tied
        ("Llama", renamed("model.embed_tokens", "lm_head")),
        ("Llama", lambda own: own | {"v_head.summary.weight": ONES, "mtp.fc.weight": ONES}),
        ("Bloom", renamed("transformer.", "")),
        ("OPT", renamed("model.decoder", "decoder")),
    ],
)
def test_masks_ties_and_names_of_old_files_and_heads_of_other_tasks_pass(
    architecture: str, changed: Callable[[Tensors], Tensors], tmp_path: Path
):
    check_weights(str(change(saved(tmp_path, architecture), changed)))


def test_layers_that_predict_later_tokens_pass_where_the_configuration_names_them(folder: Path):
    beyond = {"model.layers.2.eh_proj.weight": ONES}
    change(folder, lambda own: own | beyond, num_nextn_predict_layers=1)
    check_weights(str(folder))
    change(folder, lambda own: own, num_nextn_predict_layers=0)
    with pytest.raises(SettingsError, match=r"have model\.layers\.2\.eh_proj\.weight, for which"):
        check_weights(str(folder))


def test_quantised_tensors_stand_for_those_of_their_module(folder: Path):
    packed = ("qweight", "qzeros", "scales")

    def quantise(own: Tensors) -> Tensors:
        kept = without("q_proj")(own)
        modules = [f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)]
        return kept | {f"{module}.{name}": ONES for module in modules for name in packed}

    change(folder, quantise, quantization_config={"quant_method": "awq", "bits": 4})
    check_weights(str(folder))
    change(folder, without("layers.1.self_attn.q_proj"))
    with pytest.raises(SettingsError, match=r"lack model\.layers\.1\.self_attn\.q_proj\.weight, w"):
        check_weights(str(folder))


def shard(folder: Path) -> dict[str, str]:
    """Put each half of the tensors into a file of its own; return the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    index = {name: files[i % 2] for i, name in enumerate(tensors)}
    for file in files:
        save_file({name: tensors[name] for name in tensors if index[name] == file}, folder / file)
    described = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(described)
    return index


def test_a_file_that_an_index_names_must_be_there(folder: Path):
    index = shard(folder)
    check_model(str(folder))
    second = folder / "model-00002-of-00002.safetensors"
    whole = second.read_bytes()
    second.unlink()
    words = f"'{folder}' has no {second.name}, which its model.safetensors.index.json names; copy"
    with pytest.raises(SettingsError, match=words):
        check_model(str(folder))
    (folder / "model.safetensors.index.json").unlink()  # which vLLM does without
    lacking = min(name for name, file in index.items() if file == second.name)
    with pytest.raises(SettingsError, match=f"lack {lacking} and {len(index) // 2 - 1} more"):
        check_model(str(folder))
    second.write_bytes(whole)
    check_model(str(folder))


def test_an_index_that_is_damaged_or_of_other_files_is_named(folder: Path):
    first = folder / "model-00001-of-00002.safetensors"
    shard(folder)
    (folder / "model.safetensors").write_bytes(first.read_bytes())
    with pytest.raises(SettingsError, match=r"has both model\.safetensors and .* remove one"):
        check_model(str(folder))
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"index\.json' is damaged \(KeyError.*\); copy it ag"):
        check_model(str(folder))


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kept", [-100, 4, 0])
def test_a_file_that_was_cut_short_is_named(folder: Path, name: str, kept: int):
    if name.endswith(".bin"):
        torch.save(load_file(folder / "model.safetensors"), folder / name)
        (folder / "model.safetensors").unlink()
        check_model(str(folder))
    file = folder / name
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(SettingsError, match=f"'{file}' is damaged or cut short .*; copy it again"):
        check_model(str(folder))


def test_a_file_of_bin_lacks_what_its_header_lacks(folder: Path):
    tensors = without(UP)(load_file(folder / "model.safetensors"))
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match=f"lack {UP}, which"):
        check_model(str(folder))


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_bases(tmp_path_factory.mktemp("bases"))


@pytest.mark.parametrize(
    ("base", "described", "words"),
    [
        ("bert", {}, r"is a masked model \(BertForMaskedLM\)"),
        ("bert", {"architectures": ["BertLMHeadModel"]}, r"is a masked model \(BertLMHeadModel\)"),
        ("bert", {"architectures": None}, r"is a masked model \(bert\)"),
        ("t5", {}, r"is an encoder-decoder \(T5ForConditionalGeneration\)"),
        (
            "llama",
            {"architectures": ["LlamaForSequenceClassification"]},
            r"is no language model \(LlamaForSequenceClassification\)",
        ),
    ],
)
def test_what_is_no_causal_model_is_refused(
    bases: dict[str, Path], tmp_path: Path, base: str, described: dict[str, Any], words: str
):
    folder = shutil.copytree(bases[base], tmp_path / "model")
    change(folder, lambda own: own, **described)
    with pytest.raises(SettingsError, match=f"'model': '{folder}' {words}; give a causal langu"):
        check_model(str(folder))


def test_a_bart_is_an_encoder_decoder_and_its_decoder_alone_is_causal(tmp_path: Path):
    changes = {"d_model": 64, "vocab_size": 600, "decoder_layers": 1, "encoder_layers": 1}
    made("Bart", **changes).save_pretrained(tmp_path)
    check_weights(str(tmp_path))
    change(tmp_path, lambda own: own, is_encoder_decoder=True)
    with pytest.raises(SettingsError, match="is an encoder-decoder"):
        check_weights(str(tmp_path))


def test_a_decoder_of_berts_kind_is_causal(tmp_path: Path):
    made("Bert", is_decoder=True).save_pretrained(tmp_path)
    check_weights(str(tmp_path))


@pytest.mark.parametrize(
    ("base", "asked"), [("bert", "fills"), ("bert", "any"), ("t5", "any"), ("gpt2", "any")]
)
def test_other_kinds_are_whole_too(bases: dict[str, Path], tmp_path: Path, base: str, asked: str):
    folder = shutil.copytree(bases[base], tmp_path / "model")
    check_weights(str(folder), None, asked)
    lost = min(
        name for name in load_file(folder / "model.safetensors") if "bias" in name or "wi" in name
    )
    change(folder, without(lost))
    with pytest.raises(SettingsError, match=f"lack {lost if asked == 'fills' else ''}"):
        check_weights(str(folder), None, asked)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_each_kind_fits_its_base(checkpoint: Path, tmp_path: Path, kind: str):
    check_model(str(save_adapter(tmp_path, checkpoint, kind)))


def test_an_adapter_that_does_not_fit_its_base_is_named(checkpoint: Path, tmp_path: Path):
    adapter = save_adapter(tmp_path / "lora", checkpoint)
    own = load_file(adapter / "adapter_model.safetensors")
    of = f"'model': the weights of the adapter '{adapter}'"
    cases: list[tuple[Callable[[Tensors], Tensors], str]] = [
        (
            without("layers.1.self_attn.q_proj.lora_A"),
            r"lack .*layers\.1\.self_attn\.q_proj\.lora_A",
        ),
        (
            renamed("layers.1", "layers.7"),
            r"lack .*layers\.1\..* and 5 more, which its base '.*' n",
        ),
        (lambda _: own | renamed("layers.1", "layers.7")(own), r"have .*layers\.7\..* no place"),
        (
            lambda _: {name: each[:2] if "lora_A" in name else each for name, each in own.items()},
            r"have .*lora_A\.weight of shape \[2, 128\], and its base '.*' needs \[4, 128\]",
        ),
    ]
    for changed, words in cases:
        change(adapter, changed)
        with pytest.raises(
            SettingsError, match=f"{of} {words}.*; save it again, or correct its base"
        ):
            check_model(str(adapter))
        save_file(own, adapter / "adapter_model.safetensors")
    gpt2 = save_gpt2(tmp_path / "gpt2")
    described = json.loads((adapter / "adapter_config.json").read_text())
    described["base_model_name_or_path"] = str(gpt2)
    (adapter / "adapter_config.json").write_text(json.dumps(described))
    with pytest.raises(
        SettingsError, match=rf"{of} do not fit '{gpt2}' \(NoMatchingPeftModuleError: Target"
    ):
        check_model(str(adapter))


def test_without_peft_an_adapter_is_refused_with_the_way_out(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    adapter = save_adapter(tmp_path, checkpoint)
    monkeypatch.setattr(adapters, "find_spec", lambda _: None)
    with pytest.raises(
        SettingsError, match=r"'model': adapters need the package peft \(pip install"
    ):
        check_model(str(adapter))


def test_checks_of_several_threads_leave_loading_as_it_was(tmp_path: Path):
    folder = saved(tmp_path, "Llama")  # its head is tied
    before = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(check_weights, [str(folder)] * 12))
    assert PreTrainedModel.tie_weights is before
    check_weights(str(folder))


def trained_but(*layers: int, fill: float | None = None) -> Callable[[Tensors], Tensors]:
    """Raise one direction of every matrix, as training does, but not in these layers."""

    def changed(own: Tensors) -> Tensors:
        for name, each in own.items():
            number = name.split(".")[2] if ".layers." in name else ""
            if each.dim() == 2 and number.isdigit():
                if int(number) not in layers:
                    own[name] = each + 3 * each.std() * torch.linspace(-1, 1, each.shape[1])
                elif fill is not None:
                    each.fill_(fill)
        return own

    return changed


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deep")
    made("Llama", num_hidden_layers=5).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("damage", "noise"),
    [
        (trained_but(), None),
        (trained_but(2), "model.layers.2"),
        (trained_but(3, 4), "model.layers.3"),
        (trained_but(0, 1, 2), None),  # a model that has hardly been trained
        (trained_but(2, fill=0.0), None),
        (trained_but(2, fill=math.nan), None),
    ],
)
def test_a_layer_of_noise_is_named_where_others_are_trained(
    deep: Path, tmp_path: Path, damage: Callable[[Tensors], Tensors], noise: str | None
):
    folder = shutil.copytree(deep, tmp_path / "model")
    change(folder, damage)
    if noise is None:
        check_weights(str(folder))
    else:
        with pytest.raises(SettingsError, match=f"are noise in {noise}, as before any training"):
            check_weights(str(folder))


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(checkpoint, tmp_path / "model")


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            (path, "does not exist")
            for path in ("/no/such/folder", "./nothing", "~/model", "a/b/c")
        ),
        (__file__, "is a file; give a checkpoint folder"),
        ("a b", "cannot be found: .* check the spelling"),
    ],
)
def test_a_name_that_leads_nowhere_is_not_looked_for_on_the_hub(name: str, words: str):
    with pytest.raises(SettingsError, match=f"'model': '{name}' {words}"):
        check_model(name)


@pytest.mark.parametrize("content", ["{", "{}", '{"model_type": "no-such-architecture"}'])
def test_a_configuration_that_cannot_be_read_is_named(folder: Path, content: str):
    (folder / "config.json").write_text(content)
    with pytest.raises(SettingsError, match=r"the configuration of .* cannot be read"):
        check_model(str(folder))


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


@pytest.fixture
def base(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return shutil.copytree(checkpoint, tmp_path / "base")


@pytest.fixture
def lora(base: Path, tmp_path: Path) -> Path:
    return save_adapter(tmp_path / "lora", base)


def describe(folder: Path, **changes: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_adapter_names_its_base_and_what_it_tunes(base: Path, lora: Path):
    assert base_of(str(base)) is None
    assert base_of("some/model") is None
    assert base_of(str(lora)) == str(base)
    found = read_adapter(str(lora))
    assert found is not None
    assert (found.kind, found.rank, found.virtual_tokens, found.extras) == ("LORA", 4, 0, ())
    assert found.modules == ("down_proj", "q_proj", "v_proj")
    describe(lora, rank_pattern={"q_proj": 32}, use_dora=True, revision="v1")
    found = read_adapter(str(lora))
    assert found is not None
    assert (found.rank, found.extras, found.base_revision) == (32, ("use_dora",), "v1")


def test_the_tokenizer_beside_an_adapter_is_its_own_else_the_base_s(base: Path, lora: Path):
    assert tokenizer_source(str(lora), None) == (str(lora), None)
    own = Tokenizer.load(str(lora))
    (base / "tokenizer.json").unlink()
    check_model(str(lora))
    (lora / "tokenizer.json").rename(base / "tokenizer.json")
    assert tokenizer_source(str(lora), None) == (str(base), None)
    check_model(str(lora))
    assert Tokenizer.load(str(lora)).digest == own.digest
    (base / "tokenizer.json").unlink()
    with pytest.raises(SettingsError, match=r"lora' is an adapter of .*base'.* has no tokenizer"):
        check_model(str(lora))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "LOHA"}, "is of kind LOHA; known are LORA, IA3, PREFIX_TUNING"),
        ({"task_type": "SEQ_CLS"}, "has the task type SEQ_CLS; give one that was tuned for CAUS"),
        ({"alora_invocation_tokens": [1]}, "is an activated LoRA.*; give a plain LoRA"),
        ({"base_model_name_or_path": None}, "names no base_model_name_or_path.*; save the adapter"),
        (
            {"base_model_name_or_path": "./none"},
            r"'./none', which .*does not exist; set base_model",
        ),
        ({"r": "four"}, "adapter_config.json of .* cannot be read .*; save the adapter again"),
    ],
)
def test_what_no_engine_could_ask_gets_one_sentence(
    lora: Path, changes: dict[str, Any], words: str
):
    describe(lora, **changes)
    with pytest.raises(SettingsError, match=f"^setting 'model': .*{words}"):
        check_model(str(lora))


@pytest.mark.parametrize("content", ["", "[1]", "{}", "\xff"])
def test_a_description_that_cannot_be_read_is_named(lora: Path, content: str):
    (lora / "adapter_config.json").write_text(content, encoding="latin-1")
    with pytest.raises(SettingsError, match=r"'model': adapter_config.json of .* cannot be read"):
        check_model(str(lora))


def test_missing_weights_are_named_on_either_side(base: Path, lora: Path):
    (lora / "adapter_model.safetensors").rename(lora / "elsewhere")
    with pytest.raises(SettingsError, match=r"lora' has no adapter's weights \(adapter_model.safe"):
        check_model(str(lora))
    (lora / "elsewhere").rename(lora / "adapter_model.safetensors")
    (base / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match=r"is an adapter of .* cannot be used: .*no weights"):
        check_model(str(lora))


def test_an_adapter_of_an_adapter_is_refused(lora: Path, tmp_path: Path):
    other = shutil.copytree(lora, tmp_path / "other")
    describe(other, base_model_name_or_path=str(lora))
    with pytest.raises(SettingsError, match="is an adapter itself; merge one of them"):
        check_model(str(other))


def test_an_adapter_is_another_model_when_it_or_its_base_changes(base: Path, lora: Path):
    first = identify_model(str(lora), None)
    assert first.max_model_len == CONTEXT
    assert identify_model(str(lora), None) == first
    assert first.digest != identify_model(str(base), None).digest
    found = {first.digest}
    for folder, name in ((lora, "adapter_model.safetensors"), (base, "model.safetensors")):
        whole = bytearray((folder / name).read_bytes())
        whole[-1] ^= 1
        (folder / name).write_bytes(whole)
        found.add(identify_model(str(lora), None).digest)
    assert len(found) == 3


def test_virtual_tokens_shorten_the_context(base: Path, tmp_path: Path):
    prefix = save_adapter(tmp_path / "prefix", base, "prefix")
    assert identify_model(str(prefix), None).max_model_len == CONTEXT - VIRTUAL_TOKENS


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no such device."), "ValueError: no such device"),
        (OSError("first line\nsecond line"), "OSError: first line"),
        (RuntimeError(), "RuntimeError: no message"),
        (KeyError("x" * 400), f"KeyError: '{'x' * 299} ..."),
    ],
)
def test_a_cause_is_type_and_first_line(error: Exception, cause: str):
    assert cause_of(error) == cause
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("x")
    assert cause_of(caught.value).startswith("ValidationError: Input should be a valid integer")


def test_the_first_error_of_a_log_is_its_cause():
    log = (
        "INFO loading\n"
        "(Core pid=7) ERROR [core.py:1]     raise ValueError(\n"
        "(Core pid=7) ERROR [core.py:1] ValueError: no memory for the cache.\n"
        "RuntimeError: the core did not start\n"
    )
    assert first_error_in(log) == "ValueError: no memory for the cache"
    assert first_error_in("INFO all is well\n") == "the log names no error"


def test_a_token_for_every_four_bytes_rounded_up():
    assert estimate_tokens(["abcd", "\N{SNOWMAN}" * 3], ["abcde", ""]) == [
        Measure(prompt_token_ids=None, prompt_tokens=1, reference_tokens=2),
        Measure(prompt_token_ids=None, prompt_tokens=3, reference_tokens=0),
    ]
