"""Conversations: rows of messages, or of prompts and answers, become one document per answer.

A document's text is what the assistant says, and its column `CONVERSATION` holds what
stood before it, as JSON: ``{"messages": [{"role": ..., "content": ...}, ...]}``, with
``"tools"`` where the row has some, and ``"answer"``, further fields of the answer's own
message, such as its thoughts.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

import polars as pl

CONVERSATION = "conversation"
"""The column of what came before an answer."""

Message: TypeAlias = dict[str, Any]
Reject: TypeAlias = Callable[[int, str, str], None]
"""Takes the number of a stored row, what is wrong with it, and what to do."""

_MESSAGES = ("messages", "conversations", "conversation")
_PROMPTS = ("instruction", "prompt", "question", "input", "query")
_FURTHER_PROMPT = "input"  # what an instruction is about
_ANSWERS = ("output", "completion", "response", "answer")
_SYSTEM = ("system", "system_prompt")
_TOOLS = "tools"
ASSISTANT = "assistant"
_ROLES = {
    **{role: role for role in ("system", "developer", "user", ASSISTANT, "tool")},
    "function": "tool",
    "human": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bot": ASSISTANT,
    "model": ASSISTANT,
    "function_call": ASSISTANT,
    "function_response": "tool",
    "observation": "tool",
}
"""Roles of messages by the names that data sets and chat templates have for them."""
# All that stands before the answers of one row; each has what stood before it
_MOST_CONTEXT = 64 << 20

_EMPTY_LINE = "\n\n"


class FaultError(Exception):
    """What makes a row no conversation: the problem, and what to do."""

    def __init__(self, problem: str, way_out: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.way_out = way_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which columns hold conversations: one of messages, or of prompts and answers."""

    messages: str | None = None
    prompts: tuple[str, ...] = ()  # joined by an empty line
    answer: str | None = None
    system: str | None = None
    tools: str | None = None
    document_id: str | None = None
    has_group: bool = False  # the user's own
    # Columns of prompts or answers that are lists of messages themselves
    nested: frozenset[str] = frozenset()
    as_text: bool = False  # a row is one document: all that is said

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read as conversations, and are no further ones."""
        names = (self.messages, *self.prompts, self.answer, self.system, self.tools)
        return tuple(name for name in names if name is not None)

    def build_schema(self, raw: pl.Schema) -> pl.Schema:
        """Return the columns that rows have once they are answers."""
        rest = {name: raw[name] for name in raw if name not in self.columns}
        if self.as_text:
            return pl.Schema({"text": pl.String(), **rest})
        if self.document_id is not None:
            rest[self.document_id] = pl.String()
        if self.adds_group:
            rest["group"] = pl.String()
        return pl.Schema({"text": pl.String(), CONVERSATION: pl.String(), **rest})

    @property
    def has_several_answers(self) -> bool:
        """Whether a row may become several documents."""
        is_nested = self.messages is not None or self.answer in self.nested
        return is_nested and not self.as_text

    @property
    def adds_group(self) -> bool:
        return self.messages is not None and not self.has_group

    def describe(self, n_rows: int, n_answers: int) -> str:
        """Describe how rows are read."""
        columns = " and ".join(map(repr, self.columns))
        if self.as_text:
            conversations = _count(n_rows, "conversation")
            return f"columns {columns}: {conversations}, each read as one plain text"
        answers = _count(n_answers, "answer")
        if self.messages is not None:
            return (
                f"column {columns}: {_count(n_rows, 'conversation')}, {answers}; each"
                " answer is asked about after what came before it"
            )
        return (
            f"columns {columns}: {_count(n_rows, 'prompt')}, {answers}; each answer is"
            " asked about after its prompt"
        )

    def read_answers(
        self, frame: pl.DataFrame, start: int, reject: Reject
    ) -> tuple[pl.DataFrame, list[int]]:
        """Return one row per answer, and of each the number of its stored row.

        ``start`` is the number of the first stored row. A row without an answer has one
        row, whose text is null; one that is no conversation is rejected.
        """
        answers = _Answers(as_text=self.as_text)
        for index, row in enumerate(frame.select(self.columns).iter_rows(named=True)):
            try:
                messages = self._read_messages(row)
                answers.add(index, messages, _read_list(row.get(self.tools or "")))
            except FaultError as fault:
                reject(start + index, fault.problem, fault.way_out)
        rows = frame.drop(self.columns)[answers.rows]
        return self._complete(rows, answers), [start + row for row in answers.rows]

    def _complete(self, rows: pl.DataFrame, answers: "_Answers") -> pl.DataFrame:
        columns = {"text": pl.Series(answers.texts, dtype=pl.String)}
        if self.as_text:
            return rows.with_columns(**columns)
        columns[CONVERSATION] = pl.Series(answers.contexts, dtype=pl.String)
        if self.document_id is not None:
            identifiers = rows[self.document_id].cast(pl.String)
            numbered = pl.Series(answers.suffixes, dtype=pl.String)
            columns[self.document_id] = identifiers + numbered
        if self.adds_group:
            names = pl.Series(answers.groups, dtype=pl.String)
            if self.document_id is not None:
                names = rows[self.document_id].cast(pl.String)
            columns["group"] = names
        return rows.with_columns(**columns)

    def _read_messages(self, row: Mapping[str, Any]) -> list[Message]:
        if self.messages is not None:
            value = row[self.messages]
            return [] if value is None else parse_messages(value, self.messages)
        answer = row[self.answer or ""]
        prompt = self._read_prompt(row)
        messages: list[Message] = []
        system = row.get(self.system or "")
        if isinstance(system, str) and system.strip():
            messages.append({"role": "system", "content": system})
        if isinstance(prompt, list):
            messages += prompt
        else:
            messages.append({"role": "user", "content": prompt})
        if answer is None:
            return messages
        if self.answer in self.nested:
            return messages + parse_messages(answer, str(self.answer))
        return [*messages, {"role": ASSISTANT, "content": answer}]

    def _read_prompt(self, row: Mapping[str, Any]) -> str | list[Message]:
        values = [row[name] for name in self.prompts]
        if self.prompts[0] in self.nested:
            return parse_messages(values[0], self.prompts[0])
        parts = [value for value in values if isinstance(value, str) and value.strip()]
        if not parts:
            raise FaultError(
                f"column {self.prompts[0]!r} holds no prompt", "give each answer one"
            )
        return _EMPTY_LINE.join(parts)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


@dataclass(slots=True)
class _Answers:
    """The answers of some stored rows, each with what stood before it."""

    as_text: bool = False
    rows: list[int] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)
    contexts: list[str | None] = field(default_factory=list)
    suffixes: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def add(self, row: int, messages: list[Message], tools: list[Any]) -> None:
        if self.as_text:
            self._append(row, join_messages(messages) or None)
            return
        places = [
            place
            for place, message in enumerate(messages)
            if message["role"] == ASSISTANT and read_text(message).strip()
        ]
        _check_size(messages, places)
        name = _name_conversation(messages)
        for number, place in enumerate(places, start=1):
            suffix = f", answer {number}" if len(places) > 1 else ""
            context = write_conversation(messages[:place], tools, messages[place])
            self._append(row, read_text(messages[place]), context, suffix, name)
        if not places:
            context = write_conversation(messages, tools)
            self._append(row, None, context, group=name)

    def _append(
        self,
        row: int,
        text: str | None,
        context: str | None = None,
        suffix: str = "",
        group: str = "",
    ) -> None:
        self.rows.append(row)
        self.texts.append(text)
        self.contexts.append(context)
        self.suffixes.append(suffix)
        self.groups.append(group)


def _check_size(messages: list[Message], places: list[int]) -> None:
    lengths = [len(json.dumps(message)) for message in messages]
    n_before_last = sum(lengths[: places[-1]]) if places else 0
    if n_before_last * len(places) > _MOST_CONTEXT:
        raise FaultError(
            f"the conversation has {len(places):,} answers after up to"
            f" {sum(lengths):,} characters, more than can be asked about",
            "split it",
        )


def _name_conversation(messages: list[Message]) -> str:
    """Return a name by what is said, the same in every file and order."""
    content = json.dumps(messages, sort_keys=True)
    return f"conversation {sha256(content.encode()).hexdigest()[:12]}"


class Conversation(NamedTuple):
    """What stood before an answer: messages, tools, and what the answer's message has besides.

    The last are fields of an answer other than its text, such as its thoughts.
    """

    messages: list[Message]
    tools: list[Any]
    answer_fields: Message


def write_conversation(
    messages: Sequence[Message], tools: list[Any], answer: Message | None = None
) -> str:
    """Return what stood before an answer, as the column `CONVERSATION` holds it."""
    content: dict[str, Any] = {"messages": [*messages]}
    if tools:
        content["tools"] = tools
    answer_fields = {**(answer or {})}
    for name in ("role", "content"):
        answer_fields.pop(name, None)
    if answer_fields:
        content["answer"] = answer_fields
    return json.dumps(content, ensure_ascii=False)


def read_conversation(content: str) -> Conversation:
    """Return what the column `CONVERSATION` holds."""
    values = json.loads(content)
    return Conversation(
        values["messages"], values.get("tools", []), values.get("answer", {})
    )


def read_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content may be in parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def join_messages(messages: Sequence[Message]) -> str:
    """Return a conversation as a plain text: what is said, empty lines between."""
    texts = map(read_text, messages)
    return _EMPTY_LINE.join(text for text in texts if text.strip())


def find_question(content: str) -> str:
    """Return what was said last before an answer; nothing where nobody said anything."""
    messages = read_conversation(content).messages
    texts = (read_text(message) for message in reversed(messages))
    return next((text for text in texts if text.strip()), "")


def parse_messages(value: object, column: str) -> list[Message]:
    """Return the messages of a row, in the form of ``role`` and ``content``."""
    messages = []
    for number, item in enumerate(_read_list(value), start=1):
        if not isinstance(item, dict):
            raise FaultError(
                f"message {number} of column {column!r} is no object",
                "write each as role and content",
            )
        messages.append(_parse_message(item, f"message {number} of column {column!r}"))
    return messages


def _parse_message(item: Mapping[str, Any], place: str) -> Message:
    message = {name: value for name, value in item.items() if value is not None}
    role = message.pop("role", None) or message.pop("from", None)
    content = message.pop("content", None)
    if content is None:
        content = message.pop("value", None)
    normal_role = _ROLES.get(role.strip().lower()) if isinstance(role, str) else None
    if normal_role is None:
        known_roles = ", ".join(_ROLES)
        raise FaultError(
            f"{place} has the role {role!r}", f"write one of {known_roles}"
        )
    if content is not None and not isinstance(content, str | list):
        raise FaultError(f"the content of {place} is no text", "write it as a string")
    return {"role": normal_role, "content": content or "", **message}


def _read_list(value: object) -> list[Any]:
    """Return a list that a row holds as it is, or as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise FaultError(
                f"messages are no JSON ({error})", "write a list of messages"
            ) from error
    if value is None:
        return []
    if not isinstance(value, list):
        raise FaultError("messages are no list", "write a list of messages")
    return value


