"""What stands around the continuations of a model, and the one rule that takes it off."""

# ruff: noqa: RUF001 - marks of all scripts

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

VERSION = 1
"""One more with each change after which a rule is learned anew of the same answers."""

_LONGEST = 200  # characters of a lead-in or a closing remark
_ROUNDS = 16  # most layers of one rule
_TAIL = 40  # last characters of a prompt: prompts that end alike may be answered alike
_BEGINNING = 20  # characters at which answers are said to begin alike
_FEWEST_CUT = 10  # characters of a short answer that was cut
_FEWEST_LETTERS = 6  # different ones: a loop of one word is no lead-in
_FEWEST = 3  # prompts whose answers have something in common
_LONG_BYTES = 12  # of a lead-in or a closing remark that is clear, not faint
_ECHO_BYTES = 8  # of a single word that counts as repeated
_CLEAR = 0.05  # share of prompts at which clear layers count
_FAINT = 0.2  # the same of faint layers
_MOST_UNCOVERED = 0.1  # share of prompts: more, and the model does not continue texts

_FRONT: Final[dict[str, str]] = {
    "thoughts": r"(?s).*?(?:</(?:think|thinking|thought|reasoning)>|\[/THINK\])",
    "fence": r"(?:```|~~~)[^\n`]*\n",
    "line": r"[^\n]{1,200}[:：][*_]*[ \t]*\n",
    "dots": r"(?:\[\s*)?(?:\.{3,}|…+)(?:\s*\])?",
    "mark": r"(?:[-*•+>]|#{1,6}|\d{1,2}[.)])[ \t]+|[-*_=~]{3,}[ \t]*\n",
    "quote": r"[\"“”„‟«»‹›‘‚「『《]|\*\*|[*`_]",
}
"""What a layer of each kind looks like, at the beginning of an answer."""
_BACK: Final[dict[str, str]] = {
    "fence": r"(?s)\n?[ \t]*(?:```|~~~).*",
    "quote": r"(?:[\"”“«»‹›’」』》]|\*\*|[*`_])\s*\Z",
}
"""What ends a layer that also stands behind the continuation."""
_KINDS = (
    "thoughts",
    "fence",
    "echo",
    "lead",
    "close",
    "line",
    "dots",
    "mark",
    "quote",
    "start",  # a lead-in without an end of its own, while it is looked for
)
_FAINT_KINDS = frozenset({"echo", "line", "dots", "mark", "quote"})
_LEADS = frozenset({"lead", "start"})
_LITERAL = frozenset({"lead", "close", "start"})
_FIRST_UNITS = tuple(
    re.compile(pattern)
    for pattern in (
        r"[^\n]{1,200}\n",
        r"[^\n]{1,200}?(?::[*_]{0,2}(?=\s)|：)",
        r"[^\n]{1,200}?(?:[.!?…]+[\"”’)*_]*(?=\s)|[。！？]+)",
        r"[^\n]{1,200}?[ \t](?:[-–—]+|→|=>)[ \t]",
        r"<[^<>\n]{1,40}>|\[[^\[\]\n]{1,60}\]|\([^()\n]{1,60}\)",
    )
)
_LAST_UNITS = tuple(
    re.compile(pattern)
    for pattern in (
        r"\n[^\n]{1,200}\Z",
        r"(?<=[.!?。！？\"”])\s*[^.!?。！？\n]{1,200}[.!?。！？]*\Z",
    )
)


_COPIED = "most copied"  # level of the classics in the yardstick
_OPENING_WORDS = 20
NOTHING_LEFT = "the answer has nothing besides what is put around continuations"


class Layer(NamedTuple):
    """One thing around a continuation: its kind, and the text that it has."""

    kind: str
    text: str = ""  # of a lead-in or a closing remark


Rule = tuple[Layer, ...]
"""Layers that are taken off, each at most once, the first one that is there first."""


def parse_rule(recorded: object) -> Rule:
    """Parse a rule that a run has recorded; what is no layer takes nothing off."""
    items = recorded if isinstance(recorded, list) else []
    layers = [
        Layer(str(item.get("kind")), str(item.get("text", "")))
        for item in items[:_ROUNDS]
        if isinstance(item, dict)
    ]
    return tuple(layer for layer in layers if layer.kind in _KINDS)


def recorded_rule(rule: Rule) -> list[dict[str, str]]:
    return [layer._asdict() for layer in rule]


