"""Checkpoints and adapters that are incomplete, or of another kind, before anything starts."""

import json
import math
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pydantic
import pytest
import torch
from huggingface_hub import errors
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel

from mia_batch.errors import SettingsError, describe_error, find_first_error
from mia_batch.models import weights
from mia_batch.models.tokens import Tokenizer
from tests.adapters import KINDS, VIRTUAL_TOKENS, save_adapter, save_gpt2
from tests.architectures import made, saved
from tests.bases import save_bases
from tests.checkpoints import CONTEXT, change

UP = "model.layers.1.mlp.up_proj.weight"
ONES = torch.ones(64)


def without(*parts):
    return lambda own: {
        name: each
        for name, each in own.items()
        if not any(part in name for part in parts)
    }


def renamed(before, after):
    return lambda own: {name.replace(before, after): each for name, each in own.items()}


def added(*names):
    return lambda own: own | dict.fromkeys(names, ONES)


def same(own):
    return own


def refuses(folder, words, check=weights.check_model):
    with pytest.raises(SettingsError, match=f"^model: .*{words}"):
        check(str(folder))


@pytest.fixture
def folder(checkpoint, tmp_path):
    return shutil.copytree(checkpoint, tmp_path / "model")


NEEDS = "which a LlamaForCausalLM of its config.json needs"
NO_PLACE = "for which a LlamaForCausalLM of its config.json has no place"
BIAS, LATER = "model.layers.0.self_attn.q_proj.bias", "model.layers.2.eh_proj.weight"


@pytest.mark.parametrize(
    ("changed", "described", "fault"),
    [
        (without(UP), {}, f"lack {UP}, {NEEDS}"),
        (
            without("layers.1"),
            {},
            "lack model.layers.1.input_layernorm.weight and 8 more, which",
        ),
        (without("lm_head"), {}, "lack lm_head.weight, which"),
        (
            renamed("model.", "module.model."),
            {},
            "lack model.embed_tokens.weight and 19 more",
        ),
        (
            lambda own: own | {UP: torch.ones(64, 64)},
            {},
            (
                f"have {UP} of shape [64, 64], and a LlamaForCausalLM of its"
                " config.json needs [128, "
            ),
        ),
        (same, {"vocab_size": 601}, "have lm_head.weight of shape [600, 64], and"),
        (added(BIAS), {}, f"have {BIAS}, {NO_PLACE}"),
        (
            same,
            {"num_hidden_layers": 1},
            "have model.layers.1.input_layernorm.weight and 8 more, for which",
        ),
        (added(LATER), {"num_nextn_predict_layers": 0}, f"have {LATER}, {NO_PLACE}"),
    ],
)
@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_a_tensor_that_is_missing_or_has_no_place_is_named(
    folder, changed, described, fault, kind
):
    change(folder, changed, **described)
    if kind == "pytorch_model.bin":
        torch.save(load_file(folder / "model.safetensors"), folder / kind)
        (folder / "model.safetensors").unlink()
    said = re.escape(f"the weights of '{folder}' {fault}")
    refuses(folder, f"{said}.*; copy it again, or correct its config.json$")


@pytest.mark.parametrize("lost", [["experts.2.w1"], ["experts.2.w1", "experts.2.w3"]])
def test_an_expert_that_is_missing_is_named(tmp_path, lost):
    change(saved(tmp_path, "Mixtral"), without(*lost))
    name = "model.layers.0.block_sparse_moe.experts.2.w1.weight"
    refuses(
        tmp_path,
        f"lack {name} and {2 * len(lost) - 1} more, which a Mix",
        weights.check_weights,
    )


MASK = torch.ones(1, 1, 8, 8)


