"""Documents of windows with their scores, and the roll-up of them, for tests."""

from __future__ import annotations

import polars as pl

from mia_batch.inference.rollup import rollup
from mia_batch.inference.verdicts import verdicts
from mia_batch.schemas import ExtractedDocuments, Rollup, Targets
from mia_batch.tables import check
from tests.frames import features, table, target_id
from tests.frames import samples as answers
from tests.unit.inference.scored import plan

PLAN = plan(level="group", windows_per_group=2)
WALKED = {"coverage": 0.25, "bmc_5": 0.5, "bmc_5_others": 0.125}


def document(name, *scores, role="target", n_windows=None, further=None, **columns):
    """Windows of one document with their scores."""
    return [
        {
            "role": role,
            "document_id": name,
            "window_index": index,
            "n_windows": n_windows or len(scores),
            "a_v1": score,
            "title": f"title of {name}",
            **columns,
        }
        for index, score in enumerate(scores)
    ]


def nulls(n=25, role="non_member", **columns):
    """Documents outside the training data, two windows each: 0.00, 0.01, 0.02, ..."""
    return [
        row
        for number in range(n)
        for row in document(
            f"n{number}", number / 50, number / 50 + 0.01, role=role, member=False, **columns
        )
    ]


def summed(
    *rows,
    samples=3,
    of_plan=PLAN,
    blind_warns=False,
    evidence=None,
    extracted=(),
    candidates=(),
    beside=False,
    columns=None,
    **closed,
):
    """The rollup of such windows, numbered in their order."""
    numbered = [{"target_id": target_id(number), **row} for number, row in enumerate(rows)]
    extra = {"a_v1": pl.Float64, "title": pl.String, "extraction_v1": pl.Float64}
    frame = table(Targets, numbered, n_words=100).with_columns(
        pl.Series(name, [row.get(name) for row in rows], dtype) for name, dtype in extra.items()
    )
    frame = frame.with_columns(**{k: pl.Series(v) for k, v in (columns or {}).items()})
    made = pl.concat(verdicts(frame.lazy(), ["a_v1"], of_plan, blind_warns=blind_warns))
    evidence = features() if evidence is None else evidence
    found = rollup(
        frame.drop("a_v1", "extraction_v1").lazy(),
        frame.lazy(),
        evidence.lazy(),
        made.lazy(),
        of_plan,
        extracted=table(ExtractedDocuments, list(extracted), **WALKED).lazy(),
        candidates=answers(*candidates).lazy(),
        samples=samples,
        words="whitespace",
        blind_warns=blind_warns,
        **closed,
    )
    check(found, Rollup, what="rollup")
    return found if beside else found.filter(pl.col("level") != "outside")


def said(number, sample, longest, near=0, **changed):
    return {
        "target_id": target_id(number),
        "sample_index": sample,
        "longest_block_words": longest,
        "near_verbatim_words": near,
        **changed,
    }
