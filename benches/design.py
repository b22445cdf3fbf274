"""Whether audits find what ``mia-batch plan`` says, at 1,000 audits a design.

Every audit is of a table of scores: books of eight windows whose scores share a part,
so that the mean of a book has standard deviation 1, through the tests of a real audit
at level ``group``.

    python -m benches.design
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
from benches.results import append_results

from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.power import Design, simulate
from mia_batch.inference.sets import few_books_findings
from mia_batch.inference.verdicts import verdicts

AUDITS, WINDOWS, SHARED = 1_000, 8, 0.3  # the windows of a book correlate by 0.3
CELLS = (  # asked, members, effect, comparison books
    (27, 10, 2.33, 160),
    (50, 10, 5.0, 100),
    (10, 5, 1.5, 25),
    (30, 0, 0.0, 100),
)
PLAN = DecisionRule(primary="a_v1", level="group", null_set="made up")


def made_up(
    rng: np.random.Generator, asked: int, members: int, effect: float, n: int
) -> pl.DataFrame:
    """Draw the scores of one audit."""
    of_books = rng.standard_normal(asked + n) * SHARED**0.5
    of_windows = rng.standard_normal((asked + n, WINDOWS)) * (1 - SHARED) ** 0.5
    spread = (SHARED + (1 - SHARED) / WINDOWS) ** 0.5
    scores = (of_books[:, None] + of_windows) / spread
    scores[:members] += effect
    book = pl.Series(range(asked + n)).repeat_by(WINDOWS).list.explode()
    is_asked = book < asked
    return pl.DataFrame({"a_v1": scores.ravel()}).with_columns(
        target_id=pl.int_range(pl.len()).cast(pl.String),
        role=is_asked.replace_strict({True: "target", False: "non_member"}),
        document_id=book.cast(pl.String),
        group=book.cast(pl.String).str.zfill(4),
        member=pl.lit(None, pl.Boolean),
        window_index=pl.int_range(pl.len()) % WINDOWS,
        n_words=pl.lit(100, pl.UInt32),
    )


def audit(table: pl.DataFrame, members: int) -> tuple[float, ...]:
    """Named members, whether any is, the list's false share, the bound, the collection's p."""
    rows = pl.concat(verdicts(table.lazy(), ["a_v1"], PLAN)).filter(
        versus="non_members"
    )
    listed = rows.filter(pl.col("q_value") <= PLAN.q, level="group")["key"].cast(
        pl.Int64
    )
    named = int((listed < members).sum())
    found = few_books_findings(table.lazy(), ["a_v1"], PLAN, None)
    bound = found.filter(check="top", statistic="at_least")["value"].item()
    p = rows.filter(pl.col("estimate").is_null(), level="collection")["p_value"].item()
    return (
        named,
        named > 0,
        (len(listed) - named) / max(1, len(listed)),
        bound,
        p <= 0.05,
    )


def main() -> None:
    lines = []
    for asked, members, effect, n in CELLS:
        began, rng = time.monotonic(), np.random.default_rng(1)
        made = [
            audit(made_up(rng, asked, members, effect, n), members)
            for _ in range(AUDITS)
        ]
        means, errors = np.mean(made, axis=0), np.std(made, axis=0) / AUDITS**0.5
        names = ("named", "any_named", "false", "at_least", "together")
        line: dict[str, Any] = {
            "asked": asked,
            "members": members,
            "effect": effect,
            "n_null": n,
        }
        line["audits"] = AUDITS
        line["found"] = dict(zip(names, means.round(4).tolist(), strict=True))
        line["found"]["at_least"] = float(np.median([each[3] for each in made]))
        line["share_bound_false"] = float(np.mean([each[3] > members for each in made]))
        line["error"] = dict(zip(names, errors.round(4).tolist(), strict=True))
        if members:
            design = Design(n_units=asked, members=members, effect=effect)
            line["planned"] = simulate(design, n)._asdict()
        lines.append(line)
        print(f"{time.monotonic() - began:.0f} s", line, flush=True)
    append_results("design", {"plan": asdict(PLAN)["level"], "designs": lines})


if __name__ == "__main__":
    main()
