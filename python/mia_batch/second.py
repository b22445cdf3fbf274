"""A second implementation: the numbers of a run, recomputed from its files in plain Python.

To be read from top to bottom by somebody who trusts neither this package nor its authors: nothing
of it is imported. Polars opens the Parquet files, numpy's generator draws what it drew for the run,
and all else is the standard library. A number is recomputed from the files that it rests on: scores
from what models answered, p-values from scores, q-values from p-values, the root from the files'
bytes. What is not known here is said, and never counts as agreement.
"""

from __future__ import annotations

import json
import math
import random
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache, partial
from hashlib import sha256
from itertools import groupby, zip_longest
from pathlib import Path
from statistics import median
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
    def texts(self) -> list[Row]:
        return self.clustered("scores")

    def clustered(self, table: str) -> list[Row]:
        """Read which texts there are; a ``cluster`` is a group, else a document, else one text."""
        names = ("target_id", "role", "member", "group", "document_id", "window_index")
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
        """Find the texts that are asked about, and the nulls, which are known to be outside.

        Where no role is ``non_member`` the nulls are those asked about with ``member`` false.
        """
        asked = [row for row in self.texts() if row["role"] == "target"]
        given = [row for row in self.texts() if row["role"] == "non_member"]
        outside = given or [row for row in asked if row["member"] is False]
        return [row for row in asked if given or row["member"] is not False], outside


# Words, shares and means.

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
    return math.fsum(found) / len(found)


def zlib_size(text: str) -> int:
    """Measure a text as classic zlib compresses it at level 6, on which published figures rest."""
    if not re.fullmatch(r"1\.(2\.(8|11|12|13)|3|3\.1)", zlib.ZLIB_RUNTIME_VERSION):
        raise UnknownError(f"sizes by classic zlib: this is {zlib.ZLIB_RUNTIME_VERSION}")
    return len(zlib.compress(text.encode(), 6))


# What models answered about one text.


class Answer(NamedTuple):
    """Words of a continuation and of the truth; ``cut``: as many as the truth has."""

    is_true: bool
    said: list[str]
    cut: list[str]
    true: list[str]

    def shared(self, words: list[str], n: int) -> int:
        """Count n-grams of words that the truth has, too, each as often as both have it."""
        cuts = ([text[at:] for at in range(n)] for text in (words, self.true))
        said, true = (Counter(zip(*cut, strict=False)) for cut in cuts)
        return (said & true).total()

    @property
    def leading(self) -> list[str]:
        """The words with which both begin."""
        pairs = enumerate(zip(self.cut, self.true, strict=False))
        return self.cut[: next((at for at, (one, two) in pairs if one != two), len(self.cut))]


class Evidence:
    """What models answered about one text; ``there``: which of the rows that were read are."""

    def __init__(self, run: Run, target_id: str) -> None:
        self.run, self.there = run, dict[tuple[str, ...], list[bool]]()
        self.target, *_ = run.read("targets", target_id=target_id)
        asked, names = run.read("prompts", target_id=target_id), ("model", "view", "view_index")
        self.texts = {tuple(row[name] for name in names): row["text"] for row in asked}
        tables = "samples", "logprobs"
        self.tables = {name: run.evidence(name, target_id=target_id) for name in tables}

    def rows(self, table: str, *key: str) -> list[Row]:
        return [row for row in self.tables[table] if (row["model"], row["view"]) == key]

    def answers(self, model: str = "target", view: str = "continuation") -> list[Answer]:
        """Read the answers to the prompts of a view, less what was refused or lost."""
        found = [self._answer(row) for row in self.rows("samples", model, view)]
        self.there["samples", model, view] = [each is not None for each in found]
        return [each for each in found if each is not None]

    def _answer(self, row: Row) -> Answer | None:
        text = self.texts.get((row["model"], row["view"], row["view_index"]))
        true, said = self.target["reference"] if text is None else text, row["candidate"]
        if said is None or true is None:
            return None
        if self.run.settings["preset"] == "samia" and row["view"] == "continuation":
            # The authors' code cuts prompt and answer, together, behind half of the words.
            whole = words_of((row["prompt"] or self.target["prefix"]) + said, "space")
            length = self.run.settings["text_length"] or self.target["n_words"]
            said = " ".join(whole[round(length * 0.5) :])
        words, truth = (words_of(each, self.run.settings["word_rule"]) for each in (said, true))
        return Answer(said == true, words, words[: len(truth)], truth)

    def series(self, *columns: str, of: str = "target", view: str = "text") -> list[Any]:
        """Put numbers of each token side by side, None where there is no number."""
        rows = self.rows("logprobs", of, view)
        lost = [row["reason"] is not None and row["n_bytes"] is not None for row in rows]
        self.there["logprobs", of, view] = [not each for each in lost]
        whole = [row for row in rows if None not in map(row.get, columns)]
        return [each for row in whole for each in zip(*map(row.get, columns), strict=True)]

    def tokens(self, *columns: str, of: str = "target", view: str = "text") -> list[Any]:
        """Put numbers side by side of those tokens that have all of them."""
        return [each for each in self.series(*columns, of=of, view=view) if None not in each]

    def logprobs(self, of: str = "target", view: str = "text") -> list[float]:
        return [logprob for (logprob,) in self.tokens("logprob", of=of, view=view)]

    def average(self, of: str = "target", view: str = "text") -> float:
        """Mean log-probability of the tokens, in nats: minus the loss."""
        return mean(self.logprobs(of, view))


