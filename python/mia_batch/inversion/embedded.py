"""Embeddings of many texts, asked for once: what is complete is kept in blocks."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from mia_batch.evidence.endpoint import EndpointSettings
from mia_batch.tables import READ_ERRORS
from mia_batch.tables.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from mia_batch.inversion.embedders import Embedder
    from mia_batch.observer import Observer

__all__ = ["embed_all"]

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
