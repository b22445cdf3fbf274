"""The model's loss on a text, alone or beside that of the lowercased text."""

from __future__ import annotations

from mia_batch.attacks.attack import Attack
from mia_batch.attacks.tokens import LOWERCASE, TEXT, UNSCORED, average, first

__all__ = ["LOSS_ATTACKS"]

_CARLINI = "Carlini et al. 2021 (arXiv:2012.07805)"
_SAMIA = "Kaneko et al. 2024 (arXiv:2404.11262v1)"
_BOTH = "no token of the text or of its lowercased form has a log-probability"

LOSS_ATTACKS: tuple[Attack, ...] = (
    Attack(
        name="loss_v1",
        expr=average(TEXT),
        source="Yeom et al. 2018 (arXiv:1709.01604), adversary 2; minus the loss, per token",
        undefined=UNSCORED,
        evidence="logprobs",
        reads=(TEXT,),
    ),
    Attack(
        name="perplexity_v1",
        expr=-(-average(TEXT)).exp(),
        source=f"{_CARLINI}, section 4.2; minus the perplexity; orders texts as the loss does",
        undefined=f"{UNSCORED}, or its perplexity is too large for a number",
        evidence="logprobs",
        reads=(TEXT,),
    ),
    Attack(
        name="loss_zlib_v1",
        expr=average(TEXT) / first("zlib_size"),
        source=f"{_CARLINI}, section 5.2; log-perplexity over bytes of zlib, as all code has it",
        undefined=UNSCORED,
        evidence="logprobs",
        reads=(TEXT,),
    ),
    Attack(
        name="lowercase_difference_v1",
        expr=average(TEXT) - average(LOWERCASE),
        source=f"{_SAMIA}, equation 9; difference of losses",
        undefined=_BOTH,
        evidence="logprobs",
        reads=(TEXT, LOWERCASE),
    ),
    Attack(
        name="lowercase_ratio_v1",
        expr=-average(TEXT) / average(LOWERCASE),
        source=f"{_CARLINI}, section 5.2; minus the ratio of losses",
        undefined=f"{_BOTH}, or the loss of the lowercased form is 0",
        evidence="logprobs",
        reads=(TEXT, LOWERCASE),
    ),
)
"""``loss_v1`` first."""
