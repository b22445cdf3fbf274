"""A second implementation: the numbers of a run, recomputed from its files, to be read in an hour.

For readers who trust neither this package nor its authors: nothing of it is imported.
Polars opens Parquet files, numpy and scipy compute what any textbook has, and all else
is the standard library.

Files       ``RunFiles``: run.json (settings, attacks, hashes), tables, and which texts there are
One text    ``AuditedText``: its targets, prompts, samples, logprobs: what models answered
Elsewhere   samples of all texts: how many groups' answers have an n-gram, or hit a token
Words       formulas on answers
Tokens      formulas on log-probabilities
Attacks     ``TABLE``: the formula of each attack, by name and paper; ``score``: of one text
Tests       scores, blind: p-values of texts, groups, collections, rounds and canaries; q-values
Figures     AUC, TPR and the root; ``compare``: numbers of the run are drawn and recomputed

A formula without a value divides by zero, takes the highest of nothing, or is NaN; the
run must have null there. NaN is also a token without a number.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
import zlib
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from functools import cache
from hashlib import blake2b, sha256
from itertools import combinations, groupby, pairwise, product, zip_longest
from math import exp, fsum, inf, isfinite, isnan, isqrt, log, nan
from pathlib import Path
from statistics import NormalDist, linear_regression, median, pstdev, pvariance, stdev
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view as runs
from scipy.stats import false_discovery_control, rankdata

Row = dict[str, Any]
Numbers = Any  # arrays, or what numpy takes for one
Formula = Callable[..., float]
Scored = dict[str, float]
Ngrams = Callable[..., list[tuple[str, ...]]]
_SAME = 1e-9  # relative difference of numbers that are equal

WHY_NOT = {
    "combination_v1": (
        "scikit-learn grows the trees that give it, and they are no formula"
    ),
    "dataset_inference_v1": "scikit-learn fits its weights, and not to the last digit",
    "similarity": (
        "PETAL's likeness of words is taken from the run, which has no embeddings"
    ),
    "others": "what is no score, p-value, q-value, AUC, TPR or root is not looked at",
    "own": "the attack does not come with the package",
    "rarity_from": "words were counted in another run, whose files lie elsewhere",
    "words": "scripts without spaces are cut into words by tables that Python has not",
    "zlib": (
        "sizes are those of classic zlib, and this Python has"
        f" {zlib.ZLIB_RUNTIME_VERSION}"
    ),
}
"""What is not recomputed, and why."""


NO_AUTHOR = {
    *(
        "",
        "anonymous",
        "anon",
        "anonym",
        "anonyme",
        "various",
        "unknown",
        "unbekannt",
        "none",
    ),
    *(
        "authors various",
        "author unknown",
        "a n",
        "inconnu",
        "several",
        "et al",
        "al",
        "others",
    ),
}
"""What stands in the place of an author where none is named."""


class UnknownError(Exception):
    """What cannot be recomputed: a key of `WHY_NOT`."""


# Files


class RunFiles:
    """A finished run's folder, of which files are read and none is written."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.manifest: Row = json.loads((self.folder / "run.json").read_text("utf-8"))
        self.settings: Row = self.manifest["settings"]
        # Attacks, and how much of each view
        self.asked: Row = self.manifest["made"]["scores"]

    def read(self, table: str, *columns: str, **equal: str) -> list[Row]:
        """Read rows of a file, or of a folder of parts: these columns, or all; of these values."""
        files = sorted(self.folder.glob(f"{table}/*.parquet"))
        if not files:
            files = [*self.folder.glob(f"{table}.parquet")]
        if not files:
            return []
        rows = pl.scan_parquet(files, missing_columns="insert", extra_columns="ignore")
        for name, value in equal.items():
            rows = rows.filter(pl.col(name).cast(pl.String) == value)
        return rows.select(columns or pl.all()).collect().to_dicts()

    def evidence(self, table: str, **equal: str) -> list[Row]:
        """Read what scores rest on: the last attempt at a row, and what the settings ask for."""
        last_attempts: dict[tuple[Any, ...], Row] = {}
        key_names = ("target_id", "model", "view", "view_index", "sample_index")
        for row in self.read(table, **equal):
            key = tuple(row.get(name, 0) for name in key_names)
            _, model, view, view_index, sample_index = key
            if table == "logprobs":
                n_prompts = self.asked["logprobs"].get(f"{model}-{view}", 0)
                n_samples = 1
            else:
                n_prompts, n_samples = self.asked["samples"].get(view, (0, 0))
            is_asked = view_index < n_prompts and sample_index < n_samples
            has_failed = key not in last_attempts or last_attempts[key]["reason"]
            if is_asked and has_failed:
                last_attempts[key] = row
        return [last_attempts[key] for key in sorted(last_attempts)]

    @cache  # noqa: B019 - of a run or two
    def scores(self, attack: str) -> dict[str, float | None]:
        return {
            row["target_id"]: row[attack]
            for row in self.read("scores", "target_id", attack)
        }

    @cache  # noqa: B019
    def texts(self) -> list[Row]:
        """Read which texts there are; a ``cluster`` is a group, else a document, else one text."""
        names = (
            "target_id",
            "role",
            "member",
            "group",
            "document_id",
            "window_index",
            "n_words",
        )
        rows = self.read("scores", *names)
        first_window = ""
        for row in rows:
            if not (row["window_index"] and first_window):
                first_window = row["target_id"]
            if row["group"] is not None:
                row["cluster"] = f"group {row['group']}"
            elif row["document_id"] is not None:
                row["cluster"] = f"document {row['document_id']}"
            else:
                row["cluster"] = f"target {first_window}"
        return rows

    def compared(self) -> tuple[list[Row], list[Row]]:
        """Find texts that are asked about, and nulls: else those asked about as non-members."""
        targets = [row for row in self.texts() if row["role"] == "target"]
        non_members = [row for row in self.texts() if row["role"] == "non_member"]
        if non_members:
            return targets, non_members
        nulls = [row for row in targets if row["member"] is False]
        return [row for row in targets if row["member"] is not False], nulls


# One text


class AuditedText:
    """What models answered about a text; called, it gives numbers of its tokens."""

    def __init__(self, run: RunFiles, target_id: str) -> None:
        self.run, self.id = run, target_id
        self.rows_read = dict[tuple[str, ...], list[Row]]()  # by table, model and view
        self.target, *_ = run.read("targets", target_id=target_id)

    def rows(self, table: str, model: str, view: str) -> list[Row]:
        """Read, once, rows of a view; the models shadow-0, shadow-1, ... are one, named shadow."""
        key = (table, model, view)
        if key not in self.rows_read:
            rows = self.run.evidence(table, target_id=self.id, view=view)
            self.rows_read[key] = [
                row for row in rows if row["model"].split("-")[0] == model
            ]
        return self.rows_read[key]

    def answers(
        self, view: str = "continuation", model: str = "target"
    ) -> list[AnsweredPrompt]:
        """Read the answers to the prompts of a view, less what was refused or lost."""
        settings = self.run.settings
        prompts = {
            row["view_index"]: row
            for row in self.run.read(
                "prompts", target_id=self.id, model=model, view=view
            )
        }
        rule: list[Row] = []
        if model == "target" and view not in ("choice", "cloze", "token"):
            rule = self.run.manifest.get("dress", {}).get("rule", [])
        answers = list[AnsweredPrompt]()
        for row in self.rows("samples", model, view):
            prompt = prompts.get(row["view_index"])
            truth = None if prompt is None else prompt["text"]
            if truth is None:
                truth = self.target["reference"]
            answer = row["candidate"]
            if answer is None or truth is None:
                continue
            if rule and prompt is not None:
                answer = without_dress(
                    row.get("raw") or answer, self.context(prompt), rule
                )
            if settings["preset"] == "samia" and view == "continuation":
                # The authors' code cuts prompt and answer, together, behind half of the
                # words.
                whole = words_of(
                    (row["prompt"] or self.target["prefix"]) + answer, "space"
                )
                length = settings["text_length"] or self.target["n_words"]
                answer = " ".join(whole[round(length * 0.5) :])
            words = words_of(answer, settings["word_rule"])
            true_words = words_of(truth, settings["word_rule"])
            answers.append(
                AnsweredPrompt(row["view_index"], answer, truth, words, true_words)
            )
        return answers

    def context(self, prompt: Row) -> str:
        """Read what a model was given: its own text, some bytes of the target, or the prefix."""
        if prompt["cut"] is not None:
            return str(self.target["target"]).encode()[: prompt["cut"]].decode()
        return str(
            self.target["prefix"] if prompt["context"] is None else prompt["context"]
        )

    def every(
        self, column: str = "logprob", view: str = "text", model: str = "target"
    ) -> Numbers:
        """Give numbers of every token; NaN where it has none."""
        numbers = list[float | None]()
        for row in self.rows("logprobs", model, view):
            if row["logprob"]:
                numbers += row[column] or [None] * len(row["logprob"])
        return np.array(numbers, np.float64)

    def __call__(
        self, column: str = "logprob", view: str = "text", model: str = "target"
    ) -> Numbers:
        """Give numbers of tokens that have a log-probability."""
        has_logprob = ~np.isnan(self.every("logprob", view, model))
        return self.every(column, view, model)[has_logprob]

    def average(self, view: str = "text", model: str = "target") -> float:
        """Mean log-probability of the tokens, in nats: minus the loss."""
        return mean(self(view=view, model=model))

    def each(
        self, view: str, model: str = "target", **equal: bool
    ) -> dict[int, Numbers]:
        """Give log-probabilities of each of several texts, or under each of the shadow models."""
        rows = [
            row
            for row in self.rows("logprobs", model, view)
            if all(row[name] == value for name, value in equal.items())
        ]
        logprobs_by_number = dict[int, Numbers]()
        for place, row in enumerate(rows):
            number = place if model == "shadow" else row["view_index"]
            logprobs = without_nan(np.array(row["logprob"] or [], np.float64))
            if len(logprobs):
                logprobs_by_number[number] = logprobs
        return logprobs_by_number

    def averages(self, view: str, model: str = "target", **equal: bool) -> list[float]:
        return [mean(logprobs) for logprobs in self.each(view, model, **equal).values()]