SCORES: dict[str, Callable[[Evidence], float]] = {}
"""What each attack computes; a higher score means more likely a member."""


# SaMIA: Kaneko et al. 2024 (arXiv:2404.11262v2), equations 1 and 5 (recall), 9 (precision), and 7
# (times the compressed size), whole with the denominators of the authors' code. ROUGE-N: Lin 2004,
# section 2. All are means over continuations.

SAMIA: dict[str, Callable[[Answer, int], float]] = {
    "samia": lambda a, n: share(a.shared(a.said, n), len(a.true)),
    "samia_precision": lambda a, n: share(a.shared(a.said, n), len(a.said)),
    "samia_zlib": lambda a, n: SAMIA["samia"](a, n) * zlib_size(" ".join(a.said)),
    "samia_plus_zlib": lambda a, n: SAMIA["samia"](a, n) + zlib_size(" ".join(a.said)),
    "samia_matched": lambda a, n: share(a.shared(a.cut, n), len(a.true) - n + 1),
    "samia_matched_precision": lambda a, n: share(a.shared(a.cut, n), len(a.cut) - n + 1),
    "samia_matched_zlib": lambda a, n: SAMIA["samia_matched"](a, n) * zlib_size(" ".join(a.cut)),
    "rouge": lambda a, n: share(a.shared(a.said, n), len(a.true) - n + 1),
}


def over_answers(name: str, n: int, e: Evidence) -> float:
    """Take the mean over continuations; of n-grams some have none where the truth has none."""
    answers = e.answers()
    if name == "rouge" or "matched" in name:
        answers = [answer for answer in answers if len(answer.true) >= n]
    return mean(SAMIA[name](answer, n) for answer in answers)


for name in SAMIA:
    for n in range(1, 6):
        end = f"_{n}" if name == "rouge" else "" if n == 1 else f"_n{n}"
        SCORES[f"{name}{end}_v1"] = partial(over_answers, name, n)


# Answers at points of a text, as He et al. 2025 (PETAL, USENIX Security) ask. Some weigh each word
# by how rarely the model says it elsewhere: ln(T / (1 + df)), Spärck Jones 1972, where df counts
# the other groups of texts, of T, among whose answers the word stands.


def groups_counted(run: Run) -> tuple[dict[str, object], int]:
    """Name the group of each text whose answers count, and say whether there are further ones.

    Of texts of unknown membership only those that they are compared with count, the same for all. A
    text is a group of its own where none is known to be outside, or all are of one group.
    """
    asked, nulls = run.compared()
    if nulls and (nulls[0]["role"] == "non_member" or any(row["member"] is None for row in asked)):
        return {row["target_id"]: row["cluster"] for row in nulls}, 1
    rows = [row for row in run.texts() if row["role"] != "yardstick"]
    apart = len({row["cluster"] for row in rows}) == 1 or not nulls
    return {row["target_id"]: row["target_id"] if apart else row["cluster"] for row in rows}, 0


