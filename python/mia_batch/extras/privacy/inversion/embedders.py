"""Embedders, embeddings of many texts that are asked for once, and what an inversion says."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import ClientSettings
from mia_batch.models.weights import (
    cause_of,
    digest_folder,
    identify_model,
    quiet,
    read_adapter,
    tokenizer_source,
)
from mia_batch.observer import Observer
from mia_batch.tables import READ_ERRORS, replacing

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def sentence(found: pl.DataFrame, n_auxiliary: int) -> str:
    """Say what the figures show, and what they do not."""
    rows = found.filter(unit="tokens", metric="f1").to_dicts()
    f1 = {(row["method"], row["versus"]): row for row in rows}
    own = f1["inverter", None]
    if own["value"] is None:
        return f"Nothing can be said of the embeddings: {own['reason']}."
    limits = f"no interval: {own['reason']}"
    if own["low"] is not None:
        limits = f"95 % interval {own['low']:.3f} to {own['high']:.3f}"
    near, other = (f"{f1[name, None]['value']:.3f}" for name in ("nearest", "shuffled"))
    leads, gains = ((f1["inverter", name]["low"] or 0) > 0 for name in ("nearest", "shuffled"))
    said = (
        f"A decoder that was trained on {n_auxiliary:,} auxiliary texts and their embeddings gives "
        f"back tokens of the others with a micro F1 of {own['value']:.3f} ({limits}); the "
        f"auxiliary text of the nearest embedding has {near}, the decoder with the embedding of "
        f"another text {other}."
    )
    if not gains:
        return (
            f"{said} So nothing shows that it reads the embeddings at all, which does not prove "
            "that no attacker could."
        )
    if not leads:
        return (
            f"{said} So it reads the embeddings, but nothing shows that it gives back more than a "
            "search among known texts; another attacker might."
        )
    return (
        f"{said} So the embeddings give away words of texts that the attacker never saw. It is a "
        "lower bound of what they hold: a larger decoder, or more texts, may give back more."
    )


_TOKENS_AT_ONCE = 8192
_NO_LIMIT = 10**9

Found: TypeAlias = NDArray[np.float32] | str
"""An embedding, or the reason why there is none."""


class Embedder(Protocol):
    """Gives an embedding, or the reason why there is none, for each of some texts."""

    identity: str
    """Of equal ones the embeddings are the same."""

    def embed(self, texts: Sequence[str]) -> list[Found]:
        """Embed texts of at least one character that is no space."""


class TransformersEmbedder:
    """The mean of a checkpoint's last hidden states over the tokens of a text, never over padding.

    Special tokens that the tokenizer puts around a text count, as they do in PrivLM-Bench and in
    sentence-transformers. Of an encoder-decoder model it is the encoder. Causal models are pooled
    in the same way: a text's embedding is the mean, not the state of its last token.
    """

    def __init__(self, model: str, revision: str | None = None) -> None:
        from transformers import AutoTokenizer

        self.identity = identify_model(model, revision, "any").digest
        self._model = _load(model, revision)
        name, revision = tokenizer_source(model, revision)
        self._tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=False
        )
        self._tokenizer.model_max_length = _NO_LIMIT  # lengths are checked against the context
        self._longest = _context(self._model)

    def embed(self, texts: Sequence[str]) -> list[Found]:
        """Embed texts, those of about one length together."""
        rows: list[list[int]] = self._tokenizer(list(texts), truncation=False)["input_ids"]
        found, fits = _fitting(rows, self._longest)
        fits.sort(key=lambda i: len(rows[i]))
        while fits:
            at_once = max(1, _TOKENS_AT_ONCE // len(rows[fits[-1]]))
            some, fits = fits[-at_once:], fits[:-at_once]
            for i, mean in zip(some, self._pooled([rows[i] for i in some]), strict=True):
                found[i] = mean
        return found

    def _pooled(self, rows: list[list[int]]) -> NDArray[np.float32]:
        """Average the last hidden states of each row over its own tokens."""
        import torch

        from mia_batch.extras.tune.training import padded

        batch = padded([{"input_ids": row, "labels": []} for row in rows])
        ids, mask = (batch[name].to(self._model.device) for name in ("input_ids", "attention_mask"))
        with torch.inference_mode():
            said = self._model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
            weights = mask[:, :, None].to(torch.float32)
            means = (said.hidden_states[-1].float() * weights).sum(1) / weights.sum(1)
        return np.asarray(means.cpu().numpy())


class SentenceEmbedder:
    """A sentence-transformers model, as that library embeds with it."""

    def __init__(self, model: str, revision: str | None = None) -> None:
        from sentence_transformers import SentenceTransformer

        try:
            self._model = SentenceTransformer(model, revision=revision, trust_remote_code=False)
        except Exception as error:  # every library behind it raises its own kind
            raise SettingsError(
                f"the embedder {model!r} cannot be loaded by sentence-transformers "
                f"({cause_of(error)})"
            ) from error
        folder = Path(model)
        folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
        parts = (f"{path.relative_to(folder)}\0{digest_folder(str(path))}" for path in folders)
        self.identity = sha256("\n".join(parts).encode()).hexdigest()
        self._longest = self._model.max_seq_length or _NO_LIMIT

    def embed(self, texts: Sequence[str]) -> list[Found]:
        """Embed texts; the library would cut those that are too long without a word."""
        rows = self._model.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        found, fits = _fitting(rows, self._longest)
        if fits:
            means = self._model.encode([texts[i] for i in fits], show_progress_bar=False)
            for i, mean in zip(fits, means, strict=True):
                found[i] = np.asarray(mean, np.float32)
        return found


@quiet()
def open_embedder(model: str, revision: str | None = None) -> Embedder:
    """Load a folder that sentence-transformers saved by it, any other checkpoint by transformers.

    Raises `SettingsError` if it cannot be loaded.
    """
    if Path(model, "modules.json").is_file():
        return SentenceEmbedder(model, revision)
    return TransformersEmbedder(model, revision)


def _load(model: str, revision: str | None) -> PreTrainedModel:
    """Load the part of a checkpoint that reads texts; an adapter is put beside its base."""
    import torch
    from transformers import AutoConfig, AutoModel

    if (adapter := read_adapter(model)) is not None:
        from mia_batch.evidence.engines.transformers import Pretrained
        from mia_batch.evidence.request import EngineSpec

        if adapter.virtual_tokens:
            raise SettingsError(
                f"the embedder {model!r} is an adapter of virtual tokens, whose states are no "
                "text's; give its base, or an adapter such as LoRA"
            )
        spec = EngineSpec(engine="transformers", kind="logprobs", model=model, revision=revision)
        return Pretrained(spec).model
    options = {"revision": revision, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(model, **options)
        loaded = AutoModel.from_pretrained(model, dtype=torch.float32, **options)
    except Exception as error:  # of any library
        raise SettingsError(
            f"the embedder {model!r} cannot be loaded ({cause_of(error)})"
        ) from error
    reads = loaded.get_encoder() if config.is_encoder_decoder else loaded
    return reads.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def _context(model: PreTrainedModel) -> int:
    """Most tokens that a model reads; of RoBERTa's kind positions are numbered from 2."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        return _NO_LIMIT
    from_pad = getattr(getattr(model, "embeddings", None), "padding_idx", None)
    return int(length) - (0 if from_pad in (None, 0) else from_pad + 1)


