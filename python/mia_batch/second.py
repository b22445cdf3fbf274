"""A second implementation: the numbers of a run, recomputed from its files, to be read in an hour.

For readers who trust neither this package nor its authors: nothing of it is imported. Polars opens
Parquet files, numpy and scipy compute what any textbook has, and all else is the standard library.

Files       ``RunFiles``: run.json (settings, attacks, hashes), tables, and which texts there are
One text    ``AuditedText``: its targets, prompts, samples, logprobs: what models answered
Elsewhere   samples of all texts: how many groups' answers have an n-gram, or hit a token
Words       formulas on answers
Tokens      formulas on log-probabilities
Attacks     ``TABLE``: the formula of each attack, by name and paper; ``score``: of one text
Tests       scores, blind: p-values of texts, groups, collections, rounds and canaries; q-values
Figures     AUC, TPR and the root; ``compare``: numbers of the run are drawn and recomputed

A formula without a value divides by zero, takes the highest of nothing, or is NaN; the run must
have null there. NaN is also a token without a number.
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
from itertools import accumulate, combinations, groupby, pairwise, product, takewhile, zip_longest
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
    "combination_v1": "scikit-learn grows the trees that give it, and they are no formula",
    "dataset_inference_v1": "scikit-learn fits its weights, and not to the last digit",
    "similarity": "PETAL's likeness of words is taken from the run, which has no embeddings",
    "others": "what is no score, p-value, q-value, AUC, TPR or root is not looked at",
    "own": "the attack does not come with the package",
    "rarity_from": "words were counted in another run, whose files lie elsewhere",
    "words": "scripts without spaces are cut into words by tables that Python has not",
    "zlib": f"sizes are those of classic zlib, and this Python has {zlib.ZLIB_RUNTIME_VERSION}",
}
"""What is not recomputed, and why."""


NO_AUTHOR = {
    *("", "anonymous", "anon", "anonym", "anonyme", "various", "unknown", "unbekannt", "none"),
    *("authors various", "author unknown", "a n", "inconnu", "several", "et al", "al", "others"),
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
        self.asked: Row = self.manifest["made"]["scores"]  # attacks, and how much of each view

    def read(self, table: str, *columns: str, **equal: str) -> list[Row]:
        """Read rows of a file, or of a folder of parts: these columns, or all; of these values."""
        parts = sorted(self.folder.glob(f"{table}/*.parquet"))
        if not (files := parts or [*self.folder.glob(f"{table}.parquet")]):
            return []
        rows = pl.scan_parquet(files, missing_columns="insert", extra_columns="ignore")
        for name, value in equal.items():
            rows = rows.filter(pl.col(name).cast(pl.String) == value)
        return rows.select(columns or pl.all()).collect().to_dicts()

    def evidence(self, table: str, **equal: str) -> list[Row]:
        """Read what scores rest on: the last attempt at a row, and what the settings ask for."""
        kept: dict[tuple[Any, ...], Row] = {}
        for row in self.read(table, **equal):
            names = ("target_id", "model", "view", "view_index", "sample_index")
            key = _, model, view, index, sample = tuple(row.get(name, 0) for name in names)
            n, samples = self.asked["samples"].get(view, (0, 0))
            if table == "logprobs":
                n, samples = self.asked[table].get(f"{model}-{view}", 0), 1
            if (key not in kept or kept[key]["reason"]) and index < n and sample < samples:
                kept[key] = row
        return [kept[key] for key in sorted(kept)]

    @cache  # noqa: B019 - of a run or two
    def scores(self, attack: str) -> dict[str, float | None]:
        return {row["target_id"]: row[attack] for row in self.read("scores", "target_id", attack)}

    @cache  # noqa: B019
    def texts(self) -> list[Row]:
        """Read which texts there are; a ``cluster`` is a group, else a document, else one text."""
        names = ("target_id", "role", "member", "group", "document_id", "window_index", "n_words")
        rows, first = self.read("scores", *names), ""
        for row in rows:
            first = first if row["window_index"] and first else row["target_id"]
            of = {"group": row["group"], "document": row["document_id"], "target": first}
            row["cluster"] = next(f"{each} {name}" for each, name in of.items() if name is not None)
        return rows

    def compared(self) -> tuple[list[Row], list[Row]]:
        """Find texts that are asked about, and nulls: else those asked about as non-members."""
        asked = [row for row in self.texts() if row["role"] == "target"]
        given = [row for row in self.texts() if row["role"] == "non_member"]
        outside = given or [row for row in asked if row["member"] is False]
        return [row for row in asked if given or row["member"] is not False], outside


# One text


class AuditedText:
    """What models answered about a text; called, it gives numbers of its tokens."""

    def __init__(self, run: RunFiles, target_id: str) -> None:
        self.run, self.id, self.seen = run, target_id, dict[tuple[str, ...], list[Row]]()
        self.target, *_ = run.read("targets", target_id=target_id)

    def rows(self, table: str, of: str, view: str) -> list[Row]:
        """Read, once, rows of a view; the models shadow-0, shadow-1, ... are one, named shadow."""
        if (table, of, view) not in self.seen:
            found = self.run.evidence(table, target_id=self.id, view=view)
            self.seen[table, of, view] = [row for row in found if row["model"].split("-")[0] == of]
        return self.seen[table, of, view]

    def answers(self, view: str = "continuation", of: str = "target") -> list[AnsweredPrompt]:
        """Read the answers to the prompts of a view, less what was refused or lost."""
        settings, found = self.run.settings, list[AnsweredPrompt]()
        prompts = self.run.read("prompts", target_id=self.id, model=of, view=view)
        true = {row["view_index"]: row["text"] for row in prompts}
        before = {row["view_index"]: self.context(row) for row in prompts}
        rule = self.run.manifest.get("dress", {}).get("rule", []) if of == "target" else []
        rule = [] if view in ("choice", "cloze", "token") else rule
        for row in self.rows("samples", of, view):
            said, truth = row["candidate"], true.get(row["view_index"])
            if said is not None:
                said = bare(row.get("raw") or said, before[row["view_index"]], rule)
            truth = self.target["reference"] if truth is None else truth
            if said is not None and settings["preset"] == "samia" and view == "continuation":
                # The authors' code cuts prompt and answer, together, behind half of the words.
                whole = words_of((row["prompt"] or self.target["prefix"]) + said, "space")
                length = settings["text_length"] or self.target["n_words"]
                said = " ".join(whole[round(length * 0.5) :])
            if said is not None and truth is not None:
                words = [words_of(each, settings["word_rule"]) for each in (said, truth)]
                found.append(AnsweredPrompt(row["view_index"], said, truth, *words))
        return found

    def context(self, prompt: Row) -> str:
        """Read what a model was given: its own text, some bytes of the target, or the prefix."""
        if prompt["cut"] is not None:
            return str(self.target["target"]).encode()[: prompt["cut"]].decode()
        return str(self.target["prefix"] if prompt["context"] is None else prompt["context"])

    def every(self, column: str = "logprob", view: str = "text", of: str = "target") -> Numbers:
        """Give numbers of every token; NaN where it has none."""
        rows = [row for row in self.rows("logprobs", of, view) if row["logprob"]]
        lists = [row[column] or [None] * len(row["logprob"]) for row in rows]
        return np.array([number for numbers in lists for number in numbers], np.float64)

    def __call__(self, column: str = "logprob", view: str = "text", of: str = "target") -> Numbers:
        """Give numbers of tokens that have a log-probability."""
        return self.every(column, view, of)[~np.isnan(self.every("logprob", view, of))]

    def average(self, view: str = "text", of: str = "target") -> float:
        """Mean log-probability of the tokens, in nats: minus the loss."""
        return mean(self(view=view, of=of))

    def each(self, view: str, of: str = "target", **equal: bool) -> dict[int, Numbers]:
        """Give log-probabilities of each of several texts, or under each of the shadow models."""
        rows = [row for row in self.rows("logprobs", of, view) if equal.items() <= row.items()]
        numbers = [at if of == "shadow" else row["view_index"] for at, row in enumerate(rows)]
        lists = [known(np.array(row["logprob"] or [], np.float64)) for row in rows]
        return {at: found for at, found in zip(numbers, lists, strict=True) if len(found)}

    def averages(self, view: str, of: str = "target", **equal: bool) -> list[float]:
        return [mean(found) for found in self.each(view, of, **equal).values()]


class AnsweredPrompt(NamedTuple):
    """An answer, and the text that truly follows the prompt, in letters and in words."""

    prompt: int
    text: str
    truth: str
    said: list[str]
    true: list[str]

    def longer(self) -> int:
        return max(len(self.said), len(self.true))

    def cut(self) -> AnsweredPrompt:
        return self._replace(said=self.said[: len(self.true)])

    def cut_common(self, n: int = 1) -> list[tuple[str, ...]]:
        return self.cut().common(n)

    def common(self, n: int = 1) -> list[tuple[str, ...]]:
        """List n-grams that answer and truth share, each as often as both have it."""
        return [*(Counter(ngrams(self.said, n)) & Counter(ngrams(self.true, n))).elements()]

    def n_common(self, n: int) -> float:
        """Count them; NaN where the truth has no n-gram."""
        return len(self.common(n)) if len(self.true) >= n else nan

    def leading(self, n: int = 1) -> list[tuple[str, ...]]:
        """List n-grams of the words before the first wrong one."""
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(self.said, self.true, strict=False))
        return ngrams([word for word, _ in pairs], n)

    def in_order(self) -> float:
        """Length of the longest common subsequence of words; NaN where the truth has no word."""
        row = [0] * (len(self.true) + 1)
        for word in self.said:
            best = (row[n] + 1 if word == each else row[n + 1] for n, each in enumerate(self.true))
            row = [0, *accumulate(best, max)]
        return row[-1] if self.true else nan

    def covered(self, n: int = 3) -> int:
        """Words of the answer inside some span of n words that the truth has, too."""
        spans = {*ngrams(self.true, n)}
        starts = [at for at, span in enumerate(ngrams(self.said, n)) if span in spans]
        return len({at + step for at in starts for step in range(n)})

    def blocks(self, *, letters: bool = False) -> list[int]:
        """Sizes of common blocks: the longest, then the longest on both sides of it, and so on."""
        said, true = (self.text, self.truth) if letters else (self.said, self.true)
        found = SequenceMatcher[Any](None, true, said, autojunk=False).get_matching_blocks()
        return [block.size for block in found]


_UNSPACED = (
    "[\u0e00-\u109f\u1780-\u1aaf\u3005-\uaadf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


_SPELLED_OUT = str.maketrans(
    dict.fromkeys("\u02bc\u2018\u2019\u201a\u201b\u2032\u2035\u2039\u203a\uff07", "'")
    | dict.fromkeys("\u00ab\u00bb\u201c\u201d\u201e\u201f\u2033\u2036\u301d\u301e\u301f\uff02", '"')
    | dict(zip("\ufb00\ufb01\ufb02\ufb03\ufb04", ("ff", "fi", "fl", "ffi", "ffl"), strict=True))
    | {"\u2026": "...", "\u017f": "s", "\u1e9b": "\u1e61", "\u0132": "IJ", "\u0133": "ij"}
    | {"\ufb05": "st", "\ufb06": "st", "\ufb13": "\u0574\u0576", "\ufb14": "\u0574\u0565"}
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
    "quote": '["\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a\u2018\u201a\u300c\u300e\u300a]'
    "|\\*\\*|[*`_]",
}
_ENDS = {
    "fence": r"(?s:\n?[ \t]*(?:```|~~~).*)",
    "quote": '(?:["\u201d\u201c\u00ab\u00bb\u2039\u203a\u2019\u300d\u300f\u300b]'
    "|\\*\\*|[*`_])\\s*$",
}


def bare(said: str, prompt: str, rule: list[Row]) -> str:
    """Take off what the run's rule names: remarks at the end, then each layer once, in order."""
    text, layers = said.strip(), [layer for layer in rule if layer["kind"] != "close"]
    for remark in (layer["text"] for layer in rule if layer["kind"] == "close"):
        text = text[: -len(remark)].rstrip() if text.endswith(remark) else text
    while True:
        sizes = [opening(text, prompt, layer) for layer in layers]
        if not any(sizes):
            return said if text == said.strip() else text
        at = next(at for at, size in enumerate(sizes) if size)
        mark, text, kind = text[: sizes[at]], text[sizes[at] :].lstrip(), layers.pop(at)["kind"]
        if kind == "mark":
            lines = text.split("\n")
            text = "\n".join(without(line, mark.strip()) for line in lines)
        if kind in _ENDS and (end := re.search(_ENDS[kind], text)):
            text = text[: end.start()]


