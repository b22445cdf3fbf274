"""Streams of server-sent events, and the whole answer that their chunks make."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

STREAMED = "it is a stream of events"
"""How each sentence about a stream that cannot be read begins."""

_DONE = "[DONE]"
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_FIRST_LINES = (b"data:", b"event:", b"id:", b"retry:", b":")
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names that servers have for the thoughts before an answer."""
# Of these a chunk has a piece; of other texts the last one counts
_TEXTS_IN_PIECES = frozenset({"text", "content", "refusal", *REASONING})


class StreamError(Exception):
    """A stream from which no answer can be read; ``detail`` is the server's own text."""

    def __init__(self, sentence: str, detail: str = "") -> None:
        super().__init__(sentence)
        self.detail = detail


class Event(NamedTuple):
    """An event of a stream; most have no name."""

    name: str
    data: str


class EventReader:
    """Reads events from the bytes of a stream, however they are cut."""

    # By the HTML standard, section 9.2: lines end with CR, LF or both, comments begin
    # with a colon, an empty line ends an event. The last event needs no empty line.

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.is_done = False  # whether the event came that ends streams of this kind
        self._line = bytearray(b"")
        self._is_after_return = False
        self._is_first_line = True
        self._name = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> None:
        """Read the next bytes of the stream."""
        if not piece:
            return
        # The line has ended with the piece before
        if self._is_after_return and piece.startswith(b"\n"):
            piece = piece[1:]
        self._is_after_return = piece.endswith(b"\r")
        *ends, rest = _LINE_END.split(piece)
        for end in ends:
            self._line += end
            self._read_line(bytes(self._line))
            self._line.clear()
        self._line += rest

    def end(self) -> None:
        """Read what has come of an event that nothing ended."""
        self._read_line(bytes(self._line))
        self._line.clear()
        self._end_event()

    def _read_line(self, line: bytes) -> None:
        if self._is_first_line:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            self._is_first_line = False
        if not line:
            self._end_event()
            return
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._name = value

    def _end_event(self) -> None:
        data = "\n".join(self._data)
        if data and not self.is_done:
            self.events.append(Event(self._name, data))
            self.is_done = data.strip() == _DONE
        self._name = ""
        self._data.clear()


def is_stream(body: bytes) -> bool:
    """Check whether a body begins like a stream of events."""
    return body.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(_FIRST_LINES)


def join_stream(body: bytes) -> dict[str, Any]:
    """Build the document that a server would have answered with at once."""
    reader = EventReader()
    reader.feed(body)
    reader.end()
    try:
        return _join_events(reader.events)
    except RecursionError:
        raise StreamError(f"{STREAMED} with values too deep to read") from None


def _join_events(events: Iterable[Event]) -> dict[str, Any]:
    """Put chunks together; one with an error ends the answer, and is all that is left of it."""
    document: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    is_complete = False
    for event in events:
        if event.data.strip() == _DONE:
            is_complete = True
            break
        chunk = _decode(event.data)
        is_error = event.name == "error" or bool(chunk.get("error"))
        if is_error:
            return {"error": chunk.get("error") or chunk}
        for name, value in chunk.items():
            if name == "usage":
                if value:  # later ones count more tokens
                    document[name] = value
            elif name != "choices" and not document.get(name):
                document[name] = value
        _add_choices(choices, chunk.get("choices"))
    is_complete |= bool(choices) and all(map(_is_finished, choices.values()))
    if not is_complete:
        raise StreamError(f"{STREAMED} that ends before its answer does")
    document["choices"] = [_finish_choice(choices[index]) for index in sorted(choices)]
    return document


def _decode(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise StreamError(f"{STREAMED}, one of which is not JSON", data)
    return chunk


def _add_choices(choices: dict[int, dict[str, Any]], parts: object) -> None:
    """Add the parts of a chunk to the choices that they continue."""
    for position, part in enumerate(parts if isinstance(parts, list) else []):
        if not isinstance(part, dict):
            raise StreamError(
                f"{STREAMED}, one of which has a choice that is no object"
            )
        index = part.get("index")
        choice = choices.setdefault(index if type(index) is int else position, {})
        whole_message = part.get("message")
        for name, value in part.items():
            if name == "delta" and isinstance(value, dict):
                _add(choice, "message", _with_text_content(value))
            elif name != "message":
                _add(choice, name, value)
        if isinstance(whole_message, dict):
            _add_whole_message(choice, _with_text_content(whole_message))


def _add_whole_message(choice: dict[str, Any], message: dict[str, Any]) -> None:
    """Add a message that is no piece: it may say again what pieces have said."""
    pieces = choice.get("message", {}).get("content")
    if pieces and "".join(pieces) != message.get("content"):
        raise StreamError(f"{STREAMED} that say two texts of one choice")
    if pieces:
        message = message | {"content": None}
    _add(choice, "message", message)


def _with_text_content(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"content": join_text_parts(message.get("content"))}


def join_text_parts(content: object) -> object:
    """Join the parts of a message's content that are text; return any other content as it is."""
    if not isinstance(content, list):
        return content
    texts = [
        str(part.get("text", ""))
        for part in content
        if isinstance(part, dict) and part.get("type") == "text"
    ]
    return "".join(texts)


class _Pieces(list[str]):
    """Pieces of a text, joined in the end: to add to a long text each time takes long."""


def _add(fields: dict[str, Any], name: str, value: object) -> None:
    """Add a value of a chunk: pieces of texts and lists follow the earlier ones."""
    earlier = fields.get(name)
    if value is None:
        fields.setdefault(name, None)
    elif isinstance(value, str) and name in _TEXTS_IN_PIECES:
        if not isinstance(earlier, _Pieces):
            earlier = fields[name] = _Pieces()
        earlier.append(value)
    elif isinstance(value, list) and isinstance(earlier, list):
        earlier += value
    elif isinstance(value, list):
        fields[name] = [*value]
    elif isinstance(value, dict):
        if not isinstance(earlier, dict):
            earlier = fields[name] = {}
        for inner_name, inner_value in value.items():
            _add(earlier, inner_name, inner_value)
    elif value != "" or earlier is None:  # an empty text takes nothing back
        fields[name] = value


def _is_finished(choice: dict[str, Any]) -> bool:
    finish = choice.get("finish_reason")
    return isinstance(finish, str) and bool(finish.strip())


def _finish_choice(value: Any) -> Any:
    """Join the pieces of all texts of a choice."""
    if isinstance(value, _Pieces):
        return _join_surrogates("".join(value))
    if isinstance(value, dict):
        return {name: _finish_choice(inner) for name, inner in value.items()}
    return value


def _join_surrogates(text: str) -> str:
    """Put halves of a character together that came in two chunks."""
    if not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