class AnsweredPrompt(NamedTuple):
    """An answer, and the text that truly follows the prompt, in letters and in words."""

    prompt: int
    text: str
    truth: str
    words: list[str]
    true_words: list[str]

    def n_longer(self) -> int:
        return max(len(self.words), len(self.true_words))

    def cut(self) -> AnsweredPrompt:
        """Cut the answer to as many words as truly follow."""
        return self._replace(words=self.words[: len(self.true_words)])

    def cut_common(self, n: int = 1) -> list[tuple[str, ...]]:
        return self.cut().common(n)

    def common(self, n: int = 1) -> list[tuple[str, ...]]:
        """List n-grams that answer and truth share, each as often as both have it."""
        shared = Counter(ngrams(self.words, n)) & Counter(ngrams(self.true_words, n))
        return [*shared.elements()]

    def n_common(self, n: int) -> float:
        """Count them; NaN where the truth has no n-gram."""
        return len(self.common(n)) if len(self.true_words) >= n else nan

    def leading(self, n: int = 1) -> list[tuple[str, ...]]:
        """List n-grams of the words before the first wrong one."""
        right = list[str]()
        for word, true_word in zip(self.words, self.true_words, strict=False):
            if word != true_word:
                break
            right.append(word)
        return ngrams(right, n)

    def in_order(self) -> float:
        """Length of the longest common subsequence of words; NaN where the truth has no word."""
        # lengths[n]: of the words up to now and the first n true words
        lengths = [0] * (len(self.true_words) + 1)
        for word in self.words:
            longer = [0]
            for n, true_word in enumerate(self.true_words):
                best = lengths[n] + 1 if word == true_word else lengths[n + 1]
                longer.append(max(best, longer[n]))
            lengths = longer
        return lengths[-1] if self.true_words else nan

    def covered(self, n: int = 3) -> int:
        """Words of the answer inside some span of n words that the truth has, too."""
        true_spans = {*ngrams(self.true_words, n)}
        places = set[int]()
        for start, span in enumerate(ngrams(self.words, n)):
            if span in true_spans:
                places.update(range(start, start + n))
        return len(places)

    def blocks(self, *, letters: bool = False) -> list[int]:
        """Sizes of common blocks: the longest, then the longest on both sides of it, and so on."""
        one, other = (
            (self.truth, self.text) if letters else (self.true_words, self.words)
        )
        matcher = SequenceMatcher[Any](None, one, other, autojunk=False)
        return [block.size for block in matcher.get_matching_blocks()]


_UNSPACED = (
    "[\u0e00-\u109f\u1780-\u1aaf\u3005-\uaadf\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]"
)


_SPELLED_OUT = str.maketrans(
    dict.fromkeys("\u02bc\u2018\u2019\u201a\u201b\u2032\u2035\u2039\u203a\uff07", "'")
    | dict.fromkeys(
        "\u00ab\u00bb\u201c\u201d\u201e\u201f\u2033\u2036\u301d\u301e\u301f\uff02", '"'
    )
    | dict(
        zip(
            "\ufb00\ufb01\ufb02\ufb03\ufb04",
            ("ff", "fi", "fl", "ffi", "ffl"),
            strict=True,
        )
    )
    | {
        "\u2026": "...",
        "\u017f": "s",
        "\u1e9b": "\u1e61",
        "\u0132": "IJ",
        "\u0133": "ij",
    }
    | {
        "\ufb05": "st",
        "\ufb06": "st",
        "\ufb13": "\u0574\u0576",
        "\ufb14": "\u0574\u0565",
    }
    | {"\ufb15": "\u0574\u056b", "\ufb16": "\u057e\u0576", "\ufb17": "\u0574\u056d"}
)
_DASHES = re.compile("[-\u2010-\u2015\u2212\u2e3a\u2e3b\ufe58\ufe63\uff0d]+")


def fold(text: str) -> str:
    """Make spellings one that differ in typography alone: marks, ligatures, dashes, quotes."""
    return normalize("NFC", _DASHES.sub("-", text.translate(_SPELLED_OUT)))


_OPENS = {
    "thoughts": r"(?s:.*?)(?:</(?:think|thinking|thought|reasoning)>|\[/THINK\])",
    "fence": r"(?:```|~~~)[^\n`]*\n",
    "line": "[^\\n]{1,200}[:\uff1a][*_]*[ \\t]*\\n",
    "dots": "(?:\\[\\s*)?(?:\\.{3,}|\u2026+)(?:\\s*\\])?",
    "mark": "(?:[-*\u2022+>]|#{1,6}|[0-9]{1,2}[.)])[ \\t]+|[-*_=~]{3,}[ \\t]*\\n",
    "quote": (
        '["\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a\u2018\u201a\u300c\u300e\u300a]'
        "|\\*\\*|[*`_]"
    ),
}
_ENDS = {
    "fence": r"(?s:\n?[ \t]*(?:```|~~~).*)",
    "quote": (
        '(?:["\u201d\u201c\u00ab\u00bb\u2039\u203a\u2019\u300d\u300f\u300b]'
        "|\\*\\*|[*`_])\\s*$"
    ),
}


def without_dress(answer: str, prompt: str, rule: list[Row]) -> str:
    """Take off what the run's rule names: remarks at the end, then each layer once, in order."""
    text = answer.strip()
    for layer in rule:
        if layer["kind"] == "close" and text.endswith(layer["text"]):
            text = text[: -len(layer["text"])].rstrip()
    layers = [layer for layer in rule if layer["kind"] != "close"]
    while True:
        sizes = [size_of_layer(text, prompt, layer) for layer in layers]
        if not any(sizes):
            return answer if text == answer.strip() else text
        number = next(number for number, size in enumerate(sizes) if size)
        layer_text, text = text[: sizes[number]], text[sizes[number] :].lstrip()
        kind = layers.pop(number)["kind"]
        if kind == "mark":
            lines = text.split("\n")
            text = "\n".join(without_mark(line, layer_text.strip()) for line in lines)
        end = re.search(_ENDS[kind], text) if kind in _ENDS else None
        if end:
            text = text[: end.start()]


def without_mark(line: str, mark: str) -> str:
    """Take a mark and the blanks behind it off a line."""
    rest = line.removeprefix(mark)
    return rest.lstrip(" \t") if rest != line and rest[:1] in (" ", "\t") else line


def size_of_layer(text: str, prompt: str, layer: Row) -> int:
    """Count the characters of a layer at the beginning of a text."""
    if layer["kind"] == "lead":
        return len(layer["text"]) if text.startswith(layer["text"]) else 0
    if layer["kind"] == "echo":
        return repeated(text, prompt)
    opening = re.match(_OPENS[layer["kind"]], text)
    return opening.end() if opening else 0


def repeated(text: str, prompt: str) -> int:
    """Count the characters at the beginning of a text that are the last words of its prompt."""
    words = prompt.split()
    first_words = [*re.finditer(r"\S+", text)]
    for n in range(min(len(words), len(first_words)), 0, -1):
        is_long = n > 1 or len(words[-1].encode()) > 7
        if is_long and [word[0] for word in first_words[:n]] == words[-n:]:
            return first_words[n - 1].end()
    last_word = words[-1][-200:] if words else ""
    if last_word.isascii():
        return 0
    for n in range(len(last_word), 0, -1):
        if text.startswith(last_word[-n:]):
            return n if len(text[:n].encode()) > 7 else 0
    return 0


def words_of(text: str, rule: str) -> list[str]:
    if rule == "rouge":
        return re.findall("[a-z0-9]+", text.lower())
    if rule == "unicode" or (
        rule in ("script", "folded") and re.search(_UNSPACED, text)
    ):
        raise UnknownError("words")
    if rule == "space":
        return [word for word in text.split(" ") if word]
    return fold(text).split() if rule == "folded" else text.split()


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]


def without_nan(values: Numbers) -> Numbers:
    return values[~np.isnan(values)]


def mean(values: Iterable[float]) -> float:
    """Take the mean of numbers that are not NaN."""
    numbers = [value for value in values if not isnan(value)]
    return fsum(numbers) / len(numbers)


# Elsewhere


class CountedTexts(NamedTuple):
    """Whose answers tell how rare words are."""

    group_of_text: dict[str, str]
    texts: set[str]
    n_outside: int  # 1 if a text's own group may be outside of them, else 0


@cache
def counted(run: RunFiles) -> CountedTexts:
    """Find the group of each text, and the texts whose answers count.

    Only nulls' count where they are compared with texts of unknown membership; in
    rounds those of the first one.
    """
    if run.settings["rarity_from"] is not None:
        raise UnknownError("rarity_from")
    asked, nulls = run.compared()
    rows = run.texts()
    groups = {row["target_id"]: row["cluster"] for row in rows}
    if run.settings["stop_when_decided"]:
        plan = rounds(run)
        first_windows = plan.order[: plan.ends[0]]
        texts = {*groups} - {row["target_id"] for row in (*asked, *nulls)}
        for side in windows(run):
            for group_windows in side.values():
                texts.update(group_windows[place] for place in first_windows)
        return CountedTexts(groups, texts, 1)
    has_unknown = any(row["member"] is None for row in asked)
    if nulls and (nulls[0]["role"] == "non_member" or has_unknown):
        return CountedTexts(groups, {row["target_id"] for row in nulls}, 1)
    every_text = {row["target_id"] for row in rows if row["role"] != "yardstick"}
    is_one_group = len({groups[target_id] for target_id in every_text}) == 1
    if is_one_group or not nulls:  # each text is a group
        groups = {target_id: target_id for target_id in groups}
    return CountedTexts(groups, every_text, 0)


