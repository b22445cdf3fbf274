"""The questions of a run: every view in one table, and what was answered to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import polars as pl

from mia_batch.errors import SettingsError
from mia_batch.evidence.request import EvidenceKind
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.run import Run
from mia_batch.prompts.views import (
    SHADOW,
    Decode,
    View,
    after_unrelated,
    choices,
    continuation,
    extraction,
    given,
    lowercase,
    own_prefix,
    pairs,
    probes,
    repeated,
    rewriting,
    sample_seed,
    text,
)
from mia_batch.settings import Settings, stored_settings

# What a run asks of its models: the views that its attacks read, and those that stages ask for.


_HALVES, _TARGET = ("prefix", "reference"), ("target",)
_WORDS = Decode(scope="matched", max_attempts=3, spare=1)
"""A few words and one token more, so that the last is followed by something."""
_ONCE = Decode(scope="matched", max_attempts=1, spare=1)
_CHOICE = Decode(scope="whole", most_new=8)  # "The answer is B." and some more


def _probe(settings: Settings) -> View:
    make = partial(
        probes,
        n=settings.probes,
        every=settings.probe_every,
        n_words=settings.probe_words,
        words=settings.word_rule,
    )
    greedy = settings.samples is None
    return View(
        name="probe",
        make=make,
        columns=_TARGET,
        n=settings.probes,
        samples=settings.samples or 1,
        greedy=greedy,
        text_tokens=1,
        decode=_WORDS,
        evidence={"probe_every": settings.probe_every, "probe_words": settings.probe_words},
        answers={"probe_answers": "greedy" if greedy else "drawn"},
    )


def _choice(settings: Settings) -> View:
    column, n = settings.paraphrases_column, settings.choice_orders
    greedy = settings.samples is None
    return View(
        name="choice",
        make=partial(choices, column=column or "", n=n),
        n=n,
        samples=settings.samples or 1,
        greedy=greedy,
        question=True,
        decode=_CHOICE,
        column_setting="paraphrases_column",
        evidence={"paraphrases_column": column},
        answers={"choice_answers": "greedy" if greedy else "drawn"},
    )


def _extraction(settings: Settings) -> View:
    context, text = settings.extraction_prefix_tokens, settings.extraction_tokens
    return View(
        name="extraction",
        make=extraction,
        columns=_HALVES,
        context_tokens=context,
        text_tokens=text,
        evidence={"extraction_prefix_tokens": context, "extraction_tokens": text},
    )


def _neighbour(settings: Settings) -> View:
    column, n = settings.neighbours_column, settings.neighbours
    return View(
        name="neighbour",
        make=partial(given, column=column, n=n) if column else None,
        n=n,
        filled=column is None,
        column_setting="neighbours_column",
        evidence={"neighbours_column": column},
    )


VIEWS: Final[dict[str, Callable[[Settings], View]]] = {
    "continuation": lambda s: View(
        name="continuation", make=continuation, columns=_HALVES, samples=s.continuations
    ),
    "probe": _probe,
    "choice": _choice,
    "extraction": _extraction,
    "text": lambda _: View(name="text", make=text, columns=_TARGET),
    "lowercase": lambda _: View(name="lowercase", make=lowercase),
    "repeated": lambda _: View(name="repeated", make=repeated, columns=_TARGET),
    "neighbour": _neighbour,
    "perturbation": lambda s: View(name="perturbation", make=None, n=s.neighbours, filled=True),
    "paraphrase": lambda s: View(
        name="paraphrase",
        make=None,
        n=2 * s.paraphrases,
        share=s.paraphrase_share,
        filled=True,
        evidence={"paraphrase_share": s.paraphrase_share},
    ),
    "noise": lambda s: View(
        name="noise",
        make=partial(pairs, n=s.paraphrases),
        columns=_TARGET,
        n=2 * s.paraphrases,
        noise=s.noise,
        evidence={"noise": s.noise},
    ),
    "nonmember_shots": lambda _: View(name="nonmember_shots", make=None, columns=_TARGET),
    "member_shots": lambda _: View(name="member_shots", make=None, columns=_TARGET),
}
"""Views that attacks read: a view is a name and what the settings make of it."""

OF_STAGES: Final[dict[str, Callable[[Settings], View]]] = {
    "rewriting": lambda s: View(
        name="rewriting",
        make=rewriting,
        columns=_TARGET,
        samples=s.continuations,
        question=True,
        decode=_ONCE,
    ),
    "generation": lambda s: View(
        name="generation",
        make=None,
        samples=s.generations,
        decode=Decode(scope="whole", most_new=s.generation_tokens),
    ),
    "walk": lambda _: View(name="walk", make=None, greedy=True, decode=_WORDS),
    "drawn_walk": lambda _: View(name="drawn_walk", make=None, decode=_WORDS),
    "control": lambda s: View(
        name="control",
        make=partial(after_unrelated, words=s.word_rule),
        columns=_HALVES,
        n=2,
        samples=s.continuations,
    ),
    "walk_control": lambda s: View(
        name="walk_control",
        make=partial(after_unrelated, words=s.word_rule),
        columns=_HALVES,
        n=2,
        greedy=True,
        decode=_WORDS,
    ),
}
"""Views that stages ask for and no attack reads; controls as continuations and walks are asked."""


def views_of(audit: Audit, kind: EvidenceKind | None = None) -> list[View]:
    """Return the views that attacks read, of one kind of evidence or all; model by model."""
    shadows = [f"{SHADOW}-{number}" for number in range(audit.settings.shadows or 0)]
    kinds: tuple[EvidenceKind, ...] = ("samples", "logprobs") if kind is None else (kind,)
    reads = dict.fromkeys(
        (each, view)
        for attack in audit.asking
        for kind in kinds
        for model, view in attack.reads_of(kind)
        # A name for all shadow models stands for each of them.
        for each in (shadows if model == SHADOW else [model])
    )
    return [view_of(audit, *key) for key in sorted(reads, key=lambda key: key[0] != "target")]


def models_of(audit: Audit) -> list[str]:
    """Name the models that attacks read, and the target and the reference in any case."""
    read = (view.model for view in views_of(audit))
    return list(dict.fromkeys(("target", "reference", *read)))


def view_of(audit: Audit, model: str, name: str) -> View:
    """Return one view of a model, as the settings want it."""
    found = VIEWS.get(name) or OF_STAGES.get(name)
    if found is None:
        raise SettingsError(
            f"no view is called {name!r}; an attack that reads it cannot be computed"
        )
    view = replace(found(audit.settings), model=model)
    if model == "reference" and name in ("control", "walk_control"):
        return replace(view, make=own_prefix, n=1)  # it is asked as the target was
    return view


# What a run's models answered about some targets, beside what they were asked.


SAMPLE = ["target_id", "model", "view", "view_index", "sample_index"]
"""What names a sample."""
_ASKED = {"cut": pl.UInt32, "context": pl.String, "text": pl.String, "seed": pl.UInt64}


def taken_up(
    run: Run,
    observer: Observer | None = None,
    work: Run | None = None,
    **changed: Any,  # noqa: ANN401 - settings
) -> Audit:
    """Take up a run to look at its evidence; what is written goes to ``work``."""
    manifest = run.manifest
    settings = stored_settings(manifest.settings, **changed)
    return Audit(settings, observer or Observer(), [], None, work or run, manifest)


def prompts_of(run: Run, view: View, targets: pl.DataFrame) -> pl.DataFrame:
    """Open the prompts of a view about some targets, with their ``context`` and ``text``."""
    of_view = (pl.col("model") == view.model) & (pl.col("view") == view.name)
    wanted = of_view & pl.col("target_id").is_in(targets["target_id"].implode())
    prompts = run.scan("prompts").filter(wanted, pl.col("reason").is_null())
    columns = ["target_id", "document_id", *view.columns]
    return view.resolve(prompts.collect(engine="streaming"), targets.select(columns))


def answers_of(run: Run, targets: pl.DataFrame) -> pl.DataFrame:
    """Open the samples of some targets with what was asked.

    To the columns of the samples table come ``cut``, ``context`` and ``text`` of the prompt, and
    ``seed`` (UInt64), null where the answer was recorded, or is the most likely one.
    """
    audit = taken_up(run)
    own = pl.col("target_id").is_in(targets["target_id"].implode())
    samples = run.scan("samples").filter(own).collect(engine="streaming")
    asked = [pl.DataFrame(schema={**samples.select(SAMPLE[:-1]).schema, **_ASKED})]
    for model, name in samples.select("model", "view").unique(maintain_order=True).iter_rows():
        view = view_of(audit, model, name)
        prompts = prompts_of(run, view, targets).with_columns(
            model=pl.lit(model), view=pl.lit(name)
        )
        keys = prompts.select("target_id", "view_index").iter_rows()
        seeds = [sample_seed(audit.settings.seed, key, name, index) for key, index in keys]
        drawn = not view.greedy and audit.manifest.evidence["engine"] != "replay"
        seed = pl.Series(seeds if drawn else [None] * len(seeds), dtype=pl.UInt64)
        asked.append(prompts.with_columns(seed=seed).select(asked[0].columns))
    answers = samples.join(pl.concat(asked), on=SAMPLE[:-1], how="left")
    return answers.with_columns(pl.col("seed") + pl.col("sample_index")).sort(SAMPLE)
