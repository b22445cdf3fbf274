"""Text to token ids and back, exactly as a model's tokenizer does it."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, chain, takewhile
from math import prod
from operator import eq
from typing import TYPE_CHECKING, Any, Self

from mia_batch.errors import SettingsError, describe_error
from mia_batch.models.weights import (
    Measure,
    load_config,
    tokenizer_source,
    weights_source,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

NO_LIMIT = 2**62
"""A tokenizer's ``model_max_length``, since lengths are checked against the context."""


def find_specials(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Find the special tokens that a tokenizer puts before and after a text by itself."""
    # All are taken to stand before where a text is cut in another way between them than
    # without.
    ids: list[int] = tokenizer("a")["input_ids"]
    bare_ids: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    n_bare = len(bare_ids)
    n_special = len(ids) - n_bare
    starts = (i for i in range(n_special + 1) if ids[i : i + n_bare] == bare_ids)
    start = next(starts, n_special)
    return ids[:start], ids[start + n_bare :]


def find_mismatch(
    tokenizer: PreTrainedTokenizerBase,
    config: Any,
) -> str | None:
    """Return what shows that a tokenizer is of another model, by its configuration."""
    # Tokens that were added to a tokenizer can be more than the model has, which no
    # text of a corpus has. An end of texts that is the default of its architecture may
    # never have been set.
    text_config = config.get_text_config()
    n_tokens = text_config.vocab_size
    added = set(tokenizer.added_tokens_decoder)
    highest = max(set(tokenizer.get_vocab().values()) - added, default=0)
    if highest >= n_tokens:
        return f"has the token {highest}, and the model has {n_tokens:,} tokens"
    end = tokenizer.eos_token_id
    declared = text_config.eos_token_id
    ends = declared if isinstance(declared, list) else [declared]
    default_end = getattr(type(text_config), "eos_token_id", None)
    unsure_ends = {None, default_end, *added}
    if end is None or end in ends or not unsure_ends.isdisjoint(ends):
        return None
    return f"ends texts with token {end}, and the model's config.json with {ends[0]}"


MOST_GROWTH = 16_384  # characters for one; Unicode's own forms have 18


def compute_growth(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the most characters that a step of a tokenizer writes for one of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    steps = [
        getattr(backend, name, None)
        for name in ("normalizer", "pre_tokenizer", "decoder")
    ]
    states = [json.loads(step.__getstate__()) for step in steps if step is not None]
    return max(map(_compute_step_growth, states), default=1)


def _compute_step_growth(step: Any) -> int:
    if not isinstance(step, dict):
        return 1
    values = [step.get(name) for name in ("content", "prepend", "replacement")]
    texts = [value for value in values if isinstance(value, str)]
    longest = max(map(len, texts), default=1)
    pattern = step.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    n_replaced = len(replaced or "a")
    charsmap = base64.b64decode(step.get("precompiled_charsmap") or "")
    lists = [value for value in step.values() if isinstance(value, list)]
    inner_growth = prod(map(_compute_step_growth, chain.from_iterable(lists)))
    return max(1, -(-longest // n_replaced), _longest_form(charsmap)) * inner_growth


def _longest_form(charsmap: bytes) -> int:
    """Return the length of the longest form in a map of SentencePiece."""
    size = int.from_bytes(charsmap[:4], "little")
    return max(map(len, charsmap[4 + size :].split(b"\0")))


_CUT = "\N{REPLACEMENT CHARACTER}"
"""What the first bytes of a character decode to where the rest of them is missing."""

_SHORT = 1024  # tokens of a text whose beginnings are all encoded at once
_TOKENS_AT_ONCE = 32


class Tokenizer:
    """The tokenizer of a checkpoint."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from transformers import PreTrainedTokenizerFast

        self._tokenizer = tokenizer
        self._tokenizer.model_max_length = NO_LIMIT
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            content = backend.to_str()
        else:  # a tokenizer written in Python
            vocabulary = sorted(tokenizer.get_vocab().items())
            content = repr((type(tokenizer).__name__, vocabulary))
        # Of all that decides how text is cut
        self.digest = sha256(content.encode()).hexdigest()
        self._prepended, appended = find_specials(tokenizer)
        self._n_appended = len(appended)
        self._has_own_start = True
        self.end: int | None = tokenizer.eos_token_id
        fast_encode = PreTrainedTokenizerFast._encode_plus
        self._is_plain = type(tokenizer)._encode_plus is fast_encode

    @classmethod
    def load(
        cls,
        model: str,
        revision: str | None = None,
        *,
        setting: str = "model",
    ) -> Self:
        """Load a model's tokenizer; a `SettingsError` names the ``setting`` of the model."""
        from transformers import AutoTokenizer

        source, source_revision = tokenizer_source(model, revision)
        owner = f"{setting}: the tokenizer of {model!r}"
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                source,
                revision=source_revision,
                trust_remote_code=False,
            )
        except Exception as error:  # every library behind it raises its own kind
            way_out = "give a folder that a tokenizer was saved to, or a hub name"
            if setting == "model":
                way_out = "save a tokenizer in the folder of the model's weights"
            cause = describe_error(error)
            raise SettingsError(
                f"{owner} cannot be loaded ({cause}); {way_out}"
            ) from error
        growth = compute_growth(tokenizer)
        if growth > MOST_GROWTH:
            raise SettingsError(
                f"{owner} writes up to {growth:,} characters for one, which would fill"
                " the memory; give the model's own tokenizer"
            )
        if setting != "tokenizer":  # which has no model here
            config = load_config(*weights_source(model, revision))
            mismatch = find_mismatch(tokenizer, config)
            if mismatch is not None:
                raise SettingsError(
                    f"{owner} is of another model: it {mismatch}; save the model's own"
                    " tokenizer in the folder of its weights"
                )
        return cls(tokenizer)

    def find_starts(self) -> tuple[list[int], list[int]] | None:
        """Return the special tokens before a text: as they are, and with the start toggled.

        None where the tokenizer has no start token.
        """
        start = self._tokenizer.bos_token_id
        if start is None:
            return None
        without_start = [token for token in self._prepended if token != start]
        if start in self._prepended:
            return self._prepended, without_start
        return self._prepended, [start, *without_start]

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
        return str(self._tokenizer.bos_token)

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
        bare = not self._has_own_start
        encoded = self._encode([*texts], add_special_tokens=not bare)
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
        if not context or not self._tokenizer.is_fast:
            context_ids, text_ids = self.encode([context, text])
            return self._prepended, context_ids, text_ids
        ids, spans = self._encode_spans(context + text)
        starts = (i for i, (start, _) in enumerate(spans) if start >= len(context))
        n_context = next(starts, len(ids))
        return self._prepended, ids[:n_context], ids[n_context:]

    def keep_last(
        self,
        text: str,
        n_tokens: int,
    ) -> str:
        """Cut a text to its last tokens, at most ``n_tokens``."""
        if not self._tokenizer.is_fast:
            ids = self.encode([text])[0]
            return self._decode([ids[-n_tokens:]])[0]
        _, spans = self._encode_spans(text)
        return text[spans[-n_tokens][0] :] if len(spans) > n_tokens else text

    def keep_first(
        self,
        text: str,
        n_tokens: int,
    ) -> str:
        """Cut a text to its first tokens, at most ``n_tokens``."""
        if not self._tokenizer.is_fast:
            ids = self.encode([text])[0]
            return self._decode([ids[:n_tokens]])[0]
        _, spans = self._encode_spans(text)
        return text[: max((end for _, end in spans[:n_tokens]), default=0)]

    def _encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return token ids of a text, and where each begins and ends in it."""
        encoded = self._tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        return encoded["input_ids"], encoded["offset_mapping"]

    def find_token_ends(self, text: str) -> Callable[[int], bool]:
        """Return a function that checks that a place, in characters, is between tokens.

        It is where the tokens of the text up to there begin the tokens of the whole. Of
        tokenizers written in Python nobody knows: any place does.
        """
        if not self._tokenizer.is_fast:
            return lambda _: True
        ids, spans = self._encode_spans(text)
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
        if not self._tokenizer.is_fast:
            return
        ids, spans = self._encode_spans(text)
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
        return self._encode(texts, add_special_tokens=False)

    @property
    def vocabulary(self) -> int:
        """Number of token ids, those of added tokens included."""
        return len(self._tokenizer)

    def token_text(self, token: int) -> str:
        return self._decode([[token]], skip_special=False)[0]

    @cached_property
    def ids_by_text(self) -> dict[str, int]:
        """Token ids by the text of each alone; a text that several have is left out."""
        ids = [[token] for token in range(self.vocabulary)]
        texts = self._decode(ids, skip_special=False)
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
        return self._decode([[*ids]])[0]

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        """The bytes of each token in any text, special ones' none; empty if it varies."""
        if not self._tokenizer.is_fast:
            return {}
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        byte_by_sign = {sign: byte for byte, sign in bytes_to_unicode().items()}
        added = self._tokenizer.added_tokens_decoder
        tokens = [*range(self.vocabulary)]
        names = self._tokenizer.convert_ids_to_tokens(tokens)
        # Of a model there may be more than of its tokenizer
        pieces = defaultdict[int, bytes](bytes)
        for token, name in zip(tokens, names, strict=True):
            is_special = token in added and added[token].special
            if name and not is_special:
                if byte_by_sign.keys() >= {*name}:
                    pieces[token] = bytes(byte_by_sign[sign] for sign in name)
                else:
                    pieces[token] = name.encode()
        text = b"".join([pieces[token] for token in tokens]).decode(errors="replace")
        return pieces if [text] == self._decode([tokens]) else {}

    def _decode(
        self,
        ids: list[list[int]],
        *,
        skip_special: bool = True,
    ) -> list[str]:
        decoded: list[str] = self._tokenizer.batch_decode(
            ids,
            skip_special_tokens=skip_special,
            clean_up_tokenization_spaces=False,
        )
        return decoded

    def _encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool,
    ) -> list[list[int]]:
        if not texts:
            return []
        # Without what transformers makes of each text, ten times as long
        if self._is_plain:
            backend = self._tokenizer.backend_tokenizer
            encodings = backend.encode_batch_fast(
                [*texts], add_special_tokens=add_special_tokens
            )
            return [encoding.ids for encoding in encodings]
        encoded: list[list[int]] = self._tokenizer(
            list(texts),
            add_special_tokens=add_special_tokens,
            return_attention_mask=False,
        )["input_ids"]
        return encoded


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
