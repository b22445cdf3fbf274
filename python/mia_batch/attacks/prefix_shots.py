"""The model's loss on a text after other texts whose membership is known."""

from __future__ import annotations

from mia_batch.attacks.tokens import MEMBER_SHOTS, NONMEMBER_SHOTS, TEXT, average, of_texts

__all__ = ["CODEC", "PREFIX_SHOT_ATTACKS"]

CODEC = "codec_v1"

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
    of_texts(
        CODEC.removesuffix("_v1"),
        (average(NONMEMBER_SHOTS) < average(TEXT)).cast(float),
        formula="1 where loss(nonmember_shots) > loss, else 0",
        source=(
            "Zawalski et al. 2025 (arXiv:2510.27055), CoDeC: whether a text becomes less likely "
            "after texts of its kind; of a set the share counts. Shots are the same for all texts, "
            "while the authors draw others of the data set itself for each"
        ),
        undefined="no token of the text, alone or after the shots, has a log-probability",
        reads=(TEXT, NONMEMBER_SHOTS),
        settings=("nonmember_shots",),
    ),
)
"""``recall_prefix_v1``, ``con_recall_prefix_v1``, and ``codec_v1``, 0 or 1."""
