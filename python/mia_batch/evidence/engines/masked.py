"""Variants of texts that a masked language model makes, and the engine that is asked for them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from math import ceil
from typing import Any, NamedTuple, Self
from unicodedata import category

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from mia_batch.errors import EngineError, SettingsError, describe_error
from mia_batch.evidence.engines.registry import why_not_finite
from mia_batch.evidence.engines.transformers import pad_rows
from mia_batch.evidence.request import (
    Answer,
    Continuation,
    EngineInfo,
    EngineSpec,
    Request,
)
from mia_batch.models.checkpoint_tokens import NO_LIMIT
from mia_batch.models.tokens import split_specials


def word_spans(text: str) -> list[tuple[int, int]]:
    """Find the words of a text, start and end: between whitespace, less signs at the ends."""
    spans = []
    for match in re.finditer(r"\S+", text):
        # At its ends letters, marks and numbers stay
        inner = [i for i in range(*match.span()) if category(text[i])[0] in "LMN"]
        if inner:
            spans.append((inner[0], inner[-1] + 1))
    return spans


class Gaps(NamedTuple):
    """A text some of whose words are hidden."""

    text: str
    spans: Sequence[tuple[int, int]]  # of the hidden words, in their order

    def fill(self, words: Sequence[str]) -> tuple[str, list[int]]:
        """Fill the gaps; return the text, and the index of each word's first character."""
        filled = ""
        starts = []
        position = 0
        for (start, end), word in zip(self.spans, words, strict=True):
            filled += self.text[position:start]
            starts.append(len(filled))
            filled += word
            position = end
        return filled + self.text[position:], starts


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


