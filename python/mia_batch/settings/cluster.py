"""Settings: who works on a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from mia_batch.settings.part import Part, shard_name

__all__ = ["ClusterSettings"]


def _number_or_auto(value: object) -> object:
    if value in (None, "auto") or (str(value).isdecimal() and 1 <= int(str(value)) <= 100_000):
        return value
    msg = "give a number from 1 to 100000, or auto"
    raise ValueError(msg)


class ClusterSettings(Part):
    """How many engines or processes work on a run, and where; none of it is stored with the run."""

    topic = "Many GPUs and machines"

    workers: Annotated[int | Literal["auto"] | None, BeforeValidator(_number_or_auto)] = Field(
        None,
        exclude=True,  # like all of these, it says who works, not on what
        description="Engines at work, or models tuned at once, each with tensor_parallel_size "
        "GPUs, or cores without GPUs; auto: as many as fit. Needs Ray.  [default: one, without "
        "Ray]",
    )
    ray: str | None = Field(
        None,
        exclude=True,
        min_length=1,
        description="Address of a Ray cluster, or auto for the one that runs here.  [default: with "
        "workers, Ray on this machine alone]",
    )
    shard: Annotated[str | None, AfterValidator(shard_name)] = Field(
        None,
        exclude=True,
        description="I/N: work on every N-th block only, as one of N processes that share the run "
        "folder; the command without it merges and scores.",
    )

    @property
    def on_cluster(self) -> bool:
        """Whether engines run on a Ray cluster, if only on one of this machine."""
        return self.ray is not None or self.workers is not None
