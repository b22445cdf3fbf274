"""The stage that asks the model for two answers of its own, the second unlike the first."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from mia_batch.attacks.attack import ANSWERS
from mia_batch.evidence import request
from mia_batch.evidence.parts import FreshUnits, Missing, PromptUnits, scan_parts
from mia_batch.evidence.request import EvidenceKind, Workload
from mia_batch.pipeline import sessions
from mia_batch.pipeline.stages import Stage
from mia_batch.pipeline.stages.evidence import list_prompt_columns, write_prompts
from mia_batch.pipeline.stages.questions import (
    list_views,
    prompt_parts,
    sample_parts,
)
from mia_batch.prompts import ANSWER_VIEWS, both_answers, second_answer
from mia_batch.schemas import Prompts, Samples
from mia_batch.views import TARGET, View, build_view, find_template_source

_FIRST, _SECOND = ANSWER_VIEWS


class AnswersStage(Stage):
    """Ask for an answer and for another one, and make prompts that read the tokens of both."""

    # Tao et al. 2025 (arXiv:2510.09259); both answers are greedy, as theirs.

    name = "answers"
    phase = "evidence"
    activity = "asking for the model's own answers"
    model = TARGET
    kind: ClassVar[EvidenceKind] = "samples"
    foreseen = Workload()  # of a dry run
    foreseen_views: frozenset[str] = frozenset()

    @property
    def _is_wanted(self) -> bool:
        views = list_views(self.audit, "logprobs")
        return any(view.read_as == ANSWERS for view in views)

    def list_outdated(self, lost: Collection[Path]) -> list[Path]:
        """List what was made from first answers, where some of these are lost."""
        if not any(f"-{_FIRST}-" in path.name for path in lost):
            return []
        second = self._build_view(_SECOND)
        views = (second, self._build_view(ANSWERS[1]))
        made = sample_parts(self.audit, second).paths()
        for view in views:
            made += prompt_parts(self.audit, view).paths()
        return [path for path in made if path not in lost]

    def validate_dry_run(self) -> None:
        if self._is_wanted:
            sessions.validate_dry_run(self.audit, TARGET, self.kind, frozenset())

    def remaining(self) -> Iterator[tuple[str, str]]:
        if not self._is_wanted:
            return
        self.foreseen = self._forecast()
        if not self.foreseen.samples:
            return
        self.foreseen_views = frozenset(ANSWER_VIEWS)
        yield (
            "answers",
            f"{self.foreseen.samples:,} of the model's own, at most"
            f" {self.foreseen.first_tokens:,} tokens to decode",
        )

    def run(self) -> None:
        if not self._is_wanted:
            return
        audit = self.audit
        audit.agree({"answer_tokens": audit.settings.answer_tokens})
        self._write_prompts(self._build_view(_FIRST))
        missing = {name: self._find_missing(name) for name in ANSWER_VIEWS}
        work = reduce(add, map(Missing.count, missing.values()))
        if work.left or self._lacks_prompts(self._build_view(_SECOND)):
            with sessions.open_session(audit, TARGET, self.kind) as session:
                jobs = self._iterate_jobs(session)
                sessions.ask(audit, session, "sampling", work, jobs)
        self._write_prompts(self._build_view(ANSWERS[1]), self._read_both)

    def _iterate_jobs(self, session: sessions.Session) -> Iterator[Any]:
        """Iterate over the first answers, then over the second, which are asked by them."""
        for name in ANSWER_VIEWS:
            view = self._build_view(name)
            if name == _SECOND:
                self._write_prompts(view, self._ask_again)
            task = sessions.build_sample_task(self.audit, session, view)
            store = sample_parts(self.audit, view).store
            yield task, self._find_missing(name).blocks(), store

    def _build_view(self, name: str) -> View:
        return build_view(self.audit.settings, TARGET, name)

    def _find_missing(self, name: str) -> Missing:
        """Return the answers that the run does not have, whether or not their prompts are made."""
        audit = self.audit
        view = self._build_view(name)
        prompts = prompt_parts(audit, view)
        units: FreshUnits | PromptUnits = PromptUnits(
            audit.run.order, prompts, view, askable=True, among=audit.askable_targets
        )
        if self._lacks_prompts(view):  # the second, of which first answers decide
            units = self._open_targets(self._build_view(_FIRST))
        return Missing(
            units,
            sample_parts(audit, view),
            retry_failed=audit.settings.retry_failed,
            work=sessions.estimate_work(audit, view),
        )

    def _lacks_prompts(self, view: View) -> bool:
        return bool(self._find_missing_prompts(view).count().left)

    def _open_targets(self, view: View | None = None) -> FreshUnits:
        audit = self.audit
        targets = audit.open_targets_in_order()
        columns = list_prompt_columns(audit, self._build_view(_FIRST), targets)
        return FreshUnits(targets, view, columns, audit.askable_targets)

    def _find_missing_prompts(self, view: View) -> Missing:
        return Missing(self._open_targets(), prompt_parts(self.audit, view), view.n)

    def _write_prompts(
        self, view: View, make: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    ) -> None:
        missing = self._find_missing_prompts(view)
        write_prompts(self.audit, replace(view, make=make or view.make), missing)

    def _ask_again(self, targets: pl.DataFrame) -> pl.DataFrame:
        first = self._read_answers(_FIRST, targets)
        answered = targets.join(first, on="target_id", maintain_order="left")
        source = find_template_source(self.audit.settings, TARGET)
        return second_answer(answered, tokenizer=source)

    def _read_both(self, targets: pl.DataFrame) -> pl.DataFrame:
        first, second = (self._read_answers(name, targets) for name in ANSWER_VIEWS)
        return both_answers(first.join(second, on="target_id", maintain_order="left"))

    def _read_answers(self, name: str, targets: pl.DataFrame) -> pl.DataFrame:
        """Read an answer to each target as column NAME, with NAME_context and NAME_reason."""
        run = self.audit.run
        names = targets.select("target_id")
        is_asked = pl.col("target_id").is_in(names["target_id"].implode())
        key = (TARGET, name)
        prompts = scan_parts(run.path("prompts"), Prompts, key).filter(is_asked)
        samples = scan_parts(run.path("samples"), Samples, key).filter(is_asked)
        asked = prompts.select("target_id", "context", "reason")
        answers = samples.select(
            "target_id",
            "finish_reason",
            "n_tokens",
            answer=pl.coalesce("raw", "candidate"),
            sample_reason="reason",
        )
        rows = names.lazy()
        for table in (asked, answers):
            rows = rows.join(table, on="target_id", how="left", maintain_order="left")
        reason = pl.coalesce("reason", "sample_reason", _why_no_score(name))
        return rows.select(
            "target_id",
            pl.when(reason.is_null()).then("answer").alias(name),
            pl.col("context").alias(f"{name}_context"),
            reason.alias(f"{name}_reason"),
        ).collect(engine="streaming")

    def _forecast(self) -> Workload:
        """Forecast both answers; the second as if its prompt were that of the first."""
        measure, budget = sessions.forecast_reading(self.audit, TARGET)
        return reduce(
            add,
            (
                request.forecast(
                    self._find_missing(name).blocks(),
                    measure,
                    budget(self._build_view(name)),
                )
                for name in ANSWER_VIEWS
            ),
        )


def _why_no_score(name: str) -> pl.Expr:
    """Return why an answer has no length to compare, or nothing to read."""
    answer = f"the model's {name.replace('_', ' ')}"
    return (
        pl.when(pl.col("answer").is_null() | (pl.col("answer").str.strip_chars() == ""))
        .then(pl.lit(f"{answer} is empty"))
        .when(pl.col("finish_reason") == "repeats")
        .then(pl.lit(f"{answer} repeats itself without an end"))
        .when(pl.col("finish_reason") == "length")
        .then(pl.format(f"{answer} has no end after {{}} tokens", "n_tokens"))
    )
