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

_LONGEST = 200  # characters of a lead-in or a closing remark
_ROUNDS = 16  # most layers of one rule
_TAIL = 40  # last characters of a prompt: prompts that end alike may be answered alike
_BEGINNING = 20  # characters at which answers are said to begin alike
_FEWEST_CUT = 10  # characters of a short answer that was cut
_FEWEST_LETTERS = 6  # different ones: a loop of one word is no lead-in
_FEWEST, _LONG_BYTES, _ECHO_BYTES = 3, 12, 8
_CLEAR, _FAINT = 0.05, 0.2  # share of prompts at which clear and faint layers count
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
    *("thoughts", "fence", "echo", "lead", "close", "line", "dots", "mark", "quote"),
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


_COPIED, _OPENING_WORDS = "most copied", 20
NOTHING_LEFT = "the answer has nothing besides what is put around continuations"


class Layer(NamedTuple):
    """One thing around a continuation: its kind, and the text that it has."""

    kind: str
    text: str = ""  # of a lead-in or a closing remark


Rule = tuple[Layer, ...]
"""Layers that are taken off, each at most once, the first one that is there first."""


def rule_of(recorded: object) -> Rule:
    """Read a rule that a run has recorded; what is no layer takes nothing off."""
    listed = recorded if isinstance(recorded, list) else []
    layers = [
        Layer(str(each.get("kind")), str(each.get("text", "")))
        for each in listed[:_ROUNDS]
        if isinstance(each, dict)
    ]
    return tuple(layer for layer in layers if layer.kind in _KINDS)


def recorded_rule(rule: Rule) -> list[dict[str, str]]:
    return [layer._asdict() for layer in rule]


class Asked(NamedTuple):
    """A prompt, what a model answered, and what truly follows."""

    prompt: str
    answer: str
    reference: str
    is_cut: bool = False  # by the limit of tokens


def undress(answer: str, prompt: str, rule: Rule) -> str:
    """Take off what a rule names; an answer that wears nothing of it stays as it is."""
    text = answer.strip() if rule else answer
    for layer in rule:
        if layer.kind == "close":
            text = text.removesuffix(layer.text).rstrip()
    left = [layer for layer in rule if layer.kind != "close"]
    while (
        worn := next((layer for layer in left if wears(text, prompt, layer)), None)
    ) is not None:
        left.remove(worn)
        text = _without(text, prompt, worn)
    return answer if rule and text == answer.strip() else text


def wears(text: str, prompt: str, layer: Layer) -> bool:
    """Whether a text, without white space around it, begins or ends with a layer."""
    if layer.kind in _LEADS:
        return text.startswith(layer.text)
    if layer.kind == "close":
        return text.endswith(layer.text) and text != layer.text
    if layer.kind == "echo":
        return echoed(text, prompt) > 0
    return re.match(_FRONT[layer.kind], text) is not None


def _without(text: str, prompt: str, layer: Layer) -> str:
    if layer.kind in _LEADS:
        return text[len(layer.text) :].lstrip()
    if layer.kind == "close":
        return text.removesuffix(layer.text).rstrip()
    if layer.kind == "echo":
        return text[echoed(text, prompt) :].lstrip()
    opening = re.match(_FRONT[layer.kind], text)
    bare = text if opening is None else text[opening.end() :].lstrip()
    if layer.kind == "mark" and opening is not None:  # which each line may have
        bare = re.sub(rf"(?m)^{re.escape(opening[0].strip())}[ \t]+", "", bare)
    if layer.kind in _BACK:
        bare = re.sub(_BACK[layer.kind], "", bare, count=1)
    return bare


def echoed(text: str, prompt: str) -> int:
    """Count the characters at the beginning of a text that are the end of its prompt."""
    # White space may differ. A single word counts where it is long.
    words = prompt.split()
    said = text[: 2 * len(prompt)].split()
    if not words or not said:
        return 0
    starts = (at for at, word in enumerate(words) if word == said[0])
    for start in starts:
        repeated = words[start:]
        is_long = len(repeated) > 1 or len(repeated[0].encode()) >= _ECHO_BYTES
        if is_long and said[: len(repeated)] == repeated:
            match = re.match(r"\s+".join(map(re.escape, repeated)), text)
            return match.end() if match else 0
    return _echoed_letters(text, words[-1])


