"""Which secrets a model is asked about, after which contexts, and beside which controls."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from random import Random
from typing import Any

import polars as pl

from mia_batch.corpus import ColumnNames, find_files, read_documents
from mia_batch.corpus.files import FORMATS, Reading
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.secrets.controls import (
    Form,
    build_form,
    draw_controls,
    guess_kind,
)
from mia_batch.identifiers import KINDS, Kind, find_identifiers

__all__ = [
    "NEUTRAL",
    "Design",
    "Questions",
    "Secret",
    "build_questions",
    "detect_secrets",
    "hash_texts",
    "read_secrets",
    "split_context",
]

NEUTRAL = "\n"
"""What stands before a secret that is asked for without any context."""
MOST_SECRETS = 10_000
_MOST_TEXTS = 500_000
_MOST_BYTES = 1 << 28  # of a file of secrets
_LONGEST = 4096  # characters of a secret
_CONTEXT = 200  # characters before an identifier that is found
_MOST_CONTEXTS = 100  # that are kept of a secret, the first ones
_OTHERS_TRIED = 20
_LEAD = re.compile(r"\s+\Z|[^\w\s]\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """How a model is asked.

    Attributes
    ----------
    controls
        Controls of each secret.
    draws
        Answers that are drawn after each context, besides the likeliest one.
    most_contexts
        Contexts of each secret; of more, some are drawn.
    seed
        Draws controls and contexts.
    """

    controls: int = 199
    draws: int = 0
    most_contexts: int = 3
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret with what stood before it.

    Attributes
    ----------
    text
        The secret itself, which no table or file is to hold.
    kind
        What it is: one of `mia_batch.identifiers.KINDS`, or ``"secret"``.
    row
        Where it stands first: row of the file or document of the corpus, from 1.
    n_rows
        How often it stands there.
    contexts
        Its contexts, each once.
    """

    text: str = field(repr=False)
    kind: str
    row: int
    n_rows: int = 1
    contexts: tuple[str, ...] = field(default=(), repr=False)

    @property
    def usable_contexts(self) -> tuple[str, ...]:
        """Contexts that do not hold the secret already."""
        return tuple(text for text in self.contexts if self.text not in text)


def read_secrets(path: str, secret: str, context: str) -> list[Secret]:
    """Read the secrets of a file: a column of them, and where there is one of contexts."""
    source = find_files(path)
    source.refuse_unreadable()
    reader, reading = FORMATS[source.kind], Reading()
    schema = reader.read_schema(source.files, reading)
    if not schema:
        raise CorpusError(f"{path} has no rows; give a file of secrets, one in each")
    if secret not in schema:
        raise CorpusError(
            f"{path} has no column {secret!r}, only {', '.join(map(repr, schema))};"
            " name the column of the secrets (--secret-column), or look for identifiers"
            f" in texts (--detect {','.join(KINDS)})"
        )
    columns = [secret, *([context] if context in schema else [])]
    rows: list[tuple[str, str | None]] = []
    n_bytes = 0
    for frame in reader.read_rows(source.files, schema, columns, reading):
        n_bytes += int(frame.estimated_size())
        if n_bytes > _MOST_BYTES:
            raise CorpusError(
                f"{path} has more than {_MOST_BYTES >> 20} MiB of secrets and contexts;"
                " give fewer of them"
            )
        texts = frame.select(pl.col(name).cast(pl.String) for name in columns)
        rows += [(*row, None)[:2] for row in texts.iter_rows()]
    return merge_secrets(_check_rows(path, secret, rows), path)


def _check_rows(
    path: str, column: str, rows: Sequence[tuple[str | None, str | None]]
) -> Iterator[Secret]:
    for number, (text, context) in enumerate(rows, start=1):
        place = f"{path}: column {column!r} in row {number:,}"
        if text is None or not text.strip():
            raise CorpusError(f"{place} has no secret; leave the row out")
        if len(text) > _LONGEST:
            raise CorpusError(
                f"{place} has {len(text):,} characters, and a secret has at most"
                f" {_LONGEST:,}; give a part of it"
            )
        contexts = (context,) if context and context.strip() else ()
        kind = guess_kind(text)
        yield Secret(text=text.strip(), kind=kind, row=number, contexts=contexts)


