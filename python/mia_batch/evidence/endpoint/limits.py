"""How many requests may be in flight, and how many requests or tokens a minute may have."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Concurrency", "TokenBucket"]

_START = 8


class Concurrency:
    """A limit, from 1 to ``most``, that finds what the endpoint can take.

    It grows by one with each answer until the endpoint first refuses, then by one with each round
    of answers; each round of refusals halves it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(most, _START))
        self.round = 0  # halvings so far; a request remembers it from when it was sent

    @property
    def limit(self) -> int:
        """Requests that may be in flight."""
        return int(self._limit)

    def succeeded(self) -> None:
        """Note an answer."""
        step = 1.0 / self._limit if self.round else 1.0
        self._limit = min(float(self._most), self._limit + step)

    def refused(self, sent_in_round: int) -> None:
        """Note a status 429; requests in flight at the last halving do not halve it again."""
        if sent_in_round == self.round:
            self._limit = max(1.0, self._limit / 2.0)
            self.round += 1


class TokenBucket:
    """A bucket that refills evenly over the minute and never saves up for a burst.

    Whoever takes from it waits until everything taken before has been refilled. So the amounts
    taken within any 60 seconds, but for the last, stay below the limit; with an amount of 1 the
    last is within it as well. ``clock`` gives seconds that only grow.
    """

    def __init__(self, per_minute: float | None, clock: Callable[[], float]) -> None:
        self._rate = inf if per_minute is None else per_minute / 60.0
        self._clock = clock
        self._free_at = clock()

    def take(self, amount: float) -> float:
        """Reserve requests or tokens; seconds to wait before they may be used."""
        now = self._clock()
        start = max(now, self._free_at)
        self._free_at = start + amount / self._rate
        return start - now

    def give_back(self, amount: float) -> None:
        """Return what was reserved and not used."""
        self._free_at -= amount / self._rate
