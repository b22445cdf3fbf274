"""Tiny bases of three kinds for fine-tuning: decoders, an encoder, an encoder-decoder."""

from pathlib import Path

from tests.checkpoints import BOS, EOS, MASK

PAD = "<pad>"


def save_bases(folder: Path, *, hidden: int = 32) -> dict[str, Path]:
    """Write untrained models that share a tokenizer, each with room for 128 tokens."""
    import torch
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        T5Config,
        T5ForConditionalGeneration,
    )

    from tests.checkpoints import byte_level_tokenizer

    trained = byte_level_tokenizer()
    trained.add_special_tokens([MASK, PAD])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained,
        bos_token=BOS,
        eos_token=EOS,
        mask_token=MASK,
        pad_token=PAD,
    )
    size, pad = len(tokenizer), tokenizer.pad_token_id
    shared = {
        "vocab_size": size,
        "pad_token_id": pad,
        "eos_token_id": tokenizer.eos_token_id,
    }
    usual = {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.1,
    }
    torch.manual_seed(0)
    models = {
        "llama": LlamaForCausalLM(
            LlamaConfig(**shared, **usual, tie_word_embeddings=True)
        ),
        "gpt2": GPT2LMHeadModel(
            GPT2Config(**shared, n_embd=hidden, n_layer=2, n_head=2, n_positions=128)
        ),
        "bert": BertForMaskedLM(BertConfig(**shared, **usual)),
        "t5": T5ForConditionalGeneration(
            T5Config(
                **shared,
                d_model=hidden,
                d_kv=hidden // 2,
                d_ff=2 * hidden,
                num_layers=2,
                num_heads=2,
                decoder_start_token_id=pad,
            )
        ),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in models}
