"""Text to token ids and back, exactly as a model's tokenizer does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, takewhile
from operator import eq
from typing import TYPE_CHECKING, Self

from mia_batch.models.chat import ChatTemplate
from mia_batch.models.formats import Codec, find_format, stamp_files
from mia_batch.models.weights import Measure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CUT = "\N{REPLACEMENT CHARACTER}"
"""What the first bytes of a character decode to where the rest of them is missing."""

_MOST_OPEN = 2  # tokenizers: those of the target and of the reference
_SHORT = 1024  # tokens of a text whose beginnings are all encoded at once
_TOKENS_AT_ONCE = 32


def split_specials(ids: list[int], bare_ids: list[int]) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text, whose own are ``bare_ids``."""
    # All are taken to stand before where a text is cut in another way between them than
    # without.
    n_bare = len(bare_ids)
    n_special = len(ids) - n_bare
    starts = (i for i in range(n_special + 1) if ids[i : i + n_bare] == bare_ids)
    start = next(starts, n_special)
    return ids[:start], ids[start + n_bare :]


@lru_cache(maxsize=_MOST_OPEN)
def _load_codec(
    model: str,
    revision: str | None,
    setting: str,
    stamps: tuple[object, ...],  # noqa: ARG001 - other files are another model
) -> Codec:
    """Open a tokenizer once: a large vocabulary takes a minute."""
    return find_format(model).load_codec(model, revision, setting)


