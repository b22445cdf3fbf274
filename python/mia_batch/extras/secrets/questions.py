"""Which secrets a model is asked about, after which contexts, and beside which controls."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from random import Random
from typing import Any, NamedTuple

import polars as pl

from mia_batch.corpus import ColumnNames, find_files, read_documents
from mia_batch.corpus.conversations import (
    ASSISTANT,
    CONVERSATION,
    FaultError,
    Message,
    join_messages,
    parse_messages,
    read_conversation,
    read_text,
    write_conversation,
)
from mia_batch.corpus.files import FORMATS, Reading
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.extras.secrets.controls import (
    Form,
    build_form,
    draw_controls,
    guess_kind,
)
from mia_batch.identifiers import KINDS, Kind, find_identifiers
from mia_batch.models.chat import ChatTemplate, TemplateError

__all__ = [
    "NEUTRAL",
    "Design",
    "Place",
    "Questions",
    "Secret",
    "build_questions",
    "detect_secrets",
    "hash_texts",
    "read_secrets",
    "split_context",
    "write_contexts",
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
_MESSAGES = "messages"  # column of what was said before a secret
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


class Place(NamedTuple):
    """What stands before a secret in a message, whose it is, and the messages before, as JSON."""

    text: str
    role: str
    conversation: str


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
    places
        Where it stands in conversations, each once, of which `write_contexts` makes its
        contexts.
    """

    text: str = field(repr=False)
    kind: str
    row: int
    n_rows: int = 1
    contexts: tuple[str, ...] = field(default=(), repr=False)
    places: tuple[Place, ...] = field(default=(), repr=False)

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
    columns = [name for name in (secret, context, _MESSAGES) if name in schema]
    rows: list[dict[str, Any]] = []
    n_bytes = 0
    for frame in reader.read_rows(source.files, schema, columns, reading):
        n_bytes += int(frame.estimated_size())
        if n_bytes > _MOST_BYTES:
            raise CorpusError(
                f"{path} has more than {_MOST_BYTES >> 20} MiB of secrets and contexts;"
                " give fewer of them"
            )
        texts = (pl.col(name).cast(pl.String) for name in columns if name != _MESSAGES)
        rows += frame.with_columns(texts).iter_rows(named=True)
    return merge_secrets(_check_rows(path, secret, context, rows), path)


def _check_rows(
    path: str, secret: str, context: str, rows: Sequence[Mapping[str, Any]]
) -> Iterator[Secret]:
    for number, row in enumerate(rows, start=1):
        text, before = row[secret], row.get(context) or ""
        place = f"{path}: column {secret!r} in row {number:,}"
        if text is None or not text.strip():
            raise CorpusError(f"{place} has no secret; leave the row out")
        if len(text) > _LONGEST:
            raise CorpusError(
                f"{place} has {len(text):,} characters, and a secret has at most"
                f" {_LONGEST:,}; give a part of it"
            )
        contexts = (before,) if before.strip() else ()
        places: tuple[Place, ...] = ()
        if row.get(_MESSAGES) is not None:
            try:
                messages = parse_messages(row[_MESSAGES], _MESSAGES)
            except FaultError as fault:
                raise CorpusError(
                    f"{path}: row {number:,}: {fault.problem}; {fault.way_out}"
                ) from None
            conversation = write_conversation(messages, [])
            contexts, places = (), (Place(before, ASSISTANT, conversation),)
        yield Secret(
            text=text.strip(),
            kind=guess_kind(text),
            row=number,
            contexts=contexts,
            places=places,
        )


def detect_secrets(
    path: str, kinds: Collection[Kind], text_column: str
) -> list[Secret]:
    """Find the identifiers of a corpus, each with the characters that stand before it."""
    columns = ColumnNames(text=text_column, document_id="")
    corpus = read_documents(path, columns, conversations="answers")
    if corpus.has_conversations:
        answers = corpus.documents.select(CONVERSATION, "text")
        return merge_secrets(_find_in_answers(answers, kinds), path)
    texts = corpus.documents.select("text")

    def iterate() -> Iterator[Secret]:
        row = 0
        for frame in texts.collect_batches(maintain_order=True):
            for text in frame["text"]:
                row += 1
                for secret, start in _find_in_text(text or "", kinds, row):
                    context = text[max(0, start - _CONTEXT) : start]
                    contexts = (context,) if context.strip() else ()
                    yield replace(secret, contexts=contexts)

    return merge_secrets(iterate(), path)


