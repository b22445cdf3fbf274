"""Which failures of a request are worth another try, and after what time.

The rules are those of OpenAI's own Python client, with longer waits and full jitter, as suits
batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from random import Random

__all__ = [
    "Next",
    "RefusedError",
    "UnusableError",
    "after_refusal",
    "backoff",
    "stated_wait",
]

_LONGEST_STATED_WAIT = 120.0  # seconds; for longer ones nobody should stand by
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0
_RETRIED = frozenset({408, 409, 429})
_EXHAUSTED = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "account_deactivated",
    }
)


class RefusedError(Exception):
    """A request has failed after all retries; the sentence is without the key.

    ``status`` is the HTTP status, None where no answer came or none that can be used. ``is_json``:
    the answer was JSON, so it is an API that gave it.
    """

    def __init__(self, status: int | None, sentence: str, *, is_json: bool = False) -> None:
        super().__init__(sentence)
        self.status = status
        self.is_json = is_json


class UnusableError(RefusedError):
    """Answers came, but none that can be used."""


@dataclass(frozen=True, slots=True)
class Next:
    """What to do after a failure.

    ``give_up``: this request has failed; ``exhausted``: the account is empty; ``later``: the
    endpoint asks for a longer wait than anyone should stand by for.
    """

    step: Literal["again", "give_up", "exhausted", "later"]
    wait: float | None = None  # seconds, as the endpoint asks of every request


def after_refusal(
    status: int,
    headers: Mapping[str, str],
    codes: frozenset[str],
    now: datetime,
    *,
    last: bool,
) -> Next:
    """Decide what follows an error status, as the ``last`` try allowed or not."""
    if status == 402 or codes & _EXHAUSTED:
        return Next("exhausted")
    if not _is_retried(status, headers) or last:
        return Next("give_up")
    wait = stated_wait(headers, now)
    return Next("again" if wait is None or wait <= _LONGEST_STATED_WAIT else "later", wait)


def backoff(attempt: int, rng: Random) -> float:
    """Seconds to wait where the endpoint names none: full jitter over a doubling span."""
    return rng.uniform(0.0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** min(attempt, 16)))


def stated_wait(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait, from ``retry-after-ms`` or ``retry-after`` (RFC 9110, section 10.2.3)."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000.0
    seconds = _number(headers.get("retry-after"))
    if seconds is not None:
        return seconds
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - now).total_seconds())


def _is_retried(status: int, headers: Mapping[str, str]) -> bool:
    """Follow ``x-should-retry`` where it is sent, else the status."""
    wished = headers.get("x-should-retry")
    if wished in {"true", "false"}:
        return wished == "true"
    return status in _RETRIED or status >= 500


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None
