"""An attack: a named Polars expression over the evidence rows of one target."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import polars as pl

from mia_batch.errors import SchemaMismatchError, SettingsError

CONTINUATION = ("target", "continuation")
"""What attacks read that say nothing else."""
PROBE = ("target", "probe")
"""Points of a text: the words before each, and the next few."""
REFERENCE_PROBE = ("reference", "probe")
TEXT = ("target", "text")
LOWERCASE = ("target", "lowercase")
REFERENCE_TEXT = ("reference", "text")
CHOICE = ("target", "choice")
"""Questions which of four passages is verbatim, and the labels that can be answered."""
NEXT_TOKEN = (PROBE, CHOICE)
"""Of which log-probabilities of the next token suffice."""
CODEC = "codec_v1"
COMBINATION = "combination_v1"
_NAME = re.compile(r"[a-z][a-z0-9_]*_v[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A membership score, written as a Polars expression.

    The expression aggregates the evidence rows of one target to one number, and **a higher score
    always means "more likely a member"**. Null means unscored.

    Attributes
    ----------
    name
        Unique lower-case name with a version, such as ``"samia_v1"``; it never changes meaning.
    expr
        Aggregating expression over evidence columns. It sees those rows of one target that
        ``reads`` names, in the order of ``model``, ``view``, ``view_index`` and ``sample_index``;
        samples only where there is a candidate. One that reads ``model`` and ``view`` picks its
        rows itself: it may see those of other attacks, too. Shadow models are one model
        ``shadow``, told apart by ``view_index``.
    source
        Where the formula is defined: paper, equation, and where the authors' code differs.
    undefined
        Why the score can be null although there is evidence, as a short sentence.
    evidence
        What it needs: ``samples`` (sampled continuations), ``logprobs`` (log-probabilities of
        the tokens of given texts), or ``scores`` of the run's other attacks, from which it is
        learned; ``expr`` says nothing then.
    whole_candidates
        True where candidates must be decoded to their end, not only to the reference's length.
    reads
        The rows that it reads: pairs of ``model`` and ``view``.
    logprobs
        For one on samples: pairs whose rows of the logprobs table it sees, too. Rows of both tables
        come one after the other; columns of the other table are null, and those of the same
        prompt follow each other, log-probabilities first.
    least
        The share, in [0, 1], of what it reads that must be there, else the score is null: an answer
        that was refused, filtered or too long is left out.
    formula
        The expression on one line, for people; without it the expression itself is shown.
    settings
        Names of the settings that it cannot do without; of names joined by ``|`` one will do.

    Raises
    ------
    SettingsError
        If the name has no version or other letters than a-z, digits and ``_``, or if the expression
        gives more than one value per target or calls a Python function.

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
    reads: tuple[tuple[str, str], ...] = (CONTINUATION,)
    logprobs: tuple[tuple[str, str], ...] = ()
    settings: tuple[str, ...] = ()
    least: float = 0.5
    formula: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SettingsError(
                f"attack {self.name!r} needs a lower-case name of letters, digits and _ that ends "
                "with a version, such as mine_v1"
            )
        try:
            is_scalar = self.expr.meta.is_scalar()
        except pl.exceptions.PolarsError as error:
            raise SettingsError(
                f"attack {self.name!r} calls a Python function; write it with Polars' own "
                "expressions only"
            ) from error
        if not is_scalar:
            raise SettingsError(
                f"attack {self.name!r} must aggregate to one value per target; "
                "end its expression with mean(), max(), first() or the like"
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
        """Its evidence, as setting ``evidence`` asks for it.

        Log-probabilities of next tokens alone are ``probe-logprobs``.
        """
        at_points = self.evidence == "logprobs" and {*self.reads} <= {*NEXT_TOKEN}
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
        present = evidence.collect_schema().names()
        missing = [column for column in self.columns if column not in present]
        if missing:
            raise SchemaMismatchError(
                f"attack {self.name!r} needs the columns {missing}, "
                f"but the evidence table has {present}; leave the attack out or make them"
            )
        made = evidence.select(self.expr.alias(self.name)).collect_schema()[self.name]
        if not (made.is_numeric() or made == pl.Boolean):
            raise SchemaMismatchError(
                f"attack {self.name!r} makes values of type {made}, not numbers; "
                "end its expression with cast(pl.Float64)"
            )


# What the formulas of attacks have in common.


def is_of(view: tuple[str, str]) -> pl.Expr:
    """Whether a row is of this model and view."""
    model, name = view
    return (pl.col("model") == model) & (pl.col("view") == name)


def among(pairs: Iterable[tuple[str, str]]) -> pl.Expr:
    """Whether a row is of one of these models and views."""
    return pl.any_horizontal(is_of(pair) for pair in sorted(pairs))


def mean(term: pl.Expr) -> pl.Expr:
    """Mean of a term over candidates, tokens or texts, the same to the bit on every machine.

    Nulls are left out; where nothing is left, the mean is null.

    The sum of a list adds its items one by one in float64, in their order. Polars' ``mean()`` and
    ``sum()`` add in an order that depends on threads and processor.
    """
    n = term.count()
    return pl.when(n > 0).then(total(term) / n)


def total(term: pl.Expr) -> pl.Expr:
    """Sum of a term, 0 where nothing but nulls is there, the same to the bit likewise."""
    return term.drop_nulls().implode().list.sum()
