"""Variants of texts that a masked language model makes, and the engine that is asked for them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain
from math import ceil
from typing import NamedTuple, Self
from unicodedata import category

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mia_batch.errors import EngineError, SettingsError, describe_error
from mia_batch.evidence.engines.registry import why_not_finite
from mia_batch.evidence.engines.transformers import padded
from mia_batch.evidence.request import (
    Answer,
    Continuation,
    EngineInfo,
    EngineSpec,
    Request,
)
from mia_batch.models.tokens import NO_LIMIT, find_specials


def word_spans(text: str) -> list[tuple[int, int]]:
    """Find the words of a text, first and end index: between whitespace, less signs at its ends."""
    spans = []
    for match in re.finditer(
        r"\S+", text
    ):  # at its ends letters, marks and numbers stay
        inner = [
            place for place in range(*match.span()) if category(text[place])[0] in "LMN"
        ]
        spans += [(inner[0], inner[-1] + 1)] if inner else []
    return spans


class Gaps(NamedTuple):
    """A text some of whose words are hidden."""

    text: str
    spans: Sequence[tuple[int, int]]  # of the hidden words, in their order

    def fill(self, words: Sequence[str]) -> tuple[str, list[int]]:
        """Fill the gaps; return the text, and the index of each word's first character."""
        ends = [0, *(end for _, end in self.spans)]
        starts = [*(start for start, _ in self.spans), len(self.text)]
        between = [
            self.text[end:start] for end, start in zip(ends, starts, strict=True)
        ]
        parts = [
            part for pair in zip(between, [*words, ""], strict=True) for part in pair
        ]
        return "".join(parts), list(accumulate(map(len, parts)))[:-2:2]


# Texts that differ from a target in some words, made with a masked language model. The
# first number of a seed keeps the kinds of variants apart.

_NEIGHBOUR, _PERTURBATION, _PARAPHRASE = 1, 2, 3
_HIDDEN = 0.15
_SPAN = 2
_TOO_SHORT = "the text has fewer than two words that could be replaced"


class Variants(NamedTuple):
    """Other versions of one text, or why there are none."""

    texts: tuple[str, ...]
    reason: str | None = None


