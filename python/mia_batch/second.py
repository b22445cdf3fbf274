"""A second implementation: the numbers of a run, recomputed from its files in plain Python.

For readers who trust neither this package nor its authors: nothing of it is imported. Polars opens
Parquet files, numpy draws what it drew for the run and fits the odds of weights, and all else is
the standard library. The parts: the files of a run; one text; attacks, paper by paper; p-values,
AUC and TPR; the comparison. What is not known here is said, and is no agreement.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from bisect import bisect, bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from hashlib import sha256
from itertools import groupby, pairwise, takewhile, zip_longest
from math import exp, expm1, fsum, inf, isfinite, log, sqrt
from pathlib import Path
from statistics import NormalDist, linear_regression, median, pstdev, pvariance
from typing import Any, NamedTuple

import numpy as np
import polars as pl

Row = dict[str, Any]
_SAME = 1e-9  # relative difference of numbers that are equal


class UnknownError(Exception):
    """What cannot be recomputed here."""


# The files of a run: run.json, and tables, of which some are folders of parts.


class Run:
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
    def texts(self, table: str = "scores") -> list[Row]:
        """Read which texts there are; a ``cluster`` is a group, else a document, else one text."""
        names = ("target_id", "role", "member", "group", "document_id", "window_index", "n_words")
        rows, first = self.read(table, *names), ""
        for row in rows:
            first = first if row["window_index"] and first else row["target_id"]
            document = "document", row["document_id"] or first
            row["cluster"] = document if row["group"] is None else ("group", row["group"])
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
        raise UnknownError("words of texts without spaces")
    return [word for word in text.split(" ") if word] if rule == "space" else text.split()


def share(part: float, whole: float) -> float:
    return part / max(whole, 1)


def mean(values: Iterable[float]) -> float:
    """Take the mean; what divides by nothing has no value, and the run must have null there."""
    found = [*values]
    return fsum(found) / len(found)


class Answer(NamedTuple):
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
    def leading(self) -> list[str]:
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(self.said, self.true, strict=False))
        return [word for word, _ in pairs]

    @property
    def common(self) -> list[str]:
        return [*(Counter(self.cut) & Counter(self.true)).elements()]


class Text:
    """What models answered about one text; ``there``: which of the rows that were read are."""

    def __init__(self, run: Run, target_id: str) -> None:
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

    def answers(self, view: str = "continuation", of: str = "target") -> list[Answer]:
        """Read the answers to the prompts of a view, less what was refused or lost."""
        found, settings = list[Answer](), self.run.settings
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
                found.append(Answer(row["view_index"], said, true, *words))
        return found

    def every(self, *columns: str, of: str = "target", view: str = "text") -> list[Any]:
        """Put numbers of each token side by side, None where there is no number."""
        rows = self.rows("logprobs", of, view)
        whole = [row for row in rows if None not in map(row.get, columns)]
        return [each for row in whole for each in zip(*map(row.get, columns), strict=True)]

    def tokens(self, *columns: str, of: str = "target", view: str = "text") -> list[Any]:
        """Put numbers side by side of those tokens that have all of them."""
        return [each for each in self.every(*columns, of=of, view=view) if None not in each]

    def logprobs(self, view: str = "text", of: str = "target") -> list[float]:
        return [logprob for (logprob,) in self.tokens("logprob", of=of, view=view)]

    def average(self, view: str = "text", of: str = "target") -> float:
        """Mean log-probability of the tokens, in nats: minus the loss."""
        return mean(self.logprobs(view, of))

    def each(self, view: str, of: str = "target", **equal: bool) -> dict[int, list[float]]:
        """Give log-probabilities of each of several texts, or under each of the shadow models."""
        rows = [row for row in self.rows("logprobs", of, view) if equal.items() <= row.items()]
        found = [row for row in rows if any(each is not None for each in row["logprob"] or ())]
        numbers = [at if of == "shadow" else row["view_index"] for at, row in enumerate(found)]
        lists = ([each for each in row["logprob"] if each is not None] for row in found)
        return dict(zip(numbers, lists, strict=True))

    def averages(self, view: str, of: str = "target", **equal: bool) -> list[float]:
        return [*map(mean, self.each(view, of, **equal).values())]

    def alike(self, other: str) -> bool:
        """Whether two models have the same tokens of the text."""
        ours, theirs = (self.tokens("token_ids", of=of) for of in ("target", other))
        return ours == theirs != []

    def both(self, *columns: str) -> list[Any]:
        """Put log-probabilities by reference and target model side by side, if cut alike."""
        base, own = self.every("logprob", of="reference"), self.every("logprob", *columns)
        pairs = zip(base, own, strict=False) if self.alike("reference") else ()
        return [(*a, *b) for a, b in pairs if None not in (*a, *b)]


def zlib_size(words: list[str]) -> int:
    """Measure a text as classic zlib compresses it at level 6, on which published figures rest."""
    if not re.fullmatch(r"1\.(2\.(8|11|12|13)|3|3\.1)", zlib.ZLIB_RUNTIME_VERSION):
        raise UnknownError(f"sizes by classic zlib: this is {zlib.ZLIB_RUNTIME_VERSION}")
    return len(zlib.compress(" ".join(words).encode(), 6))


def shared(one: list[str], other: list[str], n: int) -> int:
    """Count n-grams that both have, each as often as both have it."""
    cuts = ([words[at:] for at in range(n)] for words in (one, other))
    left, right = (Counter(zip(*cut, strict=False)) for cut in cuts)
    return (left & right).total()


# Answers at points of a text, as He et al. 2025 (PETAL, USENIX Security) ask. Some weigh each word
# by how rarely the model says it elsewhere: ln(T / (1 + df)), Spärck Jones 1972, where df counts
# the other groups of texts, of T, among whose answers the word stands.


def groups_counted(run: Run) -> tuple[dict[str, object], int]:
    """Name the group of each text whose answers count, and give 1 if only nulls' do, else 0.

    Only nulls' count where they are compared with texts of unknown membership.
    """
    if run.settings["rarity_from"] is not None or run.settings["stop_when_decided"]:
        raise UnknownError("answers that were counted in another run, or in rounds")
    asked, nulls = run.compared()
    if nulls and (nulls[0]["role"] == "non_member" or any(row["member"] is None for row in asked)):
        return {row["target_id"]: row["cluster"] for row in nulls}, 1
    rows = [row for row in run.texts() if row["role"] != "yardstick"]
    apart = len({row["cluster"] for row in rows}) == 1 or not nulls  # each text is a group
    return {row["target_id"]: row["target_id"] if apart else row["cluster"] for row in rows}, 0


@cache
def groups_that_say(run: Run, model: str) -> tuple[Counter[str], int]:
    """Count the groups among whose answers each word stands, and the groups that have answers."""
    said, (groups, _) = defaultdict[object, set[str]](set), groups_counted(run)
    for row in run.evidence("samples", model=model, view="probe"):
        if row["candidate"] is not None and (group := groups.get(row["target_id"])) is not None:
            said[group].update(words_of(row["candidate"], run.settings["word_rule"]))
    return Counter(word for words in said.values() for word in words), len(said)


@cache
def next_tokens(run: Run) -> tuple[dict[str, int], list[tuple[str, str, bool]]]:
    """Deal texts, by group, into 16 folds; list text, true token and hit of every answer."""
    counted, _ = groups_counted(run)
    apart = all(target_id == group for target_id, group in counted.items())
    group = {row["target_id"]: row["cluster"] for row in run.texts("targets")}
    group = {target_id: target_id if apart else of for target_id, of in group.items()}
    first = {group[target_id]: target_id for target_id in sorted(group, reverse=True)}
    place = {target_id: at for at, target_id in enumerate(sorted(first.values()), 1)}
    rows = run.read("prompts", model="target", view="token")
    true = {(row["target_id"], row["view_index"]): row["text"] for row in rows}
    said = [
        (row["target_id"], token, row["candidate"] == token)
        for row in run.evidence("samples", model="target", view="token")
        if None not in (token := true[row["target_id"], row["view_index"]], row["candidate"])
    ]
    return {target_id: place[first[of]] % 16 for target_id, of in group.items()}, said


def lowest(percent: int, values: Iterable[float | None]) -> float:
    ranked = sorted(each for each in values if each is not None)
    return mean(ranked[: max(len(ranked) * percent // 100, 1)])


def early(percent: int, values: Sequence[float | None]) -> float:
    """Weigh the lowest values by their tokens' places, from 1 to 1 / n."""
    ranked = sorted((each, place) for place, each in enumerate(values) if each is not None)
    kept, n = ranked[: max(len(ranked) * percent // 100, 1)], len(values)
    return mean(each * (n - place) / n for each, place in kept)


def stretches(n: int, values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[at : at + n] for at in range(len(values) - n + 1)]


def polarized(logprobs: list[float]) -> float:
    """PAC: mean of the highest 5 % of log-probabilities less that of the lowest 30 %."""
    return -lowest(5, [-each for each in logprobs]) - lowest(30, logprobs)


# Attacks, each by its name or in the table; a higher score means more likely a member.

_NEAR_1 = -(2.0**-24)  # float32 cannot tell a probability above exp of this from 1


def phi(logprob: float) -> float:
    """Log p / (1 - p)."""
    return min(logprob, _NEAR_1) - log(-expm1(min(logprob, _NEAR_1)))


def differ(gains: list[float]) -> list[float]:
    """None where two models agree to 0.00001 nats on average, which is rounding."""
    return gains if fsum(map(abs, gains)) > 1e-5 * len(gains) else []


class Attacks(Text):
    """Attacks that take some lines; the others stand in the table below."""

    def rarity(self, words: str, of: str = "target") -> float:
        """Sum weights by words asked; if a text's own answers count, they are the 1 of 1 + df."""
        (df, total), (groups, further) = groups_that_say(self.run, of), groups_counted(self.run)

        def weight(word: str) -> float:
            return log((total + further) / max(df[word] + (self.id not in groups), 1))

        found = [(getattr(a, words), len(a.true)) for a in self.answers("probe", of)]
        return mean(share(fsum(map(weight, said)), n) for said, n in found)

    def token_hits_less_expected(self) -> float:
        """Hits, less the share of hits at the same true token in counted texts of other folds.

        It counts 30 answers about tokens as frequent in the run, up to a factor of two, besides its
        own (shrunk shares: Efron and Morris 1975).
        """
        (fold, said), (counted, _) = next_tokens(self.run), groups_counted(self.run)
        times = Counter(token for _, token, _ in said)
        n, hits = Counter[Any](), Counter[Any]()
        for target_id, token, is_hit in said:
            if target_id in counted and fold[target_id] != fold[self.id]:
                n.update(keys := (token, times[token].bit_length(), None))
                hits.update(keys * is_hit)

        def expected(token: str) -> float:
            alike = times[token].bit_length()
            prior = (hits[alike] + hits[None] / n[None]) / (n[alike] + 1)
            return (hits[token] + 30 * prior) / (n[token] + 30)

        own = [(a.text == a.truth, a.truth) for a in self.answers("token")]
        return mean(is_hit - expected(token) for is_hit, token in own if n[None] >= 100)

    def petal(self) -> float:
        """He et al. 2025: likeness of words as log-probability, by a line from the other model.

        It is read from the run's ``features``, for no embeddings are computed here.
        """
        rows = self.run.read("features", target_id=self.id, view="probe", sample_index="0")
        of = {(row["model"], row["view_index"]): row["similarity"] for row in rows}
        own, base = (
            {a.prompt: log(max(of[model, a.prompt], 1e-16)) for a in self.answers("probe", model)}
            for model in ("target", "reference")
        )
        logprobs = {at: each[0] for at, each in self.each("probe", "reference").items()}
        x, y = zip(*((base[at], logprobs[at]) for at in base if at in logprobs), strict=True)
        slope = linear_regression(x, y).slope if len({*x}) > 1 else 0.0
        return mean(y) + slope * (mean(own.values()) - mean(x))

    def decop(self) -> float:
        """DE-COP, Duarte et al. 2024 (arXiv:2402.09910): which of four passages is verbatim.

        In question k that with label k modulo 4: a mean over labels of the share of right answers.
        An article that begins an answer names no label.
        """
        right: list[list[bool]] = [[], [], [], []]
        for a in self.answers("choice"):
            text = re.sub(r"^\W*A (?=(?!i)[^\W\d_A-Z]|i[^s])", "", a.text)
            labels = {*re.findall(r"\b[A-D]\b(?:['\u2019][^\W\d_])?", text)} & {*"ABCD"}
            if len(labels) == 1:
                right[a.prompt % 4].append(labels == {"ABCD"[a.prompt % 4]})
        return mean(map(mean, right))

    def standardised(self, of: str = "vocabulary_mean") -> list[float | None]:
        """Distances from the mean over the vocabulary, or the likeliest, in its deviations."""
        rows = self.tokens("logprob", of, "vocabulary_variance")
        return [(own - mu) / sqrt(variance) if variance > 0 else None for own, mu, variance in rows]

    def min_k(self, k: int) -> float:
        """Shi et al. 2024 (arXiv:2310.16789), equation 1."""
        return lowest(k, self.logprobs())

    def min_k_plus_plus(self, k: int) -> float:
        """Zhang et al. 2025 (arXiv:2404.02936)."""
        return lowest(k, self.standardised())

    def gaps(self, n: int) -> list[float]:
        found = [each for each in self.standardised("top_logprob") if each is not None]
        return [*map(mean, stretches(n, found))] or found

    def rate(self, of: str = "target") -> float:
        """Nats per byte; a token without a number counts as the mean of the others."""
        nats = self.average(of=of) * len(self.every("logprob", of=of))
        return nats / len(self.target["target"].encode())

    def difference(self, of: str) -> float:
        """Loss under another model that has the same tokens, less the target's."""
        return self.average() - (self.average(of=of) if self.alike(of) else inf)

    def aeca(self) -> float:
        """AECA, ICML 2026: how far p log 1 / f jumps between tokens, less how far log p varies."""
        rows = self.tokens("logprob", "log_inverse_frequency")
        potential = [exp(own) * surprise for own, surprise in rows] + [0.0]
        jumps = [one - following for one, following in pairwise(potential)]
        return float(pstdev(jumps) - pstdev([own for own, _ in rows]))

    def ez_mia(self) -> float:
        """Ilić et al. 2026 (arXiv:2601.12104): P / (P + N) where the target's first guess is wrong.

        P and N are the gains and losses of log-probability on the reference model.
        """
        found = [(own - base, rank) for base, own, rank in self.both("rank")]
        wrong = [gain for gain, rank in found if rank > 1]
        if found and not wrong:
            return 1.0
        return fsum(max(gain, 0.0) for gain in wrong) / fsum(map(abs, differ(wrong)))

    def wbc(self) -> float:
        """Chen et al. 2026 (arXiv:2601.02751), algorithm 1: windows whose gains sum to above 0."""
        gains = differ([own - base for base, own in self.both()])
        lengths = [min(n, len(gains)) for n in (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)]
        votes = ([fsum(window) > 0 for window in stretches(n, gains) if gains] for n in lengths)
        return mean(map(mean, votes))

    def informia(self) -> float:
        """Tao and Shokri 2025 (arXiv:2510.05582): log p / q + KL(q || p), of each token."""
        both = [(own - base, min(own, _NEAR_1), min(base, _NEAR_1)) for base, own in self.both()]
        return mean(
            gain + exp(q) * (q - p) - expm1(q) * log(expm1(q) / expm1(p)) for gain, p, q in both
        )

    def shadows(self, *, trained: bool) -> list[float]:
        """Mean log-probabilities under models that were tuned on the text (in), or not (out)."""
        return self.averages("text", "shadow", trained=trained)

    def lira(self, kind: str) -> float:
        """Carlini et al. 2022 (arXiv:2112.03570), algorithm 1: phi among that of shadow models."""
        ins, outs = ([*map(phi, self.shadows(trained=of))] for of in (True, False))
        own = phi(self.average())
        if kind == "online":
            squares = [(own - mean(each)) ** 2 / 2 / pvariance(each) for each in (outs, ins)]
            return squares[0] - squares[1] + log(pvariance(outs) / pvariance(ins)) / 2
        if kind == "online_fixed":
            return (own - mean(outs)) ** 2 - (own - mean(ins)) ** 2
        return (own - mean(outs)) / (pstdev(outs) if kind == "offline" else 1)

    def rmia(self) -> float:
        """Zarifzadeh et al. 2024 (arXiv:2312.03262): p / p(x), its mean over shadow models."""
        ins, outs = (self.shadows(trained=of) for of in (True, False))
        return exp(self.average()) / mean(map(exp, [*ins, *outs] if ins and outs else []))


_Term = Callable[[Answer], float]
# SaMIA: Kaneko et al. 2024 (arXiv:2404.11262v2), equations 1 and 5 (recall), 9 (precision), and 7
# (times the compressed size), whole with the denominators of the authors' code. ROUGE-N: Lin 2004.
SAMIA: dict[str, Callable[[int, Answer], float]] = {
    "samia": lambda n, a: share(shared(a.said, a.true, n), len(a.true)),
    "samia_precision": lambda n, a: share(shared(a.said, a.true, n), len(a.said)),
    "samia_zlib": lambda n, a: SAMIA["samia"](n, a) * zlib_size(a.said),
    "samia_plus_zlib": lambda n, a: SAMIA["samia"](n, a) + zlib_size(a.said),
    "samia_matched": lambda n, a: share(shared(a.cut, a.true, n), len(a.true) - n + 1),
    "samia_matched_precision": lambda n, a: share(shared(a.cut, a.true, n), len(a.cut) - n + 1),
    "samia_matched_zlib": lambda n, a: SAMIA["samia_matched"](n, a) * zlib_size(a.cut),
    "rouge": lambda n, a: share(shared(a.said, a.true, n), len(a.true) - n + 1),
}


def over(term: _Term, view: str = "continuation", least: int = 0) -> Callable[[Any], float]:
    """Take the mean over answers; an error where the truth has fewer words."""
    return lambda t: mean(term(a) for a in t.answers(view) if len(a.true) >= least)


SCORES: dict[str, Callable[[Attacks], float]] = {
    f"{name}_{n}" if name == "rouge" else name if n == 1 else f"{name}_n{n}": over(
        partial(term, n), least=n if name == "rouge" or "matched" in name else 0
    )
    for name, term in SAMIA.items()
    for n in range(1, 6)
}
for name in ("token_hits_less_expected", "petal", "decop", "aeca", "ez_mia", "wbc", "informia"):
    SCORES[name] = getattr(Attacks, name)
for name in ("online", "online_fixed", "offline", "offline_fixed"):
    SCORES[f"lira_{name}"] = partial(Attacks.lira, kind=name)
for k in (5, 10, 20, 30, 40, 50, 60):
    SCORES[f"min_k_{k}"] = partial(Attacks.min_k, k=k)
    SCORES[f"min_k_plus_plus_{k}"] = partial(Attacks.min_k_plus_plus, k=k)
SCORES |= {
    # He et al. 2025 (PETAL, USENIX Security); Lan et al. 2026 (MC-PDD)
    "token_hits": over(lambda a: a.text == a.truth, "token"),
    "probe_first_word": over(lambda a: len(a.leading) > 0, "probe"),
    "probe_leading": over(lambda a: share(len(a.leading), len(a.true)), "probe"),
    "probe_leading_rarity": lambda t: t.rarity("leading"),
    "probe_recall_rarity": lambda t: t.rarity("common"),
    "probe_rarity_difference": lambda t: t.rarity("leading") - t.rarity("leading", "reference"),
    "probe_rarity_loss": lambda t: t.rarity("leading") + t.average(),
    "masked_hits": over(lambda a: a.truth in a.text, "cloze"),
    # Yeom et al. 2018 (arXiv:1709.01604); Carlini et al. 2021 (arXiv:2012.07805), sections 4.2, 5.2
    "loss": Text.average,
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
    "pdr_loss": lambda t: early(100, t.logprobs()),
    "pdr_min_k_20": lambda t: early(20, t.logprobs()),
    "pdr_min_k_plus_plus_20": lambda t: early(20, t.standardised()),
    "gap_k_20": lambda t: lowest(20, t.gaps(3)),
    "gap_k_20_window_6": lambda t: lowest(20, t.gaps(6)),
    # PAC, Ye et al. 2024 (arXiv:2405.11930); Mattern et al. 2023 (arXiv:2305.18462); RMIA offline
    "pac": lambda t: mean(map(polarized, t.each("swapped").values())) - polarized(t.logprobs()),
    "neighbour_difference": lambda t: t.average() - mean(t.averages("neighbour")),
    "neighbour_ratio": lambda t: -t.average() / mean(t.averages("neighbour")),
    "rmia": Attacks.rmia,
    "rmia_offline": lambda t: exp(t.average()) / mean(map(exp, t.shadows(trained=False))),
    # Mitchell et al. 2023 (arXiv:2301.11305), baselines; Gehrmann et al. 2019 (arXiv:1906.04043)
    "rank": lambda t: -mean(rank for _, rank in t.tokens("logprob", "rank")),
    "log_rank": lambda t: -mean(log(rank) for _, rank in t.tokens("logprob", "rank")),
    "top_1_share": lambda t: mean(rank == 1 for _, rank in t.tokens("logprob", "rank")),
    "entropy": lambda t: mean(mu for _, mu in t.tokens("logprob", "vocabulary_mean")),
    # Carlini et al. 2023 (arXiv:2202.07646), definition 3.1; Hayes et al. 2025 (arXiv:2410.19482)
    "extraction_run": lambda t: max(
        is_hit * len([*run]) for is_hit, run in groupby(rank == 1 for (rank,) in t.every("rank"))
    ),
    "extraction_best_50": lambda t: max(
        min(0.0, fsum(logprob for (logprob,) in stretch))
        for stretch in stretches(50, t.every("logprob"))
        if (None,) not in stretch
    ),
    # Xie et al. 2024 (arXiv:2406.15968); Zawalski et al. 2025 (arXiv:2510.27055)
    "recall_prefix": lambda t: t.average("nonmember_shots") / t.average(),
    "codec": lambda t: float(t.average("nonmember_shots") < t.average()),
    "probe_loss": lambda t: t.average("probe"),
    "probe_min_k_20": lambda t: lowest(20, t.logprobs("probe")),
}


def score(run: Run, attack: str, row: Row) -> Row:
    """Score one text: None where nothing, or less than half of what is read, is there."""
    t = Attacks(run, row["key"])
    try:
        value = float(SCORES[attack.removesuffix("_v1")](t))
    except (ArithmeticError, ValueError):
        return {"score": None}
    there = [each for rows in t.there.values() for each in rows]
    return {"score": value if 2 * sum(there) >= len(there) and isfinite(value) else None}


# p-values and q-values, from scores of texts or of groups; AUC and TPR, where texts are labelled.


def p_value(own: float, nulls: Iterable[tuple[float | None, float]], weight: float = 1) -> float:
    """Conformal p-value among nulls and their weights: Vovk, Gammerman and Shafer 2005, 2.2.

    A null without score is high; scores have 12 digits, sums of weights 9. These are 1 / size where
    nulls share groups: Lee, Barber and Willett (arXiv:2306.06342); or odds of being audited:
    Tibshirani et al. 2019 (arXiv:1904.06019), equation 7.
    """
    nulls, least = [*nulls], float(f"{own:.12g}")
    above = fsum(w for null, w in nulls if null is None or float(f"{null:.12g}") >= least)
    return (weight + round(above, 9)) / (weight + round(fsum(w for _, w in nulls), 9))


def q_value(p: float, every: Iterable[float | None], adjustment: str) -> float:
    """Benjamini and Hochberg 1995; ``by``: Benjamini and Yekutieli 2001, theorem 1.3."""
    ordered = sorted(1.0 if each is None else each for each in every)
    factor = sum(1 / n for n in range(1, len(ordered) + 1)) if adjustment == "by" else 1.0
    steps = (each * len(ordered) / n for n, each in enumerate(ordered, 1) if each >= p - _SAME)
    return min(1.0, factor * min(steps, default=1.0))


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
def odds(run: Run, *, of_groups: bool) -> dict[str, float]:
    """Odds of each text, or its group, of being audited by what is known of it without the model.

    From normal scores of blind classifiers' ranks, of a group their means, in 5 folds of clusters.
    """
    blind, units, (asked, nulls) = {}, defaultdict[Any, list[str]](list), run.compared()
    for row in run.read("blind"):
        ranks = [value for name, value in row.items() if name.startswith("targets_")]
        if None not in ranks:
            blind[row["target_id"]] = [*map(NormalDist().inv_cdf, ranks)]
    for at, row in enumerate([*asked, *nulls]):
        if row["target_id"] in blind:
            unit = " ".join(row["cluster"]), at < len(asked), 0 if of_groups else at
            units[unit].append(row["target_id"])
    names = sorted(units) if of_groups else [*units]
    x = np.array([np.mean([blind[each] for each in units[name]], axis=0) for name in names])
    x, label = x / np.maximum(x.std(axis=0), 1e-9), np.array([name[1] for name in names])
    labels = defaultdict[str, list[bool]](list)
    for cluster, is_asked, _ in names:
        labels[cluster].append(is_asked)
    draws = np.random.default_rng(run.settings["seed"]).random(len(labels))
    kinds = [(any(of) + all(of), draw) for of, draw in zip(labels.values(), draws, strict=True)]
    order = sorted(zip(kinds, labels, strict=True))
    place = {cluster: at % 5 for at, (_, cluster) in enumerate(order)}
    fold, found = np.array([place[name[0]] for name in names]), np.empty(len(names))
    for own in (fold == each for each in range(5)):
        found[own] = fitted(x[~own], label[~own], x[own])
    values = zip(names, found / found[~label].mean(), strict=True)  # 1 on average over nulls
    return {target_id: float(value) for name, value in values for target_id in units[name]}


def summaries(run: Run, attack: str, rows: list[Row], statistic: str, n: int) -> dict[Any, Any]:
    """Summarise each group by n of its windows, at like places: its score, and its first text."""
    scores, of_cluster = run.scores(attack), defaultdict[Any, list[str]](list)
    for row in rows:
        of_cluster[row["cluster"]].append(row["target_id"])
    places, found = np.random.default_rng(run.settings["seed"]).random(n).tolist(), {}
    of: Any = {"mean": mean, "median": median, "maximum": max}[statistic]
    for cluster, texts in of_cluster.items():
        ends = pairwise(number * len(texts) // n for number in range(n + 1))
        if len(texts) >= n:
            steps = zip(ends, places, strict=True)
            chosen = [scores[texts[at + int(place * (end - at))]] for (at, end), place in steps]
            found[cluster] = None if None in chosen else of(chosen), texts[0]
    return found


def answer(run: Run, attack: str, row: Row) -> Row:
    """Recompute score, p-value and q-value of a text, or of a group of texts."""
    known = r"(weighted_)?conformal(_groups|_([a-z]+)_of_(\d+))?"
    method, edges = re.fullmatch(known, row["method"]), run.settings["length_edges"]
    if method is None or (run.settings["ties"] == "random" and not method[1]):
        raise UnknownError(f"p-values by {row['method']}, ties {run.settings['ties']}")
    (asked, nulls), scores = run.compared(), run.scores(attack)
    weights = {each["target_id"]: 1.0 for each in (*asked, *nulls)}
    weights = odds(run, of_groups=bool(method[3])) if method[1] else weights
    if method[3]:
        groups = [summaries(run, attack, of, method[3], int(method[4])) for of in (asked, nulls)]
        own, first = groups[0][row["level"], row["key"]]
        others = [(found, weights.get(at, 0.0)) for found, at in groups[1].values()]
    else:
        own, first = scores[row["key"]], row["key"]
        words = {each["target_id"]: each["n_words"] for each in (*asked, *nulls)}
        bucket = {name: n is not None and bisect(edges, n) for name, n in words.items() if edges}
        like = [each for each in nulls if each["target_id"] in weights]
        like = [each for each in like if bucket.get(each["target_id"]) == bucket.get(first)]
        sizes = Counter(each["cluster"] for each in like)
        names = [(each["target_id"], sizes[each["cluster"]]) for each in like]
        others = [(scores[name], weights[name] / size) for name, size in names]
    p = None if own is None else p_value(own, others, weights[first])
    found = {"score": own, "p_value": p}
    if row["adjustment"] in ("bh", "by") and p is not None:
        found["q_value"] = q_value(p, row["family"], row["adjustment"])
    return found


def figure(run: Run, attack: str, row: Row) -> Row:
    """AUC (ties one half), or the TPR where at most a share of the non-members scores as high."""
    of: dict[bool, list[float]] = {True: [], False: []}
    for text in run.texts():
        found, member = run.scores(attack)[text["target_id"]], text["member"]
        if text["role"] in ("target", "non_member") and not (member is None or found is None):
            of[member].append(found)
    ins, outs = of[True], sorted(of[False])
    if row["metric"] == "roc_auc":
        below = ((bisect(outs, each) + bisect_left(outs, each)) / 2 for each in ins)
        return {"value": mean(below) / len(outs)}
    spared = sum(n / len(outs) <= row["fpr"] for n in range(1, len(outs) + 1))
    return {"value": mean(each > [-inf, *outs][-1 - spared] for each in ins)}


# The root, and numbers that are drawn and compared.


def root(run: Run) -> str:
    """Hash the lines that ``sha256sum`` prints of tables and inputs; of these the known hashes."""
    custody, inputs = run.manifest["custody"], run.manifest["inputs"].items()
    found = {f"{of}/{name}": known for of, files in inputs for name, known in files.items()}
    for name in custody["tables"]:
        found[name] = sha256((run.folder / name).read_bytes()).hexdigest()
    lines = "".join(f"{found[name]}  {name}\n" for name in sorted(found))
    return sha256(lines.encode()).hexdigest()


def claims(run: Run, attack: str) -> Iterable[tuple[Callable[..., Row], list[Row]]]:
    """List what a run says of an attack, by kind: scores, tests with a p-value, AUC and TPR."""
    own = [row["target_id"] for row in run.texts() if row["role"] != "yardstick"]
    scores = run.scores(attack)
    yield score, [{"level": "text", "key": key, "score": scores[key]} for key in own]
    every = run.read("verdicts", attack=attack, versus="non_members")
    for levels in (["target"], ["group", "document"]):
        rows = [row for row in every if row["level"] in levels and row["estimate"] is None]
        family = {"family": [row["p_value"] for row in rows]}
        yield answer, [row | family for row in rows if row["p_value"] is not None]
    for metric in ("roc_auc", "tpr_at_fpr"):
        rows = run.read("metrics", attack=attack, slice="all", metric=metric)
        named = [row | {"level": metric, "key": row["fpr"] or "labelled texts"} for row in rows]
        yield figure, [row for row in named if None not in (row["value"], row["n_members"])]


def compare(folder: Path | str, n: int, seed: int = 0) -> tuple[list[str], bool]:
    """Recompute the root and n drawn rows; say what was found, and whether all are equal.

    Attacks and kinds take turns, in an order that the seed decides.
    """
    run, dice, apart = Run(folder), random.Random(seed), list[float]()
    known = [name for name in run.asked["attacks"] if name.removesuffix("_v1") in SCORES]
    lines = [f"not recomputed: {name}" for name in run.asked["attacks"] if name not in known]
    lines.append("not recomputed: the collection, canaries, estimates and the yardstick")
    kinds = [(name, of, rows) for name in known for of, rows in claims(run, name)]
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
            lines.append(f"not recomputed: {what} ({error})")
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
