"""An attack: a named Polars expression over the evidence rows of one target; and its family."""

import fnmatch
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import polars as pl

from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.views import find_view_type

ModelView: TypeAlias = tuple[str, str]
"""A model of a run and what it is asked, as attacks name what they read."""
CONTINUATION = ("target", "continuation")  # what attacks read that say nothing else
RECITAL = ("target", "recital")
"""The likeliest continuation of the texts of highest scores; no attack reads it."""
PROBE = ("target", "probe")  # points of a text: the words before each, and the next few
TOKEN = ("target", "token")
"""Points of a text where the next token alone is asked, with a nudge towards the true one."""
REFERENCE_PROBE = ("reference", "probe")
TEXT = ("target", "text")
LOWERCASE = ("target", "lowercase")
REFERENCE_TEXT = ("reference", "text")
CHOICE = ("target", "choice")
"""Questions which of four passages is verbatim, and the labels that can be answered."""
CLOZE = ("target", "cloze")  # questions which word of a passage is hidden
ANSWERS = ("target", "answers")  # the model's own answer, and another one to the same
CODEC = "codec_v1"
OWN_ANSWERS = ("self_critique_v1", "answer_entropy_v1")  # which read no given text
COMBINATION = "combination_v1"
_MAX_MESSAGE = 400  # letters of an error of Polars
_MAX_EXPRESSION = 200
_REPEATED = re.compile("Resolved plan until failure|This error occurred in")
_NAME = re.compile(r"[a-z][a-z0-9_]*_v[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A membership score, written as a Polars expression.

    The expression aggregates the evidence rows of one target to one number, and **a
    higher score always means "more likely a member"**. Null means unscored.

    Attributes
    ----------
    name
        Unique lower-case name with a version, such as ``"samia_v1"``; it never changes
        meaning.
    expr
        Aggregating expression over evidence columns. It sees those rows of one target
        that ``reads`` names, in the order of ``model``, ``view``, ``view_index`` and
        ``sample_index``; samples only where there is a candidate. One that reads
        ``model`` and ``view`` picks its rows itself: it may see those of other attacks,
        too. Shadow models are one model ``shadow``, distinguished by ``view_index``.
    source
        Where the formula is defined: paper, equation, and where the authors' code
        differs.
    undefined
        Why the score can be null although there is evidence, as a short sentence.
    evidence
        What it needs: ``samples`` (sampled continuations), ``logprobs``
        (log-probabilities of the tokens of given texts), or ``scores`` of the run's
        other attacks, from which it is learned; ``expr`` says nothing then.
    whole_candidates
        True where candidates must be decoded to their end, not only to the reference's
        length.
    reads
        The rows that it reads: pairs of ``model`` and ``view``; by default the target
        model's ``continuation``, or ``text`` of one on log-probabilities.
    logprobs
        For one on samples: pairs whose rows of the logprobs table it sees, too. Rows of
        both tables come one after the other; columns of the other table are null, and
        those of the same prompt follow each other, log-probabilities first.
    least
        The share, in [0, 1], of what it reads that must be there, else the score is
        null: an answer that was refused, filtered or too long is left out.
    formula
        The expression on one line, for people; without it the expression itself is
        shown.
    settings
        Names of the settings that it cannot do without; of names joined by ``|`` one
        will do.
    defined
        File and line where it is defined, for messages.

    Raises
    ------
    SettingsError
        If the name has no version or other letters than a-z, digits and ``_``, if the
        expression gives more than one value per target or calls a Python function, or
        if it reads log-probabilities of continuations, which are only sampled.

    Examples
    --------
    >>> import polars as pl
    >>> longest = Attack(
    ...     name="longest_v1",
    ...     expr=pl.col("words_candidate").max(),
    ...     source="none",
    ...     undefined="there is no candidate",
    ... )
    >>> longest.columns
    ('words_candidate',)
    """

    name: str
    expr: pl.Expr
    source: str
    undefined: str
    evidence: Literal["samples", "logprobs", "scores"] = "samples"
    whole_candidates: bool = False
    reads: tuple[ModelView, ...] = ()
    logprobs: tuple[ModelView, ...] = ()
    settings: tuple[str, ...] = ()
    least: float = 0.5
    formula: str = ""
    defined: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingsError(
                f"attack {self.name!r} needs a lower-case name of letters, digits and _"
                " that ends with a version, such as mine_v1"
            )
        try:
            is_scalar = self.expr.meta.is_scalar()
        except pl.exceptions.PolarsError as error:
            raise SettingsError(
                f"attack {self.name!r} calls a Python function; write it with Polars'"
                " own expressions only"
            ) from error
        if not is_scalar:
            raise SettingsError(
                f"attack {self.name!r} must aggregate to one value per target; end its"
                " expression with mean(), max(), first() or the like (a text has one"
                " row per answer, and of log-probabilities one row with a list:"
                " list.mean().first())"
            )
        if not self.reads and self.evidence != "scores":
            default_view = TEXT if self.evidence == "logprobs" else CONTINUATION
            object.__setattr__(self, "reads", (default_view,))
        if CONTINUATION in self.list_reads("logprobs"):
            raise SettingsError(
                f"attack {self.name!r} reads log-probabilities of the view"
                " 'continuation', which is only sampled; the view of a text itself is"
                " ('target', 'text')"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Evidence columns that the expression reads, in alphabetical order."""
        return tuple(sorted(set(self.expr.meta.root_names())))

    def list_reads(self, kind: str) -> tuple[ModelView, ...]:
        """Return the pairs of model and view that it reads of one kind of evidence."""
        if kind == self.evidence:
            return self.reads
        return self.logprobs if kind == "logprobs" else ()

    @property
    def kind(self) -> str:
        """Its evidence, as setting ``evidence`` asks for it."""
        at_points = self.evidence == "logprobs" and all(map(is_next_token, self.reads))
        return "probe-logprobs" if at_points else self.evidence

    def check(self, evidence: pl.LazyFrame) -> None:
        """Check that ``evidence`` can feed this attack, without reading it.

        Parameters
        ----------
        evidence
            Any evidence table; only its schema is looked at.

        Raises
        ------
        SchemaMismatchError
            If a column that the expression reads is missing, or its value is no number.
        """
        types = evidence.collect_schema()
        for column in self.columns:
            if column not in types:
                close_names = get_close_matches(column, types, n=1)
                hint = f"did you mean {close_names[0]!r}? " if close_names else ""
                views = sorted({view for _, view in self.reads + self.logprobs})
                columns = sorted(
                    name for name in types if not name.endswith("_matched")
                )
                raise SchemaMismatchError(
                    f"{self} reads the column {column!r}, which rows of the view"
                    f" {', '.join(views)} do not have; {hint}They have"
                    f" {', '.join(columns)}"
                )
        try:
            (score_type,) = _compute_types([self], types)
        except pl.exceptions.PolarsError as error:
            raise self.build_error(error) from error
        if not _is_number(score_type):
            is_list = isinstance(score_type, pl.List)
            ending = ".list.mean().first()" if is_list else ".cast(pl.Float64)"
            raise SchemaMismatchError(
                f"{self} makes values of type {score_type}, not numbers; end its"
                f" expression with {ending}"
            )

    def build_error(self, error: pl.exceptions.PolarsError) -> SchemaMismatchError:
        """Return an error with the expression, what Polars said of it, and where it is defined."""
        # What follows repeats the expression, and shows Polars' plan
        message = _REPEATED.split(str(error))[0]
        message = " ".join(message.split())[:_MAX_MESSAGE]
        expression = " ".join(str(self.expr).split())[:_MAX_EXPRESSION]
        advice = ""
        if "list[" in message:
            advice = (
                "; a list column holds a number for each token: compute with .list, as"
                " in .list.mean(), and end with .first()"
            )
        return SchemaMismatchError(
            f"{self} cannot be computed: {message}{advice}. Its expression is"
            f" {expression}"
        )

    def __str__(self) -> str:
        return f"attack {self.name!r}" + (f" ({self.defined})" if self.defined else "")


def check_attacks(attacks: Sequence[Attack], evidence: pl.LazyFrame) -> None:
    """Check that ``evidence`` can feed all attacks; raises what `Attack.check` does."""
    # One query for all takes a quarter of the time of one for each.
    types = evidence.collect_schema()
    columns = {column for attack in attacks for column in attack.columns}
    with suppress(pl.exceptions.PolarsError):
        score_types = _compute_types(attacks, types)
        if columns <= types.keys() and all(map(_is_number, score_types)):
            return
    for attack in attacks:  # to say which, and why
        attack.check(evidence)


def _compute_types(attacks: Sequence[Attack], types: pl.Schema) -> list[pl.DataType]:
    """Compute the types of attacks' scores from those of columns."""
    scores = (
        pl.LazyFrame(schema=types)
        .group_by(pl.lit(1))
        .agg(attack.expr.alias(attack.name) for attack in attacks)
    )
    computed = scores.collect().schema
    return [computed[attack.name] for attack in attacks]


def _is_number(score_type: pl.DataType) -> bool:
    return score_type.is_numeric() or score_type == pl.Boolean


Formula = tuple[pl.Expr, str, str] | tuple[pl.Expr, str, str, str]
"""Expression, the same for people, where it is from, and why it can be null if not as others."""


def build_attacks(
    formulas: Mapping[str, Formula],
    undefined: str,
    **shared: Any,
) -> tuple[Attack, ...]:
    """Build attacks, by their names without a version, that share all but their formulas."""
    return tuple(
        Attack(
            name=f"{name}_v1",
            expr=expr,
            formula=formula,
            source=source,
            undefined=reason[0] if reason else undefined,
            **shared,
        )
        for name, (expr, formula, source, *reason) in formulas.items()
    )


# What the formulas of attacks have in common.


def is_next_token(pair: ModelView) -> bool:
    """Return whether a model's view needs log-probabilities of the next token alone."""
    model, view = pair
    return model == "target" and find_view_type(view).reads_next_token


def matches_view(pair: ModelView) -> pl.Expr:
    """Return whether a row is of a model's view."""
    model, view = pair
    return (pl.col("model") == model) & (pl.col("view") == view)


def matches_views(pairs: Iterable[ModelView]) -> pl.Expr:
    """Return whether a row is of one of some models' views."""
    return pl.any_horizontal(matches_view(pair) for pair in sorted(pairs))


def mean(term: pl.Expr) -> pl.Expr:
    """Return the mean over candidates, tokens or texts, the same to the bit on every machine."""
    # Polars' ``mean()`` and ``sum()`` add in an order that depends on threads and
    # processor.
    n = term.count()
    return pl.when(n > 0).then(total(term) / n)


def total(term: pl.Expr) -> pl.Expr:
    """Return the sum of a term, 0 where all are null, the same to the bit likewise."""
    return term.drop_nulls().implode().list.sum()


# Families of attacks: short names, the names that papers use, and what each stands for.
# So ``min-k++``, ``Min-K%++`` and ``min_k_plus_plus_20`` all name
# ``min_k_plus_plus_20_v1``.

_LEAST_ALIKE = 0.7  # of names, for a question whether one was meant


class Family(NamedTuple):
    """Attacks of one idea."""

    name: str
    paper_names: tuple[str, ...]  # its names elsewhere, most usual first
    # Beginnings of its attacks' names; the longest of all families decides
    stems: tuple[str, ...]
    default: tuple[str, ...]  # attacks that its name stands for


def _build_family(
    name: str, papers: str = "", stems: str = "", default: str = ""
) -> Family:
    stems = stems or name.replace("-", "_")
    default = default or f"{stems.partition(', ')[0]}_v1"
    return Family(name, _split(papers), _split(stems), _split(default))


def _split(names: str) -> tuple[str, ...]:
    return tuple(name for name in names.split(", ") if name)


_TABLE = tomllib.loads(Path(__file__).with_name("families.toml").read_text("utf-8"))
FAMILIES = tuple(_build_family(**entry) for entry in _TABLE["families"])
CHOICES = _TABLE["choices"]
MEASURED: dict[str, str] = _TABLE["measured"]
"""What was measured of attacks that found little here."""
PAPER_TABLES: dict[str, dict[str, str]] = _TABLE["tables"]
"""Names in the table of a preset's paper, by attack and in its order."""


def normalise_name(name: str) -> str:
    """Forgive case and punctuation, except that ``+`` makes another name."""
    return re.sub("[^a-z0-9]", "", name.lower().replace("+", "plus"))


@cache
def _build_families_by_name() -> dict[str, Family]:
    """Return families by their names and those in papers, normalised."""
    families: dict[str, Family] = {}
    for family in FAMILIES:
        for name in (family.name, *family.paper_names):
            families[normalise_name(name)] = family
    return families


def find_family(attack: str) -> Family | None:
    """Return the family of an attack; None of one that did not come with the package."""
    families: dict[str, Family] = {}
    for family in FAMILIES:
        families |= dict.fromkeys(family.stems, family)
    stems = [stem for stem in families if attack.startswith(stem)]
    return families[max(stems, key=len)] if stems else None


def list_family_attacks(family: Family, names: Collection[str]) -> list[str]:
    return [name for name in names if find_family(name) is family]


def find_attack_names(name: str, names: Collection[str]) -> tuple[str, ...]:
    """Return those of all attacks' names that a name or pattern stands for, possibly none."""
    if name in names:
        return (name,)
    if "*" in name:
        return tuple(fnmatch.filter(names, name))
    key = normalise_name(name)
    family = _build_families_by_name().get(key)
    if family is not None:
        return family.default
    names_by_key = {
        normalise_name(attack.rpartition("_v")[0]): attack for attack in names
    }
    names_by_key |= {normalise_name(attack): attack for attack in names}
    return (names_by_key[key],) if key in names_by_key else ()


def suggest_names(name: str, names: Collection[str]) -> str:
    """Return the question which attacks or family may have been meant; "" if nothing is near."""
    families = _build_families_by_name()
    names_by_key = {normalise_name(attack): attack for attack in names}
    key = normalise_name(name)
    closest = get_close_matches(
        key, [*families, *names_by_key], n=1, cutoff=_LEAST_ALIKE
    )
    if not closest:
        return ""
    family = families.get(closest[0])
    if family is None:
        close_keys = get_close_matches(key, names_by_key, n=3)
        attacks = " or ".join(names_by_key[close_key] for close_key in close_keys)
        return f"did you mean {attacks}?"
    members = list_family_attacks(family, names)
    last = f" ... {members[-1]}" if len(members) > 1 else ""
    return f"did you mean the family {family.name} ({members[0]}{last})?"
