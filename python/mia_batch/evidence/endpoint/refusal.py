"""What an endpoint says when it refuses, in one short phrase."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.endpoint.transport import Reply

__all__ = ["Refusal", "RefusedError", "decode_object", "read_refusal", "shorten"]

_LONGEST = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An answer with an error status.

    Attributes
    ----------
    status
        HTTP status.
    codes
        The error's ``code`` and ``type``, as far as they are there.
    sentence
        Status and the endpoint's own message, shortened, without the key.
    """

    status: int
    codes: frozenset[str]
    sentence: str


class RefusedError(Exception):
    """A request that the endpoint refuses, after all retries.

    Parameters
    ----------
    status
        HTTP status; null where no answer came at all.
    sentence
        What happened, without the key.
    """

    def __init__(self, status: int | None, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def read_refusal(reply: Reply, settings: EndpointSettings) -> Refusal:
    """Read an error answer in any of the usual shapes.

    Parameters
    ----------
    reply
        The answer.
    settings
        Knows the key, which is taken out.

    Returns
    -------
    Refusal
        What the endpoint says.
    """
    document = decode_object(reply.body) or {}
    error = document.get("error", document)
    if not isinstance(error, dict):
        error = {"message": error}
    codes = frozenset(str(error[name]) for name in ("code", "type") if error.get(name))
    message = error.get("message") or error.get("detail")
    if 300 <= reply.status < 400:
        message = f"a redirect to {reply.headers.get('location', 'nowhere')}"
    elif message is None:
        message = reply.body.decode(errors="replace")
    said = shorten(settings.redact(str(message))) or "no message"
    return Refusal(status=reply.status, codes=codes, sentence=f"status {reply.status}: {said}")


def decode_object(body: bytes) -> dict[str, object] | None:
    """Parse a JSON object.

    Parameters
    ----------
    body
        An answer's content.

    Returns
    -------
    dict or None
        Null where it is anything else.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def shorten(text: str) -> str:
    """Make one line of a foreign text, without mark-up and of bounded length.

    Parameters
    ----------
    text
        Any text.

    Returns
    -------
    str
        At most about 300 printable characters.
    """
    bare = re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text[:20_000], flags=re.S | re.I)
    line = " ".join("".join(c if c.isprintable() else " " for c in bare).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]} ..."
