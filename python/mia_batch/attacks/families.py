"""Families of attacks: short names, the names that papers use, and what each stands for.

``min-k++``, ``Min-K%++`` and ``min_k_plus_plus_20`` all name ``min_k_plus_plus_20_v1``.
"""

import fnmatch
import re
from collections.abc import Collection
from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

_LEAST_ALIKE = 0.7  # of names, for a question whether one was meant


class Family(NamedTuple):
    """Attacks of one idea: `papers` names them elsewhere, most usual first."""

    # ``stems`` are beginnings of its members' names; the longest stem of all families decides.
    # ``default`` are the members that the family's name stands for, by default ``<stem>_v1``.

    name: str
    papers: tuple[str, ...]
    stems: tuple[str, ...]
    default: tuple[str, ...]


def _family(name: str, papers: str = "", stems: str = "", default: str = "") -> Family:
    own = stems.split() or [name.replace("-", "_")]
    default = default or f"{own[0]}_v1"
    named = tuple(paper for paper in papers.split(", ") if paper)
    return Family(name, named, tuple(own), tuple(default.split()))


FAMILIES = (
    _family("token", "", "token_", "token_hits_less_expected_v1"),
    _family("probe", "", "probe_", "probe_leading_rarity_v1"),
    _family("samia-matched"),
    _family("samia", "SaMIA, Sampling-based pseudo-likelihood, SPL"),
    _family("rouge", "ROUGE", default="rouge_l_v1"),
    _family("petal", "PETAL"),
    _family("de-cop", "DE-COP", "decop"),
    _family("mc-pdd", "MC-PDD", "masked_hits"),
    _family("ngram-coverage", "N-Gram Coverage, N-Gram Coverage Attack"),
    _family("creativity", "Creativity Index"),
    _family("longest-block", "LCS, Longest Common Substring"),
    _family("near-verbatim"),
    _family("loss", "LOSS"),
    _family("perplexity", "PPL, Perplexity"),
    _family("zlib", "Zlib, Zlib Entropy, PPL/zlib", "loss_zlib"),
    _family("lowercase", "Lowercase, Lower", default="lowercase_ratio_v1"),
    _family("min-k", "Min-K% Prob, Min-K%", default="min_k_20_v1"),
    _family("min-k++", "Min-K%++, Min-K%++ Prob", "min_k_plus_plus", "min_k_plus_plus_20_v1"),
    _family("gap-k", "Gap-K%", default="gap_k_20_v1"),
    _family("pdr", "PDR, Positional Decay Reweighting", default="pdr_min_k_plus_plus_20_v1"),
    _family("probe-loss", "", "probe_loss probe_min_k", "probe_loss_v1 probe_min_k_20_v1"),
    _family(
        *("ref", "Ref, Reference, Reference model, Smaller Ref, LiRA-Base"),
        *("reference", "reference_token_difference_v1"),
    ),
    _family("recall", "ReCaLL", "recall_prefix"),
    _family("con-recall", "Con-ReCall", "con_recall_prefix"),
    _family("codec", "CoDeC"),
    _family(
        *("neighbour", "Neighborhood, Neighbourhood, Neighbor, Neighborhood attack, NE"),
        default="neighbour_difference_v1",
    ),
    _family("detect-gpt", "DetectGPT, Perturbation"),
    _family("pac", "PAC, Polarized Augment Calibration"),
    _family("dc-pdd", "DC-PDD"),
    _family("aeca", "AECA"),
    _family("extraction", "Extraction, Discoverable extraction"),
    _family("rank", "Rank"),
    _family("log-rank", "LogRank"),
    _family("gltr", "GLTR", "top_1_share"),
    _family("entropy", "Entropy"),
    _family("surp", "SURP", "surprising", "surprising_20_v1"),
    _family(
        *("camia", "CAMIA"),
        "losses_below loss_slope loss_by_diversity repeated_difference low_losses_from_end "
        "loss_complexity loss_entropy",
        "losses_below_1_v1 losses_below_2_v1 losses_below_3_v1 losses_below_mean_v1 "
        "losses_below_previous_v1 loss_slope_v1 loss_by_diversity_v1",
    ),
    _family("ez-mia", "EZ-MIA"),
    _family("wbc", "WBC"),
    _family("spv-mia", "SPV-MIA, SPV", "spv self_prompt_difference", "spv_semantic_v1"),
    _family("lira-candidate", "LiRA-Candidate", "candidate_difference"),
    _family("lira", "LiRA, LiRA-Online", default="lira_online_v1"),
    _family("rmia", "RMIA"),
    _family("informia", "InfoRMIA, Token-level InfoRMIA"),
    _family("combination"),
)
"""In the order in which they are listed; what their names stand for is said where they are."""


def key_of(name: str) -> str:
    """Forgive case and punctuation, except that ``+`` makes another name."""
    return re.sub("[^a-z0-9]", "", name.lower().replace("+", "plus"))


@cache
def _by_key() -> dict[str, Family]:
    return {key_of(each): family for family in FAMILIES for each in (family.name, *family.papers)}


def family_of(attack: str) -> Family | None:
    """Find the family of an attack; None of one that did not come with the package."""
    stems = {stem: family for family in FAMILIES for stem in family.stems}
    fitting = max(filter(attack.startswith, stems), default="", key=len)
    return stems.get(fitting)


def members(family: Family, known: Collection[str]) -> list[str]:
    return [name for name in known if family_of(name) is family]


def meant(name: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of attacks that a name or pattern stands for; empty where none is known."""
    if name in known or "*" in name:
        return tuple(fnmatch.filter(known, name))
    if (family := _by_key().get(key := key_of(name))) is not None:
        return family.default
    alike = {key_of(each.rpartition("_v")[0]): each for each in known}
    alike |= {key_of(each): each for each in known}
    return (alike[key],) if key in alike else ()


def suggestion(name: str, known: Collection[str]) -> str:
    """Ask which attacks or family may have been meant; "" if nothing is near."""
    attacks = {key_of(each): each for each in known}
    near = get_close_matches(key_of(name), [*_by_key(), *attacks], n=1, cutoff=_LEAST_ALIKE)
    if not near:
        return ""
    if (family := _by_key().get(near[0])) is None:
        close = get_close_matches(key_of(name), attacks, n=3)
        return f"did you mean {' or '.join(attacks[each] for each in close)}?"
    first, *others = members(family, known)
    last = f" ... {others[-1]}" if others else ""
    return f"did you mean the family {family.name} ({first}{last})?"