def without(line: str, mark: str) -> str:
    """Take a mark and the blanks behind it off a line."""
    rest = line.removeprefix(mark)
    return rest.lstrip(" \t") if rest != line and rest[:1] in (" ", "\t") else line


def opening(text: str, prompt: str, layer: Row) -> int:
    """Count the characters of a layer at the beginning of a text."""
    if layer["kind"] == "lead":
        return len(layer["text"]) * text.startswith(layer["text"])
    if layer["kind"] == "echo":
        return repeated(text, prompt)
    found = re.match(_OPENS[layer["kind"]], text)
    return found.end() if found else 0


def repeated(text: str, prompt: str) -> int:
    """Count the characters at the beginning of a text that are the last words of its prompt."""
    words, spans = prompt.split(), [*re.finditer(r"\S+", text)]
    for n in range(min(len(words), len(spans)), 0, -1):
        is_long = n > 1 or len(words[-1].encode()) > 7
        if is_long and [span[0] for span in spans[:n]] == words[-n:]:
            return spans[n - 1].end()
    last = words[-1][-200:] if words else ""
    ends = (n for n in range(len(last), 0, -1) if text.startswith(last[-n:]))
    longest = 0 if last.isascii() else next(ends, 0)
    return longest if len(text[:longest].encode()) > 7 else 0


def words_of(text: str, rule: str) -> list[str]:
    if rule == "rouge":
        return re.findall("[a-z0-9]+", text.lower())
    if rule == "unicode" or (rule in ("script", "folded") and re.search(_UNSPACED, text)):
        raise UnknownError("words")
    if rule == "space":
        return [word for word in text.split(" ") if word]
    return fold(text).split() if rule == "folded" else text.split()


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]


def known(values: Numbers) -> Numbers:
    return values[~np.isnan(values)]


def mean(values: Iterable[float]) -> float:
    """Take the mean of what is known."""
    found = [each for each in values if not isnan(each)]
    return fsum(found) / len(found)


# Elsewhere


@cache
def counted(run: RunFiles) -> tuple[dict[str, str], set[str], int]:
    """Find the group of each text, the texts whose answers count, and 1 if not all do, else 0.

    Only nulls' count where they are compared with texts of unknown membership; in rounds those of
    the first one.
    """
    if run.settings["rarity_from"] is not None:
        raise UnknownError("rarity_from")
    (asked, nulls), rows = run.compared(), run.texts()
    groups = {row["target_id"]: row["cluster"] for row in rows}
    if run.settings["stop_when_decided"]:
        (n, *_), *_, order = rounds(run)
        first = {*groups} - {row["target_id"] for row in (*asked, *nulls)}
        chosen = (of[at] for side in windows(run) for of in side.values() for at in order[:n])
        return groups, first.union(chosen), 1
    if nulls and (nulls[0]["role"] == "non_member" or any(row["member"] is None for row in asked)):
        return groups, {row["target_id"] for row in nulls}, 1
    every = {row["target_id"] for row in rows if row["role"] != "yardstick"}
    apart = len({groups[each] for each in every}) == 1 or not nulls  # each text is a group
    return {each: each for each in groups} if apart else groups, every, 0


