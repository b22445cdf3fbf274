"""Passages that came out, looked for in a corpus that is known: its texts, or an index of them."""

import asyncio
import json
from collections.abc import Callable, Iterator
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
from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint.transport import Transport, UnansweredError
from mia_batch.evidence.endpoint.wire import ClientSettings, Reply
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import cause_of, digest_folder
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
        if (place := settings.known_corpus or settings.known_index) is not None:
            sent = (
                ", to which they are sent" if "://" in str(settings.known_index) else ""
            )
            yield (
                "known corpus",
                f"passages that come out are looked for in {place}{sent}",
            )

    def validate(self) -> None:
        if self.audit.settings.known_index is not None:
            _opened(self.audit.settings.known_index)
        elif self.audit.settings.known_corpus is not None:
            read_setting_corpus(self.audit, "known_corpus")

    def fingerprint(self) -> dict[str, Any]:
        index = self.audit.settings.known_index
        # None of an address
        content = index and digest_folder(index.partition("#")[0], None)
        return ({"content": content} if content else {}) | {
            "passages": sha256(self._passages.write_ndjson().encode()).hexdigest(),
            "index": index,
            "corpus": self.audit.manifest.inputs.get("known_corpus"),
        }

    def run(self) -> None:
        if self.audit.settings.known_corpus is not None:
            self.audit.digest_input(
                "known_corpus", read_setting_corpus(self.audit, "known_corpus").files
            )
        if self.audit.settings.known_corpus or self.audit.settings.known_index:
            super().run()

    @property
    def _passages(self) -> pl.DataFrame:
        passages = find_passages(
            self.audit, find_verbatim_runs(self.audit.run, self.audit.settings)
        )
        return passages.drop_nulls("passage").select("target_id", "passage")

    def make(self) -> None:
        audit, passages = self.audit, self._passages
        if (named := audit.settings.known_index) is not None:
            ask, place = _opened(named), named.partition("#")[0]
            how = "sent to" if "://" in place else "looked for in"
            audit.observer.stage(f"{passages.height:,} passages are {how} {place}")
            schema = Known.create_empty().drop("target_id").schema
            counts = pl.DataFrame([*_counted(ask, passages["passage"])], schema=schema)
        else:
            documents = read_setting_corpus(
                audit, "known_corpus"
            ).documents.with_row_index("place", 1)
            name = pl.coalesce("document_id", pl.format("document {}", "place"))
            counts = count_documents(
                passages["passage"], documents.select("text", name=name)
            )
        rows = passages.select("target_id").hstack(counts).select(Known.column_names())
        sink(rows, audit.run.path("known"), Known)
        n = rows.filter(pl.col("n_occurrences") > 0).height
        audit.observer.stage(
            f"{n:,} of {rows.height:,} passages stand in the known corpus"
        )


_MOST_LOOKED_AT = 20  # occurrences whose documents are asked for
_MOST_UNANSWERED = 3  # in a row, after which nothing more is asked
_DTYPES = {1: "u8", 2: "u16", 4: "u32"}  # by the bytes of a token


def _opened(named: str) -> Callable[..., dict[str, Any]]:
    """Open an index of infini-gram (Liu et al. 2024, arXiv:2401.17377), by its API or package.

    Queries and answers are those of infini-gram.readthedocs.io: ``find``,
    ``get_doc_by_rank``.
    """
    place, _, name = named.partition("#")
    if not name:
        raise SettingsError(
            f"known_index= is {named!r}; give ADDRESS#INDEX, FOLDER#TOKENIZER"
        )
    return (_by_api if "://" in place else _by_package)(place, name)


