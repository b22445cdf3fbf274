"""Samples drawn anew by the model that a run was made with, beside those that it has."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import Block, Work
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.run import Run
from mia_batch.pipeline.sessions import ask, open_session, sample_task
from mia_batch.pipeline.stages.views import SAMPLE, prompts_of, taken_up, view_of
from mia_batch.settings import Settings, refuse_code


def choose_samples(run: Run, n: int, seed: int) -> pl.DataFrame:
    """Choose ``n`` of a run's samples at random, or all where it has fewer; failed ones are left.

    The same run and seed give the same choice.
    """
    drawn = run.scan("samples").filter(pl.col("reason").is_null(), pl.col("view") != "generation")
    height = drawn.select(pl.len()).collect(engine="streaming").item()
    chosen = random.Random(seed).sample(range(height), min(n, height))
    numbers = pl.LazyFrame({"row": chosen}, schema={"row": pl.get_index_type()})
    rows = drawn.with_row_index("row").join(numbers, on="row", how="semi")
    return rows.drop("row").sort(SAMPLE).collect(engine="streaming")


def draw_again(
    run: Run,
    samples: pl.DataFrame,
    observer: Observer,
    **changed: Any,  # noqa: ANN401 - settings
) -> pl.DataFrame:
    """Draw samples of a run anew, each with its own seed; the run is not touched.

    Parameters
    ----------
    run
        A run whose samples came from a model that runs here, or from an endpoint.
    samples
        Rows of its samples table.
    observer
        Is told what is done.
    **changed
        Settings that say how the model is asked: a run may be a stranger's, so what it stored sends
        no key and loads no code. An endpoint is asked only at the ``base_url`` named here.

    Returns
    -------
    DataFrame
        The same rows, sorted by what names a sample, with a column ``again``: the continuation
        that was drawn now, null where there is none.

    Raises
    ------
    SettingsError
        If there are no samples, they came from a recording, the model is another one, or
        ``base_url`` or an argument of the engine must be given again.
    EngineError
        If the engine cannot start or go on.
    """
    if run.manifest.evidence["engine"] == "replay":
        raise SettingsError(
            f"the samples of {run.folder} came from a recording: no model can draw them again"
        )
    if samples.is_empty():
        raise SettingsError(f"{run.folder} has no such samples: there is nothing to draw again")
    changed = _how_to_ask(run, changed)
    drawn = [samples.clear().select(*SAMPLE, again="candidate")]
    with tempfile.TemporaryDirectory() as folder:
        audit = taken_up(run, observer, Run(Path(folder)), **changed)
        try:
            for (model,), rows in samples.group_by("model", maintain_order=True):
                drawn += _draw(audit, run, str(model), rows)
        except SettingsError as error:
            raise SettingsError(str(error).replace(folder, str(run.folder))) from error
    return samples.join(pl.concat(drawn), on=SAMPLE, how="left").sort(SAMPLE)


def _how_to_ask(run: Run, changed: dict[str, Any]) -> dict[str, Any]:
    """Take no address, no name of a key and no code from the run alone."""
    stored = run.manifest.settings
    refuse_code(stored["engine_arg"], str(run.folder), but=changed.get("engine_arg", ()))
    if run.manifest.evidence["engine"] != "openai":
        return changed
    if not changed.get("base_url"):
        raise SettingsError(
            f"the samples of {run.folder} came from {stored['base_url']}, and your key is sent to "
            "no address that only the run names; give it yourself with --base-url"
        )
    return {"api_key_env": Settings.model_fields["api_key_env"].default} | changed


def _draw(audit: Audit, run: Run, model: str, samples: pl.DataFrame) -> list[pl.DataFrame]:
    own = pl.col("target_id").is_in(samples["target_id"].unique().implode())
    targets = run.scan("targets").filter(own).collect(engine="streaming")
    drawn: list[pl.DataFrame] = []
    with open_session(audit, model, "samples") as session:
        wanted = []
        for (name,), rows in samples.group_by("view", maintain_order=True):
            view = view_of(audit, model, str(name))
            blocks = _blocks(prompts_of(run, view, targets), rows)
            wanted.append((sample_task(audit, session, view), blocks, _as_again))
        ask(
            audit,
            session,
            "drawing again",
            Work(left=samples.height),
            wanted,
            on_block=lambda *found: drawn.append(found[2]),
        )
    return drawn


def _as_again(_: Block, rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(*SAMPLE, again="candidate")


def _blocks(prompts: pl.DataFrame, samples: pl.DataFrame) -> Iterator[Block]:
    """Make a block of the prompts that share the number of the sample to draw."""
    for index in samples["sample_index"].unique().sort():
        rows = samples.filter(sample_index=index)
        units = prompts.join(rows, on=["target_id", "view_index"], how="semi")
        yield Block(index=0, first=index, last=index + 1, attempt=0, label="", units=units)
