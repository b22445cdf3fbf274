"""Whatever gives the log-probabilities of a text's own tokens, as the collector sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["TextScoreRequest", "TextScoreResult", "TextScorer", "TextScores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScoreRequest:
    """Ask for the log-probabilities of one text's tokens.

    The model reads ``context + text`` as one text; only tokens that start within ``text`` count.

    Attributes
    ----------
    request_id
        Chosen by the caller; unique among requests in flight.
    key
        What is asked, the same in every run: ``<target_id>:<model_role>:<view>:<view_index>``.
    context
        What precedes the text; may be empty.
    text
        The text.
    context_tokens
        Keep only so many last tokens of the context; null = all.
    text_tokens
        Score only so many first tokens of the text, refused where it has fewer; null = all.
    wanted
        As in `ScoreRequest`.
    """

    request_id: int
    key: str
    context: str
    text: str
    context_tokens: int | None = None
    text_tokens: int | None = None
    wanted: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScores:
    """Numbers of one text's tokens; all arrays have one entry a token.

    Attributes
    ----------
    token_ids
        Uint32, the text's tokens, special tokens left out; null where the source has only texts.
    bos
        Whether a special token was put before the text.
    logprob
        Float32, natural log; NaN where nothing precedes the token.
    mean, variance
        Float32, of the log-probability over the vocabulary; null where not computed.
    rank
        Uint32, 1 = no token is likelier, 0 = unscored; null where not computed.
    kept_mass
        Float32, log of the mass that the run's decoding keeps, NaN where it leaves the token out;
        null where not computed.
    """

    token_ids: NDArray[np.uint32] | None
    bos: bool
    logprob: NDArray[np.float32]
    mean: NDArray[np.float32] | None = None
    variance: NDArray[np.float32] | None = None
    rank: NDArray[np.uint32] | None = None
    kept_mass: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScoreResult:
    """The answer to one request.

    Attributes
    ----------
    request_id
        The request's.
    scores
        The numbers; null where ``error`` is set.
    passes
        Forward passes that it took: several where a long text was cut into strides.
    error
        Why this one request failed; null where it did not.
    asked
        False where the text is not of the kind that was asked for, so that nothing failed.
    """

    request_id: int
    scores: TextScores | None = None
    passes: int = 1
    error: str | None = None
    asked: bool = True


class TextScorer(Protocol):
    """Answers requests in any order, many at once."""

    def has_room(self, *, requests: int) -> bool:
        """Whether more should be submitted while so many requests are in flight."""

    def submit(self, request: TextScoreRequest) -> None:
        """Queue a request; returns at once."""

    def results(self, timeout: float | None = None) -> list[TextScoreResult]:
        """Wait for answers.

        Parameters
        ----------
        timeout
            Seconds to wait for the first; null = as long as it takes.

        Returns
        -------
        list of TextScoreResult
            At least one, except where the time passed before.

        Raises
        ------
        EngineError
            If no request can be answered any more; what was finished before comes first.
        """