@cache
def groups_that_say(run: Run, model: str) -> tuple[Counter[str], int]:
    """Count the groups among whose answers each word stands, and the groups that have answers."""
    if run.settings["rarity_from"] is not None or run.settings["stop_when_decided"]:
        raise UnknownError("words that were counted in another run, or in rounds")
    said, (groups, _) = defaultdict[object, set[str]](set), groups_counted(run)
    for row in run.evidence("samples", model=model, view="probe"):
        if row["candidate"] is not None and (group := groups.get(row["target_id"])) is not None:
            said[group].update(words_of(row["candidate"], run.settings["word_rule"]))
    return Counter(word for words in said.values() for word in words), len(said)


def rarity(e: Evidence, shared: Iterable[str], model: str = "target") -> float:
    """Sum the weights of words; where a text's own answers count, they are the 1 of 1 + df."""
    (df, total), (groups, further) = groups_that_say(e.run, model), groups_counted(e.run)
    others = 0 if e.target["target_id"] in groups else 1
    return math.fsum(math.log((total + further) / max(df[word] + others, 1)) for word in shared)


def leading_rarity(e: Evidence, model: str = "target") -> float:
    answers = e.answers(model, "probe")
    return mean(share(rarity(e, each.leading, model), len(each.true)) for each in answers)


def recall_rarity(e: Evidence) -> float:
    both = [(Counter(a.cut) & Counter(a.true), len(a.true)) for a in e.answers(view="probe")]
    return mean(share(rarity(e, shared.elements()), n) for shared, n in both)


# Next tokens, less how often the model says the same true token in texts of other groups: a share
# that counts 30 answers about tokens as frequent in the run, up to a factor of two, besides its own
# (shrunk shares: Efron and Morris 1975). Groups are dealt into 16 folds; a text's own is left out.


@cache
def expected_hits(run: Run) -> tuple[dict[str, int], dict[tuple[int, str], float]]:
    """Deal each text into a fold, and say what is expected of a fold's hits of each token."""
    if run.settings["rarity_from"] is not None or run.settings["stop_when_decided"]:
        raise UnknownError("answers that were counted in another run, or in rounds")
    counted, _ = groups_counted(run)
    apart = all(target_id == group for target_id, group in counted.items())
    rows = run.clustered("targets")
    group = {row["target_id"]: row["target_id"] if apart else row["cluster"] for row in rows}
    first = {group[target_id]: target_id for target_id in sorted(group, reverse=True)}
    places = {target_id: place for place, target_id in enumerate(sorted(first.values()), 1)}
    fold = {target_id: places[first[of]] % 16 for target_id, of in group.items()}
    asked = run.read("prompts", "target_id", "view_index", "text", model="target", view="token")
    true = {(row["target_id"], row["view_index"]): row["text"] for row in asked}
    points, n, hits = Counter[str](), Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for row in run.evidence("samples", model="target", view="token"):
        token = true[row["target_id"], row["view_index"]]
        if row["candidate"] is not None and token is not None:
            points[token] += 1
            if row["target_id"] in counted:
                n[fold[row["target_id"]], token] += 1
                hits[fold[row["target_id"]], token] += row["candidate"] == token
    often = {token: int(math.log2(count + 0.5)) for token, count in points.items()}
    found = dict[tuple[int, str], float]()
    for own in {*fold.values()}:
        of_token, of_alike, of_all = (defaultdict[Any, list[int]](lambda: [0, 0]) for _ in range(3))
        for other, token in n:
            for sums in (of_token[token], of_alike[often[token]], of_all[0]):
                sums[0] += n[other, token] * (other != own)
                sums[1] += hits[other, token] * (other != own)
        whole, whole_hits = of_all[0]
        for token in points if whole >= 100 else ():
            (some, some_hits), (alike, alike_hits) = of_token[token], of_alike[often[token]]
            rate = (alike_hits + whole_hits / whole) / (alike + 1)
            found[own, token] = (some_hits + 30 * rate) / (some + 30)
    return fold, found


def hits_less_expected(e: Evidence) -> float:
    (folds, expected), own = expected_hits(e.run), e.target["target_id"]
    e.answers(view="token")  # notes which of them are there
    rows = [row for row in e.rows("samples", "target", "token") if row["candidate"] is not None]
    true = [e.texts["target", "token", row["view_index"]] for row in rows]
    keys = [(folds[own], token) for token in true]
    hits = (row["candidate"] == token for row, token in zip(rows, true, strict=True))
    pairs = zip(keys, hits, strict=True)
    return mean(is_hit - expected[key] for key, is_hit in pairs if key in expected)