@cache
def place_of(ngram: tuple[str, ...]) -> int:
    """Find where a run counts an n-gram: in one of 2^22 places, which n-grams may share.

    They are the first bits of a hash: words by FNV-1a, mixed as in SplitMix64 (Steele et al. 2014).
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
    said, (groups, own, _) = defaultdict[str, set[int]](set), counted(run)
    for row in run.evidence("samples", model=model, view=view):
        if row["candidate"] is not None and row["target_id"] in own:
            words = words_of(row["candidate"], run.settings["word_rule"])
            places = (place_of(ngram) for n in (1, 2, 3) for ngram in ngrams(words, n))
            said[groups[row["target_id"]]].update(places)
    return Counter(each for of in said.values() for each in of), len(said)


def rarity(
    t: AuditedText, which: Ngrams, view: str = "probe", of: str = "target", n: int = 1
) -> float:
    """Weigh n-grams by ln(T / (1 + df)), Spärck Jones 1972: df of T other groups say them."""
    (df, total), (_, own, further) = groups_that_say(t.run, of, view), counted(t.run)

    def weight(ngram: tuple[str, ...]) -> float:  # the own group is the 1, where it is counted
        return log((total + further) / max(df[place_of(ngram)] + (t.id not in own), 1))

    answers = t.answers(view, of)
    return mean(share(fsum(map(weight, which(a, n))), len(a.true) - n + 1) for a in answers)


@cache
def next_tokens(run: RunFiles) -> tuple[dict[str, int], list[tuple[str, str, bool]]]:
    """Deal texts, by group, into 16 folds; list text, true token and hit of every answer."""
    groups, *_ = counted(run)
    first = {groups[target_id]: target_id for target_id in sorted(groups, reverse=True)}
    order = {target_id: at for at, target_id in enumerate(sorted(first.values()), 1)}
    rows = run.read("prompts", model="target", view="token")
    true = {(row["target_id"], row["view_index"]): row["text"] for row in rows}
    said = []
    for row in run.evidence("samples", model="target", view="token"):
        token = true[row["target_id"], row["view_index"]]
        if None not in (token, row["candidate"]):
            said.append((row["target_id"], token, row["candidate"] == token))
    return {target_id: order[first[of]] % 16 for target_id, of in groups.items()}, said


def hits_less_expected(t: AuditedText) -> float:
    """Hits, less the share of hits at the same true token in counted texts of other folds.

    It counts 30 answers about tokens as frequent in the run, up to a factor of two, besides its own
    (shrunk shares: Efron and Morris 1975).
    """
    (fold, said), (_, others, _) = next_tokens(t.run), counted(t.run)
    times = Counter(token for _, token, _ in said)
    n, hits = Counter[Any](), Counter[Any]()  # of a token, of those as frequent, and of all
    for target_id, token, is_hit in said:
        if target_id in others and fold[target_id] != fold[t.id]:
            n.update(keys := (token, times[token].bit_length(), None))
            hits.update(keys * is_hit)

    def expected(token: str) -> float:
        alike = times[token].bit_length()
        prior = (hits[alike] + hits[None] / n[None]) / (n[alike] + 1)
        return (hits[token] + 30 * prior) / (n[token] + 30)

    answers = t.answers("token") if n[None] >= 100 else []
    return mean((a.text == a.truth) - expected(a.truth) for a in answers)


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
    return lambda t, *n: mean(term(a, *n) for a in t.answers(view))


def summed_up(term: Formula) -> Formula:
    """Take the mean of a term over answers, or what the end of the name says."""
    by: Row = {"": mean, "_max": max, "_median": median, "_min": min}
    return lambda t, end: by[end]([term(a) for a in t.answers()])


def hit_rates(t: AuditedText) -> list[float]:
    """Smooth the share of hits at each point (Krichevsky and Trofimov 1981)."""
    hits = groupby(t.answers("probe"), key=lambda a: a.prompt)
    each = ([a.leading() != [] for a in of] for _, of in hits)
    return [(sum(of) + 0.5) / (len(of) + 1) for of in each]


def similarities(t: AuditedText, of: str = "target") -> dict[int, float]:
    """Log of the likeness of words, which is taken from the run's ``features``."""
    rows = t.run.read("features", target_id=t.id, model=of, view="probe", sample_index="0")
    found = {row["view_index"]: row["similarity"] for row in rows}
    return {a.prompt: log(max(found[a.prompt], 1e-16)) for a in t.answers("probe", of)}


def petal(t: AuditedText) -> float:
    """Likeness of words as log-probability, by a line from the other model."""
    own, base = similarities(t), similarities(t, "reference")
    first = {at: p[0] for at, p in t.each("probe", "reference").items() if at in base}
    x, y = [base[at] for at in first], [*first.values()]
    slope = linear_regression(x, y).slope if len({*x}) > 1 else 0.0
    return mean(y) + slope * (mean(own.values()) - mean(x))


def over_labels(pairs: Iterable[tuple[int, float]]) -> float:
    """Mean over the four labels of the mean over questions where it is right."""
    terms = [*pairs]
    return mean(mean(term for of, term in terms if of == each) for each in range(4))


def decop(t: AuditedText) -> float:
    """Share of answers that name the right label: in question k that of k modulo 4."""
    pairs = []
    for a in t.answers("choice"):  # an article that begins an answer is no label
        text = re.sub(r"^\W*A (?=(?!i)[^\W\d_A-Z]|i[^s])", "", a.text)
        labels = {*re.findall(r"\b[A-D]\b(?:['\u2019][^\W\d_])?", text)} & {*"ABCD"}
        pairs += [(a.prompt % 4, labels == {"ABCD"[a.prompt % 4]})] * (len(labels) == 1)
    return over_labels(pairs)


def chosen(t: AuditedText, kind: str) -> float:
    """Likewise from log-probabilities: the highest one, if calibrated less the label's mean."""
    rows = [row for row in t.rows("logprobs", "target", "choice") if row["logprob"]]
    label, p = [row["view_index"] % 4 for row in rows], np.array([row["logprob"] for row in rows])
    p = p if "log" in kind else np.exp(p) / np.exp(p).sum(axis=1, keepdims=True)
    if kind == "probability":
        return over_labels(zip(label, p[np.arange(len(p)), label], strict=True))
    means = [over_labels(zip(label, of, strict=True)) for of in p.T]
    highest = (p - np.multiply(means, "calibrated" in kind)).argmax(axis=1)
    return over_labels(zip(label, highest == label, strict=True))


# Tokens

_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1


def both(t: AuditedText, of: str = "reference") -> list[Numbers]:
    """Give each token's log-probability under two models; NaN where they cut the text otherwise."""
    own, other = (t.every(of=each) for each in ("target", of))
    tokens = (t.every("token_ids", of=each) for each in ("target", of))
    return [own, other] if np.array_equal(*tokens) else [own * nan] * 2


def difference(t: AuditedText, of: str) -> float:
    """Loss under another model that has the same tokens, less the target's."""
    own, other = map(mean, both(t, of))
    return own - other


def rate(t: AuditedText, of: str = "target") -> float:
    """Nats per byte; a token without a number counts as the mean of the others."""
    n_tokens, n_bytes = len(t.every(of=of)), len(str(t.target["target"]).encode())
    return t.average(of=of) * n_tokens / n_bytes


