"""The model's loss on a text, alone or beside that of the lowercased text."""

from __future__ import annotations

from mia_batch.attacks.tokens import LOWERCASE, TEXT, UNSCORED, average, first, of_texts

__all__ = ["LOSS_ATTACKS"]

_CARLINI = "Carlini et al. 2021 (arXiv:2012.07805)"
_SAMIA = "Kaneko et al. 2024 (arXiv:2404.11262v1)"
_BOTH = "no token of the text or of its lowercased form has a log-probability"

LOSS_ATTACKS = (
    of_texts(
        "loss",
        average(TEXT),
        formula="-loss",
        source="Yeom et al. 2018 (arXiv:1709.01604), adversary 2; minus the loss, per token",
    ),
    of_texts(
        "perplexity",
        -(-average(TEXT)).exp(),
        formula="-exp(loss)",
        source=f"{_CARLINI}, section 4.2; minus the perplexity; orders texts as the loss does",
        undefined=f"{UNSCORED}, or its perplexity is too large for a number",
    ),
    of_texts(
        "loss_zlib",
        average(TEXT) / first("zlib_size"),
        formula="-loss / zlib_size",
        source=f"{_CARLINI}, section 5.2; log-perplexity over bytes of zlib, as all code has it",
    ),
    of_texts(
        "lowercase_difference",
        average(TEXT) - average(LOWERCASE),
        formula="loss(lowercase) - loss",
        source=f"{_SAMIA}, equation 9; difference of losses",
        undefined=_BOTH,
        reads=(TEXT, LOWERCASE),
    ),
    of_texts(
        "lowercase_ratio",
        -average(TEXT) / average(LOWERCASE),
        formula="-loss / loss(lowercase)",
        source=f"{_CARLINI}, section 5.2; minus the ratio of losses",
        undefined=f"{_BOTH}, or the loss of the lowercased form is 0",
        reads=(TEXT, LOWERCASE),
    ),
)
"""``loss_v1`` first."""
