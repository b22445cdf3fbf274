"""Tiny random causal models of many architectures."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.checkpoints import byte_level_tokenizer, save_tokenizer

SMALL = {
    "vocab_size": 600,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 256}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "Bloom": {"n_layer": 2, "n_head": 2},
    "Cohere": {"logit_scale": 0.06},
    "Falcon": {"new_decoder_architecture": False},
    "FalconMamba": {"state_size": 8},
    "GPT2": _GPT,
    "GPTJ": _GPT | {"rotary_dim": 16},
    "GPTNeoX": {},
    "Gemma2": {"head_dim": 32, "sliding_window": 16, "final_logit_softcapping": 2.0},
    "Gemma3Text": {"head_dim": 32, "sliding_window": 16},
    "Granite": {"logits_scaling": 8.0},
    "Jamba": {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
    "Llama": {"tie_word_embeddings": True},
    "Mamba": {"state_size": 8},
    "Mamba2": {
        "state_size": 8,
        "num_heads": 4,
        "head_dim": 32,
        "n_groups": 2,
        "chunk_size": 16,
    },
    "Mistral": {"head_dim": 32, "sliding_window": 16},
    "Mixtral": {"num_local_experts": 4},
    "OPT": {"ffn_dim": 128, "word_embed_proj_dim": 32},
    "Olmo": {},
    "Olmo2": {},
    "Phi": {},  # a head with a bias
    "Qwen2": {},
    "Qwen2Moe": _EXPERTS | {"shared_expert_intermediate_size": 32},
    "Qwen3": {"head_dim": 32},
    "Qwen3Moe": _EXPERTS | {"head_dim": 32},
    "StableLm": {},
}


def made(architecture: str, **changes: Any) -> PreTrainedModel:
    config = getattr(transformers, f"{architecture}Config")(**SMALL | changes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config).eval()


def saved(folder: Path, architecture: str) -> Path:
    made(architecture, **ARCHITECTURES[architecture]).save_pretrained(folder)
    save_tokenizer(byte_level_tokenizer(), folder)
    return folder
