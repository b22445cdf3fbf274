"""What comes out of the target model: walks through documents, and controls of passages."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, cached_property, partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch import prompts
from mia_batch.attacks.attack import RECITAL, matches_views
from mia_batch.diagnostics.preflight import find_elsewhere
from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import (
    Block,
    FreshUnits,
    Missing,
    PromptUnits,
    Work,
    scan_parts,
)
from mia_batch.evidence.request import Workload, forecast
from mia_batch.inference import memory
from mia_batch.kernels import (
    book_coverage,
    foreseen_words,
    near_verbatim_recall,
    pair_features,
    word_spans,
)
from mia_batch.models.weights import estimated_tokens
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.costs import forecast_cost
from mia_batch.pipeline.folder import RunFolder
from mia_batch.pipeline.sessions import (
    Session,
    ask,
    build_sample_task,
    forecast_reading,
    open_session,
)
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import (
    RowUnits,
    ask_samples,
    write_prompts,
)
from mia_batch.pipeline.stages.features import digest_parts
from mia_batch.pipeline.stages.questions import prompt_parts, sample_parts
from mia_batch.schemas import (
    Controls,
    ExtractedDocuments,
    Extraction,
    Prompts,
    Samples,
    Targets,
)
from mia_batch.settings import Settings
from mia_batch.tables import read_numbers, scan, sink
from mia_batch.targets import build_document_owner, build_target_owner
from mia_batch.views import REFERENCE, TARGET, RunModel, View, build_view
from mia_batch.walks import MOST_ROUNDS, ROUND_WORDS, Text, Walk, Walks, Window

# The stage that follows the target model through documents, from their strongest
# windows on.

_OTHERS = 8  # documents that tell the level of chance
_DOCUMENTS_AT_ONCE = 64
_WORDS_BEFORE = 512  # that who foresees a passage has read
_WINDOW = ("target_id", "target_row", "start", "prefix", "n_words")
_IS_ASKED = pl.col("reason").is_null() & pl.col("reference").is_not_null()
_TABLES = {"extraction": Extraction, "extracted_documents": ExtractedDocuments}


def forecast_longest(audit: Audit, view: View, n: int, *roles: str) -> Workload:
    """Forecast the continuations of ``n`` texts of these roles: no choice takes more tokens."""
    texts = audit.open_targets().filter(pl.col("role").is_in(roles), _IS_ASKED)
    columns = texts.select(context=pl.col("prefix"), text=pl.col("reference"))
    longest = columns.top_k(n, by=estimated_tokens("text"))
    measure, budget = forecast_reading(audit, view.model)
    block = Block(
        index=0,
        first=0,
        last=view.samples,
        attempt=0,
        label=view.name,
        units=longest.collect(engine="streaming"),
    )
    return forecast([block], measure, budget(view))


def forecast_most_cost(
    audit: Audit, activity: str, work: Workload
) -> Iterator[tuple[str, str]]:
    """Price what is asked of texts that only scores will choose."""
    if not audit.asks_endpoint("target"):
        return
    most_cost = dict(forecast_cost(audit, work)).get("at most, all attempts")
    if most_cost:
        yield f"{activity}, at most", most_cost


def _list_stretches(walks: Walks) -> list[dict[str, Any]]:
    """List the rows of a document's walks."""
    return [
        {
            "document_id": walks.document_id,
            "walk": number,
            "target_id": walk.window.target_id,
            "draw": walk.draw,
            "start": walk.stretch.start,
            "end": walk.stretch.stop,
            "n_words": walk.n_words,
            "n_verbatim": walk.n_verbatim if walk.n_words else 0,
            "n_rounds": walk.n_rounds,
            "n_tokens": walk.n_tokens,
            "words_before": walk.first,
            "text": _read_stretch(walks.document, walk) if walk.n_words else None,
            "said": walk.said if walk.n_words else None,
        }
        for number, walk in enumerate(walks.started)
    ]


def _read_stretch(document: Text, walk: Walk) -> str:
    return document.text[walk.stretch.start : walk.stretch.stop]


