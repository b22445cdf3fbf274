"""Decoders that are made from scratch where none is named: small, with a tokenizer at hand."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mia_batch.errors import SettingsError
from mia_batch.finetuning.base import longest_text
from mia_batch.models.causes import cause_of
from mia_batch.models.checkpoint import check_model
from mia_batch.models.quiet import quiet
from mia_batch.tables.files import temporary_path
from mia_batch.tables.system import system_errors

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase

    from mia_batch.finetuning.recipe import Recipe

__all__ = ["check_context", "decoder_tokenizer", "new_decoder"]

_AROUND = 2  # tokens: the embedding before a text, and its end
_HIDDEN, _LAYERS, _HEADS = 192, 2, 4


def decoder_tokenizer(model: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a decoder, or of the embedder that lends it; it can end a text."""
    from transformers import AutoTokenizer

    from mia_batch.models.adapter import tokenizer_source

    source, revision = tokenizer_source(model, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=False
        )
    except Exception as error:  # every library behind a tokenizer raises its own kind
        msg = f"the tokenizer of {model!r} cannot be loaded ({cause_of(error)}); name a 'decoder'"
        raise SettingsError(msg) from error
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.sep_token
    if tokenizer.eos_token is None:
        msg = f"the tokenizer of {model!r} has no token that ends a text; name a 'decoder'"
        raise SettingsError(msg)
    return tokenizer


def check_context(decoder: str, recipe: Recipe) -> None:
    """Raise `SettingsError` if a decoder's context is too short for what it is to say."""
    from transformers import AutoConfig

    check_model(decoder)
    config = AutoConfig.from_pretrained(decoder, trust_remote_code=False)
    wanted = recipe.max_tokens + _AROUND
    if (longest := longest_text(config, replace(recipe, max_tokens=wanted))) < wanted:
        msg = (
            f"the decoder {decoder!r} has a context of {longest:,} tokens, too short for texts of "
            f"{recipe.max_tokens:,}; take at most {longest - _AROUND:,} as max_tokens"
        )
        raise SettingsError(msg)


@quiet()
def new_decoder(folder: Path, tokenizer: PreTrainedTokenizerBase, tokens: int, seed: int) -> None:
    """Write an untrained GPT-2 for texts of so many tokens, unless it is there already.

    The same arguments make the same weights.
    """
    if folder.exists():
        return
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=tokens + _AROUND,
        n_embd=_HIDDEN,
        n_layer=_LAYERS,
        n_head=_HEADS,
        initializer_range=0.1,  # narrow layers learn slowly from the usual 0.02
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    unfinished = temporary_path(folder)
    with system_errors(folder):
        try:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                model: Any = GPT2LMHeadModel(config)
            model.save_pretrained(unfinished)
            tokenizer.save_pretrained(unfinished)
            unfinished.replace(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
