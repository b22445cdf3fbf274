"""The questions of a run: every view in one table, and what was answered to them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import polars as pl

from mia_batch import prompts as makers
from mia_batch.errors import SettingsError
from mia_batch.evidence import parts
from mia_batch.evidence.request import EvidenceKind
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.corpora import may_cut
from mia_batch.pipeline.folder import PARTS, RunFolder
from mia_batch.prompts import SHADOW, Decode, RunModel, View, sample_seed
from mia_batch.settings import Settings, stored_settings

# What a run asks of its models: the views that its attacks read, and those that stages
# ask for.

Made: TypeAlias = Callable[[Settings], dict[str, Any]]
"""Makes the fields of a `View` of settings; ``evidence`` as the names of the settings."""

_HALVES, _TARGET = ("prefix", "reference"), ("target",)
_WORDS = Decode(scope="matched", spare=1)
"""A few words and one token more, so that the last is followed by something."""
_ONCE = Decode(scope="matched", max_attempts=1, spare=1)
_TOKEN = Decode(scope="whole", most_new=1)
# A name of many tokens, or a sentence with the word
_HIDDEN = Decode(scope="whole", most_new=12)
_CHOICE = Decode(scope="whole", most_new=8)  # "The answer is B." and some more


def _answers(settings: Settings, name: str) -> dict[str, Any]:
    """Say how short answers are given: the likeliest one, unless samples are asked for."""
    greedy = settings.samples is None
    answers = {name: "greedy" if greedy else "drawn"}
    return {"samples": settings.samples or 1, "greedy": greedy, "answers": answers}


def _tokenizer(settings: Settings) -> tuple[str, str | None, str]:
    if settings.tokenizer is None:
        return settings.model, settings.revision, "model"
    return settings.tokenizer, None, "tokenizer"


def _neighbour(settings: Settings) -> dict[str, Any]:
    column, n = settings.neighbours_column, settings.neighbours
    make = partial(makers.given, column=column, n=n) if column else None
    evidence, own = ("neighbours_column",), "neighbours_column"
    filled = column is None
    return {
        "make": make,
        "n": n,
        "filled": filled,
        "column_setting": own,
        "evidence": evidence,
    }


VIEWS: Final[dict[str, Made]] = {
    "continuation": lambda s: {
        "make": makers.continuation,
        "columns": _HALVES,
        "samples": s.continuations,
    },
    "probe": lambda s: {
        "make": partial(
            makers.probes,
            n=s.probes,
            every=s.probe_every,
            n_words=s.probe_words,
            words=s.word_rule,
            may_cut=may_cut(s),
        ),
        "columns": _TARGET,
        "n": s.probes,
        "text_tokens": 1,
        "decode": _WORDS,
        "evidence": ("probe_every", "probe_words"),
        **_answers(s, "probe_answers"),
    },
    "token": lambda s: {
        "make": partial(makers.tokens, n=s.token_points, tokenizer=_tokenizer(s)),
        "columns": _TARGET,
        "n": s.token_points,
        "greedy": True,
        "nudge": s.nudge,
        "decode": _TOKEN,
        "evidence": ("nudge",),
    },
    "choice": lambda s: {
        "make": partial(
            makers.choices, column=s.paraphrases_column or "", n=s.choice_orders
        ),
        "n": s.choice_orders,
        "question": True,
        "decode": _CHOICE,
        "column_setting": "paraphrases_column",
        "evidence": ("paraphrases_column",),
        **_answers(s, "choice_answers"),
    },
    "cloze": lambda s: {
        "make": partial(makers.cloze, n=s.masked_words, words=s.word_rule),
        "n": s.masked_words,
        "greedy": True,
        "question": True,
        "decode": _HIDDEN,
    },
    "extraction": lambda s: {
        "make": makers.extraction,
        "columns": _HALVES,
        "context_tokens": s.extraction_prefix_tokens,
        "text_tokens": s.extraction_tokens,
        "evidence": ("extraction_prefix_tokens", "extraction_tokens"),
    },
    "text": lambda _: {"make": makers.text, "columns": _TARGET},
    "lowercase": lambda _: {"make": makers.lowercase},
    "repeated": lambda _: {"make": makers.repeated, "columns": _TARGET},
    "swapped": lambda s: {
        "make": partial(makers.swapped, seed=s.seed),
        "n": makers.SWAPPED,
    },
    "neighbour": _neighbour,
    "perturbation": lambda s: {"n": s.neighbours, "filled": True},
    "paraphrase": lambda s: {
        "n": 2 * s.paraphrases,
        "share": s.paraphrase_share,
        "filled": True,
        "evidence": ("paraphrase_share",),
    },
    "noise": lambda s: {
        "make": partial(makers.pairs, n=s.paraphrases),
        "columns": _TARGET,
        "n": 2 * s.paraphrases,
        "noise": s.noise,
        "is_absolute": s.noise_scale == "absolute",
        "evidence": ("noise", "noise_scale"),
    },
    "nonmember_shots": lambda _: {"columns": _TARGET},
    "member_shots": lambda _: {"columns": _TARGET},
}
"""Views that attacks read: a view is a name and what the settings make of it."""


def _control(settings: Settings) -> dict[str, Any]:
    make = partial(makers.after_unrelated, words=settings.word_rule)
    return {"make": make, "columns": _HALVES, "n": 2}


STAGE_VIEWS: Final[dict[str, Made]] = {
    "rewriting": lambda s: {
        "make": makers.rewriting,
        "columns": _TARGET,
        "samples": s.continuations,
        "question": True,
        "decode": _ONCE,
    },
    "generation": lambda s: {
        "samples": s.generations,
        "decode": Decode(scope="whole", most_new=s.generation_tokens),
    },
    "recital": lambda _: {
        "make": makers.continuation,
        "columns": _HALVES,
        "greedy": True,
    },
    "walk": lambda _: {"greedy": True, "decode": _WORDS},
    "drawn_walk": lambda _: {"decode": _WORDS},
    "control": lambda s: _control(s) | {"samples": s.continuations},
    "walk_control": lambda s: _control(s) | {"greedy": True, "decode": _WORDS},
}
"""Views that stages ask for and no attack reads; controls as continuations and walks are asked."""


def views_of(audit: Audit, kind: EvidenceKind | None = None) -> list[View]:
    """Return the views that attacks read, of one kind of evidence or all; model by model."""
    shadows = [f"{SHADOW}-{number}" for number in range(audit.settings.shadows or 0)]
    kinds: tuple[EvidenceKind, ...] = (
        ("samples", "logprobs") if kind is None else (kind,)
    )
    reads = dict.fromkeys(
        (each, view)
        for attack in audit.asking
        for kind in kinds
        for model, view in attack.reads_of(kind)
        # A name for all shadow models stands for each of them.
        for each in (shadows if model == SHADOW else [model])
    )
    return [
        view_of(audit, *key)
        for key in sorted(reads, key=lambda key: key[0] != "target")
    ]


def models_of(audit: Audit) -> list[str]:
    """Name the models that attacks read, and the target and the reference in any case."""
    read = (view.model for view in views_of(audit))
    return list(dict.fromkeys(("target", "reference", *read)))


def view_of(audit: Audit, model: str, name: str) -> View:
    found = VIEWS.get(name) or STAGE_VIEWS.get(name)
    if found is None:
        raise SettingsError(
            f"an attack reads the view {name!r}, which there is not; the views are "
            f"{', '.join(VIEWS)}"
        )
    made = {"make": None, **found(audit.settings)}
    made["evidence"] = {
        name: getattr(audit.settings, name) for name in made.get("evidence", ())
    }
    if model == "reference" and name in ("control", "walk_control"):
        made |= {"make": makers.own_prefix, "n": 1}  # it is asked as the target was
    return View(name=name, model=model, **made)


def _parts(audit: Audit, table: str, view: View, block_targets: int) -> parts.Parts:
    return parts.Parts(
        folder=audit.run.path(table),
        schema=PARTS[table],
        model=view.model,
        view=view.name,
        block_targets=block_targets,
    )


def prompt_parts(audit: Audit, view: View) -> parts.Parts:
    """Name the parts of a view's prompts, which models that the run makes share with the target."""
    size = parts.LOGPROB_BLOCK_TARGETS if view.filled else parts.TARGETS_AT_ONCE
    own = _parts(audit, "prompts", view, size)
    return replace(own, model="target") if RunModel.of(view.model).is_made else own