def neighbours(
    model: MaskedModel,
    text: str,
    *,
    n: int,
    seed: int,
) -> Variants:
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
    generator = np.random.default_rng([_NEIGHBOUR, seed])
    order = generator.permutation(len(words))[:n]
    gaps = [Gaps(text, [words[index]]) for index in order]
    n_rounds = -(-n // len(words))
    rounds: list[list[str]] = [[] for _ in range(n_rounds)]
    for gap, (logprobs,) in zip(gaps, model.predict(gaps), strict=True):
        hidden = text[slice(*gap.spans[0])]
        replacements = _likeliest_words(model, logprobs, n_rounds, hidden)
        for texts, word in zip(rounds, replacements, strict=False):
            filled, _ = gap.fill([word])
            texts.append(filled)
    return Variants(tuple(chain.from_iterable(rounds))[:n])


def _likeliest_words(
    model: MaskedModel,
    logprobs: npt.NDArray[np.float32],
    n: int,
    hidden: str,
) -> list[str]:
    """List the ``n`` likeliest words other than the hidden one, letter case aside."""
    folded_hidden = hidden.casefold()
    words: dict[str, str] = {}
    for index in np.argsort(-logprobs, kind="stable"):
        word = model.words[index]
        folded = word.casefold()
        if folded != folded_hidden:
            words.setdefault(folded, word)
        if len(words) == n:
            break
    return list(words.values())


def perturbations(
    model: MaskedModel,
    text: str,
    *,
    n: int,
    seed: int,
) -> Variants:
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
    generators = []
    gaps = []
    for number in range(n):
        generator = np.random.default_rng([_PERTURBATION, seed, number])
        hidden = _choose_words(len(words), generator)
        generators.append(generator)
        gaps.append(Gaps(text, [words[index] for index in hidden]))
    texts = []
    predictions = model.predict(gaps)
    for gap, rows, generator in zip(gaps, predictions, generators, strict=True):
        replacements = [model.words[_draw(row, generator)] for row in rows]
        filled, _ = gap.fill(replacements)
        texts.append(filled)
    return Variants(tuple(texts))


def _choose_words(
    n_words: int,
    generator: np.random.Generator,
) -> list[int]:
    """Choose the words to hide, ascending: random spans with a word between any two."""
    n_spans = ceil(_HIDDEN * n_words / _SPAN)
    n_starts = n_words - _SPAN + 1
    free = set(range(n_starts))
    hidden: set[int] = set()
    for start in generator.permutation(n_starts).tolist():
        if start in free and len(hidden) < n_spans * _SPAN:
            hidden.update(range(start, start + _SPAN))
            free.difference_update(range(start - _SPAN, start + _SPAN + 1))
    return sorted(hidden)


def _draw(
    logprobs: npt.NDArray[np.float32],
    generator: np.random.Generator,
) -> int:
    shares = np.exp(logprobs.astype(np.float64))
    return int(generator.choice(len(shares), p=shares / shares.sum()))


_AT_ONCE = 8  # pairs whose probabilities are in memory


def paraphrases(
    model: MaskedModel,
    text: str,
    *,
    n: int,
    seed: int,
    share: float = 0.2,
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
    tokens = vocabulary.cut(text)
    if len(tokens.places) < 2:
        return Variants((), _TOO_SHORT.replace("words", "tokens"))
    n_pairs = -(-n // 2)
    texts: list[str] = []
    for first in range(0, n_pairs, _AT_ONCE):
        generators = [
            np.random.default_rng([_PARAPHRASE, seed, pair])
            for pair in range(first, min(first + _AT_ONCE, n_pairs))
        ]
        hidden = [_hide(tokens.places, share, generator) for generator in generators]
        predictions = model.predict_tokens(tokens, hidden)
        for places, rows, generator in zip(
            hidden,
            predictions,
            generators,
            strict=True,
        ):
            originals = [tokens.token_ids[place] for place in places]
            plus = [int(vocabulary.ids[_draw(row, generator)]) for row in rows]
            minus = vocabulary.mirror(originals, plus)
            texts.append(vocabulary.replace(tokens, places, plus))
            texts.append(vocabulary.replace(tokens, places, minus))
    return Variants(tuple(texts[:n]))


def _hide(
    places: Sequence[int],
    share: float,
    generator: np.random.Generator,
) -> list[int]:
    """Choose the tokens to hide, ascending: each by itself, but at least one."""
    is_hidden = generator.random(len(places)) < share
    if not is_hidden.any():
        is_hidden[generator.integers(len(places))] = True
    return [place for place, hide in zip(places, is_hidden, strict=True) if hide]


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
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        # Each token is decoded as within a text: with its space, without marks of its
        # place.
        anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        n_tokens = min(len(tokenizer), model.config.vocab_size)
        pairs = [[*anchor, token] for token in range(n_tokens)]
        options = {"clean_up_tokenization_spaces": False}
        anchor_text, *texts = tokenizer.batch_decode([anchor, *pairs], **options)
        self._decoded = [text.removeprefix(anchor_text) for text in texts]
        special = set(tokenizer.all_special_ids)
        ids = []
        for token, text in enumerate(self._decoded):
            is_text = text.strip() and _CUT not in text
            if is_text and token not in special:
                ids.append(token)
        self.ids = np.array(ids)

    def cut(self, text: str) -> TokenText:
        """Cut a text into tokens, and find those that can be replaced."""
        encoded = self._tokenizer(
            text,
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        ids: list[int] = encoded["input_ids"]
        spans = []
        for start, end in encoded["offset_mapping"]:
            # Whitespace is left out at both ends
            piece = text[start:end]
            spans.append((end - len(piece.lstrip()), start + len(piece.rstrip())))
        usable = set(self.ids.tolist())
        places = []
        previous_end = 0
        next_starts = [*(start for start, _ in spans[1:]), len(text)]
        for place, (start, end) in enumerate(spans):
            is_apart = previous_end <= start < end <= next_starts[place]
            if is_apart and ids[place] in usable:
                places.append(place)
            previous_end = end
        return TokenText(text, ids, spans, places)

    def replace(
        self,
        original: TokenText,
        places: Sequence[int],
        tokens: Sequence[int],
    ) -> str:
        """Put other tokens in some places, ascending; all else stays, character by character."""
        # A space before one changes only where one of both begins a word and the other
        # goes on.
        replaced = ""
        position = 0
        for place, token in zip(places, tokens, strict=True):
            original_token = original.token_ids[place]
            if token == original_token:
                continue
            start, end = original.spans[place]
            between = original.text[position:start]
            new = self._decoded[token]
            begins_word = new[:1].isspace()
            if begins_word != self._decoded[original_token][:1].isspace():
                if not begins_word:
                    between = between.removesuffix(" ")
                elif start and not between[-1:].isspace():
                    between += " "
            replaced += between + new.strip()
            position = end
        return replaced + original.text[position:]

    def mirror(
        self,
        token_ids: Sequence[int],
        replacements: Sequence[int],
    ) -> list[int]:
        """Find for each token the nearest to where its replacement lies, on its other side."""
        # Euclidean distance to 2 E(t) - E(t+), in the matrix of the model's input
        # embeddings; of two that are as near, the one with the smaller id.
        matrix: Tensor = self._model.get_input_embeddings().weight.detach()
        points = 2 * matrix[list(token_ids)] - matrix[list(replacements)]
        usable, half_squares = self._usable
        # Minus half the squared distance, less |p|^2, which is the same for all.
        nearness = points @ usable.T - half_squares
        nearest: list[int] = self.ids[nearness.argmax(1).cpu().numpy()].tolist()
        return nearest

    @cached_property
    def _usable(self) -> tuple[Tensor, Tensor]:
        """Embeddings of the tokens that are text, and half of each one's squared length."""
        matrix = self._model.get_input_embeddings().weight.detach()
        usable: Tensor = matrix[self.ids.tolist()]
        return usable, usable.square().sum(1) / 2


class _Piece(NamedTuple):
    """Tokens of a text with masks, as many as fit the model's context."""

    text: int  # its number
    masks: list[int]  # numbers of the masks of the text that are in the piece
    positions: list[int]  # where these are
    token_ids: list[int]


_LOGIT_BYTES = 1 << 28
_TEST_TOKENS = 16  # in fewer, some processors' attention hides what is not finite
_UNUSED_POSITIONS = 2  # models of RoBERTa's kind number positions from 2


class MaskedModel:
    """A model of BERT's kind."""

    # ``words`` are what it can put into a gap: those of one token. A text longer than
    # the model's context is read in consecutive pieces of that length. The tokenizer
    # must be of the fast kind, with a mask token.

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
    ) -> None:
        if tokenizer.mask_token is None or not tokenizer.is_fast:
            raise SettingsError(
                "masked_model: its tokenizer has no mask token or is not of the fast "
                "kind; give a model such as distilroberta-base"
            )
        self._model = model.eval()
        self._tokenizer = tokenizer
        n_tokens = min(len(tokenizer), model.config.vocab_size)
        decoded = tokenizer.batch_decode([[token] for token in range(n_tokens)])
        special = set(tokenizer.all_special_ids)
        self._word_ids: list[int] = []
        self.words: list[str] = []
        for token, text in enumerate(map(str.strip, decoded)):
            is_word = word_spans(text) == [(0, len(text))]
            if is_word and token not in special:
                self._word_ids.append(token)
                self.words.append(text)
        if not self._word_ids:
            raise SettingsError(
                "masked_model: no token of it is a word; give another masked model"
            )
        ids, bare_ids = (
            tokenizer("a", add_special_tokens=wanted)["input_ids"]
            for wanted in (True, False)
        )
        self._before, self._after = split_specials(ids, bare_ids)
        self.context: int = tokenizer.model_max_length
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None:
            self.context = min(self.context, positions - _UNUSED_POSITIONS)
        self._room = self.context - len(self._before) - len(self._after)
        tokenizer.model_max_length = NO_LIMIT  # longer texts are cut here

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self._model, self._tokenizer)

    @classmethod
    def load(
        cls,
        model: str,
        revision: str | None = None,
        *,
        device: str = "cpu",
    ) -> Self:
        """Load a model in float32; `SettingsError` if it cannot be or is no masked model."""
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        options = {
            "revision": revision,
            "trust_remote_code": False,
        }
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
            logits = loaded(torch.arange(_TEST_TOKENS)[None]).logits
            if not logits.isfinite().all():
                raise SettingsError(why_not_finite(model, revision, "float32"))
        return cls(loaded.to(device), tokenizer)

    def predict(self, texts: Sequence[Gaps]) -> list[npt.NDArray[np.float32]]:
        """Compute how likely each word is in each gap, all gaps of a text hidden at once."""
        return self._predict([self._hide(gaps) for gaps in texts], self._word_ids)

    def predict_tokens(
        self,
        text: TokenText,
        hidden: Sequence[Sequence[int]],
    ) -> list[npt.NDArray[np.float32]]:
        """Compute how likely each token is in place of hidden ones, for each choice of these."""
        texts = []
        for places in hidden:
            ids = list(text.token_ids)
            for place in places:
                ids[place] = self._tokenizer.mask_token_id
            texts.append((ids, places))
        return self._predict(texts, self.vocabulary.ids.tolist())

    @torch.inference_mode()
    def _predict(
        self,
        texts: Sequence[tuple[list[int], Sequence[int]]],
        candidates: list[int],
    ) -> list[npt.NDArray[np.float32]]:
        """Compute the log-probabilities of candidates at the masks of tokenized texts."""
        pieces = self._cut_pieces(texts)
        longest = max((len(piece.token_ids) for piece in pieces), default=1)
        logit_bytes = 4 * longest * self._model.config.vocab_size
        at_once = max(1, _LOGIT_BYTES // logit_bytes)
        padding = self._tokenizer.pad_token_id or 0
        values: dict[tuple[int, int], npt.NDArray[np.float32]] = {}
        for start in range(0, len(pieces), at_once):
            batch = pieces[start : start + at_once]
            token_ids, attention_mask = pad_rows(
                [piece.token_ids for piece in batch],
                self._model.device,
                padding=padding,
            )
            output = self._model(input_ids=token_ids, attention_mask=attention_mask)
            for logits, piece in zip(output.logits, batch, strict=True):
                logprobs = logits[piece.positions].float().log_softmax(dim=-1)
                rows = logprobs[:, candidates].cpu().numpy()
                for mask, row in zip(piece.masks, rows, strict=True):
                    values[piece.text, mask] = row
        predictions = []
        for number, (_, places) in enumerate(texts):
            rows = [values[number, mask] for mask in range(len(places))]
            predictions.append(np.stack(rows))
        return predictions

    def _cut_pieces(
        self, texts: Sequence[tuple[list[int], Sequence[int]]]
    ) -> list[_Piece]:
        """Cut texts, each with the places of its masks, into pieces that have some of these."""
        pieces = []
        for number, (ids, places) in enumerate(texts):
            for start in range(0, len(ids), self._room):
                end = start + self._room
                masks = [i for i, place in enumerate(places) if start <= place < end]
                if not masks:
                    continue
                offset = len(self._before) - start
                piece = _Piece(
                    text=number,
                    masks=masks,
                    positions=[places[mask] + offset for mask in masks],
                    token_ids=[*self._before, *ids[start:end], *self._after],
                )
                pieces.append(piece)
        return pieces

    def _hide(self, gaps: Gaps) -> tuple[list[int], list[int]]:
        """Tokenize a text with a mask in each gap; return also where the masks are."""
        mask_id = self._tokenizer.mask_token_id
        text, starts = gaps.fill([self._tokenizer.mask_token] * len(gaps.spans))
        encoded = self._tokenizer(text, add_special_tokens=False)
        ids = encoded["input_ids"]
        places = [encoded.char_to_token(start) for start in starts]
        if any(place is None or ids[place] != mask_id for place in places):
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
        request = self._waiting.popleft()
        options: dict[str, Any] = {
            "n": request.n,
            "seed": request.seed,
        }
        if request.share:
            options["share"] = request.share
        make_variants = _MAKERS[request.view]
        variants = make_variants(self._model, request.text, **options)
        answer = Answer(
            request_id=request.request_id,
            continuations=[Continuation(text=text) for text in variants.texts],
            error=variants.reason,
        )
        return [answer]

    def close(self) -> None:
        del self._model
