"""Answers that have begun to repeat themselves, found token by token."""

from collections.abc import Iterable

import numpy as np

_TIMES = 4  # that the same tokens stand one after the other
# That all of them have together, so that a refrain or a ruled line is no loop
_TOKENS = 32
_LONGEST_PATTERN = 128
_CHARACTERS_PER_TOKEN = 4


class LoopDetector:
    """Finds where a sequence has ended with the same few tokens again and again."""

    # For each length of a pattern it counts how many tokens in a row are the same as
    # those so many places before.

    def __init__(
        self,
        tokens: int = _TOKENS,
        longest_pattern: int = _LONGEST_PATTERN,
    ) -> None:
        lengths = np.arange(1, longest_pattern + 1)
        self._needed = np.maximum((_TIMES - 1) * lengths, tokens - lengths)
        self._matches = np.zeros(longest_pattern, np.int64)
        self._recent = np.full(longest_pattern, -1, np.int64)  # the newest first

    def add(self, token: int) -> bool:
        """Add the next token; True where the sequence is in a loop from here on."""
        self._matches += 1
        self._matches *= self._recent == token
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token
        is_loop = self._matches >= self._needed
        return bool(is_loop.any())

    def end(self, tokens: Iterable[int]) -> int | None:
        """Count the tokens up to the one by which it is in a loop; None where it is in none."""
        for n, token in enumerate(tokens, 1):
            if self.add(token):
                return n
        return None


def text_loop_end(text: str) -> int | None:
    """Count the characters likewise, where the tokens of a text are not known."""
    detector = LoopDetector(
        tokens=_CHARACTERS_PER_TOKEN * _TOKENS,
        longest_pattern=_CHARACTERS_PER_TOKEN * _LONGEST_PATTERN,
    )
    return detector.end(map(ord, text))
