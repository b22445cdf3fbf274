"""What a model is tuned to do: what it is given of a text, what it learns, and its loss.

* ``causal``: goes on with a text. Where the text has a target, such as a label, it stands at the
  end of the text after a few fixed words, as in PrivLM-Bench (Li et al. 2024, arXiv:2311.04044,
  section 4.2).
* ``classifier``: a head over an encoder says the target.
* ``infilling``: a masked model fills the target in after the same words.
* ``seq2seq``: an encoder reads the text, a decoder says the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch.nn.functional import cross_entropy

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedTokenizerBase

    from mia_batch.finetuning.recipe import Form

__all__ = ["Row", "encoder", "is_learnable", "logprobs", "losses", "model_class", "padded"]

Row = dict[str, list[int]]
"""``input_ids`` and ``labels`` of one text."""

_IGNORED = -100  # label of what is not learnt
_WORDS = " The label is"  # between a text and its target


def model_class(form: Form) -> Any:  # noqa: ANN401 - transformers is untyped
    """Return the class of transformers that opens models of a form."""
    names = {
        "causal": "AutoModelForCausalLM",
        "classifier": "AutoModelForSequenceClassification",
        "infilling": "AutoModelForMaskedLM",
        "seq2seq": "AutoModelForSeq2SeqLM",
    }
    return getattr(transformers, names[form])


def encoder(
    form: Form, tokenizer: PreTrainedTokenizerBase, most: int, labels: Sequence[str]
) -> Callable[[str, str | None], Row]:
    """Return what makes the row of a text and its target, of at most so many tokens."""

    def causal(text: str, target: str | None) -> Row:
        ids = list(tokenizer(text, truncation=False)["input_ids"])
        end = tokenizer.eos_token_id
        if end is not None and ids[-1:] == [end]:
            ids.pop()
        tail = [] if target is None else _plain(tokenizer, f"{_WORDS} {target}")
        tail += [] if end is None else [end]
        ids = (ids + tail)[:most] if target is None else ids[: max(1, most - len(tail))] + tail
        return {"input_ids": ids, "labels": [_IGNORED, *ids[1:]]}

    def classifier(text: str, target: str | None) -> Row:
        ids = tokenizer(text, truncation=True, max_length=most)["input_ids"]
        return {"input_ids": ids, "labels": [labels.index(str(target))]}

    def infilling(text: str, target: str | None) -> Row:
        mask = tokenizer.mask_token
        written = (_plain(tokenizer, label) for label in (f" {target}", str(target)))
        token = next((ids for ids in written if len(ids) == 1), None)
        if mask is None or token is None:
            msg = (
                f"the label {target!r} is several tokens; infilling needs labels of one token"
                if mask
                else "infilling needs a tokenizer that has a mask token"
            )
            raise SettingsError(msg)
        ids = tokenizer(text, f"{_WORDS} {mask}", truncation="only_first", max_length=most)[
            "input_ids"
        ]
        is_gap = [each == tokenizer.mask_token_id for each in ids]
        last = len(ids) - 1 - is_gap[::-1].index(True)
        return {
            "input_ids": ids,
            "labels": [token[0] if place == last else _IGNORED for place in range(len(ids))],
        }

    def seq2seq(text: str, target: str | None) -> Row:
        given, said = (tokenizer(each, truncation=True, max_length=most) for each in (text, target))
        return {"input_ids": given["input_ids"], "labels": said["input_ids"]}

    made = {"causal": causal, "classifier": classifier, "infilling": infilling, "seq2seq": seq2seq}
    return made[form]


def _plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def is_learnable(row: Row) -> bool:
    """Whether anything of a row is learnt."""
    return any(label != _IGNORED for label in row["labels"])


def padded(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Rows side by side; what stands after a row's end is neither seen nor learnt.

    Nor is the first token of a text that is gone on with: with virtual tokens before it, peft would
    predict it from them.
    """
    ids, labels = ([row[name] for row in rows] for name in ("input_ids", "labels"))
    return {
        "input_ids": _filled(ids, 0),
        "attention_mask": _filled([[1] * len(row) for row in ids], 0),
        "labels": _filled(labels, _IGNORED),
    }


def _filled(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows), default=1)
    filled = [row + [value] * (width - len(row)) for row in rows]
    return torch.tensor(filled, dtype=torch.long).reshape(len(rows), width)


def losses(form: Form, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood of what each row learns, in nats a token; shape (rows,)."""
    return -_means(logprobs(form, logits, labels))


def logprobs(form: Form, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probability of each label; NaN where nothing is learnt. Shape (rows, labels)."""
    # Not those of virtual tokens, which come first.
    logits = logits[:, None] if form == "classifier" else logits[:, -labels.shape[1] :]
    if form == "causal":
        logits, labels = logits[:, :-1], labels[:, 1:]
    found = -cross_entropy(
        logits.float().transpose(1, 2), labels, ignore_index=_IGNORED, reduction="none"
    )
    return found.masked_fill(labels == _IGNORED, torch.nan)


def _means(values: torch.Tensor) -> torch.Tensor:
    there = ~values.isnan()
    return values.where(there, 0).sum(1) / there.sum(1)
