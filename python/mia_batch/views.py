"""Views: what a run asks one of its models about every text, and the kinds of views there are.

A `ViewType` says how a view's prompts are made, what its answers are called and what
an engine must be able to do. Other packages add types by entry points of the group
``mia_batch.views``; attacks read them as they read the package's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

import polars as pl

from mia_batch import prompts
from mia_batch.errors import SettingsError
from mia_batch.plugins import extra, plugins
from mia_batch.targets import MayCut, find_pauses

if TYPE_CHECKING:
    from mia_batch.settings import Settings

__all__ = [
    "MASKED",
    "NOISE",
    "QUESTION",
    "REFERENCE",
    "SHADOW",
    "SHADOW_NUMBER",
    "STAGE_VIEW_TYPES",
    "TARGET",
    "VIEW_TYPES",
    "Decode",
    "RunModel",
    "View",
    "ViewType",
    "build_view",
    "find_template_source",
    "find_view_type",
    "list_abilities",
    "may_cut",
]

SHADOW = "shadow"
"""The role of models of which each is tuned on another half of the texts."""
SHADOW_NUMBER = rf"^{SHADOW}-(\d+)$"
"""What names of these models look like in tables, and the number in them."""
_MODELS_OF_SETTINGS = ("target", "reference", "masked")

QUESTION = "question"
"""What an engine can do that compares the log-probabilities of several answers."""
NOISE = "noise"
"""What an engine can do that adds noise to a text's embeddings."""

_HALVES = ("prefix", "reference")
_TARGET = ("target",)
_TARGET_BYTES = pl.col("target").cast(pl.Binary).bin
_CUTS = {
    (): {},
    _HALVES: {"context": pl.col("prefix"), "text": pl.col("reference")},
    _TARGET: {
        "context": _TARGET_BYTES.head(pl.col("cut")).cast(pl.String),
        "text": _TARGET_BYTES.slice(pl.col("cut")).cast(pl.String),
    },
}
"""What a prompt's context and text are where the table of prompts does not hold them."""


class RunModel(str):
    """A model of a run: its name in tables and files, which says its role and number."""

    __slots__ = ()

    @classmethod
    def shadow(cls, number: int) -> Self:
        return cls(f"{SHADOW}-{number}")

    @property
    def role(self) -> str:
        """The name by which attacks read it: that of all shadow models is one."""
        return self.partition("-")[0]

    @property
    def number(self) -> int:
        """Its number in its role: 3 of ``shadow-3``; 0 where the role is of one model."""
        number = self.partition("-")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def is_trained_here(self) -> bool:
        """Return whether the run trains it; settings name the others."""
        return self.role not in _MODELS_OF_SETTINGS