def _find_in_text(
    text: str, kinds: Collection[Kind], row: int
) -> Iterator[tuple[Secret, int]]:
    """Iterate over the identifiers of a text, and where each begins."""
    for identifier in find_identifiers(text, kinds):
        start = identifier.start
        secret = text[start : identifier.end]
        if len(secret) <= _LONGEST:
            yield Secret(text=secret, kind=identifier.kind, row=row), start


def _find_in_answers(
    answers: pl.LazyFrame, kinds: Collection[Kind]
) -> Iterator[Secret]:
    """Find the identifiers of conversations: of each answer, and of what was said before it."""
    row = 0
    earlier: list[Message] = []  # of the answer before
    for frame in answers.collect_batches(maintain_order=True):
        for content, answer in frame.iter_rows():
            conversation = read_conversation(content)
            messages = conversation.messages
            is_same = (
                len(messages) > len(earlier) and messages[: len(earlier)] == earlier
            )
            if not row or not earlier or not is_same:
                row, earlier = row + 1, []
            for number in range(len(earlier), len(messages)):
                message = messages[number]
                if message["role"] == ASSISTANT:
                    continue
                before = write_conversation(messages[:number], conversation.tools)
                place = Place("", message["role"], before)
                yield from _find_in_message(read_text(message), place, kinds, row)
            place = Place("", ASSISTANT, content)
            yield from _find_in_message(answer or "", place, kinds, row)
            earlier = messages


def _find_in_message(
    text: str, place: Place, kinds: Collection[Kind], row: int
) -> Iterator[Secret]:
    for secret, start in _find_in_text(text, kinds, row):
        yield replace(secret, places=(place._replace(text=text[:start]),))


def merge_secrets(secrets: Iterator[Secret], path: str) -> list[Secret]:
    """Merge equal secrets: one has all contexts, up to a number."""
    first_ones: dict[str, Secret] = {}
    n_rows: Counter[str] = Counter()
    contexts: dict[str, dict[str, None]] = defaultdict(dict)
    places: dict[str, dict[Place, None]] = defaultdict(dict)
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
        if len(places[secret.text]) < _MOST_CONTEXTS:
            places[secret.text].update(dict.fromkeys(secret.places))
    if not first_ones:
        raise CorpusError(f"{path} has no secrets; look at the column or at --detect")
    return [
        replace(
            secret,
            n_rows=n_rows[text],
            contexts=tuple(contexts[text]),
            places=tuple(places[text]),
        )
        for text, secret in first_ones.items()
    ]


# What stands before secrets of conversations.


class Written(NamedTuple):
    """Secrets with what stands before them, as a model reads it.

    ``marked`` has of each context that a chat template wrote the length of all that
    stands before the message with the secret, ``neutral`` what is asked without any
    context, ``refused`` why contexts were left out, and how many.
    """

    secrets: list[Secret]
    marked: dict[str, int]
    neutral: str
    refused: Counter[str]


def write_contexts(secrets: Sequence[Secret], template: ChatTemplate | None) -> Written:
    """Write where secrets stand in conversations, by a chat template or as plain text."""
    if template is None:
        plain_ones = [
            replace(secret, contexts=(*secret.contexts, *map(_join, secret.places)))
            for secret in secrets
        ]
        return Written(plain_ones, {}, NEUTRAL, Counter())
    marked: dict[str, int] = {}
    refused: Counter[str] = Counter()
    written: list[Secret] = []
    for secret in secrets:
        contexts: dict[str, None] = {}
        for place in (*map(_answer_nothing, secret.contexts), *secret.places):
            try:
                marks, text = _place(template, place, secret.text)
            except TemplateError as error:
                refused[str(error)] += 1
                continue
            contexts[marks + text] = None
            marked[marks + text] = len(marks)
        written.append(replace(secret, contexts=tuple(contexts)))
    try:
        neutral, _ = _place(template, _answer_nothing(""), "0")
    except TemplateError as error:
        raise SettingsError(
            f"the model cannot be asked by its chat template: {error}; give the secrets"
            " with plain contexts (--context-column)"
        ) from None
    marked[neutral] = len(neutral)
    return Written(written, marked, neutral, refused)