def find_conversations(raw: pl.Schema, free: Mapping[str, str]) -> Layout | None:
    """Find the columns of conversations; None where there are none.

    ``free`` are the columns that play no other role, by their names in lower case.
    """
    usable = {
        spelling: name for spelling, name in free.items() if _may_hold_text(raw[name])
    }
    tools = usable.get(_TOOLS)
    for spelling in _MESSAGES:
        column = usable.get(spelling)
        if column is not None:
            return Layout(messages=column, tools=tools)
    answer = next((usable[name] for name in _ANSWERS if name in usable), None)
    prompts = [usable[name] for name in _PROMPTS if name in usable][:1]
    if answer is None or not prompts:
        return None
    further = usable.get(_FURTHER_PROMPT)
    if further is not None and further not in prompts:
        prompts.append(further)
    nested = [name for name in (*prompts, answer) if not _is_text(raw[name])]
    return Layout(
        prompts=tuple(prompts),
        answer=answer,
        system=next((usable[name] for name in _SYSTEM if name in usable), None),
        tools=tools,
        nested=frozenset(nested),
    )


def _is_text(dtype: pl.DataType) -> bool:
    return dtype in (pl.String, pl.Categorical, pl.Null) or isinstance(dtype, pl.Enum)


def _may_hold_text(dtype: pl.DataType) -> bool:
    return _is_text(dtype) or dtype in (pl.List, pl.Array, pl.Object)
