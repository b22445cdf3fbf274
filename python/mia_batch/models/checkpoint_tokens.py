"""Tokenizers of checkpoints, as transformers opens them."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from mia_batch.errors import SettingsError, describe_error
from mia_batch.models.chat import ChatTemplate
from mia_batch.models.weights import load_config, tokenizer_source, weights_source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_LIMIT = 2**62
"""A tokenizer's ``model_max_length``, since lengths are checked against the context."""


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


def load_codec(model: str, revision: str | None, setting: str) -> CheckpointCodec:
    """Load a checkpoint's tokenizer; a `SettingsError` names the ``setting`` of the model."""
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
        raise SettingsError(f"{owner} cannot be loaded ({cause}); {way_out}") from error
    growth = compute_growth(tokenizer)
    if growth > MOST_GROWTH:
        raise SettingsError(
            f"{owner} writes up to {growth:,} characters for one, which would fill the"
            " memory; give the model's own tokenizer"
        )
    if setting != "tokenizer":  # which has no model here
        config = load_config(*weights_source(model, revision))
        mismatch = find_mismatch(tokenizer, config)
        if mismatch is not None:
            raise SettingsError(
                f"{owner} is of another model: it {mismatch}; save the model's own"
                " tokenizer in the folder of its weights"
            )
    return CheckpointCodec(tokenizer)


class CheckpointCodec:
    """A tokenizer of transformers, as a `Codec`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from transformers import PreTrainedTokenizerFast

        self._tokenizer = tokenizer
        self._tokenizer.model_max_length = NO_LIMIT
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            content = backend.to_str()
            # Which may have been left on in the file
            backend.no_truncation()
            backend.no_padding()
        else:  # a tokenizer written in Python
            vocabulary = sorted(tokenizer.get_vocab().items())
            content = repr((type(tokenizer).__name__, vocabulary))
        # Of all that decides how text is cut
        self.digest = sha256(content.encode()).hexdigest()
        self.start: int | None = tokenizer.bos_token_id
        self.start_text = str(tokenizer.bos_token)
        self.end: int | None = tokenizer.eos_token_id
        self.size = len(tokenizer)
        # Those written in Python cannot tell where a token lies in a text
        self.finds_spans = bool(tokenizer.is_fast)
        fast_encode = PreTrainedTokenizerFast._encode_plus
        self._is_plain = type(tokenizer)._encode_plus is fast_encode

    @property
    def chat_template(self) -> ChatTemplate | None:
        templates = self._tokenizer.chat_template
        if isinstance(templates, str):
            templates = {"default": templates}
        if not templates or "default" not in templates:
            return None
        return ChatTemplate(
            source=templates["default"],
            source_with_tools=templates.get("tool_use"),
            tokens={
                name: str(token)
                for name, token in self._tokenizer.special_tokens_map.items()
                if isinstance(token, str)
            },
        )

    def reading_marks(self) -> CheckpointCodec:
        return self  # every text is read so

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool
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

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        encoded = self._tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        return encoded["input_ids"], encoded["offset_mapping"]

    def decode(
        self, ids: list[list[int]], *, skip_special_tokens: bool = True
    ) -> list[str]:
        decoded: list[str] = self._tokenizer.batch_decode(
            ids,
            skip_special_tokens=skip_special_tokens,
            clean_up_tokenization_spaces=False,
        )
        return decoded

    def find_bytes(self) -> dict[int, bytes]:
        if not self._tokenizer.is_fast:
            return {}
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        byte_by_sign = {sign: byte for byte, sign in bytes_to_unicode().items()}
        added = self._tokenizer.added_tokens_decoder
        tokens = [*range(self.size)]
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
        return pieces if [text] == self.decode([tokens]) else {}
