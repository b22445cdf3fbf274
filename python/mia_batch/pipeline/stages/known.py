"""Passages that came out, looked for in a corpus that is known: its texts, or an index of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from typing import Any

import polars as pl

from mia_batch.diagnostics.preflight import count_in
from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint.transport import Transport, UnansweredError
from mia_batch.evidence.endpoint.wire import ClientSettings
from mia_batch.evidence.engines.registry import why_not
from mia_batch.models.weights import cause_of
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.asking import texts_for
from mia_batch.pipeline.stages.extraction import passages_of
from mia_batch.schemas import Known
from mia_batch.tables import sink


class KnownStage(Stage):
    """Count the documents of a known corpus that hold what came out: hits that are verified."""

    name = "known"
    makes = ("known",)
    doing = "looking for passages in the known corpus"

    def left(self) -> Iterator[tuple[str, str]]:
        settings = self.audit.settings
        if (place := settings.known_corpus or settings.known_index) is not None:
            sent = "" if settings.known_corpus else ", to which they are sent"
            yield "known corpus", f"passages that come out are looked for in {place}{sent}"

    def check(self) -> None:
        if self.audit.settings.known_index is not None:
            _Index(self.audit.settings.known_index)
        elif self.audit.settings.known_corpus is not None:
            texts_for(self.audit, "known_corpus")

    def fingerprint(self) -> dict[str, Any]:
        return {
            "passages": sha256(self._passages.write_ndjson().encode()).hexdigest(),
            "index": self.audit.settings.known_index,
            "corpus": self.audit.manifest.inputs.get("known_corpus"),
        }

    def run(self) -> None:
        if self.audit.settings.known_corpus is not None:
            self.audit.digest_input("known_corpus", texts_for(self.audit, "known_corpus").files)
        if self.audit.settings.known_corpus or self.audit.settings.known_index:
            super().run()

    @property
    def _passages(self) -> pl.DataFrame:
        return passages_of(self.audit).drop_nulls("passage").select("target_id", "passage")

    def make(self) -> None:
        audit, passages = self.audit, self._passages
        if audit.settings.known_index is not None:
            index = _Index(audit.settings.known_index)
            audit.observer.stage(f"{passages.height:,} passages are sent to {index.address}")
            schema = Known.create_empty().drop("target_id").schema
            counts = pl.DataFrame([*map(index.count, passages["passage"])], schema=schema)
        else:
            documents = texts_for(audit, "known_corpus").documents.with_row_index("place", 1)
            name = pl.coalesce("document_id", pl.format("document {}", "place"))
            counts = count_in(passages["passage"], documents.select("text", name=name))
        rows = passages.select("target_id").hstack(counts).select(Known.column_names())
        sink(rows, audit.run.path("known"), Known)
        n = rows.filter(pl.col("n_occurrences") > 0).height
        audit.observer.stage(f"{n:,} of {rows.height:,} passages stand in the known corpus")


_MOST_LOOKED_AT = 20  # occurrences whose documents are asked for


class _Index:
    """An index of infini-gram (Liu et al. 2024, arXiv:2401.17377), asked by its API.

    Queries and answers are those of infini-gram.readthedocs.io: ``find``, ``get_doc_by_rank``.
    """

    def __init__(self, named: str) -> None:
        self.address, _, self._name = named.partition("#")
        if not self._name:
            raise SettingsError(f"known_index= is {named!r}; give ADDRESS#INDEX")
        if (reason := why_not("openai", "samples", frozenset())) is not None:
            raise SettingsError(f"known_index= is asked over the net: {reason}")
        try:
            self._client = ClientSettings(base_url=self.address, model=self._name, timeout=60.0)
        except SettingsError as error:
            raise SettingsError(str(error).replace("base_url", "known_index")) from error

    def count(self, passage: str) -> dict[str, Any]:
        """Count a passage with and without a space before it, where these are other tokens."""
        seen, n, looked_at = list[object](), 0, list[tuple[int, int]]()
        try:
            for text in (passage, f" {passage}"):
                found = self._ask("find", query=text)
                if found["token_ids"] not in seen:
                    seen.append(found["token_ids"])
                    n += _whole(found["cnt"])
                    shards = enumerate(found["segment_by_shard"])
                    ranks = ((s, rank) for s, ends in shards for rank in range(*map(_whole, ends)))
                    looked_at += islice(ranks, _MOST_LOOKED_AT - len(looked_at))
            documents = {
                _whole(self._ask("get_doc_by_rank", s=s, rank=rank, max_disp_len=1)["doc_ix"])
                for s, rank in looked_at
            }
        except (LookupError, TypeError, ValueError, RecursionError, UnansweredError) as error:
            return {"reason": f"the index gives no count: {cause_of(error)}"}
        return {
            "n_occurrences": n,
            "n_documents": len(documents) if len(looked_at) == n else None,
            "document": f"document {min(documents)}" if documents else None,
        }

    def _ask(self, query_type: str, **given: object) -> dict[str, Any]:
        async def send() -> bytes:
            transport = Transport(self._client)
            try:
                asked = {"index": self._name, "query_type": query_type, **given}
                return (await transport.send("", asked)).body
            finally:
                await transport.aclose()

        with ThreadPoolExecutor(1) as thread:  # a notebook's own has a loop that runs
            found = json.loads(thread.submit(lambda: asyncio.run(send())).result())
        if not isinstance(found, dict) or "error" in found:
            raise ValueError(f"it answers {str(found)[:200]}")
        return found


def _whole(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value
