"""A second implementation: the numbers of a run, recomputed from its files, to be read in an hour.

For readers who trust neither this package nor its authors: nothing of it is imported. Polars opens
Parquet files, numpy and scipy compute what any textbook has, and all else is the standard library.
In this order: what is not recomputed; the files of a run; one text; parts of formulas; the table of
attacks; p-values and q-values; the comparison.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from functools import cache, partial
from hashlib import blake2b, sha256
from itertools import accumulate, combinations, groupby, pairwise, takewhile, zip_longest
from math import exp, fsum, inf, isfinite, isnan, isqrt, log, log1p, nan
from pathlib import Path
from statistics import NormalDist, linear_regression, median, pstdev, pvariance, stdev
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.lib.stride_tricks import sliding_window_view as runs
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, rankdata

T = TypeVar("T")
Row = dict[str, Any]
Numbers = NDArray[np.float64]  # NaN: none
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


class UnknownError(Exception):
    """What cannot be recomputed: a key of `WHY_NOT`."""


# The files of a run: run.json, and tables, of which some are folders of parts.


class RunFiles:
    """A finished run's folder, of which files are read and none is written."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.manifest: Row = json.loads((self.folder / "run.json").read_text("utf-8"))
        self.settings: Row = self.manifest["settings"]
        self.asked: Row = self.manifest["made"]["scores"]  # attacks, and how much of each view

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
            named = {"group": row["group"], "document": row["document_id"], "target": first}
            known = (f"{level} {name}" for level, name in named.items() if name is not None)
            row["cluster"] = next(known)
        return rows

    def read(self, table: str, *columns: str, **equal: str) -> list[Row]:
        """Read rows as dictionaries: these columns, or all, of rows with these values."""
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

    def compared(self) -> tuple[list[Row], list[Row]]:
        """Find texts that are asked about, and nulls: else those asked about as non-members."""
        asked = [row for row in self.texts() if row["role"] == "target"]
        given = [row for row in self.texts() if row["role"] == "non_member"]
        outside = given or [row for row in asked if row["member"] is False]
        return [row for row in asked if given or row["member"] is not False], outside


# One text: what models answered about it, in words and in numbers.

_UNSPACED = "[\u0e00-\u109f\u1780-\u1aaf\u3005-\uaadf\uf900-\uff9f\U00020000-\U0003ffff]"


def words_of(text: str, rule: str) -> list[str]:
    if rule == "rouge":
        return re.findall("[a-z0-9]+", text.lower())
    if rule == "unicode" or (rule == "script" and re.search(_UNSPACED, text)):
        raise UnknownError("words")
    return [word for word in text.split(" ") if word] if rule == "space" else text.split()


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]


class AnsweredPrompt(NamedTuple):
    """An answer, and the text that truly follows the prompt, in letters and in words."""

    prompt: int
    text: str
    truth: str
    said: list[str]
    true: list[str]

    @property
    def cut(self) -> list[str]:
        return self.said[: len(self.true)]

    @property
    def longer(self) -> int:
        return max(len(self.said), len(self.true))

    def leading(self, n: int = 1) -> list[tuple[str, ...]]:
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(self.said, self.true, strict=False))
        return ngrams([word for word, _ in pairs], n)

    def common(self, n: int = 1, *, cut: bool = True) -> list[tuple[str, ...]]:
        """List n-grams that the answer, cut or not, shares, each as often as both have it."""
        said, true = ngrams(self.cut if cut else self.said, n), ngrams(self.true, n)
        return [*(Counter(said) & Counter(true)).elements()]

    def n_common(self, n: int) -> int:
        return len(self.common(n, cut=False))

    def in_order(self) -> int:
        """Length of the longest common subsequence of words."""
        row = [0] * (len(self.true) + 1)
        for word in self.said:
            best = (row[n] + 1 if word == each else row[n + 1] for n, each in enumerate(self.true))
            row = [0, *accumulate(best, max)]
        return row[-1]

    def covered(self, n: int) -> int:
        """Words of the answer inside some span of n words that the truth has, too."""
        spans = {*ngrams(self.true, n)}
        starts = [at for at, span in enumerate(ngrams(self.said, n)) if span in spans]
        return len({at + step for at in starts for step in range(n)})

    def blocks(self, *, letters: bool = False) -> list[int]:
        """Sizes of common blocks: the longest, then the longest on both sides of it, and so on."""
        said, true = (self.text, self.truth) if letters else (self.said, self.true)
        found = SequenceMatcher[Any](None, true, said, autojunk=False).get_matching_blocks()
        return [block.size for block in found]


Which = Callable[[AnsweredPrompt, int], list[tuple[str, ...]]]


