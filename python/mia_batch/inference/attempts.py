"""Answers that count all attempts at the same texts: the best looks too good."""

from dataclasses import dataclass

import polars as pl

from mia_batch.inference.findings import DecisionRule, reported_findings
from mia_batch.inference.known_share import KNOWN_SHARE, SHARES, VERBATIM_SHARE

_BOUNDS = (
    "withheld: it holds for one attempt alone, and there were {} at these texts with"
    " this model"
)


@dataclass(frozen=True, slots=True)
class Attempts:
    """So many attempts at one question: runs of the same texts and model, this one among them.

    Who tries until something is found stops at the first success, so Bonferroni's
    factor n is not enough: errors add up to q (1 + 1/2 + ... + 1/n). A level q g(n) for
    attempt n, with the sum of g at most 1, keeps q however long one goes on: Foster and
    Stine 2008, *Journal of the Royal Statistical Society B* 70, 429-444, section 2
    ("alpha-spending"). Here g(n) = 1 / (n (n + 1)), but the first attempt, of which
    nobody knows that others follow, keeps all of q. So all together err with a rate of
    at most 1.5 q (`benches.trying` measures less).
    """

    n: int

    @property
    def factor(self) -> int:
        """What p-values and q-values are multiplied by."""
        return 1 if self.n == 1 else self.n * (self.n + 1)

    @property
    def why_withheld(self) -> str:
        return _BOUNDS.format(self.n)

    def verdicts(self, verdicts: pl.LazyFrame) -> pl.LazyFrame:
        """Multiply p-values and q-values, and withhold estimates."""
        if self.n == 1:
            return verdicts
        is_estimate = pl.col("estimate").is_not_null()
        limits = pl.col("value", "low", "high")
        return verdicts.with_columns(
            pl.when(~is_estimate).then(limits),
            p_value=self._multiplied("p_value"),
            q_value=self._multiplied("q_value"),
            sensitivity_bound=pl.lit(None, pl.Float64),
            reason=self._reason_where(is_estimate, "reason"),
        )

    def rollup(self, rollup: pl.LazyFrame, q: float) -> pl.LazyFrame:
        """Do the same for documents and groups, whose lists become shorter."""
        if self.n == 1:
            return rollup
        names = ("contamination", "contamination_low", "contamination_high")
        is_withheld = pl.any_horizontal(pl.col(names).is_not_null())
        q_value = self._multiplied("q_value")
        stays_listed = (q_value <= q).fill_null(value=False)
        is_listed = pl.col("verdict").cast(pl.String) == "known_better"
        verdict_type = rollup.collect_schema()["verdict"]
        nothing_found = pl.lit("nothing_found").cast(verdict_type)
        return rollup.with_columns(
            *(pl.lit(None, pl.Float64).alias(name) for name in names),
            p_value=self._multiplied("p_value"),
            q_value=q_value,
            contamination_reason=self._reason_where(
                is_withheld, "contamination_reason"
            ),
            verdict=pl.when(is_listed & ~stays_listed)
            .then(nothing_found)
            .otherwise("verdict"),
        )

    def findings(
        self,
        findings: pl.DataFrame,
        verdicts: pl.LazyFrame,
        rule: DecisionRule,
    ) -> pl.DataFrame:
        """Count the list anew from corrected ``verdicts``; withhold the bound on members."""
        if self.n == 1:
            return findings
        is_reported = pl.col("check") == "reported"
        tables = [findings.filter(~is_reported)]
        if findings.filter(is_reported).height:
            tables.append(reported_findings(verdicts, rule))
        is_test = pl.col("check").is_in(["max_t", "dataset_inference"])
        p_value = self._multiplied("p_value")
        is_bound = (pl.col("check") == "top") & (pl.col("statistic") == "at_least")
        is_share = pl.col("check").is_in([KNOWN_SHARE, VERBATIM_SHARE])
        is_share &= pl.col("statistic").is_in(SHARES)
        return pl.concat(tables).with_columns(
            pl.when(~is_share).then(pl.col("low", "high", "verdict")),
            p_value=pl.when(is_test).then(p_value).otherwise("p_value"),
            value=pl.when(~(is_bound | is_share)).then("value"),
            reason=self._reason_where(is_bound | is_share, "reason"),
        )

    def _multiplied(self, name: str) -> pl.Expr:
        return (pl.col(name) * self.factor).clip(upper_bound=1.0)

    def _reason_where(self, is_withheld: pl.Expr, column: str) -> pl.Expr:
        reason = pl.lit(self.why_withheld)
        return pl.when(is_withheld).then(reason).otherwise(column)
