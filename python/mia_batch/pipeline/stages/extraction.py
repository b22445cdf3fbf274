"""What comes out of the target model: walks through documents, and controls of passages."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, cached_property, partial
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from mia_batch import prompts
from mia_batch.attacks.attack import RECITAL, among
from mia_batch.diagnostics.preflight import find_elsewhere
from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.registry import engine_types, why_not
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
from mia_batch.pipeline.costs import forecast_cost, is_asked_remotely
from mia_batch.pipeline.folder import RunFolder
from mia_batch.pipeline.sessions import (
    Session,
    ask,
    build_sample_task,
    forecast_reading,
    open_session,
)
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import RowUnits, ask_samples, write_prompts
from mia_batch.pipeline.stages.features import make_features, digest_parts
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
from mia_batch.targets import owner_of_documents, owner_of_targets
from mia_batch.views import View, build_view

# The stage that follows the target model through documents, from their strongest
# windows on.

_OTHERS = 8  # documents that tell the level of chance
_DOCUMENTS_AT_ONCE = 64
_WORDS_BEFORE = 512  # that who foresees a passage has read
_WINDOW = ("target_id", "target_row", "start", "prefix", "n_words")
_IS_ASKED = pl.col("reason").is_null() & pl.col("reference").is_not_null()
_TABLES = {"extraction": Extraction, "extracted_documents": ExtractedDocuments}


def _longest_work(audit: Audit, view: View, n: int, *roles: str) -> Workload:
    """Foresee the continuations of ``n`` texts of these roles: no choice takes more tokens."""
    longest = (
        audit.open_targets()
        .filter(pl.col("role").is_in(roles), _IS_ASKED)
        .select(context=pl.col("prefix"), text=pl.col("reference"))
        .top_k(n, by=estimated_tokens("text"))
        .collect(engine="streaming")
    )
    measure, budget = forecast_reading(audit, view.model)
    block = Block(
        index=0, first=0, last=view.samples, attempt=0, label=view.name, units=longest
    )
    return forecast([block], measure, budget(view))


def _costs(audit: Audit, what: str, work: Workload) -> Iterator[tuple[str, str]]:
    """Price what is asked of texts that only scores will choose."""
    if is_asked_remotely(audit, "target"):
        lines = dict(forecast_cost(audit, work))
        if most := lines.get("at most, all attempts"):
            yield f"{what}, at most", most


def _stretches(walks: prompts.Walks) -> Iterator[dict[str, Any]]:
    for number, walk in enumerate(walks.made):
        yield {
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
        }


def _summary(walks: prompts.Walks, every: Sequence[prompts.Walks]) -> dict[str, Any]:
    document, rule = walks.document, walks.document.rule
    said = pl.Series([walk.said for walk in walks.made], dtype=pl.String)
    given = pl.Series([walk.window.prefix for walk in walks.made], dtype=pl.String)
    in_order = sorted(walks.made, key=lambda walk: walk.first)
    whole = pl.lit("\n".join(walk.said for walk in in_order))
    recalled = near_verbatim_recall(whole, pl.lit(document.text), words=rule)
    others = [each.document.text for each in every if each is not walks][:_OTHERS]
    coverage = partial(book_coverage, generations=said, instructions=given, words=rule)

    def blocks(k: int) -> pl.DataFrame:
        found = coverage(document.text, k=k, m=memory.COPIED_WORDS)
        return found["blocks"].explode(empty_as_null=False).struct.unnest()

    is_cut = _foreseen(document, blocks(20))

    def passages(k: int) -> pl.DataFrame:
        found = blocks(k)
        n_cut = [is_cut[first:last].sum() for first, last in _words_at(document, found)]
        words_left = pl.col("words") - pl.Series(n_cut, dtype=pl.UInt32)
        return found.with_columns(words=words_left).filter(pl.col("words") >= k)

    own, inside = passages(20), np.zeros(len(document.ends), bool)
    for walk in walks.made if own.height else ():  # else all may be copied, or foreseen
        inside[walk.first : walk.first + walk.n_words] = True
    inside &= ~is_cut
    chance = [coverage(text, k=5)["coverage"].item() for text in others]
    return {
        "document_id": walks.document_id,
        "words_document": inside.size,
        "n_walks": len(walks.made),
        "n_tokens": walks.n_tokens,
        "coverage": inside.mean() if inside.size else None,
        "longest_words": own["words"].max() or 0,
        "near_verbatim_recall": pl.select(recalled.struct.field("recall")).item(),
        "bmc_5": coverage(document.text, k=5)["coverage"].item(),
        "bmc_5_others": pl.Series(chance, dtype=pl.Float64).mean(),
        "n_others": len(others),
        **{
            f"passages_{k}": passages(k).select("start", "end").to_dicts()
            for k in (20, 50)
        },
    }


def _words_at(
    document: prompts.Text, blocks: pl.DataFrame
) -> Iterator[tuple[int, int]]:
    """Yield the first word of each passage, and the one after its last."""
    for place in blocks.select("start", "end").iter_rows():
        first, last = np.searchsorted(document.starts, place).tolist()
        yield first, last


def _foreseen(document: prompts.Text, blocks: pl.DataFrame) -> NDArray[np.bool_]:
    """Mark the words of passages that do not count, as they could be foreseen."""
    text, starts, ends = document.text, document.starts.tolist(), document.ends.tolist()
    firsts, texts = list[int](), list[tuple[str, str]]()
    for first, last in _words_at(document, blocks):
        start = starts[first]
        firsts.append(first)
        before = text[starts[max(first - _WORDS_BEFORE, 0)] : start]
        texts.append((before, text[start : ends[last - 1]]))
    passages = pl.DataFrame(
        texts, schema={"before": pl.String, "text": pl.String}, orient="row"
    )
    found = foreseen_words("before", "text", words=document.rule).struct.field("cut")
    is_cut = np.zeros(len(ends), bool)
    for first, cut in zip(firsts, passages.select(found).to_series(), strict=True):
        is_cut[first + cut.to_numpy()] = True
    return is_cut


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
        """Say how many tokens it may take in all, those of earlier calls included."""
        settings = self.audit.settings
        if settings.extract:
            n_documents = self.audit.corpora.input.n_documents
            tokens = f"{settings.extract_tokens:,} tokens and a round"
            yield "extraction", f"of {n_documents:,} documents, each at most {tokens}"
            yield from _costs(self.audit, "extraction", self._work(n_documents))

    def _work(self, n_documents: int) -> Workload:
        """Foresee the rounds: each decodes all that is asked for, or is the last of its walk."""
        settings = self.audit.settings
        a_round = _longest_work(self.audit, self._views[0], 1, "target")
        if not a_round.prompts:
            return a_round
        n_windows = (
            self.audit.open_targets().filter(_IS_ASKED, role="target").select(pl.len())
        )
        full = n_documents * (settings.extract_tokens // a_round.first_tokens + 1)
        drawn = n_documents * settings.extract_starts * settings.extract_draws
        n_rounds = full + drawn + n_windows.collect(engine="streaming").item()
        return a_round.times(n_rounds)

    def run(self) -> None:
        if not self.audit.settings.extract:
            return
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
        with ExitStack() as stack:
            opened = open_session(self.audit, "target", "samples")
            session = cache(lambda: stack.enter_context(opened))
            for walks in self._batches():
                self._take(walks)
                while asked := [
                    prompt for each in walks if (prompt := each.prompt()) is not None
                ]:
                    self._ask(session(), pl.DataFrame(asked))
                    self._take(walks)
                for each in walks:
                    rows["extraction"] += _stretches(each)
                    rows["extracted_documents"].append(_summary(each, walks))
        for name, schema in _TABLES.items():
            table = pl.DataFrame(rows[name], schema=schema.create_empty().schema)
            sink(table, self.audit.run.path(name), schema)
        n_words = sum(row["n_words"] for row in rows["extraction"])
        n_documents = len(rows["extracted_documents"])
        self.audit.observer.stage(
            f"extracted {n_words:,} words of {n_documents:,} documents"
        )

    def validate(self) -> None:
        audit, fault = self.audit, None
        if not audit.settings.extract:
            return
        unnamed = pl.col("document_id").is_null().any()
        if audit.recording is not None:
            fault = "extract= needs a model to ask; a recording answers nothing further"
        elif audit.settings.extract_draws and not audit.settings.temperature:
            fault = (
                "extract_draws= draws words; at temperature 0 there is nothing to draw"
            )
        elif (
            audit.corpora.input.documents.select(unnamed)
            .collect(engine="streaming")
            .item()
        ):
            fault = "extract= needs documents with names; add a column document_id"
        if fault is not None:
            raise SettingsError(fault)
        audit.agree({"walk_words": prompts.ROUND_WORDS})

    def _batches(self) -> Iterator[list[prompts.Walks]]:
        audit, settings = self.audit, self.audit.settings
        every = (
            scan(audit.run.order, Targets)
            .with_row_index("target_row")
            .filter(pl.col("role") == "target")
            .select("document_id", *_WINDOW)
            .drop_nulls()
        )
        strongest = self._strongest(every)
        names = strongest.sort("target_row")["document_id"].unique(maintain_order=True)
        for start in range(0, names.len(), _DOCUMENTS_AT_ONCE):
            of_batch = pl.col("document_id").is_in(
                names[start : start + _DOCUMENTS_AT_ONCE].implode()
            )
            documents = audit.corpora.input.documents.select("document_id", "text")
            texts = dict(
                documents.filter(of_batch).collect(engine="streaming").iter_rows()
            )
            of_documents = every.filter(of_batch).collect(engine="streaming")
            windows = _by_document(
                of_documents.sort("start", maintain_order=True), texts
            )
            yield [
                prompts.Walks(
                    document_id=name,
                    document=prompts.Text(texts[name], settings.word_rule),
                    windows=chosen,
                    every=windows[name],
                    budget=settings.extract_tokens,
                    draws=settings.extract_draws,
                )
                for name, chosen in _by_document(
                    strongest.filter(of_batch), texts
                ).items()
            ]

    def _strongest(self, every: pl.LazyFrame) -> pl.DataFrame:
        primary, n = self.audit.rule.primary, self.audit.settings.extract_starts
        order = [primary, "window_index"]
        strongest = (
            self.audit.run.scan("scores")
            .filter(pl.col("role") == "target", pl.col(primary).is_not_null())
            .group_by("document_id")
            .agg(pl.col("target_id", *order).top_k_by(order, n, reverse=[False, True]))
            .explode("target_id", *order)
            .collect(engine="streaming")
        )
        return (
            every.drop("document_id")
            .join(strongest.lazy(), on="target_id")
            .sort("document_id", *order, descending=[False, True, False])
            .select("document_id", *_WINDOW)
            .collect(engine="streaming")
        )

    def _take(self, walks: Sequence[prompts.Walks]) -> None:
        folder = self.audit.run.path("samples")
        stored = pl.concat(
            scan_parts(folder, Samples, view.key) for view in self._views
        )
        columns = ("target_id", "view_index", "candidate", "finish_reason", "n_tokens")
        starts = [window.target_id for each in walks for window in each.every]
        own = stored.filter(pl.col("target_id").is_in(starts)).select(columns).collect()
        said = {row[:2]: row[2:] for row in own.iter_rows()}
        for each in walks:
            while (asked := each.prompt()) is not None:
                sample = said.get((asked["target_id"], asked["view_index"]))
                if sample is None:
                    break
                candidate, finish_reason, n_tokens = sample
                each.made[-1].take(candidate, finish_reason, n_tokens or 0)

    def _ask(self, session: Session, asked: pl.DataFrame) -> None:
        audit, wanted = self.audit, []
        ordered = asked.sort("target_row").cast(
            {"view_index": pl.UInt32, "target_row": pl.UInt32}
        )
        drawn = pl.col("view_index") >= prompts.MOST_ROUNDS
        for view, own in zip(self._views, (~drawn, drawn), strict=True):
            parts = sample_parts(audit, view)
            blocks = list(Missing(RowUnits(ordered.filter(own)), parts).blocks())
            self._keep(view, blocks)
            wanted.append(
                (build_sample_task(audit, session, view), blocks, parts.store)
            )
        ask(audit, session, "walking", Work(left=asked.height), wanted)

    def _keep(self, view: View, blocks: list[Block]) -> None:
        """Store prompts that are not there; a run may have lost its samples only."""
        folder = self.audit.run.path("prompts")
        keys = ("target_id", "view_index")
        stored = scan_parts(folder, Prompts, view.key).select(keys).collect()
        for block in blocks:
            new = view.fill_prompts(block.units).join(stored, on=keys, how="anti")
            names = (
                replace(block, attempt=attempt).part_name
                for attempt in count(block.attempt)
            )
            if not new.is_empty():
                path = next(
                    folder / name for name in names if not (folder / name).exists()
                )
                sink(new, path, Prompts)


def _by_document(
    windows: pl.DataFrame, texts: Mapping[str, str | None]
) -> dict[str, list[prompts.Window]]:
    """Sort windows by document; those whose prefix does not stand there as given are left out."""
    found: dict[str, list[prompts.Window]] = {}
    for row in windows.to_dicts():
        name = row.pop("document_id")
        if (text := texts.get(name)) is not None:
            of_document = found.setdefault(name, [])
            if text.startswith(row["prefix"], row["start"]):
                of_document.append(prompts.Window(**row))
    return found


# The stage that continues the texts of highest scores, where no attack asks for
# continuations.


class RecitalsStage(Stage):
    """Ask for the likeliest continuation of the strongest texts: evidence that people can read."""

    # They are chosen by their scores alone, whether or not they are to compare with, so
    # that what comes out of both sides compares.

    name = "recitals"
    activity = "continuing the texts of highest scores"
    foreseen = Workload()  # of a dry run

    @property
    def _n(self) -> int:
        return (
            0
            if self.audit.continues_texts
            else self.audit.settings.continue_strongest or 0
        )

    def remaining(self) -> Iterator[tuple[str, str]]:
        """Say what it costs to continue texts: at most as much as the longest would."""
        if not self._n:
            return
        yield (
            "then",
            f"at most {self._n:,} texts, those of highest scores, are continued",
        )
        self.foreseen = _longest_work(
            self.audit, self._view, self._n, "target", "non_member"
        )
        lines = dict(self.foreseen.lines())
        yield "tokens to continue them", lines["tokens to decode"]
        yield from _costs(self.audit, "continuations", self.foreseen)

    def fingerprint(self) -> dict[str, Any]:
        return {"parts": digest_parts(sample_parts(self.audit, self._view).paths())}

    def validate(self) -> None:
        if self._n and self.audit.recording is not None:
            raise SettingsError(
                "continue_strongest= needs a model to ask; a recording answers nothing"
                " further"
            )

    @property
    def _view(self) -> View:
        return build_view(self.audit.settings, *RECITAL)

    def run(self) -> None:
        if not self._n:
            return
        audit, view, parts = (
            self.audit,
            self._view,
            prompt_parts(self.audit, self._view),
        )
        targets = scan(audit.run.order, Targets)
        chosen = FreshUnits(targets, among=self._strongest())
        write_prompts(audit, view, Missing(chosen, parts, view.n))
        prompts = PromptUnits(audit.run.order, parts, view, askable=True)
        retry = audit.settings.retry_failed
        missing = Missing(
            prompts, sample_parts(audit, view), view.samples, retry_failed=retry
        )
        ask_samples(
            audit, "target", self.activity, {view: missing}, started_engine=self._engine
        )
        make_features(audit, view)
        for sentence in self._cut():
            audit.observer.stage(sentence)
        self.mark_done()

    def _cut(self) -> Iterator[str]:
        """Say how many continuations were cut before they had the words of the true text."""
        stored = scan_parts(self.audit.run.path("samples"), Samples, self._view.key)
        short = (
            stored.filter("short").select("finish_reason").collect(engine="streaming")
        )
        reasons = short["finish_reason"].to_list()
        if n := reasons.count("repeats"):
            yield f"{n:,} continuations repeat themselves, and end there"
        if n := reasons.count("length"):
            yield (
                f"{n:,} continuations were cut before they had as many words as the"
                " true text"
            )

    @property
    def _engine(self) -> str | None:
        """The engine of the log-probabilities: it has answered few prompts before vLLM starts."""
        used = self.audit.manifest.models["target"].get("logprobs engine")
        known = self.audit.settings.engine == "auto" and used in engine_types()
        return (
            used
            if known and why_not(str(used), "samples", frozenset()) is None
            else None
        )

    def _strongest(self) -> pl.Series:
        """Choose the best text of each document by its score, then the second, and so on."""
        score, audit = pl.col(self.audit.rule.primary), self.audit
        rows = (
            audit.run.scan("scores")
            .with_row_index("row")
            .filter(pl.col("role").is_in(["target", "non_member"]), score.is_not_null())
            .select(
                "row", score=score, owner=pl.coalesce("document_id", "target_id").hash()
            )
            .collect(engine="streaming")
        )
        place = pl.col("score").rank("ordinal", descending=True).over("owner")
        ordered = rows.with_columns(place=place).sort(
            "place", "score", descending=[False, True], maintain_order=True
        )
        chosen = pl.col("row").is_in(ordered["row"].head(self._n).implode())
        named = (
            audit.run.scan("scores")
            .with_row_index("row")
            .filter(chosen)
            .select("target_id")
        )
        return named.collect(engine="streaming").to_series()


# Passages that came out of the target model word for word.


def find_verbatim_runs(run: RunFolder, settings: Settings) -> pl.DataFrame:
    """Find the longest run of each target that its continuations give back."""
    targets, features = run.scan("targets"), run.scan("features")
    return memory.verbatim_runs(
        targets, features, settings.continuations, settings.word_rule
    )


def find_passages(audit: Audit, runs: pl.DataFrame) -> pl.DataFrame:
    """Find what came out: one row per target, in the targets' order, as `find_verbatim_runs` has them."""
    # ``view`` asks for it as a control; ``text`` is what is asked for, null where it is
    # the target's own reference. Where only a walk came out, its first words are the
    # passage.
    continued, walked = _continued(audit, runs), _walked(audit)
    own = (
        audit.run.scan("targets")
        .with_row_index("target_row")
        .filter(pl.col("role") == "target")
        .select("target_id", "target_row", owner=owner_of_targets().hash())
    )
    walked = walked.join(continued, on="target_id", how="anti")
    rows = pl.concat([continued, walked])
    found = own.join(rows.lazy(), on="target_id", maintain_order="left")
    return found.collect(engine="streaming").sort("target_row")


