"""Paraphrases by a model: what DE-COP needs of every text that it asks about."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import scan_parts
from mia_batch.observer import Observer
from mia_batch.pipeline.audits import resume
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import seal
from mia_batch.pipeline.folder import ORDER
from mia_batch.pipeline.stages import Stage, damage_set_aside, run_timed
from mia_batch.pipeline.stages.evidence import SamplesStage, write_prompts
from mia_batch.pipeline.stages.targets import TargetsStage
from mia_batch.pipeline.timing import record_requests
from mia_batch.places import mirrored
from mia_batch.prompts import N_PARAPHRASES
from mia_batch.schemas import Paraphrases, Samples, Targets
from mia_batch.settings import Settings, flatten, load_settings
from mia_batch.tables import remove, scan, sink
from mia_batch.views import TARGET, View, build_view

__all__ = ["paraphrase", "plan_paraphrasing"]


def paraphrase(*, observer: Observer | None = None, **settings: object) -> pl.DataFrame:
    """Have a model write each text of a corpus in other words, for an audit with DE-COP.

    Parameters
    ----------
    observer
        Sees what is done; by default nobody does.
    **settings
        Settings by table as in `mia_batch.audit`: ``input``, the texts; ``model``,
        which paraphrases and should not be the one that is audited; ``out``; where it
        answers (``engine``, ``endpoint``); how texts are cut. By default 3 samples are
        drawn of each text.

    Returns
    -------
    DataFrame
        One row per text, as `mia_batch.schemas.Paraphrases` says; it lies in ``out`` as
        ``paraphrases.parquet``.

    Raises
    ------
    RequestError
        If the input or a setting is wrong; found before a model is loaded.
    EngineError
        If the engine cannot start or go on; what is complete is kept.
    RunFolderError
        If the folder cannot be used.
    """
    loaded = _load_settings(settings)
    observer = observer or Observer()
    with mirrored(loaded.place) as folder:
        audit, stages = _begin(loaded, observer)
        with audit.run.held(), damage_set_aside(stages), closing(audit.kept_engine):
            resume(audit, stages)
            run_timed(audit, [(stage, stage.run) for stage in stages])
            record_requests(audit)
            remove(audit.run.path(ORDER))
            seal(audit)
        return scan(folder / "paraphrases.parquet", Paraphrases).collect()


def plan_paraphrasing(**settings: object) -> Iterator[tuple[str, str]]:
    """Iterate over what is left to ask for and its cost, name and text; nothing is written."""
    audit, stages = _begin(_load_settings(settings), Observer())
    manifest = audit.manifest
    yield "engine", f"{manifest.evidence['engine']} ({manifest.engine_choice})"
    for stage in stages:
        yield from stage.remaining()


def _load_settings(settings: dict[str, object]) -> Settings:
    defaults = {"samples": N_PARAPHRASES}
    loaded = load_settings(defaults | flatten(settings), use_config=False)
    if loaded.out is None:
        raise SettingsError(
            "out= is missing; name the folder that the paraphrases go to"
        )
    if loaded.continuations < N_PARAPHRASES:
        raise SettingsError(
            f"samples= is {loaded.samples}; of each text at least {N_PARAPHRASES} are"
            " needed"
        )
    return loaded


def _begin(settings: Settings, observer: Observer) -> tuple[Audit, list[Stage]]:
    audit = Audit.begin(settings, observer)
    return audit, [TargetsStage(audit), RewritingStage(audit)]


# The stage that has a model rewrite texts.


_TOO_FEW = (
    "{} of {} answers end and differ from the text and from each other; three are"
    " needed"
)
_PARAPHRASE = pl.col("candidate").str.strip_chars()
_IS_PARAPHRASE = (
    ~pl.col("finish_reason").is_in(["length", "repeats"]).fill_null(value=False)
    & (_PARAPHRASE != "")
    & (pl.col("target").str.strip_chars() != _PARAPHRASE)
)
_WORDS = r"\S+"


class RewritingStage(SamplesStage):
    """Texts in other words, as samples, and as a table that an audit takes."""

    def __init__(self, audit: Audit) -> None:
        super().__init__(audit, TARGET)

    @property
    def views(self) -> list[View]:
        return [build_view(self.audit.settings, "target", "rewriting")]

    def run(self) -> None:
        audit, run = self.audit, self.audit.run
        (view,) = self.views
        write_prompts(audit, view)
        super().run()
        samples = scan_parts(run.path("samples"), Samples, view.key)
        table = _build_table(run.scan("targets"), samples)
        rows = table.collect(engine="streaming")
        audit.begin_change()
        sink(rows, self.path, Paraphrases)
        audit.observer.stage(_summarize(rows))

    @property
    def path(self) -> Path:
        return self.audit.run.path("paraphrases")


def _build_table(targets: pl.LazyFrame, samples: pl.LazyFrame) -> pl.LazyFrame:
    """Build the paraphrases of each text: answers that end, and differ from it and each other."""
    texts = targets.select("target_id", "target")
    answers = samples.join(texts, on="target_id").sort("target_id", "sample_index")
    paraphrases = answers.group_by("target_id").agg(
        n=pl.len(),
        refused=pl.col("reason").drop_nulls().first(),
        paraphrases=_PARAPHRASE.filter(_IS_PARAPHRASE).unique(maintain_order=True),
    )
    is_window = pl.col("n_windows") > 1
    window_id = pl.format("{}#{}", "document_id", "window_index")
    document = pl.coalesce("group", "document_id")
    n_paraphrases = pl.col("paraphrases").list.len()
    too_few = pl.coalesce("refused", pl.format(_TOO_FEW, n_paraphrases, "n"))
    reason = (
        pl.when(pl.col("target").is_null())
        .then("reason")
        .when(n_paraphrases < N_PARAPHRASES)
        .then(too_few)
    )
    # Further columns may be called as ours
    columns = targets.select(Targets.column_names())
    joined = columns.join(
        paraphrases, on="target_id", how="left", maintain_order="left"
    )
    return joined.select(
        document_id=pl.when(is_window).then(window_id).otherwise("document_id"),
        text="target",
        member="member",
        group=pl.when(is_window).then(document).otherwise("group"),
        paraphrases=pl.when(n_paraphrases > 0).then("paraphrases"),
        paraphrases_reason=reason,
    )


def _summarize(rows: pl.DataFrame) -> str:
    """Return how many texts can be asked about, and how long their paraphrases are."""
    complete = rows.filter(pl.col("paraphrases_reason").is_null())
    sentence = f"{complete.height:,} of {rows.height:,} texts have three paraphrases"
    if complete.is_empty():
        return sentence
    n_words = pl.col("text", "paraphrases").str.count_matches(_WORDS).mean()
    text, paraphrase = complete.explode("paraphrases").select(n_words).row(0)
    ratio = paraphrase / text
    return f"{sentence}, which have {ratio:.2f} times the words of the texts"