@pytest.mark.parametrize(
    ("architecture", "changed", "described"),
    [
        ("GPT2", renamed("transformer.", ""), {}),
        (
            "GPT2",
            lambda own: own | {f"transformer.h.{i}.attn.bias": MASK for i in (0, 1)},
            {},
        ),
        (
            "GPT2",
            lambda own: own | {"transformer.h.1.attn.masked_bias": torch.tensor(-1e4)},
            {},
        ),
        ("GPTJ", lambda own: own | {"transformer.h.0.attn.bias": MASK.bool()}, {}),
        ("GPTNeoX", added("gpt_neox.layers.0.attention.rotary_emb.inv_freq"), {}),
        ("Llama", added("model.layers.0.self_attn.rotary_emb.inv_freq"), {}),
        (
            "Llama",
            lambda own: own | {"lm_head.weight": own["model.embed_tokens.weight"]},
            {},
        ),
        ("Llama", renamed("model.embed_tokens", "lm_head"), {}),  # tied
        ("Llama", added("v_head.summary.weight", "mtp.fc.weight"), {}),
        # Predicts later tokens
        (
            "Llama",
            added(LATER),
            {"num_nextn_predict_layers": 1},
        ),
        ("Bloom", renamed("transformer.", ""), {}),
        ("OPT", renamed("model.decoder", "decoder"), {}),
    ],
)
def test_masks_ties_and_names_of_old_files_and_heads_of_other_tasks_pass(
    architecture, changed, described, tmp_path
):
    weights.check_weights(
        str(change(saved(tmp_path, architecture), changed, **described))
    )


def test_quantised_tensors_stand_for_those_of_their_module(folder):
    modules = [f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)]
    names = [
        f"{module}.{name}"
        for module in modules
        for name in ("qweight", "qzeros", "scales")
    ]
    quantise = lambda own: added(*names)(without("q_proj")(own))  # noqa: E731
    change(folder, quantise, quantization_config={"quant_method": "awq", "bits": 4})
    weights.check_weights(str(folder))
    change(folder, without("layers.1.self_attn.q_proj"))
    refuses(
        folder,
        r"lack model\.layers\.1\.self_attn\.q_proj\.weight, w",
        weights.check_weights,
    )


def test_a_file_that_an_index_names_must_be_there(folder):
    index = folder / "model.safetensors.index.json"
    first, second = (
        folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2)
    )
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    parts = {first: [*tensors][::2], second: [*tensors][1::2]}
    for path, names in parts.items():
        save_file({name: tensors[name] for name in names}, path)
    weight_map = {name: path.name for path, names in parts.items() for name in names}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    weights.check_model(str(folder))
    whole = second.read_bytes()
    second.unlink()
    refuses(
        folder, f"'{folder}' has no {second.name}, which its {index.name} names; copy"
    )
    missing = parts[second]
    described = index.read_text()
    index.unlink()  # which vLLM does without
    refuses(folder, f"lack {min(missing)} and {len(missing) - 1} more")
    second.write_bytes(whole)
    weights.check_model(str(folder))
    index.write_text(described)
    (folder / "model.safetensors").write_bytes(first.read_bytes())
    refuses(folder, r"has both model\.safetensors and .* remove one")
    index.write_text("{}")
    refuses(folder, r"index\.json' is damaged \(KeyError.*\); copy it ag")


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("kept", [-100, 4, 0])
def test_a_file_that_was_cut_short_is_named(folder, name, kept):
    if name.endswith(".bin"):
        torch.save(load_file(folder / "model.safetensors"), folder / name)
        (folder / "model.safetensors").unlink()
    file = folder / name
    file.write_bytes(file.read_bytes()[:kept])
    refuses(folder, f"'{file}' is damaged or cut short .*; copy it again")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    return save_bases(tmp_path_factory.mktemp("bases"))


@pytest.mark.parametrize(
    ("base", "described", "words"),
    [
        ("bert", {}, r"is a masked model \(BertForMaskedLM\)"),
        (
            "bert",
            {"architectures": ["BertLMHeadModel"]},
            r"is a masked model \(BertLMHeadModel\)",
        ),
        ("bert", {"architectures": None}, r"is a masked model \(bert\)"),
        ("t5", {}, r"is an encoder-decoder \(T5ForConditionalGeneration\)"),
        (
            "llama",
            {"architectures": ["LlamaForSequenceClassification"]},
            r"is no language model \(LlamaForSequenceClassification\)",
        ),
    ],
)
def test_what_is_no_causal_model_is_refused(bases, tmp_path, base, described, words):
    folder = change(shutil.copytree(bases[base], tmp_path / "model"), same, **described)
    refuses(folder, f"'{folder}' {words}; give a causal langu")