def neighbours(model: MaskedModel, text: str, *, n: int, seed: int) -> Variants:
    """Replace one word of a text, each time another one: at most n texts, all different.

    The masked model sees the text without the word and gives the most likely other one.
    Words are taken in random order; where a text has fewer than n, their next
    replacements follow. One forward pass for each word that is replaced; the first
    texts are the same whatever n.

    Mattern et al. (2023), arXiv:2305.18462, with one word replaced. There, the word's
    embedding is dropped out in part and the best replacements of all words are taken;
    here it is masked, and the words are random, so that a neighbour costs one forward
    pass, not one a word.
    """
    words = word_spans(text)
    if len(words) < 2:
        return Variants((), _TOO_SHORT)
    order = np.random.default_rng([_NEIGHBOUR, seed]).permutation(len(words))[:n]
    gaps = [Gaps(text, [words[index]]) for index in order]
    rounds = -(-n // len(words))
    texts: list[list[str]] = [[] for _ in range(rounds)]
    for of, (row,) in zip(gaps, model.predict(gaps), strict=True):
        hidden = text[slice(*of.spans[0])].casefold()
        found: dict[
            str, str
        ] = {}  # likeliest words other than the hidden one, letter case aside
        for index in np.argsort(-row, kind="stable"):
            word = model.words[index]
            if word.casefold() != hidden:
                found.setdefault(word.casefold(), word)
            if len(found) == rounds:
                break
        for number, word in enumerate(found.values()):
            texts[number].append(of.fill([word])[0])
    return Variants(tuple(chain.from_iterable(texts))[:n])


def perturbations(model: MaskedModel, text: str, *, n: int, seed: int) -> Variants:
    """Hide 15 percent of a text's words, in spans of two, and draw others: n texts.

    One forward pass each; the first texts are the same whatever n.

    Mitchell et al. (2023), arXiv:2301.11305. There, T5 fills a span with as many words
    as it likes; here each word of a span is drawn from a masked model alone, so that
    the number of words stays and the two words of a span fit the text but not always
    each other.
    """
    words = word_spans(text)
    if len(words) < 2:
        return Variants((), _TOO_SHORT)
    generators = [
        np.random.default_rng([_PERTURBATION, seed, index]) for index in range(n)
    ]
    gaps = [Gaps(text, [words[i] for i in _spans(len(words), of)]) for of in generators]
    predicted = model.predict(gaps)
    texts = [
        of.fill([model.words[_draw(row, own)] for row in rows])[0]
        for of, rows, own in zip(gaps, predicted, generators, strict=True)
    ]
    return Variants(tuple(texts))


def _spans(n_words: int, own: np.random.Generator) -> Iterator[int]:
    """Yield the words to hide, ascending: random spans with a word between any two."""
    wanted = ceil(_HIDDEN * n_words / _SPAN)
    free = set(range(n_words - _SPAN + 1))
    hidden: set[int] = set()
    for start in own.permutation(n_words - _SPAN + 1).tolist():
        if start in free and len(hidden) < wanted * _SPAN:
            hidden.update(range(start, start + _SPAN))
            free.difference_update(range(start - _SPAN, start + _SPAN + 1))
    return iter(sorted(hidden))


def _draw(logprob: npt.NDArray[np.float32], own: np.random.Generator) -> int:
    shares = np.exp(logprob.astype(np.float64))
    return int(own.choice(len(shares), p=shares / shares.sum()))


_AT_ONCE = 8  # pairs whose probabilities are in memory


def paraphrases(
    model: MaskedModel, text: str, *, n: int, seed: int, share: float = 0.2
) -> Variants:
    """Replace a share of a text's tokens, and mirror what was put in: n texts, pair by pair.

    The order is plus, minus, plus, minus; the first pairs are the same whatever n. Each
    token is hidden with probability ``share``, and one where none would be. The masked
    model fills all that is hidden at once, each token drawn from its distribution over
    the tokens that are text. The other text of the pair has, for every token t that t+
    was put for, the token nearest to 2 E(t) - E(t+) in the model's input embedding
    matrix E, t itself not left out: in many dimensions it is nearly always the nearest,
    and the other text then the target again. What is not replaced stays character by
    character. One forward pass a pair.

    Fu et al. (2023), arXiv:2311.06062, Algorithm 2. There, the fill is only said to be
    the masked model's, and it is T5-base; drawing, as the authors' code fills spans,
    lets pairs differ in more than what is hidden. There, the texts are decoded from
    tokens throughout.
    """
    vocabulary = model.vocabulary
    cut = vocabulary.cut(text)
    if len(cut.places) < 2:
        return Variants((), _TOO_SHORT.replace("words", "tokens"))
    n_pairs = -(-n // 2)
    texts: list[str] = []
    for first in range(0, n_pairs, _AT_ONCE):
        pairs = range(first, min(first + _AT_ONCE, n_pairs))
        generators = [
            np.random.default_rng([_PARAPHRASE, seed, pair]) for pair in pairs
        ]
        hidden = [_hide(cut.places, share, own) for own in generators]
        predicted = model.predict_tokens(cut, hidden)
        for places, rows, own in zip(hidden, predicted, generators, strict=True):
            plus = [int(vocabulary.ids[_draw(row, own)]) for row in rows]
            minus = vocabulary.mirror([cut.token_ids[place] for place in places], plus)
            texts += [vocabulary.replace(cut, places, each) for each in (plus, minus)]
    return Variants(tuple(texts[:n]))


def _hide(places: Sequence[int], share: float, own: np.random.Generator) -> list[int]:
    """Choose the tokens to hide, ascending: each by itself, but at least one."""
    chosen = own.random(len(places)) < share
    if not chosen.any():
        chosen[own.integers(len(places))] = True
    return [place for place, hide in zip(places, chosen, strict=True) if hide]


# Tokens of a masked model as text, and as points of its embedding space.

_CUT = "\N{REPLACEMENT CHARACTER}"  # what bytes decode to that are no whole character


class TokenText(NamedTuple):
    """A text by the tokens of a masked model, special ones left out."""

    text: str
    token_ids: list[int]
    spans: list[tuple[int, int]]  # of each token, less whitespace
    # Tokens that can be replaced: of whole characters, not of whitespace
    places: list[int]


class Vocabulary:
    """Tokens that a masked model can put for others: text, none of them special; ``ids`` ascend."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        # Each token is decoded as within a text: with its space, without marks of its
        # place.
        anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        pairs = [
            [*anchor, token]
            for token in range(min(len(tokenizer), model.config.vocab_size))
        ]
        options = {"clean_up_tokenization_spaces": False}
        first, *both = tokenizer.batch_decode([anchor, *pairs], **options)
        self._decoded = [text.removeprefix(first) for text in both]
        special, texts = set(tokenizer.all_special_ids), enumerate(self._decoded)
        usable = (
            (token, text) for token, text in texts if text.strip() and _CUT not in text
        )
        self.ids = np.array([token for token, _ in usable if token not in special])

    def cut(self, text: str) -> TokenText:
        encoded = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True
        )
        ids: list[int] = encoded["input_ids"]
        spans = []
        for start, end in encoded[
            "offset_mapping"
        ]:  # whitespace is left out at both ends
            piece = text[start:end]
            spans.append((end - len(piece.lstrip()), start + len(piece.rstrip())))
        usable = set(self.ids.tolist())
        ends = [0, *(end for _, end in spans)]
        starts = [*(start for start, _ in spans[1:]), len(text)]
        places = [
            place
            for place, (start, end) in enumerate(spans)
            if ids[place] in usable and ends[place] <= start < end <= starts[place]
        ]
        return TokenText(text, ids, spans, places)

    def replace(
        self, cut: TokenText, places: Sequence[int], tokens: Sequence[int]
    ) -> str:
        """Put other tokens in some places, ascending; all else stays, character by character."""
        # A space before one changes only where one of both begins a word and the other
        # goes on.
        made, done = "", 0
        for place, token in zip(places, tokens, strict=True):
            if token == cut.token_ids[place]:
                continue
            (start, end), new = cut.spans[place], self._decoded[token]
            before, spaced = cut.text[done:start], new[:1].isspace()
            if spaced != self._decoded[cut.token_ids[place]][:1].isspace():
                gap = " " if spaced and start and not before[-1:].isspace() else ""
                before = before + gap if spaced else before.removesuffix(" ")
            made, done = made + before + new.strip(), end
        return made + cut.text[done:]

    def mirror(self, token_ids: Sequence[int], others: Sequence[int]) -> list[int]:
        """Find the token nearest to where each other one lies, on the opposite side of a token."""
        # Euclidean distance to 2 E(t) - E(t+), in the matrix of the model's input
        # embeddings; of two that are as near, the one with the smaller id.
        matrix: Tensor = self._model.get_input_embeddings().weight.detach()
        points = 2 * matrix[list(token_ids)] - matrix[list(others)]
        usable, half_squares = self._usable
        # Minus half the squared distance, less |p|^2, which is the same for all.
        nearness = points @ usable.T - half_squares
        found: list[int] = self.ids[nearness.argmax(1).cpu().numpy()].tolist()
        return found

    @cached_property
    def _usable(self) -> tuple[Tensor, Tensor]:
        """Embeddings of the tokens that are text, and half of each one's squared length."""
        matrix = self._model.get_input_embeddings().weight.detach()
        usable: Tensor = matrix[self.ids.tolist()]
        return usable, usable.square().sum(1) / 2


_LOGIT_BYTES = 1 << 28
_TEST_TOKENS = 16  # in fewer, some processors' attention hides what is not finite
_UNUSED_POSITIONS = 2  # models of RoBERTa's kind number positions from 2


class MaskedModel:
    """A model of BERT's kind."""

    # ``words`` are what it can put into a gap: those of one token. A text longer than
    # the model's context is read in consecutive pieces of that length. The tokenizer
    # must be of the fast kind, with a mask token.

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        if tokenizer.mask_token is None or not tokenizer.is_fast:
            raise SettingsError(
                "masked_model: its tokenizer has no mask token or is not of the fast "
                "kind; give a model such as distilroberta-base"
            )
        self._model = model.eval()
        self._tokenizer = tokenizer
        known = range(min(len(tokenizer), model.config.vocab_size))
        texts = [text.strip() for text in tokenizer.batch_decode([[i] for i in known])]
        special = set(tokenizer.all_special_ids)
        is_word = [word_spans(text) == [(0, len(text))] for text in texts]
        self._word_ids = [i for i in known if is_word[i] and i not in special]
        if not self._word_ids:
            raise SettingsError(
                "masked_model: no token of it is a word; give another masked model"
            )
        self.words: list[str] = [texts[i] for i in self._word_ids]
        self._before, self._after = find_specials(tokenizer)
        positions = getattr(model.config, "max_position_embeddings", None)
        length: int = tokenizer.model_max_length
        self.context = (
            length if positions is None else min(length, positions - _UNUSED_POSITIONS)
        )
        self._room = self.context - len(self._before) - len(self._after)
        tokenizer.model_max_length = NO_LIMIT  # longer texts are cut here

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self._model, self._tokenizer)

    @classmethod
    def load(
        cls, model: str, revision: str | None = None, *, device: str = "cpu"
    ) -> Self:
        """Load a model in float32; `SettingsError` if it cannot be or is no masked model."""
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        options = {"revision": revision, "trust_remote_code": False}
        try:
            tokenizer = AutoTokenizer.from_pretrained(model, **options)
            loaded = AutoModelForMaskedLM.from_pretrained(
                model, dtype=torch.float32, **options
            )
        except Exception as error:  # every library behind it raises its own kind
            raise SettingsError(
                f"masked_model: {model!r} cannot be loaded ({describe_error(error)}); give a "
                "masked language model, with its tokenizer, such as distilroberta-base"
            ) from error
        with torch.inference_mode():
            if not loaded(torch.arange(_TEST_TOKENS)[None]).logits.isfinite().all():
                raise SettingsError(why_not_finite(model, revision, "float32"))
        return cls(loaded.to(device), tokenizer)

    def predict(self, texts: Sequence[Gaps]) -> list[npt.NDArray[np.float32]]:
        """Say how likely each word is in each gap, all gaps of a text hidden at once."""
        return self._predict([self._hide(gaps) for gaps in texts], self._word_ids)

    def predict_tokens(
        self, text: TokenText, hidden: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        """Say how likely each token is in place of hidden ones, for several choices of these."""
        masked = []
        for places in hidden:
            ids = list(text.token_ids)
            for place in places:
                ids[place] = self._tokenizer.mask_token_id
            masked.append((ids, places))
        return self._predict(masked, self.vocabulary.ids.tolist())

    @torch.inference_mode()
    def _predict(
        self, texts: Sequence[tuple[list[int], Sequence[int]]], wanted: list[int]
    ) -> list[npt.NDArray[np.float32]]:
        """Predict masks of tokenized texts, each with the places of its masks."""
        # Pieces of the context's length: number of the text, its masks in there, and
        # their places.
        pieces: list[tuple[int, list[int], list[int], list[int]]] = []
        for number, (ids, places) in enumerate(texts):
            for begin in range(0, len(ids), self._room):
                inside = [
                    i
                    for i, place in enumerate(places)
                    if 0 <= place - begin < self._room
                ]
                if inside:
                    tokens = [
                        *self._before,
                        *ids[begin : begin + self._room],
                        *self._after,
                    ]
                    at = [places[i] - begin + len(self._before) for i in inside]
                    pieces.append((number, inside, at, tokens))
        found: dict[tuple[int, int], npt.NDArray[np.float32]] = {}
        longest = max((len(tokens) for *_, tokens in pieces), default=1)
        at_once = max(1, _LOGIT_BYTES // (4 * longest * self._model.config.vocab_size))
        padding = self._tokenizer.pad_token_id or 0
        for start in range(0, len(pieces), at_once):
            batch = pieces[start : start + at_once]
            rows = [tokens for *_, tokens in batch]
            read, mask = padded(rows, self._model.device, padding=padding)
            logits = self._model(input_ids=read, attention_mask=mask).logits
            for row, (number, inside, at, _) in zip(logits, batch, strict=True):
                values = row[at].float().log_softmax(dim=-1)[:, wanted].cpu().numpy()
                found |= {(number, i): of for i, of in zip(inside, values, strict=True)}
        return [
            np.stack([found[number, gap] for gap in range(len(places))])
            for number, (_, places) in enumerate(texts)
        ]

    def _hide(self, gaps: Gaps) -> tuple[list[int], list[int]]:
        """Tokenize a text with a mask in each gap; say where the masks are."""
        masked, starts = gaps.fill([self._tokenizer.mask_token] * len(gaps.spans))
        encoded = self._tokenizer(masked, add_special_tokens=False)
        ids = encoded["input_ids"]
        places = [encoded.char_to_token(start) for start in starts]
        if any(
            place is None or ids[place] != self._tokenizer.mask_token_id
            for place in places
        ):
            raise EngineError(
                "the masked model's tokenizer does not keep its mask token; give"
                " another model"
            )
        return ids, places


_MAKERS: dict[str, Callable[..., Variants]] = {
    "neighbour": neighbours,
    "perturbation": perturbations,
    "paraphrase": paraphrases,
}


class MaskedEngine:
    """Answers fills one after the other, in the order of the requests."""

    def __init__(self, spec: EngineSpec) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = MaskedModel.load(spec.model, spec.revision, device=device)
        self._waiting: deque[Request] = deque()
        self.info = EngineInfo(
            engine=spec.engine,
            version=transformers.__version__,
            device=torch.cuda.get_device_name() if device == "cuda" else device,
            dtype="float32",
            max_model_len=self._model.context,
            max_sequences=1,
        )

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def step(self) -> list[Answer]:
        if not self._waiting:
            return []
        asked = self._waiting.popleft()
        own = {"share": asked.share} if asked.share else {}
        made = _MAKERS[asked.view](
            self._model, asked.text, n=asked.n, seed=asked.seed, **own
        )
        texts = [Continuation(text=text) for text in made.texts]
        return [
            Answer(request_id=asked.request_id, continuations=texts, error=made.reason)
        ]

    def close(self) -> None:
        del self._model
