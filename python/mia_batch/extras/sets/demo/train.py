"""Trains the demo's models; torch is loaded only here."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.extras.sets.demo.making import DemoSettings
from mia_batch.models.weights import quiet

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import LlamaForCausalLM, PreTrainedModel

_BOS, _EOS, _MASK = "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"
_MASKED_SHARE = 0.15  # Devlin et al. 2019, section 3.1
_REPORTS = 6  # lines about the training, roughly


def make_models(
    corpus: pl.DataFrame, folder: Path, settings: DemoSettings, notify: Callable[[str], None]
) -> None:
    """Train the tokenizer on all texts, ``model`` on the members, two helpers on all texts.

    The helpers are ``reference``, a smaller model, and ``masked``, one that fills gaps. ``notify``
    receives a line per step.
    """
    import torch
    from transformers import BertConfig, BertForMaskedLM

    def teach(model: PreTrainedModel, texts: pl.DataFrame, epochs: int, what: str, to: str) -> None:
        rows = [tokenizer.encode(f"{text}{_EOS}").ids for text in texts["text"]]
        kind, _, head = type(model).__name__.partition("For")
        notify(
            f"training a {kind} of {model.num_parameters() / 1e6:.1f} million parameters on "
            f"{len(rows)} {what} ({sum(map(len, rows)):,} tokens), {epochs} times each"
        )
        mask = tokenizer.token_to_id(_MASK) if head == "MaskedLM" else None
        train(model, rows, settings, epochs, mask, notify)
        save(model, tokenizer, folder / to)

    with ExitStack() as usual:
        for each in (quiet(), warnings.catch_warnings(), torch.random.fork_rng(devices=[])):
            usual.enter_context(each)
        usual.callback(torch.set_num_threads, torch.get_num_threads())
        warnings.simplefilter("ignore")
        tokenizer = train_tokenizer(corpus["text"].sort(), settings.vocabulary)
        notify(f"trained a tokenizer of {tokenizer.get_vocab_size():,} tokens on all passages")
        model = new_model(tokenizer, settings, hidden=settings.hidden, layers=settings.layers)
        teach(model, corpus.filter("member"), settings.epochs, "members", "model")
        reference = new_model(tokenizer, settings, hidden=settings.helper_hidden, layers=1)
        teach(reference, corpus, settings.helper_epochs, "passages", "reference")
        tokenizer.add_special_tokens([_MASK])
        torch.manual_seed(settings.seed)
        config = BertConfig(**_sizes(tokenizer, settings, settings.helper_hidden, 1))
        masked = BertForMaskedLM(config)
        teach(masked, corpus, settings.helper_epochs, "passages", "masked")


def train_tokenizer(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE on members and non-members alike, so that it separates nothing.

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


def new_model(
    tokenizer: Tokenizer, settings: DemoSettings, *, hidden: int, layers: int
) -> LlamaForCausalLM:
    """Make an untrained model that goes on with texts."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(settings.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            **_sizes(tokenizer, settings, hidden, layers),
            tie_word_embeddings=True,
            initializer_range=0.1,  # narrow layers learn slowly from the usual 0.02
            bos_token_id=tokenizer.token_to_id(_BOS),
            eos_token_id=tokenizer.token_to_id(_EOS),
        )
    )


def _sizes(
    tokenizer: Tokenizer, settings: DemoSettings, hidden: int, layers: int
) -> dict[str, Any]:
    return {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // settings.head,
        "max_position_embeddings": settings.context,
    }


def train(
    model: PreTrainedModel,
    rows: list[list[int]],
    settings: DemoSettings,
    epochs: int,
    mask: int | None,
    notify: Callable[[str], None] = lambda _line: None,
) -> None:
    """Take one step per text and epoch, so that the model is the same however long it takes.

    Single texts need no padding, and many small steps memorise in fewer epochs. One thread adds up
    in one order, and other processes cannot slow it down by more than their share.
    """
    import torch
    from torch.nn.utils import clip_grad_norm_

    torch.set_num_threads(1)
    began = time.monotonic()
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.99), weight_decay=0.0, fused=True
    )
    steps, rate = epochs * len(rows), settings.learning_rate
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rate, total_steps=steps, pct_start=0.05, cycle_momentum=False
    )
    shuffle, gaps = Random(settings.seed).shuffle, Random(settings.seed)
    for epoch in range(1, epochs + 1):
        shuffle(rows)
        loss = 0.0
        for row in rows:
            tokens, labels = _gaps(row, mask, gaps) if mask else (row, row)
            ids, wanted = torch.tensor([[tokens, labels]]).unbind(1)
            of_row: Tensor = model(input_ids=ids, labels=wanted).loss
            optimizer.zero_grad()
            of_row.backward()  # type: ignore[no-untyped-call] # torch gives it no types
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            loss += of_row.item() / len(rows)
        if (epochs - epoch) % -(-epochs // _REPORTS) == 0:
            seconds = time.monotonic() - began
            notify(f"epoch {epoch} of {epochs}: loss {loss:.2f} ({seconds:.0f} s)")


def _gaps(row: list[int], mask: int, random: Random) -> tuple[list[int], list[int]]:
    """Replace some tokens with the mask; only these have labels."""
    hidden = [random.random() < _MASKED_SHARE for _ in row]
    if not any(hidden):
        hidden[random.randrange(len(row))] = True
    tokens = [mask if gap else token for token, gap in zip(row, hidden, strict=True)]
    return tokens, [token if gap else -100 for token, gap in zip(row, hidden, strict=True)]


def save(model: PreTrainedModel, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a checkpoint."""
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_BOS,
        eos_token=_EOS,
        mask_token=_MASK if tokenizer.token_to_id(_MASK) else None,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