def _join(place: Place) -> str:
    messages = read_conversation(place.conversation).messages
    return join_messages([*messages, {"content": place.text}])[-_CONTEXT:]


def _answer_nothing(text: str) -> Place:
    """Return the beginning of an answer to a user who says nothing."""
    question = {"role": "user", "content": NEUTRAL}
    return Place(text, ASSISTANT, write_conversation([question], []))


def _place(template: ChatTemplate, place: Place, secret: str) -> tuple[str, str]:
    """Return what the template writes before a message, and of the message before a secret."""
    conversation = read_conversation(place.conversation)
    placed = template.place(conversation, place.text + secret, place.role)
    return placed.context, placed.text.removesuffix(secret)


# What is asked.


def split_context(context: str, secret: str, n_marked: int = 0) -> tuple[str, str]:
    """Split before the white space or sign that a token may share with the secret.

    What a template wrote, the first ``n_marked`` characters, is not split.
    """
    match = _LEAD.search(context, n_marked)
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
    controls, exploratory
        For each secret its controls, and why its p-value is no error rate.
    neutral
        What stands before a secret that is asked for without any context.
    by_template
        Whether a chat template wrote the contexts, with its special tokens.
    refused
        Why it wrote none, and how often.
    """

    secrets: Sequence[Secret]
    texts: pl.DataFrame
    contexts: pl.DataFrame
    places: pl.DataFrame
    controls: Sequence[Sequence[str]] = field(repr=False)
    exploratory: Sequence[str | None]
    neutral: str = NEUTRAL
    by_template: bool = False
    refused: Mapping[str, int] = field(default_factory=dict)


def build_questions(
    secrets: Sequence[Secret], design: Design, template: ChatTemplate | None = None
) -> Questions:
    """Build the texts that are scored, and the contexts that are continued.

    ``template`` writes the contexts of secrets that come from conversations.
    """
    if not any(secret.places for secret in secrets):
        template = None
    secrets, marked, neutral, refused = write_contexts(secrets, template)
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
        tested = own_contexts[number] or [neutral]
        place = "own" if own_contexts[number] else "none"
        asked = [
            (place, control, index, context, text)
            for index, context in enumerate(tested)
            for control, text in enumerate([secret.text, *controls])
        ]
        foreign = _draw_other(secret, own_contexts[number], all_contexts, random)
        if foreign is not None:
            asked.append(("other", 0, 0, foreign, secret.text))
        if own_contexts[number]:
            asked.append(("none", 0, 0, neutral, secret.text))
        for *position, context, text in asked:
            split = split_context(context, text, marked.get(context, 0))
            rows.append((number, hash_texts(*split), *position, *split))
    prompts = {
        context: _end_with_word(context, marked.get(context, 0))
        for context in [*all_contexts, neutral]
    }
    contexts = pl.DataFrame(
        {"key": [*map(hash_texts, prompts.values())], "context": [*prompts.values()]},
        schema_overrides=_STRINGS,
    )
    places: list[tuple[int, str]] = []
    for number, contexts_of_secret in enumerate(own_contexts):
        keys = [hash_texts(prompts[context]) for context in contexts_of_secret]
        places += [(number, key) for key in keys]
    return Questions(
        secrets=secrets,
        texts=pl.DataFrame(rows, _TEXTS, orient="row"),
        contexts=contexts.unique("key", maintain_order=True),
        places=pl.DataFrame(places, _PLACES, orient="row").unique(maintain_order=True),
        controls=all_controls,
        exploratory=exploratory,
        neutral=neutral,
        by_template=template is not None,
        refused=refused,
    )


def _end_with_word(context: str, n_marked: int) -> str:
    """Take the spaces off the end, as prompts have none, but none of a template's own."""
    return context[:n_marked] + context[n_marked:].rstrip() or NEUTRAL


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


def hash_texts(*texts: str) -> str:
    """Hash texts one by one: the key of a question."""
    digest = blake2b(digest_size=16)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8) + content)
    return digest.hexdigest()
