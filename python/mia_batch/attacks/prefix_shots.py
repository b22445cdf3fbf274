"""The model's loss on a text after other texts whose membership is known."""

from __future__ import annotations

from mia_batch.attacks.tokens import MEMBER_SHOTS, NONMEMBER_SHOTS, TEXT, average, of_texts

__all__ = ["PREFIX_SHOT_ATTACKS"]

_GAMMA = 0.5
_UNDEFINED = "no token of the text, alone or after the shots, has a log-probability below 0"

PREFIX_SHOT_ATTACKS = (
    of_texts(
        "recall_prefix",
        average(NONMEMBER_SHOTS) / average(TEXT),
        formula="loss(nonmember_shots) / loss",
        source=(
            "Xie et al. 2024 (arXiv:2406.15968), the ReCaLL score: log-likelihood after "
            "non-members over that of the text alone, each per token"
        ),
        undefined=_UNDEFINED,
        reads=(TEXT, NONMEMBER_SHOTS),
        settings=("nonmember_shots",),
    ),
    of_texts(
        "con_recall_prefix",
        (average(NONMEMBER_SHOTS) - _GAMMA * average(MEMBER_SHOTS)) / average(TEXT),
        formula=f"(loss(nonmember_shots) - {_GAMMA} loss(member_shots)) / loss",
        source=(
            "Wang et al. 2024 (arXiv:2409.03363), the Con-ReCall score: ReCaLL less gamma times "
            f"the same after members; gamma = {_GAMMA}, where the authors try 0.1 to 1"
        ),
        undefined=_UNDEFINED,
        reads=(TEXT, NONMEMBER_SHOTS, MEMBER_SHOTS),
        settings=("nonmember_shots", "member_shots"),
    ),
)
"""``recall_prefix_v1`` and ``con_recall_prefix_v1``."""