def detect_secrets(
    path: str, kinds: Collection[Kind], text_column: str
) -> list[Secret]:
    """Find the identifiers of a corpus, each with the characters that stand before it."""
    columns = ColumnNames(text=text_column, document_id="")
    corpus = read_documents(path, columns, conversations="text")
    texts = corpus.documents.select("text")

    def iterate() -> Iterator[Secret]:
        row = 0
        for frame in texts.collect_batches(maintain_order=True):
            for text in frame["text"]:
                row += 1
                yield from _find_in_text(text or "", kinds, row)

    return merge_secrets(iterate(), path)


def _find_in_text(text: str, kinds: Collection[Kind], row: int) -> Iterator[Secret]:
    for identifier in find_identifiers(text, kinds):
        start = identifier.start
        secret = text[start : identifier.end]
        if len(secret) <= _LONGEST:
            context = text[max(0, start - _CONTEXT) : start]
            contexts = (context,) if context.strip() else ()
            yield Secret(text=secret, kind=identifier.kind, row=row, contexts=contexts)


def merge_secrets(secrets: Iterator[Secret], path: str) -> list[Secret]:
    """Merge equal secrets: one has all contexts, up to a number."""
    first_ones: dict[str, Secret] = {}
    n_rows: Counter[str] = Counter()
    contexts: dict[str, dict[str, None]] = defaultdict(dict)
    for secret in secrets:
        first_ones.setdefault(secret.text, secret)
        if len(first_ones) > MOST_SECRETS:
            raise CorpusError(
                f"{path} has more than {MOST_SECRETS:,} different secrets; give a part of"
                " them"
            )
        n_rows[secret.text] += 1
        if len(contexts[secret.text]) < _MOST_CONTEXTS:
            contexts[secret.text].update(dict.fromkeys(secret.contexts))
    if not first_ones:
        raise CorpusError(f"{path} has no secrets; look at the column or at --detect")
    return [
        replace(secret, n_rows=n_rows[text], contexts=tuple(contexts[text]))
        for text, secret in first_ones.items()
    ]


# What is asked.


