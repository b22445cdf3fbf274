"""A masked language model: which words could stand in the gaps of a text."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.masked.gaps import word_spans
from mia_batch.evidence.engines.masked.vocabulary import Vocabulary
from mia_batch.models.causes import cause_of
from mia_batch.models.specials import NO_LIMIT, find_specials

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from mia_batch.evidence.engines.masked.gaps import Gaps
    from mia_batch.evidence.engines.masked.vocabulary import TokenText

__all__ = ["MaskedModel"]

_LOGIT_BYTES = 1 << 28
_TEST_TOKENS = 12
_UNUSED_POSITIONS = 2  # models of RoBERTa's kind number positions from 2


class _Piece(NamedTuple):
    """Consecutive tokens of a text, special tokens included."""

    token_ids: list[int]
    gaps: list[int]
    """Which masks of all that a text has are in it."""
    places: list[int]
    """Where they are in ``token_ids``."""


class MaskedModel:
    """A model of BERT's kind.

    ``words`` are what it can put into a gap: those of one token. A text longer than the model's
    context is read in consecutive pieces of that length. The tokenizer must be of the fast kind,
    with a mask token.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
        if tokenizer.mask_token is None or not tokenizer.is_fast:
            msg = (
                "setting 'masked_model': its tokenizer has no mask token or is not of the fast "
                "kind; give a model such as distilroberta-base"
            )
            raise SettingsError(msg)
        self._model = model.eval()
        self._tokenizer = tokenizer
        known = min(len(tokenizer), model.config.vocab_size)
        decoded = tokenizer.batch_decode([[i] for i in range(known)])
        special = set(tokenizer.all_special_ids)
        words = [
            (i, text.strip())
            for i, text in enumerate(decoded)
            if i not in special and word_spans(text.strip()) == [(0, len(text.strip()))]
        ]
        if not words:
            msg = "setting 'masked_model': no token of it is a word; give another masked model"
            raise SettingsError(msg)
        self._word_ids = [i for i, _ in words]
        self.words: list[str] = [word for _, word in words]
        self._before, self._after = find_specials(tokenizer)
        self.context = self._context()
        self._room = self.context - len(self._before) - len(self._after)
        tokenizer.model_max_length = NO_LIMIT  # longer texts are cut here

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Tokens that can stand in place of others."""
        return Vocabulary(self._model, self._tokenizer)

    @classmethod
    def load(cls, model: str, revision: str | None = None, *, device: str = "cpu") -> Self:
        """Load a model in float32; `SettingsError` if it cannot be or is no masked model."""
        import torch
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        from mia_batch.evidence.engines.probe import why_not_finite

        options = {"revision": revision, "trust_remote_code": False}
        try:
            tokenizer = AutoTokenizer.from_pretrained(model, **options)
            loaded = AutoModelForMaskedLM.from_pretrained(model, dtype=torch.float32, **options)
        except Exception as error:  # every library behind it raises its own kind
            msg = (
                f"setting 'masked_model': {model!r} cannot be loaded ({cause_of(error)}); give a "
                "masked language model, with its tokenizer, such as distilroberta-base"
            )
            raise SettingsError(msg) from error
        with torch.inference_mode():
            if not loaded(torch.arange(_TEST_TOKENS)[None]).logits.isfinite().all():
                raise SettingsError(why_not_finite(model, revision, "float32"))
        return cls(loaded.to(device), tokenizer)

    def predict(self, texts: Sequence[Gaps]) -> list[npt.NDArray[np.float32]]:
        """Say how likely each word is in each gap, all gaps of a text hidden at once.

        One array per text: float32, gaps by `words`, natural log of the probability. A text takes a
        forward pass, a long one several.
        """
        return self._predict([self._hide(gaps) for gaps in texts], self._word_ids)

    def predict_tokens(
        self, text: TokenText, hidden: Sequence[Sequence[int]]
    ) -> list[npt.NDArray[np.float32]]:
        """Say how likely each token is in place of hidden ones, for several choices of these.

        One array per choice: float32, hidden tokens by ids of the `vocabulary`, natural log of the
        probability.
        """
        masked = []
        for places in hidden:
            ids = list(text.token_ids)
            for place in places:
                ids[place] = self._tokenizer.mask_token_id
            masked.append((ids, places))
        return self._predict(masked, self.vocabulary.ids.tolist())

    def _predict(
        self, texts: Sequence[tuple[list[int], Sequence[int]]], wanted: list[int]
    ) -> list[npt.NDArray[np.float32]]:
        """Log-probabilities of the wanted tokens at some places of texts, which are masked."""
        pieces = [
            (number, piece)
            for number, (ids, places) in enumerate(texts)
            for piece in self._cut(ids, places)
        ]
        found: dict[tuple[int, int], npt.NDArray[np.float32]] = {}
        longest = max((len(piece.token_ids) for _, piece in pieces), default=1)
        at_once = max(1, _LOGIT_BYTES // (4 * longest * self._model.config.vocab_size))
        for start in range(0, len(pieces), at_once):
            batch = pieces[start : start + at_once]
            predictions = self._run([piece for _, piece in batch], wanted)
            for (number, piece), of_piece in zip(batch, predictions, strict=True):
                found |= {(number, gap): of for gap, of in zip(piece.gaps, of_piece, strict=True)}
        return [
            np.stack([found[number, gap] for gap in range(len(places))])
            for number, (_, places) in enumerate(texts)
        ]

    def _hide(self, gaps: Gaps) -> tuple[list[int], list[int]]:
        """Tokenize a text with a mask in each gap; say where the masks are."""
        masked, starts = gaps.fill([self._tokenizer.mask_token] * len(gaps.spans))
        encoded = self._tokenizer([masked], add_special_tokens=False)
        ids = encoded["input_ids"][0]
        places = [encoded.char_to_token(0, start) for start in starts]
        if any(place is None or ids[place] != self._tokenizer.mask_token_id for place in places):
            msg = "the masked model's tokenizer does not keep its mask token; give another model"
            raise EngineError(msg)
        return ids, places

    def _cut(self, ids: list[int], places: Sequence[int]) -> list[_Piece]:
        """Cut a text into pieces and keep those that have masks."""
        pieces = []
        for begin in range(0, len(ids), self._room):
            inside = [i for i, place in enumerate(places) if 0 <= place - begin < self._room]
            tokens = [*self._before, *ids[begin : begin + self._room], *self._after]
            if inside:
                at = [places[i] - begin + len(self._before) for i in inside]
                pieces.append(_Piece(tokens, inside, at))
        return pieces

    def _run(self, pieces: Sequence[_Piece], wanted: list[int]) -> list[npt.NDArray[np.float32]]:
        import torch

        longest = max(len(piece.token_ids) for piece in pieces)
        padding = self._tokenizer.pad_token_id or 0
        rows = [piece.token_ids + [padding] * (longest - len(piece.token_ids)) for piece in pieces]
        read = [[1] * len(piece.token_ids) for piece in pieces]
        mask = [row + [0] * (longest - len(row)) for row in read]
        device = self._model.device
        with torch.inference_mode():
            logits = self._model(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
            ).logits
            return [
                row[piece.places].float().log_softmax(dim=-1)[:, wanted].cpu().numpy()
                for row, piece in zip(logits, pieces, strict=True)
            ]

    def _context(self) -> int:
        positions = getattr(self._model.config, "max_position_embeddings", None)
        length: int = self._tokenizer.model_max_length
        return length if positions is None else min(length, positions - _UNUSED_POSITIONS)
