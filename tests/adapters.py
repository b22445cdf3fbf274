"""Adapters of tiny checkpoints, made on the spot, and the slow reference of what they say."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from peft import (
    IA3Config,
    LoraConfig,
    PeftModel,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    PreTrainedModel,
)

from tests.checkpoints import (
    BOS_ID,
    CONTEXT,
    EOS_ID,
    byte_level_tokenizer,
    save_tokenizer,
)

VIRTUAL_TOKENS = 5
_ANY: dict[str, Any] = {"task_type": "CAUSAL_LM"}
_LLAMA = ["q_proj", "v_proj", "down_proj"]
_VIRTUAL = _ANY | {"num_virtual_tokens": VIRTUAL_TOKENS}
KINDS = {
    "lora": lambda: LoraConfig(r=4, lora_alpha=8, target_modules=_LLAMA, **_ANY),
    "dora": lambda: LoraConfig(r=4, use_dora=True, target_modules=_LLAMA, **_ANY),
    "ia3": lambda: IA3Config(
        target_modules=["k_proj", *_LLAMA[1:]],
        feedforward_modules=["down_proj"],
        **_ANY,
    ),
    "prefix": lambda: PrefixTuningConfig(**_VIRTUAL),
    "p-tuning": lambda: PromptEncoderConfig(encoder_hidden_size=16, **_VIRTUAL),
    "prompt": lambda: PromptTuningConfig(**_VIRTUAL),
}
"""Settings of one adapter of each kind, for a Llama; those with virtual tokens for any model."""


def save_adapter(
    folder: Path,
    base: Path,
    kind: str = "lora",
    *,
    tokenizer: bool = True,
    seed: int = 1,
) -> Path:
    """Write an adapter with random weights, far from those that change nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(base), KINDS[kind]()
        )
        for name, weights in model.named_parameters():
            if weights.requires_grad:
                weights.data = 0.1 * torch.randn_like(weights) + (
                    1 if "ia3" in name else 0
                )
    model.save_pretrained(str(folder))
    if tokenizer:
        AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def save_merged(folder: Path, base: Path, adapter: Path) -> Path:
    """Write the checkpoint in which an adapter is merged, with the base's tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(base)
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def save_gpt2(folder: Path) -> Path:
    """Write a random GPT-2: learned positions, tied embeddings, Conv1D."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = byte_level_tokenizer()
    save_tokenizer(tokenizer, folder)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(),
        n_positions=CONTEXT,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.3,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@torch.inference_mode()
def slow_logits(base: Path, adapter: Path, token_ids: list[int]) -> Tensor:
    """Logits after each token in float64, from the file of virtual tokens without peft."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    saved = load_file(adapter / "adapter_model.safetensors")[
        "prompt_embeddings"
    ].double()
    ids = torch.tensor([token_ids])
    if saved.shape[1] == model.get_input_embeddings().weight.shape[1]:
        read = torch.cat([saved[None], model.get_input_embeddings()(ids)], dim=1)
        logits: Tensor = model(inputs_embeds=read).logits[0, len(saved) :]
    else:
        logits = model(ids, past_key_values=_cache(model, saved)).logits[0]
    return logits


def _cache(model: PreTrainedModel, saved: Tensor) -> DynamicCache:
    """Keys and values of each layer, as prefix tuning saves them next to each other."""
    config = model.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    of_layers = saved.view(len(saved), 2 * config.num_hidden_layers, heads, -1)
    cache = DynamicCache()
    for layer in range(config.num_hidden_layers):
        keys, values = (
            of_layers[:, 2 * layer + i].transpose(0, 1)[None] for i in (0, 1)
        )
        cache.update(keys, values, layer)
    return cache


def slow_logprobs(
    base: Path, adapter: Path, token_ids: list[int]
) -> NDArray[np.float64]:
    """Log-probability of each token but the first."""
    found = slow_logits(base, adapter, token_ids[:-1]).log_softmax(-1)
    values: NDArray[np.float64] = found[
        range(len(token_ids) - 1), token_ids[1:]
    ].numpy()
    return values


def slow_greedy(
    base: Path, adapter: Path, prompt: list[int], n_tokens: int
) -> list[int]:
    """Most likely continuation, each token from the whole text before it."""
    text = list(prompt)
    while len(text) < len(prompt) + n_tokens and EOS_ID not in text[len(prompt) :]:
        text.append(int(slow_logits(base, adapter, text)[-1].argmax()))
    return text[len(prompt) :]
