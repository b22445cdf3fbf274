"""Figures of the benches, from their tables in ``benches/results``."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from benches import power_report

from docs.generate.markdown import code, table

__all__ = [
    "answers",
    "books",
    "choices",
    "copies",
    "coverage",
    "drawing",
    "draws",
    "few_books",
    "manuals",
    "passes",
    "points",
    "power",
    "power_picture",
    "rates",
    "recited",
    "rl",
    "row_levels",
    "row_order",
    "strips",
    "tuned",
    "weights",
]

_RESULTS = power_report.TABLE.parent

_WEIGHTED = ("equal", "known", "weighted")
_PLANTED = (1, 2, 4, 8, 16, 32, 64)
_ACCESS = {
    "one pass": (
        "all log-probabilities of the text, one pass",
        "min_k_plus_plus_20_v1",
    ),
    "reference model": (
        "the text under it and a reference model, two passes",
        "ez_mia_v1",
    ),
    "swapped words": ("the text and five with swapped words, six passes", "pac_v1"),
    "next words": (
        "the next word's log-probability, at 128 points",
        "probe_centred_v1",
    ),
    "probes": ("the next word alone, at 32 points", "probe_leading_rarity_v1"),
    "continuations": ("ten sampled continuations", "samia_matched_v1"),
}
_TEXT_ALONE = {
    "next tokens, nudge 5, less expected": (
        "next tokens, where `logit_bias` is honoured"
    ),
    "next tokens, nudge 0, less expected": "next tokens, text alone",
}
_SHOWN = (
    *(
        *power_report.DRAWN,
        "samia_matched_rarity_v1",
        "petal_v1",
        "min_k_plus_plus_20_v1",
    ),
    *("gap_k_20_v1", "pdr_min_k_plus_plus_20_v1", "aeca_v1", "pac_v1"),
)


def power_picture() -> str:
    """Draw AUC by times seen and by decoded tokens, as SVG."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "power.svg"
        power_report.draw(_power(), path)
        return path.read_text()


def power() -> str:
    """Say how strong the attacks are: a table for each model."""
    lines = power_report.summary(_power()).filter(pl.col("attack").is_in(_SHOWN))
    heads = ("attack", "decoded", "times seen", "AUC at 8")
    parts = []
    for (model,), rows in lines.group_by("model", maintain_order=True):
        shown = table(
            (*heads, "lead at 8", "lead at 16"),
            map(_strength, rows.iter_rows(named=True)),
        )
        parts.append(f"**{code(str(model))}**\n\n{shown}")
    return "\n".join(parts)


def _strength(line: dict[str, Any]) -> tuple[str, ...]:
    times = "never" if line["times_075"] is None else f"{line['times_075']:.1f}"
    leads = ((line[f"lead_{rung}"] or "").replace(" ", "&nbsp;") for rung in (8, 16))
    return (
        code(line["attack"]),
        f"{line['decoded']:.0f}",
        times,
        f"{line['auc_8']:.2f}",
        *leads,
    )


def passes() -> str:
    """Say how strong attacks on log-probabilities are on the small models, by times seen."""
    lines = map(json.loads, (_RESULTS / "power.jsonl").read_text("utf-8").splitlines())
    costs = {
        model: rows for line in lines for model, rows in line.get("costs", {}).items()
    }
    known = pl.concat(map(pl.DataFrame, costs.values())).group_by("attack").mean()
    is_faint = pl.col("model") == "faint"
    seen = {"": (~is_faint, (1, 2, 4, 8)), "`faint`, ": (is_faint, (4, 8, 16, 32))}
    aucs = [
        pl.col("auc").filter(whose, times=times).mean().alias(f"{name}{times}")
        for name, (whose, every) in seen.items()
        for times in every
    ]
    found = _power().join(known, on="attack").group_by("attack", "seconds").agg(aucs)
    found = found.sort("4", descending=True)
    heads = [each.meta.output_name() for each in aucs]
    rows = []
    for row in found.iter_rows(named=True):
        cells = (f"{row[head]:.2f}" for head in heads)
        rows.append((code(row["attack"]), *cells, f"{row['seconds']:.2f}"))
    return table(("attack", *heads, "seconds"), rows)