@cache
def place_of(ngram: tuple[str, ...]) -> int:
    """Find where a run counts an n-gram: in one of 2^22 places, which n-grams may share.

    They are the first bits of a hash: words by FNV-1a, mixed as in SplitMix64 (Steele
    et al. 2014).
    """
    mixed, bits = 0, 2**64 - 1
    for word in ngram:
        hashed = 0xCBF29CE484222325
        for byte in word.encode():
            hashed = (hashed ^ byte) * 0x100000001B3 & bits
        mixed = (mixed + 0x9E3779B97F4A7C15 & bits) ^ hashed
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & bits
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & bits
        mixed ^= mixed >> 31
    return mixed >> 42


@cache
def groups_that_say(run: RunFiles, model: str, view: str) -> tuple[Counter[int], int]:
    """Count the groups among whose answers n-grams of each place stand, and those with answers."""
    places_of_group = defaultdict[str, set[int]](set)
    counts = counted(run)
    for row in run.evidence("samples", model=model, view=view):
        if row["candidate"] is None or row["target_id"] not in counts.texts:
            continue
        words = words_of(row["candidate"], run.settings["word_rule"])
        places = places_of_group[counts.group_of_text[row["target_id"]]]
        for n in (1, 2, 3):
            places.update(place_of(ngram) for ngram in ngrams(words, n))
    n_groups = Counter[int]()
    for places in places_of_group.values():
        n_groups.update(places)
    return n_groups, len(places_of_group)


def rarity(
    t: AuditedText,
    which: Ngrams,
    view: str = "probe",
    model: str = "target",
    n: int = 1,
) -> float:
    """Weigh n-grams by ln(T / (1 + df)), Spärck Jones 1972: df of T other groups say them."""
    n_groups, total = groups_that_say(t.run, model, view)
    counts = counted(t.run)
    own_group = 0 if t.id in counts.texts else 1  # it is the 1, where it is counted

    def weight(ngram: tuple[str, ...]) -> float:
        return log(
            (total + counts.n_outside) / max(n_groups[place_of(ngram)] + own_group, 1)
        )

    shares = list[float]()
    for answer in t.answers(view, model):
        weights = [weight(ngram) for ngram in which(answer, n)]
        shares.append(share(fsum(weights), len(answer.true_words) - n + 1))
    return mean(shares)


class TokenAnswer(NamedTuple):
    """A next token that was asked for."""

    target_id: str
    true_token: str
    is_hit: bool


@cache
def next_tokens(run: RunFiles) -> tuple[dict[str, int], list[TokenAnswer]]:
    """Deal texts, by group, into 16 folds; list every answer about a next token."""
    groups = counted(run).group_of_text
    first_text: dict[str, str] = {}
    for target_id in sorted(groups):
        first_text.setdefault(groups[target_id], target_id)
    order = {
        target_id: place
        for place, target_id in enumerate(sorted(first_text.values()), 1)
    }
    fold_of_text = {
        target_id: order[first_text[group]] % 16 for target_id, group in groups.items()
    }
    true_tokens = {
        (row["target_id"], row["view_index"]): row["text"]
        for row in run.read("prompts", model="target", view="token")
    }
    answers = list[TokenAnswer]()
    for row in run.evidence("samples", model="target", view="token"):
        token = true_tokens[row["target_id"], row["view_index"]]
        if token is not None and row["candidate"] is not None:
            answers.append(
                TokenAnswer(row["target_id"], token, row["candidate"] == token)
            )
    return fold_of_text, answers


def hits_less_expected(t: AuditedText) -> float:
    """Hits, less the share of hits at the same true token in counted texts of other folds.

    It counts 30 answers about tokens as frequent in the run, up to a factor of two,
    besides its own (shrunk shares: Efron and Morris 1975).
    """
    fold_of_text, answers_of_run = next_tokens(t.run)
    counted_texts = counted(t.run).texts
    frequency = Counter(answer.true_token for answer in answers_of_run)
    # Of a token, of those as frequent, of all
    n_answers, n_hits = (
        Counter[Any](),
        Counter[Any](),
    )
    for answer in answers_of_run:
        is_of_fold = fold_of_text[answer.target_id] == fold_of_text[t.id]
        if answer.target_id in counted_texts and not is_of_fold:
            keys = (answer.true_token, frequency[answer.true_token].bit_length(), None)
            n_answers.update(keys)
            if answer.is_hit:
                n_hits.update(keys)
    if n_answers[None] < 100:
        return mean([])

    def expected(token: str) -> float:
        as_frequent = frequency[token].bit_length()
        share_of_all = n_hits[None] / n_answers[None]
        prior = (n_hits[as_frequent] + share_of_all) / (n_answers[as_frequent] + 1)
        return (n_hits[token] + 30 * prior) / (n_answers[token] + 30)

    answers = t.answers("token")
    return mean(
        (answer.text == answer.truth) - expected(answer.truth) for answer in answers
    )


# Words


def share(part: float, whole: float) -> float:
    return part / max(whole, 1)


def zlib_size(words: Iterable[str]) -> int:
    """Measure a text as classic zlib compresses it at level 6, on which published figures rest."""
    if not re.fullmatch(r"1\.(2\.(8|11|12|13)|3|3\.1)", zlib.ZLIB_RUNTIME_VERSION):
        raise UnknownError("zlib")
    return len(zlib.compress(" ".join(words).encode(), 6))


def over(term: Formula, view: str = "continuation") -> Formula:
    """Take the mean of a term over answers."""
    return lambda t, *numbers: mean(
        term(answer, *numbers) for answer in t.answers(view)
    )


def summed_up(term: Formula) -> Formula:
    """Take the mean of a term over answers, or what the end of the name says."""
    statistics: Row = {"": mean, "_max": max, "_median": median, "_min": min}
    return lambda t, end: statistics[end]([term(answer) for answer in t.answers()])


def hit_rates(t: AuditedText) -> list[float]:
    """Smooth the share of hits at each point (Krichevsky and Trofimov 1981)."""
    rates = list[float]()
    for _, answers in groupby(t.answers("probe"), key=lambda answer: answer.prompt):
        hits = [answer.leading() != [] for answer in answers]
        rates.append((sum(hits) + 0.5) / (len(hits) + 1))
    return rates


def similarities(t: AuditedText, model: str = "target") -> dict[int, float]:
    """Log of the likeness of words, which is taken from the run's ``features``."""
    rows = t.run.read(
        "features", target_id=t.id, model=model, view="probe", sample_index="0"
    )
    similarity = {row["view_index"]: row["similarity"] for row in rows}
    prompts = [answer.prompt for answer in t.answers("probe", model)]
    return {prompt: log(max(similarity[prompt], 1e-16)) for prompt in prompts}


def petal(t: AuditedText) -> float:
    """Likeness of words as log-probability, by a line from the other model."""
    likeness = similarities(t)
    likeness_of_other = similarities(t, "reference")
    x, y = list[float](), list[float]()
    for point, logprobs in t.each("probe", "reference").items():
        if point in likeness_of_other:
            x.append(likeness_of_other[point])
            y.append(logprobs[0])
    slope = linear_regression(x, y).slope if len({*x}) > 1 else 0.0
    return mean(y) + slope * (mean(likeness.values()) - mean(x))


def over_labels(pairs: Iterable[tuple[int, float]]) -> float:
    """Mean over the four labels of the mean over questions where it is right."""
    terms = defaultdict[int, list[float]](list)
    for label, term in pairs:
        terms[label].append(term)
    return mean(mean(terms[label]) for label in range(4))


def decop(t: AuditedText) -> float:
    """Share of answers that name the right label: in question k that of k modulo 4."""
    pairs = list[tuple[int, float]]()
    for answer in t.answers("choice"):
        # An article that begins an answer is no label.
        text = re.sub(r"^\W*A (?=(?!i)[^\W\d_A-Z]|i[^s])", "", answer.text)
        labels = {*re.findall(r"\b[A-D]\b(?:['\u2019][^\W\d_])?", text)} & {*"ABCD"}
        if len(labels) == 1:
            right = answer.prompt % 4
            pairs.append((right, labels == {"ABCD"[right]}))
    return over_labels(pairs)


def chosen_label(t: AuditedText, kind: str) -> float:
    """Likewise from log-probabilities: the highest one, if calibrated less the label's mean."""
    rows = [row for row in t.rows("logprobs", "target", "choice") if row["logprob"]]
    right = [row["view_index"] % 4 for row in rows]
    values = np.array([row["logprob"] for row in rows])
    if "log" not in kind:
        values = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    if kind == "probability":
        return over_labels(
            zip(right, values[np.arange(len(values)), right], strict=True)
        )
    if "calibrated" in kind:
        values = values - [
            over_labels(zip(right, label, strict=True)) for label in values.T
        ]
    is_right = values.argmax(axis=1) == right
    return over_labels(zip(right, is_right, strict=True))


# Tokens

_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1


def both(t: AuditedText, model: str = "reference") -> list[Numbers]:
    """Give each token's log-probability under two models; NaN where they cut the text otherwise."""
    own, other = t.every(), t.every(model=model)
    if np.array_equal(t.every("token_ids"), t.every("token_ids", model=model)):
        return [own, other]
    return [own * nan, own * nan]


def difference(t: AuditedText, model: str) -> float:
    """Loss under another model that has the same tokens, less the target's."""
    own, other = both(t, model)
    return mean(own) - mean(other)