class AnsweredPrompt(NamedTuple):
    """A prompt, what a model answered, and what truly follows."""

    prompt: str
    answer: str
    reference: str
    is_cut: bool = False  # by the limit of tokens


def undress(
    answer: str,
    prompt: str,
    rule: Rule,
) -> str:
    """Remove what a rule names; an answer that wears nothing of it stays as it is."""
    text = answer.strip() if rule else answer
    for layer in rule:
        if layer.kind == "close":
            text = text.removesuffix(layer.text).rstrip()
    remaining = [layer for layer in rule if layer.kind != "close"]
    outermost = _find_outermost(text, prompt, remaining)
    while outermost is not None:
        remaining.remove(outermost)
        text = _take_off(text, prompt, outermost)
        outermost = _find_outermost(text, prompt, remaining)
    return answer if rule and text == answer.strip() else text


def _find_outermost(
    text: str,
    prompt: str,
    layers: Sequence[Layer],
) -> Layer | None:
    return next((layer for layer in layers if wears(text, prompt, layer)), None)


def wears(
    text: str,
    prompt: str,
    layer: Layer,
) -> bool:
    """Check that a text, without white space around it, begins or ends with a layer."""
    if layer.kind in _LEADS:
        return text.startswith(layer.text)
    if layer.kind == "close":
        return text.endswith(layer.text) and text != layer.text
    if layer.kind == "echo":
        return count_echoed(text, prompt) > 0
    return re.match(_FRONT[layer.kind], text) is not None


def _take_off(
    text: str,
    prompt: str,
    layer: Layer,
) -> str:
    if layer.kind in _LEADS:
        return text[len(layer.text) :].lstrip()
    if layer.kind == "close":
        return text.removesuffix(layer.text).rstrip()
    if layer.kind == "echo":
        return text[count_echoed(text, prompt) :].lstrip()
    opening = re.match(_FRONT[layer.kind], text)
    bare = text if opening is None else text[opening.end() :].lstrip()
    if layer.kind == "mark" and opening is not None:
        # Each line may have one
        mark = re.escape(opening[0].strip())
        bare = re.sub(rf"(?m)^{mark}[ \t]+", "", bare)
    if layer.kind in _BACK:
        bare = re.sub(_BACK[layer.kind], "", bare, count=1)
    return bare


def count_echoed(
    text: str,
    prompt: str,
) -> int:
    """Count the characters at the beginning of a text that are the end of its prompt."""
    # White space may differ. A single word counts where it is long.
    words = prompt.split()
    text_words = text[: 2 * len(prompt)].split()
    if not words or not text_words:
        return 0
    for start, word in enumerate(words):
        if word != text_words[0]:
            continue
        end = words[start:]
        is_long = len(end) > 1 or len(end[0].encode()) >= _ECHO_BYTES
        if is_long and text_words[: len(end)] == end:
            match = re.match(r"\s+".join(map(re.escape, end)), text)
            return match.end() if match else 0
    return _count_echoed_letters(text, words[-1])


def _count_echoed_letters(
    text: str,
    last_word: str,
) -> int:
    """Count them in a script without spaces, where a word is a whole sentence."""
    if last_word.isascii():
        return 0
    end = last_word[-_LONGEST:]
    for n in range(min(len(end), len(text)), 0, -1):
        if text.startswith(end[-n:]):
            return n if len(end[-n:].encode()) >= _ECHO_BYTES else 0
    return 0


@cache
def known_openings() -> tuple[tuple[str, str], ...]:
    """Read beginnings of classics that every model has read, and how they go on."""
    path = Path(str(files("mia_batch") / "corpus" / "yardstick.jsonl"))
    lines = path.read_text("utf-8").splitlines()
    first_passages: dict[str, str] = {}  # of each title
    for line in reversed(lines):
        passage = json.loads(line)
        if passage["level"] == _COPIED:
            first_passages[passage["title"]] = passage["text"]
    openings = []
    for text in first_passages.values():
        *words, rest = text.split(" ", _OPENING_WORDS)
        openings.append((" ".join(words), f" {rest}"))
    return tuple(openings)


# A rule is learned of many answers together: what follows a prompt truly is looked at
# only to tell what the texts themselves have, and never to decide about a single
# answer.


