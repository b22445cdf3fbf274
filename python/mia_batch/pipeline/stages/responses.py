"""The table of an endpoint's answers: when each was asked for, and what gave it."""

import polars as pl

from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.lot import lot_numbers
from mia_batch.evidence.parts import BLOCK_TARGETS, LOGPROB_BLOCK_TARGETS
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.stages.questions import list_views
from mia_batch.schemas import Responses
from mia_batch.tables import sink

_PROMPT = ("target_id", "model", "view", "view_index")
_SCHEMA = Responses.create_empty().schema
_JOURNALLED = {
    "prompt": pl.String,
    "sample_index": pl.UInt32,
    "n_samples": pl.UInt32,
    "sent": pl.String,
    "system_fingerprint": pl.String,
    "served_model": pl.String,
}


def write_responses(audit: Audit) -> None:
    """Write the table of the journal's answers, where there is a journal."""
    run = audit.run
    path = run.folder / "journal.sqlite"
    if not path.exists():
        return
    with Journal(path) as journal:
        rows = journal.responses()
    prompt = pl.col("prompt").str.split_exact(":", len(_PROMPT) - 1).struct
    columns = {
        name: prompt.field(f"field_{number}") for number, name in enumerate(_PROMPT)
    }
    sent = pl.col("sent").str.to_datetime(time_zone="UTC", time_unit="ms")
    names = [view.name for view in list_views(audit, "logprobs")]
    is_logprob = pl.col("view").is_in(names)
    size = pl.when(is_logprob).then(LOGPROB_BLOCK_TARGETS).otherwise(BLOCK_TARGETS)
    table = (
        pl.DataFrame(rows, schema=_JOURNALLED, orient="row")
        .with_columns(sent=sent, **columns)
        .join(_read_places(audit), on="target_id", how="left", maintain_order="left")
        .with_columns(block=pl.col("place") // size)
    )
    in_order = table.select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items())
    sink(in_order, run.path("responses"), Responses)


def _read_places(audit: Audit) -> pl.DataFrame:
    """Return the place of each target in the order that was drawn; null where none was."""
    targets = audit.run.scan("targets").select("target_id").collect(engine="streaming")
    place = pl.lit(None, pl.UInt32)
    if "order" in audit.manifest.evidence:
        numbers = lot_numbers(targets["target_id"], audit.settings.seed)
        place = pl.lit(numbers).rank("ordinal") - 1
    return targets.with_columns(place=place)
