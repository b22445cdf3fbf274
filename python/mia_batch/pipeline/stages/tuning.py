"""The stages that look whether the run's own models can be made, and make them."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

from mia_batch.pipeline.sessions.trainings import trained
from mia_batch.pipeline.stages.stage import Stage
from mia_batch.pipeline.stages.tuned import TunedModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from mia_batch.finetuning.making import Making, Wanted
    from mia_batch.pipeline.context import Audit
    from mia_batch.pipeline.stages.generations import GenerationsStage

__all__ = ["BeforeTuningStage", "TuningStage"]

_NAME_DIGITS = 16  # of the digest of what a model is made of


class TuningStage(Stage):
    """Tune the models whose log-probabilities texts lack, as many at once as there are workers."""

    name = "models"

    def __init__(self, audit: Audit, models: Iterable[str]) -> None:
        super().__init__(audit)
        self._models = {model: TunedModel(audit, model) for model in models}

    def files(self) -> list[Path]:
        """List nothing: a model is looked at when it is used."""
        return []

    def prepare(self) -> None:
        """Refuse another way of making a model that the run has."""
        for model in self._models.values():
            model.prepare()

    def check(self) -> None:
        """Refuse, before a model is asked, what cannot be made."""
        for model in self._models.values():
            model.check()

    def left(self) -> Iterator[tuple[str, str]]:
        """Say how long training is, and what it takes."""
        for model in self._models.values():
            yield from model.left()

    def run(self) -> None:
        """Make the models; once all are there, what was begun of others goes."""
        audit, folder = self.audit, self.audit.run.folder / "models"
        wanted = {name: model for name, model in self._models.items() if model.is_wanted}
        if wanted:
            audit.begin_change()
            folder.mkdir(exist_ok=True)
            self._make(wanted, folder)
        for work in folder.glob(".*.work"):
            shutil.rmtree(work, ignore_errors=True)

    def _make(self, models: dict[str, TunedModel], folder: Path) -> None:
        say = self.audit.observer.stage
        if len(models) > 1:
            steps = sum(model.recipe.steps(model.n_texts) for model in models.values())
            say(f"{len(models)} models to tune: {steps:,} steps")
        begun: dict[str, Making] = {}

        def wanted() -> Iterator[Wanted]:
            for name, model in models.items():
                begun[name] = making = model.making()
                say(
                    f"model {name}: {making.base} tuned on {len(making.texts):,} texts, "
                    f"{making.recipe.steps(len(making.texts)):,} steps"
                )
                yield name, making, folder / making.digest[:_NAME_DIGITS]

        with closing(trained(self.audit.settings, self.audit.run.folder, wanted(), say)) as made:
            for name, there in made:
                models[name].take_up(begun.pop(name), there)


class BeforeTuningStage(Stage):
    """Look whether the models can be made, before any is asked."""

    name = "references"

    def __init__(self, audit: Audit, generations: GenerationsStage, tuning: TuningStage) -> None:
        super().__init__(audit)
        self._stages = (generations, tuning)

    def files(self) -> list[Path]:
        """List nothing."""
        return []

    def run(self) -> None:
        """Look."""
        for stage in self._stages:
            stage.check()