class AuditedText:
    """What models answered about one text; ``there``: which of the rows that were read are.

    Called, it gives numbers of those tokens of a text that have a log-probability, or of all.
    """

    def __init__(self, run: RunFiles, target_id: str) -> None:
        self.run, self.id, self.there = run, target_id, dict[tuple[str, ...], list[bool]]()
        self.target, *_ = run.read("targets", target_id=target_id)
        prompts = run.read("prompts", target_id=target_id)
        self.true = {(row["model"], row["view"], row["view_index"]): row["text"] for row in prompts}
        tables = "samples", "logprobs"
        self.tables = {name: run.evidence(name, target_id=target_id) for name in tables}

    def rows(self, table: str, model: str, view: str) -> list[Row]:
        """Find the rows of a view; the models shadow-0, shadow-1, ... are one, named shadow."""
        of = [row for row in self.tables[table] if row["view"] == view]
        found = [row for row in of if row["model"].partition("-")[0] == model]
        there = [row["reason"] is None or row.get("n_bytes", 0) is None for row in found]
        self.there[table, model, view] = there
        return found

    def answers(self, view: str = "continuation", of: str = "target") -> list[AnsweredPrompt]:
        """Read the answers to the prompts of a view, less what was refused or lost."""
        found, settings = list[AnsweredPrompt](), self.run.settings
        for row in self.rows("samples", of, view):
            said, true = row["candidate"], self.true.get((of, view, row["view_index"]))
            true = self.target["reference"] if true is None else true
            if said is not None and settings["preset"] == "samia" and view == "continuation":
                # The authors' code cuts prompt and answer, together, behind half of the words.
                whole = words_of((row["prompt"] or self.target["prefix"]) + said, "space")
                length = settings["text_length"] or self.target["n_words"]
                said = " ".join(whole[round(length * 0.5) :])
            if said is not None and true is not None:
                words = [words_of(each, settings["word_rule"]) for each in (said, true)]
                found.append(AnsweredPrompt(row["view_index"], said, true, *words))
        return found

    def __call__(
        self,
        column: str = "logprob",
        view: str = "text",
        of: str = "target",
        *,
        every: bool = False,
    ) -> Numbers:
        rows = self.rows("logprobs", of, view)
        lists = [(p, row.get(column) or [None] * len(p)) for row in rows if (p := row["logprob"])]
        pairs = [pair for each in lists for pair in zip(*each, strict=True)]
        return np.array([n for p, n in pairs if every or p is not None], np.float64)

    def average(self, view: str = "text", of: str = "target") -> float:
        """Mean log-probability of the tokens, in nats: minus the loss."""
        return mean(self(view=view, of=of))

    def each(self, view: str, of: str = "target", **equal: bool) -> dict[int, Numbers]:
        """Give log-probabilities of each of several texts, or under each of the shadow models."""
        rows = [row for row in self.rows("logprobs", of, view) if equal.items() <= row.items()]
        numbers = [at if of == "shadow" else row["view_index"] for at, row in enumerate(rows)]
        lists = (known(np.array(row["logprob"] or [], np.float64)) for row in rows)
        return {at: found for at, found in zip(numbers, lists, strict=True) if len(found)}

    def averages(self, view: str, of: str = "target", **equal: bool) -> Numbers:
        return np.array([*map(mean, self.each(view, of, **equal).values())])

    def alike(self, other: str) -> bool:
        """Whether two models have the same tokens of the text."""
        ours, theirs = (self("token_ids", of=of, every=True).tolist() for of in ("target", other))
        return bool(ours) and ours == theirs  # NaN is equal to nothing

    def difference(self, of: str) -> float:
        """Loss under another model that has the same tokens, less the target's."""
        return self.average() - (self.average(of=of) if self.alike(of) else inf)

    def both(self) -> tuple[Numbers, Numbers]:
        """Give log-probabilities of each token by target and reference model, if cut alike."""
        own, base = (self(of=of, every=True) for of in ("target", "reference"))
        return (own, base) if self.alike("reference") else (own * nan, own * nan)

    def standardised(self, of: str = "vocabulary_mean") -> Numbers:
        """Distances from the mean over the vocabulary, or the likeliest, in its deviations."""
        variance = self("vocabulary_variance")
        return np.asarray((self() - self(of)) / np.sqrt(np.where(variance > 0, variance, nan)))

    def gaps(self, n: int) -> Numbers:
        found = known(self.standardised("top_logprob"))
        return np.asarray(runs(found, n).mean(axis=1)) if len(found) >= n else found

    def rate(self, of: str = "target") -> float:
        """Nats per byte; a token without a number counts as the mean of the others."""
        nats = self.average(of=of) * len(self(of=of, every=True))
        return nats / len(str(self.target["target"]).encode())

    def peak(self, view: str, of: str = "target") -> float:
        """Take p = exp(average) of a text less its mean over others, in pairs over whole ones."""
        p = {at: exp(mean(each)) for at, each in self.each(view, of).items()}
        alone = view in ("neighbour", "perturbation")
        return exp(self.average(of=of)) - mean(p[at] for at in p if alone or at ^ 1 in p)

    def shadows(self, kind: str) -> Numbers:
        """Give averages under the shadow models that were tuned on the text (in), or not (out)."""
        return self.averages("text", "shadow", trained=kind == "in")

    def above(self, kind: str) -> float:
        return float(phi(self.average())) - mean(phi(self.shadows(kind)))

    def density(self, kind: str) -> float:
        """Log of a normal density that is fitted to phi of shadow models, but for a constant."""
        variance = float(pvariance(phi(self.shadows(kind))))
        return -(self.above(kind) ** 2 / variance + log(variance)) / 2

    def over_shadows(self, *kinds: str) -> float:
        """Divide p by its mean under shadow models of these kinds, each of which there must be."""
        each = [self.shadows(kind) for kind in kinds if mean(self.shadows(kind)) <= 0]
        return exp(self.average()) / mean(np.exp(np.concatenate(each)))

    def whole(self, column: str = "logprob") -> Numbers:
        """Give numbers of the tokens of the text to be extracted; none where one has none."""
        found = self(column, "extraction", every=True)
        return found if len(known(found)) == len(found) else found[:0]

    def log_p(self, *, kept: bool = False) -> float:
        """Log of its probability, or of that among what decoding keeps."""
        found = self.whole() - (self.whole("support_mass") if kept else 0)
        return min(0.0, fsum(found)) / (len(found) > 0)

    def rarity(self, which: Which, view: str = "probe", of: str = "target", n: int = 1) -> float:
        """Weigh n-grams by ln(T / (1 + df)), Spärck Jones 1972: df of T other groups say them."""
        (df, total), (_, own, further) = groups_that_say(self.run, of, view), counted(self.run)

        def weight(ngram: tuple[str, ...]) -> float:  # the own group is the 1, where it is counted
            return log((total + further) / max(df[place_of(ngram)] + (self.id not in own), 1))

        found = [(map(weight, which(a, n)), len(a.true) - n + 1) for a in self.answers(view, of)]
        return mean(share(fsum(weights), asked) for weights, asked in found)

    def token_hits_less_expected(self) -> float:
        """Hits, less the share of hits at the same true token in counted texts of other folds.

        It counts 30 answers about tokens as frequent in the run, up to a factor of two, besides its
        own (shrunk shares: Efron and Morris 1975).
        """
        (fold, said), (_, others, _) = next_tokens(self.run), counted(self.run)
        times = Counter(token for _, token, _ in said)
        n, hits = Counter[Any](), Counter[Any]()
        for target_id, token, is_hit in said:
            if target_id in others and fold[target_id] != fold[self.id]:
                n.update(keys := (token, times[token].bit_length(), None))
                hits.update(keys * is_hit)

        def expected(token: str) -> float:
            alike = times[token].bit_length()
            prior = (hits[alike] + hits[None] / n[None]) / (n[alike] + 1)
            return (hits[token] + 30 * prior) / (n[token] + 30)

        own = [(a.text == a.truth, a.truth) for a in self.answers("token")]
        return mean(is_hit - expected(token) for is_hit, token in own if n[None] >= 100)

    def hit_rates(self) -> list[float]:
        """Smooth the share of hits at each point."""
        hits = groupby(self.answers("probe"), key=lambda a: a.prompt)
        each = ([a.leading() != [] for a in of] for _, of in hits)
        return [(sum(of) + 0.5) / (len(of) + 1) for of in each]

    def similarities(self, of: str = "target") -> dict[int, float]:
        """Log of the likeness of words, which is taken from the run's ``features``."""
        rows = self.run.read("features", target_id=self.id, model=of, view="probe")
        found = {row["view_index"]: row["similarity"] for row in rows if row["sample_index"] == 0}
        return {a.prompt: log(max(found[a.prompt], 1e-16)) for a in self.answers("probe", of)}

    def petal(self) -> float:
        """Likeness of words as log-probability, by a line from the other model."""
        own, base = self.similarities(), self.similarities("reference")
        first = {at: p[0] for at, p in self.each("probe", "reference").items() if at in base}
        x, y = [base[at] for at in first], [*first.values()]
        slope = linear_regression(x, y).slope if len({*x}) > 1 else 0.0
        return mean(y) + slope * (mean(own.values()) - mean(x))

    def decop(self) -> float:
        """Share of answers that name the right label: in question k that of k modulo 4."""
        label, right = list[int](), list[bool]()
        for a in self.answers("choice"):  # an article that begins an answer is no label
            text = re.sub(r"^\W*A (?=(?!i)[^\W\d_A-Z]|i[^s])", "", a.text)
            labels = {*re.findall(r"\b[A-D]\b(?:['\u2019][^\W\d_])?", text)} & {*"ABCD"}
            label += [a.prompt % 4] * (len(labels) == 1)
            right += [labels == {"ABCD"[a.prompt % 4]}] * (len(labels) == 1)
        return over_labels(label, right)

    def chosen(self, kind: str) -> float:
        """Likewise from log-probabilities: the highest one, if calibrated less the label's mean."""
        rows = [row for row in self.rows("logprobs", "target", "choice") if row["logprob"]]
        label, p = [row["view_index"] % 4 for row in rows], [row["logprob"] for row in rows]
        p = p if "log" in kind else [np.exp(of) / np.exp(of).sum() for of in p]
        less = [over_labels(label, of) * ("calibrated" in kind) for of in zip(*p, strict=True)]
        if kind == "probability":
            return over_labels(label, [of[at] for at, of in zip(label, p, strict=True)])
        return over_labels(label, np.subtract(p, less).argmax(axis=1) == label)

    def ez_mia(self) -> float:
        """P / (P + N), gains and losses on the reference model where the first guess is wrong."""
        (own, base), rank = self.both(), self("rank", every=True)
        wrong = known((own - base)[rank > 1])
        if not len(wrong) and len(known(own - base + rank)):
            return 1.0
        return float(np.maximum(differ(wrong), 0).sum() / abs(differ(wrong)).sum())

    def wbc(self) -> float:
        """Share of windows, of ten lengths, whose gains sum to above 0."""
        own, base = self.both()
        gains = differ(known(own - base))
        lengths = (min(n, len(gains)) for n in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40) if len(gains))
        return mean(mean(runs(gains, n).sum(axis=1) > 0) for n in lengths)

    def informia(self) -> float:
        """Mean of log p / q + KL(q || p) over tokens."""
        p, q = (np.minimum(each, _NEAR_1) for each in self.both())
        rest = np.expm1(q) * np.log(np.expm1(q) / np.expm1(p))
        return mean(np.subtract(*self.both()) + np.exp(q) * (q - p) - rest)

    def aeca(self) -> float:
        """How far p log 1 / f jumps between tokens, less how far log p varies."""
        v = known(np.exp(self()) * self("log_inverse_frequency"))
        return float(pstdev(v - np.append(v[1:], 0.0)) - pstdev(self()))

    def dc_pdd(self) -> float:
        """Mean of p log 1 / f, at most 0.01, where a token comes first."""
        v = np.minimum(0.01, np.exp(self()) * self("log_inverse_frequency"))
        pairs = zip(self("token_ids")[::-1], v[::-1], strict=True)
        return mean({token: each for token, each in pairs if not isnan(each)}.values())

    def surprising(self) -> float:
        """Mean of the lowest 20 % of log-probabilities, where the entropy is below 2 nats."""
        order = np.argsort(self(), kind="stable")[: max(len(self()) // 5, 1)]
        return mean(self()[order][-self("vocabulary_mean")[order] < 2])


# What an attack reads of other texts' answers.


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
        (n, *_), order = rounds(run)[0], rounds(run)[-1]
        first = {*groups} - {row["target_id"] for row in (*asked, *nulls)}
        chosen = (of[at] for side in windows(run) for of in side.values() for at in order[:n])
        return groups, first.union(chosen), 1
    if nulls and (nulls[0]["role"] == "non_member" or any(row["member"] is None for row in asked)):
        return groups, {row["target_id"] for row in nulls}, 1
    every = {row["target_id"] for row in rows if row["role"] != "yardstick"}
    apart = len({groups[each] for each in every}) == 1 or not nulls  # each text is a group
    return {each: each for each in groups} if apart else groups, every, 0


_ALL = 2**64 - 1  # of the bits of a hash


@cache
def hash_of(word: str) -> int:
    """FNV-1a of its bytes."""
    found = 0xCBF29CE484222325
    for byte in word.encode():
        found = (found ^ byte) * 0x100000001B3 & _ALL
    return found


@cache
def place_of(ngram: tuple[str, ...]) -> int:
    """Find where a run counts an n-gram: in one of 2^22 places, which n-grams may share.

    The first bits of its hash, mixed as in SplitMix64 (Steele et al. 2014).
    """
    mixed = 0
    for word in ngram:
        mixed = (mixed + 0x9E3779B97F4A7C15 & _ALL) ^ hash_of(word)
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _ALL
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _ALL
        mixed ^= mixed >> 31
    return mixed >> 42


@cache
def groups_that_say(run: RunFiles, model: str, view: str) -> tuple[Counter[int], int]:
    """Count the groups among whose answers n-grams of each place stand, and those with answers."""
    said, (groups, own, _) = defaultdict[str, set[int]](set), counted(run)
    for row in run.evidence("samples", model=model, view=view):
        if row["candidate"] is not None and row["target_id"] in own:
            words = words_of(row["candidate"], run.settings["word_rule"])
            of = said[groups[row["target_id"]]]
            of.update(place_of(ngram) for n in (1, 2, 3) for ngram in ngrams(words, n))
    return Counter(each for of in said.values() for each in of), len(said)


@cache
def next_tokens(run: RunFiles) -> tuple[dict[str, int], list[tuple[str, str, bool]]]:
    """Deal texts, by group, into 16 folds; list text, true token and hit of every answer."""
    groups, *_ = counted(run)
    first = {groups[target_id]: target_id for target_id in sorted(groups, reverse=True)}
    place = {target_id: at for at, target_id in enumerate(sorted(first.values()), 1)}
    rows = run.read("prompts", model="target", view="token")
    true = {(row["target_id"], row["view_index"]): row["text"] for row in rows}
    said = []
    for row in run.evidence("samples", model="target", view="token"):
        token = true[row["target_id"], row["view_index"]]
        if None not in (token, row["candidate"]):
            said.append((row["target_id"], token, row["candidate"] == token))
    return {target_id: place[first[of]] % 16 for target_id, of in groups.items()}, said


# Parts of formulas.

_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1


def known(values: Numbers) -> Numbers:
    found: Numbers = values[~np.isnan(values)]
    return found


def mean(values: Iterable[float]) -> float:
    """Take the mean of what is known; where there is nothing, the run must have null."""
    found = [each for each in values if not isnan(each)]
    return fsum(found) / len(found)


def share(part: float, whole: float) -> float:
    return part / max(whole, 1)


def zlib_size(words: Iterable[str]) -> int:
    """Measure a text as classic zlib compresses it at level 6, on which published figures rest."""
    if not re.fullmatch(r"1\.(2\.(8|11|12|13)|3|3\.1)", zlib.ZLIB_RUNTIME_VERSION):
        raise UnknownError("zlib")
    return len(zlib.compress(" ".join(words).encode(), 6))


def over_labels(label: Sequence[int], terms: Iterable[Any]) -> float:
    """Mean over the four labels of the mean over questions where it is right."""
    pairs = [*zip(label, terms, strict=True)]
    return mean(mean(term for of, term in pairs if of == each) for each in range(4))


def lowest(percent: int, values: Numbers, *, decay: int = 0) -> float:
    """Mean of the lowest values, with decay weighed by their tokens' places, from 1 to 1 / n."""
    order = np.argsort(values, kind="stable")[: max(len(known(values)) * percent // 100, 1)]
    return mean(values[order] * (1 - decay * order / len(values)))


def polarized(logprobs: Numbers) -> float:
    """PAC: mean of the highest 5 % of log-probabilities less that of the lowest 30 %."""
    return -lowest(5, -logprobs) - lowest(30, logprobs)


def phi(logprob: Any) -> Any:  # noqa: ANN401 - a number or several
    """Log p / (1 - p)."""
    return np.minimum(logprob, _NEAR_1) - np.log(-np.expm1(np.minimum(logprob, _NEAR_1)))


def differ(gains: Numbers) -> Numbers:
    """None where two models agree to 0.00001 nats on average, which is rounding."""
    return gains if abs(gains).sum() > 1e-5 * len(gains) else gains[:0]


def needed(percent: int, log_p: float) -> float:
    """Minus the log of the samples that have a text among them with this chance, at least 1."""
    hazard = log_p if log_p < -30 else inf if log_p == 0 else log(-log1p(-exp(log_p)))
    return min(0.0, hazard - log(-log(1 - percent / 100)))


def longest(ranks: Numbers) -> int:
    """Most tokens in a row that are the likeliest ones; an error where no rank is known."""
    return max(int(hit) * len([*of]) for hit, of in groupby(ranks == 1) if len(known(ranks)))


def from_end(percent: int, logprobs: Numbers) -> float:
    """Minus the share of tokens that hold, from the end, at most a share of losses below 1."""
    so_far = np.cumsum(logprobs[::-1] > -1)
    return -mean(each * 100 <= percent * so_far[-1] for each in so_far if so_far[-1])


def complexity(bins: int, values: Numbers) -> float:
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


def irregularity(values: Numbers) -> float:
    """Approximate entropy, Pincus 1991: m = 8, r = 0.8 deviations; none of 9 values or fewer."""
    phis = []
    for every in (runs(values, m) for m in (8, 9) if len(values) > 9):
        alike = (abs(every[:, None] - every) <= 0.8 * np.std(values)).all(axis=2)
        phis.append(mean(np.log(alike.mean(axis=1))))
    return abs(max(phis) - min(phis))


# The table of attacks, by paper; a higher score means more likely a member.

Score = Callable[[AuditedText], float]


By = Callable[[list[float]], float]


def over(
    term: Callable[[AnsweredPrompt], float],
    view: str = "continuation",
    least: int = 0,
    by: By = mean,
) -> Score:
    """Take the mean, or another summary, over answers whose truth has enough words."""
    return lambda t: by([term(a) for a in t.answers(view) if len(a.true) >= least])


def given(argument: T, term: Callable[[AuditedText, T], float]) -> Score:
    return lambda t: term(t, argument)


# SaMIA: Kaneko et al. 2024 (arXiv:2404.11262v2), equations 1 and 5 (recall), 9 (precision), and 7
# (times the compressed size), whole with the denominators of the authors' code. ROUGE: Lin 2004.
TERMS: dict[str, Callable[[int, AnsweredPrompt], float]] = {
    "samia": lambda n, a: share(a.n_common(n), len(a.true)),
    "samia_precision": lambda n, a: share(a.n_common(n), len(a.said)),
    "samia_zlib": lambda n, a: TERMS["samia"](n, a) * zlib_size(a.said),
    "samia_matched": lambda n, a: share(len(a.common(n)), len(a.true) - n + 1),
    "samia_matched_precision": lambda n, a: share(len(a.common(n)), len(a.cut) - n + 1),
    "samia_matched_zlib": lambda n, a: TERMS["samia_matched"](n, a) * zlib_size(a.cut),
    "rouge": lambda n, a: share(a.n_common(n), len(a.true) - n + 1),
    "rouge_precision": lambda n, a: share(a.n_common(n), len(a.said) - n + 1),
    "rouge_f1": lambda n, a: share(2 * a.n_common(n), len(a.said) + len(a.true) - 2 * n + 2),
}
# Hallinan et al. 2025 (arXiv:2508.09603); near_verbatim: Ahmed et al. 2026 (arXiv:2601.02671)
SPANS: dict[str, Callable[[AnsweredPrompt], float]] = {
    "ngram_coverage": lambda a: share(a.covered(3), len(a.said)),
    "ngram_coverage_reference": lambda a: share(a.covered(3), a.longer),
    "ngram_coverage_total": lambda a: share(2 * a.covered(3), len(a.said) + a.longer),
    "creativity": lambda a: share(sum(a.covered(n) for n in range(2, 13)), len(a.said)),
    "longest_block": lambda a: max(a.blocks()),
    "longest_block_chars": lambda a: max(a.blocks(letters=True)),
    "longest_block_share": lambda a: share(max(a.blocks()), len(a.true)),
    "near_verbatim": lambda a: share(sum(n for n in a.blocks() if n >= 8), len(a.true)),
}
SCORES: dict[str, Score] = {
    "samia_plus_zlib": over(lambda a: TERMS["samia"](1, a) + zlib_size(a.said)),
    "samia_matched_rarity": lambda t: t.rarity(AnsweredPrompt.common, "continuation"),
    "samia_matched_rarity_n2": lambda t: t.rarity(AnsweredPrompt.common, "continuation", n=2),
    "rouge_l": over(lambda a: share(a.in_order(), len(a.true)), least=1),
    "rouge_l_precision": over(lambda a: share(a.in_order(), len(a.said)), least=1),
    "rouge_l_f1": over(lambda a: share(2 * a.in_order(), len(a.said) + len(a.true)), least=1),
    # He et al. 2025 (PETAL, USENIX Security); Krichevsky and Trofimov 1981; Lan et al. 2026
    "token_hits": over(lambda a: a.text == a.truth, "token"),
    "token_hits_less_expected": AuditedText.token_hits_less_expected,
    "probe_first_word": over(lambda a: a.leading() != [], "probe"),
    "probe_leading": over(lambda a: share(len(a.leading()), len(a.true)), "probe"),
    "probe_leading_rarity": lambda t: t.rarity(AnsweredPrompt.leading),
    "probe_recall_rarity": lambda t: t.rarity(AnsweredPrompt.common),
    "probe_rarity_difference": lambda t: (
        t.rarity(AnsweredPrompt.leading) - t.rarity(AnsweredPrompt.leading, of="reference")
    ),
    "probe_rarity_loss": lambda t: t.rarity(AnsweredPrompt.leading) + t.average(),
    "probe_logprob": lambda t: mean(map(log, t.hit_rates())),
    "petal": AuditedText.petal,
    "petal_similarity": lambda t: mean(t.similarities().values()),
    "masked_hits": over(lambda a: a.truth in a.text, "cloze"),
    # DE-COP: Duarte et al. 2024 (arXiv:2402.09910), which of four passages is verbatim
    "decop": AuditedText.decop,
    # Yeom et al. 2018 (arXiv:1709.01604); Carlini et al. 2021 (arXiv:2012.07805), sections 4.2, 5.2
    "loss": AuditedText.average,
    "perplexity": lambda t: -exp(-t.average()),
    "loss_zlib": lambda t: t.average() / zlib_size([t.target["target"]]),
    "lowercase_difference": lambda t: t.average() - t.average("lowercase"),
    "lowercase_ratio": lambda t: -t.average() / t.average("lowercase"),
    "reference_difference": lambda t: t.rate() - t.rate("reference"),
    "reference_ratio": lambda t: -t.rate() / t.rate("reference"),
    # Shi et al. 2024, section 4.2; Fu et al. 2024 (arXiv:2311.06062), equations 4 and 7
    "reference_token_difference": lambda t: t.difference("reference"),
    "self_prompt_difference": lambda t: t.difference("self_prompt"),
    "candidate_difference": lambda t: t.difference("candidate"),
    # PDR, Liu et al. 2026 (arXiv:2601.06827); Gap-K%, Kwak and Kim 2026 (arXiv:2601.19936)
    "pdr_loss": lambda t: lowest(100, t(), decay=1),
    "pdr_min_k_20": lambda t: lowest(20, t(), decay=1),
    "pdr_min_k_plus_plus_20": lambda t: lowest(20, t.standardised(), decay=1),
    "gap_k_20": lambda t: lowest(20, t.gaps(3)),
    "gap_k_20_window_6": lambda t: lowest(20, t.gaps(6)),
    # Ilić et al. 2026 (arXiv:2601.12104); Chen et al. 2026 (arXiv:2601.02751), algorithm 1; Tao and
    # Shokri 2025 (arXiv:2510.05582); AECA, ICML 2026; Zhang et al. 2024 (arXiv:2409.14781)
    "ez_mia": AuditedText.ez_mia,
    "wbc": AuditedText.wbc,
    "informia": AuditedText.informia,
    "aeca": AuditedText.aeca,
    "dc_pdd": AuditedText.dc_pdd,
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
    "surprising_20": AuditedText.surprising,
    # LiRA, Carlini et al. 2022 (arXiv:2112.03570), algorithm 1: phi among that of shadow models;
    # RMIA, Zarifzadeh et al. 2024 (arXiv:2312.03262): p / p(x), its mean over shadow models
    "lira_online": lambda t: t.density("in") - t.density("out"),
    "lira_online_fixed": lambda t: t.above("out") ** 2 - t.above("in") ** 2,
    "lira_offline": lambda t: t.above("out") / pstdev(phi(t.shadows("out"))),
    "lira_offline_fixed": lambda t: t.above("out"),
    "rmia": lambda t: t.over_shadows("in", "out"),
    "rmia_offline": lambda t: t.over_shadows("out"),
    # Hayes et al. 2025 (arXiv:2410.19482); Carlini et al. 2023 (arXiv:2202.07646), definition 3.1
    "extraction": AuditedText.log_p,
    "extraction_top_k": lambda t: t.log_p(kept=True),
    "extraction_greedy": lambda t: min(t.whole("rank") == 1),
    "extraction_run": lambda t: longest(t("rank", every=True)),
    "extraction_best_50": lambda t: min(0.0, max(known(runs(t(every=True), 50).sum(axis=1)))),
    # Xie et al. 2024 (arXiv:2406.15968); Wang et al. 2024 (arXiv:2409.03363), gamma = 0.5; Zawalski
    # et al. 2025 (arXiv:2510.27055)
    "recall_prefix": lambda t: t.average("nonmember_shots") / t.average(),
    "con_recall_prefix": lambda t: (
        (t.average("nonmember_shots") - 0.5 * t.average("member_shots")) / t.average()
    ),
    "codec": lambda t: float(t.average("nonmember_shots") < t.average()),
    "probe_loss": lambda t: t.average("probe"),
    "probe_min_k_20": lambda t: lowest(20, t(view="probe")),
    "probe_centred": lambda t: mean(t(view="probe") - t("vocabulary_mean", view="probe")),
    # CAMIA: Chang et al. 2024 (arXiv:2409.13745), signals of the series of log-probabilities
    "loss_entropy": lambda t: irregularity(t()[:200]),
    "losses_below_mean": lambda t: mean(t() >= t.average()),
    "losses_below_previous": lambda t: mean(
        t()[1:] >= np.cumsum(t())[:-1] / np.arange(1, len(t()))
    ),
    "loss_slope": lambda t: linear_regression(range(len(t())), t()).slope,
    "loss_by_diversity": lambda t: (
        t.average() * len(known(t("token_ids"))) / len({*known(t("token_ids")).tolist()})
    ),
    "repeated_difference": lambda t: t.average() - t.average("repeated"),
}
for name, term in TERMS.items():
    for n in range(1, 6):
        key = name.replace("rouge", f"rouge_{n}") if "rouge" in name else f"{name}_n{n}"
        least = n if "rouge" in name or "matched" in name else 0
        SCORES[key.removesuffix("_n1")] = over(partial(term, n), least=least)
SUMMARIES: dict[str, By] = {"": mean, "_max": max, "_median": median, "_min": min}
for end, by in SUMMARIES.items():
    SCORES |= {name + end: over(of_span, by=by) for name, of_span in SPANS.items()}
for kind in ("logprob", "log_calibrated", "calibrated", "probability"):
    SCORES[f"decop_{kind}"] = given(kind, AuditedText.chosen)
# Min-K%, Shi et al. 2024 (arXiv:2310.16789), equation 1; Min-K%++, Zhang et al. 2025, 2404.02936
for n in (5, 10, 20, 30, 40, 50, 60):
    SCORES[f"min_k_{n}"] = given(n, lambda t, n: lowest(n, t()))
    SCORES[f"min_k_plus_plus_{n}"] = given(n, lambda t, n: lowest(n, t.standardised()))
for n in (50, 90, 99):
    SCORES[f"extraction_n_{n}"] = given(n, lambda t, n: needed(n, t.log_p()))
    SCORES[f"extraction_top_k_n_{n}"] = given(n, lambda t, n: needed(n, t.log_p(kept=True)))
# SPV-MIA, Fu et al. 2024 (arXiv:2311.06062), equations 5, 10 and 11
for name, view in (("semantic", "paraphrase"), ("embedding", "noise"), ("neighbour",) * 2):
    SCORES[f"spv_{name}_uncalibrated"] = given(view, AuditedText.peak)
    SCORES[f"spv_{name}"] = given(view, lambda t, v: t.peak(v) - t.peak(v, "self_prompt"))
SCORES["spv_released"] = lambda t: t.peak("perturbation") - t.peak("perturbation", "self_prompt")
for n in (1, 2, 3):
    SCORES[f"losses_below_{n}"] = given(n, lambda t, n: mean(-t() <= n))
    SCORES[f"low_losses_from_end_{30 + 10 * n}"] = given(30 + 10 * n, lambda t, n: from_end(n, t()))
    SCORES[f"loss_complexity_{2 + n}"] = given(2 + n, lambda t, n: -complexity(n, t()[:200]))


def score(run: RunFiles, attack: str, row: Row) -> Row:
    """Score one text: None where nothing, or less than half of what is read, is there."""
    t = AuditedText(run, row["key"])
    try:
        with np.errstate(all="ignore"):
            value = float(SCORES[attack.removesuffix("_v1")](t))
    except (ArithmeticError, ValueError):
        return {"score": None}
    there = [each for rows in t.there.values() for each in rows]
    return {"score": value if 2 * sum(there) >= len(there) and isfinite(value) else None}


# p-values and q-values, from scores of texts or of groups; AUC and TPR, where texts are labelled.


Place = tuple[float, float]


def place(value: float | None, draw: float = 0) -> Place:
    """Place a score of 12 digits among others, a missing one highest; a draw orders equal ones."""
    return inf if value is None else float(f"{value:.12g}"), draw


def lot(name: str, seed: int | None) -> float:
    """Draw a number in [0, 1) for a name; 0 without a seed."""
    drawn = blake2b(f"{seed}:{name}".encode(), digest_size=8, person=b"mia-ties").digest()
    return 0 if seed is None else (int.from_bytes(drawn, "big") >> 11) / 2**53


def p_value(own: Place, nulls: Iterable[tuple[Place, float]], weight: float = 1) -> float:
    """Conformal p-value among nulls and their weights: Vovk, Gammerman and Shafer 2005, 2.2.

    Sums have 9 digits. Weights are 1 / size where nulls share groups: Lee, Barber and Willett
    (arXiv:2306.06342); or odds of being audited: Tibshirani et al. 2019 (arXiv:1904.06019), eq. 7.
    """
    pairs = [*nulls]
    above = fsum(w for null, w in pairs if null >= own)
    return (weight + round(above, 9)) / (weight + round(fsum(w for _, w in pairs), 9))


def q_values(p: Iterable[float | None], adjustment: str) -> list[float]:
    """Benjamini and Hochberg 1995; ``by``: Benjamini and Yekutieli 2001, theorem 1.3."""
    known = [1.0 if each is None else each for each in p]
    method: Any = "by" if adjustment == "by" else "bh"
    return [*map(float, false_discovery_control(known, method=method))]


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


def fitted(x: Any, label: Any, asked: Any) -> Any:  # noqa: ANN401 - arrays
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
def odds(run: RunFiles, *, grouped: bool) -> list[dict[str, float]]:
    """Odds of asked texts, or groups, and of nulls, of being audited by what is known without it.

    From normal scores of blind classifiers' ranks, of a group their means, in 5 folds of clusters.
    """
    seen, kinds = defaultdict[Any, list[Any]](list), defaultdict[str, set[bool]](set)
    rows = {row.pop("target_id"): row.items() for row in run.read("blind")}
    for texts, is_asked in zip(run.compared(), (True, False), strict=True):
        for text in texts:
            ranks = [rank for name, rank in rows.get(text["target_id"], ()) if "targets_" in name]
            if ranks and None not in ranks:
                name = text["cluster"] if grouped else text["target_id"]
                seen[text["cluster"], is_asked, name].append([*map(NormalDist().inv_cdf, ranks)])
    units = sorted(seen) if grouped else [*seen]
    x = np.array([np.mean(seen[unit], axis=0) for unit in units])
    x, label = x / np.maximum(x.std(axis=0), 1e-9), np.array([is_asked for _, is_asked, _ in units])
    for cluster, is_asked, _ in units:
        kinds[cluster].add(is_asked)
    draws = np.random.default_rng(run.settings["seed"]).random(len(kinds))
    # Clusters of nulls alone are dealt to folds first, then mixed ones, then those asked about.
    keys = [(any(of) + all(of), draw) for of, draw in zip(kinds.values(), draws, strict=True)]
    fold_of = {name: at % 5 for at, (_, name) in enumerate(sorted(zip(keys, kinds, strict=True)))}
    fold, found = np.array([fold_of[cluster] for cluster, *_ in units]), np.empty(len(units))
    for own in (fold == each for each in range(5)):
        found[own] = fitted(x[~own], label[~own], x[own])
    made = [*zip(units, (found / found[~label].mean()).tolist(), strict=True)]  # of nulls 1
    return [{name: odd for (_, of, name), odd in made if of == side} for side in (True, False)]


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
    shares = np.random.default_rng(run.settings["seed"]).random(n).tolist()

    def chosen(of: list[str]) -> list[str]:
        ends = pairwise(number * len(of) // n for number in range(n + 1))
        return [
            of[at + int(each * (end - at))] for each, (at, end) in zip(shares, ends, strict=True)
        ]

    return [
        {name: chosen(of) for name, of in sorted(side.items()) if len(of) >= n} for side in sides
    ]


def summary(run: RunFiles, scores: list[float | None]) -> float | None:
    by: Any = {"mean": np.mean, "median": np.median, "maximum": max}[run.settings["statistic"]]
    return None if None in scores else float(by(scores))


@cache
def units(run: RunFiles, attack: str, *, grouped: bool) -> list[dict[str, float | None]]:
    """Score what is compared, asked and null, by name: texts, or groups by their windows."""
    scores = run.scores(attack)
    return [
        {name: summary(run, [scores[each] for each in of]) for name, of in side.items()}
        for side in windows(run, grouped=grouped)
    ]


def named(row: Row, names: Iterable[str]) -> str:
    """Find what a verdict is about: a group, a document by its identifier or first text, a text."""
    key = row["key"]
    return next(each for each in (f"{row['level']} {key}", f"target {key}", key) if each in names)


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
    others = [(place(nulls[name], lot(name, seed)), weights[name]) for name in like]
    mine = place(asked[key], lot(f"{row['level']} {row['key']}" if grouped else key, seed))
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


def collection(run: RunFiles, attack: str, row: Row) -> Row:
    """Mean rank of asked groups, and the share of ways to name them with as high a sum of ranks.

    Pitman 1937; where there are too many ways they are drawn: Phipson and Smyth 2010; or drawn
    with the product of odds: Berrett et al. 2020, after Chen, Dempster and Liu 1994.
    """
    asked, nulls = units(run, attack, grouped=True)
    pooled = [-inf if each is None else each for each in asked.values()]
    pooled += [inf if each is None else each for each in nulls.values()]
    ranks = rankdata([float(f"{each:.12g}") for each in pooled])
    n, size, rng = len(asked), len(ranks), np.random.default_rng(run.settings["seed"])
    least, drawn = ranks[:n].sum(), 9_999 if size < 10_000 else 999
    if "exact" in row["method"]:
        sums = [sum(each) for each in combinations(ranks.tolist(), n)]
    elif "odds" in row["method"]:
        own, weights = odds(run, grouped=True)
        of = np.log([own[name] for name in asked] + [weights[name] for name in nulls])
        ways = np.full((size + 1, n + 1), -inf)  # log sum of products of k of those from i on
        ways[:, 0] = 0
        for i in reversed(range(size)):
            ways[i, 1:] = np.logaddexp(ways[i + 1, 1:], of[i] + ways[i + 1, :-1])
        left, found = np.full(drawn, n), np.zeros(drawn)
        for i in range(size):
            chance = np.exp(of[i] + ways[i + 1, left - 1] - ways[i, left])
            takes = (left > 0) & (rng.random(drawn) < chance)
            left, found = left - takes, found + takes * ranks[i]
        sums = [least, *found]
    else:
        sums, at_once = [least], max(1, 2**20 // size)
        for start in range(0, drawn, at_once):
            lines = np.tile(np.arange(size), (min(at_once, drawn - start), 1))
            sums += ranks[rng.permuted(lines, axis=1)[:, :n]].sum(axis=1).tolist()
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
    return ends, kept, shares, e_values, rng.permutation(n).tolist()


def in_rounds(run: RunFiles, attack: str, row: Row) -> Row:
    """Sum, over rounds, shares times the e-value of a group's rank among nulls still asked.

    Conformal e-values: Bashari et al. 2023 (arXiv:2302.07294); halving: Karnin et al. 2013.
    """
    (ends, kept, shares, of_rank, order), scores = rounds(run), run.scores(attack)
    asked, nulls = windows(run)
    e, left = dict.fromkeys([text["cluster"] for text in run.compared()[0]], 0.0), [*nulls.values()]
    going = {*e} & {*asked}

    def listed_at(values: list[float]) -> dict[str, bool]:
        q = q_values([1 / max(each, 1) for each in values], "bh")
        return {name: round(each, 12) <= run.settings["q"] for name, each in zip(e, q, strict=True)}

    for at, end in enumerate(ends):
        made = [summary(run, [scores[of[n]] for n in order[:end]]) for of in left]
        lowered = [-inf if each is None else -each for each in made]
        ranked = sorted(zip(lowered, left, strict=True), key=lambda pair: pair[0])
        n_next, to_come = [*kept, 0][at + 1], of_rank[0] * sum(shares[at + 1 :])
        for name in [*going]:
            own = summary(run, [scores[asked[name][n]] for n in order[:end]])
            higher = sum(own is None or -each >= own for each, _ in ranked)
            e[name] += shares[at] * (of_rank[higher] if higher < len(of_rank) else 0)
            going -= {name} if higher >= n_next else set()
        left = [of for _, of in ranked[:n_next]]
        accepted = listed_at([*e.values()])
        in_reach = listed_at([e[name] + to_come * (name in going) for name in e])
        going = {name for name in going if in_reach[name] and not accepted[name]}
    return {"score": e[named(row, e)], "p_value": 1 / max(e[named(row, e)], 1)}


def canaries(run: RunFiles, attack: str, row: Row) -> Row:
    """Rank published texts among their controls, and all by aligned ranks: Hodges, Lehmann 1962."""
    sets = defaultdict[str, list[float | None]](list)
    for text in sorted(run.texts(), key=lambda text: text["member"] is False):
        if text["role"] == "canary":
            sets[text["cluster"]].append(run.scores(attack)[text["target_id"]])
    if row["level"] == "group":
        own, *controls = sets[f"group {row['key']}"]
        return {"score": own, "p_value": p_value(place(own), [(place(c), 1) for c in controls])}
    values, observed = list[float](), 0
    chances: Numbers = np.ones(1)
    for of in sets.values():
        middle = mean([each for each in of if each is not None] or [0.0])
        missing = [-inf] + [inf] * len(of)
        pairs = zip(of, missing, strict=False)
        values += [at if each is None else round(each - middle, 9) for each, at in pairs]
    ranks = iter(rankdata(values).tolist())
    aligned = [[next(ranks) for _ in of] for of in sets.values()]
    step = max(1.0, 2 * sum(map(max, aligned)) / 2**16)  # coarser where there are too many sums
    for each in aligned:
        whole = [int(2 * rank / step) for rank in each]
        steps = np.bincount([rank - min(whole) for rank in whole]) / len(whole)
        chances = np.asarray(np.convolve(chances, steps), np.float64)
        observed += whole[0] - min(whole)
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


def figure(run: RunFiles, attack: str, row: Row) -> Row:
    """AUC (ties one half), or the TPR where at most a share of the non-members scores as high."""
    of: dict[bool, list[float]] = {True: [], False: []}
    for text in run.texts():
        found, member = run.scores(attack)[text["target_id"]], text["member"]
        if text["role"] in ("target", "non_member") and not (member is None or found is None):
            of[member].append(found)
    ins, outs = of[True], sorted(of[False])
    if row["metric"] == "roc_auc":
        ranks = rankdata(ins + outs)[: len(ins)]
        return {"value": (ranks.mean() - (len(ins) + 1) / 2) / len(outs)}
    spared = sum(n / len(outs) <= row["fpr"] for n in range(1, len(outs) + 1))
    return {"value": mean(each > [-inf, *outs][-1 - spared] for each in ins)}


# The root, and numbers that are drawn and compared.


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
    kinds = [
        (name, of, rows)
        for name in [*attacks, "dataset_inference_v1"]
        for of, rows in claims(run, name)
    ]
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
