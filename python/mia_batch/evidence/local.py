"""An engine of this machine as a source: on this side of its pipe texts become token ids."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.evidence.request import Answer, Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.evidence.process import EngineProcess
    from mia_batch.models.tokens import Tokenizer

__all__ = ["LocalSource"]

_TEXTS_IN_FLIGHT = {"logprobs": 512, "fills": 16}  # of the former enough to sort by length among


@dataclass(slots=True)
class _Open:
    """A request on its way: which engine requests its strides are, and what came of them."""

    request: Request
    prompt_ids: list[int] = field(default_factory=list)
    text_ids: list[int] = field(default_factory=list)
    bos: bool = False
    strides: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: dict[int, Answer] = field(default_factory=dict)
    error: str | None = None


class LocalSource:
    """A started engine and its model's tokenizer, which fills do without.

    With ``strides``, texts longer than the context are asked about in pieces of the context's
    length, none of which sees another; else they are refused.
    """

    def __init__(
        self, engine: EngineProcess, tokenizer: Tokenizer | None, *, strides: bool = False
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._strides = strides
        self._ids = count()
        self._open: dict[int, _Open] = {}
        self._refused: list[Answer] = []
        self._kind = "samples"

    def has_room(self, *, requests: int, samples: int) -> bool:
        """Keep twice as many sequences in flight as the engine decodes at once, or many texts."""
        if self._kind == "samples":
            return samples < 2 * self._engine.info.max_sequences
        return requests < _TEXTS_IN_FLIGHT[self._kind]

    def submit(self, request: Request) -> None:
        """Queue a request; returns at once."""
        self._kind = request.kind
        if request.kind == "logprobs":
            self._submit_text(request)
            return
        opened = _Open(request)
        sent = request
        if request.kind == "samples" and self._tokenizer is not None:
            opened.prompt_ids = (
                request.context_ids or (self._tokenizer.encode_prompts([request.context])[0])
            )
            sent = replace(request, context="", context_ids=opened.prompt_ids)
        self._send(opened, sent, (0, 0))

    def results(self, timeout: float | None = None) -> list[Answer]:
        """Wait for answers, decoded; see `Source.results`."""
        complete, self._refused = self._refused, []
        while not complete:
            for answer in self._engine.results(timeout):
                opened = self._open.pop(answer.request_id)
                if opened.request.kind == "logprobs":
                    complete += _strides_done(opened, answer)
                else:
                    complete.append(self._decoded(opened, answer))
            if timeout is not None:
                break
        return complete

    def restart(self) -> None:
        """Start the engine again, without the requests in flight."""
        self._engine.restart()
        self._open.clear()
        self._refused.clear()

    def _send(self, opened: _Open, request: Request, span: tuple[int, int]) -> None:
        number = next(self._ids)
        opened.strides[number] = span
        self._open[number] = opened
        self._engine.submit(replace(request, request_id=number))

    def _decoded(self, opened: _Open, answer: Answer) -> Answer:
        numbered = replace(answer, request_id=opened.request.request_id)
        if self._tokenizer is None or answer.error is not None or opened.request.kind == "fills":
            return numbered
        ids = [given.token_ids or [] for given in answer.continuations]
        prompt, texts = self._tokenizer.decode_candidates(opened.prompt_ids, ids)
        decoded = [
            replace(given, text=text, n_tokens=len(own))
            for given, text, own in zip(answer.continuations, texts, ids, strict=True)
        ]
        return replace(numbered, continuations=decoded, prompt=prompt)

    def _submit_text(self, request: Request) -> None:
        if self._tokenizer is None:
            self._refuse(request, "there is no tokenizer to cut the text into tokens")
            return
        special, context, text = self._tokenizer.encode_after(request.context, request.text)
        if request.context_tokens is not None:
            context = context[len(context) - min(len(context), request.context_tokens) :]
        if len(text) < (request.text_tokens or 0):
            reason = f"the text has {len(text)} tokens, fewer than the {request.text_tokens} wanted"
            self._refuse(request, reason, asked=False)
            return
        text = text[: request.text_tokens]
        before = special + context
        room = self._engine.info.max_model_len - len(before)
        error = request.why_no_answers(text) or self._why_impossible(
            before, text, room, whole=not context and self._strides
        )
        if error is not None:
            self._refuse(request, error)
            return
        opened = _Open(request, text_ids=text, bos=bool(special))
        for start in range(0, len(text), room):
            piece = text[start : start + room]
            if len(before) + len(piece) > 1:
                unscored = int(not before)  # nothing precedes the first token
                sent = Request(
                    request_id=0,
                    kind="logprobs",
                    context_ids=before or piece[:1],
                    text_ids=piece[unscored:],
                    columns=request.columns,
                    noise=request.noise,
                    question=request.question,
                    seed=request.seed + start,  # so that no two pieces have the same noise
                )
                self._send(opened, sent, (start + unscored, start + len(piece)))

    def _refuse(self, request: Request, error: str, *, asked: bool = True) -> None:
        refused = Answer(request_id=request.request_id, passes=0, error=error, asked=asked)
        self._refused.append(refused)

    def _why_impossible(
        self, before: list[int], text: list[int], room: int, *, whole: bool
    ) -> str | None:
        n_tokens = len(before) + len(text)
        limit = self._engine.info.max_model_len
        if not text:
            return "the text has no token"
        if n_tokens == 1:
            return "the text has one token, and nothing precedes it"
        if len(text) <= room or (whole and room > 0):
            return None
        return f"the text has {n_tokens} tokens with what precedes it, the context {limit}"


def _strides_done(opened: _Open, answer: Answer) -> list[Answer]:
    """Take in one stride; the whole answer once all are there."""
    opened.error = opened.error or answer.error
    opened.done[answer.request_id] = answer
    if len(opened.done) < len(opened.strides):
        return []
    number = opened.request.request_id
    passes = sum(each.error is None for each in opened.done.values())
    if opened.error is not None:
        return [Answer(request_id=number, passes=passes, error=opened.error)]
    tokens: dict[str, NDArray[Any]] = {"token_ids": np.array(opened.text_ids, np.uint32)}
    for name in next(iter(opened.done.values())).tokens or {}:
        tokens[name] = _whole(opened, name)
    return [Answer(request_id=number, tokens=tokens, bos=opened.bos, passes=passes)]


def _whole(opened: _Open, name: str) -> NDArray[Any]:
    """One number per token of the text; NaN, or rank 0, where nothing precedes the token."""
    pieces = {number: (answer.tokens or {})[name] for number, answer in opened.done.items()}
    dtype = next(iter(pieces.values())).dtype
    unscored = 0 if name == "rank" else np.nan
    whole = np.full(len(opened.text_ids), unscored, dtype)
    for number, (start, end) in opened.strides.items():
        whole[start:end] = pieces[number]
    return whole
