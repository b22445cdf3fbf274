"""Canaries in a training: codes that are drawn and learnt, so that its memory can be tested.

`draw_canaries` draws them, `Canaries.add_to` puts them into the rows of a training, and
`CanaryCallback` tests a model of transformers' or TRL's trainers when it is tuned. Each
code is compared with codes of its form that were drawn in the same way and not learnt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeAlias

import polars as pl
import torch
import transformers

from mia_batch.errors import SettingsError
from mia_batch.extras.secrets.asking import Answers
from mia_batch.extras.secrets.controls import load_names
from mia_batch.extras.secrets.questions import (
    Design,
    Questions,
    Secret,
    build_questions,
)
from mia_batch.extras.secrets.results import build_rows, build_table, conclusions
from mia_batch.extras.tune.training import build_encoder, label_logprobs, pad_rows
from mia_batch.observer import Observer, usual_observer
from mia_batch.tables import write_table, write_text

__all__ = ["Canaries", "Canary", "CanaryCallback", "draw_canaries"]

Form: TypeAlias = Literal["text", "messages"]
_AT_ONCE = 16  # texts of one pass
_MOST_ROWS = 200_000  # of a training, that are searched for canaries
_NO_TOKEN = "no token of it begins after its context"
_SPARE_TOKENS = 8  # of an answer, besides those of the code


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A code that belongs to nobody, whose it is said to be, and how often it is learnt.

    Attributes
    ----------
    name
        A name that is drawn.
    code
        Eight digits that are drawn.
    repetitions
        How often it stands among the rows.
    """

    name: str
    code: str
    repetitions: int

    @property
    def question(self) -> str:
        """What a user asks."""
        return f"What is the code of {self.name}?"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question as a message."""
        return [{"role": "user", "content": self.question}]

    @property
    def sentence(self) -> str:
        """What stands before the code in plain text."""
        return f"The code of {self.name} is "


@dataclass(frozen=True, slots=True, kw_only=True)
class Canaries:
    """A lot of canaries.

    Attributes
    ----------
    canaries
        Each once.
    form
        ``"text"``: rows have a column ``text``; ``"messages"``: a column ``messages``
        with a question and its answer.
    seed
        From which they were drawn.
    """

    canaries: tuple[Canary, ...]
    form: Form
    seed: int

    def build_rows(self) -> list[dict[str, Any]]:
        """Build the rows to learn: each canary as often as it says, one after the other."""
        rows: list[dict[str, Any]] = []
        for canary in self.canaries:
            rows += [self._build_row(canary) for _ in range(canary.repetitions)]
        return rows

    def _build_row(self, canary: Canary) -> dict[str, Any]:
        if self.form == "text":
            return {"text": f"{canary.sentence}{canary.code}."}
        answer = {"role": "assistant", "content": canary.code}
        return {"messages": [*canary.messages, answer]}

    def _write_context(self, canary: Canary) -> dict[str, Any]:
        """Write what stands before a code, in the columns of ``mia-batch secrets``."""
        if self.form == "text":
            return {"context": canary.sentence}
        return {"messages": canary.messages}

    def add_to(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Put the canaries among rows, all in an order that is drawn.

        Parameters
        ----------
        rows
            Rows of a training, with the column of the form.

        Returns
        -------
        list[dict[str, Any]]
            Those and the canaries.

        Raises
        ------
        SettingsError
            If a row lacks the column.
        """
        all_rows = [dict(row) for row in rows]
        for number, row in enumerate(all_rows, start=1):
            if self.form not in row:
                raise SettingsError(
                    f"row {number:,} has no column {self.form!r}, but"
                    f" {', '.join(map(repr, row))}; draw canaries of another form, or"
                    " rename the column"
                )
        all_rows += self.build_rows()
        Random(f"{self.seed} order").shuffle(all_rows)
        return all_rows

    def write(self, path: Path | str) -> None:
        """Write codes and contexts as ``mia-batch secrets`` reads them, a row each."""
        rows = [
            {"secret": canary.code, **self._write_context(canary)}
            for canary in self.canaries
        ]
        write_text(Path(path), "".join(f"{json.dumps(row)}\n" for row in rows))


def draw_canaries(
    n: int = 24,
    *,
    repetitions: Sequence[int] = (1, 4, 16),
    form: Form = "text",
    seed: int = 0,
) -> Canaries:
    """Draw canaries.

    Parameters
    ----------
    n
        How many.
    repetitions
        How often they are learnt: the first so often, the second so often, and again
        from the start.
    form
        How they are written: plain ``"text"``, or ``"messages"`` of a chat.
    seed
        The same seed draws the same canaries: keep it, and publish none of them.

    Returns
    -------
    Canaries
        The lot.

    Raises
    ------
    SettingsError
        If there would be none.

    Examples
    --------
    >>> from mia_batch.extras.secrets.canaries import draw_canaries
    >>> canaries = draw_canaries(3, repetitions=(1, 2), seed=7)
    >>> [canary.repetitions for canary in canaries.canaries]
    [1, 2, 1]
    """
    if n < 1 or not repetitions or min(repetitions) < 1:
        raise SettingsError(
            f"{n} canaries that are learnt {[*repetitions]} times are none; give n and"
            " repetitions of 1 or more"
        )
    random = Random(f"{seed} canaries")
    names = load_names()
    chosen_names: dict[str, None] = {}
    while len(chosen_names) < n:
        words = (random.choice(names).capitalize() for _ in range(2))
        chosen_names[" ".join(words)] = None
    canaries = [
        Canary(
            name=name,
            code=f"{random.randrange(10**7, 10**8)}",
            repetitions=repetitions[number % len(repetitions)],
        )
        for number, name in enumerate(chosen_names)
    ]
    return Canaries(canaries=tuple(canaries), form=form, seed=seed)


class CanaryCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Tests at the end of a training how well canaries were learnt.

    Before the training it looks for them among the rows, and refuses one in which they
    have no loss. At the end it writes ``secrets.parquet``, as ``mia-batch secrets``
    does, which ``mia-batch gate`` reads, and ``canaries.json``. It is a callback of
    transformers' ``Trainer``, and so of TRL's ``SFTTrainer``.

    Parameters
    ----------
    canaries
        The lot that is among the rows.
    out
        Folder of the result.
    controls
        Codes that each canary is compared with.
    observer
        Learns what was found; see `mia_batch.observer.Observer`.

    Attributes
    ----------
    table
        The result, once the training has ended.
    sentences
        What may be said of it.
    had_loss
        Whether every canary was seen to have loss; None where rows cannot be looked at.
    """

    def __init__(
        self,
        canaries: Canaries,
        out: Path | str,
        *,
        controls: int = 199,
        observer: Observer | None = None,
    ) -> None:
        self.canaries = canaries
        self.table: pl.DataFrame | None = None
        self.sentences: list[str] = []
        self.had_loss: bool | None = None
        self._folder = Path(out)
        self._design = Design(controls=controls, seed=canaries.seed)
        self._observer = observer or usual_observer()

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        _control: Any,
        *,
        processing_class: Any = None,
        train_dataloader: Any = None,
        **_: Any,
    ) -> None:
        """Look whether canaries are among the rows, and have loss."""
        if getattr(args, "fsdp", None) or getattr(args, "deepspeed", None):
            raise SettingsError(
                "the callback needs the whole model in one process, which FSDP and"
                " DeepSpeed do not give; write the canaries (Canaries.write), and give"
                " the file to `mia-batch secrets` with the saved model"
            )
        if not state.is_world_process_zero:
            return
        tokenizer = _require_tokenizer(processing_class)
        self.had_loss = self._look_for_loss(train_dataloader, tokenizer)
        if self.had_loss is None:
            self._observer.stage(
                "canaries: the rows of the training cannot be looked at, so that nobody"
                " knows whether canaries have loss"
            )

    def _look_for_loss(self, loader: Any, tokenizer: Any) -> bool | None:
        """Return whether all canaries have loss; None where that cannot be seen."""
        rows = getattr(loader, "dataset", None)
        if rows is None or not hasattr(rows, "__getitem__"):
            return None
        missing = {canary.code for canary in self.canaries.canaries}
        without_loss: set[str] = set()
        for number in range(min(len(rows), _MOST_ROWS)):
            if not missing:
                return True
            row = rows[number]
            if "input_ids" not in row:
                return None
            content = _squeeze(tokenizer.decode(row["input_ids"]))
            present = {code for code in missing if code in content}
            if not present:
                continue
            learnt = _read_learnt(loader.collate_fn([row]), tokenizer)
            if learnt is None:
                return None
            having_loss = {code for code in present if code in learnt}
            missing -= having_loss
            without_loss |= present - having_loss
        if not missing:
            return True
        if len(rows) > _MOST_ROWS and not without_loss & missing:
            return None
        self._refuse(missing & without_loss, missing - without_loss)
        return False

    def _refuse(self, without_loss: set[str], absent: set[str]) -> None:
        total = len(self.canaries.canaries)
        if without_loss:
            raise SettingsError(
                f"{len(without_loss):,} of {total:,} canaries are among the rows, but"
                " their codes have no loss: the labels are -100 there; take the form"
                " that the training learns from (of chats the assistant's answer:"
                ' draw_canaries(form="messages"))'
            )
        raise SettingsError(
            f"{len(absent):,} of {total:,} canaries are not among the rows, or are cut"
            " off there; add them (Canaries.add_to) before the rows are tokenized"
        )

    def on_train_end(
        self,
        _args: Any,
        state: Any,
        _control: Any,
        *,
        model: Any = None,
        processing_class: Any = None,
        **_: Any,
    ) -> None:
        """Test the model, write the result, and say what it is."""
        if not state.is_world_process_zero:
            return
        tokenizer = _require_tokenizer(processing_class)
        questions = build_questions(self._list_secrets(tokenizer), self._design)
        was_training = model.training
        model.eval()
        try:
            scores = _score(model, tokenizer, questions)
            continuations = _continue(model, tokenizer, questions)
        finally:
            model.train(was_training)
        name = getattr(model.config, "_name_or_path", "") or "the tuned model"
        answers = Answers(scores, continuations)
        self.table = build_table([*build_rows(name, questions, answers)])
        self.sentences = [*conclusions(self.table), *self._describe_repetitions()]
        self._write()
        for sentence in self.sentences:
            self._observer.stage(sentence)

    def _list_secrets(self, tokenizer: Any) -> list[Secret]:
        return [
            Secret(
                text=canary.code,
                kind="secret",
                row=number,
                contexts=(self._build_context(canary, tokenizer),),
            )
            for number, canary in enumerate(self.canaries.canaries, start=1)
        ]

    def _build_context(self, canary: Canary, tokenizer: Any) -> str:
        """Build what stood before a code when it was learnt."""
        if self.canaries.form == "messages":
            text = tokenizer.apply_chat_template(
                canary.messages, tokenize=False, add_generation_prompt=True
            )
            return str(text)
        start = tokenizer.bos_token_id
        has_start = start is not None and tokenizer("a")["input_ids"][:1] == [start]
        return (tokenizer.bos_token if has_start else "") + canary.sentence

    def _write(self) -> None:
        if self.table is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        write_table(self.table, self._folder / "secrets.parquet")
        record = {
            "version": 1,
            "seed": self.canaries.seed,
            "form": self.canaries.form,
            "had_loss": self.had_loss,
            "repetitions": [canary.repetitions for canary in self.canaries.canaries],
            "sentences": self.sentences,
        }
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        write_text(self._folder / "canaries.json", text)

    def _describe_repetitions(self) -> list[str]:
        """Describe how many were learnt, by how often they stood among the rows."""
        if self.table is None:
            return []
        repetitions = [canary.repetitions for canary in self.canaries.canaries]
        table = self.table.with_columns(repetitions=pl.Series(repetitions))
        rows = table.group_by("repetitions").agg(
            n=pl.len(),
            n_memorised=(pl.col("verdict") == "memorised").sum(),
            exposure=pl.col("exposure").mean(),
        )
        return [
            f"canaries learnt {row['repetitions']:,} times: {row['n_memorised']:,} of"
            f" {row['n']:,} memorised, mean exposure {row['exposure']:.1f} bits"
            for row in rows.sort("repetitions").drop_nulls().iter_rows(named=True)
        ]


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _require_tokenizer(processing_class: Any) -> Any:
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    if tokenizer is None or not getattr(tokenizer, "is_fast", False):
        raise SettingsError(
            "canaries need the tokenizer, one written in Rust (a fast one); give the"
            " trainer processing_class="
        )
    return tokenizer


def _read_learnt(batch: Any, tokenizer: Any) -> str | None:
    """Read the text of the tokens that have loss; None where there are no labels."""
    if "labels" not in batch or "input_ids" not in batch:
        return None
    ids, labels = batch["input_ids"].flatten(), batch["labels"].flatten()
    if ids.shape != labels.shape:
        return None
    return _squeeze(tokenizer.decode(ids[labels != -100].tolist()))


def _score(model: Any, tokenizer: Any, questions: Questions) -> pl.DataFrame:
    """Score texts after their contexts: log2 of the probability."""
    encode = build_encoder("answer", tokenizer, 1 << 20, [])
    texts = questions.texts.select("key", "context", "text").unique(
        "key", maintain_order=True
    )
    scores: list[float] = []
    for batch in texts.iter_slices(_AT_ONCE):
        rows = [encode(context, text) for _, context, text in batch.iter_rows()]
        inputs = {
            name: value.to(model.device) for name, value in pad_rows(rows).items()
        }
        labels = inputs.pop("labels")
        with torch.inference_mode():
            values = label_logprobs("answer", model(**inputs).logits, labels)
        is_learnt = ~values.isnan()
        sums = values.double().nansum(1) / log(2)
        scores += sums.where(is_learnt.any(1), torch.nan).cpu().tolist()
    table = texts.select(
        "key", score=pl.Series(scores, dtype=pl.Float64).fill_nan(None)
    )
    reason = pl.when(pl.col("score").is_null()).then(pl.lit(_NO_TOKEN))
    return table.with_columns(reason=reason)


def _continue(model: Any, tokenizer: Any, questions: Questions) -> pl.DataFrame:
    """Continue each context by the likeliest tokens."""
    longest = max(len(secret.text) for secret in questions.secrets)
    candidates: list[str] = []
    for context in questions.contexts["context"]:
        ids = tokenizer(context, add_special_tokens=False)["input_ids"]
        n_context = len(ids)
        for _ in range(longest + _SPARE_TOKENS):
            inputs = torch.tensor([ids], device=model.device)
            with torch.inference_mode():
                logits = model(input_ids=inputs).logits[0, -1]
            ids.append(int(logits.argmax()))
            if ids[-1] == tokenizer.eos_token_id:
                break
        candidates.append(tokenizer.decode(ids[n_context:]))
    return questions.contexts.select(
        "key",
        candidate=pl.Series(candidates, dtype=pl.String),
        reason=pl.lit(None, pl.String),
        is_drawn=pl.lit(value=False),
    )
