"""A second implementation: the numbers of a run, recomputed from its files.

For readers who trust neither this package nor its authors, to be read in an hour:
nothing of the package is imported. Polars opens Parquet files, numpy and scipy compute
what any textbook has, and all else is the standard library.

Files       ``RunFiles``: run.json (settings, attacks, hashes), tables, texts
One text    ``AuditedText``: its target, prompts, samples, logprobs: what models answered
Elsewhere   samples of all texts: how many groups' answers have an n-gram, or hit a token
Words       formulas on answers
Tokens      formulas on log-probabilities
Attacks     ``TABLE``: the formula of each attack, by name and paper
Tests       p-values of texts, groups, collections, rounds and canaries; q-values
Figures     AUC, TPR and the root; ``compare``: drawn numbers are recomputed

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
from numpy.lib.stride_tricks import sliding_window_view
from scipy.stats import false_discovery_control, rankdata

Row = dict[str, Any]
Numbers = Any  # arrays, or what numpy takes for one
Formula = Callable[..., float]
Scored = dict[str, float]
Ngram = tuple[str, ...]
Windows = dict[str, list[str]]  # of a group, by its name
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
    "",
    "a n",
    "al",
    "anon",
    "anonym",
    "anonyme",
    "anonymous",
    "author unknown",
    "authors various",
    "et al",
    "inconnu",
    "none",
    "others",
    "several",
    "unbekannt",
    "unknown",
    "various",
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
        self.requested: Row = self.manifest["made"]["scores"]

    def seeded_rng(self) -> np.random.Generator:
        """Return random numbers from the run's seed."""
        return np.random.default_rng(self.settings["seed"])

    def read(
        self,
        table: str,
        *columns: str,
        **equal: str,
    ) -> list[Row]:
        """Read rows of a file, or of a folder of parts.

        Of these columns, or all; only rows where columns equal the values.
        """
        files = sorted(self.folder.glob(f"{table}/*.parquet"))
        if not files:
            files = [*self.folder.glob(f"{table}.parquet")]
        if not files:
            return []
        rows = pl.scan_parquet(
            files,
            missing_columns="insert",
            extra_columns="ignore",
        )
        for name, value in equal.items():
            rows = rows.filter(pl.col(name).cast(pl.String) == value)
        return rows.select(columns or pl.all()).collect().to_dicts()

    def evidence(self, table: str, **equal: str) -> list[Row]:
        """Read what scores rest on: the last attempt at each row that is requested."""
        last_attempts: dict[tuple[Any, ...], Row] = {}
        key_names = ("target_id", "model", "view", "view_index", "sample_index")
        for row in self.read(table, **equal):
            key = tuple(row.get(name, 0) for name in key_names)
            _, model, view, view_index, sample_index = key
            if table == "logprobs":
                n_prompts = self.requested["logprobs"].get(f"{model}-{view}", 0)
                n_samples = 1
            else:
                n_prompts, n_samples = self.requested["samples"].get(view, (0, 0))
            is_requested = view_index < n_prompts and sample_index < n_samples
            has_answer = key in last_attempts and not last_attempts[key]["reason"]
            if is_requested and not has_answer:
                last_attempts[key] = row
        return [last_attempts[key] for key in sorted(last_attempts)]

    @cache  # noqa: B019 - of a run or two
    def scores(self, attack: str) -> dict[str, float | None]:
        """Read the scores of an attack, by text."""
        rows = self.read("scores", "target_id", attack)
        return {row["target_id"]: row[attack] for row in rows}

    @cache  # noqa: B019
    def texts(self) -> list[Row]:
        """Read the texts; a ``cluster`` is a group, else a document, else one text."""
        rows = self.read(
            "scores",
            "target_id",
            "role",
            "member",
            "group",
            "document_id",
            "window_index",
            "n_words",
        )
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

    def compared_texts(self) -> tuple[list[Row], list[Row]]:
        """List audited texts, and nulls: without further ones the non-members."""
        targets = [row for row in self.texts() if row["role"] == "target"]
        non_members = [row for row in self.texts() if row["role"] == "non_member"]
        if non_members:
            return targets, non_members
        audited = [row for row in targets if row["member"] is not False]
        nulls = [row for row in targets if row["member"] is False]
        return audited, nulls


# One text


class AuditedText:
    """What models answered about a text."""

    def __init__(self, run: RunFiles, target_id: str) -> None:
        self.run = run
        self.id = target_id
        self.target = run.read("targets", target_id=target_id)[0]
        # By table, model and view
        self.rows_read: dict[tuple[str, ...], list[Row]] = {}

    def rows(
        self,
        table: str,
        model: str,
        view: str,
    ) -> list[Row]:
        """Read, once, rows of a view.

        The models shadow-0, shadow-1, ... are one, named shadow.
        """
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
        word_rule = self.run.settings["word_rule"]
        prompt_rows = self.run.read(
            "prompts",
            target_id=self.id,
            model=model,
            view=view,
        )
        prompts = {row["view_index"]: row for row in prompt_rows}
        dress_rule: list[Row] = []
        if model == "target" and view not in ("choice", "cloze", "token"):
            dress_rule = self.run.manifest.get("dress", {}).get("rule", [])
        answers: list[AnsweredPrompt] = []
        for row in self.rows("samples", model, view):
            prompt = prompts.get(row["view_index"])
            truth = None if prompt is None else prompt["text"]
            if truth is None:
                truth = self.target["reference"]
            answer = row["candidate"]
            if answer is None or truth is None:
                continue
            if dress_rule and prompt is not None:
                raw = row.get("raw") or answer
                answer = without_dress(raw, self.context(prompt), dress_rule)
            if self.run.settings["preset"] == "samia" and view == "continuation":
                answer = self.authors_answer(row["prompt"], answer)
            answers.append(
                AnsweredPrompt(
                    prompt=row["view_index"],
                    text=answer,
                    truth=truth,
                    words=split_words(answer, word_rule),
                    true_words=split_words(truth, word_rule),
                )
            )
        return answers

    def authors_answer(self, prompt: str | None, answer: str) -> str:
        """Cut prompt and answer, together, behind half of the words.

        The code of SaMIA's authors does so.
        """
        words = split_words((prompt or self.target["prefix"]) + answer, "space")
        length = self.run.settings["text_length"] or self.target["n_words"]
        return " ".join(words[round(length * 0.5) :])

    def context(self, prompt: Row) -> str:
        """Return what a model was given before the text.

        It is a text of its own, some bytes of the target, or the target's prefix.
        """
        if prompt["cut"] is not None:
            return str(self.target["target"]).encode()[: prompt["cut"]].decode()
        if prompt["context"] is not None:
            return str(prompt["context"])
        return str(self.target["prefix"])

    def every_number(
        self,
        column: str = "logprob",
        view: str = "text",
        model: str = "target",
    ) -> Numbers:
        """Read numbers of every token; NaN where it has none."""
        numbers: list[float | None] = []
        for row in self.rows("logprobs", model, view):
            if row["logprob"]:
                numbers += row[column] or [None] * len(row["logprob"])
        return np.array(numbers, np.float64)

    def numbers(
        self,
        column: str,
        view: str = "text",
        model: str = "target",
    ) -> Numbers:
        """Read numbers of tokens that have a log-probability."""
        has_logprob = ~np.isnan(self.every_number("logprob", view, model))
        return self.every_number(column, view, model)[has_logprob]

    def logprobs(self, view: str = "text", model: str = "target") -> Numbers:
        """Read the log-probabilities of tokens that have one, in nats."""
        return self.numbers("logprob", view, model)

    def mean_logprob(self, view: str = "text", model: str = "target") -> float:
        """Compute the mean log-probability of the tokens: minus the loss."""
        return mean(self.logprobs(view, model))

    def logprobs_of_texts(
        self,
        view: str,
        model: str = "target",
        **equal: bool,
    ) -> dict[int, Numbers]:
        """Read log-probabilities of each of several texts, by number.

        Of shadow models, those of the text under each of them. Only rows where columns
        equal the values.
        """
        logprobs_by_number: dict[int, Numbers] = {}
        place = 0
        for row in self.rows("logprobs", model, view):
            if any(row[name] != value for name, value in equal.items()):
                continue
            number = place if model == "shadow" else row["view_index"]
            place += 1
            logprobs = without_nan(np.array(row["logprob"] or [], np.float64))
            if len(logprobs):
                logprobs_by_number[number] = logprobs
        return logprobs_by_number

    def mean_logprobs(
        self,
        view: str,
        model: str = "target",
        **equal: bool,
    ) -> list[float]:
        """Compute the mean log-probability of each of several texts."""
        texts = self.logprobs_of_texts(view, model, **equal)
        return [mean(logprobs) for logprobs in texts.values()]


