"""The stage that lets the target speak: on what it says, a reference model is tuned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.evidence.missing import Missing
from mia_batch.evidence.parts import TARGET_KEY, scan_parts
from mia_batch.evidence.workload import forecast
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.sessions.session import (
    cost_lines,
    expected,
    expected_work,
    is_remote,
    open_session,
    sample_task,
)
from mia_batch.pipeline.stages.features import sample_parts
from mia_batch.pipeline.stages.prompts import prompt_parts, texts_for
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.views import models_of, view_of
from mia_batch.prompts.first_tokens import first_tokens
from mia_batch.schemas import Prompts, Samples
from mia_batch.settings.client import endpoint_tokenizer
from mia_batch.tables import sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mia_batch.pipeline.context import Audit
    from mia_batch.prompts.view import View

__all__ = ["SELF_PROMPT", "GenerationsStage", "generations_of"]

SELF_PROMPT = "self_prompt"
"""The model that is tuned on what the target says."""


class GenerationsStage(Stage):
    """The target goes on with first tokens of public texts: SPV-MIA, section 4.2."""

    name = "generations"
    keeps = "generations"

    def files(self) -> list[Path]:
        """List nothing: they lie among the target's samples."""
        return []

    def check(self) -> None:
        """Refuse other prompts than those that the run's generations came from, or none."""
        if self._is_wanted:
            self._agree()
            self._check_prompts()

    def lacks(self) -> int:
        """Count the prompts that lack generations."""
        return self._missing(_Texts(self._prompts)).count().left

    def run(self) -> None:
        """Generate what is missing."""
        audit = self.audit
        if not self._is_wanted:
            return
        view = self._view
        units = _Texts(self._prompts)
        for block in Missing(units, prompt_parts(audit, view)).blocks():
            sink(view.rows(block.units), audit.run.path("prompts") / block.part_name, Prompts)
        missing = self._missing(units)
        work = missing.count()
        if not work.left:
            return
        audit.begin_change()
        self._warn()
        for name, text in self._cost(missing):
            audit.observer.stage(f"{name}: {text}")
        progress = audit.observer.progress("generating", done=work.done, left=work.left)
        with open_session(audit, "target", "samples") as session, progress:
            task, told = sample_task(audit, session, view), audit.observer.answered
            for _ in session.executor.collect(
                task, missing.blocks(), told, sample_parts(audit, view).store
            ):
                pass

    def left(self) -> Iterator[tuple[str, str]]:
        """Count what is to be generated."""
        settings = self.audit.settings
        if self._is_wanted:
            self._check_prompts()
            left = self.lacks() * self._view.samples
            most = left * settings.generation_tokens
            yield "generations", f"{left:,} texts, at most {most:,} tokens"
            yield from self._cost(self._missing(_Texts(self._prompts)))

    def _cost(self, missing: Missing) -> Iterator[tuple[str, str]]:
        """Say what they may cost at most, at an endpoint."""
        audit = self.audit
        if is_remote(audit, "target"):
            measure, budget = expected(audit, "target")
            workload = forecast(missing.blocks(), measure, budget(self._view))
            for name, text in cost_lines(audit.settings, workload):
                yield f"generations: {name}", text

    @property
    def _is_wanted(self) -> bool:
        return SELF_PROMPT in models_of(self.audit)

    @property
    def _view(self) -> View:
        view = view_of(self.audit, "target", "generation")
        return replace(view, samples=ceil(view.samples / self._prompts.height))

    def _missing(self, units: _Texts) -> Missing:
        audit, view = self.audit, self._view
        return Missing(
            units,
            sample_parts(audit, view),
            view.samples,
            retry_failed=audit.settings.retry_failed,
            work=expected_work(audit, view),
        )

    def _warn(self) -> None:
        """Say where generations are not drawn from the target's distribution (equation 7)."""
        settings = self.audit.settings
        drawn = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
        cut = [name for name, value in drawn.items() if getattr(settings, name) != value]
        if cut:
            self.audit.observer.stage(
                f"generations are drawn with another {' and '.join(cut)} than the target's own "
                "distribution: a reference tuned on them may hide what the target remembers; "
                "temperature 1, top_k 0 and top_p 1 are that distribution"
            )

    def _agree(self) -> None:
        audit, settings = self.audit, self.audit.settings
        files = texts_for(audit, "prompts_from").files
        described = {
            "prompts_from": audit.digest_input("prompts_from", files),
            "prompt_tokens": settings.prompt_tokens,
            "generation_tokens": settings.generation_tokens,
        }
        audit.manifest.agree(described, audit.run.folder)

    def _check_prompts(self) -> None:
        """Raise `SettingsError` if there is no text whose first tokens could be given."""
        if self._prompts.is_empty():
            msg = "setting 'prompts_from': there is no text in it; give at least one"
            raise SettingsError(msg)

    @cached_property
    def _prompts(self) -> pl.DataFrame:
        """Choose as many texts as there are generations, and cut them to their first tokens."""
        audit, settings = self.audit, self.audit.settings
        if is_remote(audit, "target"):
            tokenizer = endpoint_tokenizer(settings)
        else:
            tokenizer = Tokenizer.load(settings.model, settings.revision)
        texts = texts_for(audit, "prompts_from").documents.select("text")
        found = first_tokens(
            texts, n=settings.generations, n_tokens=settings.prompt_tokens, tokenizer=tokenizer
        )
        each = ceil(settings.generations / max(1, found.height))
        return found.head(ceil(settings.generations / each))


def generations_of(audit: Audit) -> list[str]:
    """Return what the target said, each after its prompt; empty answers are left out."""
    key = ("target", "generation")
    samples = scan_parts(audit.run.path("samples"), Samples, key)
    asked = scan_parts(audit.run.path("prompts"), Prompts, key).select("target_id", "context")
    said = samples.filter(pl.col("candidate").str.contains(r"\S")).join(asked, on="target_id")
    rows = said.sort("target_id", "sample_index").head(audit.settings.generations)
    text = pl.coalesce("prompt", "context") + pl.col("candidate")
    return rows.select(text=text).collect(engine="streaming")["text"].to_list()


@dataclass(frozen=True, slots=True)
class _Texts:
    """First tokens of texts, as prompts that are about no target of the run."""

    prompts: pl.DataFrame

    def keys(self) -> Iterator[pl.DataFrame]:
        """Yield the keys and ``target_row`` of all of them."""
        yield self._numbered.select("target_row", target=TARGET_KEY, key="unit_key")

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield all of them."""
        yield self._numbered

    @property
    def _numbered(self) -> pl.DataFrame:
        rows = self.prompts.with_columns(unit_key=TARGET_KEY)
        return rows.with_row_index("target_row").cast({"target_row": pl.UInt32})
