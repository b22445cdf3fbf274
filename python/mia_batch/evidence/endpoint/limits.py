"""How many requests may be in flight, and how many requests or tokens a minute may have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Concurrency", "TokenBucket"]

_START = 8


class Concurrency:
    """A limit that finds what the endpoint can take.

    It grows by one with each answer until the endpoint first refuses, then by one with each round
    of answers; each round of refusals halves it.

    Parameters
    ----------
    most
        Limit of the limit, at least 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(most, _START))
        self._round = 0

    @property
    def limit(self) -> int:
        """Requests that may be in flight, at least 1."""
        return int(self._limit)

    @property
    def round(self) -> int:
        """Number of the halvings so far; a request remembers it from when it was sent."""
        return self._round

    def succeeded(self) -> None:
        """Note an answer."""
        step = 1.0 / self._limit if self._round else 1.0
        self._limit = min(float(self._most), self._limit + step)

    def refused(self, sent_in_round: int) -> None:
        """Note a status 429.

        Parameters
        ----------
        sent_in_round
            ``round`` when the request was sent. Requests that were in flight at the last halving
            say nothing of the new limit, so they do not halve it again.
        """
        if sent_in_round == self._round:
            self._limit = max(1.0, self._limit / 2.0)
            self._round += 1


class TokenBucket:
    """A bucket that refills evenly over the minute and never saves up for a burst.

    Whoever takes from it waits until everything taken before has been refilled. So the amounts
    taken within any 60 seconds, but for the last, stay below the limit; with an amount of 1 the
    last is within it as well.

    Parameters
    ----------
    per_minute
        The limit; above 0.
    clock
        Seconds that only grow.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._rate = per_minute / 60.0
        self._clock = clock
        self._free_at = clock()

    def take(self, amount: float) -> float:
        """Reserve an amount.

        Parameters
        ----------
        amount
            Requests or tokens.

        Returns
        -------
        float
            Seconds to wait before it may be used.
        """
        now = self._clock()
        start = max(now, self._free_at)
        self._free_at = start + amount / self._rate
        return start - now

    def give_back(self, amount: float) -> None:
        """Return what was reserved and not used.

        Parameters
        ----------
        amount
            Requests or tokens.
        """
        self._free_at -= amount / self._rate
