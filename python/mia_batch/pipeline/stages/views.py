"""What a run asks of its models: the views that its attacks read, and those that stages ask for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mia_batch.errors import SettingsError
from mia_batch.prompts.choices import choices
from mia_batch.prompts.continuation import continuation, extraction
from mia_batch.prompts.control import after_unrelated, own_prefix
from mia_batch.prompts.given import given
from mia_batch.prompts.probes import probes
from mia_batch.prompts.rewriting import rewriting
from mia_batch.prompts.text import lowercase, pairs, repeated, text
from mia_batch.prompts.view import View

if TYPE_CHECKING:
    from mia_batch.evidence.request import EvidenceKind
    from mia_batch.pipeline.context import Audit
    from mia_batch.settings import Settings

__all__ = ["BESIDE_ATTACKS", "models_of", "view_of", "views_of"]

BESIDE_ATTACKS = ("walk", "drawn_walk", "control", "walk_control", "generation", "rewriting")
"""Views that stages ask for and no attack reads."""


def views_of(audit: Audit, kind: EvidenceKind | None = None) -> list[View]:
    """Return the views that attacks read, of one kind of evidence or all; model by model."""
    kinds: tuple[EvidenceKind, ...] = ("samples", "logprobs") if kind is None else (kind,)
    reads = dict.fromkeys(
        (each, view)
        for attack in audit.asking
        for kind in kinds
        for model, view in attack.reads_of(kind)
        for each in _models(audit.settings, model)
    )
    return [view_of(audit, *key) for key in sorted(reads, key=lambda key: key[0] != "target")]


def models_of(audit: Audit) -> list[str]:
    """Name the models that attacks read, and the target and the reference in any case."""
    read = (view.model for view in views_of(audit))
    return list(dict.fromkeys(("target", "reference", *read)))


def _models(settings: Settings, model: str) -> list[str]:
    """Name the models that an attack means by one name."""
    if model != "shadow":
        return [model]
    return [f"shadow-{number}" for number in range(settings.shadows or 0)]


def view_of(audit: Audit, model: str, name: str) -> View:
    """Return one view of a model, as the settings want it."""
    values = _control(audit.settings, model, name) or _values(audit.settings, name)
    if values is None:
        msg = f"no view is called {name!r}; an attack that reads it cannot be computed"
        raise SettingsError(msg)
    return View(model=model, name=name, **values)


def _control(settings: Settings, model: str, name: str) -> dict[str, Any] | None:
    """Say what sets a view of controls apart: drawn as continuations are, or greedy as walks."""
    own = model == "reference"
    common: dict[str, Any] = {
        "make": own_prefix if own else partial(after_unrelated, words=settings.word_rule),
        "columns": ("prefix", "reference"),
        "n": 1 if own else 2,
    }
    drawn: dict[str, dict[str, Any]] = {
        "control": {"samples": settings.continuations},
        "walk_control": {"greedy": True},
    }
    return common | drawn[name] if name in drawn else None


def _values(settings: Settings, name: str) -> dict[str, Any] | None:
    """Say what sets a view apart; None where no view has this name."""
    halves, n = ("prefix", "reference"), settings.neighbours
    column, drawn = settings.neighbours_column, settings.samples or 1
    known: dict[str, dict[str, Any]] = {
        "continuation": {
            "make": continuation,
            "columns": halves,
            "samples": settings.continuations,
        },
        "probe": {
            "make": partial(
                probes,
                n=settings.probes,
                every=settings.probe_every,
                n_words=settings.probe_words,
                words=settings.word_rule,
            ),
            "columns": ("target",),
            "n": settings.probes,
            "samples": drawn,
            "greedy": settings.samples is None,
            "text_tokens": 1,
        },
        "choice": {
            "make": partial(
                choices, column=settings.paraphrases_column or "", n=settings.choice_orders
            ),
            "n": settings.choice_orders,
            "samples": drawn,
            "greedy": settings.samples is None,
            "question": True,
        },
        "extraction": {
            "make": extraction,
            "columns": halves,
            "context_tokens": settings.extraction_prefix_tokens,
            "text_tokens": settings.extraction_tokens,
        },
        "text": {"make": text, "columns": ("target",)},
        "lowercase": {"make": lowercase},
        "repeated": {"make": repeated, "columns": ("target",)},
        "neighbour": {"make": column and partial(given, column=column, n=n), "n": n},
        "perturbation": {"make": None, "n": n},
        "paraphrase": {
            "make": None,
            "n": 2 * settings.paraphrases,
            "share": settings.paraphrase_share,
        },
        "noise": {
            "make": partial(pairs, n=settings.paraphrases),
            "columns": ("target",),
            "n": 2 * settings.paraphrases,
            "noise": settings.noise,
        },
        "rewriting": {
            "make": rewriting,
            "columns": ("target",),
            "samples": settings.continuations,
            "question": True,
        },
        "generation": {"make": None, "samples": settings.generations},
        "walk": {"make": None, "greedy": True},
        "drawn_walk": {"make": None},
        "nonmember_shots": {"make": None, "columns": ("target",)},
        "member_shots": {"make": None, "columns": ("target",)},
    }
    return known.get(name)