TARGET, REFERENCE, MASKED = map(RunModel, _MODELS_OF_SETTINGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """How far answers are decoded, as in `Budget`; ``scope`` None: as attacks need it."""

    scope: Literal["matched", "whole"] | None = None
    most_new: int | None = None
    max_attempts: int = 3
    spare: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewType:
    """A kind of view: what holds of it whatever the settings, and how settings build one.

    Attributes
    ----------
    build
        Returns the fields of a `View` other than ``name``, ``model``, ``type`` and
        ``evidence``, from the settings of a run.
    evidence
        Names of the settings that change prompts: a run holds evidence of one value.
    prompt_unit
        What progress calls a prompt, such as ``question``; None: a prompt, or a text
        where log-probabilities are read.
    answer_unit
        What ``mia-batch attacks`` calls sampled answers.
    abilities
        What an engine must be able to do with log-probabilities: `QUESTION`, `NOISE`.
    reads_next_token
        Whether log-probabilities of the next token suffice, which endpoints give.
    suits_placebo
        Whether an attack on it can be computed on a reference model without more.
    reads_alone
        Whether texts are read with nothing before them, so that log-probabilities which
        another program computed can be those.
    in_conversation
        What becomes of a prompt where texts are answers of conversations: it stands
        after what came before the ``answer``, or is a ``question`` of its own to the
        model. None: such texts cannot be asked about.
    needs_conversations
        Whether only answers of conversations can be asked about.
    """

    build: Callable[[Settings], Mapping[str, Any]]
    evidence: tuple[str, ...] = ()
    prompt_unit: str | None = None
    answer_unit: str = "answers"
    abilities: frozenset[str] = frozenset()
    reads_next_token: bool = False
    suits_placebo: bool = False
    reads_alone: bool = False
    in_conversation: Literal["answer", "question"] | None = None
    needs_conversations: bool = False


_UNTYPED = ViewType(build=lambda _: {})


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What one model of a run is asked about every text.

    Attributes
    ----------
    name, model
        The names under which rows of prompts, samples and log-probabilities are kept.
    make
        Turns rows of the targets table into prompts: ``target_id`` and those columns of
        `Prompts` that are not null or 0 throughout. None: another stage makes them, or
        the masked model does (``filled``).
    columns
        Columns of the targets table that prompts are cut from.
    column_setting
        The setting that names a column of the corpus which prompts need, too.
    n
        Prompts of each text.
    samples
        Answers to each prompt; log-probabilities are read once.
    greedy, context_tokens, text_tokens, noise, is_absolute, share
        As in a request (`mia_batch.evidence.request.Request`). Where there is ``noise``,
        prompts are pairs, of which the second has the opposite noise.
    nudge
        Nats on the logit of the text's first token.
    decode
        How far answers are decoded.
    filled
        Whether the masked model makes the prompts.
    evidence
        Values of the settings that change prompts: evidence of one run has one of each.
    answers
        The same of settings that change samples.
    sends_messages
        Whether the context is a conversation, as JSON, for an endpoint of chats.
    type
        What is the same whatever the settings.
    """

    name: str
    model: RunModel = TARGET
    make: Callable[[pl.DataFrame], pl.DataFrame] | None
    columns: tuple[str, ...] = ()
    column_setting: str | None = None
    n: int = 1
    samples: int = 1
    greedy: bool = False
    context_tokens: int | None = None
    text_tokens: int | None = None
    nudge: float = 0.0
    noise: float = 0.0
    is_absolute: bool = False
    share: float = 0.0
    decode: Decode = Decode()
    filled: bool = False
    sends_messages: bool = False
    evidence: Mapping[str, object] = field(default_factory=dict, hash=False)
    answers: Mapping[str, object] = field(default_factory=dict, hash=False)
    type: ViewType = field(default=_UNTYPED, hash=False, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, str]:
        """Model and view as rows of evidence name them."""
        return self.model, self.name

    @property
    def read_as(self) -> tuple[str, str]:
        """Model and view as attacks name what they read: all shadow models have one name."""
        return self.model.role, self.name

    @property
    def is_question(self) -> bool:
        """Return whether a model is asked a question, not to go on with a text."""
        return QUESTION in self.type.abilities

    @property
    def continues_texts(self) -> bool:
        """Return whether answers go on with a text, with more than its next token."""
        return not self.is_question and self.decode.most_new != 1

    def fill_prompts(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return rows of the prompts table, with null in columns that are not given."""
        defaults = {
            "model": pl.lit(self.model),
            "view": pl.lit(self.name),
            "view_index": pl.lit(0),
        }
        columns = {name: defaults.get(name, pl.lit(None)) for name in prompts.SCHEMA}
        columns |= {name: pl.col(name) for name in rows.columns}
        return rows.select(
            columns[name].cast(dtype).alias(name)
            for name, dtype in prompts.SCHEMA.items()
        )

    def resolve(
        self,
        prompts: pl.DataFrame,
        targets: pl.DataFrame,
        whole: Collection[str] = ("context", "text"),
    ) -> pl.DataFrame:
        """Join prompts to their targets, in the targets' order; what ``whole`` names is whole."""
        joined = targets.join(
            prompts.drop("model", "view"), on="target_id", maintain_order="left_right"
        )
        return joined.with_columns(
            pl.when(pl.col("reason").is_null()).then(pl.coalesce(name, cut)).alias(name)
            for name, cut in _CUTS[self.columns].items()
            if name in whole
        )


# The types of views that come with the package.

_FEW_WORDS = Decode(scope="matched", spare=1)
"""A few words and one token more, so that the last is followed by something."""
_ONE_ATTEMPT = Decode(scope="matched", max_attempts=1, spare=1)
_ONE_TOKEN = Decode(scope="whole", most_new=1)
_ONE_WORD = Decode(scope="whole", most_new=12)
"""A name of many tokens, or a sentence with the word."""
_ONE_LABEL = Decode(scope="whole", most_new=8)
"""As in "The answer is B." and some more."""


def may_cut(settings: Settings) -> MayCut | None:
    """Return where prompts may end: between tokens, or at pauses if no tokenizer is known."""
    if settings.samples_from is not None or settings.source == "recording":
        return None
    if settings.tokenizer is None and settings.base_url is not None:
        return find_pauses
    return partial(prompts.between_tokens, tokenizer=_find_tokenizer(settings))


def _find_tokenizer(settings: Settings) -> tuple[str, str | None, str]:
    """Return a tokenizer's name and revision, and the setting that names it."""
    if settings.tokenizer is None:
        return settings.model, settings.revision, "model"
    return settings.tokenizer, None, "tokenizer"


def _build_short_answers(settings: Settings, name: str) -> dict[str, Any]:
    """Return how a few words are answered: the likeliest ones, unless samples are asked for."""
    is_greedy = settings.samples is None
    return {
        "samples": settings.samples or 1,
        "greedy": is_greedy,
        "answers": {name: "greedy" if is_greedy else "drawn"},
    }


def _build_continuation(settings: Settings) -> dict[str, Any]:
    return {
        "make": prompts.continuation,
        "columns": _HALVES,
        "samples": settings.continuations,
    }


def _build_probe(settings: Settings) -> dict[str, Any]:
    make = partial(
        prompts.probes,
        n=settings.probes,
        every=settings.probe_every,
        n_words=settings.probe_words,
        words=settings.word_rule,
        may_cut=may_cut(settings),
    )
    return {
        "make": make,
        "columns": _TARGET,
        "n": settings.probes,
        "text_tokens": 1,
        "decode": _FEW_WORDS,
        **_build_short_answers(settings, "probe_answers"),
    }


def _build_token(settings: Settings) -> dict[str, Any]:
    return {
        "make": partial(
            prompts.tokens,
            n=settings.token_points,
            tokenizer=_find_tokenizer(settings),
        ),
        "columns": _TARGET,
        "n": settings.token_points,
        "greedy": True,
        "nudge": settings.nudge,
        "decode": _ONE_TOKEN,
    }


def _build_choice(settings: Settings) -> dict[str, Any]:
    make = partial(
        prompts.choices,
        column=settings.paraphrases_column or "",
        n=settings.choice_orders,
    )
    return {
        "make": make,
        "n": settings.choice_orders,
        "decode": _ONE_LABEL,
        "column_setting": "paraphrases_column",
        **_build_short_answers(settings, "choice_answers"),
    }


def _build_cloze(settings: Settings) -> dict[str, Any]:
    return {
        "make": partial(
            prompts.cloze, n=settings.masked_words, words=settings.word_rule
        ),
        "n": settings.masked_words,
        "greedy": True,
        "decode": _ONE_WORD,
    }


def _build_extraction(settings: Settings) -> dict[str, Any]:
    return {
        "make": prompts.extraction,
        "columns": _HALVES,
        "context_tokens": settings.extraction_prefix_tokens,
        "text_tokens": settings.extraction_tokens,
    }


def _build_swapped(settings: Settings) -> dict[str, Any]:
    return {
        "make": partial(prompts.swapped, seed=settings.seed),
        "n": prompts.SWAPPED,
    }


def _build_neighbour(settings: Settings) -> dict[str, Any]:
    column, n = settings.neighbours_column, settings.neighbours
    return {
        "make": partial(prompts.neighbours, column=column, n=n) if column else None,
        "n": n,
        "filled": column is None,
        "column_setting": "neighbours_column",
    }


def _build_noise(settings: Settings) -> dict[str, Any]:
    return {
        "make": partial(prompts.pairs, n=settings.paraphrases),
        "columns": _TARGET,
        "n": 2 * settings.paraphrases,
        "noise": settings.noise,
        "is_absolute": settings.noise_scale == "absolute",
    }


def _build_answer(settings: Settings) -> dict[str, Any]:
    """Return how the model answers for itself: the likeliest tokens, up to its own end."""
    return {
        "greedy": True,
        "decode": Decode(
            scope="whole", most_new=settings.answer_tokens, max_attempts=1
        ),
    }


def _build_first_answer(settings: Settings) -> dict[str, Any]:
    make = partial(prompts.first_answer, tokenizer=_find_tokenizer(settings))
    return {"make": make, **_build_answer(settings)}


def _build_control(settings: Settings) -> dict[str, Any]:
    make = partial(prompts.after_unrelated, words=settings.word_rule)
    return {"make": make, "columns": _HALVES, "n": 2}


VIEW_TYPES: dict[str, ViewType] = {
    "continuation": ViewType(
        build=_build_continuation, answer_unit="samples", in_conversation="answer"
    ),
    "probe": ViewType(
        build=_build_probe,
        evidence=("probe_every", "probe_words"),
        prompt_unit="point",
        answer_unit="words",
        reads_next_token=True,
        suits_placebo=True,
        in_conversation="answer",
    ),
    "token": ViewType(
        build=_build_token,
        evidence=("nudge",),
        prompt_unit="point",
        answer_unit="tokens",
        in_conversation="answer",
    ),
    "choice": ViewType(
        build=_build_choice,
        evidence=("paraphrases_column",),
        prompt_unit="question",
        abilities=frozenset({QUESTION}),
        reads_next_token=True,
    ),
    "cloze": ViewType(
        build=_build_cloze, prompt_unit="question", abilities=frozenset({QUESTION})
    ),
    "extraction": ViewType(
        build=_build_extraction,
        evidence=("extraction_prefix_tokens", "extraction_tokens"),
    ),
    "text": ViewType(
        build=lambda _: {"make": prompts.text, "columns": _TARGET},
        suits_placebo=True,
        reads_alone=True,
        in_conversation="answer",
    ),
    "lowercase": ViewType(
        build=lambda _: {"make": prompts.lowercase},
        suits_placebo=True,
        reads_alone=True,
        in_conversation="answer",
    ),
    "repeated": ViewType(
        build=lambda _: {"make": prompts.repeated, "columns": _TARGET}
    ),
    "swapped": ViewType(
        build=_build_swapped, reads_alone=True, in_conversation="answer"
    ),
    "neighbour": ViewType(
        build=_build_neighbour, evidence=("neighbours_column",), reads_alone=True
    ),
    "perturbation": ViewType(
        build=lambda settings: {"n": settings.neighbours, "filled": True}
    ),
    "paraphrase": ViewType(
        build=lambda settings: {
            "n": 2 * settings.paraphrases,
            "share": settings.paraphrase_share,
            "filled": True,
        },
        evidence=("paraphrase_share",),
    ),
    "noise": ViewType(
        build=_build_noise,
        evidence=("noise", "noise_scale"),
        abilities=frozenset({NOISE}),
        in_conversation="answer",
    ),
    "answers": ViewType(
        build=lambda _: {"n": len(prompts.ANSWER_VIEWS)},
        in_conversation="answer",
        needs_conversations=True,
    ),
    "nonmember_shots": ViewType(build=lambda _: {"columns": _TARGET}),
    "member_shots": ViewType(build=lambda _: {"columns": _TARGET}),
}
"""Types of views that attacks read."""

STAGE_VIEW_TYPES: dict[str, ViewType] = {
    "rewriting": ViewType(
        build=lambda settings: {
            "make": prompts.rewriting,
            "columns": _TARGET,
            "samples": settings.continuations,
            "decode": _ONE_ATTEMPT,
        },
        abilities=frozenset({QUESTION}),
    ),
    "generation": ViewType(
        build=lambda settings: {
            "samples": settings.generations,
            "decode": Decode(scope="whole", most_new=settings.generation_tokens),
        },
        in_conversation="answer",
    ),
    "first_answer": ViewType(build=_build_first_answer),
    "second_answer": ViewType(build=_build_answer),
    "recital": ViewType(
        build=lambda _: {
            "make": prompts.continuation,
            "columns": _HALVES,
            "greedy": True,
        },
        in_conversation="answer",
    ),
    "walk": ViewType(build=lambda _: {"greedy": True, "decode": _FEW_WORDS}),
    "drawn_walk": ViewType(build=lambda _: {"decode": _FEW_WORDS}),
    "control": ViewType(
        build=lambda settings: {
            **_build_control(settings),
            "samples": settings.continuations,
        },
        in_conversation="question",
    ),
    "walk_control": ViewType(
        build=lambda settings: {
            **_build_control(settings),
            "greedy": True,
            "decode": _FEW_WORDS,
        }
    ),
}
"""Types that stages ask for and no attack reads; controls are asked as what they control."""


# Finding a view by its name.

_NAME = re.compile(r"[a-z][a-z0-9_]*")


def find_view_type(name: str) -> ViewType:
    """Return the type of a view of the package, or of another package's entry point.

    Raises `SettingsError` if there is none of that name, or it cannot be loaded.
    """
    view_type = VIEW_TYPES.get(name) or STAGE_VIEW_TYPES.get(name)
    if view_type is not None:
        return view_type
    added_types = plugins("views")
    if name not in added_types:
        names = ", ".join([*VIEW_TYPES, *added_types])
        raise SettingsError(
            f"an attack reads the view {name!r}, which there is not; the views are"
            f" {names}"
        )
    loaded = extra("views", name)
    if not isinstance(loaded, ViewType) or not _NAME.fullmatch(name):
        raise SettingsError(
            f"the view {name!r} of {added_types[name].value} must be a ViewType with a"
            " lower-case name of letters, digits and _"
        )
    return loaded


def list_abilities(views: Iterable[View]) -> frozenset[str]:
    """Return what an engine must be able to do to answer all of some views."""
    return frozenset[str]().union(*(view.type.abilities for view in views))


def build_view(settings: Settings, model: str, name: str) -> View:
    """Return what a model is asked under the name of a view.

    Raises `SettingsError` if there is no such view, or its type builds no `View`.
    """
    view_type = find_view_type(name)
    fields = {"make": None, **view_type.build(settings)}
    if model == "reference" and name in ("control", "walk_control"):
        fields |= {"make": prompts.own_prefix, "n": 1}  # asked as the target was
    try:
        view = View(
            name=name,
            model=RunModel(model),
            evidence={key: getattr(settings, key) for key in view_type.evidence},
            type=view_type,
            **fields,
        )
    except (TypeError, AttributeError) as error:
        raise SettingsError(f"the view {name!r} cannot be built: {error}") from error
    return _place_in_conversation(view, settings)


def _place_in_conversation(view: View, settings: Settings) -> View:
    """Return a view whose prompts are conversations, where texts are answers of such."""
    is_asked = settings.conversations == "answers" and settings.source != "recording"
    if not is_asked or view.type.in_conversation is None:
        return view
    if view.make is None:  # another stage makes its prompts
        return replace(view, sends_messages=settings.chat)
    make_alone = partial(_make_rows, view)
    is_question = view.type.in_conversation == "question"
    if settings.chat:
        if is_question:  # which is sent as a message as it is
            return view
        make = partial(prompts.as_messages, make=make_alone)
        return replace(view, make=make, sends_messages=True)
    tokenizer = find_template_source(settings, view.model)
    if is_question:
        make = partial(prompts.as_question, make=make_alone, tokenizer=tokenizer)
        return replace(view, make=make)
    make = partial(
        prompts.in_conversation,
        make=make_alone,
        tokenizer=tokenizer,
        # As an endpoint of completions does by itself
        leaves_out_start=settings.source == "endpoint",
    )
    return replace(view, make=make)


def _make_rows(view: View, targets: pl.DataFrame) -> pl.DataFrame:
    """Make rows of the prompts table, as if texts stood alone."""
    if view.make is None:
        raise TypeError(f"another stage makes the prompts of view {view.name!r}")
    return view.fill_prompts(view.make(targets))


def find_template_source(
    settings: Settings, model: RunModel
) -> tuple[str, str | None, str]:
    """Return the tokenizer whose chat template writes what a model reads, and its setting.

    It is the model's own; a reference model that has none gets the target's.
    """
    if model == REFERENCE and settings.reference_model is not None:
        reference = (
            str(settings.reference_model),
            settings.reference_revision,
            "reference_model",
        )
        if prompts.find_template(reference) is not None:
            return reference
    return _find_tokenizer(settings)
