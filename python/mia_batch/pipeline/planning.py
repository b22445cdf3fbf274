"""What a run would do, without doing it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.evidence import Tokenizer, choose_engine, identify_model
from mia_batch.pipeline.resolve import (
    chosen_attacks,
    decode_budget,
    decode_scope,
    open_corpus,
    target_plan,
)
from mia_batch.targets import build_targets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.evidence import Budget
    from mia_batch.settings import Settings

__all__ = ["Plan", "plan"]

_ROWS_AT_ONCE = 4096


@dataclass(slots=True, kw_only=True)
class Plan:
    """What a run would do.

    Attributes
    ----------
    engine, why
        The engine that would run, and the reason.
    attacks
        Names of the attacks.
    documents, targets
        How many there are.
    refused
        By reason, how many targets would not be sampled.
    prefixes, samples
        How many prefixes would be given to the model, and continuations sampled.
    first_tokens
        Most tokens to decode at the first attempt.
    most_tokens
        Most tokens to decode if every candidate had to be decoded to the model's context.
    """

    engine: str
    why: str
    attacks: tuple[str, ...]
    documents: int
    targets: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    prefixes: int = 0
    samples: int = 0
    first_tokens: int = 0
    most_tokens: int = 0

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the plan's facts as name and text."""
        yield "engine", f"{self.engine} ({self.why})"
        yield "attacks", ", ".join(self.attacks)
        yield "documents", f"{self.documents:,}"
        yield "targets", f"{self.targets:,}"
        for reason, count in self.refused.most_common():
            yield "not sampled", f"{count:,}: {reason}"
        yield "prefixes", f"{self.prefixes:,}"
        yield "samples", f"{self.samples:,}"
        yield "tokens to decode", f"{self.first_tokens:,}, at most {self.most_tokens:,}"


def plan(settings: Settings) -> Plan:
    """Work out what a run with these settings would do; nothing is written.

    Parameters
    ----------
    settings
        The settings.

    Returns
    -------
    Plan
        Targets and decode budget.

    Raises
    ------
    RequestError
        If the input or a setting is wrong.
    """
    attacks = chosen_attacks(settings)
    engine, why = choose_engine(settings.engine)
    identity = identify_model(settings.model, settings.revision)
    corpus = open_corpus(settings)
    planned = Plan(
        engine=engine,
        why=why,
        attacks=tuple(attack.name for attack in attacks),
        documents=corpus.n_documents,
    )
    stated = settings.engine_arg.get("max_model_len") or identity.max_model_len
    context = int(stated or settings.max_length)
    budget = decode_budget(settings, decode_scope(attacks), context)
    tokenizer = Tokenizer.load(settings.model, settings.revision)
    targets = build_targets(corpus.documents, target_plan(settings))
    columns = targets.select("prefix", "reference", "reason")
    for rows in columns.collect_batches(chunk_size=_ROWS_AT_ONCE):
        _count(planned, rows, tokenizer, budget, settings.samples)
    return planned


def _count(
    planned: Plan, rows: pl.DataFrame, tokenizer: Tokenizer, budget: Budget, n_samples: int
) -> None:
    planned.targets += rows.height
    planned.refused.update(rows["reason"].drop_nulls().to_list())
    kept = rows.filter(pl.col("reason").is_null())
    prompts = tokenizer.encode_prompts(kept["prefix"].to_list())
    references = tokenizer.count_tokens(kept["reference"].to_list())
    for prompt, reference in zip(prompts, references, strict=True):
        first = budget.first(len(prompt), reference)
        if not prompt or first <= 0:
            planned.refused["prefix leaves no room in the model's context"] += 1
            continue
        planned.prefixes += 1
        planned.samples += n_samples
        planned.first_tokens += n_samples * first
        planned.most_tokens += n_samples * budget.room(len(prompt))
