"""What several servers have in common, and whether they can be of one model at all."""

from __future__ import annotations

from dataclasses import asdict, replace
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Any

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint.capabilities import Capabilities

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mia_batch.evidence.endpoint.probe import Probe

__all__ = ["agree"]

_SAME_MODEL = 0.5  # nats on average; another accelerator or data type changes less


def agree(probes: Sequence[Probe], found: Sequence[Capabilities]) -> tuple[Capabilities, list[str]]:
    """Return what all servers can do, and a sentence for each that differs from the first.

    Raises `SettingsError` if one draws samples and another gives copies, or if their
    log-probabilities are those of different models.
    """
    for probe, capabilities in zip(probes[1:], found[1:], strict=True):
        _check(probes[0], found[0], probe, capabilities)
    each = [asdict(capabilities) for capabilities in found]
    common = Capabilities(**{name: _weakest([own[name] for own in each]) for name in each[0]})
    first, *others = probes
    sentences = [
        f"{probe.address} differs from {first.address}: {'; '.join(differing)}; of each, what all "
        "can do is used"
        for probe, own in zip(others, each[1:], strict=True)
        if (differing := _differing(each[0], own))
    ]
    if common.seed == "honoured" and len({probe.drawn for probe in probes}) > 1:
        common = replace(common, seed="ignored")
        sentences.append("with the same seed the servers of 'base_url' draw different texts")
    return common, sentences


def _check(one: Probe, can_one: Capabilities, two: Probe, can_two: Capabilities) -> None:
    problem = None
    if can_one.varied != can_two.varied:
        copies, draws = (two, one) if can_one.varied else (one, two)
        problem = (
            f"{copies.address} gives the same text whatever the seed, and {draws.address} does not"
        )
    elif can_one.token_id_names == can_two.token_id_names:
        apart = _distance(one.logprobs, two.logprobs)
        if apart > _SAME_MODEL:
            problem = (
                f"{two.address} gives other log-probabilities than {one.address}, by {apart:.2g} "
                "nats on average, so they do not serve the same model"
            )
    if problem:
        msg = f"setting 'base_url': {problem}; leave one of them out"
        raise SettingsError(msg)


def _distance(one: Mapping[str, float], two: Mapping[str, float]) -> float:
    """Give the mean distance between log-probabilities of the same tokens."""
    shared, none = one.keys() & two.keys(), inf if one else 0.0
    return fmean(abs(one[name] - two[name]) for name in shared) if shared else none


def _weakest(values: list[Any]) -> Any:  # noqa: ANN401 - of any field
    """Take the least number, or the `Honour` that is the least: they are so in the alphabet."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if isinstance(known[0], str) else min(known)


def _differing(first: Mapping[str, object], own: Mapping[str, object]) -> list[str]:
    return [
        f"{name} is {own[name]!r}, not {value!r}"
        for name, value in first.items()
        if own[name] != value
    ]
