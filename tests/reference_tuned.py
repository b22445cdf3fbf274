"""Attacks on tuned models, written from the papers for clarity alone, as `reference_logprobs`."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

from tests.reference_logprobs import REFERENCES as OTHERS
from tests.reference_logprobs import (
    Reference,
    Row,
    Undefined,
    around,
    difference,
    log_likelihood,
    per_token,
    ratio,
    text,
)

WINDOWS = (2, 3, 4, 6, 9, 13, 18, 25, 32, 40)


def p(row: Row) -> float:
    """exp(- mean loss)."""
    return math.exp(log_likelihood(row))


def variation(rows: Sequence[Row], role: str, view: str) -> float:
    """Equation 10: 1 / 2N * sum of (p(x_n+) + p(x_n-)), less p(x)."""
    found = {number: math.exp(value) for number, value in around(rows, view, role).items()}
    n_pairs, above = 0, 0.0
    for n in range(1000):
        if 2 * n in found and 2 * n + 1 in found:
            n_pairs += 1
            above += found[2 * n] + found[2 * n + 1]
    return ratio(above, 2 * n_pairs) - p(text(rows, role=role))


def unpaired(rows: Sequence[Row], role: str, view: str) -> float:
    """Equation 11: 1 / 2N * sum of p(x_n), less p(x)."""
    values = around(rows, view, role).values()
    return per_token([*map(math.exp, values)]) - p(text(rows, role=role))


def spv(of: Callable[[Sequence[Row], str, str], float], view: str) -> Reference:
    """Equation 5, turned: low for members in the paper."""
    return lambda rows: -(of(rows, "target", view) - of(rows, "self_prompt", view))


def token_pairs(rows: Sequence[Row]) -> list[tuple[float, float, int | None]]:
    """Log-probability under the target and its base model, and rank under the target."""
    ours, theirs = text(rows), text(rows, role="reference")
    if ours["token_ids"] is None or ours["token_ids"] != theirs["token_ids"]:
        raise Undefined
    ranks = ours["rank"] or [None] * len(ours["logprob"])
    found = zip(ours["logprob"], theirs["logprob"], ranks, strict=True)
    return [each for each in found if each[0] is not None and each[1] is not None]


def error_zone(rows: Sequence[Row]) -> float:
    """P / N over the tokens of which the target's first guess is wrong, as P / (P + N)."""
    known = [each for each in token_pairs(rows) if each[2] is not None]
    if not known:
        raise Undefined
    wrong = [ours - theirs for ours, theirs, rank in known if rank != 1]
    if not wrong:
        return 1.0
    up = sum(max(delta, 0.0) for delta in wrong)
    down = sum(abs(min(delta, 0.0)) for delta in wrong)
    if (up + down) / len(wrong) <= 1e-5:
        raise Undefined
    return 1.0 if down == 0 else (up / down) / (1 + up / down)


def window_comparison(rows: Sequence[Row]) -> float:
    """Algorithm 1; windows no longer than the text."""
    pairs = token_pairs(rows)
    if per_token([abs(ours - theirs) for ours, theirs, _ in pairs]) <= 1e-5:
        raise Undefined
    shares = []
    for wanted in WINDOWS:
        w, votes = min(wanted, len(pairs)), 0
        for i in range(len(pairs) - w + 1):
            window = pairs[i : i + w]
            loss_reference = -sum(theirs for _, theirs, _ in window)
            loss_target = -sum(ours for ours, _, _ in window)
            votes += loss_reference > loss_target
        shares.append(votes / (len(pairs) - w + 1))
    return fmean(shares)


def informia(rows: Sequence[Row]) -> float:
    """log p(x) / q(x) + KL(q || p) of each token, over an alphabet of the token and all others."""

    def score(ours: float, theirs: float) -> float:
        top = -(2**-24)  # 1 as float32 knows it
        p, q = math.exp(min(ours, top)), math.exp(min(theirs, top))
        divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        return ours - theirs + divergence

    return per_token([score(ours, theirs) for ours, theirs, _ in token_pairs(rows)])