class RuleEffect(NamedTuple):
    """What a rule does to the answers, in numbers of prompts that end differently."""

    n_prompts: int
    n_dressed: int  # with an answer from which something is taken off
    n_alike: int  # with an answer that begins like others although the texts differ
    n_repeating: int  # with an answer that begins with the end of its prompt
    n_empty: int  # with an answer of which nothing is left
    example: str = ""  # of a beginning

    @property
    def continues(self) -> bool:
        """True where the answers, as the rule leaves them, are continuations."""
        n_uncovered = max(self.n_alike, self.n_empty)
        if n_uncovered > max(_FEWEST, _MOST_UNCOVERED * self.n_prompts):
            return False
        # A weak model may say some words of the prompt again.
        return self.n_repeating <= max(_FEWEST, _FAINT * self.n_prompts)


def learn(
    answered: Sequence[AnsweredPrompt],
    rule: Rule = (),
    *,
    fewest: int = _FEWEST,
) -> Rule:
    """Find the layers that many answers wear, the most frequent first."""
    # ``rule`` has layers that are known before; those that the texts themselves have
    # are left out.
    layers: list[Layer] = []
    for layer in dict.fromkeys(rule):
        n = sum(wears(item.answer.strip(), item.prompt, layer) for item in answered)
        if n == 0 or not _texts_have(layer, n, answered):
            layers.append(layer)
    for _ in range(_ROUNDS - len(layers)):
        following = _find_layer(answered, tuple(layers), fewest)
        if following is None:
            break
        layers.append(following)
    return tuple(layers)


def _find_layer(
    answered: Sequence[AnsweredPrompt],
    rule: Rule,
    fewest: int,
) -> Layer | None:
    """Find the layer that most answers wear once a rule has taken off the others."""
    n_prompts = len({_tail(item) for item in answered})
    undressed = []
    for item in answered:
        text = undress(item.answer, item.prompt, rule)
        undressed.append((item, text.strip()))
    candidates = _find_layers(undressed) | _find_common_beginnings(undressed)
    counts = {}
    for layer, rests in candidates.items():
        is_frequent = len(rests) >= _needed(layer, n_prompts, fewest)
        if is_frequent and layer not in rule and _differ(rests.values()):
            counts[layer] = len(rests)
    for layer in sorted(counts, key=lambda layer: _precedence(layer, counts[layer])):
        if not _texts_have(layer, counts[layer], answered):
            return layer._replace(kind="lead") if layer.kind == "start" else layer
    return None


def _find_layers(
    undressed: Iterable[tuple[AnsweredPrompt, str]],
) -> dict[Layer, dict[str, str]]:
    """Find what answers may wear, and what would be left, by the end of the prompt."""
    layers: defaultdict[Layer, dict[str, str]] = defaultdict(dict)
    for item, text in undressed:
        for layer in _worn(text, item.prompt):
            rest = _take_off(text, item.prompt, layer)
            if rest:
                layers[layer][_tail(item)] = rest
    return layers


def _find_common_beginnings(
    undressed: Iterable[tuple[AnsweredPrompt, str]],
) -> dict[Layer, dict[str, str]]:
    """Find lead-ins without an end of their own: words that answers of one beginning share."""
    groups: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for item, text in undressed:
        start = _beginning(text)
        if start:
            groups[start][_tail(item)] = text
    layers = {}
    for texts in groups.values():
        if len(texts) < 2 * _FEWEST:
            continue
        shared = _shared_start([*texts.values()]).rpartition(" ")[0].strip()
        if len(shared) >= _BEGINNING and _says_something(shared):
            layers[Layer("start", shared)] = {
                tail: text[len(shared) :].lstrip() for tail, text in texts.items()
            }
    return layers


def _shared_start(texts: Sequence[str]) -> str:
    first = min(texts)
    last = max(texts)
    for index, (letter, last_letter) in enumerate(zip(first, last, strict=False)):
        if letter != last_letter:
            return first[:index]
    return first


def _says_something(text: str) -> bool:
    """Check for letters, and not one word again and again, as a model in a loop says."""
    words = text.split()
    is_loop = len(words) > 1 and len(set(words)) == 1
    return any(map(str.isalpha, text)) and not is_loop


def _worn(
    text: str,
    prompt: str,
) -> Iterator[Layer]:
    """Iterate over the layers that a text may wear."""
    leads = (pattern.match(text) for pattern in _FIRST_UNITS)
    last = max(0, len(text) - _LONGEST)
    closes = (pattern.search(text, last) for pattern in _LAST_UNITS)
    for kind, matches in (("lead", leads), ("close", closes)):
        units = {match[0].strip() for match in matches if match is not None}
        yield from (Layer(kind, unit) for unit in units if _says_something(unit))
    for kind in _KINDS:
        if kind not in _LITERAL and wears(text, prompt, Layer(kind)):
            yield Layer(kind)