def _continued(audit: Audit, runs: pl.DataFrame) -> pl.DataFrame:
    """Find the longest run of the best continuation of each target, where it is long enough."""
    targets, features = audit.run.scan("targets"), audit.run.scan("features")
    best = runs.with_row_index("row").filter(
        pl.col("longest_words") >= memory.VERBATIM_WORDS
    )
    if best.is_empty():
        return _PASSAGES.clear()
    named = (
        targets.select("target_id", "reference")
        .with_row_index("row")
        .join(best.lazy(), on="row", maintain_order="left")
    )
    key = ["target_id", "sample_index"]
    read = ("longest_block_start", "longest_block_words")
    recited = pl.when(pl.col("view") == RECITAL[1])  # greedy, as walks are
    asked_as = (
        recited.then(pl.lit("walk_control"))
        .otherwise(pl.lit("control"))
        .alias("asked_as")
    )
    places = features.filter(among(memory.CONTINUED)).select(*key, *read, asked_as)
    places = places.unique(key, keep="first", maintain_order=True)
    passage = memory.passage_of(audit.settings.word_rule)
    passages = named.join(places, on=key).select(
        "target_id", passage=passage, text=pl.lit(None, pl.String), view="asked_as"
    )
    return passages.collect(engine="streaming")


def _walked(audit: Audit) -> pl.DataFrame:
    """Take of each stretch that came out as much as was asked for in its first round."""
    run = audit.run
    if not run.path("extraction").exists():
        return _PASSAGES.clear()
    length = pl.col("end") - pl.col("start")
    own = run.scan("extracted_documents").select("document_id", passage="passages_20")
    own = own.explode("passage").drop_nulls()
    long = run.scan("extraction").filter(pl.col("n_words") >= memory.VERBATIM_WORDS)
    starts, ends = (pl.col("passage").struct.field(name) for name in ("start", "end"))
    counts = (starts < pl.col("end")) & (ends > pl.col("start"))
    long = long.join(own, on="document_id").filter(counts)
    long = long.sort("n_words", descending=True).unique("target_id", keep="first")
    asked = scan_parts(run.path("prompts"), Prompts, ("target", "walk")).filter(
        view_index=0
    )
    starts = word_spans("text", words=audit.settings.word_rule).struct.field("starts")
    passage = pl.col("text").str.slice(starts.list.first(), pl.col("length"))
    stretches = long.select("target_id", length=length).join(asked, on="target_id")
    found = stretches.select(
        "target_id", "text", passage=passage, view=pl.lit("walk_control")
    )
    return found.select(_PASSAGES.columns).collect(engine="streaming")


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
        audit, settings = self.audit, self.audit.settings
        if not settings.controls:
            return
        may_come = (pl.col("role") == "target") & pl.col("reason").is_null()
        n = (
            audit.open_targets()
            .select(may_come.sum())
            .collect(engine="streaming")
            .item()
        )
        samples = settings.continuations
        if not audit.continues_texts:
            walks = (
                settings.extract
                * settings.extract_starts
                * audit.corpora.input.n_documents
            )
            n, samples = min(n, walks + (settings.continue_strongest or 0)), 1
        prompts = n * sum(
            build_view(audit.settings, model, "control").n for model in self._models
        )
        asked = (
            f", {prompts:,} prompts, {prompts * samples:,} samples" if prompts else ""
        )
        yield "controls", f"of what comes out, at most {n:,} passages{asked}"
        if prompts:
            view = replace(
                build_view(audit.settings, "target", "control"), samples=samples
            )
            work = _longest_work(audit, view, n, "target")
            yield from _costs(audit, "controls", work.times(view.n))

    @property
    def _models(self) -> list[str]:
        settings = self.audit.settings
        if settings.engine == "replay":
            return []
        return (
            ["target", "reference"]
            if settings.reference_model is not None
            else ["target"]
        )

    @cached_property
    def _passages(self) -> pl.DataFrame:
        return find_passages(
            self.audit, find_verbatim_runs(self.audit.run, self.audit.settings)
        )

    def fingerprint(self) -> dict[str, Any]:
        asked = self._passages.select("target_id", "view", "passage").write_ndjson()
        parts = [
            path
            for each in self._views
            for path in sample_parts(self.audit, each).paths()
        ]
        return {
            "passages": sha256(asked.encode()).hexdigest(),
            "targets": self.audit.manifest.made["targets"],
            "parts": digest_parts(parts),
            "samples": self.audit.settings.continuations,
            "models": self._models,
        }

    @property
    def _views(self) -> list[View]:
        return [
            build_view(self.audit.settings, model, name)
            for model in self._models
            for name in _VIEWS
        ]

    def run(self) -> None:
        audit = self.audit
        if not audit.settings.controls:
            return
        audit.agree({"control_words": prompts.LAST_WORDS})
        for model in self._models:
            missing = {
                view: self._missing(view) for view in self._views if view.model == model
            }
            ask_samples(audit, model, "asking for controls", missing)
        super().run()

    def make(self) -> None:
        audit, passages = self.audit, self._passages
        rows = memory.control_rows(
            passages,
            pl.concat([pl.DataFrame(schema=_ANSWER), *map(self._answers, self._views)]),
            _other_documents(audit, passages),
            models=self._models or ["target"],
            without=prompts.NOTHING_UNRELATED if self._models else _RECORDED,
        )
        sink(rows, audit.run.path("controls"), Controls)
        audit.manifest.controls = memory.counts_of(rows)
        n, common = (
            audit.manifest.controls["any"][name] for name in ("passages", "common")
        )
        audit.observer.stage(f"{common:,} of {n:,} passages that came out are common")

    def _missing(self, view: View) -> Missing:
        audit, parts = self.audit, prompt_parts(self.audit, view)
        index = pl.lit(0, pl.UInt32)
        places = (
            scan(audit.run.order, Targets)
            .select("target_id")
            .with_row_index("target_row")
        )
        passages = (
            self._passages.filter(view=view.name)
            .rename({"target_row": "own_row"})
            .with_columns(view_index=index)
            .join(places.collect(), on="target_id")
            .sort("target_row")
        )
        complete = partial(self._with_prefixes, alone=view.model == "reference")
        write_prompts(audit, view, Missing(RowUnits(passages, complete), parts, view.n))
        prompts = PromptUnits(audit.run.order, parts, view, askable=True)
        retry = audit.settings.retry_failed
        return Missing(
            prompts, sample_parts(audit, view), view.samples, retry_failed=retry
        )

    @cached_property
    def _lenders(self) -> tuple[prompts.OtherRows, prompts.OtherRows]:
        """Targets whose prefix may stand before a passage; owners of passages are in the second."""
        # A model goes on with what it recites after any prefix of it, so these give
        # theirs only where there are no others.
        targets = self.audit.run.scan("targets")
        size = targets.select(pl.len()).collect(engine="streaming").item()
        owners = read_numbers(targets, owner_of_targets().hash(), size, np.uint64)
        has_prefix = pl.col("prefix").str.contains(r"\S").fill_null(value=False)
        may_stand = read_numbers(targets, has_prefix, size, np.bool_)
        recited = np.isin(owners, self._passages["owner"].to_numpy())
        return prompts.OtherRows(owners, may_stand & ~recited), prompts.OtherRows(
            owners, may_stand
        )

    def _with_prefixes(self, rows: pl.DataFrame, *, alone: bool) -> pl.DataFrame:
        """Join the own ``prefix``, which may stand ``alone``, and an ``unrelated`` one."""
        targets, seed = self.audit.run.scan("targets"), self.audit.settings.seed
        chosen = []
        for owner, name in rows.select("owner", "target_id").iter_rows():
            others = (lender.choose(owner, name, seed) for lender in self._lenders)
            chosen.append(next((row for row in others if row is not None), None))
        units = rows.with_columns(
            pl.Series("other_row", chosen, dtype=pl.get_index_type())
        )
        for row, name in (("own_row", "prefix"), ("other_row", "unrelated")):
            numbered = targets.select(pl.col("prefix").alias(name)).with_row_index(row)
            prefixes = numbered.filter(pl.col(row).is_in(units[row].implode()))
            found = prefixes.collect(engine="streaming")
            units = units.join(found, on=row, how="left", maintain_order="left")
        return units.filter(pl.col("unrelated").is_not_null() | alone)

    def _answers(self, view: View) -> pl.DataFrame:
        """Compare what was said after each prompt with the passage; name whose prefix was given."""
        run, words = self.audit.run, self.audit.settings.word_rule
        asked = scan_parts(run.path("prompts"), Prompts, view.key).filter(view_index=0)
        given = asked.select("target_id", prefix="context").drop_nulls()
        donor = pl.coalesce("document_id", "target_id")
        donors = (
            run.scan("targets")
            .select("prefix", other_document=donor)
            .join(given, on="prefix", how="semi", maintain_order="left")
            .unique("prefix", keep="first", maintain_order=True)
        )
        own = (
            self._passages.lazy().filter(view=view.name).select("target_id", "passage")
        )
        blocks = pair_features("candidate", "passage", words=words, groups=["blocks"])
        said = (
            scan_parts(run.path("samples"), Samples, view.key)
            .filter(pl.col("sample_index") < view.samples)
            .join(own, on="target_id")
            .with_columns(longest_words=blocks.struct.field("longest_block_words"))
            .group_by("target_id", "view_index")
            .agg(
                n_samples=pl.col("candidate").count(),
                longest_words=pl.col("longest_words").max(),
                reason=pl.col("reason").min(),
            )
            .join(given.join(donors, on="prefix"), on="target_id", how="left")
            .with_columns(model=pl.lit(view.model))
            .select(pl.col(name).cast(dtype) for name, dtype in _ANSWER.items())
        )
        return said.collect(engine="streaming")


def _other_documents(audit: Audit, passages: pl.DataFrame) -> pl.DataFrame:
    sets = {"target": audit.corpora.input, **audit.corpora.reference_sets}
    documents = [
        corpus.documents.with_row_index("place", 1).select(
            "text",
            owner=owner_of_documents(role).hash(),
            name=pl.coalesce(
                "document_id", pl.format(f"document {{}} of the {role} texts", "place")
            ),
        )
        for role, corpus in sets.items()
        if role != "yardstick"
    ]
    return find_elsewhere(passages, pl.concat(documents)).rename(
        {"name": "other_document"}
    )