def _counted(
    ask: Callable[..., dict[str, Any]], passages: pl.Series
) -> Iterator[dict[str, Any]]:
    """Count passages with and without a space before them, where none is part of the other."""
    unanswered = 0
    for passage in passages:
        if unanswered == _MOST_UNANSWERED:
            yield {"reason": f"not asked: {unanswered} passages before had no answer"}
            continue
        first, n, looked_at = list[object](), 0, list[tuple[int, int]]()
        try:
            for text in (passage, f" {passage}"):
                found = ask("find", query=text)
                if not first or found["token_ids"][-len(first) :] != first:
                    first = [*found["token_ids"]]
                    n += _whole(found["cnt"])
                    shards = enumerate(found["segment_by_shard"])
                    ranks = (
                        (s, rank)
                        for s, ends in shards
                        for rank in range(*map(_whole, ends))
                    )
                    looked_at += islice(ranks, _MOST_LOOKED_AT - len(looked_at))
            documents = {
                _whole(ask("get_doc_by_rank", s=s, rank=rank, max_disp_len=1)["doc_ix"])
                for s, rank in looked_at
            }
        except (
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            UnansweredError,
        ) as error:
            unanswered += isinstance(error, UnansweredError)
            yield {"reason": f"the index gives no count: {cause_of(error)}"}
            continue
        unanswered = 0
        n_documents = len(documents) if len(looked_at) == n else None
        document = f"document {min(documents)}" if documents else None
        yield {"n_occurrences": n, "n_documents": n_documents, "document": document}


def _by_api(address: str, index: str) -> Callable[..., dict[str, Any]]:
    if find_spec("httpx") is None:
        raise SettingsError(
            "known_index= is asked over the net; install mia-batch[openai]"
        )
    try:
        client = ClientSettings(base_url=address, model=index, timeout=60.0)
    except SettingsError as error:
        raise SettingsError(str(error).replace("base_url", "known_index")) from error

    async def send(asked: dict[str, object]) -> Reply:
        async with aclosing(Transport(client)) as transport:
            return await transport.send("", asked)

    def ask(query_type: str, **given: object) -> dict[str, Any]:
        asked = {"index": index, "query_type": query_type, **given}
        with ThreadPoolExecutor(1) as thread:  # a notebook's own has a loop that runs
            reply = thread.submit(lambda: asyncio.run(send(asked))).result()
        found = json.loads(reply.body) if reply.status == 200 else reply.body
        if not isinstance(found, dict) or "error" in found:
            raise ValueError(
                f"it answers with status {reply.status}: {str(found)[:200]}"
            )
        return found

    return ask


def _by_package(folder: str, tokenizer: str) -> Callable[..., dict[str, Any]]:
    """Open an index on this machine, once it is whole: its engine would end the process."""
    try:
        from infini_gram.engine import InfiniGramEngine

        (width,) = {_width(path) for path in Path(folder).glob("tokenized.*")}
    except ImportError as error:
        raise SettingsError(
            "known_index= is a folder: install mia-batch[index]"
        ) from error
    except (OSError, ValueError, ArithmeticError) as error:
        raise SettingsError(
            f"known_index= is {folder}, no whole index of infini-gram"
        ) from error
    if (tokenizer == "bytes") != (width == 1):
        raise SettingsError(
            f"known_index= names {tokenizer}, but tokens of {folder} have {width}"
            " bytes; give "
            f"{'FOLDER#bytes' if width == 1 else 'the tokenizer that the index was made with'}"
        )
    words = None if width == 1 else Tokenizer.load(tokenizer, setting="tokenizer")
    engine = InfiniGramEngine(folder, 0, vocab_size=255, token_dtype=_DTYPES[width])

    def ask(query_type: str, query: str = "", **place: int) -> dict[str, Any]:
        ids = [*query.encode()] if words is None else words.encode([query])[0]
        asked = (
            engine.find(ids)
            if query_type == "find"
            else engine.get_doc_by_rank(**place)
        )
        if "error" in asked:
            raise ValueError(asked["error"])
        return {"token_ids": ids, **asked}

    return ask


def _width(path: Path) -> int:
    """Bytes of a token of a shard, whose table has a place of the fewest bytes for each."""
    size, table, _ = (
        path.with_name(f"{name}{path.suffix}").stat().st_size
        for name in ("tokenized", "table", "offset")
    )
    width, rest = divmod(size * ceil(log2(size) / 8), table)
    if rest or width not in _DTYPES:
        raise ValueError
    return width


def _whole(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError(f"{str(value)[:40]!r} is no count")
    return value