def rate(t: AuditedText, model: str = "target") -> float:
    """Nats per byte; a token without a number counts as the mean of the others."""
    n_tokens, n_bytes = len(t.every(model=model)), len(str(t.target["target"]).encode())
    return t.average(model=model) * n_tokens / n_bytes


def lowest(percent: int, values: Numbers, weights: Numbers | float = 1) -> float:
    """Mean of the lowest values; each is weighed after they were chosen."""
    n_lowest = max(len(without_nan(values)) * percent // 100, 1)
    order = np.argsort(values, kind="stable")[:n_lowest]
    return mean((values * weights)[order])


def decay(values: Numbers) -> Numbers:
    """Weigh tokens by their places, from 1 to 1 / n."""
    return 1 - np.arange(len(values)) / len(values)


def standardised(t: AuditedText, centre: str = "vocabulary_mean") -> Numbers:
    """Distances from the mean over the vocabulary, or the likeliest token, in its deviations."""
    variance = t("vocabulary_variance")
    return (t() - t(centre)) / np.sqrt(np.where(variance > 0, variance, nan))


def gaps(t: AuditedText, n: int) -> Numbers:
    distances = without_nan(standardised(t, "top_logprob"))
    return runs(distances, n).mean(axis=1) if len(distances) >= n else distances


def polarized(logprobs: Numbers) -> float:
    """Mean of the highest 5 % of log-probabilities less that of the lowest 30 %."""
    return -lowest(5, -logprobs) - lowest(30, logprobs)


def differ(gains: Numbers) -> Numbers:
    """None where two models agree to 0.00001 nats on average, which is rounding."""
    return gains if abs(gains).sum() > 1e-5 * len(gains) else gains[:0]


def ez_mia(t: AuditedText) -> float:
    """P / (P + N), gains and losses on the reference model where the first guess is wrong."""
    gains, rank = np.subtract(*both(t)), t.every("rank")
    wrong = without_nan(gains[rank > 1])
    if not len(wrong) and len(without_nan(gains + rank)):
        return 1.0
    return float(np.maximum(differ(wrong), 0).sum() / abs(differ(wrong)).sum())


def wbc(t: AuditedText) -> float:
    """Share of windows, of ten lengths, whose gains sum to above 0."""
    gains = differ(without_nan(np.subtract(*both(t))))
    if not len(gains):
        return mean([])
    lengths = [min(n, len(gains)) for n in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)]
    return mean(mean(runs(gains, n).sum(axis=1) > 0) for n in lengths)


def informia(t: AuditedText) -> float:
    """Mean of log p / q + KL(q || p) over tokens."""
    p, q = (np.minimum(logprobs, _NEAR_1) for logprobs in both(t))
    rest = np.expm1(q) * np.log(np.expm1(q) / np.expm1(p))
    return mean(np.subtract(*both(t)) + np.exp(q) * (q - p) - rest)


def aeca(t: AuditedText) -> float:
    """How far p log 1 / f jumps between tokens, less how far log p varies."""
    values = without_nan(np.exp(t()) * t("log_inverse_frequency"))
    return float(pstdev(values - np.append(values[1:], 0.0)) - pstdev(t()))


def dc_pdd(t: AuditedText) -> float:
    """Mean of p log 1 / f, at most 0.01, where a token comes first."""
    values = np.minimum(0.01, np.exp(t()) * t("log_inverse_frequency"))
    first: dict[float, float] = {}
    for token, value in zip(without_nan(t("token_ids")), values, strict=True):
        first.setdefault(token, value)
    return mean(first.values())


VIEWS = {"semantic": "paraphrase", "embedding": "noise", "released": "perturbation"}


def peak(t: AuditedText, kind: str, model: str = "target") -> float:
    """Take p = exp(average) of a text less its mean over others, in pairs over whole ones."""
    views = t.each(VIEWS.get(kind, kind), model)
    p = {number: exp(mean(logprobs)) for number, logprobs in views.items()}
    in_pairs = kind not in ("neighbour", "released")
    others = [p[number] for number in p if not in_pairs or number ^ 1 in p]
    return exp(t.average(model=model)) - mean(others)


def phi(logprob: Numbers) -> Numbers:
    """Log p / (1 - p)."""
    return np.minimum(logprob, _NEAR_1) - np.log(
        -np.expm1(np.minimum(logprob, _NEAR_1))
    )


def shadows(t: AuditedText, *kinds: str) -> list[float]:
    """Give averages under shadow models tuned on the text (in), or not (out); none if one has."""
    averages = list[float]()
    for kind in kinds:
        of_kind = t.averages("text", "shadow", trained=kind == "in")
        if not of_kind:
            return []
        averages += of_kind
    return averages


def above(t: AuditedText, kind: str) -> float:
    return float(phi(t.average())) - mean(phi(shadows(t, kind)))


def density(t: AuditedText, kind: str) -> float:
    """Log of a normal density that is fitted to phi of shadow models, but for a constant."""
    variance: float = pvariance(phi(shadows(t, kind)))
    return -(above(t, kind) ** 2 / variance + log(variance)) / 2


def log_p(t: AuditedText, kept: str) -> float:
    """Log-probability of the text to be extracted, or that among what decoding keeps."""
    logprobs = t.every("logprob", "extraction")
    if kept:
        logprobs = logprobs - t.every("support_mass", "extraction")
    return float(np.minimum(0.0, logprobs.sum())) / (len(logprobs) > 0)


def needed(log_p: float, percent: int) -> float:
    """Minus the log of the samples that have a text among them with this chance, at least 1."""
    if log_p < -30:
        hazard = log_p
    elif log_p == 0:
        hazard = inf
    else:
        hazard = np.log(-np.log1p(-np.exp(log_p)))
    return float(np.minimum(0, hazard - log(-log(1 - percent / 100))))


def longest(ranks: Numbers) -> int:
    """Most tokens in a row that are the likeliest ones; an error where no rank is known."""
    if not len(without_nan(ranks)):
        raise ValueError("no rank is known")
    return max(len([*run]) if is_hit else 0 for is_hit, run in groupby(ranks == 1))


def from_end(logprobs: Numbers, percent: int) -> float:
    """Minus the share of tokens that hold, from the end, at most a share of losses below 1."""
    so_far = np.cumsum(logprobs[::-1] > -1)
    if not so_far.any():
        return -mean([])
    return -mean(n * 100 <= percent * so_far[-1] for n in so_far)


