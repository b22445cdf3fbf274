"""The program that trains the demo's model, in a process of its own: only here torch is loaded.

It is started by :mod:`mia_batch.demo.process`, tells its progress in lines on the standard output,
and ends when its standard input does, so that it never outlives the one who started it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from threading import Thread
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tokenizers import Tokenizer
    from torch import Tensor
    from torch.optim import Optimizer
    from transformers import LlamaForCausalLM

    from mia_batch.demo.settings import DemoSettings

__all__ = ["main"]

_BOS, _EOS = "<|begin_of_text|>", "<|end_of_text|>"
_REPORTS = 6  # lines about the training, roughly


def main(folder: Path, settings: DemoSettings) -> None:
    """Train the tokenizer on all texts and the model on the members.

    Parameters
    ----------
    folder
        Holds ``corpus.parquet``; the checkpoint becomes ``model`` in it.
    settings
        Sizes and seed.
    """
    Thread(target=_end_with_parent, daemon=True).start()
    corpus = pl.read_parquet(folder / "corpus.parquet")
    tokenizer = _train_tokenizer(corpus["text"].sort(), settings.vocabulary)
    _tell(f"trained a tokenizer of {tokenizer.get_vocab_size():,} tokens on all passages")
    members = corpus.filter("member")["text"].to_list()
    rows = [tokenizer.encode(f"{text}{_EOS}").ids for text in members]
    model = _new_model(tokenizer, settings)
    _tell(
        f"training a Llama of {model.num_parameters() / 1e6:.1f} million parameters on "
        f"{len(rows)} members ({sum(map(len, rows)):,} tokens), {settings.epochs} times each"
    )
    _train(model, rows, settings)
    _save(model, tokenizer, folder / "model")


def _train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE on members and non-members alike, so that it tells nothing of them.

    Encoding puts the beginning-of-text token before a text by itself.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_BOS, _EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BOS} $A", special_tokens=[(_BOS, tokenizer.token_to_id(_BOS))]
    )
    return tokenizer


def _new_model(tokenizer: Tokenizer, settings: DemoSettings) -> LlamaForCausalLM:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(settings.seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=settings.hidden,
        intermediate_size=3 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.hidden // settings.head,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        initializer_range=0.1,  # narrow layers learn slowly from the usual 0.02
        bos_token_id=tokenizer.token_to_id(_BOS),
        eos_token_id=tokenizer.token_to_id(_EOS),
    )
    return LlamaForCausalLM(config)


def _train(model: LlamaForCausalLM, rows: list[list[int]], settings: DemoSettings) -> None:
    """Take one step per member and epoch, so that the model is the same however long it takes.

    Single members need no padding, and many small steps learn by heart in fewer epochs. One thread
    adds up in one order, and other processes cannot slow it down by more than their share.
    """
    import torch

    torch.set_num_threads(1)
    began = time.monotonic()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.99), weight_decay=0.0, fused=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=settings.learning_rate,
        total_steps=settings.epochs * len(rows),
        pct_start=0.05,
        cycle_momentum=False,
    )
    shuffle = random.Random(settings.seed).shuffle
    for epoch in range(1, settings.epochs + 1):
        shuffle(rows)
        loss = 0.0
        for row in rows:
            loss += _step(model, optimizer, torch.tensor([row])) / len(rows)
            schedule.step()
        if (settings.epochs - epoch) % -(-settings.epochs // _REPORTS) == 0:
            seconds = time.monotonic() - began
            _tell(f"epoch {epoch} of {settings.epochs}: loss {loss:.2f} ({seconds:.0f} s)")


def _step(model: LlamaForCausalLM, optimizer: Optimizer, tokens: Tensor) -> float:
    from torch.nn.utils import clip_grad_norm_

    loss: Tensor = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def _save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BOS,
        eos_token=_EOS,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)
