"""One way to tune a model: what is made of it, and how it is attacked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from mia_batch.finetuning.making import Making
from mia_batch.inversion.inverting import invert
from mia_batch.privacy.canaries import exposed
from mia_batch.privacy.data import learnt_by
from mia_batch.privacy.membership import attacks_of, metrics_of, scores_of
from mia_batch.privacy.plan import VIRTUAL
from mia_batch.privacy.signals import Opened
from mia_batch.privacy.summary import summary_of
from mia_batch.privacy.utility import utility
from mia_batch.tables import is_sound
from mia_batch.tables.files import replacing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from mia_batch.finetuning.making import Made, Wanted
    from mia_batch.finetuning.recipe import Form
    from mia_batch.privacy.canaries import Inserted
    from mia_batch.privacy.plan import Plan, Variant

__all__ = ["VariantAudit", "write_table"]

_TARGET_SEED = 0
_CANARY_SEED = 1
_SHADOW_SEED = 2  # of the first shadow model


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a table to Parquet, whole or not at all."""
    with replacing(path) as stream:
        table.write_parquet(stream)


@dataclass(frozen=True, kw_only=True)
class VariantAudit:
    """One way to tune, and all that is made of it."""

    base: str
    revision: str | None
    folder: Path
    texts: pl.DataFrame
    plan: Plan
    variant: Variant
    form: Form
    labels: Sequence[str]
    inserted: Sequence[Inserted]
    say: Callable[[str], None]

    def wanted(self) -> Iterator[Wanted]:
        """Name the models that the tables still need, and say what each is made of."""
        (self.folder / self.variant.name).mkdir(exist_ok=True)
        own = learnt_by(self.texts, None, self.plan.seed)
        yield self._wanted("target", own, _TARGET_SEED)
        if not self._has("scores"):
            for number in range(self.plan.shadows):
                learnt = learnt_by(self.texts, number, self.plan.seed)
                yield self._wanted(_shadow(number), learnt, _SHADOW_SEED + number)
        if self.inserted and not self._has("exposures"):
            rows = [row for each in self.inserted for row in each.rows()]
            yield self._wanted("canaries", own, _CANARY_SEED, rows)

    def tables(self, models: Mapping[str, Made]) -> dict[str, pl.DataFrame]:
        """Attack the models; tables that are there are read."""
        target = models[self._name("target")]
        attacks = attacks_of(self.form, self.plan.shadows)
        scores = self._kept("scores", lambda: self._scores(models, attacks))
        metrics = metrics_of(scores, attacks, self.plan.seed)
        used = self._kept("utility", lambda: self._utility(target))
        found = {}
        if self.inserted:
            found["exposures"] = self._kept("exposures", lambda: self._exposures(models))
        if self.plan.inverts and self.variant.tuning not in VIRTUAL:
            found["inversion"] = self._kept("inversion", lambda: self._inverted(target))
        found["metrics"] = metrics.select(pl.lit(self.variant.name).alias("variant"), pl.all())
        found["summary"] = summary_of(
            self.variant, self.plan, target, scores, metrics, used, found, attacks
        )
        return found

    def _name(self, model: str) -> str:
        """Name a model among those of all variants."""
        return f"{self.variant.name}: {model}"

    def _path(self, table: str) -> Path:
        return self.folder / self.variant.name / f"{table}.parquet"

    def _has(self, table: str) -> bool:
        path = self._path(table)
        return path.exists() and is_sound(path)

    def _kept(self, table: str, make: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        if not self._has(table):
            write_table(make(), self._path(table))
        return pl.read_parquet(self._path(table))

    def _wanted(
        self, model: str, learnt: pl.DataFrame, seed: int, extra: Sequence[tuple[str, str]] = ()
    ) -> Wanted:
        """Say what a model learns: texts, and canaries where there are any."""
        is_seq2seq = self.form == "seq2seq"
        given = [question if is_seq2seq else sentence for question, sentence in extra]
        said = [sentence if is_seq2seq else None for _, sentence in extra]
        self.say(f"{self._name(model)}, {learnt.height + len(given):,} texts")
        making = Making(
            base=self.base,
            revision=self.revision,
            texts=[*learnt["text"], *given],
            targets=[*learnt["target"], *said],
            recipe=self.plan.recipe_of(self.variant, self.form, self.labels, seed),
        )
        return self._name(model), making, self.folder / self.variant.name / model

    def _opened(self, made: Made) -> Opened:
        recipe = self.plan.recipe_of(self.variant, self.form, self.labels, 0)
        return Opened(str(made.path), None, recipe)

    def _scores(self, models: Mapping[str, Made], attacks: Sequence[str]) -> pl.DataFrame:
        audited = self.texts.filter(part="audited")
        texts, targets = audited["text"].to_list(), audited["target"].to_list()

        def asked(model: str) -> list[list[float]]:
            return [*self._opened(models[self._name(model)]).logprobs(texts, targets)]

        told = {"target": asked("target")}
        trained = {}
        if self.form != "classifier":
            recipe = self.plan.recipe_of(self.variant, self.form, self.labels, 0)
            pretrained = Opened(self.base, self.revision, recipe)
            told["reference"] = [*pretrained.logprobs(texts, targets)]
        for number in range(self.plan.shadows):
            name, learnt = _shadow(number), learnt_by(self.texts, number, self.plan.seed)
            told[name] = asked(name)
            trained[name] = audited["id"].is_in(learnt["id"].implode()).to_list()
        return scores_of(audited, told, trained, attacks)

    def _utility(self, target: Made) -> pl.DataFrame:
        rest = self.texts.filter(part="auxiliary")
        return utility(self._opened(target), rest, self.plan.task, self.labels)

    def _inverted(self, target: Made) -> pl.DataFrame:
        """Train a decoder on embeddings of auxiliary texts, as in GEIA."""
        self.say(f"{self.variant.name}: inversion of embeddings")
        texts = self.folder / "texts.parquet"
        write_table(self.texts.select("text", "group"), texts)
        found = invert(
            data=texts,
            embedder=str(target.path),
            out=self.folder / self.variant.name / "inverted",
            share=1 - self.plan.audited,
            seed=self.plan.seed,
        )
        return found.figures.select(pl.lit(self.variant.name).alias("variant"), pl.all())

    def _exposures(self, models: Mapping[str, Made]) -> pl.DataFrame:
        opened = self._opened(models[self._name("canaries")])
        found = exposed(opened, self.inserted, is_seq2seq=self.form == "seq2seq")
        return found.select(pl.lit(self.variant.name).alias("variant"), pl.all())


def _shadow(number: int) -> str:
    return f"shadow-{number}"