def lowest(percent: int, values: Numbers, weights: Numbers | float = 1) -> float:
    """Mean of the lowest values; each is weighed after they were chosen."""
    order = np.argsort(values, kind="stable")[: max(len(known(values)) * percent // 100, 1)]
    return mean((values * weights)[order])


def decay(values: Numbers) -> Numbers:
    """Weigh tokens by their places, from 1 to 1 / n."""
    return 1 - np.arange(len(values)) / len(values)


def standardised(t: AuditedText, of: str = "vocabulary_mean") -> Numbers:
    """Distances from the mean over the vocabulary, or the likeliest token, in its deviations."""
    variance = t("vocabulary_variance")
    return (t() - t(of)) / np.sqrt(np.where(variance > 0, variance, nan))


def gaps(t: AuditedText, n: int) -> Numbers:
    found = known(standardised(t, "top_logprob"))
    return runs(found, n).mean(axis=1) if len(found) >= n else found


def polarized(p: Numbers) -> float:
    """Mean of the highest 5 % of log-probabilities less that of the lowest 30 %."""
    return -lowest(5, -p) - lowest(30, p)


def differ(gains: Numbers) -> Numbers:
    """None where two models agree to 0.00001 nats on average, which is rounding."""
    return gains if abs(gains).sum() > 1e-5 * len(gains) else gains[:0]


def ez_mia(t: AuditedText) -> float:
    """P / (P + N), gains and losses on the reference model where the first guess is wrong."""
    gains, rank = np.subtract(*both(t)), t.every("rank")
    wrong = known(gains[rank > 1])
    if not len(wrong) and len(known(gains + rank)):
        return 1.0
    return float(np.maximum(differ(wrong), 0).sum() / abs(differ(wrong)).sum())


def wbc(t: AuditedText) -> float:
    """Share of windows, of ten lengths, whose gains sum to above 0."""
    gains = differ(known(np.subtract(*both(t))))
    lengths = (min(n, len(gains)) for n in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40) if len(gains))
    return mean(mean(runs(gains, n).sum(axis=1) > 0) for n in lengths)


def informia(t: AuditedText) -> float:
    """Mean of log p / q + KL(q || p) over tokens."""
    p, q = (np.minimum(each, _NEAR_1) for each in both(t))
    rest = np.expm1(q) * np.log(np.expm1(q) / np.expm1(p))
    return mean(np.subtract(*both(t)) + np.exp(q) * (q - p) - rest)


def aeca(t: AuditedText) -> float:
    """How far p log 1 / f jumps between tokens, less how far log p varies."""
    v = known(np.exp(t()) * t("log_inverse_frequency"))
    return float(pstdev(v - np.append(v[1:], 0.0)) - pstdev(t()))


def dc_pdd(t: AuditedText) -> float:
    """Mean of p log 1 / f, at most 0.01, where a token comes first."""
    v = np.minimum(0.01, np.exp(t()) * t("log_inverse_frequency"))
    return mean(dict(zip(known(t("token_ids"))[::-1], v[::-1], strict=True)).values())


VIEWS = {"semantic": "paraphrase", "embedding": "noise", "released": "perturbation"}


def peak(t: AuditedText, kind: str, of: str = "target") -> float:
    """Take p = exp(average) of a text less its mean over others, in pairs over whole ones."""
    p = {at: exp(mean(each)) for at, each in t.each(VIEWS.get(kind, kind), of).items()}
    alone = kind in ("neighbour", "released")
    return exp(t.average(of=of)) - mean(p[at] for at in p if alone or at ^ 1 in p)


def phi(logprob: Numbers) -> Numbers:
    """Log p / (1 - p)."""
    return np.minimum(logprob, _NEAR_1) - np.log(-np.expm1(np.minimum(logprob, _NEAR_1)))


def shadows(t: AuditedText, *kinds: str) -> list[float]:
    """Give averages under shadow models tuned on the text (in), or not (out); none if one has."""
    each = [t.averages("text", "shadow", trained=kind == "in") for kind in kinds]
    return [average for of in each for average in of] if all(each) else []


def above(t: AuditedText, kind: str) -> float:
    return float(phi(t.average())) - mean(phi(shadows(t, kind)))


def density(t: AuditedText, kind: str) -> float:
    """Log of a normal density that is fitted to phi of shadow models, but for a constant."""
    variance: float = pvariance(phi(shadows(t, kind)))
    return -(above(t, kind) ** 2 / variance + log(variance)) / 2


def log_p(t: AuditedText, kept: str) -> float:
    """Log-probability of the text to be extracted, or that among what decoding keeps."""
    mass = t.every("support_mass", "extraction") if kept else 0
    found = t.every("logprob", "extraction") - mass
    return float(np.minimum(0.0, found.sum())) / (len(found) > 0)


def needed(log_p: float, percent: int) -> float:
    """Minus the log of the samples that have a text among them with this chance, at least 1."""
    hazard = log_p if log_p < -30 else inf if log_p == 0 else np.log(-np.log1p(-np.exp(log_p)))
    return float(np.minimum(0, hazard - log(-log(1 - percent / 100))))


def longest(ranks: Numbers) -> int:
    """Most tokens in a row that are the likeliest ones; an error where no rank is known."""
    return max(int(hit) * len([*of]) for hit, of in groupby(ranks == 1) if len(known(ranks)))


def from_end(logprobs: Numbers, percent: int) -> float:
    """Minus the share of tokens that hold, from the end, at most a share of losses below 1."""
    so_far = np.cumsum(logprobs[::-1] > -1)
    return -mean(each * 100 <= percent * so_far[-1] for each in so_far if so_far[-1])


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
    phis = []
    for every in (runs(values, n) for n in (m, m + 1) if len(values) > m + 1):
        near = (abs(every[:, None] - every) <= r * np.std(values)).all(axis=2)
        phis.append(mean(np.log(near.mean(axis=1))))
    return abs(max(phis) - min(phis))


# Attacks: a higher score means more likely a member. A name has one of what stands in {...}, which
# its formula is given; n-grams of one word are not named.

ROUGE: dict[str, Formula] = {
    # Lin 2004: recall, precision and F1 of n-grams
    "": lambda a, n: share(a.n_common(n), len(a.true) - n + 1),
    "_precision": lambda a, n: share(a.n_common(n), len(a.said) - n + 1),
    "_f1": lambda a, n: share(2 * a.n_common(n), len(a.said) + len(a.true) - 2 * n + 2),
}
SPANS: dict[str, Formula] = {
    # Hallinan et al. 2025 (arXiv:2508.09603); near_verbatim: Ahmed et al. 2026 (arXiv:2601.02671)
    "ngram_coverage": lambda a: share(a.covered(), len(a.said)),
    "ngram_coverage_reference": lambda a: share(a.covered(), a.longer()),
    "ngram_coverage_total": lambda a: share(2 * a.covered(), len(a.said) + a.longer()),
    "creativity": lambda a: share(sum(map(a.covered, range(2, 13))), len(a.said)),
    "longest_block": lambda a: max(a.blocks()),
    "longest_block_chars": lambda a: max(a.blocks(letters=True)),
    "longest_block_share": lambda a: share(max(a.blocks()), len(a.true)),
    "near_verbatim": lambda a: share(sum(n for n in a.blocks() if n >= 8), len(a.true)),
}
TABLE: dict[str, Formula] = {
    # SaMIA: Kaneko et al. 2024 (arXiv:2404.11262v2), equations 1 and 5 (recall), 9 (precision), and
    # 7 (times the compressed size), with the denominators of the authors' code, or ROUGE's
    "samia_n{1,2,3,4,5}": over(lambda a, n: share(len(a.common(n)), len(a.true))),
    "samia_precision_n{1,2,3,4,5}": over(lambda a, n: share(len(a.common(n)), len(a.said))),
    "samia_zlib_n{1,2,3,4,5}": over(
        lambda a, n: share(len(a.common(n)), len(a.true)) * zlib_size(a.said)
    ),
    "samia_plus_zlib": over(lambda a: share(len(a.common()), len(a.true)) + zlib_size(a.said)),
    "samia_matched{,_precision}_n{1,2,3,4,5}": over(lambda a, of, n: ROUGE[of](a.cut(), n)),
    "samia_matched_zlib_n{1,2,3,4,5}": over(
        lambda a, n: ROUGE[""](a.cut(), n) * zlib_size(a.cut().said)
    ),
    "samia_matched_rarity_n{1,2}": lambda t, n: rarity(
        t, AnsweredPrompt.cut_common, "continuation", n=n
    ),
    "rouge_{1,2,3,4,5}{,_precision,_f1}": over(lambda a, n, of: ROUGE[of](a, n)),
    "rouge_l": over(lambda a: share(a.in_order(), len(a.true))),
    "rouge_l_precision": over(lambda a: share(a.in_order(), len(a.said))),
    "rouge_l_f1": over(lambda a: share(2 * a.in_order(), len(a.said) + len(a.true))),
    **{f"{name}{{,_max,_median,_min}}": summed_up(term) for name, term in SPANS.items()},
    # He et al. 2025 (PETAL, USENIX Security); Lan et al. 2026; DE-COP: Duarte et al. 2024
    # (arXiv:2402.09910), which of four passages is verbatim
    "token_hits": over(lambda a: a.text == a.truth, "token"),
    "token_hits_less_expected": hits_less_expected,
    "probe_first_word": over(lambda a: a.leading() != [], "probe"),
    "probe_leading": over(lambda a: share(len(a.leading()), len(a.true)), "probe"),
    "probe_leading_rarity": lambda t: rarity(t, AnsweredPrompt.leading),
    "probe_recall_rarity": lambda t: rarity(t, AnsweredPrompt.cut_common),
    "probe_rarity_difference": lambda t: (
        rarity(t, AnsweredPrompt.leading) - rarity(t, AnsweredPrompt.leading, of="reference")
    ),
    "probe_rarity_loss": lambda t: rarity(t, AnsweredPrompt.leading) + t.average(),
    "probe_logprob": lambda t: mean(map(log, hit_rates(t))),
    "petal": petal,
    "petal_similarity": lambda t: mean(similarities(t).values()),
    "masked_hits": over(lambda a: a.truth in a.text, "cloze"),
    "decop": decop,
    "decop_{logprob,log_calibrated,calibrated,probability}": chosen,
    # Yeom et al. 2018 (arXiv:1709.01604); Carlini et al. 2021 (arXiv:2012.07805), sections 4.2, 5.2
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
    # Min-K%, Shi et al. 2024 (arXiv:2310.16789), equation 1; Min-K%++, Zhang et al. 2025
    # (arXiv:2404.02936); PDR, Liu et al. 2026 (arXiv:2601.06827); Gap-K%, Kwak and Kim 2026
    # (arXiv:2601.19936)
    "min_k_{5,10,20,30,40,50,60}": lambda t, percent: lowest(percent, t()),
    "min_k_plus_plus_{5,10,20,30,40,50,60}": lambda t, k: lowest(k, standardised(t)),
    "pdr_loss": lambda t: mean(t() * decay(t())),
    "pdr_min_k_20": lambda t: lowest(20, t(), decay(t())),
    "pdr_min_k_plus_plus_20": lambda t: lowest(20, standardised(t), decay(t())),
    "gap_k_20{,_window_6}": lambda t, window: lowest(20, gaps(t, 6 if window else 3)),
    # Ilić et al. 2026 (arXiv:2601.12104); Chen et al. 2026 (arXiv:2601.02751), algorithm 1; Tao and
    # Shokri 2025 (arXiv:2510.05582); AECA, ICML 2026; Zhang et al. 2024 (arXiv:2409.14781)
    "ez_mia": ez_mia,
    "wbc": wbc,
    "informia": informia,
    "aeca": aeca,
    "dc_pdd": dc_pdd,
    # PAC, Ye et al. 2024 (arXiv:2405.11930); Mattern et al. 2023 (arXiv:2305.18462); Mitchell et
    # al. 2023 (arXiv:2301.11305); Gehrmann et al. 2019 (arXiv:1906.04043); Zhang and Wu 2024
    "pac": lambda t: mean(map(polarized, t.each("swapped").values())) - polarized(t()),
    "neighbour_difference": lambda t: t.average() - mean(t.averages("neighbour")),
    "neighbour_ratio": lambda t: -t.average() / mean(t.averages("neighbour")),
    "detect_gpt": lambda t: (
        (t.average() - mean(t.averages("perturbation"))) / stdev(t.averages("perturbation"))
    ),
    "rank": lambda t: -mean(t("rank")),
    "log_rank": lambda t: -mean(np.log(t("rank"))),
    "top_1_share": lambda t: mean(known(t("rank")) == 1),
    "entropy": lambda t: mean(t("vocabulary_mean")),
    "surprising_20": lambda t: lowest(20, t(), np.where(-t("vocabulary_mean") < 2, 1, nan)),
    # SPV-MIA, Fu et al. 2024 (arXiv:2311.06062), equations 5, 10 and 11
    "spv_{semantic,embedding,neighbour,released}": lambda t, kind: (
        peak(t, kind) - peak(t, kind, "self_prompt")
    ),
    "spv_{semantic,embedding,neighbour}_uncalibrated": peak,
    # LiRA, Carlini et al. 2022 (arXiv:2112.03570), algorithm 1: phi among that of shadow models;
    # RMIA, Zarifzadeh et al. 2024 (arXiv:2312.03262): p / p(x), its mean over shadow models
    "lira_online": lambda t: density(t, "in") - density(t, "out"),
    "lira_online_fixed": lambda t: above(t, "out") ** 2 - above(t, "in") ** 2,
    "lira_offline": lambda t: above(t, "out") / pstdev(phi(shadows(t, "out"))),
    "lira_offline_fixed": lambda t: above(t, "out"),
    "rmia": lambda t: exp(t.average()) / mean(np.exp(shadows(t, "in", "out"))),
    "rmia_offline": lambda t: exp(t.average()) / mean(np.exp(shadows(t, "out"))),
    # Hayes et al. 2025 (arXiv:2410.19482); Carlini et al. 2023 (arXiv:2202.07646), definition 3.1
    "extraction{,_top_k}": log_p,
    "extraction{,_top_k}_n_{50,90,99}": lambda t, kept, percent: needed(log_p(t, kept), percent),
    "extraction_greedy": lambda t: 1 - np.sign(t.every("rank", "extraction").max() - 1),
    "extraction_run": lambda t: longest(t.every("rank")),
    "extraction_best_50": lambda t: min(0.0, max(known(runs(t.every(), 50).sum(axis=1)))),
    # Xie et al. 2024 (arXiv:2406.15968); Wang et al. 2024 (arXiv:2409.03363), gamma = 0.5; Zawalski
    # et al. 2025 (arXiv:2510.27055)
    "recall_prefix": lambda t: t.average("nonmember_shots") / t.average(),
    "con_recall_prefix": lambda t: (
        (t.average("nonmember_shots") - 0.5 * t.average("member_shots")) / t.average()
    ),
    "codec": lambda t: t.average("nonmember_shots") < t.average(),
    "probe_loss": lambda t: t.average("probe"),
    "probe_min_k_20": lambda t: lowest(20, t(view="probe")),
    "probe_centred": lambda t: mean(t(view="probe") - t("vocabulary_mean", view="probe")),
    # CAMIA: Chang et al. 2024 (arXiv:2409.13745), signals of the series of log-probabilities
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
        t.average() * len(known(t("token_ids"))) / len({*known(t("token_ids")).tolist()})
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
    formula, numbers = SCORES[attack.removesuffix("_v1")]
    try:
        with np.errstate(all="ignore"):
            value = float(formula(t, *numbers))
    except (ArithmeticError, ValueError):
        return None
    return value if isfinite(value) else None


def score(run: RunFiles, attack: str, row: Row) -> Row:
    """Score one text: None where nothing, or less than half of what is read, is there."""
    t = AuditedText(run, row["key"])
    value, read = value_of(t, attack), [row for rows in t.seen.values() for row in rows]
    there = [row["reason"] is None or row.get("n_bytes", 0) is None for row in read]
    return {"score": value if 2 * sum(there) >= len(there) else None}


# Tests


def lot(name: str, seed: int | None) -> float:
    """Draw a number in [0, 1) for a name; 0 without a seed."""
    drawn = blake2b(f"{seed}:{name}".encode(), digest_size=8, person=b"mia-ties").digest()
    return 0 if seed is None else (int.from_bytes(drawn, "big") >> 11) / 2**53


def p_value(own: Numbers, nulls: Iterable[tuple[Numbers, float]], weight: float = 1) -> float:
    """Conformal p-value among nulls and their weights: Vovk, Gammerman and Shafer 2005, 2.2.

    Sums have 9 digits. Weights are 1 / size where nulls share groups: Lee, Barber and Willett
    (arXiv:2306.06342); or odds of being audited: Tibshirani et al. 2019 (arXiv:1904.06019), eq. 7.
    """
    pairs = [*nulls]
    above = fsum(w for null, w in pairs if null >= own)
    return (weight + round(above, 9)) / (weight + round(fsum(w for _, w in pairs), 9))


def q_values(p: Iterable[float | None], adjustment: str) -> list[float]:
    """Benjamini and Hochberg 1995; ``by``: Benjamini and Yekutieli 2001, theorem 1.3."""
    given = [1.0 if each is None else each for each in p]
    method: Any = "by" if adjustment == "by" else "bh"
    return [*map(float, false_discovery_control(given, method=method))]


def listed(tests: list[Any], n: int, total: float, q: float, draw: float) -> list[float]:
    """Lowest level at which each of n tests is listed: Jin and Candes 2023 (arXiv:2307.09291).

    Algorithm 1, pruned by one draw; a test is score, p-value and weight, and nulls weigh ``total``.
    """
    lines, made = [], [1.0] * len(tests)  # a line: p-values of the others, were it one more null
    for at, (own, _, weight) in enumerate(tests):
        of = [p * (w + total) - w + weight * (each <= own) for each, p, w in tests]
        lines.append(sorted([0.0, *(each / (weight + total) for each in of[:at] + of[at + 1 :])]))
    for level in sorted({q, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5}, reverse=True):
        order = []
        for line, (_, p, _) in zip(lines, tests, strict=True):
            size = max(r for r, each in enumerate(line, 1) if each <= level * r / n + 1e-12)
            order.append(draw * size if p <= level * size / n + 1e-12 else inf)
        most = max(r for r in range(len(order) + 1) if sum(each <= r for each in order) >= r)
        for at, each in enumerate(order):
            made[at] = level if each <= most and (level >= q or made[at] <= q) else made[at]
    return made


@cache
def windows(run: RunFiles, *, grouped: bool = True) -> list[dict[str, list[str]]]:
    """Choose as many windows of each group, asked and null, or of each text: the text itself.

    One of each stretch of a group is drawn, at like places.
    """
    sides = [defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)]
    for side, texts in zip(sides, run.compared(), strict=True):
        for text in texts:
            side[text["cluster" if grouped else "target_id"]].append(text["target_id"])
    sizes = sorted(len(of) for side in sides for of in side.values())
    n = (run.settings["windows_per_group"] if grouped else 1) or sizes[int(0.1 * (len(sizes) - 1))]
    places = np.random.default_rng(run.settings["seed"]).random(n).tolist()

    def chosen(of: list[str]) -> list[str]:
        ends = pairwise(number * len(of) // n for number in range(n + 1))
        pairs = zip(places, ends, strict=True)
        return [of[start + int(place * (end - start))] for place, (start, end) in pairs]

    return [{at: chosen(of) for at, of in sorted(side.items()) if len(of) >= n} for side in sides]


@cache
def units(
    run: RunFiles, attack: str, *, grouped: bool, numbers: Sequence[int] = ()
) -> list[Scored]:
    """Score what is compared, asked and null: texts, or groups by their windows, or these of them.

    Scores have 12 digits; one that is missing is the lowest of those asked, the highest of nulls.
    """
    by: Any = {"mean": np.mean, "median": np.median, "maximum": max}[run.settings["statistic"]]
    made, scores = [], run.scores(attack)
    for side, missing in zip(windows(run, grouped=grouped), (-inf, inf), strict=True):
        chosen = [[of[at] for at in numbers] or of for of in side.values()]
        values = [[scores[each] for each in of] for of in chosen]
        summed = [missing if None in of else float(f"{by(of):.12g}") for of in values]
        made.append(dict(zip(side, summed, strict=True)))
    return made


def named(row: Row, names: Iterable[str]) -> str:
    """Find what a verdict is about: a group, a document by its identifier or first text, a text."""
    key = row["key"]
    return next(each for each in (f"{row['level']} {key}", f"target {key}", key) if each in names)


def fitted(x: Numbers, label: Numbers, asked: Numbers) -> Numbers:
    """Odds by logistic regression, half of the slopes' squares added to its loss, by Newton."""
    x, asked = (np.column_stack([np.ones(len(each)), each]) for each in (x, asked))
    beta, drop, pull = np.zeros(x.shape[1]), inf, np.arange(x.shape[1]) > 0
    while True:
        p = 1 / (1 + np.exp(-x @ beta))
        slope = x.T @ (p - label) + pull * beta
        if max(abs(slope).max() / len(x), drop) <= 1e-4:  # where scikit-learn ends, too
            return np.exp(asked @ beta)
        step = np.linalg.solve((x.T * (p * (1 - p))) @ x + np.diag(pull), slope)
        beta, drop = beta - step, step @ slope / 2 / len(x)


@cache
def odds(run: RunFiles, *, grouped: bool) -> list[Scored]:
    """Odds of asked texts, or groups, and of nulls, of being audited by what is known without it.

    From normal scores of blind classifiers' ranks, of a group their means, in 5 folds of clusters.
    """
    seen, kinds = defaultdict[Any, list[Any]](list), defaultdict[str, set[bool]](set)
    rows = {row["target_id"]: row.items() for row in run.read("blind")}
    for texts, is_asked in zip(run.compared(), (True, False), strict=True):
        for text in texts:
            ranks = [rank for name, rank in rows.get(text["target_id"], ()) if "targets_" in name]
            if ranks and None not in ranks:
                name = text["cluster"] if grouped else text["target_id"]
                seen[text["cluster"], is_asked, name].append([*map(NormalDist().inv_cdf, ranks)])
    keys = sorted(seen) if grouped else [*seen]
    x = np.array([np.mean(seen[key], axis=0) for key in keys])
    x, label = x / np.maximum(x.std(axis=0), 1e-9), np.array([is_asked for _, is_asked, _ in keys])
    for cluster, is_asked, _ in keys:
        kinds[cluster].add(is_asked)
    draws = np.random.default_rng(run.settings["seed"]).random(len(kinds)).tolist()
    # Clusters of nulls alone are dealt to folds first, then mixed ones, then those asked about.
    turns = [(any(of) + all(of), draw) for of, draw in zip(kinds.values(), draws, strict=True)]
    fold_of = {name: at % 5 for at, (_, name) in enumerate(sorted(zip(turns, kinds, strict=True)))}
    fold, found = np.array([fold_of[cluster] for cluster, *_ in keys]), np.empty(len(keys))
    for own in (fold == each for each in range(5)):
        found[own] = fitted(x[~own], label[~own], x[own])
    made = [*zip(keys, (found / found[~label].mean()).tolist(), strict=True)]  # of nulls 1
    return [{name: odd for (_, of, name), odd in made if of == side} for side in (True, False)]


def conformal(run: RunFiles, attack: str, row: Row) -> Row:
    """Compare a text, or a group, with nulls, or with those of its length bucket."""
    settings, grouped, texts = run.settings, row["level"] != "target", run.texts()
    asked, nulls = units(run, attack, grouped=grouped)
    own, weights = dict.fromkeys(asked, 1.0), dict.fromkeys(nulls, 1.0)
    if is_weighted := row["method"].startswith("weighted"):
        own, weights = odds(run, grouped=grouped)
    key, like = named(row, asked), [name for name in nulls if name in weights]
    if not grouped:
        of, edges = {text["target_id"]: text for text in texts}, settings["length_edges"] or ()
        lengths = {name: of[name]["n_words"] for name in (key, *like)}
        bucket = {name: n if n is None else bisect(edges, n) for name, n in lengths.items()}
        like = [name for name in like if not edges or bucket[name] in (None, bucket[key])]
        sizes = Counter(of[name]["cluster"] for name in like)
        weights = {name: weights[name] / sizes[of[name]["cluster"]] for name in like}
    seed = settings["seed"] if settings["ties"] == "random" and not is_weighted else None
    others = [((nulls[name], lot(name, seed)), weights[name]) for name in like]
    mine = asked[key], lot(f"{row['level']} {row['key']}" if grouped else key, seed)
    found = {"score": asked[key], "p_value": p_value(mine, others, own[key])}
    if row["adjustment"] == "wcs":
        names = [each["key"] for each in row["family"]]
        known = [each for each in row["family"] if each["p_value"] is not None]
        tests = [(each["score"], each["p_value"], own[named(each, asked)]) for each in known]
        lots = "\n".join(names if grouped else [text["target_id"] for text in texts])
        total, draw = fsum(weight for _, weight in others), lot(lots, settings["seed"])
        q = listed(tests, len(names), total, settings["q"], draw)
        found["q_value"] = q[[each["key"] for each in known].index(row["key"])]
    return found


def author_names(said: str) -> set[str]:
    """Split a line of authors; names are alike if they have the same words, in any order.

    Years of a life, behind a comma or in brackets, are no words of a name.
    """
    names, dated = set(), re.compile("[,(] *[0-9]{3,4}[?]? *[-\u2013] *([0-9]{3,4}[?]?)?")
    for name in re.split(r"[;&|\n]| and | und | et ", dated.sub(" ", said.casefold())):
        letters = [c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c)]
        words = "".join(c if c.isalnum() else " " for c in letters).split()
        names.add(" ".join(sorted(words)))
    return names - NO_AUTHOR


@cache
def author_of_clusters(run: RunFiles) -> dict[str, str]:
    """Name the author of each cluster by the first cluster, in order, that is linked to it."""
    clusters_of_name = defaultdict[str, set[str]](set)
    names_of_cluster = defaultdict[str, set[str]](set)
    author_of_text = {
        row["target_id"]: row["author"] or "" for row in run.read("scores", "target_id", "author")
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
            alike = [clusters_of_name[name] for name in names_of_cluster[cluster]]
            waiting += [other for other in set().union(*alike) if other not in author]
    return author


def of_authors(run: RunFiles, attack: str) -> list[Scored]:
    """Score authors: each by as many of its books as nine in ten authors have."""
    by: Any = {"mean": np.mean, "median": np.median, "maximum": max}[run.settings["statistic"]]
    author, scores, shelves = author_of_clusters(run), run.scores(attack), list[Any]()
    for side in windows(run):
        shelf = defaultdict[str, list[list[str]]](list)
        for cluster, chosen in side.items():
            shelf[author.get(cluster, "")].append(chosen)
        shelves.append({name: shelf[name] for name in sorted(shelf) if name})
    sizes = sorted(len(books) for shelf in shelves for books in shelf.values())
    n = sizes[int(0.1 * (len(sizes) - 1))]
    places = np.random.default_rng(run.settings["seed"]).random(n).tolist()
    made = list[Scored]()
    for shelf, missing in zip(shelves, (-inf, inf), strict=True):
        values: Scored = {}
        for name, books in shelf.items():
            if len(books) >= n:
                ends = [number * len(books) // n for number in range(n + 1)]
                pairs = zip(places, pairwise(ends), strict=True)
                drawn = [books[start + int(at * (end - start))] for at, (start, end) in pairs]
                of = [scores[text] for book in drawn for text in book]
                values[name] = missing if None in of else float(f"{by(of):.12g}")
        made.append(values)
    return made


def collection(run: RunFiles, attack: str, row: Row) -> Row:
    """Mean rank of asked groups, and the share of ways to name them with as high a sum of ranks.

    Pitman 1937; where there are too many ways they are drawn: Phipson and Smyth 2010; or drawn
    with the product of odds: Berrett et al. 2020, after Chen, Dempster and Liu 1994.
    """
    asked, nulls = units(run, attack, grouped=True)
    if row["method"].startswith("authors_"):
        asked, nulls = of_authors(run, attack)
    ranks = rankdata([*asked.values(), *nulls.values()])
    n, size, rng = len(asked), len(ranks), np.random.default_rng(run.settings["seed"])
    least, n_drawn = ranks[:n].sum(), 9_999 if size < 10_000 else 999
    if "exact" in row["method"]:
        sums = [sum(each) for each in combinations(ranks.tolist(), n)]
    elif "odds" in row["method"]:
        own, weights = odds(run, grouped=True)
        of = np.log([own[name] for name in asked] + [weights[name] for name in nulls])
        ways = np.full((size + 1, n + 1), -inf)  # log sum of products of k of those from i on
        ways[:, 0] = 0
        for i in reversed(range(size)):
            ways[i, 1:] = np.logaddexp(ways[i + 1, 1:], of[i] + ways[i + 1, :-1])
        left, found = np.full(n_drawn, n), np.zeros(n_drawn)
        for i in range(size):
            chance = np.exp(of[i] + ways[i + 1, left - 1] - ways[i, left])
            takes = (left > 0) & (rng.random(n_drawn) < chance)
            left, found = left - takes, found + takes * ranks[i]
        sums = [least, *found]
    else:
        drawn = (rng.permuted(np.arange(size))[:n] for _ in range(n_drawn))
        sums = [least, *(ranks[each].sum() for each in drawn)]
    return {"score": least / n, "p_value": mean(each >= least for each in sums)}


@cache
def rounds(run: RunFiles) -> tuple[Any, ...]:
    """Plan rounds: windows and null groups in each, its share, e-values of ranks, the order.

    E-values of rank r are proportional to 1 / r up to the square root of q (nulls + 1).
    """
    nulls, q, rng = windows(run)[1], run.settings["q"], np.random.default_rng(run.settings["seed"])
    n, n_null = len(next(iter(nulls.values()))), len(nulls)
    ends = sorted({max(1, round(each * n)) for each in (0.125, 0.25, 0.5, 1)})
    top = max(1, isqrt(int(round(q * (n_null + 1), 9))))
    e_values = [(n_null + 1) / r / sum(1 / k for k in range(1, top + 1)) for r in range(1, top + 1)]
    kept = [max(min(n_null, top), n_null >> at) for at in range(len(ends))]
    early = 2 / q / e_values[0]  # it accepts the first rank where half of all are listed
    n_early = min(int(0.5 / early), len(ends) - 1)
    shares = [0.0] * (len(ends) - 1 - n_early) + [early] * n_early + [1 - early * n_early]
    return ends, kept, shares, e_values + [0.0] * (n_null + 1 - top), rng.permutation(n).tolist()


def in_rounds(run: RunFiles, attack: str, row: Row) -> Row:
    """Sum, over rounds, shares times the e-value of a group's rank among nulls still asked.

    Conformal e-values: Bashari et al. 2023 (arXiv:2302.07294); halving: Karnin et al. 2013.
    """
    (ends, kept, shares, of_rank, order), (asked, nulls) = rounds(run), windows(run)
    e, left = dict.fromkeys([text["cluster"] for text in run.compared()[0]], 0.0), [*nulls]
    going = {*e} & {*asked}

    def accepted(values: Iterable[float]) -> set[str]:
        level, q = run.settings["q"], q_values([1 / max(each, 1) for each in values], "bh")
        return {name for name, each in zip(e, q, strict=True) if round(each, 12) <= level}

    for at, end in enumerate(ends):
        own, of = units(run, attack, grouped=True, numbers=(*order[:end],))
        left = sorted(left, key=lambda null: -of[null])
        n_next, to_come = [*kept, 0][at + 1], of_rank[0] * sum(shares[at + 1 :])
        for name in [*going]:
            higher = sum(of[null] >= own[name] for null in left)
            e[name] += shares[at] * of_rank[higher]
            going -= {name} if higher >= n_next else set()
        left = left[:n_next]
        going &= accepted(e[name] + to_come * (name in going) for name in e)  # in reach
        going -= accepted(e.values())
    return {"score": e[named(row, e)], "p_value": 1 / max(e[named(row, e)], 1)}


def canaries(run: RunFiles, attack: str, row: Row) -> Row:
    """Rank published texts among their controls, and all by aligned ranks: Hodges, Lehmann 1962."""
    sets = defaultdict[str, list[float | None]](list)
    for text in sorted(run.texts(), key=lambda text: text["member"] is False):
        if text["role"] == "canary":
            sets[text["cluster"]].append(run.scores(attack)[text["target_id"]])
    if row["level"] == "group":
        scores = sets[f"group {row['key']}"]
        own, *controls = [inf if each is None else float(f"{each:.12g}") for each in scores]
        return {"score": own, "p_value": p_value(own, [(control, 1) for control in controls])}
    values = list[float]()
    for of in sets.values():
        middle = mean([each for each in of if each is not None] or [0.0])
        missing = [-inf, *[inf] * len(of)]  # of the published text and of its controls
        pairs = zip(of, missing, strict=False)
        values += [at if each is None else round(each - middle, 9) for each, at in pairs]
    ranks = iter(rankdata(values).tolist())
    aligned = [[next(ranks) for _ in of] for of in sets.values()]
    step = max(1.0, 2 * sum(map(max, aligned)) / 2**16)  # coarser where there are too many sums
    chances: Numbers
    chances, observed = np.ones(1), 0
    for each in aligned:
        whole = [int(2 * rank / step) for rank in each]
        steps = np.bincount([rank - min(whole) for rank in whole]) / len(whole)
        chances, observed = np.convolve(chances, steps), observed + whole[0] - min(whole)
    return {"p_value": min(1.0, float(chances[observed:].sum()))}


def answer(run: RunFiles, attack: str, row: Row) -> Row:
    """Recompute score, p-value and q-value of a verdict."""
    if attack in WHY_NOT and attack not in run.asked["attacks"]:
        raise UnknownError(attack)
    of = conformal if row["level"] != "collection" else collection
    of = canaries if row["versus"] == "controls" else of
    of = in_rounds if row["adjustment"] == "e-bh" else of
    found = of(run, attack, row)
    if row["adjustment"] in ("bh", "by", "e-bh"):
        q = q_values([each["p_value"] for each in row["family"]], row["adjustment"])
        found["q_value"] = q[[each["key"] for each in row["family"]].index(row["key"])]
    return found


# Figures


def figure(run: RunFiles, attack: str, row: Row) -> Row:
    """AUC (ties one half), or the TPR where at most a share of the non-members scores as high."""
    texts = [text for text in run.texts() if text["role"] in ("target", "non_member")]
    pairs = [(text["member"], run.scores(attack)[text["target_id"]]) for text in texts]
    scored = [(member, each) for member, each in pairs if each is not None]
    ins, outs = (sorted(each for of, each in scored if of is one) for one in (True, False))
    if row["metric"] == "roc_auc":
        ranks = rankdata(ins + outs)[: len(ins)]
        return {"value": (ranks.mean() - (len(ins) + 1) / 2) / len(outs)}
    spared = sum(n / len(outs) <= row["fpr"] for n in range(1, len(outs) + 1))
    return {"value": mean(each > [-inf, *outs][-1 - spared] for each in ins)}


def root(run: RunFiles) -> str:
    """Hash the lines that ``sha256sum`` prints of tables and inputs; of these the known hashes."""
    custody, inputs = run.manifest["custody"], run.manifest["inputs"].items()
    found = {f"{of}/{name}": known for of, files in inputs for name, known in files.items()}
    for name in custody["tables"]:
        found[name] = sha256((run.folder / name).read_bytes()).hexdigest()
    lines = "".join(f"{found[name]}  {name}\n" for name in sorted(found))
    return sha256(lines.encode()).hexdigest()


def claims(run: RunFiles, attack: str) -> Iterable[tuple[Callable[..., Row], list[Row]]]:
    """List what a run says of an attack, by kind: scores, tests with a p-value, AUC and TPR."""
    if attack.removesuffix("_v1") in SCORES:
        own = [row["target_id"] for row in run.texts() if row["role"] != "yardstick"]
        scores = run.scores(attack)
        yield score, [{"level": "text", "key": key, "score": scores[key]} for key in own]
    families = defaultdict[Any, list[Row]](list)
    for row in run.read("verdicts", attack=attack):
        level = row["level"].replace("document", "group")
        families[row["versus"], level].extend([row] if row["estimate"] is None else [])
    for rows in families.values():
        yield answer, [row | {"family": rows} for row in rows if row["p_value"] is not None]
    for metric in ("roc_auc", "tpr_at_fpr"):
        rows = run.read("metrics", attack=attack, slice="all", metric=metric)
        labelled = [row | {"level": metric, "key": row["fpr"] or "labelled texts"} for row in rows]
        yield figure, [row for row in labelled if None not in (row["value"], row["n_members"])]


def compare(folder: Path | str, n: int, seed: int = 0) -> tuple[list[str], bool]:
    """Recompute the root and n drawn rows; say what was found, and whether all are equal.

    Attacks and kinds take turns, in an order that the seed decides.
    """
    run, dice, apart = RunFiles(folder), random.Random(seed), list[float]()
    attacks = run.asked["attacks"]
    unknown = [name for name in attacks if name.removesuffix("_v1") not in SCORES]
    lines = [f"not recomputed: {name} ({WHY_NOT.get(name, WHY_NOT['own'])})" for name in unknown]
    notes = ["similarity", "others"] if any("petal" in name for name in attacks) else ["others"]
    lines += [f"not recomputed: {WHY_NOT[note]}" for note in notes]
    names = [*attacks, "dataset_inference_v1"]
    kinds = [(name, of, rows) for name in names for of, rows in claims(run, name)]
    queues = [
        [(name, of, row) for row in dice.sample(rows, min(n, len(rows)))]
        for name, of, rows in dice.sample(kinds, len(kinds))
    ]
    for attack, of, row in (each for turn in zip_longest(*queues) for each in turn if each):
        if len(apart) == n:
            break
        what = f"{attack} of {row['level']} {row['key']}"
        try:
            found = of(run, attack, row)
        except UnknownError as error:
            lines.append(f"not recomputed: {what} ({WHY_NOT[str(error)]})")
            continue
        far = {name: distance(row[name], value) for name, value in found.items()}
        apart.append(max(far.values()))
        wrong = [name for name, each in far.items() if each > _SAME]
        lines += [f"{what}: {name} is {row[name]} in the run, {found[name]} here" for name in wrong]
    equal = [each for each in apart if each <= _SAME]
    sealed = root(run) == run.manifest["custody"]["root"]
    largest = f"largest relative difference {max(equal, default=0):.1g}"
    lines.append(f"the root is {'equal' if sealed else 'ANOTHER'}")
    lines.append(f"{len(equal)} of {len(apart)} drawn rows are equal ({largest})")
    return lines, sealed and len(equal) == len(apart) > 0


def distance(one: float | None, other: float | None) -> float:
    """Relative difference, of numbers near 0 to 0.001; a number and none are far apart."""
    if one is None or other is None:
        return 0.0 if one is other else inf
    return abs(one - other) / max(abs(one), abs(other), 1e-3)
