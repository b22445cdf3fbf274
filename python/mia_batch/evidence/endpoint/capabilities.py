"""What an endpoint was found to honour."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mia_batch.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Capabilities", "Honour", "differences", "weakest"]

Honour = Literal["honoured", "ignored", "refused"]
"""``honoured``: it showed an effect; ``ignored``: accepted without one; ``refused``: an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a probe of an endpoint found; every value is JSON."""

    n: Honour = "refused"  # several continuations in one request; copies count as ``ignored``
    seed: Honour = "refused"  # whether the same seed gives the same text twice
    varied: bool = False  # False: it does not sample, or the temperature is 0 or close to it
    top_k: Honour | None = None  # None where the run does not limit it
    prompt_token_ids: bool = False  # whether a prompt may be given as token ids
    output_token_ids: bool = False  # whether answers hold token ids (``return_token_ids``, vLLM's)
    echo_logprobs: bool = False  # whether the log-probability of every prompt token is given
    named_token: Honour | None = None  # ``logprob_token_ids``; None where it is not asked for
    top_logprobs: int = 0  # most likely next tokens that it lists on request, as far as tried
    token_id_names: bool = False  # whether it then names tokens by their ids
    max_model_len: int | None = None  # tokens of prompt and output together; None = not stated

    def sampling_fields(self, *, n: int, seed: int, top_k: int) -> dict[str, object]:
        """Fields of a request that say how to draw: all that the endpoint does not refuse."""
        fields: dict[str, object] = {}
        if self.n != "refused":
            fields["n"] = n
        if self.seed != "refused":
            fields["seed"] = seed
        if self.top_k == "honoured":
            fields["top_k"] = top_k
        if self.output_token_ids:
            fields["return_token_ids"] = True
        return fields


def weakest(found: Sequence[Capabilities]) -> Capabilities:
    """Return what all servers of a model can do, so that it is the same whichever is asked."""
    each = [asdict(capabilities) for capabilities in found]
    return Capabilities(**{name: _weakest([values[name] for values in each]) for name in each[0]})


def _weakest(values: list[Any]) -> Any:  # noqa: ANN401 - of any field
    """Take the least number, or the `Honour` that is the least: they are so in the alphabet."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return max(known) if isinstance(known[0], str) else min(known)


def differences(found: Mapping[str, Capabilities]) -> Iterator[str]:
    """Say which servers can do other things than the first, by their addresses.

    Raises `SettingsError` if one draws samples and another gives copies: such have nothing in
    common that would be a sample.
    """
    first, *others = found
    for other in others:
        one, two = asdict(found[first]), asdict(found[other])
        differing = [
            f"{name} is {two[name]!r}, not {one[name]!r}" for name in one if one[name] != two[name]
        ]
        if one["varied"] != two["varied"]:
            copies, draws = (other, first) if one["varied"] else (first, other)
            msg = (
                f"setting 'base_url': {copies} gives the same text whatever the seed, and {draws} "
                "does not; leave one of them out"
            )
            raise SettingsError(msg)
        if differing:
            yield (
                f"{other} differs from {first}: {'; '.join(differing)}; of each, what all can do "
                "is used"
            )
