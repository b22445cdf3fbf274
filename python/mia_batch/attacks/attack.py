"""An attack: a named Polars expression over the evidence rows of one target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import polars as pl

from mia_batch.errors import SchemaMismatchError, SettingsError

CONTINUATION = ("target", "continuation")
"""What attacks read that say nothing else."""
PROBE = ("target", "probe")
"""Points of a text: the words before each, and the next few."""
REFERENCE_PROBE = ("reference", "probe")
CHOICE = ("target", "choice")
"""Questions which of four passages is verbatim, and the labels that can be answered."""
NEXT_TOKEN = (PROBE, CHOICE)
"""Of which log-probabilities of the next token suffice."""
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


# What the formulas of several attacks have in common.


def among(pairs: Iterable[tuple[str, str]]) -> pl.Expr:
    """Whether a row is of one of these models and views."""
    return pl.any_horizontal(
        (pl.col("model") == model) & (pl.col("view") == view) for model, view in sorted(pairs)
    )


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


def share(part: str | pl.Expr, whole: str | pl.Expr) -> pl.Expr:
    """Share of one count in another, float64 in [0, 1]; 0 where both are 0."""
    parts = pl.col(part) if isinstance(part, str) else part
    wholes = pl.col(whole) if isinstance(whole, str) else whole
    return parts / wholes.clip(lower_bound=1)


def ngrams(words: str, n: int) -> pl.Expr:
    """Count the n-grams of a text of so many words; 0 or less where it is shorter than n."""
    return pl.col(words).cast(pl.Int64) - (n - 1)


AGGREGATES: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "": mean,
    "_max": pl.Expr.max,
    "_median": pl.Expr.median,
    "_min": pl.Expr.min,
}
"""Ways to make one number of a target's samples, by the ending of the attack's name."""


# Numbers of the tokens of a text, as expressions over the log-probabilities of one target.
#
# A refused text has null instead of lists, and a token that nothing precedes has null instead of a
# number; neither takes part in anything.


TEXT = ("target", "text")
LOWERCASE = ("target", "lowercase")
REPEATED = ("target", "repeated")
NEIGHBOUR = ("target", "neighbour")
PERTURBATION = ("target", "perturbation")
NONMEMBER_SHOTS = ("target", "nonmember_shots")
MEMBER_SHOTS = ("target", "member_shots")
EXTRACTION = ("target", "extraction")
REFERENCE_TEXT = ("reference", "text")
SELF_PROMPT_TEXT = ("self_prompt", "text")
CANDIDATE_TEXT = ("candidate", "text")

UNSCORED = "no token of the text has a log-probability"
"""Why an average over tokens can be null."""


def of_texts(
    name: str,
    expr: pl.Expr,
    formula: str,
    source: str,
    undefined: str = UNSCORED,
    *,
    reads: tuple[tuple[str, str], ...] = (TEXT,),
    settings: tuple[str, ...] = (),
) -> Attack:
    """Make an attack from log-probabilities.

    In formulas columns are of the text's tokens, ``loss`` is minus the mean of ``logprob`` over
    tokens, and ``loss(view)`` the same of another text.
    """
    return Attack(
        name=f"{name}_v1",
        expr=expr,
        formula=formula,
        source=source,
        undefined=undefined,
        evidence="logprobs",
        reads=reads,
        settings=settings,
    )


def _of(view: tuple[str, str]) -> pl.Expr:
    """Whether a row is of this model and view."""
    model, name = view
    return (pl.col("model") == model) & (pl.col("view") == name)


def first(column: str, view: tuple[str, str] = TEXT) -> pl.Expr:
    """Take a number that a text has once, such as ``n_bytes``."""
    return pl.col(column).filter(_of(view)).first()


def tokens(*columns: str, view: tuple[str, str] = TEXT) -> tuple[pl.Expr, ...]:
    """Numbers of a text's tokens, side by side in their order, as float64.

    A token that has no number has null.
    """
    there = _of(view) & pl.all_horizontal(pl.col(name).is_not_null() for name in columns)
    return tuple(pl.col(name).filter(there).explode().cast(pl.Float64) for name in columns)


def scored(column: str, view: tuple[str, str] = TEXT) -> pl.Expr:
    """Numbers of those tokens of a text that have a log-probability, else null; as float64."""
    logprob, number = tokens("logprob", column, view=view)
    return pl.when(logprob.is_not_null()).then(number)


def logprobs(view: tuple[str, str] = TEXT) -> pl.Expr:
    """Log-probabilities of a text's tokens, in nats, 0 or less; null where there is none."""
    return tokens("logprob", view=view)[0]


def average(view: tuple[str, str]) -> pl.Expr:
    """Mean log-probability of a text's tokens, in nats; 0 or less."""
    return mean(logprobs(view))


def averages(view: tuple[str, str], *where: pl.Expr) -> pl.Expr:
    """Mean log-probability of each of several texts, in nats; null where one has no tokens."""
    lists = pl.col("logprob").filter(_of(view), *where)
    n = lists.list.len() - lists.list.count_matches(None)
    return pl.when(n > 0).then(lists.cast(pl.List(pl.Float64)).list.sum() / n)


def cut_alike(*views: tuple[str, str]) -> pl.Expr:
    """Whether these texts, one of each model, have numbers and are the same tokens."""
    there = among(views) & pl.col("logprob").is_not_null()
    cuts = pl.col("token_ids").filter(there).drop_nulls()
    return (cuts.len() == len(views)) & (cuts.n_unique() == 1)


def n_lowest(term: pl.Expr, percent: int) -> pl.Expr:
    """How many numbers of a term make up a share of them: rounded down, and at least one."""
    return (term.count() * percent // 100).clip(lower_bound=1)


def lowest(term: pl.Expr, percent: int) -> pl.Expr:
    """Take the lowest numbers of a term, ascending, nulls left out."""
    return term.drop_nulls().sort().head(n_lowest(term, percent))


# Attacks that are learned: their scores are made from those of other attacks.


COMBINATION = "combination_v1"

LEARNED_ATTACKS = (
    Attack(
        name=COMBINATION,
        expr=pl.lit(None, pl.Float64),  # no expression over rows of one target can be learned
        evidence="scores",
        reads=(),
        formula=(
            "mean of the log-odds that a logistic regression and gradient-boosted trees give to "
            "all other scores of the text; learned from texts of other groups alone"
        ),
        source="cross-fitted by group; valid p-values: Marandon et al. 2024 (arXiv:2208.06685)",
        undefined=(
            "no other attack has a score of the text, or there are texts of fewer than 10 groups "
            "of each class to learn from"
        ),
    ),
)
