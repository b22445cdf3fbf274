"""What a scorer promises, and the values that go in and out.

A scorer gives the log-probabilities of a text's own tokens. No engine library is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from mia_batch.evidence.engine import Model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ScoreRequest", "ScoreResult", "Scorer", "Scoring", "TokenScores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What a scorer computes of each token beside its log-probability.

    Attributes
    ----------
    moments
        Mean and variance of the log-probability over the vocabulary.
    rank
        The token's place among all tokens.
    kept_mass
        Probability mass of the tokens that the run's decoding can draw.
    head_bytes
        Most memory for the logits of one chunk of tokens and what is computed from them; a chunk
        has at least one token.
    """

    moments: bool = False
    rank: bool = False
    kept_mass: bool = False
    head_bytes: int = 128 << 20

    def only(self, wanted: frozenset[str] | None) -> Scoring:
        """Leave out what is not wanted.

        Parameters
        ----------
        wanted
            Names of the attributes to keep; null = all.

        Returns
        -------
        Scoring
            What is left.
        """
        if wanted is None:
            return self
        return replace(
            self,
            moments=self.moments and "moments" in wanted,
            rank=self.rank and "rank" in wanted,
            kept_mass=self.kept_mass and "kept_mass" in wanted,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """Ask for the log-probabilities of a text's own tokens.

    Attributes
    ----------
    request_id
        Chosen by the caller; unique among requests in flight.
    token_ids
        The text, special tokens included; at most the model's context.
    first
        Index of the first token to score, at least 1; those before it are context.
    wanted
        What of the engine's `Scoring` this text needs, by name; null = all.
    """

    request_id: int
    token_ids: list[int]
    first: int
    wanted: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenScores:
    """What a model says of tokens, each given all tokens before it.

    Natural logarithms over the model's whole vocabulary at temperature 1; every array has one entry
    per scored token.

    Attributes
    ----------
    logprob
        Log-probability of the token, at most 0.
    mean
        Mean of the log-probability over the vocabulary, ``sum(p * log(p))``: minus the entropy;
        null where not asked for.
    variance
        Its variance, ``sum(p * (log(p) - mean)**2)``; null where not asked for.
    rank
        1 + the number of tokens with a larger logit; null where not asked for.
    kept_mass
        Log of the probability mass that the run's decoding keeps, top-k and then top-p, NaN where
        it leaves the token out; null where not asked for.
    """

    logprob: NDArray[np.float32]
    mean: NDArray[np.float32] | None = None
    variance: NDArray[np.float32] | None = None
    rank: NDArray[np.uint32] | None = None
    kept_mass: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The answer to one request.

    Attributes
    ----------
    request_id
        The request's.
    scores
        Of ``token_ids[first:]``; null where ``error`` is set.
    error
        Why this one request failed; null where it did not.
    """

    request_id: int
    scores: TokenScores | None = None
    error: str | None = None


class Scorer(Model[ScoreRequest, ScoreResult], Protocol):
    """A model that scores texts, in any order, many at once.

    A text gets the same values, but for rounding, whatever else is in flight.
    """
