"""Continuations of prompts: which are asked for, and the rows made from them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.evidence.collect import Asked, Row
from mia_batch.evidence.request import Request
from mia_batch.kernels import WordRule, count_words
from mia_batch.prompts.seeds import sample_seed
from mia_batch.schemas import Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mia_batch.evidence.blocks import Block
    from mia_batch.evidence.budget import Budget
    from mia_batch.evidence.request import Answer, Continuation, EvidenceKind, FinishReason
    from mia_batch.models.measure import Measure
    from mia_batch.prompts.view import View

__all__ = ["SampleTask"]

_SCHEMA = Samples.create_empty().schema


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleTask:
    """Continue the context of each prompt; ``measure`` tells lengths, ``budget`` how far to go."""

    view: View
    measure: Callable[[list[str], list[str]], list[Measure]]
    budget: Budget
    words: WordRule
    run_seed: int
    kind: EvidenceKind = "samples"

    def ask(self, block: Block) -> Iterator[tuple[Asked | None, list[tuple[int, Row]]]]:
        """Ask for all samples of a prompt at once; one without room has a reason."""
        prompts = block.units
        contexts, texts = prompts["context"].to_list(), prompts["text"].to_list()
        measures = self.measure(contexts, texts)
        counts = _count_words(texts, self.words)
        n, view = block.last - block.first, self.view
        rows = prompts.select("target_id", "view_index").iter_rows()
        for unit, ((target_id, index), measure) in enumerate(zip(rows, measures, strict=True)):
            budget = self.budget.first(measure.prompt_tokens, measure.reference_tokens)
            if measure.prompt_tokens == 0 or budget <= 0:
                refused = _refused(block.first, n, self._too_long(measure), answer="not_asked")
                yield None, [(unit, row) for row in refused]
                continue
            request = Request(
                request_id=0,
                kind="samples",
                key=f"{target_id}:{view.model}:{view.name}:{index}:{block.first}:{n}:{budget}",
                context=contexts[unit],
                context_ids=measure.prompt_token_ids,
                n=n,
                seed=sample_seed(self.run_seed, target_id, view.name, index) + block.first,
                max_tokens=budget,
                greedy=view.greedy,
                question=view.question,
            )
            yield (
                Asked(unit=unit, request=request, first=block.first, reference_words=counts[unit]),
                [],
            )

    def read(self, block: Block, asked: Asked, answer: Answer) -> tuple[list[Row], list[Asked]]:
        """Keep candidates that suffice; ask again, same seed, for those that end too early."""
        if answer.error is not None:
            return _refused(asked.first, asked.request.n, answer.error), []
        del block
        texts = [given.text or "" for given in answer.continuations]
        differs = answer.prompt if answer.prompt != asked.request.context else None
        rows, again = [], []
        for index, (given, count) in enumerate(
            zip(answer.continuations, _count_words(texts, self.words), strict=True)
        ):
            missing = asked.reference_words - count
            further = self._further(asked, index, given, missing)
            if further is not None:
                again.append(further)
                continue
            rows.append(
                {
                    "sample_index": asked.first + index,
                    "candidate": given.text,
                    "prompt": differs,
                    "n_tokens": given.n_tokens,
                    "finish_reason": given.finish_reason,
                    "short": None if given.reason else _is_short(given.finish_reason, missing),
                    "answer": given.answer,
                    "reason": given.reason,
                }
            )
        return rows, again

    def table(self, block: Block, rows: list[tuple[int, Row]]) -> pl.DataFrame:
        """Sort by prompt and ``sample_index``."""
        keys = list(block.units.select("target_id", "view_index").iter_rows())
        ordered = sorted(rows, key=lambda item: (item[0], item[1]["sample_index"]))
        made: list[dict[str, Any]] = [
            {
                "target_id": keys[unit][0],
                "model": self.view.model,
                "view": self.view.name,
                "view_index": keys[unit][1],
                **values,
            }
            for unit, values in ordered
        ]
        return pl.DataFrame(made, schema=_SCHEMA)

    def _further(self, asked: Asked, index: int, given: Continuation, missing: int) -> Asked | None:
        """Decode a candidate again if its budget ended it within the words that count.

        The last of those words counts as whole once something follows it.
        """
        ended = given.finish_reason != "length" or given.reason is not None
        if self.budget.scope == "whole" or ended or missing < 0:
            return None
        if missing == 0 and _ends_words((given.text or "")[-1:], self.words):
            return None
        request = asked.request
        n_tokens = self._prompt_tokens(request)
        budget = self.budget.next(n_tokens, request.max_tokens, asked.attempts)
        if budget is None:
            return None
        first = asked.first + index
        stem = request.key.rsplit(":", 3)[0]
        return replace(
            asked,
            first=first,
            attempts=asked.attempts + 1,
            request=replace(
                request,
                key=f"{stem}:{first}:1:{budget}",
                n=1,
                seed=request.seed + index,
                max_tokens=budget,
            ),
        )

    def _prompt_tokens(self, request: Request) -> int:
        if request.context_ids is not None:
            return len(request.context_ids)
        return self.measure([request.context], [""])[0].prompt_tokens

    def _too_long(self, measure: Measure) -> str:
        n_tokens = measure.prompt_tokens
        if n_tokens == 0:
            return "the prefix has no token, and the tokenizer adds none"
        limit = n_tokens + self.budget.room(n_tokens)
        return f"the prefix has {n_tokens} tokens, which leaves no room to continue within {limit}"


def _refused(first: int, n: int, reason: str, answer: str | None = None) -> list[Row]:
    indices = range(first, first + n)
    return [{"sample_index": index, "reason": reason, "answer": answer} for index in indices]


def _is_short(finish_reason: FinishReason | None, missing: int) -> bool | None:
    return None if finish_reason is None else finish_reason == "length" and missing > 0


def _count_words(texts: list[str], words: WordRule) -> list[int]:
    counts = pl.DataFrame({"text": texts}).select(count_words("text", words=words))
    return counts.to_series().to_list()


def _ends_words(last: str, words: WordRule) -> bool:
    """Whether nothing that follows this character of a text can belong to a word before it.

    Under ``unicode`` a point may stand inside a word, so only white space is certain.
    """
    match words:
        case "space":
            return last == " "
        case "rouge":
            return re.fullmatch("[a-z0-9]", last.lower()) is None
        case "whitespace" | "unicode" | "script":
            return last.isspace()