def _fitting(rows: Sequence[Sequence[int]], longest: int) -> tuple[list[Found], list[int]]:
    """Say of each row of tokens why it cannot be embedded; list those that can be."""
    empty = "the embedder's tokenizer finds no token in the text"
    long = "the text has {:,} tokens, more than the {:,} that the embedder reads"
    reasons: list[Found] = [long.format(len(row), longest) if row else empty for row in rows]
    return reasons, [i for i, row in enumerate(rows) if 0 < len(row) <= longest]


_TEXTS_OF_BLOCK = 64


def embed_all(
    texts: Sequence[str], embedder: Embedder | ClientSettings, folder: Path, observer: Observer
) -> list[Found]:
    """Embed texts, equal ones once; for each an embedding, or the reason why there is none.

    Blocks lie in the folder, named by a hash of the embedder and their texts, and are not asked for
    again, whether texts were added or the process was killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(embedder, ClientSettings):
        identity = f"{embedder.base_url.rstrip('/')}\0{embedder.model}"
    else:
        identity = embedder.identity
    found: dict[str, Found] = {}
    missing: list[list[str]] = []
    distinct = list(dict.fromkeys(texts))
    for start in range(0, len(distinct), _TEXTS_OF_BLOCK):
        block = distinct[start : start + _TEXTS_OF_BLOCK]
        if (known := _read(_place(folder, identity, block))) is None:
            missing.append(block)
        else:
            found.update(zip(block, known, strict=True))

    def take(number: int, embedded: list[Found]) -> None:
        block = missing[number]
        _write(embedded, _place(folder, identity, block))
        found.update(zip(block, embedded, strict=True))
        observer.worked(len(block), 0)

    left = sum(map(len, missing))
    if missing:
        with observer.progress("embedding", done=len(found), left=left):
            if isinstance(embedder, ClientSettings):
                from mia_batch.evidence.endpoint.client import embed_at

                embed_at(embedder, missing, folder / "journal.sqlite", take)
            else:
                for number, block in enumerate(missing):
                    take(number, embedder.embed(block))
    return [found[text] for text in texts]


def _place(folder: Path, identity: str, block: Sequence[str]) -> Path:
    content = "\0".join(sha256(each.encode()).hexdigest() for each in (identity, *block))
    return folder / f"{sha256(content.encode()).hexdigest()[:32]}.parquet"


def _write(embedded: list[Found], path: Path) -> None:
    vectors = [None if isinstance(each, str) else each.tolist() for each in embedded]
    reasons = [each if isinstance(each, str) else None for each in embedded]
    frame = pl.DataFrame(
        {"embedding": vectors, "reason": reasons},
        schema={"embedding": pl.List(pl.Float32), "reason": pl.String},
    )
    with replacing(path) as stream:
        frame.write_parquet(stream)


def _read(path: Path) -> list[Found] | None:
    """Read a block; None where there is none that is sound."""
    try:
        rows = pl.read_parquet(path, glob=False).rows()
    except (*READ_ERRORS, OSError):
        return None
    return [reason if each is None else np.array(each, np.float32) for each, reason in rows]
