"""Tiny checkpoints with tokenizers of their own, made on the spot."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from torch import Tensor

from tests.texts import king_james_chapters

CONTEXT = 256
TEXTS = king_james_chapters(6000, n=70)
BOS, EOS, MASK = "<s>", "</s>", "<mask>"
BOS_ID, EOS_ID = 0, 1

MARKS = ("<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template of ChatML's kind, which writes the start token, too."""

HOSTILE = {
    "do_sample": True,
    "temperature": 0.1,
    "top_k": 1,
    "top_p": 0.1,
    "repetition_penalty": 5.0,
    "max_new_tokens": 2,
    "min_new_tokens": 20,
}
"""A ``generation_config.json`` that would change every sample, were it followed."""


def byte_level_tokenizer(
    texts: Sequence[str] = TEXTS[:20], n_tokens: int = 600
) -> Tokenizer:
    """GPT-2's kind: bytes, no special treatment of a text's start."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, pre_tokenizers.ByteLevel.alphabet(), texts, n_tokens)


def metaspace_tokenizer() -> Tokenizer:
    """Sentencepiece's kind: a text's first word gets a space, and loses it when decoded."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return _trained(tokenizer, [], TEXTS[:20], 600)


def _trained(
    tokenizer: Tokenizer, alphabet: list[str], texts: Sequence[str], n_tokens: int
) -> Tokenizer:
    special = [AddedToken(BOS, special=True), AddedToken(EOS, special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    template: str = f"{BOS} $A",
    chat_template: str | None = None,
) -> None:
    """Write the files of a tokenizer that puts special tokens as ``template`` says."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(BOS, BOS_ID), (EOS, EOS_ID)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": CONTEXT,
    }
    if chat_template is not None:
        described["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


def save_masked_checkpoint(folder: Path) -> Path:
    """Write a random masked model of BERT's kind; context 32 tokens."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(MASK, lstrip=True, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}", special_tokens=[(BOS, BOS_ID), (EOS, EOS_ID)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, mask_token=MASK
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=34,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForMaskedLM(config).save_pretrained(folder)
    return folder


SMALLEST: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
"""Configuration of a model that is trained in a moment."""


def save_checkpoint(
    folder: Path,
    generation: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    chat_template: str | None = None,
    **changed: Any,
) -> Path:
    """Write a random Llama that ends one text in a few, and its ``generation_config.json``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_level_tokenizer()
    if chat_template is not None:
        marks = [AddedToken(mark, special=True) for mark in MARKS]
        tokenizer.add_special_tokens(marks)
    save_tokenizer(tokenizer, folder, chat_template=chat_template)
    usual: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": CONTEXT,
        # A wide spread: some tokens are far likelier than others
        "initializer_range": (0.3),
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
    config = LlamaConfig(vocab_size=tokenizer.get_vocab_size(), **usual | changed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[EOS_ID] *= 2.0  # so that it is often likely enough
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation or {}))
    return folder


def save_looping_checkpoint(folder: Path, context: int = 131_072) -> Path:
    """Write a Llama that says line end, space, line end, space, whatever it is asked."""
    from transformers import LlamaForCausalLM

    save_checkpoint(folder, max_position_embeddings=context)
    model = LlamaForCausalLM.from_pretrained(folder)
    vocabulary = byte_level_tokenizer().get_vocab()
    first, second = vocabulary["Ċ"], vocabulary["Ġ"]  # line end and space
    weights = model.state_dict()
    for name, values in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
            values.zero_()  # so that a token alone decides what follows
    embedded, head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    embedded.zero_()
    embedded[:, 0] = 1
    embedded[first] = embedded[first].roll(1)
    head[first, 0] = head[second, 1] = 10
    model.save_pretrained(folder)
    return folder


def change(
    folder: Path,
    changed: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    **described: Any,
) -> Path:
    """Change the tensors and the configuration of a checkpoint, or the tensors of an adapter."""
    from safetensors.torch import load_file, save_file

    file = next(folder.glob("*.safetensors"))
    tensors = {name: each.clone() for name, each in changed(load_file(file)).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    if described:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | described))
    return folder


def times(
    factor: float, *parts: str
) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """Multiply the first row of the tensors whose names have one of these parts."""

    def changed(own: dict[str, Tensor]) -> dict[str, Tensor]:
        for name, each in own.items():
            if any(part in name for part in parts):
                each[0] *= factor
        return own

    return changed
