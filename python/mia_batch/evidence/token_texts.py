"""How programs write tokens and log-probabilities in their answers and files."""

from __future__ import annotations

import re

MINUS_INFINITY = -9999.0
"""What programs write for minus infinity."""
_BYTES = re.compile(r"bytes:((?:\\x[0-9a-f]{2})+)")
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def _build_byte_letters() -> dict[str, int]:
    """Return the byte of each letter in which GPT-2 and its like write the tokens of a vocabulary.

    Radford et al. (2019), ``bytes_to_unicode`` of the published encoder: bytes that
    print stand for themselves, the others for letters from U+0100 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return letters | {chr(256 + n): byte for n, byte in enumerate(unprintable)}


_BYTE_LETTERS = _build_byte_letters()


def join_tokens(tokens: list[str]) -> list[str]:
    """Return the texts that tokens can be, as programs write them: the plain one first.

    Tokens are written as the text that they stand for, as OpenAI writes parts of
    characters (``bytes:`` and their codes), as in a vocabulary of bytes (a space is
    ``Ġ``), or as in one of SentencePiece (a space is ``▁``).
    """
    joined = "".join(tokens)
    texts = [joined]
    if any(map(_BYTES.fullmatch, tokens)):
        texts += _decode(b"".join(map(read_bytes_token, tokens)))
    if not joined.isascii() and all(letter in _BYTE_LETTERS for letter in joined):
        texts += _decode(bytes(_BYTE_LETTERS[letter] for letter in joined))
    if "▁" in joined or any(map(_BYTE_PIECE.fullmatch, tokens)):
        spaced = _decode(b"".join(map(_read_piece, tokens)))
        texts += spaced
        # The space that stands before a text in its vocabulary alone
        texts += [text.removeprefix(" ") for text in spaced]
    return list(dict.fromkeys(texts))


def _decode(content: bytes) -> list[str]:
    try:
        return [content.decode()]
    except UnicodeDecodeError:
        return []


def read_bytes_token(token: str) -> bytes:
    """Return the bytes of a token that is a text, or ``bytes:`` and their codes."""
    match = _BYTES.fullmatch(token)
    if match is None:
        return token.encode(errors="replace")
    return bytes.fromhex(match[1].replace("\\x", ""))


def _read_piece(token: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(token)
    if match is None:
        return token.replace("▁", " ").encode(errors="replace")
    return bytes.fromhex(match[1])
