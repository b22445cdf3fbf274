"""An attack: a named Polars expression over the evidence rows of one target; and its family."""

import fnmatch
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import polars as pl

from mia_batch.errors import SchemaMismatchError, SettingsError
from mia_batch.views import find_view_type

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
CODEC = "codec_v1"
COMBINATION = "combination_v1"
_MOST_SAID = 400  # letters of an error of Polars
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
    reads: tuple[tuple[str, str], ...] = ()
    logprobs: tuple[tuple[str, str], ...] = ()
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
            usual = TEXT if self.evidence == "logprobs" else CONTINUATION
            object.__setattr__(self, "reads", (usual,))
        if CONTINUATION in self.reads_of("logprobs"):
            raise SettingsError(
                f"attack {self.name!r} reads log-probabilities of the view"
                " 'continuation', which is only sampled; the view of a text itself is"
                " ('target', 'text')"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Evidence columns that the expression reads, in alphabetical order."""
        return tuple(sorted(set(self.expr.meta.root_names())))

    def reads_of(self, kind: str) -> tuple[tuple[str, str], ...]:
        """Pairs of model and view that it reads of one kind of evidence, possibly none."""
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
        present = evidence.collect_schema()
        for column in self.columns:
            if column not in present:
                near = get_close_matches(column, present, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                views = ", ".join(
                    sorted({view for _, view in self.reads + self.logprobs})
                )
                known = ", ".join(
                    sorted(name for name in present if not name.endswith("_matched"))
                )
                raise SchemaMismatchError(
                    f"{self} reads the column {column!r}, which rows of the view"
                    f" {views} do not have; {hint}They have {known}"
                )
        try:
            one = (
                pl.LazyFrame(schema=present)
                .group_by(pl.lit(1))
                .agg(self.expr.alias(self.name))
            )
            made = one.collect().schema[self.name]
        except pl.exceptions.PolarsError as error:
            raise self.fault(error) from error
        if not (made.is_numeric() or made == pl.Boolean):
            how = "end its expression with cast(pl.Float64)"
            raise SchemaMismatchError(
                f"{self} makes values of type {made}, not numbers; {how}"
            )

    def fault(self, error: pl.exceptions.PolarsError) -> SchemaMismatchError:
        """Say what Polars said of the expression, and where it is written."""
        said = " ".join(str(error).split())
        return SchemaMismatchError(f"{self} cannot be computed: {said[:_MOST_SAID]}")

    def __str__(self) -> str:
        return f"attack {self.name!r}" + (f" ({self.defined})" if self.defined else "")


Formula = tuple[pl.Expr, str, str] | tuple[pl.Expr, str, str, str]
"""Expression, the same for people, where it is from, and why it can be null if not as others."""


def attacks_of(
    formulas: Mapping[str, Formula],
    undefined: str,
    **shared: Any,
) -> tuple[Attack, ...]:
    """Make attacks, by their names without a version, that share all but their formulas."""
    return tuple(
        Attack(
            name=f"{name}_v1",
            expr=expr,
            formula=formula,
            source=source,
            undefined=why[0] if why else undefined,
            **shared,
        )
        for name, (expr, formula, source, *why) in formulas.items()
    )


# What the formulas of attacks have in common.


def is_next_token(pair: tuple[str, str]) -> bool:
    """Return whether a model's view needs log-probabilities of the next token alone."""
    model, view = pair
    return model == "target" and find_view_type(view).reads_next_token


def is_of(view: tuple[str, str]) -> pl.Expr:
    model, name = view
    return (pl.col("model") == model) & (pl.col("view") == name)


def among(pairs: Iterable[tuple[str, str]]) -> pl.Expr:
    return pl.any_horizontal(is_of(pair) for pair in sorted(pairs))


def mean(term: pl.Expr) -> pl.Expr:
    """Mean of a term over candidates, tokens or texts, the same to the bit on every machine."""
    # Polars' ``mean()`` and ``sum()`` add in an order that depends on threads and
    # processor.
    n = term.count()
    return pl.when(n > 0).then(total(term) / n)


def total(term: pl.Expr) -> pl.Expr:
    """Sum of a term, 0 where nothing but nulls is there, the same to the bit likewise."""
    return term.drop_nulls().implode().list.sum()


# Families of attacks: short names, the names that papers use, and what each stands for.
# So ``min-k++``, ``Min-K%++`` and ``min_k_plus_plus_20`` all name
# ``min_k_plus_plus_20_v1``.

_LEAST_ALIKE = 0.7  # of names, for a question whether one was meant


class Family(NamedTuple):
    """Attacks of one idea: `papers` names them elsewhere, most usual first."""

    # ``stems`` are beginnings of its members' names; the longest stem of all families
    # decides. ``default`` are the members that the family's name stands for, by default
    # ``<stem>_v1``.

    name: str
    papers: tuple[str, ...]
    stems: tuple[str, ...]
    default: tuple[str, ...]


def _family(name: str, papers: str = "", stems: str = "", default: str = "") -> Family:
    own = stems or name.replace("-", "_")
    default = default or f"{own.partition(', ')[0]}_v1"
    return Family(
        name,
        *(tuple(filter(None, each.split(", "))) for each in (papers, own, default)),
    )


_TABLE = tomllib.loads(Path(__file__).with_name("families.toml").read_text("utf-8"))
FAMILIES, CHOICES = (
    tuple(_family(**each) for each in _TABLE["families"]),
    _TABLE["choices"],
)


def key_of(name: str) -> str:
    """Forgive case and punctuation, except that ``+`` makes another name."""
    return re.sub("[^a-z0-9]", "", name.lower().replace("+", "plus"))


@cache
def _by_key() -> dict[str, Family]:
    return {
        key_of(each): family
        for family in FAMILIES
        for each in (family.name, *family.papers)
    }


def family_of(attack: str) -> Family | None:
    """Find the family of an attack; None of one that did not come with the package."""
    stems = {stem: family for family in FAMILIES for stem in family.stems}
    fitting = max(filter(attack.startswith, stems), default="", key=len)
    return stems.get(fitting)


def members(family: Family, known: Collection[str]) -> list[str]:
    return [name for name in known if family_of(name) is family]


def meant(name: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the names of attacks that a name or pattern stands for; empty where none is known."""
    if name in known or "*" in name:
        return tuple(fnmatch.filter(known, name))
    if (family := _by_key().get(key := key_of(name))) is not None:
        return family.default
    alike = {key_of(each.rpartition("_v")[0]): each for each in known}
    alike |= {key_of(each): each for each in known}
    return (alike[key],) if key in alike else ()


def suggestion(name: str, known: Collection[str]) -> str:
    """Ask which attacks or family may have been meant; "" if nothing is near."""
    attacks = {key_of(each): each for each in known}
    near = get_close_matches(
        key_of(name), [*_by_key(), *attacks], n=1, cutoff=_LEAST_ALIKE
    )
    if not near:
        return ""
    if (family := _by_key().get(near[0])) is None:
        close = get_close_matches(key_of(name), attacks, n=3)
        return f"did you mean {' or '.join(attacks[each] for each in close)}?"
    first, *others = members(family, known)
    last = f" ... {others[-1]}" if others else ""
    return f"did you mean the family {family.name} ({first}{last})?"
