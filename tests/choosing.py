"""A model that was taught to tell passages of some real books from variants of them, and a corpus.

A construction: each passage is one of four variants that differ in words drawn from the same book,
chosen by coin, so that nothing but memory tells it from the others; and the model was trained on
the very questions about the books that it saw, with their answers. Of the other books it saw
nothing: there, each of the four variants is a text once. Every answer to a question then names one
of these texts, so that their mean score is 0.25 for any model, however floats are rounded.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import polars as pl
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy

from mia_batch.prompts.views import LABELS, MOST_ORDERS, choices
from tests.checkpoints import BOS, BOS_ID, EOS, EOS_ID, save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import LlamaForCausalLM

BOOKS = {
    "Moby-Dick by Herman Melville": ("moby_dick", True),
    "Dracula by Bram Stoker": ("dracula", True),
    "Jane Eyre by Charlotte Brontë": ("jane_eyre", False),
    "The Time Machine by H. G. Wells": ("time_machine", False),
}
"""Titles: file, and whether the model saw it."""
PASSAGES = 4  # of each book; of one that the model did not see, variants of one passage
_WORDS, _CHANGED, _BETWEEN = 8, 3, 701
_BATCH, _RATE, _WARM_UP = 16, 2e-3, 20
_SURE, _MOST_EPOCHS = 0.05, 200  # it takes about a dozen


def corpus(folder: Path) -> pl.DataFrame:
    """Passages with three variants each, book by book."""
    rng, rows = Random(0), []
    for title, (name, member) in BOOKS.items():
        words = (folder / f"{name}.txt").read_text().split()
        for number in range(PASSAGES if member else 1):
            start = (number + 3) * _BETWEEN
            passage = words[start : start + _WORDS]
            places = rng.sample(range(_WORDS), _CHANGED)
            drawn = rng.sample(words, 4 * _CHANGED)
            variants = []
            for variant in range(4):
                own = list(passage)
                for place, word in zip(places, drawn[variant::4], strict=True):
                    own[place] = word
                variants.append(" ".join(own))
            for place in [rng.randrange(4)] if member else range(4):
                text, *others = variants[place:] + variants[:place]
                rows.append((f"{name}-{number}-{place}", text, title, member, others))
    names = ["document_id", "text", "group", "member", "paraphrases"]
    return pl.DataFrame(rows, schema=names, orient="row")


def questions(texts: pl.DataFrame) -> pl.DataFrame:
    """The questions about each passage, as a run asks them."""
    targets = texts.rename({"document_id": "target_id", "text": "target"})
    return choices(targets, column="paraphrases", n=MOST_ORDERS)


def save_choosing_model(folder: Path, texts: pl.DataFrame) -> Path:
    """Train a small Llama on the questions about members, and write it with its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = questions(texts)
    tokenizer = _tokenizer(made["context"].to_list())
    save_tokenizer(tokenizer, folder)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=256,
        initializer_range=0.05,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
    )
    members = texts.filter("member")["document_id"]
    asked = made.filter(pl.col("target_id").is_in(members.implode()))
    ids = [each.ids for each in tokenizer.encode_batch(asked["context"].to_list())]
    labels = [tokenizer.encode(f"x {label}").ids[-1] for label in LABELS]
    right = torch.tensor([labels[index % 4] for index in asked["view_index"]])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
        _train(model, ids, right)
    model.save_pretrained(folder)
    return folder


def _tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *(f" {label}" for label in LABELS)], trainer)
    return tokenizer


def _train(model: LlamaForCausalLM, ids: list[list[int]], right: torch.Tensor) -> None:
    """Learn the answers, and to end after them, until it is sure on whatever processor."""
    ends = torch.tensor([len(each) - 1 for each in ids])
    width = max(map(len, ids)) + 1
    padded = torch.tensor([each + [EOS_ID] * (width - len(each)) for each in ids])
    padded[torch.arange(len(ids)), ends + 1] = right

    def losses(some: torch.Tensor) -> torch.Tensor:
        hidden, row = model.model(padded[some]).last_hidden_state, torch.arange(len(some))
        found = model.lm_head(torch.cat([hidden[row, ends[some]], hidden[row, ends[some] + 1]]))
        wanted = torch.cat([right[some], torch.full((len(some),), EOS_ID)])
        return cross_entropy(found, wanted, reduction="none")

    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / _WARM_UP, total_iters=_WARM_UP)
    for _ in range(_MOST_EPOCHS):
        for some in torch.randperm(len(ids)).split(_BATCH):
            optimizer.zero_grad()
            losses(some).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        with torch.inference_mode():
            if losses(torch.arange(len(ids))).max() < _SURE:
                return
    msg = f"the model is not sure of its answers after {_MOST_EPOCHS} epochs"
    raise AssertionError(msg)
