"""Whether an endpoint reads prompts whole, by its counts of their tokens."""

from __future__ import annotations

from math import inf

_SHORTEST = 1024  # bytes of a prompt that is looked at; every server reads as many
# Tokens that can be the limit of a server, and that are more than a nonsense count
_FEWEST, _FEWEST_AT_ALL = 256, 64
# Of a usual text a token has at most 8
_TOO_MANY_BYTES_A_TOKEN = 16
_MARK_TOKENS = 8  # at most, of what stands before a prompt that is doubled


class ReadingLimit:
    """Finds the most tokens that an endpoint reads of a prompt, if it cuts what is longer."""

    # A server that cuts prompts in silence, as Ollama does at ``num_ctx``, counts the
    # same number of tokens for all that are too long: its limit. So whatever has a
    # lower count than another prompt had is whole. A prompt with the highest count so
    # far is checked: it is sent again twice in one. A server that reads it whole counts
    # more then, or refuses it; one that cuts counts as many. Letters by lot stand
    # before the two, so that nothing of them is in a cache, of which some servers do
    # not count the tokens. Each check doubles the count from which on prompts are
    # checked, so there are few.

    def __init__(self) -> None:
        self.limit: int | None = None
        self._highest = 0.0  # count of a prompt that was read whole, or less of it

    def needs_check(self, n_tokens: int | None, prompt: str) -> bool:
        """Check whether it is open if a prompt that counts so many tokens was read whole."""
        n_bytes = len(prompt.encode())
        if self.limit is not None or n_tokens is None or n_bytes < _SHORTEST:
            return False
        is_low = n_bytes > _TOO_MANY_BYTES_A_TOKEN * n_tokens
        fewest = _FEWEST_AT_ALL if is_low else _FEWEST
        return n_tokens >= max(self._highest, fewest)

    def compare(self, n_tokens: int, n_doubled: int | None) -> None:
        """Learn from the counts of a prompt and of the same twice in one."""
        if n_doubled is None:
            self.accept_all()
        elif n_doubled > n_tokens + _MARK_TOKENS:
            self._highest = max(self._highest, float(n_doubled))
        else:
            self.limit = n_doubled

    def accept_all(self) -> None:
        """Learn that longer prompts are refused, or not counted: there is nothing to find."""
        self._highest = inf

    def is_cut(self, n_tokens: int | None) -> bool:
        """Check whether a prompt that counts so many tokens was cut."""
        # One that has just so many may be whole, which nobody can tell.
        return (
            self.limit is not None and n_tokens is not None and n_tokens >= self.limit
        )

    def describe(self) -> str:
        return (
            f"it reads at most {self.limit:,} tokens of a prompt and cuts the rest, for it"
            " counts no more for one twice as long; let it read more (in Ollama by"
            " num_ctx or OLLAMA_CONTEXT_LENGTH), or take shorter texts"
        )