def _on_manuals() -> dict[str, list[dict[str, Any]]]:
    """Rows of ``benches.manuals`` by way of asking, the latest of each attack and file of texts."""
    lines = (_RESULTS / "manuals.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
    for line in map(json.loads, lines):
        rows = {(row["texts"], row["attack"]): row for row in line["rows"]}
        found.setdefault(line["way"], {}).update(rows)
    return {way: [*rows.values()] for way, rows in found.items()}


def manuals() -> str:
    """Say how strong every attack is on windows of the model whose training text is known."""
    rows = [
        row
        for found in _on_manuals().values()
        for row in found
        if row["texts"] == "windows"
    ]
    lines = sorted(map(_planted, rows), key=lambda cells: cells[6], reverse=True)
    heads = (*map(str, _PLANTED), "TPR at 1 %, 16 copies", "tokens", "seconds")
    return table(("attack", "windows", *heads), lines)


def _planted(row: dict[str, Any]) -> tuple[str, ...]:
    found = [row["copies"].get(str(copies)) for copies in _PLANTED]
    aucs = (
        each and f"{each['auc']:.2f} ({each['low']:.2f} to {each['high']:.2f})"
        for each in found
    )
    tpr, tokens = row["copies"]["16"]["tpr_1"], row["tokens"]
    windows = (
        sum(at["members"] for at in row["copies"].values())
        + row["copies"]["16"]["others"]
    )
    costs = ("" if tokens is None else f"{tokens:.0f}", f"{row['seconds']:.2f}")
    return (
        code(row["attack"]),
        f"{windows:,}",
        *(each or "" for each in aucs),
        *("" if tpr is None else f"{tpr:.2f}", *costs),
    )


def copies() -> str:
    """Say how often a text must have been seen for each kind of access to find it."""
    lines = []
    for way, rows in _on_manuals().items():
        access, attack = _ACCESS[way]
        (row,) = (
            row for row in rows if (row["texts"], row["attack"]) == ("windows", attack)
        )
        curve = pl.DataFrame(
            [(int(times), at["auc"]) for times, at in row["copies"].items()],
            {"times": pl.Int64, "auc": pl.Float64},
            orient="row",
        )
        lines.append((access, code(attack), *_needed(curve)))
    for line in _latest("blackbox", "ways")["ways"]:
        if line["way"] in _TEXT_ALONE:
            aucs = [(int(name), auc) for name, auc in line.items() if name.isdecimal()]
            curve = pl.DataFrame(
                aucs, {"times": pl.Int64, "auc": pl.Float64}, orient="row"
            )
            attack = code("token_hits_less_expected_v1")
            lines.append((_TEXT_ALONE[line["way"]], attack, *_needed(curve)))
    return table(
        ("what the model gives", "attack", "copies for AUC 0.75", "for 0.9"), lines
    )


def _needed(curve: pl.DataFrame) -> list[str]:
    until = [power_report.times_until(curve, auc) for auc in (0.75, 0.9)]
    return ["more than 64" if each is None else f"{each:.0f}" for each in until]


def points() -> str:
    """Say what so many points of the smallest model give."""
    heads = (
        "points",
        "words at each",
        "answers",
        "decoded",
        "prompted",
        "AUC at 4",
        "AUC at 8",
    )
    lines = power_report.ways(_power().filter(model="small"))
    few = lines.filter(pl.col("samples").is_null() | (pl.col("samples") == 5))
    return table((*heads, "share"), map(_way, few.iter_rows(named=True)))


def _way(line: dict[str, Any]) -> tuple[str, ...]:
    answers = f"{line['samples']} drawn" if line["samples"] else "greedy"
    numbers = (f"{line[name]:,.0f}" for name in ("decoded", "prompted"))
    aucs = (f"{line[name]:.2f}" for name in ("auc_4", "auc_8"))
    counts = (str(line["probes"]), str(line["probe_words"]))
    return *counts, answers, *numbers, *aucs, f"{line['share']:.2f}"


def _power() -> pl.DataFrame:
    return pl.read_parquet(power_report.TABLE)


def coverage() -> str:
    """Say how often 95 % intervals of metrics cover the true figure, as last measured."""
    rows = _latest("interval_coverage")["cases"]
    covered = (
        "no interval" if row["coverage"] is None else f"{row['coverage']:.1%}"
        for row in rows
    )
    cells = (
        (row["case"], row["promise"], each)
        for row, each in zip(rows, covered, strict=True)
    )
    return table(("case", "wanted", "covered"), cells)


def draws() -> str:
    """Say how often the share of a drawn corpus is covered, and how widely, as last measured."""
    rows = _latest("draws")["cases"]
    shares = sorted({row["share"] for row in rows})
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(_describe_draw(row), []).append(row)
    cells = []
    for case, of_case in cases.items():
        in_order = sorted(of_case, key=lambda row: float(row["share"]))
        covered = (
            f"{row['coverage']:.1%} ({100 * row['mean_width']:.1f})" for row in in_order
        )
        holds = sum(row["bound_holds"] for row in of_case) / len(of_case)
        cells.append((case, *covered, f"{holds:.1%}"))
    heads = [f"{100 * share:g} %" for share in shares]
    return table(("case", *heads, "bound"), cells)


def _describe_draw(row: dict[str, Any]) -> str:
    facts = [f"{row['n_drawn']:,} drawn"]
    if row["n_sources"] > 1:
        facts = [f"{row['n_drawn']:,} of each of {row['n_sources']} sources"]
    facts.append(f"{row['n_null']:,} to compare")
    facts.append(f"{row['n_calibration']:,} of each label")
    facts.append(f"members {row['shift']:g} higher")
    facts += ["heavy tails"] * (row["tails"] == "t")
    facts += [f"{row['unasked']:.0%} too short"] * (row["unasked"] > 0)
    facts += ["groups of 5"] * row["grouped"]
    return ", ".join(facts)


def drawing() -> str:
    """Say what drawing of a large corpus took, as last measured."""
    rows = _latest("draws")["reading"]
    cells = [
        (
            row["kind"],
            "by source" if row["by_source"] else "of all",
            f"{row['documents']:,}",
            f"{row['drawn']:,}",
            f"{row['seconds']:,.0f}",
            f"{row['peak_mb']:,}",
        )
        for row in rows
    ]
    return table(("files", "drawn", "documents", "drawn", "seconds", "MB"), cells)


def rates() -> str:
    """Say how often p-values, lists, intervals and bounds are right or wrong, as last measured."""
    rows = _latest("p_value_calibration")["figures"]
    cells = ((row["case"], row["wanted"], f"{row['rate']:.3f}") for row in rows)
    return table(("case", "wanted", "measured"), cells)


def few_books() -> str:
    """Say how often what few books allow is wrong, and what it finds, a table for each part."""
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in _latest("few_books")["figures"]:
        part, _, case = row["case"].partition(", ")
        parts.setdefault(part, []).append(row | {"case": case})
    shown = []
    for rows in parts.values():
        heads = [name.replace("_", " ") for name in rows[0]]
        cells = (
            (row["case"], *(f"{row[name]:.3f}" for name in row if name != "case"))
            for row in rows
        )
        shown.append(table(heads, cells))
    return "\n".join(shown)


def weights() -> str:
    """Say what weighted non-members hold and find in simulations, as last measured."""
    names = [f"{by}_{what}" for what in ("p", "false", "found") for by in _WEIGHTED]
    heads = [
        f"{what}, {by}" for what in ("p <= 0.05", "list", "found") for by in _WEIGHTED
    ]
    lines = (
        (
            *(row["case"], f"{row['used']:.2f}", f"{row['n_effective']:.0f}"),
            *(f"{row[name]:.3f}" if name in row else "" for name in names),
        )
        for row in _latest("weights")["figures"]
    )
    return table(("case", "used", "effective", *heads), lines)


def books() -> str:
    """Say what audits of parts of books reported, and what their intervals covered."""
    lines = _latest("book_audit")["splits"]
    heads = ("asked", "seen", "nulls", "calibration", "reported", "false", "at most")
    covered = ("rate covers", "bound covers", "windows cover")
    return table((*heads, *covered), map(_split, lines))


def _split(line: dict[str, Any]) -> tuple[str, ...]:
    known = "2 x {calibration}" if line["calibration"] else ""
    counts = (str(line["members"] + line["others"]), "{members}", "{nulls}", known)
    shares = ("{right:.1f}", "{false_share:.1%} ± {standard_error:.1%}", "{most:.2%}")
    covers = (
        line.get(f"{method}_covers")
        for method in ("fieller", "beta_binomial", "windows")
    )
    said = (cell.format(**line) for cell in (*counts, *shares))
    return *said, *("" if share is None else f"{share:.0%}" for share in covers)


def strips() -> str:
    """Draw the strips of the audited books over what the model saw."""
    lines = "\n".join(_latest("book_audit")["strips"]["picture"])
    return f"```text\n{lines}\n```"


_REAL = {
    "smollm2": "SmolLM2 135M, Q4_1",
    "gemma": "Gemma 3 270M, Q4_K_M",
    "manuals-47m": "manuals-47m",
}


def _read_real(part: str, key: str) -> dict[Any, dict[str, Any]]:
    """Return the latest rows of a part of ``benches.real`` by model, or by epochs."""
    lines = (_RESULTS / "real.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["part"] == part]
    return {row[key]: row for row in rows}


def choices() -> str:
    """Say how many windows with long runs each attack would have had continued."""
    heads = []
    cells: dict[str, list[str]] = {}
    for name, row in _read_real("choice", "model").items():
        for least, n_windows in row["with_runs_of"].items():
            if not n_windows:
                continue
            heads.append(f"{_REAL[name]}, {least} words: {n_windows} windows")
            for counts in row["attacks"]:
                at = ", ".join(map(str, counts["as_continued"][least]))
                cells.setdefault(counts["attack"], []).append(at)
    return table(
        ("attack", *heads), ([code(name), *row] for name, row in cells.items())
    )


def recited() -> str:
    """Say of each text how many of its windows come out of each real model."""
    rows = []
    for name, measured in _read_real("choice", "model").items():
        for row in measured["documents"]:
            counts = (row["come_out"], row["windows"], row["longest_words"])
            rows.append((_REAL[name], row["document_id"], *map(str, counts)))
    return table(
        ("model", "text", "come out", "of windows", "longest run, words"), rows
    )


def tuned() -> str:
    """Say what each attack finds after so many epochs on a real base."""
    measured = _read_real("tuned", "epochs")
    cells: dict[str, list[str]] = {}
    for epochs in sorted(measured):
        for row in measured[epochs]["aucs"]:
            cell = f"{row['auc']:.2f} ({row['low']:.2f} to {row['high']:.2f})"
            cells.setdefault(row["attack"], []).append(cell)
    heads = [f"{n} epoch" if n == 1 else f"{n} epochs" for n in sorted(measured)]
    return table(
        ("attack", *heads), ([code(name), *row] for name, row in cells.items())
    )


def answers() -> str:
    """Say what each attack finds of answers, by their tokens and by all of a conversation."""
    measured = _read_real("chat", "epochs")
    heads = []
    cells: dict[str, list[str]] = {}
    for epochs in sorted(measured):
        for tokens, areas in measured[epochs]["aucs"].items():
            heads.append(f"{epochs} x, {tokens}")
            for attack, (area, low, high) in areas.items():
                cell = f"{area:.2f} ({low:.2f} to {high:.2f})"
                cells.setdefault(attack, []).append(cell)
    return table(
        ("attack", *heads), ([code(name), *row] for name, row in cells.items())
    )


_RL_NAMES = {"own_answer_entropy": "answer_entropy_v1"}  # before it was an attack


def rl() -> str:
    """Say what attacks find after so many steps of training by reinforcement."""
    lines = (_RESULTS / "rl.jsonl").read_text(encoding="utf-8").splitlines()
    by_steps = {row["steps"]: row for row in map(json.loads, lines)}
    rows = [by_steps[steps] for steps in sorted(by_steps)]
    cells: dict[str, list[str]] = {}
    for row in rows:
        for share in row["right"]:
            if share["view"] == "first_answer":
                problems = "rewarded problems" if share["member"] else "other problems"
                name = f"{problems} that are answered rightly"
                cells.setdefault(name, []).append(f"{share['right']:.0%}")
        for attack, area in row["aucs"].items():
            name = code(_RL_NAMES.get(attack, attack))
            cell = f"{area['auc']:.2f} ({area['low']:.2f} to {area['high']:.2f})"
            cells.setdefault(name, []).append(cell)
    heads = [f"{row['steps']} steps" for row in rows]
    return table(("", *heads), ([name, *row] for name, row in cells.items()))


_TRAINED = {
    "before": "nothing of the list",
    "shuffled": "16 times, each time in another order",
}


def row_order() -> str:
    """Say at how many copies the order of a list shows, by its rows."""
    lines = (_RESULTS / "row_order.jsonl").read_text(encoding="utf-8").splitlines()
    measured: dict[Any, dict[int, dict[str, Any]]] = {}
    for row in map(json.loads, lines):
        n_copies = row["copies"] * (row["trained"] == "ordered")
        key = row["model"], row["list"], n_copies, row["trained"], row["form"]
        measured.setdefault(key, {})[row["rows"]] = row
    cells = []
    for (model, number, copies, trained, form), by_rows in sorted(measured.items()):
        times = "once" if copies == 1 else f"{copies} times"
        if form == "other":
            times += ", asked in another form"
        p_values = [f"{by_rows[n]['median_p']:.2g}" for n in (200, 100, 50)]
        learnt = _TRAINED.get(trained, times)
        n_pieces = len(by_rows[50]["p_values"])
        n_found = f"{by_rows[50]['n_found']} of {n_pieces}"
        cells.append((model, str(number + 1), learnt, *p_values, n_found))
    heads = ("model", "list", "learnt", "p, 200 rows", "100 rows", "50 rows")
    return table((*heads, "of 50 rows, p <= 0.01"), cells)


_ROWS = {
    "independent": "independent",
    "alike": "with a common factor, by set and by shard",
    "wild": "independent, with heavy tails",
    "series, then shuffled": "a time series, shuffled before publication",
    "series": "**a time series in its order**",
}


def row_levels() -> str:
    """Say how often sets that nobody has seen are found, by level and kind of rows."""
    path = _RESULTS / "row_order_levels.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = {row["kind"]: row for row in map(json.loads, lines)}
    levels = next(iter(rows.values()))["levels"]
    cells = []
    for kind, name in _ROWS.items():
        rates = [f"{rate:.2%}" for rate in rows[kind]["rates"]]
        refused = [f"{share:.1%}" for share in rows[kind]["refused"].values()]
        cells.append((name, *rates, *refused))
    heads = [f"found at {level:.2%}" for level in levels]
    sizes = [f"refused, {n} rows" for n in rows["series"]["refused"]]
    return table(("rows", *heads, *sizes), cells)


def _latest(bench: str, figure: str = "taken") -> dict[str, Any]:
    lines = (_RESULTS / f"{bench}.jsonl").read_text(encoding="utf-8").splitlines()
    found: list[dict[str, Any]] = [
        each for each in map(json.loads, lines) if figure in each
    ]
    return found[-1]
