"""Attacks from log-probabilities, written from the papers for clarity alone.

Each reads the rows of one target, as dictionaries; it gives a number, or None where undefined.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

import numpy as np

from tests import reference_complexity

Row = dict[str, Any]
Reference = Callable[[Sequence[Row]], float | None]

PERCENTS = (5, 10, 20, 30, 40, 50, 60)


class Undefined(Exception):
    """The formula has no value here."""


def text(rows: Sequence[Row], view: str = "text", role: str = "target") -> Row:
    for row in rows:
        if (row["model"], row["view"]) == (role, view) and row["logprob"] is not None:
            return row
    raise Undefined


def tokens(row: Row, *columns: str) -> list[tuple[Any, ...]]:
    if any(row[column] is None for column in columns):
        raise Undefined
    together = zip(row["logprob"], *(row[column] for column in columns), strict=True)
    return [values[1:] if columns else values for values in together if values[0] is not None]


def log_likelihood(row: Row) -> float:
    """Mean log-probability of a text's tokens; minus the loss."""
    found = [logprob for (logprob,) in tokens(row)]
    if not found:
        raise Undefined
    return fmean(found)


def per_token(values: Sequence[float]) -> float:
    if not values:
        raise Undefined
    return fmean(values)


def ratio(above: float, below: float) -> float:
    if below == 0:
        raise Undefined
    return above / below


def min_k(values: Sequence[float], percent: int) -> float:
    """Authors' ``int(len(all_prob) * ratio)`` of the lowest, but at least one."""
    k = max(1, int(len(values) * (percent / 100)))
    return per_token(sorted(values)[:k])


def min_k_of(percent: int) -> Reference:
    return lambda rows: min_k([logprob for (logprob,) in tokens(text(rows))], percent)


def min_k_plus_plus_of(percent: int) -> Reference:
    def reference(rows: Sequence[Row]) -> float:
        found = tokens(text(rows), "logprob", "vocabulary_mean", "vocabulary_variance")
        return min_k([(lp - mu) / math.sqrt(var) for lp, mu, var in found if var > 0], percent)

    return reference


def gap_k_of(window: int) -> Reference:
    """The authors' ``window_lowmean`` of (log p(x_t) - max log p) / sigma_t, with a fifth."""

    def reference(rows: Sequence[Row]) -> float:
        found = tokens(text(rows), "logprob", "top_logprob", "vocabulary_variance")
        gaps = [(lp - top) / math.sqrt(var) for lp, top, var in found if var > 0]
        if len(gaps) < window:
            return min_k(gaps, 20)
        starts = range(len(gaps) - window + 1)
        return min_k([sum(gaps[at : at + window]) / window for at in starts], 20)

    return reference


