"""Text to token ids and back, exactly as a model's tokenizer does it."""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import accumulate, takewhile
from math import prod
from operator import eq
from typing import TYPE_CHECKING, Any, Self

from mia_batch.errors import SettingsError, describe_error
from mia_batch.models.weights import (
    Measure,
    config_of,
    tokenizer_source,
    weights_source,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedTokenizerBase

NO_LIMIT = 2**62
"""A tokenizer's ``model_max_length`` where lengths are checked against the model's context."""


def find_specials(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Find the special tokens that a tokenizer puts before and after a text by itself."""
    # All are taken to stand before where a text is cut in another way between them than
    # without.
    whole: list[int] = tokenizer("a")["input_ids"]
    bare: list[int] = tokenizer("a", add_special_tokens=False)["input_ids"]
    extra = len(whole) - len(bare)
    starts = (i for i in range(extra + 1) if whole[i : i + len(bare)] == bare)
    before = next(starts, extra)
    return whole[:before], whole[before + len(bare) :]


def why_of_another(tokenizer: PreTrainedTokenizerBase, config: Any) -> str | None:
    """Say what shows that a tokenizer is of another model than a configuration, if any."""
    # Tokens that were added to a tokenizer can be more than the model has, which no
    # text of a corpus has. An end of texts that is the default of its architecture may
    # never have been set.
    text_config, added = config.get_text_config(), set(tokenizer.added_tokens_decoder)
    size, own = text_config.vocab_size, tokenizer.eos_token_id
    highest = max(set(tokenizer.get_vocab().values()) - added, default=0)
    if highest >= size:
        return f"has the token {highest}, and the model has {size:,} tokens"
    declared = text_config.eos_token_id
    ends = declared if isinstance(declared, list) else [declared]
    strange = {None, getattr(type(text_config), "eos_token_id", None)}
    if (
        own is None
        or own in ends
        or any(end in strange or end in added for end in ends)
    ):
        return None
    return f"ends texts with token {own}, and the model's config.json with {ends[0]}"


MOST_GROWTH = 16_384  # characters for one; Unicode's own forms have 18


def growth_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the most characters that a step of a tokenizer writes for one of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    steps = [
        getattr(backend, name, None)
        for name in ("normalizer", "pre_tokenizer", "decoder")
    ]
    states = [json.loads(step.__getstate__()) for step in steps if step is not None]
    return max(map(_growth, states), default=1)


def _growth(step: Any) -> int:
    if not isinstance(step, dict):
        return 1
    written = [step.get(name) for name in ("content", "prepend", "replacement")]
    longest = max((len(text) for text in written if isinstance(text, str)), default=1)
    pattern = step.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    forms = _forms(base64.b64decode(step.get("precompiled_charsmap") or ""))
    inner = [
        each for value in step.values() if isinstance(value, list) for each in value
    ]
    return max(1, -(-longest // len(replaced or "a")), forms) * prod(
        map(_growth, inner)
    )


def _forms(charsmap: bytes) -> int:
    """Return the length of the longest form in a map of SentencePiece, behind its index."""
    size = int.from_bytes(charsmap[:4], "little")
    return max(map(len, charsmap[4 + size :].split(b"\0")))


_CUT = "\N{REPLACEMENT CHARACTER}"
"""What the first bytes of a character decode to where the rest of them is missing."""

_SHORT = 1024  # tokens of a text whose beginnings are all encoded at once
_PLACES_AT_ONCE = 32


class Tokenizer:
    """The tokenizer of a checkpoint."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from transformers import PreTrainedTokenizerFast

        self._tokenizer = tokenizer
        self._tokenizer.model_max_length = NO_LIMIT
        if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
            content = backend.to_str()
        else:  # a tokenizer written in Python
            content = repr(
                (type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()))
            )
        self.digest = sha256(
            content.encode()
        ).hexdigest()  # of all that decides how text is cut
        self._prepended, appended = find_specials(tokenizer)
        self._n_appended = len(appended)
        self._has_own_start = True
        self.end: int | None = tokenizer.eos_token_id
        usual = PreTrainedTokenizerFast._encode_plus
        self._is_plain = type(tokenizer)._encode_plus is usual

    @classmethod
    def load(
        cls, model: str, revision: str | None = None, *, setting: str = "model"
    ) -> Self:
        """Load the tokenizer of a model; `SettingsError` names the ``setting`` that named it."""
        from transformers import AutoTokenizer

        source, of_source = tokenizer_source(model, revision)
        named = f"{setting}: the tokenizer of {model!r}"
        try:
            options = {"revision": of_source, "trust_remote_code": False}
            loaded = AutoTokenizer.from_pretrained(source, **options)
        except (
            Exception
        ) as error:  # every library behind a tokenizer raises its own kind
            way_out = "give a folder that a tokenizer was saved to, or a hub name"
            if setting == "model":
                way_out = "save a tokenizer in the folder of the model's weights"
            msg = f"{named} cannot be loaded ({describe_error(error)}); {way_out}"
            raise SettingsError(msg) from error
        if (longest := growth_of(loaded)) > MOST_GROWTH:
            what = (
                f"writes up to {longest:,} characters for one, which would fill the"
                " memory"
            )
            raise SettingsError(f"{named} {what}; give the model's own tokenizer")
        if setting != "tokenizer":  # which has no model here
            config = config_of(*weights_source(model, revision))
            if (reason := why_of_another(loaded, config)) is not None:
                raise SettingsError(
                    f"{named} is of another model: it {reason}; save the model's own"
                    " tokenizer in the folder of its weights"
                )
        return cls(loaded)

    def starts(self) -> tuple[list[int], list[int]] | None:
        """Give the special tokens before a text, and what they are with or without a start token.

        None where the tokenizer has no start token.
        """
        start = self._tokenizer.bos_token_id
        if start is None:
            return None
        others = [token for token in self._prepended if token != start]
        own = self._prepended
        return own, others if start in own else [start, *others]

    def turn_start(self) -> None:
        """Put the start token before texts from now on; leave it out if the tokenizer puts it."""
        starts = self.starts()
        if starts is not None and self._has_own_start:
            self._prepended = starts[1]
            self._has_own_start = False

    @property
    def is_turned(self) -> bool:
        return not self._has_own_start

    @property
    def start_token(self) -> str:
        return str(self._tokenizer.bos_token)

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of prompts, with the special tokens that the tokenizer puts before a text."""
        # Tokens that it puts after a text (an end-of-text token) are left out, because
        # the model shall go on.
        # Of a text that another goes on from, the longest
        whole, begins = (
            "",
            dict[str, str](),
        )
        for text in sorted(
            {*texts}, reverse=True
        ):  # what begins a text comes behind it
            if _ends_word(text, whole):
                begins[text] = whole
            else:
                whole = text
        found = self._prompts(set(texts).difference(begins))
        cuts = {whole: self._cuts(whole, found[whole]) for whole in {*begins.values()}}
        for text, whole in begins.items():
            if cut := cuts[whole].get(len(text.encode())):
                found[text] = found[whole][:cut]
        found |= self._prompts(begins.keys() - found.keys())
        return [found[text] for text in texts]

    def _prompts(self, texts: Collection[str]) -> dict[str, list[int]]:
        if not self._has_own_start:
            bare = self._encode([*texts], add_special_tokens=False)
            begun = ([*self._prepended, *ids] for ids in bare)
            return dict(zip(texts, begun, strict=True))
        encoded = self._encode([*texts], add_special_tokens=True)
        cut = (ids[: len(ids) - self._n_appended] for ids in encoded)
        return dict(zip(texts, cut, strict=True))

    def _cuts(self, text: str, ids: list[int]) -> dict[int, int]:
        """Count the tokens up to each byte where one ends; none where they are not the text's."""
        found = [self._bytes[token] for token in ids] if self._bytes else []
        ends = enumerate(accumulate(map(len, found)), start=1)
        return {end: n for n, end in ends} if b"".join(found) == text.encode() else {}

    def encode_after(
        self, context: str, text: str
    ) -> tuple[list[int], list[int], list[int]]:
        """Token ids of a text that follows another: special tokens, the context's, the text's."""
        # Both texts are cut as one: a token that reaches from one into the other is the
        # context's. Tokenizers written in Python cannot tell, and cut them one by one.
        if not context or not self._tokenizer.is_fast:
            before, after = self.encode([context, text])
            return self._prepended, before, after
        ids, spans = self._cut(context + text)
        cut = next(
            (i for i, (start, _) in enumerate(spans) if start >= len(context)), len(ids)
        )
        return self._prepended, ids[:cut], ids[cut:]

    def keep_last(self, text: str, n_tokens: int) -> str:
        """Cut a text to its last tokens, at most ``n_tokens``."""
        if not self._tokenizer.is_fast:
            return self._decode([self.encode([text])[0][-n_tokens:]])[0]
        _, spans = self._cut(text)
        return text[spans[-n_tokens][0] :] if len(spans) > n_tokens else text

    def keep_first(self, text: str, n_tokens: int) -> str:
        """Cut a text to its first tokens, at most ``n_tokens``; what they share with it stays."""
        if not self._tokenizer.is_fast:
            return self._decode([self.encode([text])[0][:n_tokens]])[0]
        return text[: max((end for _, end in self._cut(text)[1][:n_tokens]), default=0)]

    def _cut(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a text, and where each begins and ends in it."""
        encoded = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True
        )
        return encoded["input_ids"], encoded["offset_mapping"]

    def token_ends(self, text: str) -> Callable[[int], bool]:
        """Return what says of a place in a text, in characters, whether it is between two tokens.

        It is where the tokens of the text up to there begin the tokens of the whole. Of
        tokenizers written in Python nobody knows: any place does.
        """
        if not self._tokenizer.is_fast:
            return lambda _: True
        ids, spans = self._cut(text)
        n_before = {end: n for n, (_, end) in enumerate(spans, start=1)}

        def is_between(place: int) -> bool:
            n = n_before.get(place)
            return n is not None and self.encode([text[:place]])[0] == ids[:n]

        return is_between

    def steps(
        self, text: str, first: int, order: Callable[[int], NDArray[np.int64]]
    ) -> Iterator[tuple[int, int]]:
        """Yield where tokens of a text begin and end, in characters, from number ``first`` on."""
        # ``order`` orders so many. Only those up to which, and with which, the text
        # alone is cut as the whole is. Of tokenizers written in Python nobody knows.
        if not self._tokenizer.is_fast:
            return
        ids, spans = self._cut(text)
        ends = [0, *(end for _, end in spans)]
        places = (first + order(max(len(ids) - first, 0))).tolist()
        at_once = len(places) if len(ids) <= _SHORT else _PLACES_AT_ONCE
        for start in range(0, len(places), max(at_once, 1)):
            some = places[start : start + at_once]
            numbers = sorted({*some, *(place + 1 for place in some)})
            heads = self.encode([text[: ends[n]] for n in numbers])
            same = {
                n for n, head in zip(numbers, heads, strict=True) if head == ids[:n]
            }
            for place in some:
                if {place, place + 1} <= same and ends[place] < ends[place + 1]:
                    yield ends[place], ends[place + 1]

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
    def by_text(self) -> dict[str, int]:
        """Token ids by what they decode to alone; a text that several have is left out."""
        texts = self._decode(
            [[token] for token in range(self.vocabulary)], skip_special=False
        )
        counts = Counter(texts)
        return {text: token for token, text in enumerate(texts) if counts[text] == 1}

    def measure(
        self, prefixes: Sequence[str], references: Sequence[str]
    ) -> list[Measure]:
        """Encode prompts, and count the tokens of their references."""
        different = [*{*references}]  # many of single words are the same
        lengths = dict(zip(different, self.count_tokens(different), strict=True))
        prompts = zip(self.encode_prompts(prefixes), references, strict=True)
        return [Measure(ids, len(ids), lengths[text]) for ids, text in prompts]

    def decode_candidates(
        self, prompt_ids: Sequence[int], outputs: Sequence[Sequence[int]]
    ) -> tuple[str, list[str]]:
        """Decode a prompt and sampled continuations of it, special tokens removed from both."""
        # A continuation alone can decode to another text than it does after its prompt
        # (a first space is lost, for one), so both are decoded together and the
        # prompt's text is taken off, unless tokens are bytes. Where the last character
        # is cut within its bytes, the tokens that begin it are left out, as servers do
        # it.
        prompt, texts = self._text(prompt_ids), []
        alone = self._bytes and not prompt.endswith(_CUT)
        before = () if alone else prompt_ids
        for output in outputs:
            text, n_tokens = self._text([*before, *output]), len(output)
            while text.endswith(_CUT) and n_tokens:
                n_tokens -= 1
                text = self._text([*before, *output[:n_tokens]])
            texts.append(text if alone else _after(prompt, text))
        return prompt, texts

    def _text(self, ids: Sequence[int]) -> str:
        if self._bytes:
            return b"".join(map(self._bytes.__getitem__, ids)).decode(errors="replace")
        return self._decode([[*ids]])[0]

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        """The bytes that each token stands for in any text, special ones for none; else nothing."""
        if not self._tokenizer.is_fast:
            return {}
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        byte_of = {sign: byte for byte, sign in bytes_to_unicode().items()}
        added, tokens = self._tokenizer.added_tokens_decoder, [*range(self.vocabulary)]
        # Of a model there may be more than of its tokenizer
        found = defaultdict[int, bytes](bytes)
        for token, name in zip(
            tokens, self._tokenizer.convert_ids_to_tokens(tokens), strict=True
        ):
            if name and not (token in added and added[token].special):
                is_bytes = byte_of.keys() >= {*name}
                found[token] = (
                    bytes(map(byte_of.__getitem__, name)) if is_bytes else name.encode()
                )
        together = b"".join([found[token] for token in tokens]).decode(errors="replace")
        return found if [together] == self._decode([tokens]) else {}

    def _decode(self, ids: list[list[int]], *, skip_special: bool = True) -> list[str]:
        decoded: list[str] = self._tokenizer.batch_decode(
            ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
        )
        return decoded

    def _encode(
        self, texts: Sequence[str], *, add_special_tokens: bool
    ) -> list[list[int]]:
        if not texts:
            return []
        # Without what transformers makes of each text, ten times as long
        if self._is_plain:
            backend = self._tokenizer.backend_tokenizer
            found = backend.encode_batch_fast(
                [*texts], add_special_tokens=add_special_tokens
            )
            return [each.ids for each in found]
        encoded: list[list[int]] = self._tokenizer(
            list(texts),
            add_special_tokens=add_special_tokens,
            return_attention_mask=False,
        )["input_ids"]
        return encoded


def _ends_word(beginning: str, text: str) -> bool:
    """Whether a text goes on from its beginning where no tokenizer looks across."""
    if not beginning or not text.startswith(beginning):
        return False
    last, following = beginning[-1], text[len(beginning) :][:1]
    is_parted = following == " " or (following.isspace() and last.isalnum())
    return is_parted and not last.isspace()


def _after(prompt: str, text: str) -> str:
    """Cut ``prompt`` off the start of ``text``, as far as ``text`` starts with it."""
    if text.startswith(prompt):
        return text[len(prompt) :]
    return text[sum(takewhile(bool, map(eq, prompt, text))) :]