def split_context(context: str, secret: str) -> tuple[str, str]:
    """Split before the white space or sign that a token may share with the secret."""
    match = _LEAD.search(context)
    if match is None or not context[: match.start()].strip():
        return context, secret
    return context[: match.start()], match[0] + secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What a model is asked about secrets.

    Attributes
    ----------
    texts
        To be scored: ``secret`` (its number), ``place`` (``own``, ``other`` or
        ``none``), ``control`` (from 1; 0 is the secret), ``context_number``,
        ``context`` and ``text``, and ``key``, a hash of the last two.
    contexts
        To be continued: ``key``, ``context``; each once.
    places
        Which of these contexts is a secret's ``own``: ``secret``, ``key``.
    forms
        For each secret its controls, and why its p-value is no error rate.
    """

    secrets: Sequence[Secret]
    texts: pl.DataFrame
    contexts: pl.DataFrame
    places: pl.DataFrame
    controls: Sequence[Sequence[str]] = field(repr=False)
    exploratory: Sequence[str | None]


def build_questions(secrets: Sequence[Secret], design: Design) -> Questions:
    """Build the texts that are scored, and the contexts that are continued."""
    own_contexts = [
        _draw_contexts(secret, design, number) for number, secret in enumerate(secrets)
    ]
    n_texts = sum((1 + design.controls) * max(1, len(texts)) for texts in own_contexts)
    if n_texts > _MOST_TEXTS:
        raise SettingsError(
            f"{len(secrets):,} secrets with --controls {design.controls} are"
            f" {n_texts:,} texts, and at most {_MOST_TEXTS:,} are asked about; give"
            " fewer secrets or --controls"
        )
    all_contexts = [*dict.fromkeys(chain.from_iterable(own_contexts))]
    rows: list[tuple[Any, ...]] = []
    all_controls: list[list[str]] = []
    exploratory: list[str | None] = []
    for number, secret in enumerate(secrets):
        random = Random(f"{design.seed} controls {number}")
        form = build_form(secret.text, secret.kind, secret.usable_contexts)
        controls = draw_controls(form, design.controls, random)
        all_controls.append(controls)
        exploratory.append(_explain_exploratory(form))
        tested = own_contexts[number] or [NEUTRAL]
        place = "own" if own_contexts[number] else "none"
        for index, context in enumerate(tested):
            for control, text in enumerate([secret.text, *controls]):
                rows.append(_build_row(number, place, control, index, context, text))
        foreign = _draw_other(secret, own_contexts[number], all_contexts, random)
        if foreign is not None:
            rows.append(_build_row(number, "other", 0, 0, foreign, secret.text))
        if own_contexts[number]:
            rows.append(_build_row(number, "none", 0, 0, NEUTRAL, secret.text))
    prompts = [context.rstrip() or NEUTRAL for context in [*all_contexts, NEUTRAL]]
    contexts = pl.DataFrame(
        {"key": [*map(hash_texts, prompts)], "context": prompts},
        schema_overrides=_STRINGS,
    )
    places: list[tuple[int, str]] = []
    for number, contexts_of_secret in enumerate(own_contexts):
        prompts_of_secret = [text.rstrip() or NEUTRAL for text in contexts_of_secret]
        keys = map(hash_texts, prompts_of_secret)
        places += [(number, key) for key in keys]
    return Questions(
        secrets=secrets,
        texts=pl.DataFrame(rows, _TEXTS, orient="row"),
        contexts=contexts.unique("key", maintain_order=True),
        places=pl.DataFrame(places, _PLACES, orient="row").unique(maintain_order=True),
        controls=all_controls,
        exploratory=exploratory,
    )


_STRINGS: dict[str, pl.DataType] = {"key": pl.String(), "context": pl.String()}
_PLACES: dict[str, pl.DataType] = {"secret": pl.UInt32(), "key": pl.String()}
_TEXTS: dict[str, pl.DataType] = {
    **_PLACES,
    "place": pl.String(),
    "control": pl.UInt32(),
    "context_number": pl.UInt32(),
    "context": pl.String(),
    "text": pl.String(),
}


def _draw_contexts(secret: Secret, design: Design, number: int) -> list[str]:
    contexts = [*secret.usable_contexts]
    if len(contexts) <= design.most_contexts:
        return contexts
    random = Random(f"{design.seed} contexts {number}")
    return random.sample(contexts, design.most_contexts)


def _draw_other(
    secret: Secret,
    own_contexts: Collection[str],
    contexts: Sequence[str],
    random: Random,
) -> str | None:
    """Draw a context of another secret that has nothing of this one."""
    for context in random.sample(contexts, min(len(contexts), _OTHERS_TRIED)):
        if context not in own_contexts and secret.text not in context:
            return context
    return None


def _explain_exploratory(form: Form) -> str | None:
    if form.names:
        return "people choose names, and some are likelier than others of a list"
    if form.words:
        return "letters of it look like a word, which is likelier than drawn letters"
    return None


def _build_row(
    secret: int, place: str, control: int, index: int, context: str, text: str
) -> tuple[Any, ...]:
    """Build a row of the texts that are scored, in the order of their columns."""
    preceding, scored = split_context(context, text)
    key = hash_texts(preceding, scored)
    return secret, key, place, control, index, preceding, scored


def hash_texts(*texts: str) -> str:
    """Hash texts one by one: the key of a question."""
    digest = blake2b(digest_size=16)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8) + content)
    return digest.hexdigest()