def test_a_decoder_alone_is_causal(tmp_path):
    made("Bert", is_decoder=True).save_pretrained(tmp_path / "bert")
    weights.check_weights(str(tmp_path / "bert"))
    changes = {
        "d_model": 64,
        "vocab_size": 600,
        "decoder_layers": 1,
        "encoder_layers": 1,
    }
    made("Bart", **changes).save_pretrained(tmp_path)
    weights.check_weights(str(tmp_path))
    change(tmp_path, same, is_encoder_decoder=True)
    refuses(tmp_path, "is an encoder-decoder", weights.check_weights)


@pytest.mark.parametrize(
    ("base", "asked"),
    [("bert", "fills"), ("bert", "any"), ("t5", "any"), ("gpt2", "any")],
)
def test_other_kinds_are_whole_too(bases, tmp_path, base, asked):
    folder = shutil.copytree(bases[base], tmp_path / "model")
    weights.check_weights(str(folder), None, asked)
    names = load_file(folder / "model.safetensors")
    lost = min(name for name in names if "bias" in name or "wi" in name)
    change(folder, without(lost))
    with pytest.raises(SettingsError, match=f"lack {lost if asked == 'fills' else ''}"):
        weights.check_weights(str(folder), None, asked)


def described(folder):
    found = weights.read_adapter(str(folder))
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_of_each_kind_fits_its_base(checkpoint, tmp_path, kind):
    adapter = save_adapter(tmp_path, checkpoint, kind)
    weights.check_model(str(adapter))
    virtual = VIRTUAL_TOKENS * (described(adapter).virtual_tokens > 0)
    assert weights.identify_model(str(adapter)).max_model_len == CONTEXT - virtual


def test_an_adapter_that_does_not_fit_its_base_is_named(checkpoint, tmp_path):
    adapter = save_adapter(tmp_path / "lora", checkpoint)
    own = load_file(adapter / "adapter_model.safetensors")
    moved = renamed("layers.1", "layers.7")(own)
    short = {name: each[:2] if "lora_A" in name else each for name, each in own.items()}
    said = f"the weights of the adapter '{adapter}'"
    both = {name: each.clone() for name, each in (own | moved).items()}
    part = "layers.1.self_attn.q_proj.lora_A"
    for tensors, words in (
        (without(part)(own), f"lack .*{re.escape(part)}"),
        (moved, r"lack .*layers\.1\..* and 5 more, which its base '.*' n"),
        (both, r"have .*layers\.7\..* no place"),
        (
            short,
            (
                r"have .*lora_A\.weight of shape \[2, 128\], and its base '.*' needs"
                r" \[4, 128\]"
            ),
        ),
    ):
        save_file(tensors, adapter / "adapter_model.safetensors")
        refuses(adapter, f"{said} {words}.*; save it again, or correct its base")
    save_file(own, adapter / "adapter_model.safetensors")
    gpt2 = save_gpt2(tmp_path / "gpt2")
    describe(adapter, base_model_name_or_path=str(gpt2))
    refuses(adapter, rf"{said} do not fit '{gpt2}' \(NoMatchingPeftModuleError: Target")


def test_without_peft_an_adapter_is_refused_with_the_way_out(
    checkpoint, tmp_path, monkeypatch
):
    adapter = save_adapter(tmp_path, checkpoint)
    monkeypatch.setattr(weights, "find_spec", lambda _: None)
    refuses(adapter, r"adapters need the package peft \(pip install")


def test_checks_of_several_threads_leave_loading_as_it_was(tmp_path):
    folder = saved(tmp_path, "Llama")  # its head is tied
    before = PreTrainedModel.tie_weights
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(weights.check_weights, [str(folder)] * 12))
    assert PreTrainedModel.tie_weights is before
    weights.check_weights(str(folder))


