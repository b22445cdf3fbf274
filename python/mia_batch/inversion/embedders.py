"""Embeddings of texts, from a checkpoint, an endpoint or sentence-transformers."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import EndpointSettings
from mia_batch.models.weights import cause_of, digest_folder, identify_model, quiet
from mia_batch.tables import READ_ERRORS, replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from mia_batch.observer import Observer


# What an inversion says, in words.


def sentence(found: pl.DataFrame, n_auxiliary: int) -> str:
    """Say what the figures show, and what they do not."""
    f1 = {row["method"]: row for row in _rows(found, None)}
    value = f1["inverter"]["value"]
    if value is None:
        return f"Nothing can be said of the embeddings: {f1['inverter']['reason']}."
    limits = _limits(f1["inverter"])
    lead = {row["method"]: row for row in _rows(found, "nearest")}["inverter"]
    gain = {row["method"]: row for row in _rows(found, "shuffled")}["inverter"]
    others = (f"{f1[name]['value']:.3f}" for name in ("nearest", "shuffled"))
    near, other = others
    said = (
        f"A decoder that was trained on {n_auxiliary:,} auxiliary texts and their embeddings gives "
        f"back tokens of the others with a micro F1 of {value:.3f}{limits}; the auxiliary text of "
        f"the nearest embedding has {near}, the decoder with the embedding of another text {other}."
    )
    if not _is_above(gain):
        return (
            f"{said} So nothing shows that it reads the embeddings at all, which does not prove "
            "that no attacker could."
        )
    if not _is_above(lead):
        return (
            f"{said} So it reads the embeddings, but nothing shows that it gives back more than a "
            "search among known texts; another attacker might."
        )
    return (
        f"{said} So the embeddings give away words of texts that the attacker never saw. It is a "
        "lower bound of what they hold: a larger decoder, or more texts, may give back more."
    )


def _rows(found: pl.DataFrame, versus: str | None) -> list[dict[str, Any]]:
    rows = found.filter(unit="tokens", metric="f1").to_dicts()
    return [row for row in rows if row["versus"] == versus]


def _is_above(difference: dict[str, Any]) -> bool:
    return difference["low"] is not None and difference["low"] > 0


def _limits(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return f" (no interval: {row['reason']})"
    return f" (95 % interval {row['low']:.3f} to {row['high']:.3f})"


# Embedders: what turns a text into one vector, which an attacker is taken to hold.


_TOKENS_AT_ONCE = 8192
_NO_LIMIT = 10**9


class Embedder(Protocol):
    """Gives an embedding, or the reason why there is none, for each of some texts."""

    identity: str
    """Of equal ones the embeddings are the same."""

    def embed(self, texts: Sequence[str]) -> list[NDArray[np.float32] | str]:
        """Embed texts of at least one character that is no space."""


class TransformersEmbedder:
    """The mean of a checkpoint's last hidden states over the tokens of a text, never over padding.

    Special tokens that the tokenizer puts around a text count, as they do in PrivLM-Bench and in
    sentence-transformers. Of an encoder-decoder model it is the encoder. Causal models are pooled
    in the same way: a text's embedding is the mean, not the state of its last token.
    """

    def __init__(self, model: str, revision: str | None = None) -> None:
        from mia_batch.models.weights import tokenizer_source

        self.identity = identify_model(model, revision, "any").digest
        self._model = _load(model, revision)
        self._tokenizer = _tokenizer(*tokenizer_source(model, revision))
        self._longest = _context(self._model)

    def embed(self, texts: Sequence[str]) -> list[NDArray[np.float32] | str]:
        """Embed texts, those of about one length together."""
        rows: list[list[int]] = self._tokenizer(list(texts), truncation=False)["input_ids"]
        found: list[NDArray[np.float32] | str] = [_too_long(row, self._longest) for row in rows]
        fits = [i for i, row in enumerate(rows) if 0 < len(row) <= self._longest]
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

        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        device = self._model.device
        with torch.inference_mode():
            given = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
            states = self._model(**given, output_hidden_states=True).hidden_states[-1]
            weights = mask.to(device)[:, :, None].to(torch.float32)
            means = (states.float() * weights).sum(1) / weights.sum(1)
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
        self.identity = _digest_of_tree(Path(model))
        self._longest = self._model.max_seq_length or _NO_LIMIT

    def embed(self, texts: Sequence[str]) -> list[NDArray[np.float32] | str]:
        """Embed texts; the library would cut those that are too long without a word."""
        rows = self._model.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        found: list[NDArray[np.float32] | str] = [_too_long(row, self._longest) for row in rows]
        fits = [i for i, row in enumerate(rows) if 0 < len(row) <= self._longest]
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

    from mia_batch.models.weights import read_adapter

    if (adapter := read_adapter(model)) is not None:
        from mia_batch.evidence.engines.pretrained import load_pretrained
        from mia_batch.evidence.request import EngineSpec

        if adapter.virtual_tokens:
            raise SettingsError(
                f"the embedder {model!r} is an adapter of virtual tokens, whose states are no "
                "text's; give its base, or an adapter such as LoRA"
            )
        spec = EngineSpec(engine="transformers", kind="logprobs", model=model, revision=revision)
        return load_pretrained(spec).model
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


def _tokenizer(model: str, revision: str | None) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False)
    loaded.model_max_length = _NO_LIMIT  # lengths are checked against the context
    return loaded


def _context(model: PreTrainedModel) -> int:
    """Most tokens that a model reads; of RoBERTa's kind positions are numbered from 2."""
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if length is None:
        return _NO_LIMIT
    from_pad = getattr(getattr(model, "embeddings", None), "padding_idx", None)
    return int(length) - (0 if from_pad in (None, 0) else from_pad + 1)