class Tokenizer:
    """The tokenizer of a model."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.digest = codec.digest
        self.end = codec.end
        ids, bare_ids = (
            codec.encode(["a"], add_special_tokens=wanted)[0]
            for wanted in (True, False)
        )
        self._prepended, appended = split_specials(ids, bare_ids)
        self._n_appended = len(appended)
        self._has_own_start = True
        self._reads_conversations = False

    @classmethod
    def load(
        cls,
        model: str,
        revision: str | None = None,
        *,
        setting: str = "model",
    ) -> Self:
        """Load a model's tokenizer; a `SettingsError` names the ``setting`` of the model."""
        return cls(_load_codec(model, revision, setting, stamp_files(model)))

    def find_starts(self) -> tuple[list[int], list[int]] | None:
        """Return the special tokens before a text: as they are, and with the start toggled.

        None where the tokenizer has no start token, or a chat template writes it.
        """
        start = self._codec.start
        if start is None or self._reads_conversations:
            return None
        without_start = [token for token in self._prepended if token != start]
        if start in self._prepended:
            return self._prepended, without_start
        return self._prepended, [start, *without_start]

    @property
    def chat_template(self) -> ChatTemplate | None:
        """How the model writes conversations; None where nobody has said it."""
        return self._codec.chat_template

    def read_conversations(self) -> None:
        """Read from now on what a chat template writes, with all the special tokens it needs."""
        self._codec = self._codec.reading_marks()
        self._prepended = []
        self._reads_conversations = True

    def toggle_start(self) -> None:
        """Put the start token before texts from now on; leave it out where it was put."""
        starts = self.find_starts()
        if starts is not None and self._has_own_start:
            self._prepended = starts[1]
            self._has_own_start = False

    @property
    def is_start_toggled(self) -> bool:
        return not self._has_own_start

    @property
    def start_token(self) -> str:
        return self._codec.start_text

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of prompts, with the special tokens before a text."""
        # Tokens that the tokenizer puts after a text (an end-of-text token) are left
        # out, because the model shall go on.
        longer_texts: dict[str, str] = {}  # of a text, the longest that goes on from it
        longer = ""
        # What begins a text comes behind it
        for text in sorted({*texts}, reverse=True):
            if _ends_word(text, longer):
                longer_texts[text] = longer
            else:
                longer = text
        prompts = self._encode_whole(set(texts).difference(longer_texts))
        cuts = {
            longer: self._cuts(longer, prompts[longer])
            for longer in {*longer_texts.values()}
        }
        for text, longer in longer_texts.items():
            n_tokens = cuts[longer].get(len(text.encode()))
            if n_tokens:
                prompts[text] = prompts[longer][:n_tokens]
        prompts |= self._encode_whole(longer_texts.keys() - prompts.keys())
        return [prompts[text] for text in texts]

    def _encode_whole(self, texts: Collection[str]) -> dict[str, list[int]]:
        bare = self._reads_conversations or not self._has_own_start
        encoded = self._codec.encode([*texts], add_special_tokens=not bare)
        if bare:
            prompts = [[*self._prepended, *ids] for ids in encoded]
        else:
            prompts = [ids[: len(ids) - self._n_appended] for ids in encoded]
        return dict(zip(texts, prompts, strict=True))

    def _cuts(
        self,
        text: str,
        ids: list[int],
    ) -> dict[int, int]:
        """Count the tokens up to each byte where one ends; none if they are not the text."""
        pieces = [self._bytes[token] for token in ids] if self._bytes else []
        if b"".join(pieces) != text.encode():
            return {}
        ends = accumulate(map(len, pieces))
        return {end: n_tokens for n_tokens, end in enumerate(ends, start=1)}

    def encode_after(
        self,
        context: str,
        text: str,
    ) -> tuple[list[int], list[int], list[int]]:
        """Return special tokens, and the ids of a context and of the text that follows."""
        # Both texts are cut as one: a token that reaches from one into the other is the
        # context's. Tokenizers written in Python cannot tell, and cut them one by one.
        if not context or not self._codec.finds_spans:
            context_ids, text_ids = self.encode([context, text])
            return self._prepended, context_ids, text_ids
        ids, spans = self._codec.encode_spans(context + text)
        starts = (i for i, (start, _) in enumerate(spans) if start >= len(context))
        n_context = next(starts, len(ids))
        return self._prepended, ids[:n_context], ids[n_context:]

    def keep_last(
        self,
        text: str,
        n_tokens: int,
    ) -> str:
        """Cut a text to its last tokens, at most ``n_tokens``."""
        if not self._codec.finds_spans:
            ids = self.encode([text])[0]
            return self._codec.decode([ids[-n_tokens:]])[0]
        _, spans = self._codec.encode_spans(text)
        return text[spans[-n_tokens][0] :] if len(spans) > n_tokens else text

    def keep_first(
        self,
        text: str,
        n_tokens: int,
    ) -> str:
        """Cut a text to its first tokens, at most ``n_tokens``."""
        if not self._codec.finds_spans:
            ids = self.encode([text])[0]
            return self._codec.decode([ids[:n_tokens]])[0]
        _, spans = self._codec.encode_spans(text)
        return text[: max((end for _, end in spans[:n_tokens]), default=0)]

    def find_token_ends(self, text: str) -> Callable[[int], bool]:
        """Return a function that checks that a place, in characters, is between tokens.

        It is where the tokens of the text up to there begin the tokens of the whole. Of
        tokenizers written in Python nobody knows: any place does.
        """
        if not self._codec.finds_spans:
            return lambda _: True
        ids, spans = self._codec.encode_spans(text)
        n_before = {end: n for n, (_, end) in enumerate(spans, start=1)}

        def is_between(place: int) -> bool:
            n = n_before.get(place)
            return n is not None and self.encode([text[:place]])[0] == ids[:n]

        return is_between

    def find_token_spans(
        self,
        text: str,
        first: int,
        order: Callable[[int], NDArray[np.int64]],
    ) -> Iterator[tuple[int, int]]:
        """Iterate over where tokens from ``first`` on begin and end, in characters."""
        # ``order`` orders so many. Only those up to which, and with which, the text
        # alone is cut as the whole is. Of tokenizers written in Python nobody knows.
        if not self._codec.finds_spans:
            return
        ids, spans = self._codec.encode_spans(text)
        ends = [0, *(end for _, end in spans)]
        tokens = (first + order(max(len(ids) - first, 0))).tolist()
        n_at_once = len(tokens) if len(ids) <= _SHORT else _TOKENS_AT_ONCE
        for start in range(0, len(tokens), max(n_at_once, 1)):
            batch = tokens[start : start + n_at_once]
            lengths = sorted({*batch, *(token + 1 for token in batch)})
            heads = self.encode([text[: ends[length]] for length in lengths])
            same_lengths = {
                length
                for length, head in zip(lengths, heads, strict=True)
                if head == ids[:length]
            }
            for token in batch:
                is_same = {token, token + 1} <= same_lengths
                if is_same and ends[token] < ends[token + 1]:
                    yield ends[token], ends[token + 1]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.encode(texts)]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return self._codec.encode(texts, add_special_tokens=False)

    @property
    def vocabulary(self) -> int:
        """Number of token ids, those of added tokens included."""
        return self._codec.size

    def token_text(self, token: int) -> str:
        return self._codec.decode([[token]], skip_special_tokens=False)[0]

    def join_ids(self, ids: list[int]) -> list[str]:
        """Return the text that is cut into these tokens, in a list; none where there is none."""
        text = self._codec.decode([ids], skip_special_tokens=False)[0]
        # The first space is no part of the text, to tokenizers that put one there
        texts = [text, text.removeprefix(" ")]
        return [text for text in texts if self.encode([text])[0] == ids][:1]

    @cached_property
    def ids_by_text(self) -> dict[str, int]:
        """Token ids by the text of each alone; a text that several have is left out."""
        ids = [[token] for token in range(self.vocabulary)]
        texts = self._codec.decode(ids, skip_special_tokens=False)
        counts = Counter(texts)
        return {text: token for token, text in enumerate(texts) if counts[text] == 1}

    def measure(
        self,
        prefixes: Sequence[str],
        references: Sequence[str],
    ) -> list[Measure]:
        """Encode prompts, and count the tokens of their references."""
        different = [*{*references}]  # many of single words are the same
        lengths = dict(zip(different, self.count_tokens(different), strict=True))
        prompts = zip(self.encode_prompts(prefixes), references, strict=True)
        return [Measure(ids, len(ids), lengths[text]) for ids, text in prompts]

    def decode_candidates(
        self,
        prompt_ids: Sequence[int],
        outputs: Sequence[Sequence[int]],
    ) -> tuple[str, list[str]]:
        """Decode a prompt and sampled continuations, special tokens removed from both."""
        # A continuation alone can decode to another text than it does after its prompt
        # (a first space is lost, for one), so both are decoded together and the
        # prompt's text is taken off, unless tokens are bytes. Where the last character
        # is cut within its bytes, the tokens that begin it are left out, as servers do
        # it.
        prompt = self._decode_text(prompt_ids)
        alone = self._bytes and not prompt.endswith(_CUT)
        context = () if alone else prompt_ids
        texts = []
        for output in outputs:
            text = self._decode_text([*context, *output])
            n_tokens = len(output)
            while text.endswith(_CUT) and n_tokens:
                n_tokens -= 1
                text = self._decode_text([*context, *output[:n_tokens]])
            texts.append(text if alone else _remove_prompt(prompt, text))
        return prompt, texts

    def _decode_text(self, ids: Sequence[int]) -> str:
        if self._bytes:
            pieces = [self._bytes[token] for token in ids]
            return b"".join(pieces).decode(errors="replace")
        return self._codec.decode([[*ids]])[0]

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        """The bytes of each token in any text, special ones' none; empty if it varies."""
        return self._codec.find_bytes()


def _ends_word(
    beginning: str,
    text: str,
) -> bool:
    """Return whether a text goes on where no tokenizer looks across."""
    if not beginning or not text.startswith(beginning):
        return False
    last = beginning[-1]
    following = text[len(beginning) :][:1]
    is_parted = following == " " or (following.isspace() and last.isalnum())
    return is_parted and not last.isspace()


def _remove_prompt(
    prompt: str,
    text: str,
) -> str:
    """Cut ``prompt`` off the start of ``text``, as far as ``text`` starts with it."""
    if text.startswith(prompt):
        return text[len(prompt) :]
    return text[sum(takewhile(bool, map(eq, prompt, text))) :]