def trained_but(*layers, fill=None, after=None):
    """Raise one direction of every matrix, as training does, but not in (first rows of) layers."""

    def changed(own):
        for name, each in own.items():
            number = name.split(".")[2] if ".layers." in name else ""
            if each.dim() == 2 and number.isdigit():
                learnt = 3 * each.std() * torch.linspace(-1, 1, each.shape[1])
                if int(number) not in layers:
                    own[name] = each + learnt
                elif after is not None:
                    each[after:] += learnt
                elif fill is not None:
                    each.fill_(fill)
        return own

    return changed


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
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
        (trained_but(2, after=64), None),  # as of small models that learnt a little
    ],
)
def test_a_layer_of_noise_is_named_where_others_are_trained(
    deep, tmp_path, damage, noise
):
    folder = change(shutil.copytree(deep, tmp_path / "model"), damage)
    if noise is None:
        weights.check_weights(str(folder))
    else:
        refuses(
            folder,
            f"are noise in {noise}, as before any training",
            weights.check_weights,
        )


LOST = {
    "config.json": "config.json",
    "model.safetensors": "weights",
    "tokenizer.json": "tokenizer",
}


@pytest.mark.parametrize("missing", LOST)
def test_a_missing_part_is_named(folder, missing):
    (folder / missing).unlink()
    refuses(folder, f"{folder}.*no {LOST[missing]}.*save_pretrained")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *(
            (path, "does not exist")
            for path in ("/no/folder", "./nothing", "~/model", "a/b/c")
        ),
        (__file__, "is a file; give a checkpoint folder"),
        ("a b", "cannot be found: .* check the spelling"),
    ],
)
def test_a_name_that_leads_nowhere_is_not_looked_for_on_the_hub(name, words):
    refuses(name, f"'{name}' {words}")


@pytest.mark.parametrize(
    "content", ["{", "{}", '{"model_type": "no-such-architecture"}']
)
def test_a_configuration_that_cannot_be_read_is_named(folder, content):
    (folder / "config.json").write_text(content)
    refuses(folder, r"the configuration of .* cannot be read")


def hub_answers(monkeypatch, error):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "model_info", refuse)


def test_a_model_from_the_hubs_cache_needs_no_hub(folder, monkeypatch):
    snapshot, config = str(folder / "config.json"), AutoConfig.from_pretrained(folder)
    hub_answers(monkeypatch, ConnectionError())
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda *_, **__: snapshot
    )
    monkeypatch.setattr(AutoConfig, "from_pretrained", lambda *_, **__: config)
    weights.check_model("some/model")
    change(folder, without("lm_head.weight"))
    refuses("some/model", r"the weights of 'some/model' lack lm_head\.weight")
    (folder / "model.safetensors").unlink()  # the hub has it still
    weights.check_model("some/model")


HTTP: Any = {"response": SimpleNamespace(headers={}, request=None)}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            errors.RepositoryNotFoundError("no", **HTTP),
            "neither a folder here nor on the hub",
        ),
        (
            errors.RevisionNotFoundError("no", **HTTP),
            "no revision 'main2'; check revision=",
        ),
        (errors.OfflineModeIsEnabled("no"), "the hub cannot be reached"),
        (ConnectionError("no"), "the hub cannot be reached"),
    ],
)
def test_what_the_hub_answers_becomes_one_sentence(error, words, monkeypatch):
    hub_answers(monkeypatch, error)
    with pytest.raises(SettingsError, match=f"'some/model' cannot be found: .*{words}"):
        weights.check_model("some/model", "main2")


@pytest.fixture
def base(checkpoint, tmp_path):
    return shutil.copytree(checkpoint, tmp_path / "base")


@pytest.fixture
def lora(base, tmp_path):
    return save_adapter(tmp_path / "lora", base)


