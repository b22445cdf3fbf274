"""Decoders that an inverter starts from: tokenizers, contexts, and a small new one."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mia_batch.errors import SettingsError, describe_error
from mia_batch.extras.tune.base import max_text_tokens
from mia_batch.models.weights import check_model, quiet, tokenizer_source
from mia_batch.recipes import Recipe
from mia_batch.tables import system_errors, temporary_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_AROUND = 2  # tokens: the embedding before a text, and its end
# Sizes of a new decoder
_HIDDEN, _LAYERS, _HEADS = 192, 2, 4


def decoder_tokenizer(
    model: str, revision: str | None = None
) -> PreTrainedTokenizerBase:
    """Load a tokenizer that can end texts, of a decoder or of the embedder for a new one."""
    from transformers import AutoTokenizer

    source, revision = tokenizer_source(model, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source, revision=revision, trust_remote_code=False
        )
    except Exception as error:  # every library behind a tokenizer raises its own kind
        raise SettingsError(
            f"the tokenizer of {model!r} cannot be loaded ({describe_error(error)}); name a"
            " 'decoder'"
        ) from error
    if tokenizer.eos_token is None:
        tokenizer.eos_token = tokenizer.sep_token
    if tokenizer.eos_token is None:
        raise SettingsError(
            f"the tokenizer of {model!r} has no token that ends a text; name a"
            " 'decoder'"
        )
    return tokenizer


def check_context(decoder: str, recipe: Recipe) -> None:
    """Check that a decoder's context holds the longest text that is learnt."""
    from transformers import AutoConfig

    check_model(decoder)
    config = AutoConfig.from_pretrained(decoder, trust_remote_code=False)
    n_needed = recipe.max_tokens + _AROUND
    context = max_text_tokens(config, replace(recipe, max_tokens=n_needed))
    if context < n_needed:
        raise SettingsError(
            f"the decoder {decoder!r} has a context of {context:,} tokens, too short"
            f" for texts of {recipe.max_tokens:,}; take at most {context - _AROUND:,}"
            " as max_tokens"
        )


@quiet()
def write_new_decoder(
    folder: Path, tokenizer: PreTrainedTokenizerBase, tokens: int, seed: int
) -> None:
    """Write an untrained GPT-2 for texts of so many tokens, unless it is there."""
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