def _summarize(walks: Walks, document_walks: Sequence[Walks]) -> dict[str, Any]:
    """Return the row of a document; the first other ones of its batch tell the level of chance."""
    document = walks.document
    answers = pl.Series([walk.generated for walk in walks.started], dtype=pl.String)
    prefixes = [walk.window.prefix for walk in walks.started]
    compute_coverage = partial(
        book_coverage,
        generations=answers,
        instructions=pl.Series(prefixes, dtype=pl.String),
        words=document.rule,
    )

    def find_blocks(k: int) -> pl.DataFrame:
        coverage = compute_coverage(document.text, k=k, m=memory.COPIED_WORDS)
        return coverage["blocks"].explode(empty_as_null=False).struct.unnest()

    is_foreseen = _mark_foreseen(document, find_blocks(20))

    def select_passages(k: int) -> pl.DataFrame:
        blocks = find_blocks(k)
        n_foreseen = [
            is_foreseen[first:last].sum()
            for first, last in _find_words(document, blocks)
        ]
        words_left = pl.col("words") - pl.Series(n_foreseen, dtype=pl.UInt32)
        return blocks.with_columns(words=words_left).filter(pl.col("words") >= k)

    passages = select_passages(20)
    is_covered = np.zeros(len(document.ends), bool)
    if passages.height:  # else all may be copied, or foreseen
        for walk in walks.started:
            is_covered[walk.first : walk.first + walk.n_words] = True
    is_covered &= ~is_foreseen
    ordered_walks = sorted(walks.started, key=lambda walk: walk.first)
    joined = pl.lit("\n".join(walk.generated for walk in ordered_walks))
    recalled = near_verbatim_recall(joined, pl.lit(document.text), words=document.rule)
    other_texts = [peer.document.text for peer in document_walks if peer is not walks]
    chance = [
        compute_coverage(text, k=5)["coverage"].item() for text in other_texts[:_OTHERS]
    ]
    return {
        "document_id": walks.document_id,
        "words_document": is_covered.size,
        "n_walks": len(walks.started),
        "n_tokens": walks.n_tokens,
        "coverage": is_covered.mean() if is_covered.size else None,
        "longest_words": passages["words"].max() or 0,
        "near_verbatim_recall": pl.select(recalled.struct.field("recall")).item(),
        "bmc_5": compute_coverage(document.text, k=5)["coverage"].item(),
        "bmc_5_others": pl.Series(chance, dtype=pl.Float64).mean(),
        "n_others": len(chance),
        "passages_20": passages.select("start", "end").to_dicts(),
        "passages_50": select_passages(50).select("start", "end").to_dicts(),
    }


def _find_words(document: Text, blocks: pl.DataFrame) -> Iterator[tuple[int, int]]:
    """Iterate over the first word of each passage, and the one after its last."""
    for place in blocks.select("start", "end").iter_rows():
        first, last = np.searchsorted(document.starts, place).tolist()
        yield first, last


def _mark_foreseen(document: Text, blocks: pl.DataFrame) -> NDArray[np.bool_]:
    """Mark the words of passages that do not count, as they could be foreseen."""
    text = document.text
    starts = document.starts.tolist()
    ends = document.ends.tolist()
    first_words: list[int] = []
    rows: list[tuple[str, str]] = []
    for first, last in _find_words(document, blocks):
        start = starts[first]
        context_start = starts[max(first - _WORDS_BEFORE, 0)]
        first_words.append(first)
        rows.append((text[context_start:start], text[start : ends[last - 1]]))
    schema = {"before": pl.String, "text": pl.String}
    passages = pl.DataFrame(rows, schema=schema, orient="row")
    foreseen = foreseen_words("before", "text", words=document.rule)
    words = passages.select(foreseen.struct.field("cut")).to_series()
    is_foreseen = np.zeros(len(ends), bool)
    for first, foreseen_places in zip(first_words, words, strict=True):
        is_foreseen[first + foreseen_places.to_numpy()] = True
    return is_foreseen


