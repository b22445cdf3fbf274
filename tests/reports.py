"""Small contents of reports: a run of three books, plain or hostile."""

from typing import Any

import polars as pl

from mia_batch import schemas
from mia_batch.report.html import Contents
from tests.frames import features, samples, table, target_id, targets

ATTACK = "samia_matched_v1"
HOSTILE = (
    '<script>window.hacked = 1</script><img src="http://example.invalid/x">"\' {{ 7 *'
    " 7 }}"
)
TURNED = "left \u202eright\u202c \x00\x07\x1b[31m\u200b \ufeff end"
LONG = "x" * 1_000_000


def contents(
    *, keys: tuple[str, ...] = ("dune", "emma", "ulysses"), text: str = ""
) -> Contents:
    """Tables of three books of two windows; ``text`` stands in every text that is foreign."""
    return Contents(
        manifest=manifest(text),
        tables={name: frame.lazy() for name, frame in tables(keys, text).items()},
        answer=f"Of 3 groups, 1 stands out.{text}",
        conclusions=[f"1 of 3 groups are reported at q = 0.05.{text}"],
        primary=ATTACK,
        command=f"mia-batch --input books{text}",
        meanings={"scores": "One row per target."},
    )


def manifest(text: str = "") -> dict[str, Any]:
    source = {"name": f"small-model{text}", "revision": None, "digest": "ab" * 32}
    return {
        "evidence": {"engine": "vllm", "seed": 7, "temperature": 1.0, "top_k": 50},
        "models": {"target": {"source": source}},
        "settings": {"window_words": 128, "chat_instruction": None},
        "input": {"files": [f"books/dune.txt{text}"], "n_documents": 3},
        "targets": {"total": 6, f"too short{text}": 1},
        "plan": {"primary": ATTACK, "q": 0.05, "null_set": f"written in 2026{text}"},
        "made": {
            "scores": {"attacks": [ATTACK, "loss_v1"], "samples": {"continuation": 2}}
        },
        "failed": {"targets": 1, "of": 6, "reasons": {f"timed out{text}": 1}},
        "versions": {"python": "3.11.7"},
    }


def tables(keys: tuple[str, ...], text: str) -> dict[str, pl.DataFrame]:
    asked = targets(
        *(
            {
                "document_id": key,
                "window_index": index,
                "n_windows": 2,
                "start": 700 * index,
                "target": f"It was the best of times{text}, it was the worst of times",
                "prefix": f"It was the best{text}",
                "reference": f" of times{text}, it was the worst of times",
            }
            for key in keys
            for index in range(2)
        )
    )
    ids = asked["target_id"].to_list()
    scored = pl.DataFrame(
        {ATTACK: [0.9, 0.1, 0.3, None, 0.2, 0.4], "loss_v1": [-1.0] * 6}
    )
    return {
        "targets": asked,
        "scores": asked.select("target_id", "role", "document_id").hstack(scored),
        "unscored": table(
            schemas.Unscored,
            [{"target_id": ids[3], "attack": ATTACK, "reason": "failed"}],
        ),
        "samples": samples(
            *[[f" of thyme{text}", f" said: it was the worst of {text}"]] * 6
        ),
        "features": features(*({"target_id": key, "sample_index": 1} for key in ids)),
        "prompts": schemas.Prompts.create_empty(),
        "rollup": rollup(keys, text),
        "curves": table(schemas.Curves, curve_rows(keys), attack=ATTACK, n=2),
        "findings": table(schemas.Findings, finding_rows(text)),
        "metrics": table(
            schemas.Metrics, metric_rows(text), attack=ATTACK, slice="all"
        ),
        "verdicts": schemas.Verdicts.create_empty(),
    }


def rollup(keys: tuple[str, ...], text: str) -> pl.DataFrame:
    of_all = {
        "attack": ATTACK,
        "level": "document",
        "n_windows": 2,
        "n_asked": 2,
        "n_scored": 2,
    }
    numbers: list[dict[str, Any]] = [
        {
            "verdict": "comes_out",
            "longest_words": 31,
            "longest_target_id": target_id(0),
        },
        {"verdict": "known_better", "longest_words": 4, "q_value": 0.7},
        {"verdict": "cannot_tell", "reason": f"nothing to compare with{text}"},
    ]
    rows = [{"key": key} | each for key, each in zip(keys, numbers, strict=True)]
    made = table(
        schemas.Rollup,
        rows,
        **of_all,
        mean=0.5,
        mean_low=0.4,
        mean_high=0.6,
        share_verbatim=0.5,
    )
    made = made.with_columns(longest_sample_index=pl.lit(1, pl.UInt32))
    return made.with_columns(title=pl.lit(f"A title{text}"), author=None)


def curve_rows(keys: tuple[str, ...]) -> list[dict[str, Any]]:
    points = [(0.0, 0.0), (0.01, 0.2), (0.1, 0.5), (1.0, 1.0)]
    bins = [(0.25, 0.4), (0.5, 0.6)]
    grown = [(1.0, 0.6), (2.0, 0.7), (3.0, 0.75)]
    strip = [(0.0, 0.97), (0.5, None)]
    return [
        *({"curve": "roc", "x": x, "y": y} for x, y in points),
        *({"curve": "growth", "subject": "samples", "x": x, "y": y} for x, y in grown),
        *(
            {"curve": "distribution", "subject": "targets", "x": x, "y": y}
            for x, y in bins
        ),
        *(
            {"curve": "strip", "subject": key, "x": x, "y": y}
            for key in keys
            for x, y in strip
        ),
    ]


def finding_rows(text: str) -> list[dict[str, Any]]:
    power = {"check": "power", "subject": "group", "statistic": "n_null", "value": 38.0}
    plan = {"check": "plan", "subject": ATTACK, "statistic": "n_changed", "value": 0.0}
    return [power, plan | {"verdict": "as_planned", "reason": text or None}]


def metric_rows(text: str) -> list[dict[str, Any]]:
    counts = {"n_members": 3, "n_nonmembers": 3, "n_unscored": 0}
    area = {"metric": "roc_auc", "value": 0.75, "low": 0.7501, "high": 0.7502}
    return [area | counts | {"reason": text or None}]
