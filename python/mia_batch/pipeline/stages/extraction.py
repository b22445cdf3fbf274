"""Extraction: the target model is followed through documents, strongest windows first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.evidence.parts import Block, Missing, Work, scan_parts
from mia_batch.kernels import book_coverage, near_verbatim_recall
from mia_batch.pipeline.sessions import Session, ask, open_session, sample_task
from mia_batch.pipeline.stages.features import sample_parts
from mia_batch.pipeline.stages.prompts import RowUnits
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import view_of
from mia_batch.prompts.views import View
from mia_batch.prompts.walk import MOST_ROUNDS, ROUND_WORDS, Text, Walks, Window
from mia_batch.schemas import ExtractedDocuments, Extraction, Prompts, Samples
from mia_batch.tables import sink

# What came out of walks, as rows of tables.


_OTHERS = 8  # documents that tell the level of chance


def stretches(walks: Walks) -> Iterator[dict[str, Any]]:
    """Yield a row for each walk, those that gave nothing included."""
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


def summary(walks: Walks, every: Sequence[Walks]) -> dict[str, Any]:
    """Compare all that was said about a document with it, and with others."""
    document, rule = walks.document, walks.document.rule
    said = pl.Series([walk.said for walk in walks.made], dtype=pl.String)
    given = pl.Series([walk.window.prefix for walk in walks.made], dtype=pl.String)
    in_order = sorted(walks.made, key=lambda walk: walk.first)
    whole = pl.lit("\n".join(walk.said for walk in in_order))
    recalled = near_verbatim_recall(whole, pl.lit(document.text), words=rule)
    others = [each.document.text for each in every if each is not walks][:_OTHERS]

    def spans(text: str, k: int = 5) -> pl.DataFrame:
        return book_coverage(text, said, instructions=given, words=rule, k=k)

    def covered(text: str) -> float | None:
        found: float | None = spans(text)["coverage"].item()
        return found

    def passages(k: int) -> list[dict[str, int]]:
        places = spans(document.text, k)["blocks"].explode(empty_as_null=False)
        return places.struct.unnest().select("start", "end").to_dicts()

    inside = np.zeros(len(document.ends), bool)
    for walk in walks.made:
        inside[walk.first : walk.first + walk.n_words] = True
    runs = pl.Series(inside).rle().struct.unnest()
    return {
        "document_id": walks.document_id,
        "words_document": inside.size,
        "n_walks": len(walks.made),
        "n_tokens": walks.n_tokens,
        "coverage": inside.mean() if inside.size else None,
        "longest_words": runs.filter("value")["len"].max() or 0,
        "near_verbatim_recall": pl.select(recalled.struct.field("recall")).item(),
        "bmc_5": covered(document.text),
        "bmc_5_others": pl.Series(map(covered, others), dtype=pl.Float64).mean(),
        "n_others": len(others),
        "passages_20": passages(20),
        "passages_50": passages(50),
    }


# The stage that follows the target model through documents, from their strongest windows on.


_DOCUMENTS_AT_ONCE = 64
_WINDOW = ("target_id", "target_row", "start", "prefix", "n_words")
_TABLES = {"extraction": Extraction, "extracted_documents": ExtractedDocuments}


class ExtractionStage(Stage):
    """Follow the model through each document; what it says is kept as samples of views of walks.

    What is asked next depends on these samples alone, so that a run that was killed goes on.
    """

    name = "extraction"

    @property
    def _views(self) -> tuple[View, View]:
        """Greedy and drawn."""
        return view_of(self.audit, "target", "walk"), view_of(self.audit, "target", "drawn_walk")

    makes = tuple(_TABLES)

    def follows(self, lost: Collection[Path]) -> list[Path]:
        walks = [f".{sample_parts(self.audit, view).label}-" for view in self._views]
        is_walk = (label in path.name for path in lost for label in walks)
        return self.files() if any(is_walk) else []

    def left(self) -> Iterator[tuple[str, str]]:
        """Say how many tokens it may take in all, those of earlier calls included."""
        settings = self.audit.settings
        if settings.extract:
            n_documents = self.audit.corpora.input.n_documents
            tokens = f"{settings.extract_tokens:,} tokens and a round"
            yield "extraction", f"of {n_documents:,} documents, each at most {tokens}"

    def run(self) -> None:
        if not self.audit.settings.extract:
            return
        self._check()
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in _TABLES}
        with ExitStack() as stack:
            opened = open_session(self.audit, "target", "samples")
            session = cache(lambda: stack.enter_context(opened))
            for walks in self._batches():
                self._walk(walks, session)
                for each in walks:
                    rows["extraction"] += stretches(each)
                    rows["extracted_documents"].append(summary(each, walks))
        for name, schema in _TABLES.items():
            table = pl.DataFrame(rows[name], schema=schema.create_empty().schema)
            sink(table, self.audit.run.path(name), schema)
        n_words = sum(row["n_words"] for row in rows["extraction"])
        n_documents = len(rows["extracted_documents"])
        self.audit.observer.stage(f"extracted {n_words:,} words of {n_documents:,} documents")

    def _check(self) -> None:
        audit = self.audit
        if audit.recording is not None:
            raise SettingsError(
                "setting 'extract' needs a model to ask; a recording answers nothing further"
            )
        if audit.settings.extract_draws and not audit.settings.temperature:
            raise SettingsError(
                "setting 'extract_draws' draws words; at temperature 0 there is nothing to draw"
            )
        unnamed = pl.col("document_id").is_null().any()
        if audit.corpora.input.documents.select(unnamed).collect(engine="streaming").item():
            raise SettingsError(
                "setting 'extract' needs documents with names; add a column document_id"
            )
        audit.manifest.agree({"walk_words": ROUND_WORDS}, audit.run.folder)

    def _batches(self) -> Iterator[list[Walks]]:
        """Open the documents that have windows with a score, some at a time.

        A window counts if its prefix stands in the document as it was given.
        """
        audit, settings = self.audit, self.audit.settings
        windows = self._windows()
        names = windows["document_id"].unique(maintain_order=True)
        for start in range(0, names.len(), _DOCUMENTS_AT_ONCE):
            batch = names[start : start + _DOCUMENTS_AT_ONCE]
            documents = audit.corpora.input.documents.select("document_id", "text")
            of_batch = pl.col("document_id").is_in(batch.implode())
            texts = dict(documents.filter(of_batch).collect(engine="streaming").iter_rows())
            every = self._opened(self._every().filter(of_batch).collect(engine="streaming"), texts)
            strongest = self._opened(windows.filter(of_batch), texts)
            yield [
                Walks(
                    document_id=name,
                    document=Text(texts[name], settings.word_rule),
                    windows=chosen,
                    every=every[name],
                    budget=settings.extract_tokens,
                    draws=settings.extract_draws,
                )
                for name, chosen in strongest.items()
            ]

    @staticmethod
    def _opened(windows: pl.DataFrame, texts: Mapping[str, str | None]) -> dict[str, list[Window]]:
        """Sort windows by document; those of documents without text are left out."""
        found: dict[str, list[Window]] = {}
        for row in windows.to_dicts():
            name = row.pop("document_id")
            text = texts.get(name)
            if text is not None:
                of_document = found.setdefault(name, [])
                if text.startswith(row["prefix"], row["start"]):
                    of_document.append(Window(**row))
        return found

    def _every(self) -> pl.LazyFrame:
        """Open the windows of all documents, in their order."""
        return (
            self.audit.run.scan("targets")
            .with_row_index("target_row")
            .filter(pl.col("role") == "target")
            .select("document_id", *_WINDOW)
            .drop_nulls()
        )

    def _windows(self) -> pl.DataFrame:
        """Find the strongest windows of each document, the strongest first."""
        audit = self.audit
        order = [audit.plan.primary, "window_index"]
        strongest = (
            audit.run.scan("scores")
            .filter(pl.col("role") == "target", pl.col(audit.plan.primary).is_not_null())
            .group_by("document_id")
            .agg(
                pl.col("target_id", *order).top_k_by(
                    order, audit.settings.extract_starts, reverse=[False, True]
                )
            )
            .explode("target_id", *order)
            .collect(engine="streaming")
        )
        return (
            self._every()
            .drop("document_id")
            .join(strongest.lazy(), on="target_id")
            .sort("document_id", order[0], "window_index", descending=[False, True, False])
            .select("document_id", *_WINDOW)
            .collect(engine="streaming")
        )

    def _walk(self, walks: Sequence[Walks], session: Callable[[], Session]) -> None:
        """Ask one thing about every document that has a walk left, and again."""
        self._take(walks)
        while asked := [prompt for each in walks if (prompt := each.prompt()) is not None]:
            self._ask(session(), pl.DataFrame(asked))
            self._take(walks)

    def _take(self, walks: Sequence[Walks]) -> None:
        """Go on with all that was said."""
        folder = self.audit.run.path("samples")
        stored = pl.concat(scan_parts(folder, Samples, view.key) for view in self._views)
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
        audit = self.audit
        ordered = asked.sort("target_row").cast({"view_index": pl.UInt32, "target_row": pl.UInt32})
        drawn = pl.col("view_index") >= MOST_ROUNDS
        wanted = []
        for view, prompts in zip(
            self._views, (ordered.filter(~drawn), ordered.filter(drawn)), strict=True
        ):
            parts = sample_parts(audit, view)
            blocks = list(Missing(RowUnits(prompts), parts).blocks())
            self._keep(view, blocks)
            wanted.append((sample_task(audit, session, view), blocks, parts.store))
        ask(audit, session, "walking", Work(left=asked.height), wanted)

    def _keep(self, view: View, blocks: list[Block]) -> None:
        """Store prompts that are not there; a run may have lost its samples only."""
        folder = self.audit.run.path("prompts")
        keys = ("target_id", "view_index")
        stored = scan_parts(folder, Prompts, view.key).select(keys).collect()
        for block in blocks:
            new = view.rows(block.units).join(stored, on=keys, how="anti")
            names = (replace(block, attempt=attempt).part_name for attempt in count(block.attempt))
            if not new.is_empty():
                path = next(folder / name for name in names if not (folder / name).exists())
                sink(new, path, Prompts)
