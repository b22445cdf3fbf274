"""Prints and draws the table of ``benches.power``.

python -m benches.power_report
"""

from __future__ import annotations

from math import log2
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import polars as pl

from mia_batch.settings import Settings

TABLE = Path(__file__).parent / "results" / "power.parquet"
DEFAULT = "probe_leading_rarity_v1"
"""Of words, as it was when the table was measured."""
DEFAULT_WAY = {
    "probes": Settings.model_fields["probes"].default,
    "probe_words": Settings.model_fields["probe_words"].default,
    "samples": None,
}
WAYS = ["probes", "probe_words", "samples"]
RIVAL = "samia_matched_v1"
DRAWN = {
    DEFAULT: "probes",
    "probe_first_word_v1": "probes, first word unweighed",
    RIVAL: "SaMIA, length-matched",
    "samia_matched_n2_v1": "SaMIA, length-matched, N = 2",
    "samia_v1": "SaMIA",
    "rouge_l_v1": "ROUGE-L",
    "ngram_coverage_v1": "n-gram coverage",
    "min_k_20_v1": "Min-K% (log-probabilities)",
}
COLOURS = [
    "#d62728",
    "#ff9896",
    "#1f77b4",
    "#17becf",
    "#9467bd",
    "#8c564b",
    "#2ca02c",
    "#999999",
]


def times_until(rows: pl.DataFrame, auc: float) -> float | None:
    """Times seen at which the AUC is reached, between two rungs by their logarithm."""
    before = (0.5, 0.5)  # AUC of chance at half a time
    for times, found in rows.sort("times").select("times", "auc").iter_rows():
        if found >= auc:
            low_times, low = before
            share = (auc - low) / max(found - low, 1e-9)
            return float(
                2 ** (log2(low_times) + max(share, 0) * log2(times / low_times))
            )
        before = (times, found)
    return None


def usual(table: pl.DataFrame) -> pl.DataFrame:
    """Rows of each attack as it is usually asked: probes by default, others with all samples."""
    default = pl.all_horizontal(
        pl.col(name).eq_missing(way) for name, way in DEFAULT_WAY.items()
    )
    most = pl.col("samples").eq_missing(pl.col("samples").max().over("model", "attack"))
    return table.filter(
        pl.when(pl.col("probes").is_null()).then(most).otherwise(default)
    )


def summary(table: pl.DataFrame) -> pl.DataFrame:
    """One line an attack: times seen until AUC 0.75, its tokens, and the default's lead.

    ``tokens_09_at_16`` are the fewest decoded tokens a text of all ways of asking that reach AUC
    0.9 at 16 times seen.
    """
    lines = []
    for (model, attack), rows in usual(table).group_by(
        "model", "attack", maintain_order=True
    ):
        every = table.filter(model=model, attack=attack, times=16)
        line = {"model": model, "attack": attack, "times_075": times_until(rows, 0.75)}
        line |= rows.select("decoded", "prompted").row(0, named=True)
        line["tokens_09_at_16"] = every.filter(pl.col("auc") >= 0.9)["decoded"].min()
        for times in (8, 16, 32):
            at = rows.row(by_predicate=pl.col("times") == times, named=True)
            line[f"auc_{times}"] = at["auc"]
            lead = (
                f"{at['difference']:+.2f} ({at['low'] or 0:+.2f} to"
                f" {at['high'] or 0:+.2f})"
            )
            line[f"lead_{times}"] = None if attack == DEFAULT else lead
        lines.append(line)
    return pl.DataFrame(lines, infer_schema_length=None)


def ways(table: pl.DataFrame) -> pl.DataFrame:
    """One line a way of asking at points: how far the default attack comes for its tokens.

    ``share`` is times seen until AUC 0.75 over those of the length-matched attack: the
    geometric mean over so many models, and the largest. Where 32 times are too few, 64
    are assumed.
    """
    rivals = usual(table).filter(attack=RIVAL)
    needed = {
        model: times_until(rows, 0.75) for (model,), rows in rivals.group_by("model")
    }
    lines = []
    asked = table.filter(pl.col("probes").is_not_null(), attack=DEFAULT)
    for way, rows in asked.group_by(WAYS, maintain_order=True):
        shares = [
            (times_until(some, 0.75) or 64) / (needed[model] or 64)
            for (model,), some in rows.group_by("model", maintain_order=True)
        ]
        line: dict[str, Any] = dict(zip(WAYS, way, strict=True))
        line |= rows.select(pl.col("decoded", "prompted").mean()).row(0, named=True)
        aucs = rows.group_by("times").agg(pl.col("auc").mean())
        line |= {
            f"auc_{times}": aucs.filter(times=times)["auc"].item()
            for times in (2, 4, 8, 16)
        }
        line["models"] = len(shares)
        lines.append(
            line | {"share": geometric_mean(shares), "largest_share": max(shares)}
        )
    return pl.DataFrame(lines, infer_schema_length=None).sort("decoded")


def draw(table: pl.DataFrame, path: Path) -> None:
    """Draw AUC by times seen, and by decoded tokens at 8 times seen, a column per model."""
    import altair as alt

    named = table.filter(pl.col("attack").is_in([*DRAWN])).with_columns(
        pl.col("attack").replace(DRAWN),
        pl.col("model").str.replace_all("_", " "),
        pl.col("auc", "decoded").round(3),
    )
    models = named["model"].unique(maintain_order=True).to_list()
    greedy = pl.col("samples").is_null() & (pl.col("probe_words") == 1)
    at_8 = named.filter(
        greedy | pl.col("probes").is_null(), pl.col("decoded") > 0, times=8
    )
    scale = alt.Scale(domain=[*DRAWN.values()], range=COLOURS)
    legend = alt.Legend(
        title=None, orient="top", columns=3, columnPadding=40, labelLimit=300
    )

    def row(rows: pl.DataFrame, x: str, title: str) -> alt.HConcatChart:
        charts = [
            alt.Chart(rows.filter(model=model).select("attack", "auc", x), title=model)
            .mark_line(point=alt.OverlayMarkDef(size=14), strokeWidth=1.5)
            .encode(
                alt.X(
                    x,
                    type="quantitative",
                    title=title,
                    scale=alt.Scale(type="log", base=2),
                ),
                alt.Y(
                    "auc:Q", title="AUC", scale=alt.Scale(domain=[0.4, 1.0], clamp=True)
                ),
                alt.Color("attack:N", scale=scale, legend=legend),
            )
            .properties(width=170, height=150)
            for model in models
        ]
        return alt.hconcat(*charts)

    both = alt.vconcat(
        row(usual(named), "times", "times seen"),
        row(at_8, "decoded", "tokens, at 8 times seen"),
    )
    both.configure(aria=False).configure_axisX(grid=False).save(path)


def report(table: pl.DataFrame) -> dict[str, Any]:
    """Print and draw what the table says; give it as rows."""
    found = {"summary": summary(table), "ways": ways(table)}
    with pl.Config(tbl_rows=-1, tbl_cols=-1, tbl_width_chars=200, float_precision=2):
        for rows in found.values():
            print(rows)
    draw(table, TABLE.with_suffix(".svg"))
    return {name: rows.to_dicts() for name, rows in found.items()}


if __name__ == "__main__":
    report(pl.read_parquet(TABLE))