def complexity(values: Numbers, bins: int) -> float:
    """Words of the parse of Ziv and Lempel 1978 by values: 99 levels up to 0, cut into bins."""
    low = min(0.0, values.min())
    edges = np.append(np.arange(99) * (-low / 99) + low, 0)
    levels = np.searchsorted(edges, np.minimum(values, 0))
    words, word = set[tuple[int, ...]](), tuple[int, ...]()
    for symbol in np.maximum(-(-levels * bins // max(levels.max(), 1)) - 1, 0).tolist():
        word += (symbol,)
        if word not in words:
            words.add(word)
            word = ()
    return len(words) / len(values)


def irregularity(values: Numbers, m: int = 8, r: float = 0.8) -> float:
    """Approximate entropy, Pincus 1991, within r deviations; none of m + 1 values or fewer."""
    phis = list[float]()
    for n in (m, m + 1) if len(values) > m + 1 else ():
        stretches = runs(values, n)
        distances = abs(stretches[:, None] - stretches)
        is_near = (distances <= r * np.std(values)).all(axis=2)
        phis.append(mean(np.log(is_near.mean(axis=1))))
    return abs(max(phis) - min(phis))


# Attacks: a higher score means more likely a member. A name has one of what stands in
# {...}, which its formula is given; n-grams of one word are not named.

ROUGE: dict[str, Formula] = {
    # Lin 2004: recall, precision and F1 of n-grams
    "": lambda a, n: share(a.n_common(n), len(a.true_words) - n + 1),
    "_precision": lambda a, n: share(a.n_common(n), len(a.words) - n + 1),
    "_f1": lambda a, n: share(
        2 * a.n_common(n), len(a.words) + len(a.true_words) - 2 * n + 2
    ),
}
SPANS: dict[str, Formula] = {
    # Hallinan et al. 2025 (arXiv:2508.09603); near_verbatim: Ahmed et al. 2026
    # (arXiv:2601.02671)
    "ngram_coverage": lambda a: share(a.covered(), len(a.words)),
    "ngram_coverage_reference": lambda a: share(a.covered(), a.n_longer()),
    "ngram_coverage_total": lambda a: share(
        2 * a.covered(), len(a.words) + a.n_longer()
    ),
    "creativity": lambda a: share(sum(map(a.covered, range(2, 13))), len(a.words)),
    "longest_block": lambda a: max(a.blocks()),
    "longest_block_chars": lambda a: max(a.blocks(letters=True)),
    "longest_block_share": lambda a: share(max(a.blocks()), len(a.true_words)),
    "near_verbatim": lambda a: share(
        sum(n for n in a.blocks() if n >= 8), len(a.true_words)
    ),
}
TABLE: dict[str, Formula] = {
    # SaMIA: Kaneko et al. 2024 (arXiv:2404.11262v2), equations 1 and 5 (recall), 9
    # (precision), and 7 (times the compressed size), with the denominators of the
    # authors' code, or ROUGE's
    "samia_n{1,2,3,4,5}": over(lambda a, n: share(len(a.common(n)), len(a.true_words))),
    "samia_precision_n{1,2,3,4,5}": over(
        lambda a, n: share(len(a.common(n)), len(a.words))
    ),
    "samia_zlib_n{1,2,3,4,5}": over(
        lambda a, n: share(len(a.common(n)), len(a.true_words)) * zlib_size(a.words)
    ),
    "samia_plus_zlib": over(
        lambda a: share(len(a.common()), len(a.true_words)) + zlib_size(a.words)
    ),
    "samia_matched{,_precision}_n{1,2,3,4,5}": over(
        lambda a, kind, n: ROUGE[kind](a.cut(), n)
    ),
    "samia_matched_zlib_n{1,2,3,4,5}": over(
        lambda a, n: ROUGE[""](a.cut(), n) * zlib_size(a.cut().words)
    ),
    "samia_matched_rarity_n{1,2}": lambda t, n: rarity(
        t, AnsweredPrompt.cut_common, "continuation", n=n
    ),
    "rouge_{1,2,3,4,5}{,_precision,_f1}": over(lambda a, n, kind: ROUGE[kind](a, n)),
    "rouge_l": over(lambda a: share(a.in_order(), len(a.true_words))),
    "rouge_l_precision": over(lambda a: share(a.in_order(), len(a.words))),
    "rouge_l_f1": over(
        lambda a: share(2 * a.in_order(), len(a.words) + len(a.true_words))
    ),
    **{
        f"{name}{{,_max,_median,_min}}": summed_up(term) for name, term in SPANS.items()
    },
    # He et al. 2025 (PETAL, USENIX Security); Lan et al. 2026; DE-COP: Duarte et al.
    # 2024 (arXiv:2402.09910), which of four passages is verbatim
    "token_hits": over(lambda a: a.text == a.truth, "token"),
    "token_hits_less_expected": hits_less_expected,
    "probe_first_word": over(lambda a: a.leading() != [], "probe"),
    "probe_leading": over(
        lambda a: share(len(a.leading()), len(a.true_words)), "probe"
    ),
    "probe_leading_rarity": lambda t: rarity(t, AnsweredPrompt.leading),
    "probe_recall_rarity": lambda t: rarity(t, AnsweredPrompt.cut_common),
    "probe_rarity_difference": lambda t: (
        rarity(t, AnsweredPrompt.leading)
        - rarity(t, AnsweredPrompt.leading, model="reference")
    ),
    "probe_rarity_loss": lambda t: rarity(t, AnsweredPrompt.leading) + t.average(),
    "probe_logprob": lambda t: mean(map(log, hit_rates(t))),
    "petal": petal,
    "petal_similarity": lambda t: mean(similarities(t).values()),
    "masked_hits": over(lambda a: a.truth in a.text, "cloze"),
    "decop": decop,
    "decop_{logprob,log_calibrated,calibrated,probability}": chosen_label,
    # Yeom et al. 2018 (arXiv:1709.01604); Carlini et al. 2021 (arXiv:2012.07805),
    # sections 4.2, 5.2
    "loss": AuditedText.average,
    "perplexity": lambda t: -exp(-t.average()),
    "loss_zlib": lambda t: t.average() / zlib_size([t.target["target"]]),
    "{lowercase,repeated}_difference": lambda t, view: t.average() - t.average(view),
    "lowercase_ratio": lambda t: -t.average() / t.average("lowercase"),
    "reference_difference": lambda t: rate(t) - rate(t, "reference"),
    "reference_ratio": lambda t: -rate(t) / rate(t, "reference"),
    # Shi et al. 2024, section 4.2; Fu et al. 2024 (arXiv:2311.06062), equations 4 and 7
    "reference_token_difference": lambda t: difference(t, "reference"),
    "{self_prompt,candidate}_difference": difference,
    # Min-K%, Shi et al. 2024 (arXiv:2310.16789), equation 1; Min-K%++, Zhang et al.
    # 2025 (arXiv:2404.02936); PDR, Liu et al. 2026 (arXiv:2601.06827); Gap-K%, Kwak and
    # Kim 2026 (arXiv:2601.19936)
    "min_k_{5,10,20,30,40,50,60}": lambda t, percent: lowest(percent, t()),
    "min_k_plus_plus_{5,10,20,30,40,50,60}": lambda t, k: lowest(k, standardised(t)),
    "pdr_loss": lambda t: mean(t() * decay(t())),
    "pdr_min_k_20": lambda t: lowest(20, t(), decay(t())),
    "pdr_min_k_plus_plus_20": lambda t: lowest(20, standardised(t), decay(t())),
    "gap_k_20{,_window_6}": lambda t, window: lowest(20, gaps(t, 6 if window else 3)),
    # Ilić et al. 2026 (arXiv:2601.12104); Chen et al. 2026 (arXiv:2601.02751),
    # algorithm 1; Tao and Shokri 2025 (arXiv:2510.05582); AECA, ICML 2026; Zhang et al.
    # 2024 (arXiv:2409.14781)
    "ez_mia": ez_mia,
    "wbc": wbc,
    "informia": informia,
    "aeca": aeca,
    "dc_pdd": dc_pdd,
    # PAC, Ye et al. 2024 (arXiv:2405.11930); Mattern et al. 2023 (arXiv:2305.18462);
    # Mitchell et al. 2023 (arXiv:2301.11305); Gehrmann et al. 2019 (arXiv:1906.04043);
    # Zhang and Wu 2024
    "pac": lambda t: mean(map(polarized, t.each("swapped").values())) - polarized(t()),
    "neighbour_difference": lambda t: t.average() - mean(t.averages("neighbour")),
    "neighbour_ratio": lambda t: -t.average() / mean(t.averages("neighbour")),
    "detect_gpt": lambda t: (
        (t.average() - mean(t.averages("perturbation")))
        / stdev(t.averages("perturbation"))
    ),
    "rank": lambda t: -mean(t("rank")),
    "log_rank": lambda t: -mean(np.log(t("rank"))),
    "top_1_share": lambda t: mean(without_nan(t("rank")) == 1),
    "entropy": lambda t: mean(t("vocabulary_mean")),
    "surprising_20": lambda t: lowest(
        20, t(), np.where(-t("vocabulary_mean") < 2, 1, nan)
    ),
    # SPV-MIA, Fu et al. 2024 (arXiv:2311.06062), equations 5, 10 and 11
    "spv_{semantic,embedding,neighbour,released}": lambda t, kind: (
        peak(t, kind) - peak(t, kind, "self_prompt")
    ),
    "spv_{semantic,embedding,neighbour}_uncalibrated": peak,
    # LiRA, Carlini et al. 2022 (arXiv:2112.03570), algorithm 1: phi among that of
    # shadow models; RMIA, Zarifzadeh et al. 2024 (arXiv:2312.03262): p / p(x), its mean
    # over shadow models
    "lira_online": lambda t: density(t, "in") - density(t, "out"),
    "lira_online_fixed": lambda t: above(t, "out") ** 2 - above(t, "in") ** 2,
    "lira_offline": lambda t: above(t, "out") / pstdev(phi(shadows(t, "out"))),
    "lira_offline_fixed": lambda t: above(t, "out"),
    "rmia": lambda t: exp(t.average()) / mean(np.exp(shadows(t, "in", "out"))),
    "rmia_offline": lambda t: exp(t.average()) / mean(np.exp(shadows(t, "out"))),
    # Hayes et al. 2025 (arXiv:2410.19482); Carlini et al. 2023 (arXiv:2202.07646),
    # definition 3.1
    "extraction{,_top_k}": log_p,
    "extraction{,_top_k}_n_{50,90,99}": lambda t, kept, percent: needed(
        log_p(t, kept), percent
    ),
    "extraction_greedy": lambda t: 1 - np.sign(t.every("rank", "extraction").max() - 1),
    "extraction_run": lambda t: longest(t.every("rank")),
    "extraction_best_50": lambda t: min(
        0.0, max(without_nan(runs(t.every(), 50).sum(axis=1)))
    ),
    # Xie et al. 2024 (arXiv:2406.15968); Wang et al. 2024 (arXiv:2409.03363), gamma =
    # 0.5; Zawalski et al. 2025 (arXiv:2510.27055)
    "recall_prefix": lambda t: t.average("nonmember_shots") / t.average(),
    "con_recall_prefix": lambda t: (
        (t.average("nonmember_shots") - 0.5 * t.average("member_shots")) / t.average()
    ),
    "codec": lambda t: t.average("nonmember_shots") < t.average(),
    "probe_loss": lambda t: t.average("probe"),
    "probe_min_k_20": lambda t: lowest(20, t(view="probe")),
    "probe_centred": lambda t: mean(
        t(view="probe") - t("vocabulary_mean", view="probe")
    ),
    # CAMIA: Chang et al. 2024 (arXiv:2409.13745), signals of the series of
    # log-probabilities
    "loss_entropy": lambda t: irregularity(t()[:200]),
    "loss_complexity_{3,4,5}": lambda t, bins: -complexity(t()[:200], bins),
    "losses_below_{1,2,3}": lambda t, limit: mean(-t() <= limit),
    "losses_below_mean": lambda t: mean(t() >= t.average()),
    "losses_below_previous": lambda t: mean(
        t()[1:] >= np.cumsum(t())[:-1] / np.arange(1, len(t()))
    ),
    "loss_slope": lambda t: linear_regression(range(len(t())), t()).slope,
    "low_losses_from_end_{40,50,60}": lambda t, percent: from_end(t(), percent),
    "loss_by_diversity": lambda t: (
        t.average()
        * len(without_nan(t("token_ids")))
        / len({*without_nan(t("token_ids")).tolist()})
    ),
}
SCORES: dict[str, tuple[Formula, list[int | str]]] = {
    "".join(parts).removesuffix("_n1"): (
        formula,
        [int(choice) if choice.isdecimal() else choice for choice in parts[1::2]],
    )
    for names, formula in TABLE.items()
    for parts in product(*(part.split(",") for part in re.split("[{}]", names)))
}


def value_of(t: AuditedText, attack: str) -> float | None:
    formula, choices = SCORES[attack.removesuffix("_v1")]
    try:
        with np.errstate(all="ignore"):
            value = float(formula(t, *choices))
    except (ArithmeticError, ValueError):
        return None
    return value if isfinite(value) else None


def score(run: RunFiles, attack: str, row: Row) -> Row:
    """Score one text: None where nothing, or less than half of what is read, is there."""
    t = AuditedText(run, row["key"])
    value = value_of(t, attack)
    n_rows = n_there = 0
    for rows in t.rows_read.values():
        for evidence in rows:
            n_rows += 1
            n_there += evidence["reason"] is None or evidence.get("n_bytes", 0) is None
    return {"score": value if 2 * n_there >= n_rows else None}


# Tests


def lot(name: str, seed: int | None) -> float:
    """Draw a number in [0, 1) for a name; 0 without a seed."""
    if seed is None:
        return 0
    digest = blake2b(
        f"{seed}:{name}".encode(), digest_size=8, person=b"mia-ties"
    ).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def p_value(
    own: Numbers, nulls: Iterable[tuple[Numbers, float]], weight: float = 1
) -> float:
    """Conformal p-value among nulls and their weights: Vovk, Gammerman and Shafer 2005, 2.2.

    Sums have 9 digits. Weights are 1 / size where nulls share groups: Lee, Barber and
    Willett (arXiv:2306.06342); or odds of being audited: Tibshirani et al. 2019
    (arXiv:1904.06019), eq. 7.
    """
    pairs = [*nulls]
    above = fsum(null_weight for null, null_weight in pairs if null >= own)
    total = fsum(null_weight for _, null_weight in pairs)
    return (weight + round(above, 9)) / (weight + round(total, 9))


def q_values(p_values: Iterable[float | None], adjustment: str) -> list[float]:
    """Benjamini and Hochberg 1995; ``by``: Benjamini and Yekutieli 2001, theorem 1.3."""
    filled = [1.0 if p is None else p for p in p_values]
    method: Any = "by" if adjustment == "by" else "bh"
    return [*map(float, false_discovery_control(filled, method=method))]


class WeightedTest(NamedTuple):
    """A test whose p-value counts nulls by weights."""

    score: float
    p_value: float
    weight: float


def q_values_of_weighted(
    tests: list[WeightedTest], n_tests: int, total: float, q: float, draw: float
) -> list[float]:
    """Lowest level at which each test is listed: Jin and Candes 2023 (arXiv:2307.09291).

    Algorithm 1, pruned by one draw; nulls weigh ``total``. ``n_tests`` counts those
    without a p-value, too.
    """
    # Of each test the p-values of the others, were it one more null, in order.
    p_values_of_others = list[list[float]]()
    for place, test in enumerate(tests):
        p_values = [0.0]
        for other_place, other in enumerate(tests):
            if other_place != place:
                above = other.p_value * (other.weight + total) - other.weight
                above += test.weight * (other.score <= test.score)
                p_values.append(above / (test.weight + total))
        p_values_of_others.append(sorted(p_values))
    q_of_test = [1.0] * len(tests)
    for level in sorted({q, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5}, reverse=True):
        sizes = list[
            float
        ]()  # of the list that each test would be on, if pruned so far
        for test, p_values in zip(tests, p_values_of_others, strict=True):
            size = 0
            for rank, p in enumerate(p_values, 1):
                if p <= level * rank / n_tests + 1e-12:
                    size = rank
            is_listed = test.p_value <= level * size / n_tests + 1e-12
            sizes.append(draw * size if is_listed else inf)
        n_listed = max(
            n
            for n in range(len(sizes) + 1)
            if sum(drawn_size <= n for drawn_size in sizes) >= n
        )
        for place, drawn_size in enumerate(sizes):
            if drawn_size <= n_listed and (level >= q or q_of_test[place] <= q):
                q_of_test[place] = level
    return q_of_test


def spread_places(n_items: int, draws: Sequence[float]) -> list[int]:
    """Draw one place of each stretch of so many items, as many stretches as there are draws."""
    ends = [number * n_items // len(draws) for number in range(len(draws) + 1)]
    stretches = zip(draws, pairwise(ends), strict=True)
    return [start + int(draw * (end - start)) for draw, (start, end) in stretches]


def tenth_smallest(sizes: Iterable[int]) -> int:
    """Return the size that nine of ten reach."""
    in_order = sorted(sizes)
    return in_order[int(0.1 * (len(in_order) - 1))]


@cache
def windows(run: RunFiles, *, grouped: bool = True) -> list[dict[str, list[str]]]:
    """Choose as many windows of each group, asked and null, or of each text: the text itself.

    One of each stretch of a group is drawn, at like places.
    """
    texts_of_sides = list[dict[str, list[str]]]()
    for texts in run.compared():
        texts_of_group = defaultdict[str, list[str]](list)
        for text in texts:
            name = text["cluster" if grouped else "target_id"]
            texts_of_group[name].append(text["target_id"])
        texts_of_sides.append(texts_of_group)
    n = run.settings["windows_per_group"] if grouped else 1
    if not n:
        n = tenth_smallest(
            len(texts) for side in texts_of_sides for texts in side.values()
        )
    draws = np.random.default_rng(run.settings["seed"]).random(n).tolist()
    windows_of_sides = list[dict[str, list[str]]]()
    for side in texts_of_sides:
        chosen: dict[str, list[str]] = {}
        for name in sorted(side):
            if len(side[name]) >= n:
                chosen[name] = [
                    side[name][place] for place in spread_places(len(side[name]), draws)
                ]
        windows_of_sides.append(chosen)
    return windows_of_sides


def summarise(run: RunFiles, scores: Sequence[float | None], missing: float) -> float:
    """Score a group or an author by its windows, with 12 digits; ``missing`` if one has none."""
    statistics: Row = {"mean": np.mean, "median": np.median, "maximum": max}
    if None in scores:
        return missing
    return float(f"{statistics[run.settings['statistic']](scores):.12g}")


@cache
def units(
    run: RunFiles, attack: str, *, grouped: bool, numbers: Sequence[int] = ()
) -> list[Scored]:
    """Score what is compared, asked and null: texts, or groups by their windows, or these of them.

    A score that is missing is the lowest of those asked, the highest of nulls.
    """
    scores = run.scores(attack)
    sides = list[Scored]()
    for side, missing in zip(windows(run, grouped=grouped), (-inf, inf), strict=True):
        values: Scored = {}
        for name, texts in side.items():
            of_rounds = [texts[number] for number in numbers] or texts
            values[name] = summarise(run, [scores[text] for text in of_rounds], missing)
        sides.append(values)
    return sides


def name_of(row: Row, names: Iterable[str]) -> str:
    """Find what a verdict is about: a group, a document by its identifier or first text, a text."""
    key = row["key"]
    possible = (f"{row['level']} {key}", f"target {key}", key)
    return next(name for name in possible if name in names)


def fitted_odds(x: Numbers, label: Numbers, asked: Numbers) -> Numbers:
    """Odds by logistic regression, half of the slopes' squares added to its loss, by Newton."""
    x, asked = (np.column_stack([np.ones(len(rows)), rows]) for rows in (x, asked))
    beta = np.zeros(x.shape[1])
    penalty = np.arange(x.shape[1]) > 0  # of slopes
    decrease = inf
    while True:
        p = 1 / (1 + np.exp(-x @ beta))
        gradient = x.T @ (p - label) + penalty * beta
        # Where scikit-learn ends, too
        if max(abs(gradient).max() / len(x), decrease) <= 1e-4:
            return np.exp(asked @ beta)
        hessian = (x.T * (p * (1 - p))) @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        beta, decrease = beta - step, step @ gradient / 2 / len(x)


@cache
def odds(run: RunFiles, *, grouped: bool) -> list[Scored]:
    """Odds of asked texts, or groups, and of nulls, of being audited by what is known without it.

    From normal scores of blind classifiers' ranks, of a group their means, in 5 folds
    of clusters.
    """
    ranks_of_text = {row["target_id"]: row for row in run.read("blind")}
    scores_of_unit = defaultdict[tuple[str, bool, str], list[Any]](list)
    for texts, is_asked in zip(run.compared(), (True, False), strict=True):
        for text in texts:
            row = ranks_of_text.get(text["target_id"], {})
            ranks = [rank for name, rank in row.items() if "targets_" in name]
            if ranks and None not in ranks:
                name = text["cluster"] if grouped else text["target_id"]
                normal_scores = [NormalDist().inv_cdf(rank) for rank in ranks]
                scores_of_unit[text["cluster"], is_asked, name].append(normal_scores)
    keys = sorted(scores_of_unit) if grouped else [*scores_of_unit]
    x = np.array([np.mean(scores_of_unit[key], axis=0) for key in keys])
    x = x / np.maximum(x.std(axis=0), 1e-9)
    label = np.array([is_asked for _, is_asked, _ in keys])
    fold_of_cluster = deal_clusters(keys, run.settings["seed"])
    fold = np.array([fold_of_cluster[cluster] for cluster, _, _ in keys])
    odds_of_unit = np.empty(len(keys))
    for number in range(5):
        is_own = fold == number
        odds_of_unit[is_own] = fitted_odds(x[~is_own], label[~is_own], x[is_own])
    odds_of_unit /= odds_of_unit[~label].mean()  # of nulls 1
    sides: list[Scored] = [{}, {}]
    for (_, is_asked, name), value in zip(keys, odds_of_unit.tolist(), strict=True):
        sides[0 if is_asked else 1][name] = value
    return sides


def deal_clusters(keys: Iterable[tuple[str, bool, str]], seed: int) -> dict[str, int]:
    """Deal clusters into 5 folds: those of nulls alone first, then mixed ones, then the others."""
    kinds = defaultdict[str, set[bool]](set)
    for cluster, is_asked, _ in keys:
        kinds[cluster].add(is_asked)
    draws = np.random.default_rng(seed).random(len(kinds)).tolist()
    turns = sorted(
        ((any(asked) + all(asked), draw), cluster)
        for (cluster, asked), draw in zip(kinds.items(), draws, strict=True)
    )
    return {cluster: place % 5 for place, (_, cluster) in enumerate(turns)}


def conformal(run: RunFiles, attack: str, row: Row) -> Row:
    """Compare a text, or a group, with nulls, or with those of its length bucket."""
    settings, grouped = run.settings, row["level"] != "target"
    asked, nulls = units(run, attack, grouped=grouped)
    own_weights, null_weights = dict.fromkeys(asked, 1.0), dict.fromkeys(nulls, 1.0)
    is_weighted = row["method"].startswith("weighted")
    if is_weighted:
        own_weights, null_weights = odds(run, grouped=grouped)
    name = name_of(row, asked)
    compared_with = [null for null in nulls if null in null_weights]
    if not grouped:
        texts = {text["target_id"]: text for text in run.texts()}
        if edges := settings["length_edges"] or ():
            own_bucket = length_bucket(texts[name], edges)
            compared_with = [
                null
                for null in compared_with
                if length_bucket(texts[null], edges) in (None, own_bucket)
            ]
        sizes = Counter(texts[null]["cluster"] for null in compared_with)
        null_weights = {
            null: null_weights[null] / sizes[texts[null]["cluster"]]
            for null in compared_with
        }
    seed = (
        settings["seed"] if settings["ties"] == "random" and not is_weighted else None
    )
    own_lot = lot(f"{row['level']} {row['key']}" if grouped else name, seed)
    pairs = [
        ((nulls[null], lot(null, seed)), null_weights[null]) for null in compared_with
    ]
    p = p_value((asked[name], own_lot), pairs, own_weights[name])
    result: Row = {"score": asked[name], "p_value": p}
    if row["adjustment"] == "wcs":
        total = fsum(weight for _, weight in pairs)
        result["q_value"] = weighted_q_value(run, row, asked, own_weights, total)
    return result


def length_bucket(text: Row, edges: Sequence[int]) -> int | None:
    return None if text["n_words"] is None else bisect(edges, text["n_words"])


def weighted_q_value(
    run: RunFiles, row: Row, asked: Scored, own_weights: Scored, total: float
) -> float:
    """Recompute the q-value of a verdict by weights, from those of its family."""
    names = [other["key"] for other in row["family"]]
    tested = [other for other in row["family"] if other["p_value"] is not None]
    tests = [
        WeightedTest(
            other["score"], other["p_value"], own_weights[name_of(other, asked)]
        )
        for other in tested
    ]
    texts = [text["target_id"] for text in run.texts()]
    compared = texts if row["level"] == "target" else names
    draw = lot("\n".join(compared), run.settings["seed"])
    q = q_values_of_weighted(tests, len(names), total, run.settings["q"], draw)
    return q[[other["key"] for other in tested].index(row["key"])]


def author_names(line: str) -> set[str]:
    """Split a line of authors; names are alike if they have the same words, in any order.

    Years of a life, behind a comma or in brackets, are no words of a name.
    """
    years = re.compile("[,(] *[0-9]{3,4}[?]? *[-\u2013] *([0-9]{3,4}[?]?)?")
    names = set()
    for name in re.split(r"[;&|\n]| and | und | et ", years.sub(" ", line.casefold())):
        decomposed = unicodedata.normalize("NFKD", name)
        letters = [char for char in decomposed if not unicodedata.combining(char)]
        words = "".join(char if char.isalnum() else " " for char in letters).split()
        names.add(" ".join(sorted(words)))
    return names - NO_AUTHOR


@cache
def author_of_clusters(run: RunFiles) -> dict[str, str]:
    """Name the author of each cluster by the first cluster, in order, that is linked to it."""
    clusters_of_name = defaultdict[str, set[str]](set)
    names_of_cluster = defaultdict[str, set[str]](set)
    author_of_text = {
        row["target_id"]: row["author"] or ""
        for row in run.read("scores", "target_id", "author")
    }
    for text in run.texts():
        if text["role"] in ("target", "non_member", "calibration"):
            for name in author_names(author_of_text[text["target_id"]]):
                clusters_of_name[name].add(text["cluster"])
                names_of_cluster[text["cluster"]].add(name)
    author: dict[str, str] = {}
    for first in sorted(names_of_cluster):
        waiting = [] if first in author else [first]
        while waiting:
            cluster = waiting.pop()
            author[cluster] = first
            for name in names_of_cluster[cluster]:
                waiting += [
                    other for other in clusters_of_name[name] if other not in author
                ]
    return author


def authors(run: RunFiles, attack: str) -> list[Scored]:
    """Score authors: each by as many of its books as nine in ten authors have."""
    author, scores = author_of_clusters(run), run.scores(attack)
    shelves = list[dict[str, list[list[str]]]]()
    for side in windows(run):
        books_of_author = defaultdict[str, list[list[str]]](list)
        for cluster, chosen in side.items():
            if cluster in author:
                books_of_author[author[cluster]].append(chosen)
        shelves.append(books_of_author)
    n = tenth_smallest(len(books) for shelf in shelves for books in shelf.values())
    draws = np.random.default_rng(run.settings["seed"]).random(n).tolist()
    sides = list[Scored]()
    for shelf, missing in zip(shelves, (-inf, inf), strict=True):
        values: Scored = {}
        for name in sorted(shelf):
            books = shelf[name]
            if len(books) >= n:
                drawn_books = [
                    books[place] for place in spread_places(len(books), draws)
                ]
                of_books = [scores[text] for book in drawn_books for text in book]
                values[name] = summarise(run, of_books, missing)
        sides.append(values)
    return sides


def collection(run: RunFiles, attack: str, row: Row) -> Row:
    """Mean rank of asked groups, and the share of ways to name them with as high a sum of ranks.

    Pitman 1937; where there are too many ways they are drawn: Phipson and Smyth 2010;
    or drawn with the product of odds: Berrett et al. 2020, after Chen, Dempster and Liu
    1994.
    """
    if row["method"].startswith("authors_"):
        asked, nulls = authors(run, attack)
    else:
        asked, nulls = units(run, attack, grouped=True)
    ranks = rankdata([*asked.values(), *nulls.values()])
    n, size = len(asked), len(ranks)
    rng = np.random.default_rng(run.settings["seed"])
    observed, n_drawn = ranks[:n].sum(), 9_999 if size < 10_000 else 999
    if "exact" in row["method"]:
        sums = [sum(chosen) for chosen in combinations(ranks.tolist(), n)]
    elif "odds" in row["method"]:
        own_odds, null_odds = odds(run, grouped=True)
        values = [own_odds[name] for name in asked] + [
            null_odds[name] for name in nulls
        ]
        sums = [observed, *sums_by_odds(ranks, np.log(values), n, n_drawn, rng)]
    else:
        sums = [observed]
        for _ in range(n_drawn):
            sums.append(ranks[rng.permuted(np.arange(size))[:n]].sum())
    return {"score": observed / n, "p_value": mean(drawn >= observed for drawn in sums)}


def sums_by_odds(
    ranks: Numbers, log_odds: Numbers, n: int, n_drawn: int, rng: np.random.Generator
) -> Numbers:
    """Draw sums of n ranks; a choice is as likely as the product of its odds."""
    size = len(ranks)
    # Log sum of products of k of those from i on
    ways = np.full((size + 1, n + 1), -inf)
    ways[:, 0] = 0
    for i in reversed(range(size)):
        ways[i, 1:] = np.logaddexp(ways[i + 1, 1:], log_odds[i] + ways[i + 1, :-1])
    n_left, sums = np.full(n_drawn, n), np.zeros(n_drawn)
    for i in range(size):
        chance = np.exp(log_odds[i] + ways[i + 1, n_left - 1] - ways[i, n_left])
        takes = (n_left > 0) & (rng.random(n_drawn) < chance)
        n_left, sums = n_left - takes, sums + takes * ranks[i]
    return sums


class RoundsPlan(NamedTuple):
    """Rounds in which groups are asked about."""

    ends: list[int]  # windows of a group that were asked about after each round
    n_kept: list[int]  # null groups in each round
    shares: list[float]  # of the e-values of each round
    e_value_of_rank: list[float]
    order: list[int]  # of windows


@cache
def rounds(run: RunFiles) -> RoundsPlan:
    """Plan rounds; e-values of rank r are proportional to 1 / r up to the root of q (nulls + 1)."""
    nulls, q = windows(run)[1], run.settings["q"]
    n_windows, n_null = len(next(iter(nulls.values()))), len(nulls)
    ends = sorted({max(1, round(part * n_windows)) for part in (0.125, 0.25, 0.5, 1)})
    top = max(1, isqrt(int(round(q * (n_null + 1), 9))))
    harmonic = sum(1 / k for k in range(1, top + 1))
    e_values = [(n_null + 1) / rank / harmonic for rank in range(1, top + 1)]
    n_kept = [max(min(n_null, top), n_null >> number) for number in range(len(ends))]
    # It accepts the first rank where half of all are listed
    early = 2 / q / e_values[0]
    n_early = min(int(0.5 / early), len(ends) - 1)
    shares = (
        [0.0] * (len(ends) - 1 - n_early) + [early] * n_early + [1 - early * n_early]
    )
    order = np.random.default_rng(run.settings["seed"]).permutation(n_windows).tolist()
    return RoundsPlan(
        ends, n_kept, shares, e_values + [0.0] * (n_null + 1 - top), order
    )


def in_rounds(run: RunFiles, attack: str, row: Row) -> Row:
    """Sum, over rounds, shares times the e-value of a group's rank among nulls still asked.

    Conformal e-values: Bashari et al. 2023 (arXiv:2302.07294); halving: Karnin et al.
    2013.
    """
    plan, (asked, nulls) = rounds(run), windows(run)
    e_values = dict.fromkeys([text["cluster"] for text in run.compared()[0]], 0.0)
    undecided, nulls_left = {*e_values} & {*asked}, [*nulls]

    def accepted(values: Iterable[float]) -> set[str]:
        q = q_values([1 / max(value, 1) for value in values], "bh")
        pairs = zip(e_values, q, strict=True)
        return {name for name, level in pairs if round(level, 12) <= run.settings["q"]}

    for number, end in enumerate(plan.ends):
        own_scores, null_scores = units(
            run, attack, grouped=True, numbers=(*plan.order[:end],)
        )
        nulls_left = sorted(nulls_left, key=lambda null: -null_scores[null])
        n_next = [*plan.n_kept, 0][number + 1]
        most_to_come = plan.e_value_of_rank[0] * sum(plan.shares[number + 1 :])
        for name in [*undecided]:
            n_higher = sum(null_scores[null] >= own_scores[name] for null in nulls_left)
            e_values[name] += plan.shares[number] * plan.e_value_of_rank[n_higher]
            if n_higher >= n_next:
                undecided.remove(name)
        nulls_left = nulls_left[:n_next]
        # Others are out of reach
        undecided &= accepted(
            value + (most_to_come if name in undecided else 0)
            for name, value in e_values.items()
        )
        undecided -= accepted(e_values.values())
    e_value = e_values[name_of(row, e_values)]
    return {"score": e_value, "p_value": 1 / max(e_value, 1)}


def canaries(run: RunFiles, attack: str, row: Row) -> Row:
    """Rank published texts among their controls, and all by aligned ranks: Hodges, Lehmann 1962."""
    # Of each the published text is first
    sets = defaultdict[str, list[float | None]](list)
    for text in sorted(run.texts(), key=lambda text: text["member"] is False):
        if text["role"] == "canary":
            sets[text["cluster"]].append(run.scores(attack)[text["target_id"]])
    if row["level"] == "group":
        scores = sets[f"group {row['key']}"]
        own, *controls = [
            inf if value is None else float(f"{value:.12g}") for value in scores
        ]
        return {
            "score": own,
            "p_value": p_value(own, [(control, 1) for control in controls]),
        }
    return {"p_value": aligned_p_value(sets.values())}


def aligned_p_value(sets: Iterable[list[float | None]]) -> float:
    """Share of ways to name one text of each set with as high a sum of aligned ranks."""
    deviations, sizes = list[float](), list[int]()
    for scores in sets:
        middle = mean([value for value in scores if value is not None] or [0.0])
        for number, value in enumerate(scores):
            # Of the published text, and of its controls
            missing = -inf if number == 0 else inf
            deviations.append(missing if value is None else round(value - middle, 9))
        sizes.append(len(scores))
    ranks = iter(rankdata(deviations).tolist())
    ranks_of_sets = [[next(ranks) for _ in range(size)] for size in sizes]
    # Sums are counted in steps, coarser where there are too many.
    step = max(1.0, 2 * sum(map(max, ranks_of_sets)) / 2**16)
    chances: Numbers = np.ones(1)
    observed = 0
    for ranks_of_set in ranks_of_sets:
        steps = [int(2 * rank / step) for rank in ranks_of_set]
        least = min(steps)
        counts = np.bincount([n_steps - least for n_steps in steps])
        chances = np.convolve(chances, counts / len(steps))
        observed += steps[0] - least
    return min(1.0, float(chances[observed:].sum()))


def verdict(run: RunFiles, attack: str, row: Row) -> Row:
    """Recompute score, p-value and q-value of a verdict."""
    if attack in WHY_NOT and attack not in run.asked["attacks"]:
        raise UnknownError(attack)
    if row["adjustment"] == "e-bh":
        result = in_rounds(run, attack, row)
    elif row["versus"] == "controls":
        result = canaries(run, attack, row)
    elif row["level"] == "collection":
        result = collection(run, attack, row)
    else:
        result = conformal(run, attack, row)
    if row["adjustment"] in ("bh", "by", "e-bh"):
        q = q_values([other["p_value"] for other in row["family"]], row["adjustment"])
        result["q_value"] = q[
            [other["key"] for other in row["family"]].index(row["key"])
        ]
    return result


# Figures


def figure(run: RunFiles, attack: str, row: Row) -> Row:
    """AUC (ties one half), or the TPR where at most a share of the non-members scores as high."""
    scores = run.scores(attack)
    members, non_members = list[float](), list[float]()
    for text in run.texts():
        value = scores[text["target_id"]]
        if value is None or text["role"] not in ("target", "non_member"):
            continue
        if text["member"] is True:
            members.append(value)
        elif text["member"] is False:
            non_members.append(value)
    if row["metric"] == "roc_auc":
        ranks = rankdata(members + non_members)[: len(members)]
        return {"value": (ranks.mean() - (len(members) + 1) / 2) / len(non_members)}
    n_non_members = len(non_members)
    n_above = sum(n / n_non_members <= row["fpr"] for n in range(1, n_non_members + 1))
    threshold = [-inf, *sorted(non_members)][-1 - n_above]
    return {"value": mean(value > threshold for value in members)}


def root(run: RunFiles) -> str:
    """Hash the lines that ``sha256sum`` prints of tables and inputs; of these the known hashes."""
    digests = dict[str, str]()
    for setting, files in run.manifest["inputs"].items():
        for name, digest in files.items():
            digests[f"{setting}/{name}"] = digest
    for name in run.manifest["custody"]["tables"]:
        digests[name] = sha256((run.folder / name).read_bytes()).hexdigest()
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return sha256(lines.encode()).hexdigest()


def claims(
    run: RunFiles, attack: str
) -> Iterable[tuple[Callable[..., Row], list[Row]]]:
    """List what a run says of an attack, by kind: scores, tests with a p-value, AUC and TPR."""
    if attack.removesuffix("_v1") in SCORES:
        texts = [row["target_id"] for row in run.texts() if row["role"] != "yardstick"]
        scores = run.scores(attack)
        yield (
            score,
            [{"level": "text", "key": text, "score": scores[text]} for text in texts],
        )
    families = defaultdict[Any, list[Row]](list)
    for row in run.read("verdicts", attack=attack):
        if row["estimate"] is None:
            level = row["level"].replace("document", "group")
            families[row["versus"], level].append(row)
    for rows in families.values():
        yield (
            verdict,
            [row | {"family": rows} for row in rows if row["p_value"] is not None],
        )
    for metric in ("roc_auc", "tpr_at_fpr"):
        rows = run.read("metrics", attack=attack, slice="all", metric=metric)
        labelled = [
            row | {"level": metric, "key": row["fpr"] or "labelled texts"}
            for row in rows
        ]
        yield (
            figure,
            [row for row in labelled if None not in (row["value"], row["n_members"])],
        )


Claim = tuple[str, Callable[..., Row], Row]
"""An attack, what recomputes a row of it, and the row."""


def draw_claims(run: RunFiles, n: int, dice: random.Random) -> list[Claim]:
    """Draw rows: attacks and kinds take turns, in an order that the seed decides."""
    names = [*run.asked["attacks"], "dataset_inference_v1"]
    kinds = [
        (name, recompute, rows)
        for name in names
        for recompute, rows in claims(run, name)
    ]
    queues = list[list[Claim]]()
    for name, recompute, rows in dice.sample(kinds, len(kinds)):
        drawn = dice.sample(rows, min(n, len(rows)))
        queues.append([(name, recompute, row) for row in drawn])
    turns = zip_longest(*queues)
    return [claim for turn in turns for claim in turn if claim]


def compare(folder: Path | str, n: int, seed: int = 0) -> tuple[list[str], bool]:
    """Recompute the root and n drawn rows; say what came out, and whether all are equal."""
    run = RunFiles(folder)
    attacks = run.asked["attacks"]
    lines = list[str]()
    for name in attacks:
        if name.removesuffix("_v1") not in SCORES:
            lines.append(
                f"not recomputed: {name} ({WHY_NOT.get(name, WHY_NOT['own'])})"
            )
    if any("petal" in name for name in attacks):
        lines.append(f"not recomputed: {WHY_NOT['similarity']}")
    lines.append(f"not recomputed: {WHY_NOT['others']}")
    differences = list[float]()  # the largest of each row
    for attack, recompute, row in draw_claims(run, n, random.Random(seed)):
        if len(differences) == n:
            break
        what = f"{attack} of {row['level']} {row['key']}"
        try:
            values = recompute(run, attack, row)
        except UnknownError as error:
            lines.append(f"not recomputed: {what} ({WHY_NOT[str(error)]})")
            continue
        distances = {name: distance(row[name], value) for name, value in values.items()}
        differences.append(max(distances.values()))
        for name, far in distances.items():
            if far > _SAME:
                lines.append(
                    f"{what}: {name} is {row[name]} in the run, {values[name]} here"
                )
    equal = [far for far in differences if far <= _SAME]
    is_sealed = root(run) == run.manifest["custody"]["root"]
    largest = f"largest relative difference {max(equal, default=0):.1g}"
    lines.append(f"the root is {'equal' if is_sealed else 'ANOTHER'}")
    lines.append(f"{len(equal)} of {len(differences)} drawn rows are equal ({largest})")
    return lines, is_sealed and len(equal) == len(differences) > 0


def distance(one: float | None, other: float | None) -> float:
    """Relative difference, of numbers near 0 to 0.001; a number and none are far apart."""
    if one is None or other is None:
        return 0.0 if one is other else inf
    return abs(one - other) / max(abs(one), abs(other), 1e-3)