def _echoed_letters(text: str, last_word: str) -> int:
    """Count them in a script without spaces, where a word is a whole sentence."""
    if last_word.isascii():
        return 0
    end = last_word[-_LONGEST:]
    lengths = range(min(len(end), len(text)), 0, -1)
    longest = next((n for n in lengths if text.startswith(end[-n:])), 0)
    return longest if len(end[-longest:].encode()) >= _ECHO_BYTES and longest else 0


@cache
def known_openings() -> tuple[tuple[str, str], ...]:
    """Give beginnings of classics that every model has read many times, and how they go on."""
    path = Path(str(files("mia_batch") / "corpus" / "yardstick.jsonl"))
    passages = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    first = {
        each["title"]: each["text"]
        for each in reversed(passages)
        if each["level"] == _COPIED
    }
    parts = (text.split(" ", _OPENING_WORDS) for text in first.values())
    return tuple((" ".join(words[:-1]), f" {words[-1]}") for words in parts)


# A rule is learned of many answers together: what follows a prompt truly is looked at
# only to tell what the texts themselves have, and never to decide about a single
# answer.


class Findings(NamedTuple):
    """What a rule does to the answers, in numbers of prompts that end differently."""

    n_prompts: int
    n_dressed: int  # with an answer from which something is taken off
    n_alike: int  # with an answer that begins like others although the texts differ
    n_repeating: int  # with an answer that begins with the end of its prompt
    n_empty: int  # with an answer of which nothing is left
    example: str = ""  # of a beginning

    @property
    def continues(self) -> bool:
        """Whether the answers, as the rule leaves them, are continuations."""
        n_others = max(self.n_alike, self.n_empty)
        most = max(_FEWEST, _MOST_UNCOVERED * self.n_prompts)
        # A weak model may say some words of the prompt again.
        return n_others <= most and self.n_repeating <= max(
            _FEWEST, _FAINT * self.n_prompts
        )


def learn(asked: Sequence[Asked], rule: Rule = (), *, fewest: int = _FEWEST) -> Rule:
    """Find the layers that many answers wear, one after the other, the most frequent first."""
    # ``rule`` has layers that are known before; those that the texts themselves have
    # are left out.
    n_prompts = len({_tail(each) for each in asked})
    worn = {
        layer: sum(wears(each.answer.strip(), each.prompt, layer) for each in asked)
        for layer in rule
    }
    rule = tuple(
        layer for layer, n in worn.items() if not (n and _of_the_texts(layer, n, asked))
    )
    for _ in range(_ROUNDS - len(rule)):
        bare = [
            (each, undress(each.answer, each.prompt, rule).strip()) for each in asked
        ]
        frequent = {
            layer: len(rests)
            for layer, rests in (_candidates(bare) | _common_beginnings(bare)).items()
            if len(rests) >= _needed(layer, n_prompts, fewest)
            and layer not in rule
            and _differ(rests.values())
        }
        ordered = sorted(
            frequent, key=lambda layer: _precedence(layer, frequent[layer])
        )
        dressing = (
            each for each in ordered if not _of_the_texts(each, frequent[each], asked)
        )
        best = next(dressing, None)
        if best is None:
            return rule
        rule = (*rule, best._replace(kind="lead") if best.kind == "start" else best)
    return rule


def _candidates(bare: Iterable[tuple[Asked, str]]) -> dict[Layer, dict[str, str]]:
    """Find what each prompt's answers may wear, and what would be left, by the prompt's end."""
    found: defaultdict[Layer, dict[str, str]] = defaultdict(dict)
    for each, text in bare:
        for layer in _worn(text, each.prompt):
            if rest := _without(text, each.prompt, layer):
                found[layer][_tail(each)] = rest
    return found


def _common_beginnings(
    bare: Iterable[tuple[Asked, str]],
) -> dict[Layer, dict[str, str]]:
    """Find lead-ins without an end of their own: what answers that begin alike share, in words."""
    groups: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for each, text in bare:
        if start := _beginning(text):
            groups[start][_tail(each)] = text
    found = {}
    for texts in groups.values():
        if len(texts) < 2 * _FEWEST:
            continue
        shared = _shared_start([*texts.values()]).rpartition(" ")[0].strip()
        rests = {tail: text[len(shared) :].lstrip() for tail, text in texts.items()}
        if len(shared) >= _BEGINNING and _says_something(shared):
            found[Layer("start", shared)] = rests
    return found


def _shared_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    pairs = enumerate(zip(first, last, strict=False))
    return first[: next((at for at, (one, other) in pairs if one != other), len(first))]


def _says_something(text: str) -> bool:
    """Whether it has letters, and not one word again and again, as a model in a loop says."""
    words = text.split()
    return any(map(str.isalpha, text)) and (len(words) == 1 or len(set(words)) > 1)