def _needed(
    layer: Layer,
    n_prompts: int,
    fewest: int,
) -> float:
    """Compute the prompts whose answers must wear a layer, so that it counts."""
    is_short = layer.kind in _LITERAL and len(layer.text.encode()) < _LONG_BYTES
    if layer.kind in _FAINT_KINDS or is_short:
        return max(fewest + 1, _FAINT * n_prompts)
    return max(fewest, _CLEAR * n_prompts)


def _precedence(
    layer: Layer,
    n: int,
) -> tuple[int, int, int, str]:
    """Order layers: those of most prompts first, then by kind, then the longest lead-in."""
    return -n, _KINDS.index(layer.kind), -len(layer.text), layer.text


def _differ(rests: Iterable[str]) -> bool:
    """Check that what follows differs, as continuations of different texts do."""
    # Texts that a model does not know may all be answered alike, and cut at different
    # words.
    texts = [*rests]
    ordered = sorted({text.rstrip() for text in texts})
    n_cut = sum(longer.startswith(text) for text, longer in pairwise(ordered))
    return len(ordered) - n_cut >= max(_FEWEST, _CLEAR * len(texts))


def _texts_have(
    layer: Layer,
    n: int,
    answered: Sequence[AnsweredPrompt],
) -> bool:
    """Check that the texts themselves have a layer, half as often as the ``n`` answers."""
    items = {_tail(item): item for item in answered}.values()
    n_true = sum(wears(item.reference.strip(), item.prompt, layer) for item in items)
    if layer.kind in _LITERAL:
        n_true = max(n_true, sum(layer.text in item.prompt for item in items))
    return 2 * n_true >= n


def _tail(item: AnsweredPrompt) -> str:
    words = item.prompt[-2 * _TAIL :].split()
    return " ".join(words)[-_TAIL:]


def examine(
    answered: Sequence[AnsweredPrompt],
    rule: Rule,
) -> RuleEffect:
    """Count what a rule takes off, and what it leaves that is no continuation."""
    tails: set[str] = set()
    dressed: set[str] = set()
    repeating: set[str] = set()
    empty: set[str] = set()
    by_beginning: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for item in answered:
        tail = _tail(item)
        tails.add(tail)
        text = undress(item.answer, item.prompt, rule)
        if text != item.answer:
            dressed.add(tail)
        text = text.strip()
        if item.answer.strip() and not text:
            empty.add(tail)
        if count_echoed(text, item.prompt):
            repeating.add(tail)
        by_beginning[_beginning(text, is_cut=item.is_cut)][tail] = text
    common = {
        start: texts
        for start, texts in by_beginning.items()
        if len({*start}) >= _FEWEST_LETTERS
        and len(texts) >= max(_FEWEST, _CLEAR * len(tails))
        and (len(start) < _BEGINNING or _differ(texts.values()))
        and not _begin_so(start, len(texts), answered)
    }
    if _texts_have(Layer("echo"), len(repeating), answered):
        repeating.clear()
    largest = max(common.values(), key=len, default={"": ""})
    return RuleEffect(
        n_prompts=len(tails),
        n_dressed=len(dressed),
        n_alike=len(set().union(*common.values())),
        n_repeating=len(repeating),
        n_empty=len(empty),
        example=next(iter(largest.values()))[:_TAIL],
    )


def _beginning(
    text: str,
    *,
    is_cut: bool = False,
) -> str:
    """Return the first letters; of a short answer those before the limit of tokens cut it."""
    letters = _letters(text[: 4 * _BEGINNING])
    is_enough = is_cut and len(letters) >= _FEWEST_CUT
    return letters[:_BEGINNING] if is_enough or len(letters) > _BEGINNING else ""


def _begin_so(
    start: str,
    n: int,
    answered: Sequence[AnsweredPrompt],
) -> bool:
    """Check that the texts begin so, or have it elsewhere, half as often as ``n`` answers."""
    items = {_tail(item): item for item in answered}.values()
    n_begin = sum(_letters(item.reference).startswith(start) for item in items)
    n_elsewhere = sum(start in _letters(item.prompt) for item in items)
    return 2 * max(n_begin, n_elsewhere) >= n


def _letters(text: str) -> str:
    return "".join(text.casefold().split())
