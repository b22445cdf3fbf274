"""Names of targets: hashes that are the same on every run and machine.

The lengths of the parts are hashed before them, so that different parts never give the same bytes.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

__all__ = ["from_document_id", "from_text", "target_id", "text_digest"]

_DIGEST_BYTES = 16
_HEAD = Struct("<QQQ")


def text_digest(text: str | None) -> bytes:
    """Return 16 bytes that stand for a text; None has its own, different from any text's."""
    content, kind = (b"", b"null") if text is None else (text.encode(), b"text")
    return blake2b(content, digest_size=_DIGEST_BYTES, person=kind).digest()


def from_document_id(document_id: str) -> bytes:
    """Return the identity of a document that has an identifier."""
    return b"document_id" + document_id.encode()


def from_text(digest: bytes, ordinal: int) -> bytes:
    """Return the identity of a document without one: the ``ordinal``-th, from 0, of its text."""
    return b"text" + digest + ordinal.to_bytes(8, "little")


def target_id(identity: bytes, window_index: int, target: str | None) -> str:
    """Return the name of a target, 32 hexadecimal digits.

    BLAKE2b of three little-endian unsigned 64-bit numbers (bytes of the identity, window index,
    bytes of the text plus 1, or 0 for None), the identity and the text.
    """
    content = b"" if target is None else target.encode()
    n_content = 0 if target is None else len(content) + 1
    head = _HEAD.pack(len(identity), window_index, n_content)
    return blake2b(head + identity + content, digest_size=_DIGEST_BYTES).hexdigest()