def sample_parts(audit: Audit, view: View, table: str = "samples") -> parts.Parts:
    """Name the parts of a view's samples; those of the features have the same names."""
    recorded = audit.settings.samples_from is not None
    size = parts.RECORDED_BLOCK_TARGETS if recorded else parts.BLOCK_TARGETS
    return _parts(audit, table, view, size)


def logprob_parts(audit: Audit, view: View) -> parts.Parts:
    return _parts(audit, "logprobs", view, parts.LOGPROB_BLOCK_TARGETS)


# What a run's models answered about some targets, and what they were asked.

# What names a sample
SAMPLE = [
    "target_id",
    "model",
    "view",
    "view_index",
    "sample_index",
]
_ASKED = {"cut": pl.UInt32, "context": pl.String, "text": pl.String, "seed": pl.UInt64}


def resumed(
    run: RunFolder,
    observer: Observer | None = None,
    work: RunFolder | None = None,
    **changed: Any,
) -> Audit:
    manifest = run.manifest
    settings = stored_settings(manifest.settings, **changed)
    return Audit(settings, observer or Observer(), [], None, work or run, manifest)


def prompts_of(run: RunFolder, view: View, targets: pl.DataFrame) -> pl.DataFrame:
    of_view = (pl.col("model") == view.model) & (pl.col("view") == view.name)
    wanted = of_view & pl.col("target_id").is_in(targets["target_id"].implode())
    prompts = run.scan("prompts").filter(wanted, pl.col("reason").is_null())
    columns = ["target_id", "document_id", *view.columns]
    return view.resolve(prompts.collect(engine="streaming"), targets.select(columns))


def answers_of(run: RunFolder, targets: pl.DataFrame) -> pl.DataFrame:
    """Open the samples of some targets with what was asked: ``cut``, ``context``, ``text``."""
    # ``seed`` is null where the answer was recorded, or is the most likely one.
    audit = resumed(run)
    own = pl.col("target_id").is_in(targets["target_id"].implode())
    samples = run.scan("samples").filter(own).collect(engine="streaming")
    asked = [pl.DataFrame(schema={**samples.select(SAMPLE[:-1]).schema, **_ASKED})]
    for model, name in (
        samples.select("model", "view").unique(maintain_order=True).iter_rows()
    ):
        view = view_of(audit, model, name)
        prompts = prompts_of(run, view, targets).with_columns(
            model=pl.lit(model), view=pl.lit(name)
        )
        keys = prompts.select("target_id", "view_index").iter_rows()
        seeds = [
            sample_seed(audit.settings.seed, key, name, index) for key, index in keys
        ]
        drawn = not view.greedy and audit.manifest.evidence["engine"] != "replay"
        seed = pl.Series(seeds if drawn else [None] * len(seeds), dtype=pl.UInt64)
        asked.append(prompts.with_columns(seed=seed).select(asked[0].columns))
    answers = samples.join(pl.concat(asked), on=SAMPLE[:-1], how="left")
    return answers.with_columns(pl.col("seed") + pl.col("sample_index")).sort(SAMPLE)
