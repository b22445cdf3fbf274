"""Files of canaries: sets of texts, committed by a hash, of which one text each was published.

A file is JSON Lines, one set a line::

    {"set": "poem-1", "texts": ["...", "..."], "commitment": "...", "seed": 7, "published": 1}

The commitment is the SHA-256 of ``{"set":"poem-1","texts":["...","..."]}``, the JSON of these two
without spaces, in UTF-8 with only what JSON must escape escaped. It must be lodged where it cannot
be changed before the seed is drawn, by dice or any source that its owner cannot choose; the order
of the texts does not matter. The published text is the one at
``numpy.random.default_rng([seed, int(commitment, 16)]).integers(len(texts))``, counted from 0; the
others, its controls, must stay unpublished. The file must hold every committed set: leaving sets
out after a look at their scores would make the p-value worthless.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import polars as pl
from pydantic import BaseModel, Field, ValidationError

from mia_batch.errors import CorpusError
from mia_batch.schemas import Documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["CanarySet", "canary_documents", "commitment", "draw", "read_canaries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySet:
    """One committed set: at least two texts, all different; the name is unique in its file."""

    name: str
    texts: tuple[str, ...]
    published: int  # index of the published text


def commitment(name: str, texts: Sequence[str]) -> str:
    """Return the SHA-256 that commits to a set, 64 hexadecimal digits."""
    content = {"set": name, "texts": list(texts)}
    compact = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return sha256(compact.encode()).hexdigest()


def draw(committed: str, n_texts: int, seed: int) -> int:
    """Return the index of the text to publish; sets with one seed draw independently."""
    return int(np.random.default_rng([seed, int(committed, 16)]).integers(n_texts))


def read_canaries(path: Path) -> list[CanarySet]:
    """Read a file of canaries and check every set against its commitment and its draw."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be read as canaries: {error}"
        raise CorpusError(msg) from error
    sets: dict[str, CanarySet] = {}
    for number, line in enumerate(lines, start=1):
        try:
            found = _checked(line)
            if found.name in sets:
                _refuse(f"the set {found.name!r} comes twice; give each set one line")
        except ValueError as error:
            msg = f"{path}, line {number}: {error}"
            raise CorpusError(msg) from error
        sets[found.name] = found
    return list(sets.values())


def canary_documents(sets: Iterable[CanarySet]) -> pl.DataFrame:
    """Make documents of canaries: a set is a group, its published text the group's only member."""
    rows = [
        {
            "document_id": f"{one.name}/{index}",
            "text": text,
            "member": index == one.published,
            "group": one.name,
        }
        for one in sets
        for index, text in enumerate(one.texts)
    ]
    return pl.DataFrame(rows, schema=Documents.create_empty().schema)


class _Line(BaseModel, extra="forbid", strict=True):
    set: str
    texts: list[str] = Field(min_length=2)
    commitment: str
    seed: int = Field(ge=0)
    published: int


def _checked(line: str) -> CanarySet:
    """Read one line; ValueError says what is wrong and what to do."""
    try:
        given = _Line.model_validate_json(line)
    except ValidationError as error:
        fault = error.errors()[0]
        where = "".join(f"{part!r}: " for part in fault["loc"][:1])
        _refuse(f"this is not a set of canaries ({where}{fault['msg']}); correct the line")
    if len(set(given.texts)) < len(given.texts):
        _refuse(f"the set {given.set!r} has a text twice; give each text once")
    if commitment(given.set, given.texts) != given.commitment:
        _refuse(f"the texts of the set {given.set!r} are not those committed; give those")
    if given.published != draw(given.commitment, len(given.texts), given.seed):
        _refuse(f"the seed of the set {given.set!r} draws another text; correct 'published'")
    return CanarySet(name=given.set, texts=tuple(given.texts), published=given.published)


def _refuse(what: str) -> NoReturn:
    raise ValueError(what)