def over_points(term: Callable[[Answer], float], e: Evidence, *, view: str = "probe") -> float:
    return mean(map(term, e.answers(view=view)))


SCORES |= {
    "token_hits_less_expected_v1": hits_less_expected,
    "token_hits_v1": partial(over_points, lambda a: a.is_true, view="token"),
    "probe_first_word_v1": partial(over_points, lambda a: len(a.leading) > 0),
    "probe_leading_v1": partial(over_points, lambda a: share(len(a.leading), len(a.true))),
    "probe_leading_rarity_v1": leading_rarity,
    "probe_recall_rarity_v1": recall_rarity,
    "probe_rarity_difference_v1": lambda e: leading_rarity(e) - leading_rarity(e, "reference"),
    "probe_rarity_loss_v1": lambda e: leading_rarity(e) + e.average(),
}


# Log-probabilities of a text's tokens: its loss, its least likely tokens, their ranks; and the same
# under other models, and after other texts.


def lowest(percent: int, of: Callable[[Evidence], list[float]], e: Evidence) -> float:
    values = sorted(of(e))
    return mean(values[: max(len(values) * percent // 100, 1)])


def standardised_or_none(e: Evidence) -> list[float | None]:
    rows = e.tokens("logprob", "vocabulary_mean", "vocabulary_variance")
    return [
        (own - mu) / math.sqrt(variance) if variance > 0 else None for own, mu, variance in rows
    ]


def standardised(e: Evidence) -> list[float]:
    return [each for each in standardised_or_none(e) if each is not None]


def early(percent: int, of: Callable[[Evidence], Iterable[float | None]], e: Evidence) -> float:
    """Weigh the lowest values by their tokens' places, from 1 to 1 / n; unweighed ones decide."""
    values = [*of(e)]
    ranked = sorted((each, place) for place, each in enumerate(values) if each is not None)
    kept, n = ranked[: max(len(ranked) * percent // 100, 1)], len(values)
    return mean(each * (n - place) / n for each, place in kept)


def gaps(window: int, e: Evidence) -> list[float]:
    """Distances from the likeliest token, in standard deviations: means of some in a row."""
    rows = e.tokens("logprob", "top_logprob", "vocabulary_variance")
    found = [(own - top) / math.sqrt(variance) for own, top, variance in rows if variance > 0]
    ends = range(window, len(found) + 1)
    return [math.fsum(found[end - window : end]) / window for end in ends] or found


def ranks(e: Evidence) -> list[int]:
    return [rank for _, rank in e.tokens("logprob", "rank")]


def longest_run(e: Evidence) -> float:
    """Carlini et al. 2023 (arXiv:2202.07646), definition 3.1: most tokens of rank 1 in a row."""
    hits = [logprob is not None and rank == 1 for logprob, rank in e.series("logprob", "rank")]
    return mean([max(hit * len([*run]) for hit, run in groupby(hits))] if ranks(e) else [])


def best_stretch(e: Evidence) -> float:
    """Hayes et al. 2025 (arXiv:2410.19482), log p_z of the likeliest 50 tokens in a row."""
    logprobs = [logprob for (logprob,) in e.series("logprob")]
    stretches = (logprobs[at : at + 50] for at in range(len(logprobs) - 49))
    sums = [math.fsum(stretch) for stretch in stretches if None not in stretch]
    return mean([min(max(sums), 0.0)] if sums else [])


def rate(e: Evidence, model: str = "target") -> float:
    """Nats per byte; a token without a number counts as the mean of the others."""
    n_tokens, nats = len(e.series("logprob", of=model)), e.average(model)
    return nats * n_tokens / len(e.target["target"].encode())


def difference(other: str, e: Evidence) -> float:
    """Shi et al. 2024, section 4.2; Fu et al. 2024 (arXiv:2311.06062), equations 4 and 7."""
    own, its = (e.series("token_ids", of=model) for model in ("target", other))
    return e.average() - e.average(other) if own and own == its else mean([])


for k in (5, 10, 20, 30, 40, 50, 60):
    # Shi et al. 2024 (arXiv:2310.16789), equation 1; Zhang et al. 2025 (arXiv:2404.02936)
    SCORES[f"min_k_{k}_v1"] = partial(lowest, k, Evidence.logprobs)
    SCORES[f"min_k_plus_plus_{k}_v1"] = partial(lowest, k, standardised)
SCORES |= {
    # Liu et al. 2026 (arXiv:2601.06827); Kwak and Kim 2026 (arXiv:2601.19936)
    "pdr_loss_v1": partial(early, 100, Evidence.logprobs),
    "pdr_min_k_20_v1": partial(early, 20, Evidence.logprobs),
    "pdr_min_k_plus_plus_20_v1": partial(early, 20, standardised_or_none),
    "gap_k_20_v1": partial(lowest, 20, partial(gaps, 3)),
    "gap_k_20_window_6_v1": partial(lowest, 20, partial(gaps, 6)),
    # Yeom et al. 2018 (arXiv:1709.01604); Carlini et al. 2021 (arXiv:2012.07805), sections 4.2, 5.2
    "loss_v1": Evidence.average,
    "perplexity_v1": lambda e: -math.exp(-e.average()),
    "loss_zlib_v1": lambda e: e.average() / zlib_size(e.target["target"]),
    "lowercase_difference_v1": lambda e: e.average() - e.average(view="lowercase"),
    "lowercase_ratio_v1": lambda e: -e.average() / e.average(view="lowercase"),
    "reference_difference_v1": lambda e: rate(e) - rate(e, "reference"),
    "reference_ratio_v1": lambda e: -rate(e) / rate(e, "reference"),
    "reference_token_difference_v1": partial(difference, "reference"),
    "self_prompt_difference_v1": partial(difference, "self_prompt"),
    "candidate_difference_v1": partial(difference, "candidate"),
    # Mitchell et al. 2023 (arXiv:2301.11305), baselines; Gehrmann et al. 2019 (arXiv:1906.04043)
    "rank_v1": lambda e: -mean(ranks(e)),
    "log_rank_v1": lambda e: -mean(map(math.log, ranks(e))),
    "top_1_share_v1": lambda e: mean(rank == 1 for rank in ranks(e)),
    "entropy_v1": lambda e: mean(mu for _, mu in e.tokens("logprob", "vocabulary_mean")),
    "extraction_run_v1": longest_run,
    "extraction_best_50_v1": best_stretch,
    # ReCaLL, Xie et al. 2024 (arXiv:2406.15968); and the above of tokens behind points of a text
    "recall_prefix_v1": lambda e: e.average(view="nonmember_shots") / e.average(),
    "probe_loss_v1": lambda e: e.average(view="probe"),
    "probe_min_k_20_v1": partial(lowest, 20, lambda e: e.logprobs(view="probe")),
}


def score(run: Run, attack: str, target_id: str) -> float | None:
    """Score one text; None where there is no value, or less than half of what is read is there."""
    e = Evidence(run, target_id)
    try:
        value = float(SCORES[attack](e))
    except ArithmeticError:
        return None
    there = [each for rows in e.there.values() for each in rows]
    return value if 2 * sum(there) >= len(there) and math.isfinite(value) else None


# p-values and q-values, from scores of texts or of groups.


def p_value(own: float, nulls: list[float | None], weights: list[float]) -> float:
    """Conformal p-value, Vovk, Gammerman and Shafer 2005, section 2.2, of 12 digits of the scores.

    A null without score is high. Nulls that share groups weigh 1 / size: Lee, Barber and Willett
    (arXiv:2306.06342).
    """
    high = (null is None or float(f"{null:.12g}") >= float(f"{own:.12g}") for null in nulls)
    above = math.fsum(weight for weight, is_high in zip(weights, high, strict=True) if is_high)
    return (1 + above) / (1 + math.fsum(weights))


def q_value(p: float, every: Iterable[float | None], adjustment: str) -> float:
    """Benjamini and Hochberg 1995; ``by``: Benjamini and Yekutieli 2001, theorem 1.3."""
    ordered = sorted(1.0 if each is None else each for each in every)
    factor = sum(1 / n for n in range(1, len(ordered) + 1)) if adjustment == "by" else 1.0
    steps = (each * len(ordered) / n for n, each in enumerate(ordered, 1) if each >= p - _SAME)
    return min(1.0, factor * min(steps, default=1.0))


def summaries(run: Run, attack: str, rows: list[Row], statistic: str, n: int) -> dict[Any, Any]:
    """Summarise each group by n of its windows: one of each of n stretches, at the same places."""
    scores, values_of = run.scores(attack), defaultdict[Any, list[float | None]](list)
    for row in rows:
        values_of[row["cluster"]].append(scores[row["target_id"]])
    places, found = np.random.default_rng(run.settings["seed"]).random(n).tolist(), {}
    of: Any = {"mean": mean, "median": median, "maximum": max}[statistic]
    for cluster, values in values_of.items():
        ends = [number * len(values) // n for number in range(n + 1)]
        steps = zip(ends, ends[1:], places, strict=False)
        chosen = [values[first + int(place * (last - first))] for first, last, place in steps]
        if len(values) >= n:
            found[cluster] = None if None in chosen else of(chosen)
    return found


def answer(run: Run, attack: str, row: Row) -> Row:
    """Recompute score, p-value and q-value of a text, or of a group of texts."""
    method = re.fullmatch(r"conformal_([a-z]+)_of_(\d+)", row["method"])
    (asked, nulls), scores = run.compared(), run.scores(attack)
    if run.settings["length_edges"] or run.settings["ties"] == "random":
        raise UnknownError("p-values among texts of like length, or with ties by lot")
    if row["method"] in ("conformal", "conformal_groups"):
        sizes = Counter(each["cluster"] for each in nulls)
        own, weights = scores[row["key"]], [1 / sizes[each["cluster"]] for each in nulls]
        others = [scores[each["target_id"]] for each in nulls]
    elif method is not None:
        groups = [summaries(run, attack, of, method[1], int(method[2])) for of in (asked, nulls)]
        own, others = groups[0][row["level"], row["key"]], [*groups[1].values()]
        weights = [1.0] * len(others)
    else:
        raise UnknownError(f"p-values by {row['method']}")
    p = None if own is None else p_value(own, others, weights)
    q = None if p is None else q_value(p, row["family"], row["adjustment"])
    return {"score": own, "p_value": p, "q_value": q}


# The root, and numbers that are drawn and compared.


def root(run: Run) -> str:
    """Hash the lines that ``sha256sum`` prints of tables and inputs; of these the known hashes."""
    custody, inputs = run.manifest["custody"], run.manifest["inputs"].items()
    found = {f"{of}/{name}": known for of, files in inputs for name, known in files.items()}
    for name in custody["tables"]:
        found[name] = sha256((run.folder / name).read_bytes()).hexdigest()
    return sha256(
        "".join(f"{found[name]}  {name}\n" for name in sorted(found)).encode()
    ).hexdigest()


def rows_of(run: Run, attack: str) -> list[list[Row]]:
    """List what a run says of an attack, by level: scores, and tests that have a p-value."""
    own = [row["target_id"] for row in run.texts() if row["role"] != "yardstick"]
    found = [[{"level": "text", "key": key, "score": run.scores(attack)[key]} for key in own]]
    every = run.read("verdicts", attack=attack, versus="non_members")
    for levels in (["target"], ["group", "document"]):
        rows = [row for row in every if row["level"] in levels and row["estimate"] is None]
        family = {"family": [row["p_value"] for row in rows]}
        found.append([row | family for row in rows if row["p_value"] is not None])
    return found


def compare(folder: Path | str, n: int, seed: int = 0) -> tuple[list[str], bool]:
    """Recompute the root and n drawn rows; say what was found, and whether all are equal.

    Attacks and levels take turns, in an order that the seed decides.
    """
    run, dice, apart = Run(folder), random.Random(seed), list[float]()
    lines = [f"not recomputed: {name}" for name in run.asked["attacks"] if name not in SCORES]
    lines.append("not recomputed: the collection, canaries, estimates and the yardstick")
    known = [name for name in run.asked["attacks"] if name in SCORES]
    queues = [[(name, row) for row in rows] for name in known for rows in rows_of(run, name)]
    queues = [dice.sample(rows, min(n, len(rows))) for rows in dice.sample(queues, len(queues))]
    for attack, row in (each for turn in zip_longest(*queues) for each in turn if each):
        if len(apart) == n:
            break
        what, is_text = f"{attack} of {row['level']} {row['key']}", row["level"] == "text"
        try:
            found = (
                {"score": score(run, attack, row["key"])} if is_text else answer(run, attack, row)
            )
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
        return 0.0 if one is other else math.inf
    return abs(one - other) / max(abs(one), abs(other), 1e-3)