class AnsweredPrompt(NamedTuple):
    """An answer, and the text that truly follows the prompt, in letters and in words."""

    prompt: int
    text: str
    truth: str
    words: list[str]
    true_words: list[str]

    def n_longer(self) -> int:
        """Count the words of the longer of both."""
        return max(len(self.words), len(self.true_words))

    def cut(self) -> AnsweredPrompt:
        """Cut the answer to as many words as truly follow."""
        return self._replace(words=self.words[: len(self.true_words)])

    def cut_common(self, n: int = 1) -> list[Ngram]:
        """List n-grams that the cut answer and the truth share."""
        return self.cut().common(n)

    def common(self, n: int = 1) -> list[Ngram]:
        """List n-grams that answer and truth share, each as often as both have it."""
        shared = Counter(ngrams(self.words, n)) & Counter(ngrams(self.true_words, n))
        return [*shared.elements()]

    def recall(self, n: int = 1) -> float:
        """Compute the share of the true words, as SaMIA's authors do for n-grams."""
        return share(len(self.common(n)), len(self.true_words))

    def precision(self, n: int = 1) -> float:
        """Compute the share of the answer's words, likewise."""
        return share(len(self.common(n)), len(self.words))

    def n_common(self, n: int) -> float:
        """Count the shared n-grams; NaN where the truth has no n-gram."""
        return len(self.common(n)) if len(self.true_words) >= n else nan

    def leading(self, n: int = 1) -> list[Ngram]:
        """List n-grams of the words before the first wrong one."""
        right_words: list[str] = []
        for word, true_word in zip(self.words, self.true_words, strict=False):
            if word != true_word:
                break
            right_words.append(word)
        return ngrams(right_words, n)

    def in_order(self) -> float:
        """Count the words of the longest common subsequence.

        NaN where the truth has no word.
        """
        # lengths[n]: of the words up to now and the first n true words
        lengths = [0] * (len(self.true_words) + 1)
        for word in self.words:
            next_lengths = [0]
            for n, true_word in enumerate(self.true_words):
                best = lengths[n] + 1 if word == true_word else lengths[n + 1]
                next_lengths.append(max(best, next_lengths[n]))
            lengths = next_lengths
        return lengths[-1] if self.true_words else nan

    def covered(self, n: int = 3) -> int:
        """Count words of the answer inside some span of n words that the truth has."""
        true_spans = {*ngrams(self.true_words, n)}
        places: set[int] = set()
        for start, span in enumerate(ngrams(self.words, n)):
            if span in true_spans:
                places.update(range(start, start + n))
        return len(places)

    def blocks(self, *, letters: bool = False) -> list[int]:
        """List the sizes of common blocks.

        The longest block is taken first, then the longest on both sides of it, and so
        on.
        """
        truth: Sequence[str] = self.truth if letters else self.true_words
        answer: Sequence[str] = self.text if letters else self.words
        matcher = SequenceMatcher[Any](None, truth, answer, autojunk=False)
        return [block.size for block in matcher.get_matching_blocks()]


