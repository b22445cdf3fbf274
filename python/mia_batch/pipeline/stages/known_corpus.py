"""Passages that came out, looked for in a corpus that is known: its texts, or an index of them."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from hashlib import sha256
from importlib.util import find_spec
from itertools import islice
from math import ceil, log2
from pathlib import Path
from typing import Any

import polars as pl

from mia_batch.diagnostics.preflight import count_documents
from mia_batch.errors import SettingsError, describe_error
from mia_batch.evidence.endpoint.transport import Transport, UnansweredError
from mia_batch.evidence.endpoint.wire import ClientSettings, Reply
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import digest_folder
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import read_setting_corpus
from mia_batch.pipeline.stages.extraction import find_passages, find_verbatim_runs
from mia_batch.schemas import Known
from mia_batch.tables import sink


class KnownStage(Stage):
    """Count the documents of a known corpus that hold what came out: hits that are verified."""

    name = "known"
    makes = ("known",)
    activity = "looking for passages in the known corpus"

    def remaining(self) -> Iterator[tuple[str, str]]:
        settings = self.audit.settings
        place = settings.known_corpus or settings.known_index
        if place is not None:
            is_sent = "://" in str(settings.known_index)
            sent = ", to which they are sent" if is_sent else ""
            yield (
                "known corpus",
                f"passages that come out are looked for in {place}{sent}",
            )

    def validate(self) -> None:
        if self.audit.settings.known_index is not None:
            _open_index(self.audit.settings.known_index)
        elif self.audit.settings.known_corpus is not None:
            read_setting_corpus(self.audit, "known_corpus")

    def fingerprint(self) -> dict[str, Any]:
        index = self.audit.settings.known_index
        # None of an address
        content = index and digest_folder(index.partition("#")[0], None)
        fingerprint: dict[str, Any] = {"content": content} if content else {}
        passages = self._passages.write_ndjson().encode()
        return fingerprint | {
            "passages": sha256(passages).hexdigest(),
            "index": index,
            "corpus": self.audit.manifest.inputs.get("known_corpus"),
        }

    def run(self) -> None:
        settings = self.audit.settings
        if settings.known_corpus is not None:
            files = read_setting_corpus(self.audit, "known_corpus").files
            self.audit.digest_input("known_corpus", files)
        if settings.known_corpus or settings.known_index:
            super().run()

    @property
    def _passages(self) -> pl.DataFrame:
        runs = find_verbatim_runs(self.audit.run, self.audit.settings)
        passages = find_passages(self.audit, runs)
        return passages.drop_nulls("passage").select("target_id", "passage")

    def make(self) -> None:
        audit = self.audit
        passages = self._passages
        index = audit.settings.known_index
        if index is not None:
            ask = _open_index(index)
            place = index.partition("#")[0]
            action = "sent to" if "://" in place else "looked for in"
            audit.observer.stage(f"{passages.height:,} passages are {action} {place}")
            schema = Known.create_empty().drop("target_id").schema
            rows = [*_count_in_index(ask, passages["passage"])]
            counts = pl.DataFrame(rows, schema=schema)
        else:
            corpus = read_setting_corpus(audit, "known_corpus").documents
            documents = corpus.with_row_index("place", 1)
            name = pl.coalesce("document_id", pl.format("document {}", "place"))
            counts = count_documents(
                passages["passage"], documents.select("text", name=name)
            )
        table = passages.select("target_id").hstack(counts).select(Known.column_names())
        sink(table, audit.run.path("known"), Known)
        n = table.filter(pl.col("n_occurrences") > 0).height
        audit.observer.stage(
            f"{n:,} of {table.height:,} passages stand in the known corpus"
        )


_MOST_LOOKED_AT = 20  # occurrences whose documents are asked for
_MOST_UNANSWERED = 3  # in a row, after which nothing more is asked
_DTYPES = {1: "u8", 2: "u16", 4: "u32"}  # by the bytes of a token


def _open_index(index: str) -> Callable[..., dict[str, Any]]:
    """Open an index of infini-gram (Liu et al. 2024, arXiv:2401.17377), by its API or package.

    Queries and answers are those of infini-gram.readthedocs.io: ``find``,
    ``get_doc_by_rank``.
    """
    place, _, name = index.partition("#")
    if not name:
        raise SettingsError(
            f"known_index= is {index!r}; give ADDRESS#INDEX, FOLDER#TOKENIZER"
        )
    open_place = _open_by_api if "://" in place else _open_by_package
    return open_place(place, name)


def _count_in_index(
    ask: Callable[..., dict[str, Any]], passages: pl.Series
) -> Iterator[dict[str, Any]]:
    """Count passages in an index; after some without an answer nothing more is asked."""
    n_unanswered = 0
    for passage in passages:
        if n_unanswered == _MOST_UNANSWERED:
            yield {"reason": f"not asked: {n_unanswered} passages before had no answer"}
            continue
        try:
            row = _count_passage(ask, passage)
        except (
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            UnansweredError,
        ) as error:
            if isinstance(error, UnansweredError):
                n_unanswered += 1
            yield {"reason": f"the index gives no count: {describe_error(error)}"}
            continue
        n_unanswered = 0
        yield row


def _count_passage(ask: Callable[..., dict[str, Any]], passage: str) -> dict[str, Any]:
    """Count a passage with and without a space before it, where none is part of the other."""
    tokens: list[object] = []
    n = 0
    ranks: list[tuple[int, int]] = []
    for text in (passage, f" {passage}"):
        match = ask("find", query=text)
        if tokens and match["token_ids"][-len(tokens) :] == tokens:
            continue
        tokens = [*match["token_ids"]]
        n += _check_count(match["cnt"])
        shard_ranks = _iterate_ranks(enumerate(match["segment_by_shard"]))
        ranks += islice(shard_ranks, _MOST_LOOKED_AT - len(ranks))
    documents = set()
    for shard, rank in ranks:
        document = ask("get_doc_by_rank", s=shard, rank=rank, max_disp_len=1)
        documents.add(_check_count(document["doc_ix"]))
    return {
        "n_occurrences": n,
        "n_documents": len(documents) if len(ranks) == n else None,
        "document": f"document {min(documents)}" if documents else None,
    }


def _iterate_ranks(
    segments: Iterable[tuple[int, Iterable[object]]],
) -> Iterator[tuple[int, int]]:
    """Iterate over shards and ranks of occurrences."""
    for shard, ends in segments:
        for rank in range(*map(_check_count, ends)):
            yield shard, rank


def _open_by_api(address: str, index: str) -> Callable[..., dict[str, Any]]:
    if find_spec("httpx") is None:
        raise SettingsError(
            "known_index= is asked over the net; install mia-batch[openai]"
        )
    try:
        client = ClientSettings(base_url=address, model=index, timeout=60.0)
    except SettingsError as error:
        raise SettingsError(str(error).replace("base_url", "known_index")) from error

    async def send(request: dict[str, object]) -> Reply:
        async with aclosing(Transport(client)) as transport:
            return await transport.send("", request)

    def ask(query_type: str, **query: object) -> dict[str, Any]:
        request = {"index": index, "query_type": query_type, **query}
        with ThreadPoolExecutor(1) as thread:  # a notebook's own has a loop that runs
            reply = thread.submit(lambda: asyncio.run(send(request))).result()
        answer = json.loads(reply.body) if reply.status == 200 else reply.body
        if not isinstance(answer, dict) or "error" in answer:
            raise ValueError(
                f"it answers with status {reply.status}: {str(answer)[:200]}"
            )
        return answer

    return ask


def _open_by_package(folder: str, tokenizer: str) -> Callable[..., dict[str, Any]]:
    """Open an index on this machine, once it is whole: its engine would end the process."""
    try:
        from infini_gram.engine import InfiniGramEngine

        paths = Path(folder).glob("tokenized.*")
        (width,) = {_compute_token_width(path) for path in paths}
    except ImportError as error:
        raise SettingsError(
            "known_index= is a folder: install mia-batch[index]"
        ) from error
    except (OSError, ValueError, ArithmeticError) as error:
        raise SettingsError(
            f"known_index= is {folder}, no whole index of infini-gram"
        ) from error
    if (tokenizer == "bytes") != (width == 1):
        advice = "the tokenizer that the index was made with"
        if width == 1:
            advice = "FOLDER#bytes"
        raise SettingsError(
            f"known_index= names {tokenizer}, but tokens of {folder} have {width}"
            f" bytes; give {advice}"
        )
    words = None if width == 1 else Tokenizer.load(tokenizer, setting="tokenizer")
    engine = InfiniGramEngine(folder, 0, vocab_size=255, token_dtype=_DTYPES[width])

    def ask(query_type: str, query: str = "", **place: int) -> dict[str, Any]:
        ids = [*query.encode()] if words is None else words.encode([query])[0]
        answer = (
            engine.find(ids)
            if query_type == "find"
            else engine.get_doc_by_rank(**place)
        )
        if "error" in answer:
            raise ValueError(answer["error"])
        return {"token_ids": ids, **answer}

    return ask


def _compute_token_width(path: Path) -> int:
    """Return the bytes of a token of a shard, whose table has a place of fewest bytes for each."""
    size, table_size, _ = (
        path.with_name(f"{name}{path.suffix}").stat().st_size
        for name in ("tokenized", "table", "offset")
    )
    width, remainder = divmod(size * ceil(log2(size) / 8), table_size)
    if remainder or width not in _DTYPES:
        raise ValueError
    return width


def _check_count(value: object) -> int:
    """Return a count of the index, if it is one."""
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value
