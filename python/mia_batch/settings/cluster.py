"""Settings: where engines run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from mia_batch.settings.part import Part

__all__ = ["ClusterSettings"]


def _number_or_auto(value: object) -> object:
    if value in (None, "auto") or (str(value).isdecimal() and 1 <= int(str(value)) <= 100_000):
        return value
    msg = "give a number from 1 to 100000, or auto"
    raise ValueError(msg)


class ClusterSettings(Part):
    """How many engines work on a run, and where."""

    topic = "Many GPUs and machines"

    workers: Annotated[int | Literal["auto"] | None, BeforeValidator(_number_or_auto)] = Field(
        None,
        description="Engines at work, each with tensor_parallel_size GPUs, or cores where there "
        "are none; auto: all there is room for. Needs Ray.  [default: one, without Ray]",
    )
    ray: str | None = Field(
        None,
        min_length=1,
        description="Address of a Ray cluster, or auto for the one that runs here.  [default: with "
        "workers, Ray on this machine alone]",
    )
