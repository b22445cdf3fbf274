"""A scoring engine of this machine: on this side of its pipe texts become token ids and strides."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from mia_batch.evidence.scorer import ScoreRequest
from mia_batch.evidence.scoring.source import TextScoreResult, TextScores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mia_batch.evidence.process import ScorerProcess
    from mia_batch.evidence.scorer import TokenScores
    from mia_batch.evidence.scoring.source import TextScoreRequest
    from mia_batch.models.tokens import Tokenizer

__all__ = ["LocalScorer"]

_NUMBERS = ("logprob", "mean", "variance", "rank", "kept_mass")
_TEXTS_IN_FLIGHT = 512  # enough to sort by length among


@dataclass(slots=True)
class _Open:
    """A text on its way: which engine requests its strides are, and what came of them."""

    request_id: int
    token_ids: list[int]
    bos: bool
    wanted: frozenset[str] | None
    starts: dict[int, tuple[int, int]] = field(default_factory=dict)
    done: dict[int, TokenScores] = field(default_factory=dict)
    error: str | None = None


class LocalScorer:
    """A started scoring engine and its model's tokenizer.

    Parameters
    ----------
    engine
        The engine, ready.
    tokenizer
        The model's tokenizer.
    strides
        Whether texts longer than the context are scored in pieces of the context's length, none of
        which sees another; else they are refused.
    """

    def __init__(self, engine: ScorerProcess, tokenizer: Tokenizer, *, strides: bool) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._strides = strides
        self._ids = count()
        self._open: dict[int, _Open] = {}
        self._refused: list[TextScoreResult] = []

    def has_room(self, *, requests: int) -> bool:
        """Keep the engine supplied with texts to sort by length."""
        return requests < _TEXTS_IN_FLIGHT

    def submit(self, request: TextScoreRequest) -> None:
        """Queue a request; returns at once."""
        special, context, text = self._tokenizer.encode_after(request.context, request.text)
        if request.context_tokens is not None:
            context = context[len(context) - min(len(context), request.context_tokens) :]
        if len(text) < (request.text_tokens or 0):
            reason = f"the text has {len(text)} tokens, fewer than the {request.text_tokens} wanted"
            self._refuse(request, reason, asked=False)
            return
        text = text[: request.text_tokens]
        before = special + context
        opened = _Open(request.request_id, text, bos=bool(special), wanted=request.wanted)
        room = self._engine.info.max_model_len - len(before)
        error = self._why_impossible(before, text, room, whole=not context and self._strides)
        if error is not None:
            self._refuse(request, error)
            return
        for start in range(0, len(text), room):
            piece = text[start : start + room]
            if len(before) + len(piece) > 1:
                self._send(opened, before, piece, start)

    def results(self, timeout: float | None = None) -> list[TextScoreResult]:
        """Wait for answers; see `TextScorer.results`."""
        complete, self._refused = self._refused, []
        while not complete:
            for result in self._engine.results(timeout):
                opened = self._open.pop(result.request_id)
                opened.error = opened.error or result.error
                if result.scores is not None:
                    opened.done[result.request_id] = result.scores
                else:
                    del opened.starts[result.request_id]
                if len(opened.done) == len(opened.starts):
                    complete.append(_result(opened))
            if timeout is not None:
                break
        return complete

    def _refuse(self, request: TextScoreRequest, error: str, *, asked: bool = True) -> None:
        refused = TextScoreResult(request_id=request.request_id, passes=0, error=error, asked=asked)
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
        if len(text) <= room:
            return None
        if whole and room > 0:
            return None
        return f"the text has {n_tokens} tokens with what precedes it, the context {limit}"

    def _send(self, opened: _Open, before: list[int], piece: list[int], start: int) -> None:
        first = max(len(before), 1)
        number = next(self._ids)
        opened.starts[number] = (start + first - len(before), start + len(piece))
        self._open[number] = opened
        self._engine.submit(
            ScoreRequest(
                request_id=number, token_ids=before + piece, first=first, wanted=opened.wanted
            )
        )


def _result(opened: _Open) -> TextScoreResult:
    """Put the strides of a text together."""
    passes = len(opened.starts)
    if opened.error is not None:
        return TextScoreResult(request_id=opened.request_id, passes=passes, error=opened.error)
    numbers: dict[str, Any] = {name: _whole(opened, name) for name in _NUMBERS}
    scores = TextScores(
        token_ids=np.array(opened.token_ids, np.uint32),
        bos=opened.bos,
        **numbers,
    )
    return TextScoreResult(request_id=opened.request_id, scores=scores, passes=passes)


def _whole(opened: _Open, name: str) -> NDArray[Any] | None:
    """One number per token of the text; NaN, or rank 0, where nothing precedes the token."""
    whole = None
    for number, (start, end) in opened.starts.items():
        piece = getattr(opened.done[number], name)
        if piece is None:
            return None
        if whole is None:
            unscored = 0 if name == "rank" else np.nan
            whole = np.full(len(opened.token_ids), unscored, piece.dtype)
        whole[start:end] = piece
    return whole