def phi(logprob: float) -> float:
    """log(p / (1 - p)); 1 - p from the logarithm, which keeps its digits near 1."""
    logprob = min(logprob, -(2**-24))
    return logprob - math.log(-math.expm1(logprob))


def shadows(rows: Sequence[Row], *, trained: bool) -> list[float]:
    """Mean log-probability under each shadow model that was, or was not, tuned on the text."""
    mine = [row for row in rows if row["model"] == "shadow" and row["trained"] is trained]
    return [*around(mine, "text", "shadow").values()]


def normal(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2 or min(values) == max(values):
        raise Undefined
    return fmean(values), pstdev(values)


def log_density(x: float, mean: float, deviation: float) -> float:
    return -math.log(deviation * math.sqrt(2 * math.pi)) - ((x - mean) / deviation) ** 2 / 2


def lira_online(rows: Sequence[Row]) -> float:
    x = phi(log_likelihood(text(rows)))
    inside = normal([*map(phi, shadows(rows, trained=True))])
    outside = normal([*map(phi, shadows(rows, trained=False))])
    return log_density(x, *inside) - log_density(x, *outside)


def lira_online_fixed(rows: Sequence[Row], deviation: float = math.sqrt(0.5)) -> float:
    """The same with one deviation; that of the root of 1/2 gives the attack's own unit."""
    x = phi(log_likelihood(text(rows)))
    inside = per_token([*map(phi, shadows(rows, trained=True))])
    outside = per_token([*map(phi, shadows(rows, trained=False))])
    return log_density(x, inside, deviation) - log_density(x, outside, deviation)


def lira_offline(rows: Sequence[Row]) -> float:
    mean, deviation = normal([*map(phi, shadows(rows, trained=False))])
    return (phi(log_likelihood(text(rows))) - mean) / deviation


def lira_offline_fixed(rows: Sequence[Row]) -> float:
    outside = per_token([*map(phi, shadows(rows, trained=False))])
    return phi(log_likelihood(text(rows))) - outside


def rmia(rows: Sequence[Row]) -> float:
    inside = [*map(math.exp, shadows(rows, trained=True))]
    outside = [*map(math.exp, shadows(rows, trained=False))]
    if not inside or not outside:
        raise Undefined
    return ratio(p(text(rows)), fmean([*inside, *outside]))


def rmia_offline(rows: Sequence[Row], a: float = 1.0) -> float:
    p_out = per_token([*map(math.exp, shadows(rows, trained=False))])
    p_in = a * p_out + (1 - a)
    return ratio(p(text(rows)), (p_in + p_out) / 2)


TUNED: dict[str, Reference] = {
    "spv_semantic_v1": spv(variation, "paraphrase"),
    "spv_embedding_v1": spv(variation, "noise"),
    "spv_neighbour_v1": spv(unpaired, "neighbour"),
    "spv_released_v1": spv(unpaired, "perturbation"),
    "spv_semantic_uncalibrated_v1": lambda rows: -variation(rows, "target", "paraphrase"),
    "spv_embedding_uncalibrated_v1": lambda rows: -variation(rows, "target", "noise"),
    "spv_neighbour_uncalibrated_v1": lambda rows: -unpaired(rows, "target", "neighbour"),
    "self_prompt_difference_v1": difference("self_prompt"),
    "candidate_difference_v1": difference("candidate"),
    "ez_mia_v1": error_zone,
    "wbc_v1": window_comparison,
    "informia_v1": informia,
    "lira_online_v1": lira_online,
    "lira_online_fixed_v1": lira_online_fixed,
    "lira_offline_v1": lira_offline,
    "lira_offline_fixed_v1": lira_offline_fixed,
    "rmia_v1": rmia,
    "rmia_offline_v1": rmia_offline,
}
"""Reference implementation of each attack on tuned models, by name."""

REFERENCES = OTHERS | TUNED
"""Those of all attacks from log-probabilities."""


def reference_score(name: str, rows: Sequence[Row]) -> float | None:
    try:
        return REFERENCES[name](rows)
    except Undefined:
        return None
