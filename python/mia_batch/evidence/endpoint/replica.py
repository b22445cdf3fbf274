"""One address of an endpoint: its connections, its limits, and whether it may be asked now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mia_batch.evidence.endpoint.limits import Concurrency, TokenBucket
from mia_batch.evidence.endpoint.retry import rest
from mia_batch.evidence.endpoint.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mia_batch.evidence.endpoint.cost import Tokens
    from mia_batch.evidence.endpoint.settings import EndpointSettings

__all__ = ["Replica", "choose", "next_change"]


class Replica:
    """A server of the model; ``settings`` name its address alone, and its limits are its own."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.address = settings.base_url
        self.settings = settings
        self.transport = Transport(settings)
        self.concurrency = Concurrency(settings.max_concurrency)
        limits = (settings.requests_per_minute, settings.tokens_per_minute)
        self._requests, self._tokens = (TokenBucket(limit, time.monotonic) for limit in limits)
        self.in_flight = 0
        self.turn = 0  # number of the choice that last fell on it
        self.not_before = 0.0  # it asks to wait until then
        self.reached = False
        self.failures = 0  # since its last answer
        self.closed: str | None = None  # why the run would end if there were no other
        self.told = False  # whether it was said that it fails
        self._rests_until = 0.0

    def may_be_asked(self, now: float, *, others: bool) -> bool:
        """Whether it takes a request now; ``others``: whether there are some without failure.

        While there are, one that fails is left alone for a time, then asked one thing.
        """
        if now < self.not_before:
            return False
        if self.failures and (others or self.closed):
            return now >= self._rests_until and not self.in_flight
        return self.in_flight < self.concurrency.limit

    def changes_at(self) -> tuple[float, float]:
        """Give the times at which it may become one to ask."""
        return self.not_before, self._rests_until

    def take(self, most: Tokens) -> float:
        """Reserve a request; seconds to wait before it may be sent."""
        return max(self._requests.take(1), self._tokens.take(sum(most)))

    def give_back(self, tokens: int, *, requests: int = 0) -> None:
        """Return what was reserved and not used."""
        self._requests.give_back(requests)
        self._tokens.give_back(max(0, tokens))

    def succeeded(self) -> bool:
        """Note an answer; whether it was said before that it fails."""
        told, self.told = self.told, False
        self.failures, self.closed, self._rests_until = 0, None, 0.0
        self.concurrency.succeeded()
        return told

    def failed(self, now: float) -> None:
        """Note a failure; while it rests, it belongs to the one before."""
        if now >= self._rests_until:
            self.failures += 1
            self._rests_until = now + rest(self.failures)


def choose(replicas: Sequence[Replica], now: float) -> Replica | None:
    """Take the one with the fewest requests in flight, of several the one longest not chosen."""
    others = not all(replica.failures for replica in replicas)
    ready = (each for each in replicas if each.may_be_asked(now, others=others))
    chosen = min(ready, key=lambda each: (each.in_flight, each.turn), default=None)
    if chosen is not None:
        chosen.turn = 1 + max(replica.turn for replica in replicas)
        chosen.in_flight += 1
    return chosen


def next_change(replicas: Sequence[Replica], now: float) -> float | None:
    """Seconds until another may be asked though nothing ends; None where there is no such time."""
    times = [at for replica in replicas for at in replica.changes_at() if at > now]
    return min(times) - now if times else None
