"""Attacks on tuned models, written from the papers for clarity alone, as `reference_logprobs`."""

import math
from collections.abc import Callable, Sequence

from tests.reference_logprobs import REFERENCES as OTHERS
from tests.reference_logprobs import (
    Reference,
    Row,
    Undefined,
    around,
    log_likelihood,
    per_token,
    ratio,
    text,
)


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


TUNED: dict[str, Reference] = {
    "spv_semantic_v1": spv(variation, "paraphrase"),
    "spv_embedding_v1": spv(variation, "noise"),
    "spv_neighbour_v1": spv(unpaired, "neighbour"),
    "spv_released_v1": spv(unpaired, "perturbation"),
    "spv_semantic_uncalibrated_v1": lambda rows: -variation(rows, "target", "paraphrase"),
    "spv_embedding_uncalibrated_v1": lambda rows: -variation(rows, "target", "noise"),
    "spv_neighbour_uncalibrated_v1": lambda rows: -unpaired(rows, "target", "neighbour"),
    **{
        f"{name}_v1": OTHERS[f"{name}_v1"]
        for name in (
            *("self_prompt_difference", "candidate_difference", "ez_mia", "wbc", "informia"),
            *("lira_online", "lira_online_fixed", "lira_offline", "lira_offline_fixed"),
            *("rmia", "rmia_offline"),
        )
    },
}
"""Reference implementation of each attack on tuned models, by name."""

REFERENCES = OTHERS | TUNED
"""Those of all attacks from log-probabilities."""


def reference_score(name: str, rows: Sequence[Row]) -> float | None:
    try:
        return REFERENCES[name](rows)
    except Undefined:
        return None