def _too_long(row: Sequence[int], longest: int) -> str:
    if not row:
        return "the embedder's tokenizer finds no token in the text"
    return f"the text has {len(row):,} tokens, more than the {longest:,} that the embedder reads"


def _digest_of_tree(folder: Path) -> str:
    """SHA-256 of a folder of modules, each as `digest_folder` does it."""
    folders = [folder, *sorted(path for path in folder.rglob("*") if path.is_dir())]
    parts = (f"{path.relative_to(folder)}\0{digest_folder(str(path))}" for path in folders)
    return sha256("\n".join(parts).encode()).hexdigest()


# Embeddings of many texts, asked for once: what is complete is kept in blocks.


_TEXTS_OF_BLOCK = 64


def embed_all(
    texts: Sequence[str], embedder: Embedder | EndpointSettings, folder: Path, observer: Observer
) -> list[NDArray[np.float32] | str]:
    """Embed texts, equal ones once; for each an embedding, or the reason why there is none.

    Blocks lie in the folder, named by a hash of the embedder and their texts, and are not asked for
    again, whether texts were added or the process was killed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    identity = _identity(embedder)
    found: dict[str, NDArray[np.float32] | str] = {}
    missing: list[list[str]] = []
    for block in _blocks(list(dict.fromkeys(texts))):
        if (known := _read(_place(folder, identity, block))) is None:
            missing.append(block)
        else:
            found.update(zip(block, known, strict=True))

    def take(number: int, embedded: list[NDArray[np.float32] | str]) -> None:
        block = missing[number]
        _write(embedded, _place(folder, identity, block))
        found.update(zip(block, embedded, strict=True))
        observer.worked(len(block), 0)

    left = sum(map(len, missing))
    if missing:
        with observer.progress("embedding", done=len(found), left=left):
            if isinstance(embedder, EndpointSettings):
                from mia_batch.evidence.endpoint.embeddings import embed_at

                embed_at(embedder, missing, folder / "journal.sqlite", take)
            else:
                for number, block in enumerate(missing):
                    take(number, embedder.embed(block))
    return [found[text] for text in texts]


def _blocks(texts: list[str]) -> Iterator[list[str]]:
    starts = range(0, len(texts), _TEXTS_OF_BLOCK)
    return (texts[start : start + _TEXTS_OF_BLOCK] for start in starts)


def _identity(embedder: Embedder | EndpointSettings) -> str:
    if isinstance(embedder, EndpointSettings):
        return f"{embedder.base_url.rstrip('/')}\0{embedder.model}"
    return embedder.identity


def _place(folder: Path, identity: str, block: Sequence[str]) -> Path:
    content = "\0".join(sha256(each.encode()).hexdigest() for each in (identity, *block))
    return folder / f"{sha256(content.encode()).hexdigest()[:32]}.parquet"


def _write(embedded: list[NDArray[np.float32] | str], path: Path) -> None:
    vectors = [None if isinstance(each, str) else each.tolist() for each in embedded]
    reasons = [each if isinstance(each, str) else None for each in embedded]
    frame = pl.DataFrame(
        {"embedding": vectors, "reason": reasons},
        schema={"embedding": pl.List(pl.Float32), "reason": pl.String},
    )
    with replacing(path) as stream:
        frame.write_parquet(stream)


def _read(path: Path) -> list[NDArray[np.float32] | str] | None:
    """Read a block; None where there is none that is sound."""
    try:
        rows = pl.read_parquet(path, glob=False).rows()
    except (*READ_ERRORS, OSError):
        return None
    return [reason if each is None else np.array(each, np.float32) for each, reason in rows]