class ExtractionStage(Stage):
    """Follow the model through each document; what it says is kept as samples of views of walks."""

    # What is asked next depends on these samples alone, so that a run that was killed
    # goes on.

    name = "extraction"
    activity = "following the model through the documents"
    makes = tuple(_TABLES)
    reads_views = (".target-walk-", ".target-drawn_walk-")

    @property
    def _views(self) -> tuple[View, View]:
        settings = self.audit.settings
        greedy = build_view(settings, "target", "walk")
        return greedy, build_view(settings, "target", "drawn_walk")

    def remaining(self) -> Iterator[tuple[str, str]]:
        """Iterate over how many tokens it may take in all, those of earlier calls included."""
        settings = self.audit.settings
        if settings.extract:
            n_documents = self.audit.corpora.input.n_documents
            tokens = f"{settings.extract_tokens:,} tokens and a round"
            yield "extraction", f"of {n_documents:,} documents, each at most {tokens}"
            work = self._forecast(n_documents)
            yield from forecast_most_cost(self.audit, "extraction", work)

    def _forecast(self, n_documents: int) -> Workload:
        """Forecast the rounds: each decodes all that is asked for, or is the last of its walk."""
        settings = self.audit.settings
        one_round = forecast_longest(self.audit, self._views[0], 1, "target")
        if not one_round.prompts:
            return one_round
        targets = self.audit.open_targets().filter(_IS_ASKED, role="target")
        n_windows = targets.select(pl.len()).collect(engine="streaming").item()
        n_full = n_documents * (settings.extract_tokens // one_round.first_tokens + 1)
        n_drawn = n_documents * settings.extract_starts * settings.extract_draws
        return one_round.times(n_full + n_drawn + n_windows)

    def run(self) -> None:
        if not self.audit.settings.extract:
            return
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
        with ExitStack() as stack:
            opening = open_session(self.audit, TARGET, "samples")
            session = cache(lambda: stack.enter_context(opening))
            for batch in self._batches():
                self._add_answers(batch)
                next_prompts = _list_prompts(batch)
                while next_prompts:
                    self._ask(session(), pl.DataFrame(next_prompts))
                    self._add_answers(batch)
                    next_prompts = _list_prompts(batch)
                for walks in batch:
                    rows["extraction"] += _list_stretches(walks)
                    rows["extracted_documents"].append(_summarize(walks, batch))
        for name, schema in _TABLES.items():
            table = pl.DataFrame(rows[name], schema=schema.create_empty().schema)
            sink(table, self.audit.run.path(name), schema)
        n_words = sum(row["n_words"] for row in rows["extraction"])
        n_documents = len(rows["extracted_documents"])
        self.audit.observer.stage(
            f"extracted {n_words:,} words of {n_documents:,} documents"
        )

    def validate(self) -> None:
        audit = self.audit
        if not audit.settings.extract:
            return
        fault = None
        if audit.recording is not None:
            fault = "extract= needs a model to ask; a recording answers nothing further"
        elif audit.settings.extract_draws and not audit.settings.temperature:
            fault = (
                "extract_draws= draws words; at temperature 0 there is nothing to draw"
            )
        else:
            has_unnamed = pl.col("document_id").is_null().any()
            documents = audit.corpora.input.documents.select(has_unnamed)
            if documents.collect(engine="streaming").item():
                fault = "extract= needs documents with names; add a column document_id"
        if fault is not None:
            raise SettingsError(fault)
        audit.agree({"walk_words": ROUND_WORDS})

    def _batches(self) -> Iterator[list[Walks]]:
        """Iterate over the walks of some documents at once, in the order of asking."""
        all_windows = (
            scan(self.audit.run.order, Targets)
            .with_row_index("target_row")
            .filter(pl.col("role") == "target")
            .select("document_id", *_WINDOW)
            .drop_nulls()
        )
        strongest = self._find_strongest(all_windows)
        names = strongest.sort("target_row")["document_id"].unique(maintain_order=True)
        for start in range(0, names.len(), _DOCUMENTS_AT_ONCE):
            batch = names[start : start + _DOCUMENTS_AT_ONCE]
            is_in_batch = pl.col("document_id").is_in(batch.implode())
            windows = all_windows.filter(is_in_batch).collect(engine="streaming")
            yield self._build_walks(
                windows.sort("start", maintain_order=True),
                strongest.filter(is_in_batch),
                is_in_batch,
            )

    def _build_walks(
        self, windows: pl.DataFrame, strongest: pl.DataFrame, is_in_batch: pl.Expr
    ) -> list[Walks]:
        audit = self.audit
        settings = audit.settings
        documents = audit.corpora.input.documents.select("document_id", "text")
        texts = dict(
            documents.filter(is_in_batch).collect(engine="streaming").iter_rows()
        )
        windows_by_document = _group_windows(windows, texts)
        return [
            Walks(
                document_id=name,
                document=Text(texts[name], settings.word_rule),
                strongest_windows=strongest_windows,
                all_windows=windows_by_document[name],
                budget=settings.extract_tokens,
                draws=settings.extract_draws,
            )
            for name, strongest_windows in _group_windows(strongest, texts).items()
        ]

    def _find_strongest(self, windows: pl.LazyFrame) -> pl.DataFrame:
        """Return the windows of highest scores of each document."""
        primary = self.audit.rule.primary
        n = self.audit.settings.extract_starts
        order = [primary, "window_index"]
        highest = pl.col("target_id", *order).top_k_by(order, n, reverse=[False, True])
        strongest = (
            self.audit.run.scan("scores")
            .filter(pl.col("role") == "target", pl.col(primary).is_not_null())
            .group_by("document_id")
            .agg(highest)
            .explode("target_id", *order)
            .collect(engine="streaming")
        )
        return (
            windows.drop("document_id")
            .join(strongest.lazy(), on="target_id")
            .sort("document_id", *order, descending=[False, True, False])
            .select("document_id", *_WINDOW)
            .collect(engine="streaming")
        )

    def _add_answers(self, batch: Sequence[Walks]) -> None:
        """Add the stored answers to walks, as far as there are any."""
        folder = self.audit.run.path("samples")
        walk_samples = pl.concat(
            scan_parts(folder, Samples, view.key) for view in self._views
        )
        columns = ("target_id", "view_index", "candidate", "finish_reason", "n_tokens")
        target_ids: list[str] = []
        for walks in batch:
            target_ids += [window.target_id for window in walks.all_windows]
        is_of_batch = pl.col("target_id").is_in(target_ids)
        samples = walk_samples.filter(is_of_batch).select(columns)
        answers = {row[:2]: row[2:] for row in samples.collect().iter_rows()}
        for walks in batch:
            while (prompt := walks.next_prompt()) is not None:
                answer = answers.get((prompt["target_id"], prompt["view_index"]))
                if answer is None:
                    break
                candidate, finish_reason, n_tokens = answer
                walks.started[-1].add_answer(candidate, finish_reason, n_tokens or 0)

    def _ask(self, session: Session, rows: pl.DataFrame) -> None:
        audit = self.audit
        ordered = rows.sort("target_row").cast(
            {"view_index": pl.UInt32, "target_row": pl.UInt32}
        )
        is_drawn = pl.col("view_index") >= MOST_ROUNDS
        jobs = []
        for view, is_of_view in zip(self._views, (~is_drawn, is_drawn), strict=True):
            parts = sample_parts(audit, view)
            units = RowUnits(ordered.filter(is_of_view))
            blocks = list(Missing(units, parts).blocks())
            self._store_prompts(view, blocks)
            jobs.append((build_sample_task(audit, session, view), blocks, parts.store))
        ask(audit, session, "walking", Work(left=rows.height), jobs)

    def _store_prompts(self, view: View, blocks: list[Block]) -> None:
        """Store prompts that are missing; a run may have lost its samples only."""
        folder = self.audit.run.path("prompts")
        keys = ("target_id", "view_index")
        stored_keys = scan_parts(folder, Prompts, view.key).select(keys).collect()
        for block in blocks:
            new = view.fill_prompts(block.units).join(stored_keys, on=keys, how="anti")
            if new.is_empty():
                continue
            attempts = count(block.attempt)
            paths = (folder / replace(block, attempt=n).part_name for n in attempts)
            sink(new, next(path for path in paths if not path.exists()), Prompts)


def _list_prompts(batch: Sequence[Walks]) -> list[dict[str, Any]]:
    """List the next prompts of walks that have not ended."""
    next_prompts = (walks.next_prompt() for walks in batch)
    return [prompt for prompt in next_prompts if prompt is not None]


def _group_windows(
    windows: pl.DataFrame, texts: Mapping[str, str | None]
) -> dict[str, list[Window]]:
    """Group windows by document, without those whose prefix is not at its place in the text."""
    groups: dict[str, list[Window]] = {}
    for row in windows.to_dicts():
        name = row.pop("document_id")
        text = texts.get(name)
        if text is None:
            continue
        group = groups.setdefault(name, [])
        if text.startswith(row["prefix"], row["start"]):
            group.append(Window(**row))
    return groups


def write_missing_prompts(
    audit: Audit, view: View, units: FreshUnits | RowUnits
) -> Missing:
    """Write a view's prompts of some texts; return the samples that are missing."""
    parts = prompt_parts(audit, view)
    write_prompts(audit, view, Missing(units, parts, view.n))
    return Missing(
        PromptUnits(audit.run.order, parts, view, askable=True),
        sample_parts(audit, view),
        view.samples,
        retry_failed=audit.settings.retry_failed,
    )


# Passages that came out of the target model word for word.


def find_verbatim_runs(run: RunFolder, settings: Settings) -> pl.DataFrame:
    """Return the longest run of each target that its continuations give back."""
    return memory.verbatim_runs(
        run.scan("targets"),
        run.scan("features"),
        settings.continuations,
        settings.word_rule,
    )


def find_passages(audit: Audit, runs: pl.DataFrame) -> pl.DataFrame:
    """Return what came out: one row per target, in the targets' order, by its verbatim runs."""
    # ``view`` asks for it as a control; ``text`` is what is asked for, null where it is
    # the target's own reference. Where only a walk came out, its first words are the
    # passage.
    continued = _find_continued(audit, runs)
    walked = _find_walked(audit).join(continued, on="target_id", how="anti")
    passages = pl.concat([continued, walked])
    targets = (
        audit.run.scan("targets")
        .with_row_index("target_row")
        .filter(pl.col("role") == "target")
        .select("target_id", "target_row", owner=build_target_owner().hash())
    )
    joined = targets.join(passages.lazy(), on="target_id", maintain_order="left")
    return joined.collect(engine="streaming").sort("target_row")


def _find_continued(audit: Audit, runs: pl.DataFrame) -> pl.DataFrame:
    """Return the longest run of the best continuation of each target, where it is long enough."""
    is_long = pl.col("longest_words") >= memory.VERBATIM_WORDS
    long_runs = runs.with_row_index("row").filter(is_long)
    if long_runs.is_empty():
        return _PASSAGES.clear()
    targets = audit.run.scan("targets").select("target_id", "reference")
    with_runs = targets.with_row_index("row").join(
        long_runs.lazy(), on="row", maintain_order="left"
    )
    is_recital = pl.col("view") == RECITAL[1]  # greedy, as walks are
    control = pl.when(is_recital).then(pl.lit("walk_control"))
    features = audit.run.scan("features").filter(matches_views(memory.CONTINUED))
    key = ["target_id", "sample_index"]
    places = features.select(
        *key,
        "longest_block_start",
        "longest_block_words",
        control.otherwise(pl.lit("control")).alias("asked_as"),
    )
    places = places.unique(key, keep="first", maintain_order=True)
    passages = with_runs.join(places, on=key).select(
        "target_id",
        passage=memory.longest_passage(audit.settings.word_rule),
        text=pl.lit(None, pl.String),
        view="asked_as",
    )
    return passages.collect(engine="streaming")


def _find_walked(audit: Audit) -> pl.DataFrame:
    """Return of each stretch that came out as much as was asked for in its first round."""
    run = audit.run
    if not run.path("extraction").exists():
        return _PASSAGES.clear()
    documents = run.scan("extracted_documents")
    passages = documents.select("document_id", passage="passages_20")
    passages = passages.explode("passage").drop_nulls()
    is_long = pl.col("n_words") >= memory.VERBATIM_WORDS
    begins_before = pl.col("passage").struct.field("start") < pl.col("end")
    ends_after = pl.col("passage").struct.field("end") > pl.col("start")
    stretches = run.scan("extraction").filter(is_long)
    stretches = stretches.join(passages, on="document_id")
    stretches = stretches.filter(begins_before & ends_after)
    stretches = stretches.sort("n_words", descending=True)
    stretches = stretches.unique("target_id", keep="first")
    length = pl.col("end") - pl.col("start")
    walks = scan_parts(run.path("prompts"), Prompts, ("target", "walk"))
    first_rounds = walks.filter(view_index=0)
    spans = word_spans("text", words=audit.settings.word_rule)
    first_start = spans.struct.field("starts").list.first()
    joined = stretches.select("target_id", length=length).join(
        first_rounds, on="target_id"
    )
    rows = joined.select(
        "target_id",
        "text",
        passage=pl.col("text").str.slice(first_start, pl.col("length")),
        view=pl.lit("walk_control"),
    )
    return rows.select(_PASSAGES.columns).collect(engine="streaming")


_PASSAGES = pl.DataFrame(
    schema=dict.fromkeys(("target_id", "passage", "text", "view"), pl.String)
)


# The stage that looks whether passages that came out are common: by other prompts,
# elsewhere.

_ANSWER = {
    **dict.fromkeys(("model", "target_id", "other_document", "reason"), pl.String),
    **dict.fromkeys(("view_index", "n_samples", "longest_words"), pl.UInt32),
}
_VIEWS = ("control", "walk_control")
_RECORDED = "the samples are a recording: there is no model to ask"


class ControlsStage(Stage):
    """Ask for what came out after an unrelated prefix and by a reference model; search for it."""

    # Prompts that were made stay as they are, so that a run that was killed, or grows,
    # goes on.

    name = "controls"
    activity = "looking for passages in other documents"
    makes = ("controls",)
    reads_views = ("control-",)

    def remaining(self) -> Iterator[tuple[str, str]]:
        audit = self.audit
        settings = audit.settings
        if not settings.controls:
            return
        may_come = (pl.col("role") == "target") & pl.col("reason").is_null()
        targets = audit.open_targets().select(may_come.sum())
        n = targets.collect(engine="streaming").item()
        samples = settings.continuations
        if not audit.continues_texts:
            n_starts = settings.extract * settings.extract_starts
            n_walks = n_starts * audit.corpora.input.n_documents
            n = min(n, n_walks + (settings.continue_strongest or 0))
            samples = 1
        controls = [build_view(settings, model, "control") for model in self._models]
        n_prompts = n * sum(view.n for view in controls)
        sizes = ""
        if n_prompts:
            sizes = f", {n_prompts:,} prompts, {n_prompts * samples:,} samples"
        yield "controls", f"of what comes out, at most {n:,} passages{sizes}"
        if n_prompts:
            control = build_view(settings, "target", "control")
            view = replace(control, samples=samples)
            work = forecast_longest(audit, view, n, "target")
            yield from forecast_most_cost(audit, "controls", work.times(view.n))

    @property
    def _models(self) -> list[RunModel]:
        settings = self.audit.settings
        if settings.source == "recording":
            return []
        # To a reference a control is asked as the target was, which no question is
        if settings.reference_model is None or settings.conversations == "answers":
            return [TARGET]
        return [TARGET, REFERENCE]

    @cached_property
    def _passages(self) -> pl.DataFrame:
        runs = find_verbatim_runs(self.audit.run, self.audit.settings)
        return find_passages(self.audit, runs)

    def fingerprint(self) -> dict[str, Any]:
        audit = self.audit
        passages = self._passages.select("target_id", "view", "passage").write_ndjson()
        parts: list[Path] = []
        for view in self._views:
            parts += sample_parts(audit, view).paths()
        return {
            "passages": sha256(passages.encode()).hexdigest(),
            "targets": audit.manifest.made["targets"],
            "parts": digest_parts(parts),
            "samples": audit.settings.continuations,
            "models": self._models,
        }

    @property
    def _views(self) -> list[View]:
        views: list[View] = []
        for model in self._models:
            views += [build_view(self.audit.settings, model, name) for name in _VIEWS]
        return views

    def run(self) -> None:
        audit = self.audit
        if not audit.settings.controls:
            return
        audit.agree({"control_words": prompts.LAST_WORDS})
        for model in self._models:
            views = [view for view in self._views if view.model == model]
            missing = {view: self._find_missing(view) for view in views}
            ask_samples(audit, model, "asking for controls", missing)
        super().run()

    def make(self) -> None:
        audit = self.audit
        passages = self._passages
        answers = [pl.DataFrame(schema=_ANSWER), *map(self._read_answers, self._views)]
        rows = memory.control_rows(
            passages,
            pl.concat(answers),
            _find_other_documents(audit, passages),
            models=self._models or [TARGET],
            without=prompts.NOTHING_UNRELATED if self._models else _RECORDED,
        )
        sink(rows, audit.run.path("controls"), Controls)
        audit.manifest.controls = memory.count_controls(rows)
        counts = audit.manifest.controls["any"]
        audit.observer.stage(
            f"{counts['common']:,} of {counts['passages']:,} passages that came out are"
            " common"
        )

    def _find_missing(self, view: View) -> Missing:
        targets = scan(self.audit.run.order, Targets).select("target_id")
        places = targets.with_row_index("target_row").collect()
        passages = (
            self._passages.filter(view=view.name)
            .rename({"target_row": "own_row"})
            .with_columns(view_index=pl.lit(0, pl.UInt32))
            .join(places, on="target_id")
            .sort("target_row")
        )
        complete = partial(self._join_prefixes, alone=view.model == "reference")
        return write_missing_prompts(self.audit, view, RowUnits(passages, complete))

    @cached_property
    def _prefix_donors(self) -> tuple[prompts.OtherRows, prompts.OtherRows]:
        """Targets whose prefix may stand before a passage: of other owners, and of all."""
        # A model goes on with what it recites after any prefix of it, so owners of
        # passages give theirs only where there are no others.
        targets = self.audit.run.scan("targets")
        size = targets.select(pl.len()).collect(engine="streaming").item()
        owners = read_numbers(targets, build_target_owner().hash(), size, np.uint64)
        has_prefix = pl.col("prefix").str.contains(r"\S").fill_null(value=False)
        may_stand = read_numbers(targets, has_prefix, size, np.bool_)
        owns_passage = np.isin(owners, self._passages["owner"].to_numpy())
        return (
            prompts.OtherRows(owners, may_stand & ~owns_passage),
            prompts.OtherRows(owners, may_stand),
        )

    def _find_prefix_donor(self, owner: int, target_id: str) -> int | None:
        """Return the row of a target whose prefix may stand before a passage."""
        seed = self.audit.settings.seed
        for donors in self._prefix_donors:
            row = donors.choose(owner, target_id, seed)
            if row is not None:
                return row
        return None

    def _join_prefixes(self, rows: pl.DataFrame, *, alone: bool) -> pl.DataFrame:
        """Join the own ``prefix``, which may stand ``alone``, and an ``unrelated`` one."""
        targets = self.audit.run.scan("targets")
        owners = rows.select("owner", "target_id").iter_rows()
        donors = [self._find_prefix_donor(*row) for row in owners]
        units = rows.with_columns(
            pl.Series("other_row", donors, dtype=pl.get_index_type())
        )
        for row, name in (("own_row", "prefix"), ("other_row", "unrelated")):
            numbered = targets.select(pl.col("prefix").alias(name)).with_row_index(row)
            is_used = pl.col(row).is_in(units[row].implode())
            prefixes = numbered.filter(is_used).collect(engine="streaming")
            units = units.join(prefixes, on=row, how="left", maintain_order="left")
        return units.filter(pl.col("unrelated").is_not_null() | alone)

    def _read_answers(self, view: View) -> pl.DataFrame:
        """Compare answers to each prompt with the passage; return whose prefix stood before it."""
        run = self.audit.run
        words = self.audit.settings.word_rule
        rows = scan_parts(run.path("prompts"), Prompts, view.key).filter(view_index=0)
        prefixes = rows.select("target_id", prefix="context").drop_nulls()
        donor = pl.coalesce("document_id", "target_id")
        donors = (
            run.scan("targets")
            .select("prefix", other_document=donor)
            .join(prefixes, on="prefix", how="semi", maintain_order="left")
            .unique("prefix", keep="first", maintain_order=True)
        )
        named_prefixes = prefixes.join(donors, on="prefix")
        passages = self._passages.lazy().filter(view=view.name)
        blocks = pair_features("candidate", "passage", words=words, groups=["blocks"])
        answers = (
            scan_parts(run.path("samples"), Samples, view.key)
            .filter(pl.col("sample_index") < view.samples)
            .join(passages.select("target_id", "passage"), on="target_id")
            .with_columns(longest_words=blocks.struct.field("longest_block_words"))
            .group_by("target_id", "view_index")
            .agg(
                n_samples=pl.col("candidate").count(),
                longest_words=pl.col("longest_words").max(),
                reason=pl.col("reason").min(),
            )
            .join(named_prefixes, on="target_id", how="left")
            .with_columns(model=pl.lit(view.model))
            .select(pl.col(name).cast(dtype) for name, dtype in _ANSWER.items())
        )
        return answers.collect(engine="streaming")


def _find_other_documents(audit: Audit, passages: pl.DataFrame) -> pl.DataFrame:
    """Return the other documents, of the input or to compare with, that hold each passage."""
    corpora = {"target": audit.corpora.input, **audit.corpora.reference_sets}
    documents = []
    for role, corpus in corpora.items():
        if role == "yardstick":
            continue
        number = pl.format(f"document {{}} of the {role} texts", "place")
        texts = corpus.documents.with_row_index("place", 1).select(
            "text",
            owner=build_document_owner(role).hash(),
            name=pl.coalesce("document_id", number),
        )
        documents.append(texts)
    elsewhere = find_elsewhere(passages, pl.concat(documents))
    return elsewhere.rename({"name": "other_document"})