_UNSPACED = (
    "[\u0e00-\u109f\u1780-\u1aaf\u3005-\uaadf\uf900-\ufaff\uff66-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)


_APOSTROPHES = "\u02bc\u2018\u2019\u201a\u201b\u2032\u2035\u2039\u203a\uff07"
_QUOTES = "\u00ab\u00bb\u201c\u201d\u201e\u201f\u2033\u2036\u301d\u301e\u301f\uff02"
_SPELLED_OUT = str.maketrans(
    {
        **dict.fromkeys(_APOSTROPHES, "'"),
        **dict.fromkeys(_QUOTES, '"'),
        "\u2026": "...",
        "\u017f": "s",
        "\u1e9b": "\u1e61",
        "\u0132": "IJ",
        "\u0133": "ij",
        "\ufb00": "ff",
        "\ufb01": "fi",
        "\ufb02": "fl",
        "\ufb03": "ffi",
        "\ufb04": "ffl",
        "\ufb05": "st",
        "\ufb06": "st",
        "\ufb13": "\u0574\u0576",
        "\ufb14": "\u0574\u0565",
        "\ufb15": "\u0574\u056b",
        "\ufb16": "\u057e\u0576",
        "\ufb17": "\u0574\u056d",
    }
)
_DASHES = re.compile("[-\u2010-\u2015\u2212\u2e3a\u2e3b\ufe58\ufe63\uff0d]+")


def fold(text: str) -> str:
    """Unify spellings that differ in typography: marks, ligatures, dashes, quotes."""
    spelled_out = text.translate(_SPELLED_OUT)
    return normalize("NFC", _DASHES.sub("-", spelled_out))


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


def without_dress(
    answer: str,
    prompt: str,
    rule: list[Row],
) -> str:
    """Remove what the run's rule names: remarks at the end, then layers at the start.

    Each layer is removed once, in order.
    """
    text = answer.strip()
    for layer in rule:
        if layer["kind"] == "close" and text.endswith(layer["text"]):
            text = text[: -len(layer["text"])].rstrip()
    layers = [layer for layer in rule if layer["kind"] != "close"]
    while True:
        sizes = [measure_layer(text, prompt, layer) for layer in layers]
        if not any(sizes):
            return answer if text == answer.strip() else text
        number = next(number for number, size in enumerate(sizes) if size)
        size = sizes[number]
        mark = text[:size].strip()
        text = text[size:].lstrip()
        kind = layers.pop(number)["kind"]
        if kind == "mark":
            lines = text.split("\n")
            text = "\n".join(without_mark(line, mark) for line in lines)
        if kind in _ENDS:
            end = re.search(_ENDS[kind], text)
            if end:
                text = text[: end.start()]


def without_mark(line: str, mark: str) -> str:
    """Remove a mark and the blanks behind it from a line."""
    rest = line.removeprefix(mark)
    has_mark = rest != line and rest[:1] in (" ", "\t")
    return rest.lstrip(" \t") if has_mark else line


def measure_layer(
    text: str,
    prompt: str,
    layer: Row,
) -> int:
    """Count the characters of a layer at the beginning of a text."""
    if layer["kind"] == "lead":
        return len(layer["text"]) if text.startswith(layer["text"]) else 0
    if layer["kind"] == "echo":
        return count_repeated(text, prompt)
    opening = re.match(_OPENS[layer["kind"]], text)
    return opening.end() if opening else 0


def count_repeated(text: str, prompt: str) -> int:
    """Count the characters of the prompt's last words at the beginning of a text."""
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


def split_words(text: str, rule: str) -> list[str]:
    """Cut a text into words by the run's rule."""
    if rule == "rouge":
        return re.findall("[a-z0-9]+", text.lower())
    has_unspaced = re.search(_UNSPACED, text)
    if rule == "unicode" or (rule in ("script", "folded") and has_unspaced):
        raise UnknownError("words")
    if rule == "space":
        return [word for word in text.split(" ") if word]
    return fold(text).split() if rule == "folded" else text.split()


def ngrams(words: Sequence[str], n: int) -> list[Ngram]:
    return [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]


def without_nan(values: Numbers) -> Numbers:
    return values[~np.isnan(values)]


def mean(values: Iterable[float]) -> float:
    """Compute the mean of numbers that are not NaN."""
    numbers = [value for value in values if not isnan(value)]
    return fsum(numbers) / len(numbers)


# Elsewhere


class CountedTexts(NamedTuple):
    """Texts whose answers show how rare words are."""

    group_of_text: dict[str, str]
    texts: set[str]
    n_outside: int  # 1 if a text's own group may be outside of them, else 0


@cache
def find_counted_texts(run: RunFiles) -> CountedTexts:
    """Find the group of each text, and the texts whose answers count.

    Only nulls' count where they are compared with texts of unknown membership; in
    rounds those of the first one.
    """
    if run.settings["rarity_from"] is not None:
        raise UnknownError("rarity_from")
    audited, nulls = run.compared_texts()
    rows = run.texts()
    groups = {row["target_id"]: row["cluster"] for row in rows}
    if run.settings["stop_when_decided"]:
        schedule = schedule_rounds(run)
        first_windows = schedule.order[: schedule.ends[0]]
        texts = {*groups} - {row["target_id"] for row in (*audited, *nulls)}
        for side in choose_windows(run):
            for windows in side.values():
                texts.update(windows[place] for place in first_windows)
        return CountedTexts(groups, texts, n_outside=1)
    has_unknown = any(row["member"] is None for row in audited)
    if nulls and (nulls[0]["role"] == "non_member" or has_unknown):
        texts = {row["target_id"] for row in nulls}
        return CountedTexts(groups, texts, n_outside=1)
    texts = {row["target_id"] for row in rows if row["role"] != "yardstick"}
    is_one_group = len({groups[target_id] for target_id in texts}) == 1
    if is_one_group or not nulls:  # each text is a group
        groups = {target_id: target_id for target_id in groups}
    return CountedTexts(groups, texts, n_outside=0)


@cache
def find_place(ngram: Ngram) -> int:
    """Find where a run counts an n-gram: in one of 2^22 places, which n-grams may share.

    They are the first bits of a hash: words by FNV-1a, mixed as in SplitMix64 (Steele
    et al. 2014).
    """
    mixed = 0
    bits = 2**64 - 1
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
def count_groups(
    run: RunFiles,
    model: str,
    view: str,
) -> tuple[Counter[int], int]:
    """Count the groups that answer n-grams of each place, and all with answers."""
    places_of_group = defaultdict[str, set[int]](set)
    counted_texts = find_counted_texts(run)
    for row in run.evidence("samples", model=model, view=view):
        if row["candidate"] is None or row["target_id"] not in counted_texts.texts:
            continue
        words = split_words(row["candidate"], run.settings["word_rule"])
        group = counted_texts.group_of_text[row["target_id"]]
        for n in (1, 2, 3):
            places = (find_place(ngram) for ngram in ngrams(words, n))
            places_of_group[group].update(places)
    n_groups = Counter[int]()
    for group_places in places_of_group.values():
        n_groups.update(group_places)
    return n_groups, len(places_of_group)


def rarity(
    text: AuditedText,
    list_ngrams: Callable[..., list[Ngram]],
    view: str = "probe",
    model: str = "target",
    n: int = 1,
) -> float:
    """Weigh n-grams by ln(T / (1 + df)), Spärck Jones 1972.

    Of T other groups, df say an n-gram.
    """
    n_groups, n_all_groups = count_groups(text.run, model, view)
    counted_texts = find_counted_texts(text.run)
    total = n_all_groups + counted_texts.n_outside
    # Where its own group is counted_texts, that is the 1
    own_group = 0 if text.id in counted_texts.texts else 1

    def weight(ngram: Ngram) -> float:
        return log(total / max(n_groups[find_place(ngram)] + own_group, 1))

    shares: list[float] = []
    for answer in text.answers(view, model):
        weights = [weight(ngram) for ngram in list_ngrams(answer, n)]
        shares.append(share(fsum(weights), len(answer.true_words) - n + 1))
    return mean(shares)


class TokenAnswer(NamedTuple):
    """A next token that a model was asked for."""

    target_id: str
    true_token: str
    is_hit: bool


@cache
def deal_texts(run: RunFiles) -> dict[str, int]:
    """Deal texts, by group, into 16 folds."""
    groups = find_counted_texts(run).group_of_text
    first_text: dict[str, str] = {}
    for target_id in sorted(groups):
        first_text.setdefault(groups[target_id], target_id)
    ordered = enumerate(sorted(first_text.values()), 1)
    fold_of_first = {target_id: place % 16 for place, target_id in ordered}
    return {
        target_id: fold_of_first[first_text[group]]
        for target_id, group in groups.items()
    }


@cache
def read_token_answers(run: RunFiles) -> list[TokenAnswer]:
    """Read every answer about a next token."""
    prompts = run.read("prompts", model="target", view="token")
    true_tokens = {
        (row["target_id"], row["view_index"]): row["text"] for row in prompts
    }
    answers: list[TokenAnswer] = []
    for row in run.evidence("samples", model="target", view="token"):
        token = true_tokens[row["target_id"], row["view_index"]]
        answer = row["candidate"]
        if token is not None and answer is not None:
            answers.append(TokenAnswer(row["target_id"], token, answer == token))
    return answers


def hits_less_expected(text: AuditedText) -> float:
    """Compute hits, less the share of hits at the same true token in other texts.

    These are the counted texts of other folds. The share counts 30 answers about tokens
    as frequent in the run, up to a factor of two, besides its own (shrunk shares: Efron
    and Morris 1975).
    """
    fold_of_text = deal_texts(text.run)
    counted_texts = find_counted_texts(text.run).texts
    answers_of_run = read_token_answers(text.run)
    frequency = Counter(answer.true_token for answer in answers_of_run)
    # By token, by frequency, and of all (None)
    n_answers = Counter[Any]()
    n_hits = Counter[Any]()
    for answer in answers_of_run:
        is_same_fold = fold_of_text[answer.target_id] == fold_of_text[text.id]
        if answer.target_id not in counted_texts or is_same_fold:
            continue
        token = answer.true_token
        keys = (token, frequency[token].bit_length(), None)
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

    return mean(
        (answer.text == answer.truth) - expected(answer.truth)
        for answer in text.answers("token")
    )


# Words


def share(part: float, whole: float) -> float:
    return part / max(whole, 1)


def zlib_size(words: Iterable[str]) -> int:
    """Count the bytes of a text as classic zlib compresses it at level 6.

    Published figures rest on classic zlib.
    """
    if not re.fullmatch(r"1\.(2\.(8|11|12|13)|3|3\.1)", zlib.ZLIB_RUNTIME_VERSION):
        raise UnknownError("zlib")
    return len(zlib.compress(" ".join(words).encode(), 6))


def mean_over_answers(term: Formula, view: str = "continuation") -> Formula:
    """Build the formula that is the mean of a term over answers."""
    return lambda text, *choices: mean(
        term(answer, *choices) for answer in text.answers(view)
    )


def statistic_over_answers(term: Formula) -> Formula:
    """Build the formula that summarises a term over answers as the name's end says."""
    statistics: Row = {"": mean, "_max": max, "_median": median, "_min": min}
    return lambda text, end: statistics[end](
        [term(answer) for answer in text.answers()]
    )


def hit_rates(text: AuditedText) -> list[float]:
    """Compute the share of hits at each point, as Krichevsky and Trofimov 1981."""
    rates: list[float] = []
    answers = text.answers("probe")
    for _, answers_at_point in groupby(answers, key=lambda answer: answer.prompt):
        hits = [answer.leading() != [] for answer in answers_at_point]
        rates.append((sum(hits) + 0.5) / (len(hits) + 1))
    return rates


def similarities(text: AuditedText, model: str = "target") -> dict[int, float]:
    """Read the likeness of words from the run's features, and take its log."""
    rows = text.run.read(
        "features",
        target_id=text.id,
        model=model,
        view="probe",
        sample_index="0",
    )
    similarity = {row["view_index"]: row["similarity"] for row in rows}
    prompts = [answer.prompt for answer in text.answers("probe", model)]
    return {prompt: log(max(similarity[prompt], 1e-16)) for prompt in prompts}


def petal(text: AuditedText) -> float:
    """Compute log-probability from the likeness of words, by another model's line."""
    likeness = similarities(text)
    reference_likeness = similarities(text, "reference")
    x: list[float] = []
    y: list[float] = []
    points = text.logprobs_of_texts("probe", "reference")
    for point, logprobs in points.items():
        if point in reference_likeness:
            x.append(reference_likeness[point])
            y.append(logprobs[0])
    slope = linear_regression(x, y).slope if len({*x}) > 1 else 0.0
    return mean(y) + slope * (mean(likeness.values()) - mean(x))


def mean_over_labels(pairs: Iterable[tuple[int, float]]) -> float:
    """Average, over the four labels, the mean over questions where a label is right."""
    terms = defaultdict[int, list[float]](list)
    for label, term in pairs:
        terms[label].append(term)
    return mean(mean(terms[label]) for label in range(4))


def decop(text: AuditedText) -> float:
    """Compute the share of answers that name the right label.

    In question k it is that of k modulo 4.
    """
    pairs: list[tuple[int, float]] = []
    for answer in text.answers("choice"):
        # An article that begins an answer is no label.
        words = re.sub(r"^\W*A (?=(?!i)[^\W\d_A-Z]|i[^s])", "", answer.text)
        capitals = re.findall(r"\b[A-D]\b(?:['\u2019][^\W\d_])?", words)
        labels = {*capitals} & {*"ABCD"}
        if len(labels) == 1:
            right = answer.prompt % 4
            pairs.append((right, labels == {"ABCD"[right]}))
    return mean_over_labels(pairs)


def decop_logprob(text: AuditedText, kind: str) -> float:
    """Compute the same from log-probabilities: the chosen label has the highest one.

    If calibrated, less the label's mean.
    """
    rows = text.rows("logprobs", "target", "choice")
    answered = [row for row in rows if row["logprob"]]
    right = [row["view_index"] % 4 for row in answered]
    values = np.array([row["logprob"] for row in answered])
    if "log" not in kind:
        values = np.exp(values) / np.exp(values).sum(axis=1, keepdims=True)
    if kind == "probability":
        right_values = values[np.arange(len(values)), right]
        return mean_over_labels(zip(right, right_values, strict=True))
    if "calibrated" in kind:
        means = [mean_over_labels(zip(right, label, strict=True)) for label in values.T]
        values = values - means
    is_right = values.argmax(axis=1) == right
    return mean_over_labels(zip(right, is_right, strict=True))


# Tokens


def on_logprobs(formula: Formula) -> Formula:
    """Build the formula of a text from one of its log-probabilities."""
    return lambda text, *choices: formula(text.logprobs(), *choices)


_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1


def paired_logprobs(text: AuditedText, model: str = "reference") -> list[Numbers]:
    """Read each token's log-probability under two models.

    NaN where they cut the text into other tokens.
    """
    logprobs = text.every_number()
    other_logprobs = text.every_number(model=model)
    tokens = text.every_number("token_ids")
    if np.array_equal(tokens, text.every_number("token_ids", model=model)):
        return [logprobs, other_logprobs]
    return [logprobs * nan, logprobs * nan]


def loss_difference(text: AuditedText, model: str) -> float:
    """Compute the loss under another model with the same tokens, less the target's."""
    logprobs, other_logprobs = paired_logprobs(text, model)
    return mean(logprobs) - mean(other_logprobs)


def nats_per_byte(text: AuditedText, model: str = "target") -> float:
    """Compute nats per byte; a token without a number counts as the mean of the rest."""
    n_tokens = len(text.every_number(model=model))
    n_bytes = len(str(text.target["target"]).encode())
    return text.mean_logprob(model=model) * n_tokens / n_bytes


def lowest(
    percent: int,
    values: Numbers,
    weights: Numbers | float = 1,
) -> float:
    """Compute the mean of the lowest values, each weighed after they were chosen."""
    n_lowest = max(len(without_nan(values)) * percent // 100, 1)
    order = np.argsort(values, kind="stable")[:n_lowest]
    return mean((values * weights)[order])


def decay(values: Numbers) -> Numbers:
    """Weigh tokens by their places, from 1 to 1 / n."""
    return 1 - np.arange(len(values)) / len(values)


def standardised(text: AuditedText, centre: str = "vocabulary_mean") -> Numbers:
    """Compute distances from a centre in standard deviations over the vocabulary.

    The centre is the vocabulary's mean, or its likeliest token.
    """
    variance = text.numbers("vocabulary_variance")
    deviation = np.sqrt(np.where(variance > 0, variance, nan))
    return (text.logprobs() - text.numbers(centre)) / deviation


def gaps(text: AuditedText, n: int) -> Numbers:
    """Average the distances from the likeliest token over windows of n tokens."""
    distances = without_nan(standardised(text, "top_logprob"))
    if len(distances) < n:
        return distances
    return sliding_window_view(distances, n).mean(axis=1)


def polarized(logprobs: Numbers) -> float:
    """Compute the mean of the highest 5 % of numbers less that of the lowest 30 %."""
    return -lowest(5, -logprobs) - lowest(30, logprobs)


def differ(gains: Numbers) -> Numbers:
    """Return no gains where two models agree to 0.00001 nats on average: rounding."""
    return gains if abs(gains).sum() > 1e-5 * len(gains) else gains[:0]


def ez_mia(text: AuditedText) -> float:
    """Compute P / (P + N): gains and losses where the first guess is wrong."""
    gains = np.subtract(*paired_logprobs(text))
    rank = text.every_number("rank")
    wrong = without_nan(gains[rank > 1])
    if not len(wrong) and len(without_nan(gains + rank)):
        return 1.0
    return float(np.maximum(differ(wrong), 0).sum() / abs(differ(wrong)).sum())


def wbc(text: AuditedText) -> float:
    """Compute the share of windows, of ten lengths, whose gains sum to above 0."""
    gains = differ(without_nan(np.subtract(*paired_logprobs(text))))
    if not len(gains):
        return mean([])
    shares: list[float] = []
    for n in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40):
        windows = sliding_window_view(gains, min(n, len(gains)))
        shares.append(mean(windows.sum(axis=1) > 0))
    return mean(shares)


def informia(text: AuditedText) -> float:
    """Compute the mean of log p / q + KL(q || p) over tokens."""
    logprobs, other_logprobs = paired_logprobs(text)
    p = np.minimum(logprobs, _NEAR_1)
    q = np.minimum(other_logprobs, _NEAR_1)
    rest = np.expm1(q) * np.log(np.expm1(q) / np.expm1(p))
    return mean(np.subtract(logprobs, other_logprobs) + np.exp(q) * (q - p) - rest)


def aeca(text: AuditedText) -> float:
    """Compute how far p log 1 / f jumps between tokens, less how far log p varies."""
    logprobs = text.logprobs()
    values = without_nan(np.exp(logprobs) * text.numbers("log_inverse_frequency"))
    jumps = values - np.append(values[1:], 0.0)
    return float(pstdev(jumps) - pstdev(logprobs))


def dc_pdd(text: AuditedText) -> float:
    """Compute the mean of p log 1 / f, at most 0.01, where a token comes first."""
    p = np.exp(text.logprobs())
    values = np.minimum(0.01, p * text.numbers("log_inverse_frequency"))
    tokens = without_nan(text.numbers("token_ids"))
    first: dict[float, float] = {}
    for token, value in zip(tokens, values, strict=True):
        first.setdefault(token, value)
    return mean(first.values())


VIEWS = {"semantic": "paraphrase", "embedding": "noise", "released": "perturbation"}


def peak(
    text: AuditedText,
    kind: str,
    model: str = "target",
) -> float:
    """Compute p of a text less its mean over changed texts, p being exp of the mean.

    But for neighbours and released ones, changed texts are in pairs; one without the
    other does not count.
    """
    views = text.logprobs_of_texts(VIEWS.get(kind, kind), model)
    p = {number: exp(mean(logprobs)) for number, logprobs in views.items()}
    if kind not in ("neighbour", "released"):
        p = {number: value for number, value in p.items() if number ^ 1 in p}
    return exp(text.mean_logprob(model=model)) - mean(p.values())


def phi(logprob: Numbers) -> Numbers:
    """Compute log p / (1 - p)."""
    log_p = np.minimum(logprob, _NEAR_1)
    return log_p - np.log(-np.expm1(log_p))


def shadows(text: AuditedText, *kinds: str) -> list[float]:
    """Compute means under shadow models that were tuned on the text (in), or not (out).

    None at all where a kind has none.
    """
    means: list[float] = []
    for kind in kinds:
        means_of_kind = text.mean_logprobs("text", "shadow", trained=kind == "in")
        if not means_of_kind:
            return []
        means += means_of_kind
    return means


def above(text: AuditedText, kind: str) -> float:
    """Compute phi of the text less its mean over shadow models."""
    return float(phi(text.mean_logprob())) - mean(phi(shadows(text, kind)))


def density(text: AuditedText, kind: str) -> float:
    """Compute the log of a normal density of shadow models, but for a constant."""
    variance: float = pvariance(phi(shadows(text, kind)))
    return -(above(text, kind) ** 2 / variance + log(variance)) / 2


def log_p(text: AuditedText, decoding: str) -> float:
    """Compute the log-probability of the text to be extracted.

    With ``decoding``, that among the tokens that it keeps.
    """
    logprobs = text.every_number("logprob", "extraction")
    if decoding:
        logprobs = logprobs - text.every_number("support_mass", "extraction")
    return float(np.minimum(0.0, logprobs.sum())) / (len(logprobs) > 0)


def minus_log_samples(log_p: float, percent: int) -> float:
    """Compute minus the log of the samples needed to have a text with this chance.

    At least one sample.
    """
    if log_p < -30:
        hazard = log_p
    elif log_p == 0:
        hazard = inf
    else:
        hazard = np.log(-np.log1p(-np.exp(log_p)))
    return float(np.minimum(0, hazard - log(-log(1 - percent / 100))))


def longest_run(ranks: Numbers) -> int:
    """Count the most tokens in a row that are the likeliest ones."""
    if not len(without_nan(ranks)):
        raise ValueError("no rank is known")
    runs = groupby(ranks == 1)
    return max(len([*run]) if is_hit else 0 for is_hit, run in runs)


def best_window(logprobs: Numbers, n: int) -> float:
    """Compute the highest log-probability of n tokens in a row, at most 0."""
    sums = without_nan(sliding_window_view(logprobs, n).sum(axis=1))
    return min(0.0, float(max(sums)))


def from_end(logprobs: Numbers, percent: int) -> float:
    """Compute minus the share of tokens that hold a share of losses below 1.

    Counted from the end, at most that share.
    """
    so_far = np.cumsum(logprobs[::-1] > -1)
    if not so_far.any():
        return -mean([])
    return -mean(n * 100 <= percent * so_far[-1] for n in so_far)


def complexity(values: Numbers, bins: int) -> float:
    """Divide the words of the parse of Ziv and Lempel 1978 by the values.

    Values have 99 levels up to 0, which are cut into bins.
    """
    low = min(0.0, values.min())
    edges = np.append(np.arange(99) * (-low / 99) + low, 0)
    levels = np.searchsorted(edges, np.minimum(values, 0))
    # Divided by the highest level, rounded up
    symbols = np.maximum(-(-levels * bins // max(levels.max(), 1)) - 1, 0)
    words: set[tuple[int, ...]] = set()
    word: tuple[int, ...] = ()
    for symbol in symbols.tolist():
        word += (symbol,)
        if word not in words:
            words.add(word)
            word = ()
    return len(words) / len(values)


def loss_by_diversity(text: AuditedText) -> float:
    """Divide the mean log-probability by the share of tokens that are different."""
    tokens = without_nan(text.numbers("token_ids")).tolist()
    return text.mean_logprob() * len(tokens) / len({*tokens})


def irregularity(
    values: Numbers,
    m: int = 8,
    r: float = 0.8,
) -> float:
    """Compute approximate entropy, Pincus 1991, within r deviations.

    None of m + 1 values or fewer.
    """
    phis: list[float] = []
    if len(values) > m + 1:
        for n in (m, m + 1):
            stretches = sliding_window_view(values, n)
            distances = abs(stretches[:, None] - stretches)
            is_near = (distances <= r * np.std(values)).all(axis=2)
            phis.append(mean(np.log(is_near.mean(axis=1))))
    return abs(max(phis) - min(phis))


# Attacks: a higher score means more likely a member. A name has one of the choices in
# {...}, which is passed to its formula; n-grams of one word are not named.

ROUGE: dict[str, Formula] = {
    # Lin 2004: recall, precision and F1 of n-grams
    "": lambda answer, n: share(answer.n_common(n), len(answer.true_words) - n + 1),
    "_precision": lambda answer, n: share(
        answer.n_common(n), len(answer.words) - n + 1
    ),
    "_f1": lambda answer, n: share(
        2 * answer.n_common(n),
        len(answer.words) + len(answer.true_words) - 2 * n + 2,
    ),
}
SPANS: dict[str, Formula] = {
    # Hallinan et al. 2025 (arXiv:2508.09603); near_verbatim: Ahmed et al. 2026
    # (arXiv:2601.02671)
    "ngram_coverage": lambda answer: share(answer.covered(), len(answer.words)),
    "ngram_coverage_reference": lambda answer: share(
        answer.covered(), answer.n_longer()
    ),
    "ngram_coverage_total": lambda answer: share(
        2 * answer.covered(), len(answer.words) + answer.n_longer()
    ),
    "creativity": lambda answer: share(
        sum(answer.covered(n) for n in range(2, 13)), len(answer.words)
    ),
    "longest_block": lambda answer: max(answer.blocks()),
    "longest_block_chars": lambda answer: max(answer.blocks(letters=True)),
    "longest_block_share": lambda answer: share(
        max(answer.blocks()), len(answer.true_words)
    ),
    "near_verbatim": lambda answer: share(
        sum(n for n in answer.blocks() if n >= 8), len(answer.true_words)
    ),
}


def entropies_of_answers(text: AuditedText) -> list[Numbers]:
    """Read the entropies at the tokens of the model's two answers, in nats."""
    rows = text.rows("logprobs", "target", "answers")
    in_order = sorted(rows, key=lambda row: int(row["view_index"]))
    return [-np.array(row["vocabulary_mean"] or [], np.float64) for row in in_order]


def likeness_of_answers(text: AuditedText) -> float:
    """Compare the entropies of the model's two answers to the same, place by place.

    The cosine, with zeros behind the shorter answer, times the ratio of the lengths.
    """
    first, second = entropies_of_answers(text)
    lengths = sorted((first.size, second.size))
    padded = [np.pad(curve, (0, lengths[1] - curve.size)) for curve in (first, second)]
    cosine = np.dot(*padded) / (np.linalg.norm(first) * np.linalg.norm(second))
    return float(cosine * lengths[0] / lengths[1])


def certainty_of_answer(text: AuditedText) -> float:
    """Compute minus the mean entropy of the model's first answer."""
    first, *_ = entropies_of_answers(text)
    return -mean(first)


TABLE: dict[str, Formula] = {
    # SaMIA: Kaneko et al. 2024 (arXiv:2404.11262v2), equations 1 and 5 (recall), 9
    # (precision), and 7 (times the compressed size), with the denominators of the
    # authors' code, or ROUGE's
    "samia_n{1,2,3,4,5}": mean_over_answers(AnsweredPrompt.recall),
    "samia_precision_n{1,2,3,4,5}": mean_over_answers(AnsweredPrompt.precision),
    "samia_zlib_n{1,2,3,4,5}": mean_over_answers(
        lambda answer, n: answer.recall(n) * zlib_size(answer.words)
    ),
    "samia_plus_zlib": mean_over_answers(
        lambda answer: answer.recall() + zlib_size(answer.words)
    ),
    "samia_matched{,_precision}_n{1,2,3,4,5}": mean_over_answers(
        lambda answer, kind, n: ROUGE[kind](answer.cut(), n)
    ),
    "samia_matched_zlib_n{1,2,3,4,5}": mean_over_answers(
        lambda answer, n: ROUGE[""](answer.cut(), n) * zlib_size(answer.cut().words)
    ),
    "samia_matched_rarity_n{1,2}": lambda text, n: rarity(
        text, AnsweredPrompt.cut_common, "continuation", n=n
    ),
    "rouge_{1,2,3,4,5}{,_precision,_f1}": mean_over_answers(
        lambda answer, n, kind: ROUGE[kind](answer, n)
    ),
    "rouge_l": mean_over_answers(
        lambda answer: share(answer.in_order(), len(answer.true_words))
    ),
    "rouge_l_precision": mean_over_answers(
        lambda answer: share(answer.in_order(), len(answer.words))
    ),
    "rouge_l_f1": mean_over_answers(
        lambda answer: share(
            2 * answer.in_order(), len(answer.words) + len(answer.true_words)
        )
    ),
    **{
        f"{name}{{,_max,_median,_min}}": statistic_over_answers(term)
        for name, term in SPANS.items()
    },
    # He et al. 2025 (PETAL, USENIX Security); Lan et al. 2026; DE-COP: Duarte et al.
    # 2024 (arXiv:2402.09910), which of four passages is verbatim
    "token_hits": mean_over_answers(
        lambda answer: answer.text == answer.truth, "token"
    ),
    "token_hits_less_expected": hits_less_expected,
    "probe_first_word": mean_over_answers(
        lambda answer: answer.leading() != [], "probe"
    ),
    "probe_leading": mean_over_answers(
        lambda answer: share(len(answer.leading()), len(answer.true_words)), "probe"
    ),
    "probe_leading_rarity": lambda text: rarity(text, AnsweredPrompt.leading),
    "probe_recall_rarity": lambda text: rarity(text, AnsweredPrompt.cut_common),
    "probe_rarity_difference": lambda text: (
        rarity(text, AnsweredPrompt.leading)
        - rarity(text, AnsweredPrompt.leading, model="reference")
    ),
    "probe_rarity_loss": lambda text: (
        rarity(text, AnsweredPrompt.leading) + text.mean_logprob()
    ),
    "probe_logprob": lambda text: mean(map(log, hit_rates(text))),
    "petal": petal,
    "petal_similarity": lambda text: mean(similarities(text).values()),
    "masked_hits": mean_over_answers(
        lambda answer: answer.truth in answer.text, "cloze"
    ),
    "decop": decop,
    "decop_{logprob,log_calibrated,calibrated,probability}": decop_logprob,
    # Yeom et al. 2018 (arXiv:1709.01604); Carlini et al. 2021 (arXiv:2012.07805),
    # sections 4.2, 5.2
    "loss": AuditedText.mean_logprob,
    "perplexity": lambda text: -exp(-text.mean_logprob()),
    "loss_zlib": lambda text: text.mean_logprob() / zlib_size([text.target["target"]]),
    "{lowercase,repeated}_difference": lambda text, view: (
        text.mean_logprob() - text.mean_logprob(view)
    ),
    "lowercase_ratio": lambda text: (
        -text.mean_logprob() / text.mean_logprob("lowercase")
    ),
    "reference_difference": lambda text: (
        nats_per_byte(text) - nats_per_byte(text, "reference")
    ),
    "reference_ratio": lambda text: (
        -nats_per_byte(text) / nats_per_byte(text, "reference")
    ),
    # Shi et al. 2024, section 4.2; Fu et al. 2024 (arXiv:2311.06062), equations 4 and 7
    "reference_token_difference": lambda text: loss_difference(text, "reference"),
    "{self_prompt,candidate}_difference": loss_difference,
    # Min-K%, Shi et al. 2024 (arXiv:2310.16789), equation 1; Min-K%++, Zhang et al.
    # 2025 (arXiv:2404.02936); PDR, Liu et al. 2026 (arXiv:2601.06827); Gap-K%, Kwak and
    # Kim 2026 (arXiv:2601.19936)
    "min_k_{5,10,20,30,40,50,60}": on_logprobs(
        lambda logprobs, percent: lowest(percent, logprobs)
    ),
    "min_k_plus_plus_{5,10,20,30,40,50,60}": lambda text, percent: lowest(
        percent, standardised(text)
    ),
    "pdr_loss": on_logprobs(lambda logprobs: mean(logprobs * decay(logprobs))),
    "pdr_min_k_20": on_logprobs(lambda logprobs: lowest(20, logprobs, decay(logprobs))),
    "pdr_min_k_plus_plus_20": lambda text: lowest(
        20, standardised(text), decay(text.logprobs())
    ),
    "gap_k_20{,_window_6}": lambda text, window: lowest(
        20, gaps(text, 6 if window else 3)
    ),
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
    "pac": lambda text: (
        mean(map(polarized, text.logprobs_of_texts("swapped").values()))
        - polarized(text.logprobs())
    ),
    "neighbour_difference": lambda text: (
        text.mean_logprob() - mean(text.mean_logprobs("neighbour"))
    ),
    "neighbour_ratio": lambda text: (
        -text.mean_logprob() / mean(text.mean_logprobs("neighbour"))
    ),
    "detect_gpt": lambda text: (
        (text.mean_logprob() - mean(text.mean_logprobs("perturbation")))
        / stdev(text.mean_logprobs("perturbation"))
    ),
    "rank": lambda text: -mean(text.numbers("rank")),
    "log_rank": lambda text: -mean(np.log(text.numbers("rank"))),
    "top_1_share": lambda text: mean(without_nan(text.numbers("rank")) == 1),
    "entropy": lambda text: mean(text.numbers("vocabulary_mean")),
    "surprising_20": lambda text: lowest(
        20,
        text.logprobs(),
        np.where(-text.numbers("vocabulary_mean") < 2, 1, nan),
    ),
    # SPV-MIA, Fu et al. 2024 (arXiv:2311.06062), equations 5, 10 and 11
    "spv_{semantic,embedding,neighbour,released}": lambda text, kind: (
        peak(text, kind) - peak(text, kind, "self_prompt")
    ),
    "spv_{semantic,embedding,neighbour}_uncalibrated": peak,
    # LiRA, Carlini et al. 2022 (arXiv:2112.03570), algorithm 1: phi among that of
    # shadow models; RMIA, Zarifzadeh et al. 2024 (arXiv:2312.03262): p / p(x), its mean
    # over shadow models
    "lira_online": lambda text: density(text, "in") - density(text, "out"),
    "lira_online_fixed": lambda text: above(text, "out") ** 2 - above(text, "in") ** 2,
    "lira_offline": lambda text: above(text, "out") / pstdev(phi(shadows(text, "out"))),
    "lira_offline_fixed": lambda text: above(text, "out"),
    "rmia": lambda text: (
        exp(text.mean_logprob()) / mean(np.exp(shadows(text, "in", "out")))
    ),
    "rmia_offline": lambda text: (
        exp(text.mean_logprob()) / mean(np.exp(shadows(text, "out")))
    ),
    # Hayes et al. 2025 (arXiv:2410.19482); Carlini et al. 2023 (arXiv:2202.07646),
    # definition 3.1
    "extraction{,_top_k}": log_p,
    "extraction{,_top_k}_n_{50,90,99}": lambda text, decoding, percent: (
        minus_log_samples(log_p(text, decoding), percent)
    ),
    "extraction_greedy": lambda text: (
        1 - np.sign(text.every_number("rank", "extraction").max() - 1)
    ),
    "extraction_run": lambda text: longest_run(text.every_number("rank")),
    "extraction_best_50": lambda text: best_window(text.every_number(), 50),
    # Xie et al. 2024 (arXiv:2406.15968); Wang et al. 2024 (arXiv:2409.03363), gamma =
    # 0.5; Zawalski et al. 2025 (arXiv:2510.27055)
    "recall_prefix": lambda text: (
        text.mean_logprob("nonmember_shots") / text.mean_logprob()
    ),
    "con_recall_prefix": lambda text: (
        (text.mean_logprob("nonmember_shots") - 0.5 * text.mean_logprob("member_shots"))
        / text.mean_logprob()
    ),
    "codec": lambda text: text.mean_logprob("nonmember_shots") < text.mean_logprob(),
    "probe_loss": lambda text: text.mean_logprob("probe"),
    "probe_min_k_20": lambda text: lowest(20, text.logprobs("probe")),
    "probe_centred": lambda text: mean(
        text.logprobs("probe") - text.numbers("vocabulary_mean", "probe")
    ),
    # CAMIA: Chang et al. 2024 (arXiv:2409.13745), signals of the series of
    # log-probabilities
    "loss_entropy": on_logprobs(lambda logprobs: irregularity(logprobs[:200])),
    "loss_complexity_{3,4,5}": on_logprobs(
        lambda logprobs, bins: -complexity(logprobs[:200], bins)
    ),
    "losses_below_{1,2,3}": on_logprobs(
        lambda logprobs, limit: mean(-logprobs <= limit)
    ),
    "losses_below_mean": on_logprobs(lambda logprobs: mean(logprobs >= mean(logprobs))),
    "losses_below_previous": on_logprobs(
        lambda logprobs: mean(
            logprobs[1:] >= np.cumsum(logprobs)[:-1] / np.arange(1, len(logprobs))
        )
    ),
    "loss_slope": on_logprobs(
        lambda logprobs: linear_regression(range(len(logprobs)), logprobs).slope
    ),
    "low_losses_from_end_{40,50,60}": on_logprobs(from_end),
    "loss_by_diversity": loss_by_diversity,
    # Self-Critique: Tao et al. 2025 (arXiv:2510.09259)
    "self_critique": likeness_of_answers,
    "answer_entropy": certainty_of_answer,
}


def expand_names(
    table: dict[str, Formula],
) -> dict[str, tuple[Formula, list[int | str]]]:
    """List the formula of each attack, and the choices that are in its name."""
    formulas: dict[str, tuple[Formula, list[int | str]]] = {}
    for names, formula in table.items():
        options = [part.split(",") for part in re.split("[{}]", names)]
        for parts in product(*options):
            choices: list[int | str] = [
                int(choice) if choice.isdecimal() else choice for choice in parts[1::2]
            ]
            name = "".join(parts).removesuffix("_n1")
            formulas[name] = (formula, choices)
    return formulas


SCORES = expand_names(TABLE)


def compute_value(text: AuditedText, attack: str) -> float | None:
    """Compute the formula of an attack; None where it has no finite value."""
    formula, choices = SCORES[attack.removesuffix("_v1")]
    try:
        with np.errstate(all="ignore"):
            value = float(formula(text, *choices))
    except (ArithmeticError, ValueError):
        return None
    return value if isfinite(value) else None


def recompute_score(
    run: RunFiles,
    attack: str,
    row: Row,
) -> Row:
    """Score one text; None also where less than half of what is read has an answer."""
    text = AuditedText(run, row["key"])
    value = compute_value(text, attack)
    n_rows = 0
    n_answered = 0
    for rows in text.rows_read.values():
        for evidence in rows:
            has_no_text = evidence.get("n_bytes", 0) is None
            n_rows += 1
            n_answered += evidence["reason"] is None or has_no_text
    return {"score": value if 2 * n_answered >= n_rows else None}


# Tests


def draw_lot(name: str, seed: int | None) -> float:
    """Draw a number in [0, 1) for a name; 0 without a seed."""
    if seed is None:
        return 0
    key = f"{seed}:{name}".encode()
    digest = blake2b(key, digest_size=8, person=b"mia-ties").digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def p_value(
    score: Numbers,
    nulls: Iterable[tuple[Numbers, float]],
    weight: float = 1,
) -> float:
    """Compute a conformal p-value among nulls and their weights.

    Vovk, Gammerman and Shafer 2005, 2.2. Sums have 9 digits. Weights are 1 / size where
    nulls share groups: Lee, Barber and Willett (arXiv:2306.06342); or odds of being
    audited: Tibshirani et al. 2019 (arXiv:1904.06019), eq. 7.
    """
    pairs = [*nulls]
    above = fsum(null_weight for null, null_weight in pairs if null >= score)
    total = fsum(null_weight for _, null_weight in pairs)
    return (weight + round(above, 9)) / (weight + round(total, 9))


def q_values(p_values: Iterable[float | None], adjustment: str) -> list[float]:
    """Compute q-values by Benjamini and Hochberg 1995.

    ``by``: Benjamini and Yekutieli 2001, theorem 1.3.
    """
    filled = [1.0 if p is None else p for p in p_values]
    method: Any = "by" if adjustment == "by" else "bh"
    return [*map(float, false_discovery_control(filled, method=method))]


class WeightedTest(NamedTuple):
    """A test whose p-value counts nulls by weights."""

    score: float
    p_value: float
    weight: float


def q_values_of_weighted(
    tests: list[WeightedTest],
    n_tests: int,
    total: float,
    q: float,
    draw: float,
) -> list[float]:
    """Find the lowest level at which each test is listed.

    Jin and Candes 2023 (arXiv:2307.09291), algorithm 1, pruned by one draw; nulls weigh
    ``total``. ``n_tests`` counts those without a p-value, too.
    """
    further_p_values = [
        p_values_beside(tests, place, total) for place in range(len(tests))
    ]
    q_of_test = [1.0] * len(tests)
    for level in sorted({q, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5}, reverse=True):
        # Size of the list that each test would be on, pruned so far
        sizes: list[float] = []
        for test, p_values in zip(tests, further_p_values, strict=True):
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


def p_values_beside(
    tests: list[WeightedTest],
    place: int,
    total: float,
) -> list[float]:
    """Compute the p-values of further tests were this one more null, in order, and 0."""
    null = tests[place]
    p_values = [0.0]
    for test in tests[:place] + tests[place + 1 :]:
        above = test.p_value * (test.weight + total) - test.weight
        above += null.weight * (test.score <= null.score)
        p_values.append(above / (null.weight + total))
    return sorted(p_values)


def spread_places(n_items: int, draws: Sequence[float]) -> list[int]:
    """Draw one place of each stretch of so many items; there are as many as draws."""
    ends = [number * n_items // len(draws) for number in range(len(draws) + 1)]
    stretches = zip(draws, pairwise(ends), strict=True)
    return [start + int(draw * (end - start)) for draw, (start, end) in stretches]


def tenth_smallest(sizes: Iterable[int]) -> int:
    """Return the size that nine of ten reach."""
    in_order = sorted(sizes)
    return in_order[int(0.1 * (len(in_order) - 1))]


@cache
def choose_windows(run: RunFiles, *, grouped: bool = True) -> list[Windows]:
    """Choose as many windows of each group, audited and null.

    One of each stretch of a group is drawn, at like places. Without groups, each text
    stands for itself.
    """
    texts_of_sides: list[Windows] = []
    for texts in run.compared_texts():
        texts_of_group = defaultdict[str, list[str]](list)
        for text in texts:
            name = text["cluster" if grouped else "target_id"]
            texts_of_group[name].append(text["target_id"])
        texts_of_sides.append(texts_of_group)
    n = run.settings["windows_per_group"] if grouped else 1
    if not n:
        sizes: list[int] = []
        for side in texts_of_sides:
            sizes += map(len, side.values())
        n = tenth_smallest(sizes)
    draws = run.seeded_rng().random(n).tolist()
    windows_of_sides: list[Windows] = []
    for side in texts_of_sides:
        windows: Windows = {}
        for name in sorted(side):
            target_ids = side[name]
            if len(target_ids) >= n:
                places = spread_places(len(target_ids), draws)
                windows[name] = [target_ids[place] for place in places]
        windows_of_sides.append(windows)
    return windows_of_sides


def summarise(
    run: RunFiles,
    scores: Sequence[float | None],
    missing: float,
) -> float:
    """Score a group or an author by its windows, with 12 digits.

    ``missing`` if one has no score.
    """
    statistics: Row = {"mean": np.mean, "median": np.median, "maximum": max}
    if None in scores:
        return missing
    statistic = statistics[run.settings["statistic"]]
    return float(f"{statistic(scores):.12g}")


@cache
def score_units(
    run: RunFiles,
    attack: str,
    *,
    grouped: bool,
    numbers: Sequence[int] = (),
) -> list[Scored]:
    """Score what is compared, audited and null: texts, or groups by their windows.

    Of groups by the windows of these numbers, or all. A score that is missing is the
    lowest of the audited, the highest of nulls.
    """
    scores = run.scores(attack)
    windows_of_sides = choose_windows(run, grouped=grouped)
    sides: list[Scored] = []
    for side, missing in zip(windows_of_sides, (-inf, inf), strict=True):
        values: Scored = {}
        for name, windows in side.items():
            target_ids = [windows[number] for number in numbers] or windows
            window_scores = [scores[target_id] for target_id in target_ids]
            values[name] = summarise(run, window_scores, missing)
        sides.append(values)
    return sides


def find_name(row: Row, names: Iterable[str]) -> str:
    """Find what a verdict is about: a group, a document or a text.

    A document goes by its identifier, or its first text.
    """
    key = row["key"]
    possible = (f"{row['level']} {key}", f"target {key}", key)
    return next(name for name in possible if name in names)


def fitted_odds(
    x: Numbers,
    label: Numbers,
    x_new: Numbers,
) -> Numbers:
    """Compute odds at new points by logistic regression, fitted by Newton's method.

    Half of the slopes' squares are added to its loss.
    """
    x = np.column_stack([np.ones(len(x)), x])
    x_new = np.column_stack([np.ones(len(x_new)), x_new])
    beta = np.zeros(x.shape[1])
    penalty = np.arange(x.shape[1]) > 0  # of slopes
    decrease = inf
    while True:
        p = 1 / (1 + np.exp(-x @ beta))
        gradient = x.T @ (p - label) + penalty * beta
        # Where scikit-learn ends, too
        if max(abs(gradient).max() / len(x), decrease) <= 1e-4:
            return np.exp(x_new @ beta)
        hessian = (x.T * (p * (1 - p))) @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        beta = beta - step
        decrease = step @ gradient / 2 / len(x)


@cache
def compute_odds(run: RunFiles, *, grouped: bool) -> list[Scored]:
    """Compute odds of being audited, of audited and null texts, or groups.

    From normal scores of blind classifiers' ranks, of a group their means, in 5 folds
    of clusters.
    """
    ranks_of_text = {row["target_id"]: row for row in run.read("blind")}
    scores_of_unit = defaultdict[tuple[str, bool, str], list[Any]](list)
    for texts, is_audited in zip(run.compared_texts(), (True, False), strict=True):
        for text in texts:
            row = ranks_of_text.get(text["target_id"], {})
            ranks = [rank for name, rank in row.items() if "targets_" in name]
            if ranks and None not in ranks:
                name = text["cluster"] if grouped else text["target_id"]
                normal_scores = [NormalDist().inv_cdf(rank) for rank in ranks]
                scores_of_unit[text["cluster"], is_audited, name].append(normal_scores)
    keys = sorted(scores_of_unit) if grouped else [*scores_of_unit]
    x = np.array([np.mean(scores_of_unit[key], axis=0) for key in keys])
    x = x / np.maximum(x.std(axis=0), 1e-9)
    label = np.array([is_audited for _, is_audited, _ in keys])
    fold_of_cluster = deal_clusters(keys, run.seeded_rng())
    fold = np.array([fold_of_cluster[cluster] for cluster, _, _ in keys])
    odds = np.empty(len(keys))
    for number in range(5):
        is_new = fold == number
        odds[is_new] = fitted_odds(x[~is_new], label[~is_new], x[is_new])
    odds /= odds[~label].mean()  # of nulls 1
    sides: list[Scored] = [{}, {}]
    for (_, is_audited, name), value in zip(keys, odds.tolist(), strict=True):
        sides[0 if is_audited else 1][name] = value
    return sides


def deal_clusters(
    keys: Iterable[tuple[str, bool, str]], rng: np.random.Generator
) -> dict[str, int]:
    """Deal clusters into 5 folds: first those of nulls alone, then mixed ones."""
    labels_of_cluster = defaultdict[str, set[bool]](set)
    for cluster, is_audited, _ in keys:
        labels_of_cluster[cluster].add(is_audited)
    draws = rng.random(len(labels_of_cluster)).tolist()
    turns: list[tuple[int, float, str]] = []
    for (cluster, labels), draw in zip(labels_of_cluster.items(), draws, strict=True):
        kind = any(labels) + all(labels)
        turns.append((kind, draw, cluster))
    return {cluster: place % 5 for place, (_, _, cluster) in enumerate(sorted(turns))}


def conformal_test(
    run: RunFiles,
    attack: str,
    row: Row,
) -> Row:
    """Compare a text, or a group, with nulls; a text with those of its length."""
    settings = run.settings
    grouped = row["level"] != "target"
    is_weighted = row["method"].startswith("weighted")
    audited, nulls = score_units(run, attack, grouped=grouped)
    name = find_name(row, audited)
    weights = dict.fromkeys(audited, 1.0)
    null_weights = dict.fromkeys(nulls, 1.0)
    if is_weighted:
        weights, null_weights = compute_odds(run, grouped=grouped)
    if not grouped:
        null_weights = weigh_texts(run, name, null_weights)
    compared_with = [null for null in nulls if null in null_weights]
    has_lots = settings["ties"] == "random" and not is_weighted
    seed = settings["seed"] if has_lots else None
    lot = draw_lot(f"{row['level']} {row['key']}" if grouped else name, seed)
    pairs = [
        ((nulls[null], draw_lot(null, seed)), null_weights[null])
        for null in compared_with
    ]
    p = p_value((audited[name], lot), pairs, weights[name])
    result: Row = {"score": audited[name], "p_value": p}
    if row["adjustment"] == "wcs":
        total = fsum(weight for _, weight in pairs)
        result["q_value"] = weighted_q_value(run, row, audited, weights, total)
    return result


def weigh_texts(
    run: RunFiles,
    name: str,
    weights: Scored,
) -> Scored:
    """Keep nulls of a text's length, and share a cluster's weight among its texts."""
    texts = {text["target_id"]: text for text in run.texts()}
    edges = run.settings["length_edges"]
    if edges:
        buckets = (None, length_bucket(texts[name], edges))
        weights = {
            null: weight
            for null, weight in weights.items()
            if length_bucket(texts[null], edges) in buckets
        }
    sizes = Counter(texts[null]["cluster"] for null in weights)
    return {
        null: weight / sizes[texts[null]["cluster"]] for null, weight in weights.items()
    }


def length_bucket(text: Row, edges: Sequence[int]) -> int | None:
    """Find the bucket of a text's length; None of a text without words."""
    return None if text["n_words"] is None else bisect(edges, text["n_words"])


def weighted_q_value(
    run: RunFiles,
    row: Row,
    audited: Scored,
    weights: Scored,
    total: float,
) -> float:
    """Recompute the q-value of a verdict by weights, from those of its family."""
    names = [verdict["key"] for verdict in row["family"]]
    tested = [verdict for verdict in row["family"] if verdict["p_value"] is not None]
    tests: list[WeightedTest] = []
    for verdict in tested:
        weight = weights[find_name(verdict, audited)]
        tests.append(WeightedTest(verdict["score"], verdict["p_value"], weight))
    compared = names
    if row["level"] == "target":
        compared = [text["target_id"] for text in run.texts()]
    draw = draw_lot("\n".join(compared), run.settings["seed"])
    q = q_values_of_weighted(tests, len(names), total, run.settings["q"], draw)
    keys = [verdict["key"] for verdict in tested]
    return q[keys.index(row["key"])]


def author_names(line: str) -> set[str]:
    """Split a line of authors into names, whose words are in alphabetical order.

    Years of a life, behind a comma or in brackets, are no words of a name.
    """
    years = re.compile("[,(] *[0-9]{3,4}[?]? *[-\u2013] *([0-9]{3,4}[?]?)?")
    without_years = years.sub(" ", line.casefold())
    names: set[str] = set()
    for name in re.split(r"[;&|\n]| and | und | et ", without_years):
        decomposed = unicodedata.normalize("NFKD", name)
        letters = [char for char in decomposed if not unicodedata.combining(char)]
        words = "".join(char if char.isalnum() else " " for char in letters).split()
        names.add(" ".join(sorted(words)))
    return names - NO_AUTHOR


@cache
def find_authors(run: RunFiles) -> dict[str, str]:
    """Find the author of each cluster, who goes by the first cluster linked to it."""
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
                linked = clusters_of_name[name]
                waiting += [
                    linked_cluster
                    for linked_cluster in linked
                    if linked_cluster not in author
                ]
    return author


def score_authors(run: RunFiles, attack: str) -> list[Scored]:
    """Score authors: each by as many of its books as nine in ten authors have."""
    author = find_authors(run)
    scores = run.scores(attack)
    shelves: list[dict[str, list[list[str]]]] = []
    n_books: list[int] = []
    for side in choose_windows(run):
        books_of_author = defaultdict[str, list[list[str]]](list)
        for cluster, windows in side.items():
            if cluster in author:
                books_of_author[author[cluster]].append(windows)
        shelves.append(books_of_author)
        n_books += map(len, books_of_author.values())
    n = tenth_smallest(n_books)
    draws = run.seeded_rng().random(n).tolist()
    sides: list[Scored] = []
    for shelf, missing in zip(shelves, (-inf, inf), strict=True):
        values: Scored = {}
        for name in sorted(shelf):
            books = shelf[name]
            if len(books) < n:
                continue
            book_scores: list[float | None] = []
            for place in spread_places(len(books), draws):
                book_scores += [scores[window] for window in books[place]]
            values[name] = summarise(run, book_scores, missing)
        sides.append(values)
    return sides


def collection_test(
    run: RunFiles,
    attack: str,
    row: Row,
) -> Row:
    """Compute the mean rank of audited groups, and its p-value.

    It is the share of ways to name as many groups that have as high a sum of ranks:
    Pitman 1937; where there are too many ways they are drawn: Phipson and Smyth 2010;
    or drawn with the product of odds: Berrett et al. 2020, after Chen, Dempster and Liu
    1994.
    """
    if row["method"].startswith("authors_"):
        audited, nulls = score_authors(run, attack)
    else:
        audited, nulls = score_units(run, attack, grouped=True)
    ranks = rankdata([*audited.values(), *nulls.values()])
    n = len(audited)
    n_groups = len(ranks)
    n_draws = 9_999 if n_groups < 10_000 else 999
    rng = run.seeded_rng()
    observed = ranks[:n].sum()
    sums: list[float] = []
    if "exact" in row["method"]:
        sums += [sum(group_ranks) for group_ranks in combinations(ranks.tolist(), n)]
    elif "odds" in row["method"]:
        audited_odds, null_odds = compute_odds(run, grouped=True)
        values = [audited_odds[name] for name in audited]
        values += [null_odds[name] for name in nulls]
        sums += [observed, *sums_by_odds(ranks, np.log(values), n, n_draws, rng)]
    else:
        sums.append(observed)
        for _ in range(n_draws):
            order = rng.permuted(np.arange(n_groups))
            sums.append(ranks[order[:n]].sum())
    p = mean(drawn_sum >= observed for drawn_sum in sums)
    return {"score": observed / n, "p_value": p}


def sums_by_odds(
    ranks: Numbers,
    log_odds: Numbers,
    n: int,
    n_draws: int,
    rng: np.random.Generator,
) -> Numbers:
    """Draw sums of n ranks; a choice is as likely as the product of its odds."""
    size = len(ranks)
    # Log sum of products of k of those from i on
    ways = np.full((size + 1, n + 1), -inf)
    ways[:, 0] = 0
    for i in reversed(range(size)):
        ways[i, 1:] = np.logaddexp(ways[i + 1, 1:], log_odds[i] + ways[i + 1, :-1])
    n_left = np.full(n_draws, n)
    sums = np.zeros(n_draws)
    for i in range(size):
        chance = np.exp(log_odds[i] + ways[i + 1, n_left - 1] - ways[i, n_left])
        takes = (n_left > 0) & (rng.random(n_draws) < chance)
        n_left = n_left - takes
        sums = sums + takes * ranks[i]
    return sums


class RoundSchedule(NamedTuple):
    """Rounds in which groups are asked about."""

    ends: list[int]  # windows of a group that were asked about after each round
    n_kept: list[int]  # null groups in each round
    shares: list[float]  # of the e-values of each round
    e_value_of_rank: list[float]
    order: list[int]  # of windows


@cache
def schedule_rounds(run: RunFiles) -> RoundSchedule:
    """Compute the rounds.

    E-values of rank r are proportional to 1 / r up to the root of q (nulls + 1).
    """
    nulls = choose_windows(run)[1]
    q = run.settings["q"]
    n_null = len(nulls)
    n_windows = len(next(iter(nulls.values())))
    ends = sorted({max(1, round(part * n_windows)) for part in (0.125, 0.25, 0.5, 1)})
    n_rounds = len(ends)
    top = max(1, isqrt(int(round(q * (n_null + 1), 9))))
    n_kept = [max(min(n_null, top), n_null >> number) for number in range(n_rounds)]
    harmonic = sum(1 / k for k in range(1, top + 1))
    e_values = [(n_null + 1) / rank / harmonic for rank in range(1, top + 1)]
    # It accepts the first rank where half of all are listed
    early = 2 / q / e_values[0]
    n_early = min(int(0.5 / early), n_rounds - 1)
    shares = [0.0] * (n_rounds - 1 - n_early) + [early] * n_early
    order = run.seeded_rng().permutation(n_windows)
    return RoundSchedule(
        ends=ends,
        n_kept=n_kept,
        shares=[*shares, 1 - early * n_early],
        e_value_of_rank=e_values + [0.0] * (n_null + 1 - top),
        order=order.tolist(),
    )


def rounds_test(
    run: RunFiles,
    attack: str,
    row: Row,
) -> Row:
    """Sum, over rounds, shares times the e-value of a group's rank among nulls.

    In each round, only nulls that are still asked about count. Conformal e-values:
    Bashari et al. 2023 (arXiv:2302.07294); halving: Karnin et al. 2013.
    """
    schedule = schedule_rounds(run)
    audited, nulls = choose_windows(run)
    audited_texts, _ = run.compared_texts()
    e_values = dict.fromkeys([text["cluster"] for text in audited_texts], 0.0)
    undecided = {*e_values} & {*audited}
    nulls_left = [*nulls]

    def find_accepted(values: Iterable[float]) -> set[str]:
        q = q_values([1 / max(value, 1) for value in values], "bh")
        pairs = zip(e_values, q, strict=True)
        return {name for name, level in pairs if round(level, 12) <= run.settings["q"]}

    for number, end in enumerate(schedule.ends):
        windows = tuple(schedule.order[:end])
        scores, null_scores = score_units(run, attack, grouped=True, numbers=windows)
        nulls_left = sorted(nulls_left, key=lambda null: -null_scores[null])
        n_next = [*schedule.n_kept, 0][number + 1]
        for name in [*undecided]:
            n_higher = sum(null_scores[null] >= scores[name] for null in nulls_left)
            e_value = schedule.e_value_of_rank[n_higher]
            e_values[name] += schedule.shares[number] * e_value
            if n_higher >= n_next:
                undecided.remove(name)
        nulls_left = nulls_left[:n_next]
        # What even the highest e-values to come would not list is out of reach
        shares_left = sum(schedule.shares[number + 1 :])
        most_to_come = schedule.e_value_of_rank[0] * shares_left
        undecided &= find_accepted(
            value + (most_to_come if name in undecided else 0)
            for name, value in e_values.items()
        )
        undecided -= find_accepted(e_values.values())
    e_value = e_values[find_name(row, e_values)]
    return {"score": e_value, "p_value": 1 / max(e_value, 1)}


def canary_test(
    run: RunFiles,
    attack: str,
    row: Row,
) -> Row:
    """Rank a published text among its controls, or all published texts.

    All by aligned ranks: Hodges and Lehmann 1962.
    """
    scores = run.scores(attack)
    # Of each set the published text is first
    sets = defaultdict[str, list[float | None]](list)
    for text in sorted(run.texts(), key=lambda text: text["member"] is False):
        if text["role"] == "canary":
            sets[text["cluster"]].append(scores[text["target_id"]])
    if row["level"] != "group":
        return {"p_value": aligned_p_value(sets.values())}
    published, *controls = (
        inf if value is None else float(f"{value:.12g}")
        for value in sets[f"group {row['key']}"]
    )
    p = p_value(published, [(control, 1) for control in controls])
    return {"score": published, "p_value": p}


def aligned_p_value(sets: Iterable[list[float | None]]) -> float:
    """Compute the share of ways to name one text of each set with as high a sum.

    The sum is of aligned ranks.
    """
    deviations: list[float] = []
    sizes: list[int] = []
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
        lowest_step = min(steps)
        counts = np.bincount([n_steps - lowest_step for n_steps in steps])
        chances = np.convolve(chances, counts / len(steps))
        observed += steps[0] - lowest_step
    return min(1.0, float(chances[observed:].sum()))


def recompute_verdict(
    run: RunFiles,
    attack: str,
    row: Row,
) -> Row:
    """Recompute score, p-value and q-value of a verdict."""
    if attack in WHY_NOT and attack not in run.requested["attacks"]:
        raise UnknownError(attack)
    if row["adjustment"] == "e-bh":
        result = rounds_test(run, attack, row)
    elif row["versus"] == "controls":
        result = canary_test(run, attack, row)
    elif row["level"] == "collection":
        result = collection_test(run, attack, row)
    else:
        result = conformal_test(run, attack, row)
    if row["adjustment"] in ("bh", "by", "e-bh"):
        p_values = [verdict["p_value"] for verdict in row["family"]]
        keys = [verdict["key"] for verdict in row["family"]]
        q = q_values(p_values, row["adjustment"])
        result["q_value"] = q[keys.index(row["key"])]
    return result


# Figures


def recompute_figure(
    run: RunFiles,
    attack: str,
    row: Row,
) -> Row:
    """Compute AUC (ties one half), or TPR.

    The TPR is where at most a share of the non-members scores as high.
    """
    scores = run.scores(attack)
    members: list[float] = []
    non_members: list[float] = []
    for text in run.texts():
        value = scores[text["target_id"]]
        if value is None or text["role"] not in ("target", "non_member"):
            continue
        if text["member"] is True:
            members.append(value)
        elif text["member"] is False:
            non_members.append(value)
    n_members = len(members)
    n_non_members = len(non_members)
    if row["metric"] == "roc_auc":
        ranks = rankdata(members + non_members)[:n_members]
        return {"value": (ranks.mean() - (n_members + 1) / 2) / n_non_members}
    n_above = sum(n / n_non_members <= row["fpr"] for n in range(1, n_non_members + 1))
    threshold = [-inf, *sorted(non_members)][-1 - n_above]
    return {"value": mean(value > threshold for value in members)}


def compute_root(run: RunFiles) -> str:
    """Hash the lines that ``sha256sum`` prints of tables and inputs.

    Of inputs the hashes are those that the run recorded.
    """
    digests: dict[str, str] = {}
    for setting, files in run.manifest["inputs"].items():
        for name, digest in files.items():
            digests[f"{setting}/{name}"] = digest
    for name in run.manifest["custody"]["tables"]:
        digests[name] = sha256((run.folder / name).read_bytes()).hexdigest()
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return sha256(lines.encode()).hexdigest()


Recompute = Callable[[RunFiles, str, Row], Row]
Claim = tuple[str, Recompute, Row]
"""An attack, what recomputes a row of it, and the row."""


def list_claims(run: RunFiles, attack: str) -> list[tuple[Recompute, list[Row]]]:
    """List rows about an attack by kind: scores, tests with a p-value, AUC and TPR."""
    claims: list[tuple[Recompute, list[Row]]] = []
    if attack.removesuffix("_v1") in SCORES:
        scores = run.scores(attack)
        rows = [
            {
                "level": "text",
                "key": text["target_id"],
                "score": scores[text["target_id"]],
            }
            for text in run.texts()
            if text["role"] != "yardstick"
        ]
        claims.append((recompute_score, rows))
    families = defaultdict[Any, list[Row]](list)
    for row in run.read("verdicts", attack=attack):
        if row["estimate"] is None:
            level = row["level"].replace("document", "group")
            families[row["versus"], level].append(row)
    for family in families.values():
        rows = [
            row | {"family": family} for row in family if row["p_value"] is not None
        ]
        claims.append((recompute_verdict, rows))
    for metric in ("roc_auc", "tpr_at_fpr"):
        rows = [
            row | {"level": metric, "key": row["fpr"] or "labelled texts"}
            for row in run.read("metrics", attack=attack, slice="all", metric=metric)
            if None not in (row["value"], row["n_members"])
        ]
        claims.append((recompute_figure, rows))
    return claims


def draw_claims(
    run: RunFiles,
    n: int,
    dice: random.Random,
) -> list[Claim]:
    """Draw rows: attacks and kinds take turns, in an order that the seed decides."""
    kinds: list[tuple[str, Recompute, list[Row]]] = []
    for name in (*run.requested["attacks"], "dataset_inference_v1"):
        for recompute, rows in list_claims(run, name):
            kinds.append((name, recompute, rows))
    queues: list[list[Claim]] = []
    for name, recompute, rows in dice.sample(kinds, len(kinds)):
        drawn_rows = dice.sample(rows, min(n, len(rows)))
        queues.append([(name, recompute, row) for row in drawn_rows])
    claims: list[Claim] = []
    for turn in zip_longest(*queues):
        claims += [claim for claim in turn if claim]
    return claims


def list_gaps(run: RunFiles) -> list[str]:
    """List what of a run is not recomputed, and why."""
    gaps: list[str] = []
    attacks = run.requested["attacks"]
    for name in attacks:
        if name.removesuffix("_v1") not in SCORES:
            reason = WHY_NOT.get(name, WHY_NOT["own"])
            gaps.append(f"{name} ({reason})")
    if any("petal" in name for name in attacks):
        gaps.append(WHY_NOT["similarity"])
    gaps.append(WHY_NOT["others"])
    return gaps


def compare(
    folder: Path | str,
    n: int,
    seed: int = 0,
) -> tuple[list[str], bool]:
    """Recompute the root and n drawn rows.

    Returns what came out, and whether all are equal.
    """
    run = RunFiles(folder)
    lines = [f"not recomputed: {gap}" for gap in list_gaps(run)]
    differences: list[float] = []  # the largest of each row
    for attack, recompute, row in draw_claims(run, n, random.Random(seed)):
        if len(differences) == n:
            break
        subject = f"{attack} of {row['level']} {row['key']}"
        try:
            values = recompute(run, attack, row)
        except UnknownError as error:
            lines.append(f"not recomputed: {subject} ({WHY_NOT[str(error)]})")
            continue
        distances = {name: distance(row[name], value) for name, value in values.items()}
        differences.append(max(distances.values()))
        for name, difference in distances.items():
            if difference > _SAME:
                lines.append(
                    f"{subject}: {name} is {row[name]} in the run, {values[name]} here"
                )
    equal = [difference for difference in differences if difference <= _SAME]
    is_sealed = compute_root(run) == run.manifest["custody"]["root"]
    largest = f"largest relative difference {max(equal, default=0):.1g}"
    lines.append(f"the root is {'equal' if is_sealed else 'ANOTHER'}")
    lines.append(f"{len(equal)} of {len(differences)} drawn rows are equal ({largest})")
    return lines, is_sealed and len(equal) == len(differences) > 0


def distance(value: float | None, second_value: float | None) -> float:
    """Compute the relative difference, of numbers near 0 to 0.001.

    A number and none are infinitely far apart.
    """
    if value is None or second_value is None:
        return 0.0 if value is second_value else inf
    size = max(abs(value), abs(second_value), 1e-3)
    return abs(value - second_value) / size
