"""A reference model of the run's own: what it is made of, whether it can be, what it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.finetuning.base import check_base
from mia_batch.finetuning.finetune import why_no_finetuning
from mia_batch.finetuning.making import Making
from mia_batch.finetuning.recipe import RECIPES
from mia_batch.finetuning.sizes import sizes
from mia_batch.models.adapter import weights_source
from mia_batch.models.identity import identify_model
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.sessions.session import is_remote
from mia_batch.pipeline.stages.generations import SELF_PROMPT, GenerationsStage, generations_of
from mia_batch.pipeline.stages.halves import LEARNT, halves, number_of
from mia_batch.pipeline.stages.logprobs import LogprobsStage
from mia_batch.pipeline.stages.prompts import texts_for
from mia_batch.prompts.view import SHADOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.finetuning.making import Made
    from mia_batch.finetuning.recipe import Recipe
    from mia_batch.pipeline.context import Audit

__all__ = ["TunedModel"]

_CANDIDATE = "candidate"
_HELD_OUT = 0.1  # of texts that are none of the audit's
_FEWEST = 2  # texts
_COMPARED = 100  # texts on which two tokenizers are compared


class TunedModel:
    """One model that is tuned from the target's base, if a text lacks its log-probabilities."""

    def __init__(self, audit: Audit, model: str) -> None:
        self.audit = audit
        self.model = model
        self._asked = LogprobsStage(audit, model)

    def prepare(self) -> None:
        """Refuse another way of making a model that the run has; what failed may be changed."""
        models = self.audit.manifest.models
        if not self._known:
            models.pop(self.model, None)
        described = {"recipe": self.recipe.described()}
        self.audit.manifest.agree_model(self.model, described, self.audit.run.folder)

    def check(self) -> None:
        """Refuse, before a model is asked, what the run's model was not made of or cannot be."""
        audit = self.audit
        base, revision = self._base
        try:
            digest = identify_model(base, revision).digest
        except SettingsError as error:
            msg = str(error).replace("setting 'model'", "setting 'reference_model'")
            raise SettingsError(msg) from error
        described = {"base": {"name": base, "revision": revision, "digest": digest}}
        audit.manifest.agree_model(self.model, described, audit.run.folder)
        if self.model == _CANDIDATE:
            found = audit.digest_input("candidate_from", texts_for(audit, "candidate_from").files)
            audit.manifest.agree_model(self.model, {"texts": found}, audit.run.folder)
        if self._known:
            return
        if (reason := why_no_finetuning()) is not None:
            raise SettingsError(reason)
        check_base(base, revision, self.recipe)
        self._check_tokens()
        if self.model == _CANDIDATE and (n := len(self._texts)) < _FEWEST:
            msg = f"setting 'candidate_from': there are {n} texts in it; give at least {_FEWEST}"
            raise SettingsError(msg)

    @property
    def is_wanted(self) -> bool:
        """Whether it is asked about a text, or was made of others than it would be now."""
        there = self._known and not self._asked.answered().left
        return not (there and self._is_of_these_texts)

    def making(self) -> Making:
        """Say what it is made of, its texts among that."""
        base, revision = self._base
        return Making(base=base, revision=revision, texts=self._texts, recipe=self.recipe)

    def take_up(self, making: Making, made: Made) -> None:
        """Record a model that was made, and remove what an earlier one of other texts answered."""
        audit = self.audit
        name = made.path.relative_to(audit.run.folder).as_posix()
        digest = identify_model(str(made.path), None).digest
        if self._known and self._known["source"]["digest"] != digest:
            self._asked.forget_all()
        audit.manifest.models[self.model] |= {
            "source": {"name": name, "revision": None, "digest": digest},
            "made_from": making.made_from,
            "n_texts": len(making.texts),
            "losses": made.losses,
        }
        audit.save()

    def left(self) -> Iterator[tuple[str, str]]:
        """Say how long training is, and what it takes; of shadow models once for all."""
        if self.model.startswith(SHADOW) and number_of(self.model):
            return
        said = self.model != SELF_PROMPT or not GenerationsStage(self.audit).lacks()
        if self._known and said and not self._asked.lacks() and self._is_of_these_texts:
            return
        n_models, name = 1, f"model {self.model}"
        if self.model.startswith(SHADOW):
            n_models = self.audit.settings.shadows or 1
            name = f"{n_models} shadow models"
        base, revision = self._base
        n_texts, recipe = self.n_texts, self.recipe
        each = " each" if n_models > 1 else ""
        steps = n_models * recipe.steps(n_texts)
        yield name, f"{base} tuned on {n_texts:,} texts{each}: {steps:,} steps"
        yield f"{name}, size", f"{sizes(base, revision, recipe)}{each}"

    @property
    def _known(self) -> dict[str, Any]:
        """What the run says of the model; nothing where it has not made it."""
        known = self.audit.manifest.models.get(self.model, {})
        return known if "source" in known else {}

    @property
    def _is_of_these_texts(self) -> bool:
        """Whether it was tuned on what the target has said, if on that."""
        if self.model != SELF_PROMPT:
            return True
        return bool(self.making().made_from["texts"] == self._known["made_from"]["texts"])

    @property
    def recipe(self) -> Recipe:
        """How it is tuned."""
        settings = self.audit.settings
        shadow = self.model.startswith(SHADOW)
        return replace(
            RECIPES["reference"],
            method=settings.tuning,
            epochs=settings.tuning_epochs,
            learning_rate=settings.tuning_rate,
            batch_size=settings.tuning_batch,
            max_tokens=settings.tuning_tokens,
            rank=settings.tuning_rank,
            held_out=0.0 if shadow else _HELD_OUT,
            seed=(settings.seed + number_of(self.model)) % 2**31,
        )

    @property
    def _base(self) -> tuple[str, str | None]:
        """The reference model, which is asked for as the target's base, else what is known."""
        audit, settings = self.audit, self.audit.settings
        if settings.reference_model is not None:
            return weights_source(settings.reference_model, settings.reference_revision)
        if is_remote(audit, "target"):
            msg = (
                f"the model {self.model!r} is tuned from the target's base, which an endpoint does "
                "not give; give it as 'reference_model'"
            )
            raise SettingsError(msg)
        return weights_source(settings.model, settings.revision)

    @property
    def _texts(self) -> list[str]:
        audit = self.audit
        if self.model == SELF_PROMPT:
            return generations_of(audit)
        if self.model == _CANDIDATE:
            corpus = texts_for(audit, "candidate_from")
            there = corpus.documents.filter(pl.col("text").str.contains(r"\S"))
            return there.select("text").collect(engine="streaming")["text"].to_list()
        learnt = halves(audit, self.model).filter("learnt", "trained")
        return learnt["target"].to_list()

    @property
    def n_texts(self) -> int:
        """Count its texts, before they are there."""
        if self.model == SELF_PROMPT:
            return self.audit.settings.generations
        if self.model == _CANDIDATE:
            return len(self._texts)
        table = self.audit.target_table().filter(pl.col("role").is_in(LEARNT))
        return int(table.select(pl.col("target").count() // 2).collect().item())

    def _check_tokens(self) -> None:
        """Refuse a base that reads other tokens: probabilities per token would not compare."""
        audit, settings = self.audit, self.audit.settings
        if is_remote(audit, "target") or settings.reference_model is None:
            return
        own = Tokenizer.load(settings.model, settings.revision)
        base = Tokenizer.load(*self._base, setting="reference_model")
        there = audit.target_table().select("target").drop_nulls()
        texts = there.head(_COMPARED).collect()["target"].to_list()
        if own.encode_prompts(texts) != base.encode_prompts(texts):
            msg = (
                f"setting 'reference_model': {self._base[0]!r} cuts texts into other tokens than "
                "the target, so that their probabilities do not compare; give the model that the "
                "target was tuned from"
            )
            raise SettingsError(msg)