def _worn(text: str, prompt: str) -> Iterator[Layer]:
    first = (pattern.match(text) for pattern in _FIRST_UNITS)
    last = (
        pattern.search(text, max(0, len(text) - _LONGEST)) for pattern in _LAST_UNITS
    )
    for kind, found in (("lead", first), ("close", last)):
        units = {unit[0].strip() for unit in found if unit is not None}
        yield from (Layer(kind, unit) for unit in units if _says_something(unit))
    others = (Layer(kind) for kind in _KINDS if kind not in _LITERAL)
    yield from (layer for layer in others if wears(text, prompt, layer))


def _needed(layer: Layer, n_prompts: int, fewest: int) -> float:
    is_faint = layer.kind in _FAINT_KINDS
    is_faint |= layer.kind in _LITERAL and len(layer.text.encode()) < _LONG_BYTES
    return max(fewest + is_faint, (_FAINT if is_faint else _CLEAR) * n_prompts)


def _precedence(layer: Layer, n: int) -> tuple[int, int, int, str]:
    """Order layers: those of most prompts first, then by kind, then the longest lead-in."""
    return -n, _KINDS.index(layer.kind), -len(layer.text), layer.text


def _differ(rests: Iterable[str]) -> bool:
    """Whether what follows differs, as continuations of different texts do."""
    # Texts that a model does not know may all be answered alike, and cut at different
    # words.
    texts = [*rests]
    ordered = sorted({text.rstrip() for text in texts})
    n_cut = sum(longer.startswith(text) for text, longer in pairwise(ordered))
    return len(ordered) - n_cut >= max(_FEWEST, _CLEAR * len(texts))


def _of_the_texts(layer: Layer, n: int, asked: Sequence[Asked]) -> bool:
    """Whether the texts themselves have a layer, half as often as the answers or more."""
    prompts = {_tail(each): each for each in asked}.values()
    truly = sum(wears(each.reference.strip(), each.prompt, layer) for each in prompts)
    if layer.kind in _LITERAL:
        truly = max(truly, sum(layer.text in each.prompt for each in prompts))
    return 2 * truly >= n


def _tail(asked: Asked) -> str:
    return " ".join(asked.prompt[-2 * _TAIL :].split())[-_TAIL:]


def examine(asked: Sequence[Asked], rule: Rule) -> Findings:
    """Count what a rule takes off, and what it leaves that is no continuation."""
    tails, dressed, repeating, empty = set[str](), set[str](), set[str](), set[str]()
    alike: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for each in asked:
        tail, text = _tail(each), undress(each.answer, each.prompt, rule)
        tails.add(tail)
        if text != each.answer:
            dressed.add(tail)
        text = text.strip()
        if each.answer.strip() and not text:
            empty.add(tail)
        if echoed(text, each.prompt):
            repeating.add(tail)
        alike[_beginning(text, is_cut=each.is_cut)][tail] = text
    beginnings = {
        start: rests
        for start, rests in alike.items()
        if len({*start}) >= _FEWEST_LETTERS
        and len(rests) >= max(_FEWEST, _CLEAR * len(tails))
        and (len(start) < _BEGINNING or _differ(rests.values()))
        and not _begin_so(start, len(rests), asked)
    }
    if _of_the_texts(Layer("echo"), len(repeating), asked):
        repeating.clear()
    most = max(beginnings.values(), key=len, default={"": ""})
    same = {tail for rests in beginnings.values() for tail in rests}
    example = next(iter(most.values()))[:_TAIL]
    return Findings(
        len(tails), len(dressed), len(same), len(repeating), len(empty), example
    )


def _beginning(text: str, *, is_cut: bool = False) -> str:
    """Give the first letters; of a short answer those before the limit of tokens cut it."""
    letters = _letters(text[: 4 * _BEGINNING])
    whole = is_cut and len(letters) >= _FEWEST_CUT
    return letters[:_BEGINNING] if whole or len(letters) > _BEGINNING else ""


def _begin_so(start: str, n: int, asked: Sequence[Asked]) -> bool:
    """Whether the texts begin so, or have it elsewhere, half as often as the answers or more."""
    prompts = {_tail(each): each for each in asked}.values()
    truly = sum(_letters(each.reference).startswith(start) for each in prompts)
    elsewhere = sum(start in _letters(each.prompt) for each in prompts)
    return 2 * max(truly, elsewhere) >= n


def _letters(text: str) -> str:
    return "".join(text.casefold().split())