def describe(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_an_adapter_names_its_base_and_what_it_tunes(base, lora):
    assert weights.read_adapter(str(base)) is weights.read_adapter("some/model") is None
    found = described(lora)
    assert found.base == str(base)
    assert (found.kind, found.rank, found.virtual_tokens, found.extras) == (
        "LORA",
        4,
        0,
        (),
    )
    assert found.modules == ("down_proj", "q_proj", "v_proj")
    describe(lora, rank_pattern={"q_proj": 32}, use_dora=True, revision="v1")
    found = described(lora)
    assert (found.rank, found.extras, found.base_revision) == (32, ("use_dora",), "v1")


def test_the_tokenizer_of_an_adapter_is_its_own_else_the_base_s(base, lora):
    assert weights.tokenizer_source(str(lora), None) == (str(lora), None)
    own = Tokenizer.load(str(lora))
    (base / "tokenizer.json").unlink()
    weights.check_model(str(lora))
    (lora / "tokenizer.json").rename(base / "tokenizer.json")
    assert weights.tokenizer_source(str(lora), None) == (str(base), None)
    weights.check_model(str(lora))
    assert Tokenizer.load(str(lora)).digest == own.digest
    (base / "tokenizer.json").unlink()
    refuses(lora, r"lora' is an adapter of .*base'.* has no tokenizer")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peft_type": "LOHA"}, "is of kind LOHA; known are LORA, IA3, PREFIX_TUNING"),
        (
            {"task_type": "SEQ_CLS"},
            "has the task type SEQ_CLS; give one that was tuned for CAUS",
        ),
        ({"alora_invocation_tokens": [1]}, "is an activated LoRA.*; give a plain LoRA"),
        (
            {"base_model_name_or_path": None},
            "names no base_model_name_or_path.*; save the adapter",
        ),
        (
            {"base_model_name_or_path": "./no"},
            r"'./no', which .*does not exist; set base_model",
        ),
        (
            {"r": "four"},
            "adapter_config.json of .* cannot be read .*; save the adapter again",
        ),
        *(
            (content, "adapter_config.json of .* cannot be read")
            for content in (b"", b"[1]", b"{}", b"\xff")
        ),
    ],
)
def test_what_no_engine_could_ask_gets_one_sentence(lora, changes, words):
    if isinstance(changes, bytes):
        (lora / "adapter_config.json").write_bytes(changes)
    else:
        describe(lora, **changes)
    refuses(lora, words)


def test_missing_weights_and_adapters_of_adapters_are_named(base, lora, tmp_path):
    other = shutil.copytree(lora, tmp_path / "other")
    describe(other, base_model_name_or_path=str(lora))
    refuses(other, "is an adapter itself; merge one of them")
    (lora / "adapter_model.safetensors").rename(lora / "elsewhere")
    refuses(lora, r"lora' has no adapter's weights \(adapter_model.safe")
    (lora / "elsewhere").rename(lora / "adapter_model.safetensors")
    (base / "model.safetensors").unlink()
    refuses(lora, r"is an adapter of .* cannot be used: .*no weights")


def test_an_adapter_is_another_model_when_it_or_its_base_changes(base, lora):
    first = weights.identify_model(str(lora))
    assert first == weights.identify_model(str(lora))
    found = {first.digest, weights.identify_model(str(base)).digest}
    for folder, name in (
        (lora, "adapter_model.safetensors"),
        (base, "model.safetensors"),
    ):
        whole = bytearray((folder / name).read_bytes())
        whole[-1] ^= 1
        (folder / name).write_bytes(whole)
        found.add(weights.identify_model(str(lora)).digest)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no such device."), "ValueError: no such device"),
        (OSError("first line\nsecond line"), "OSError: first line"),
        (RuntimeError(), "RuntimeError: no message"),
        (KeyError("x" * 400), f"KeyError: '{'x' * 299} ..."),
    ],
)
def test_a_cause_is_type_and_first_line(error, cause):
    assert describe_error(error) == cause
    with pytest.raises(pydantic.ValidationError) as caught:
        pydantic.TypeAdapter(int).validate_python("x")
    assert describe_error(caught.value).startswith(
        "ValidationError: Input should be a valid integer"
    )


def test_the_first_error_of_a_log_is_its_cause():
    log = (
        "INFO loading\n"
        "(Core pid=7) ERROR [core.py:1]     raise ValueError(\n"
        "(Core pid=7) ERROR [core.py:1] ValueError: no memory for the cache.\n"
        "RuntimeError: the core did not start\n"
    )
    assert find_first_error(log) == "ValueError: no memory for the cache"
    assert find_first_error("INFO all is well\n") == "the log names no error"


def test_a_token_for_every_four_bytes_rounded_up():
    assert weights.estimate_tokens(["abcd", "\N{SNOWMAN}" * 3], ["abcde", ""]) == [
        weights.Measure(prompt_token_ids=None, prompt_tokens=1, reference_tokens=2),
        weights.Measure(prompt_token_ids=None, prompt_tokens=3, reference_tokens=0),
    ]