def pdr(terms: Sequence[float | None], percent: int) -> float:
    """Chosen by their own size, then weighed by place; over their number, not their weights."""
    there = [(term, place) for place, term in enumerate(terms) if term is not None]
    chosen = sorted(there)[: max(1, len(there) * percent // 100)]
    return per_token([term * (len(terms) - place) / len(terms) for term, place in chosen])


def pdr_min_k_plus_plus(rows: Sequence[Row]) -> float:
    found = tokens(text(rows), "logprob", "vocabulary_mean", "vocabulary_variance")
    return pdr([(lp - mu) / math.sqrt(var) if var > 0 else None for lp, mu, var in found], 20)


def polarised(row: Row) -> float:
    """The authors' ``calculate_Polarized_Distance``."""
    ascending = sorted(logprob for logprob in row["logprob"] if logprob is not None)
    near, far = (max(1, len(ascending) * percent // 100) for percent in (30, 5))
    return per_token(ascending[-far:]) - per_token(ascending[:near])


def pac(rows: Sequence[Row]) -> float:
    found = [row for row in rows if row["view"] == "swapped" and any_number(row)]
    if not any_number(text(rows)):
        raise Undefined
    return per_token([polarised(row) for row in found]) - polarised(text(rows))


def any_number(row: Row) -> bool:
    return any(logprob is not None for logprob in row["logprob"] or [])


def aeca(rows: Sequence[Row]) -> float:
    """Fast-MIA's ``process_output``."""
    found = tokens(text(rows), "logprob", "log_inverse_frequency")
    potential = np.array([math.exp(logprob) * inverse for logprob, inverse in found])
    if not found:
        raise Undefined
    jumps = potential - np.append(potential[1:], 0.0)
    return float(np.std(jumps) - np.std([logprob for logprob, _ in found]))


def nats_per_byte(row: Row) -> float:
    """Total over bytes; a token without a number counts as the others' mean."""
    tokens_per_byte: float = len(row["logprob"]) / row["n_bytes"]
    return log_likelihood(row) * tokens_per_byte


def difference(role: str) -> Reference:
    def reference(rows: Sequence[Row]) -> float:
        ours, theirs = text(rows), text(rows, role=role)
        if ours["token_ids"] is None or ours["token_ids"] != theirs["token_ids"]:
            raise Undefined
        return log_likelihood(ours) - log_likelihood(theirs)

    return reference


def recall(rows: Sequence[Row]) -> float:
    """LL(x | P) / LL(x)."""
    return ratio(log_likelihood(text(rows, "nonmember_shots")), log_likelihood(text(rows)))


def con_recall(rows: Sequence[Row], gamma: float = 0.5) -> float:
    """(LL(x | P_nonmember) - gamma LL(x | P_member)) / LL(x)."""
    after_members = log_likelihood(text(rows, "member_shots"))
    after_non_members = log_likelihood(text(rows, "nonmember_shots"))
    return ratio(after_non_members - gamma * after_members, log_likelihood(text(rows)))


def around(rows: Sequence[Row], view: str, role: str = "target") -> dict[int, float]:
    """Log-likelihood of each text of a view that has one, by its number."""
    found = {}
    for row in rows:
        if (row["model"], row["view"]) == (role, view) and row["logprob"] is not None:
            scored = [logprob for logprob in row["logprob"] if logprob is not None]
            if scored:
                found[row["view_index"]] = fmean(scored)
    return found


def several(rows: Sequence[Row], view: str) -> list[float]:
    return [*around(rows, view).values()]


def detect_gpt(rows: Sequence[Row]) -> float:
    """Algorithm 1: d / sqrt(sigma^2), sigma^2 with 1 / (k - 1)."""
    perturbed = several(rows, "perturbation")
    if len(set(perturbed)) < 2:
        raise Undefined
    return (log_likelihood(text(rows)) - fmean(perturbed)) / stdev(perturbed)


def dc_pdd(rows: Sequence[Row]) -> float:
    seen, alphas = set(), []
    for token, logprob, log_inverse in tokens(
        text(rows), "token_ids", "logprob", "log_inverse_frequency"
    ):
        if token not in seen:
            seen.add(token)
            alphas.append(min(math.exp(logprob) * log_inverse, 0.01))
    return per_token(alphas)


def log_p_z(rows: Sequence[Row], *, kept: bool = False) -> float:
    row = text(rows, "extraction")
    if (
        not row["logprob"]
        or None in row["logprob"]
        or (kept and (row["support_mass"] is None or None in row["support_mass"]))
    ):
        raise Undefined
    total = math.fsum(row["logprob"])
    return min(0.0, total - math.fsum(row["support_mass"])) if kept else total


def samples_needed(log_p: float, p: float) -> float:
    """Least n, not rounded and at least 1, with 1 - (1 - p_z)^n >= p; its logarithm, negated."""
    p_z = math.exp(log_p)
    if p_z == 1:
        return 0.0
    if p_z < 1e-300:  # n = -log(1 - p) / p_z overflows
        return -(math.log(-math.log(1 - p)) - log_p)
    return -math.log(max(1.0, math.log(1 - p) / math.log1p(-p_z)))


def greedy(rows: Sequence[Row]) -> float:
    row = text(rows, "extraction")
    ranks = [rank for (rank,) in tokens(row, "rank")]
    if not ranks or len(ranks) < len(row["logprob"]):
        raise Undefined
    return float(all(rank == 1 for rank in ranks))


def longest_run(rows: Sequence[Row]) -> float:
    """Most tokens in a row that greedy decoding gives; an unscored one breaks it."""
    row = text(rows)
    if not tokens(row, "rank"):
        raise Undefined
    together = zip(row["logprob"], row["rank"], strict=True)
    hits = [logprob is not None and rank == 1 for logprob, rank in together]
    return max(len(list(run)) if hit else 0 for hit, run in groupby(hits))


def best_stretch(rows: Sequence[Row], n: int = 50) -> float:
    series = text(rows)["logprob"]
    parts = [series[at : at + n] for at in range(len(series) - n + 1)]
    sums = [math.fsum(part) for part in parts if None not in part]
    return min(0.0, defined(max(sums, default=None)))


def surprising(rows: Sequence[Row]) -> float:
    """Least likely fifth of the tokens, of those the ones where the entropy is below 2 nats."""
    found = tokens(text(rows), "logprob", "vocabulary_mean")
    lowest = sorted(found, key=lambda pair: pair[0])[: max(1, len(found) * 20 // 100)]
    return per_token([logprob for logprob, mean in lowest if -mean < 2])


def at_points(rows: Sequence[Row]) -> list[float]:
    """Log-probabilities of the first tokens after the points that have one."""
    found = [row["logprob"] for row in rows if row["view"] == "probe" and row["logprob"]]
    return [logprob for of_point in found for logprob in of_point if logprob is not None]


def centred_at_points(rows: Sequence[Row]) -> list[float]:
    """Log-probabilities of the first tokens after the points, less what is expected of any."""
    found = [row for row in rows if row["view"] == "probe"]
    pairs = [
        ((row["logprob"] or [None])[0], (row["vocabulary_mean"] or [None])[0]) for row in found
    ]
    return [one - other for one, other in pairs if one is not None and other is not None]


def losses(rows: Sequence[Row]) -> list[float]:
    """Losses of the scored tokens, in their order; CAMIA's series L_1 .. L_T."""
    return [-logprob for (logprob,) in tokens(text(rows))]


def share_below(rows: Sequence[Row], limit: Callable[[list[float], int], float]) -> float:
    """Share of losses at or below a limit that depends on the series and the place in it."""
    series = losses(rows)
    return per_token([float(loss <= limit(series, place)) for place, loss in enumerate(series)])


def share_below_of(limit: float) -> Reference:
    return lambda rows: share_below(rows, lambda *_: limit)


def share_below_previous(rows: Sequence[Row]) -> float:
    series = losses(rows)
    return per_token([float(series[at] <= sum(series[:at]) / at) for at in range(1, len(series))])


def slope(rows: Sequence[Row]) -> float:
    """Minus the slope of the line that numpy fits."""
    series = losses(rows)
    if len(series) < 2:
        raise Undefined
    return -float(np.polynomial.Polynomial.fit(range(len(series)), series, 1).convert().coef[-1])


def from_end_of(percent: int) -> Reference:
    def reference(rows: Sequence[Row]) -> float:
        """Minus the place from the end, over the length, at which that share is exceeded."""
        low = [loss < 1 for loss in reversed(losses(rows))]
        if not any(low):
            raise Undefined
        places = range(len(low))
        exceeded = (at for at in places if 100 * sum(low[: at + 1]) > percent * sum(low))
        return -next(exceeded) / len(low)

    return reference


def loss_by_diversity(rows: Sequence[Row]) -> float:
    ids = [token for (token,) in tokens(text(rows), "token_ids")]
    return ratio(log_likelihood(text(rows)), ratio(len(set(ids)), len(ids)))


def defined(value: float | None) -> float:
    if value is None:
        raise Undefined
    return value


def complexity_of(bins: int) -> Reference:
    """Fewer words, more likely a member."""
    return lambda rows: (
        -defined(reference_complexity.lempel_ziv([-loss for loss in losses(rows)[:200]], bins))
    )


def series_entropy(rows: Sequence[Row]) -> float:
    return defined(reference_complexity.entropy(losses(rows)[:200], 8, 0.8))


def column_mean(column: str, of: Callable[[float], float]) -> Reference:
    return lambda rows: per_token([of(value) for (value,) in tokens(text(rows), column)])


REFERENCES: dict[str, Reference] = {
    "probe_centred_v1": lambda rows: per_token(centred_at_points(rows)),
    "probe_loss_v1": lambda rows: per_token(at_points(rows)),
    "probe_min_k_20_v1": lambda rows: min_k(at_points(rows), 20),
    "loss_v1": lambda rows: log_likelihood(text(rows)),
    "perplexity_v1": lambda rows: -math.exp(-log_likelihood(text(rows))),
    "loss_zlib_v1": lambda rows: log_likelihood(text(rows)) / text(rows)["zlib_size"],
    "lowercase_difference_v1": lambda rows: (
        log_likelihood(text(rows)) - log_likelihood(text(rows, "lowercase"))
    ),
    "lowercase_ratio_v1": lambda rows: (
        -ratio(log_likelihood(text(rows)), log_likelihood(text(rows, "lowercase")))
    ),
    **{f"min_k_{percent}_v1": min_k_of(percent) for percent in PERCENTS},
    **{f"min_k_plus_plus_{percent}_v1": min_k_plus_plus_of(percent) for percent in PERCENTS},
    "gap_k_20_v1": gap_k_of(3),
    "gap_k_20_window_6_v1": gap_k_of(6),
    "pdr_loss_v1": lambda rows: pdr([lp for (lp,) in tokens(text(rows))], 100),
    "pdr_min_k_20_v1": lambda rows: pdr([lp for (lp,) in tokens(text(rows))], 20),
    "pdr_min_k_plus_plus_20_v1": pdr_min_k_plus_plus,
    "pac_v1": pac,
    "aeca_v1": aeca,
    "reference_difference_v1": lambda rows: (
        nats_per_byte(text(rows)) - nats_per_byte(text(rows, role="reference"))
    ),
    "reference_token_difference_v1": difference("reference"),
    "reference_ratio_v1": lambda rows: (
        -ratio(nats_per_byte(text(rows)), nats_per_byte(text(rows, role="reference")))
    ),
    "recall_prefix_v1": recall,
    "con_recall_prefix_v1": con_recall,
    "repeated_difference_v1": lambda rows: (
        log_likelihood(text(rows)) - log_likelihood(text(rows, "repeated"))
    ),
    "codec_v1": lambda rows: float(
        log_likelihood(text(rows, "nonmember_shots")) < log_likelihood(text(rows))
    ),
    "neighbour_difference_v1": lambda rows: (
        log_likelihood(text(rows)) - per_token(several(rows, "neighbour"))
    ),
    "neighbour_ratio_v1": lambda rows: (
        -ratio(log_likelihood(text(rows)), per_token(several(rows, "neighbour")))
    ),
    "detect_gpt_v1": detect_gpt,
    "dc_pdd_v1": dc_pdd,
    "extraction_v1": log_p_z,
    "extraction_n_50_v1": lambda rows: samples_needed(log_p_z(rows), 0.5),
    "extraction_n_90_v1": lambda rows: samples_needed(log_p_z(rows), 0.9),
    "extraction_n_99_v1": lambda rows: samples_needed(log_p_z(rows), 0.99),
    "extraction_top_k_v1": lambda rows: log_p_z(rows, kept=True),
    "extraction_top_k_n_50_v1": lambda rows: samples_needed(log_p_z(rows, kept=True), 0.5),
    "extraction_top_k_n_90_v1": lambda rows: samples_needed(log_p_z(rows, kept=True), 0.9),
    "extraction_top_k_n_99_v1": lambda rows: samples_needed(log_p_z(rows, kept=True), 0.99),
    "extraction_greedy_v1": greedy,
    "extraction_run_v1": longest_run,
    "extraction_best_50_v1": best_stretch,
    "rank_v1": column_mean("rank", lambda rank: -rank),
    "log_rank_v1": column_mean("rank", lambda rank: -math.log(rank)),
    "top_1_share_v1": column_mean("rank", lambda rank: float(rank == 1)),
    "entropy_v1": column_mean("vocabulary_mean", float),
    "surprising_20_v1": surprising,
    **{f"losses_below_{limit}_v1": share_below_of(limit) for limit in (1, 2, 3)},
    "losses_below_mean_v1": lambda rows: share_below(rows, lambda all_, _: sum(all_) / len(all_)),
    "losses_below_previous_v1": share_below_previous,
    "loss_slope_v1": slope,
    **{f"low_losses_from_end_{percent}_v1": from_end_of(percent) for percent in (40, 50, 60)},
    "loss_by_diversity_v1": loss_by_diversity,
    **{f"loss_complexity_{bins}_v1": complexity_of(bins) for bins in (3, 4, 5)},
    "loss_entropy_v1": series_entropy,
}
"""Reference implementation of each attack but those on tuned models, by name."""


def wikimia_scores(
    text: str,
    logprobs: Sequence[float],
    lowercase: Sequence[float],
    reference: Sequence[float] | None = None,
) -> dict[str, float]:
    """Scores of the Min-K% paper's procedure for one text, by attack; higher means member.

    Shi et al. (2024), section 4.2 and the authors' code: natural log-probabilities of all tokens
    but the first of the whole text, of the lowercased text, and of the text under a smaller model.
    The code gives losses, lower for members, and minus log-perplexity of the lowercased text over
    that of the text; both are turned here, which keeps their order.
    """
    loss, lower = -np.mean(logprobs), -np.mean(lowercase)
    perplexity = np.exp(loss)
    scores = {
        "loss_v1": -loss,
        "perplexity_v1": -perplexity,
        "loss_zlib_v1": -np.log(perplexity) / len(zlib.compress(bytes(text, "utf-8"))),
        "lowercase_ratio_v1": -1 / (np.log(np.exp(lower)) / np.log(perplexity)),
    }
    if reference is not None:
        scores["reference_token_difference_v1"] = -(loss - -np.mean(reference))
    for ratio_ in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        k_length = int(len(logprobs) * ratio_)
        lowest = np.sort(logprobs)[: max(k_length, 1)]
        scores[f"min_k_{round(ratio_ * 100)}_v1"] = np.mean(lowest)
    return {name: float(score) for name, score in scores.items()}
