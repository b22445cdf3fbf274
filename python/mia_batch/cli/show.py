"""What is shown to people: attacks, a plan, a run, its passages by number, comparisons."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from itertools import groupby
from typing import Any

import polars as pl
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mia_batch.attacks import Attack, get, names
from mia_batch.attacks.attack import FAMILIES, family_of, members
from mia_batch.cli.options import cut, figure, fitted_table, limits, plain, table_of
from mia_batch.diagnostics.preflight import count_reasons
from mia_batch.errors import SettingsError
from mia_batch.evidence.request import Budget, DecodeScope
from mia_batch.inference.memory import VERBATIM_WORDS
from mia_batch.kernels import pair_features
from mia_batch.known import NamedSet
from mia_batch.pipeline import Run, results
from mia_batch.pipeline.custody import Verification
from mia_batch.pipeline.request import list_columns_needed
from mia_batch.pipeline.stages.extraction import find_verbatim_runs
from mia_batch.places import is_url
from mia_batch.report import sentences
from mia_batch.report.answer import shade_strip
from mia_batch.report.sentences import dress_sentences, known_sentence, list_names
from mia_batch.settings import Settings, load_settings, stored_settings
from mia_batch.views import SHADOW, build_view

_MOST_ROWS = 20
_WIDTH_OF_COSTS = 100
_LEAST_WIDTH = 80  # tables are made for; a narrower terminal breaks their lines


def show_attacks(names: Iterable[str], console: Console) -> None:
    names = [*names]
    rows = [("family", "in papers", "asks a text", "stands for", "needs")]
    for family in FAMILIES:
        first, n = family.default[0], len(members(family, names))
        stands = first if n == 1 else f"{len(family.default)} of {n}: {first}"
        asked, needed = _cost(get(first))
        rows.append((family.name, "".join(family.papers[:1]), asked, stands, needed))
    for name in (name for name in names if family_of(name) is None):
        asked, needed = _cost(get(name))
        rows.append((name, "", asked, name, needed))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        console.print(plain("  ".join(cells).rstrip()), soft_wrap=True)
    console.print(
        "\n--attacks takes families, names in papers and full names: --attacks"
        " min-k++,ReCaLL\nmia-batch attacks min-k shows what else is in a family, and"
        " the formula and its source."
    )


def _cost(attack: Attack) -> tuple[str, str]:
    """Say what an attack asks about a text at the default settings, and what it needs."""
    settings = load_settings({"input": "-", "model": "-"}, use_config=False)
    asked: dict[str, int] = {}
    for kind in ("samples", "logprobs"):
        for model, view in attack.reads_of(kind):
            question = build_view(settings, model, view)
            unit = question.type.answer_unit if kind == "samples" else "passes"
            unit = "by each shadow model" if model == SHADOW else unit
            asked[unit] = asked.get(unit, 0) + question.n * question.samples
    counts = (
        f"{n} {'pass' if (n, unit) == (1, 'passes') else unit}"
        for unit, n in asked.items()
    )
    wanted = (names.replace("_", "-").split("|") for names in attack.settings)
    flags = (" or ".join(f"--{name}" for name in names) for names in wanted)
    return " + ".join(counts) or "nothing", ", ".join((needs(attack), *flags))


def show_sets(sets: Iterable[NamedSet], console: Console) -> None:
    for title, family in groupby(sets, lambda each: each.title):
        console.print(plain(title), style="bold", soft_wrap=True)
        console.print(
            Padding(plain(", ".join(each.name for each in family)), (0, 0, 0, 2))
        )
    console.print(
        "\nmia-batch datasets NAME shows where one is, its licence and its labels."
    )


def show_set(named: NamedSet, console: Console) -> None:
    facts = {
        name: each for name, each in asdict(named).items() if name != "unknown" and each
    }
    facts |= {
        name: f"unknown: {why}"
        for name, why in named.unknown.items()
        if name not in facts
    }
    for name, each in facts.items():
        shown = (
            ", ".join(f"{k} = {v}" for k, v in each.items())
            if isinstance(each, dict)
            else each
        )
        console.print(plain(f"{name.replace('_', ' '):16}  {shown}"), soft_wrap=True)
    console.print(
        "\nTo use it:", plain(f"mia-batch audit --dataset {named.name} --model MODEL")
    )


def show_attack(attack: Attack, console: Console) -> None:
    reads = ", ".join(f"{view} by the {model} model" for model, view in attack.reads)
    asked, needed = _cost(attack)
    facts = {"attack": attack.name}
    if (family := family_of(attack.name)) is not None:
        facts["family"] = f"{family.name}, which stands for {', '.join(family.default)}"
        facts["in papers"] = ", ".join(family.papers)
        others = (each for each in members(family, names()) if each != attack.name)
        facts["others"] = ", ".join(others)
    facts |= {
        "source": attack.source,
        "needs": needed,
        "asks": f"{asked} a text",
        "costs": _decoding(attack),
        "reads": reads and f"{reads}; columns {', '.join(attack.columns)}",
        "null": f"where less than {attack.least:.0%} came back, or {attack.undefined}",
        "higher": "more likely a member",
        "formula": attack.formula or str(attack.expr),
    }
    _print_whole(table_of(rows=(fact for fact in facts.items() if fact[1])), console)


def _decoding(attack: Attack) -> str:
    """Say what decoding whole answers costs next to answers cut to the true text's length."""
    if not attack.whole_candidates:
        return ""
    scopes: tuple[DecodeScope, ...] = ("whole", "matched")
    budgets = (
        Budget(scope=scope, max_length=1024, max_model_len=1024) for scope in scopes
    )
    whole, cut = (10 * budget.first(100, 100) for budget in budgets)
    return (
        f"about {whole:,} tokens to decode for a text of 200 tokens (10 answers to"
        f" 1,024 tokens each, prompt included); samia_matched_v1 about {cut:,}"
    )


def _print_whole(table: Table | str, console: Console) -> None:
    """Print a table of which no column may be lost, however narrow the terminal is."""
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table)


def needs(attack: Attack) -> str:
    """Name the evidence of an attack, or the access to the model that it takes."""
    if attack.evidence == "scores":
        return "scores"
    if attack.evidence == "samples":
        named = "whole samples" if attack.whole_candidates else "samples"
        return f"{named} and log-probabilities" if attack.logprobs else named
    return "full distribution" if list_columns_needed([attack]) else "log-probabilities"


def show_plan(
    plan: Iterable[tuple[str, str]], settings: Settings, console: Console
) -> None:
    given = [
        (name, " ".join(values) or "yes")
        for name, values in results.changed_settings(settings)
    ]
    if settings.out is None:
        given.append(("--out", str(settings.place)))
    last = ("", "All other settings have their defaults; run.json will name them.")
    console.print(table_of(rows=[*plan, (), *given, last]))


def show_run(run: Run, console: Console) -> None:
    manifest = run.manifest
    settings = stored_settings(manifest.settings)
    console.print(plain(results.answer_of(run)), style="bold")
    console.print()
    width = max(console.width, _LEAST_WIDTH)
    books, attacks = results.books_of(run), results.attacks_of(run)
    if attacks.height:
        _print_whole(_attack_table(attacks, width), console)
        counts = run["metrics"].row(0, named=True)
        low, high = attacks.select("tpr_1_low", "tpr_1_high").row(0)
        sure = (
            ""
            if low is None
            else f"first TPR@1%: 95 % interval {low:.2f} to {high:.2f}; "
        )
        console.print(
            f"{counts['n_members']:,} members, {counts['n_nonmembers']:,} non-members."
            f" {sure}lead: AUC less that of the best classifier that never sees the"
            " model; tokens, seconds: a text; -: the data cannot support the figure,"
            " reasons in metrics.parquet."
        )
    elif books.height:
        _print_whole(_book_table(books, width), console)
    else:
        show_passages(run, console)
    console.print()
    lines = [*sentences(results.known_of(run)), *_missing(run)]
    if root := manifest.custody.get("root"):
        lines.append(f"root of inputs and tables: {root}")
    where = (
        f"{settings.out}, copied to {run.folder}"
        if is_url(settings.out)
        else run.folder
    )
    for line in (*lines, f"scores, metrics and evidence: {where}"):
        console.print(plain(line))
    if settings.report:
        console.print(plain(f"report: {run.folder / results.REPORT}"), soft_wrap=True)


def _missing(run: Run) -> Iterator[str]:
    """Say what has no samples or no score, with the reasons, the most frequent first."""
    without = {
        (n, why, ""): ["samples"] for why, n in run.manifest.failed["reasons"].items()
    }
    for attack in run.manifest.made["scores"]["attacks"]:
        for why, n in count_reasons(run.scan("unscored").filter(attack=attack)).items():
            without.setdefault((n, why, "a score of "), []).append(attack)
    for (n, why, of), lack in sorted(without.items(), key=lambda each: -each[0][0]):
        yield (
            f"{n:,} {'text' if n == 1 else 'texts'} without {of}{list_names(lack, 2)}:"
            f" {why}"
        )
    if short := run["scores"]["n_short"].sum():
        yield f"{short:,} answer{'s' * (short > 1)} ended before the true text's length"


def _attack_table(attacks: pl.DataFrame, width: int) -> Table:
    """One row per attack, the best first; the last is the best that never sees the model."""
    blind, own = attacks.filter("is_blind"), attacks.filter(~pl.col("is_blind"))
    rows = pl.concat([own.head(_MOST_ROWS), blind.head(1)])
    costs = {"tokens": "{:,.0f}", "seconds": "{:.2g}"}  # a recording has none
    costs = {name: form for name, form in costs.items() if rows[name].count()}
    costs = costs if width >= _WIDTH_OF_COSTS else {}
    lines = (
        (
            *(
                f"{row['attack']}{' (later)' * row['is_later']}",
                figure(row["auc"]),
                limits(row),
            ),
            *(figure(row[name]) for name in ("tpr_1", "tpr_01", "lead")),
            *(_in_form(row[name], form) for name, form in costs.items()),
        )
        for row in rows.iter_rows(named=True)
    )
    numbers = ("TPR@1%", "TPR@0.1%", "lead", *costs)
    headings, right = ("attack", "AUC", "95 % interval", *numbers), ("AUC", *numbers)
    more = _more("metrics.parquet", {"attacks": own.height - _MOST_ROWS})
    return table_of(*headings, right=right, rows=lines, **more)


def _more(table: str, not_shown: Mapping[str, int]) -> dict[str, Any]:
    more = " and ".join(f"{n:,} more {what}" for what, n in not_shown.items() if n > 0)
    return {
        "caption": f"{more} in {table}" if more else None,
        "caption_justify": "left",
    }


_VERDICT_STYLES = {"comes_out": "red", "known_better": "magenta", "above_all": "yellow"}
_MOST_COMPARED = 3


def _book_table(books: pl.DataFrame, width: int) -> Table:
    """One row per book, strongest evidence first, then the highest comparison; titles are cut."""
    own = books.filter(pl.col("level") != "outside")
    others = books.filter(pl.col("strip").is_not_null(), level="outside")
    compared = others.head(_MOST_COMPARED).with_columns(answer=pl.lit("comparison"))
    shown = pl.concat([own.head(_MOST_ROWS), compared])
    rest = {
        "audited": own.height - _MOST_ROWS,
        "for comparison": others.height - _MOST_COMPARED,
    }
    rows = [
        {
            "title": row["title"],
            "first to last page": shade_strip(row["strip"]),
            "answer": row["answer"],
            "longest run": _in_form(row["longest_words"], "{:,}"),
            "share learnt": _share_of(row),
            "p": _in_form(row["p_value"]),
            "q": _in_form(row["q_value"]),
        }
        for row in shown.iter_rows(named=True)
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    kept = {name: cells for name, cells in columns.items() if not {*cells} <= {"", "-"}}
    how = {"right": ("longest run", "p", "q"), **_more("rollup.parquet", rest)}
    styles = [_VERDICT_STYLES.get(verdict, "") for verdict in shown["verdict"]]
    return fitted_table(kept, next(iter(kept)), width, styles, **how)


def _in_form(value: float | None, form: str = "{:.2g}") -> str:
    return "-" if value is None else form.format(value)


def _share_of(row: Mapping[str, Any]) -> str:
    if row["share"] is None:
        return f"at least {row['share_low']:.0%}" if row["share_low"] else "-"
    if row["share_low"] is None:
        return f"{row['share']:.0%}"
    return f"{row['share']:.0%} ({row['share_low']:.0%} to {row['share_high']:.0%})"


_MOST_SHOWN = 4000  # characters of one text
_ROUND_A_DIFFERENCE = 60  # characters
_MARKS = ("⟦", "⟧")
_LINE_END = re.compile("\r?\n")


def show_checked(checked: Verification, console: Console) -> None:
    faults = [f"{fault}: {name}" for name, fault in checked.faults]
    for line in (
        *faults,
        *(f"not found, not checked: {name}" for name in checked.not_found),
    ):
        console.print(plain(line), soft_wrap=True)
    if checked.not_found:
        console.print("say where these inputs lie by now with --input PATH")
    if not checked.faults:
        console.print(f"{checked.n_files:,} files are as they were")
        console.print(f"root of inputs and tables: {checked.root}")


def show_lodged(digest: str, differences: Sequence[str], console: Console) -> bool:
    """Say whether a run is the one that was planned, or each difference."""
    of = f"the plan lodged (SHA-256 {digest})"
    console.print(
        plain(f"{'different from' if differences else 'equal to'} {of}"), soft_wrap=True
    )
    for each in differences:
        console.print(plain(f"  {each}"), soft_wrap=True)
    return not differences


def show_agreement(drawn: pl.DataFrame, console: Console) -> bool:
    differing = drawn.filter(pl.col("candidate").ne_missing(pl.col("again")))
    n_same = drawn.height - differing.height
    console.print(f"drawn again: {n_same:,} of {drawn.height:,} samples agree")
    if differing.is_empty():
        return True
    row = differing.row(0, named=True)
    console.print(plain(f"first difference: target {row['target_id']}, {_name(row)}"))
    for name, column in (("stored", "candidate"), ("drawn again", "again")):
        console.print(plain(f"  {name:11}  {_excerpt(row, column)}"), soft_wrap=True)
    console.print(
        "A CPU in float32 draws the same to the bit, a GPU only the same on average."
    )
    return False


def _name(row: dict[str, Any]) -> str:
    return f"{row['view']} {row['view_index']}, sample {row['sample_index']}"


def _excerpt(row: dict[str, Any], column: str) -> str:
    if row[column] is None:
        return "none"
    one, other = row["candidate"] or "", row["again"] or ""
    pairs = enumerate(zip(one, other, strict=False))
    first = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, first - _ROUND_A_DIFFERENCE)
    return (
        f"from character {start:,}:"
        f" {row[column][start : first + _ROUND_A_DIFFERENCE]!r}"
    )


def show_passages(run: Run, console: Console) -> None:
    table = passage_table(run, max(console.width, _LEAST_WIDTH))
    _print_whole(table, console)
    if isinstance(table, str):
        return
    for sentence in dress_sentences(run["findings"]):
        console.print(plain(sentence), soft_wrap=True)
    if not run.manifest.custody:
        console.print(
            "The run was stopped before its end; the audit's command again goes on."
        )
    more = 'so does a document with its window, such as "moby_dick window 12".'
    shows = f"mia-batch show {run.folder} NUMBER shows one next to the true text"
    console.print(plain(f"{shows}; {more}"), soft_wrap=True)


def show_target(run: Run, target: pl.DataFrame, console: Console) -> None:
    row = target.row(0, named=True)
    end = None if row["start"] is None else row["start"] + len(row["target"])
    about = {
        "target": row["target_id"],
        "document": row["document_id"],
        "group": row["group"],
        "chapter": row.get("window_chapter"),
        "window": f"{row['window_index'] + 1:,} of {row['n_windows']:,}",
        "characters": (
            None if end is None else f"{row['start']:,} to {end:,} of the document"
        ),
        "role": row["role"],
        "member": row["member"],
        "not sampled": row["reason"],
    }
    own = pl.col("target_id") == row["target_id"]
    attacks = run.manifest.made["scores"]["attacks"]
    scores = run.scan("scores").filter(own).select(attacks).collect(engine="streaming")
    about |= scores.row(0, named=True) if scores.height else {}
    unscored = run.scan("unscored").filter(own).collect(engine="streaming")
    reasons = unscored.select(
        "attack", pl.lit("no score: ") + pl.col("reason")
    ).iter_rows()
    for name, (label, say) in _TOLD.items():
        if run.path(name).exists():
            found = run.scan(name).filter(own).collect(engine="streaming").to_dicts()
            about |= dict(zip([label], map(say, found), strict=False))
    _print_pairs(about | dict(reasons), console)


def _bounds_said(row: Mapping[str, Any]) -> str:
    if row["reason"] is not None:
        return f"no bounds: {row['reason']}"
    near = f"{row['within']} of {row['n_tokens']} tokens ({row['distance']})"
    likely = f"likely at most {row['likely_upper']:.3g}"
    return f"within {near}: {row['lower']:.3g} to {row['upper']:.3g}, {likely}"


_TOLD = {
    "known": ("known corpus", known_sentence),
    "bounds": ("comes near", _bounds_said),
}


def _print_pairs(pairs: Mapping[str, object], console: Console) -> None:
    there = ((name, value) for name, value in pairs.items() if value is not None)
    rows = (
        (name, f"{each:.4g}" if type(each) is float else each) for name, each in there
    )
    console.print(table_of(rows=rows))


def show_answers(
    answers: pl.DataFrame, target: pl.DataFrame, run: Run, console: Console
) -> None:
    words = run.manifest.evidence["word_rule"]
    pairs = pair_features(
        "candidate", "text", words=words, groups=["blocks", "leading"]
    )
    recorded = run.manifest.evidence["engine"] == "replay"
    seed = pl.format("seed {}", "seed").fill_null(
        "recorded" if recorded else "most likely"
    )
    is_token, nudge = pl.col("view") == "token", run.manifest.evidence.get("nudge")
    how = (
        pl.when(is_token, pl.lit(bool(nudge)))
        .then(pl.lit(f"nudged {nudge} nats"))
        .otherwise(seed)
    )
    hit = pl.when(is_token).then(pl.col("candidate") == pl.col("text"))
    compared = answers.with_columns(pairs, how=how).unnest("features")
    compared = compared.with_columns(hit=hit.otherwise(pl.col("leading_words") > 0))
    for (model, view), rows in compared.group_by("model", "view", maintain_order=True):
        console.print(f"\n{view}, {model} model", style="bold")
        if view in ("token", "probe"):
            _show_probes(rows, target.row(0, named=True), console)
        else:
            _show_continuations(rows, console)
    if answers.is_empty():
        console.print("\nno samples were drawn of it")


def _show_probes(rows: pl.DataFrame, target: dict[str, Any], console: Console) -> None:
    table = table_of("character", "true word", "model's word", "hit", "sample", "how")
    for row in rows.sort("cut", "sample_index").iter_rows(named=True):
        at = target["start"] + len(
            target["target"].encode()[: row["cut"] or 0].decode()
        )
        said = (
            row["reason"] if row["candidate"] is None else _beginning(row["candidate"])
        )
        hit, true = "yes" if row["hit"] else "no", _beginning(row["text"] or "")
        table.add_row(
            *map(plain, (f"{at:,}", true, said, hit, row["sample_index"], row["how"]))
        )
    console.print(table)


def _show_continuations(rows: pl.DataFrame, console: Console) -> None:
    prefix = ""
    for row in rows.iter_rows(named=True):
        if row["context"] != prefix:
            prefix = row["context"]
            _print_pairs({"prefix": _end(prefix or "")}, console)
        if row["candidate"] is None:
            console.print(plain(f"{_name(row)}, {row['how']}: {row['reason']}"))
            continue
        start, length = row["longest_block_chars_start"], row["longest_block_chars"]
        run = row["text"][start : start + length] if row["longest_block_words"] else ""
        shared = f"{row['longest_block_words']:,} words, {len(run):,} characters"
        found = f"longest shared run: {shared}" if run else "no word is shared"
        console.print(plain(f"{_name(row)}, {row['how']}; {found}"))
        table = table_of("true continuation", "model", expand=True)
        for column in table.columns:
            column.ratio = 1
        table.add_row(_marked(row["text"], run), _marked(row["candidate"], run))
        console.print(table)
        if row["raw"] is not None:
            console.print(plain(f"as it came: {_beginning(row['raw'])}"))


def _marked(text: str, run: str) -> Text:
    """Mark the shared run, with signs that stay where there are no colours."""
    if not run:
        return plain(_beginning(text))
    before, run, after = text.partition(run)
    marked = plain(_MARKS[0] + _beginning(run) + _MARKS[1])
    marked.stylize("bold")
    return plain(_end(before)) + marked + plain(_beginning(after))


def _beginning(text: str) -> str:
    more = len(text) - _MOST_SHOWN
    shown = _LINE_END.sub("↵", text[:_MOST_SHOWN])
    return f"{shown}… ({more:,} more characters)" if more > 0 else shown


def _end(text: str) -> str:
    more = len(text) - _MOST_SHOWN
    shown = _LINE_END.sub("↵", text[-_MOST_SHOWN:])
    return f"({more:,} characters before) …{shown}" if more > 0 else shown


_MOST_DOCUMENTS = 10  # shown, the smallest p-values first
_FIGURES = {
    "roc_auc": "AUC",
    "roc_auc_difference": "difference of AUC",
    "mean_difference": "mean difference of scores",
    "removed_share": "share removed",
    "rank_correlation": "rank correlation with the first",
    "rank_correlation_difference": "never saw, less learnt",
}


def show_comparisons(table: pl.DataFrame, console: Console) -> None:
    first = table["versus"].drop_nulls()[0]
    console.print(plain(f"{table['attack'][0]}: differences are each run less {first}"))
    sets = table.filter(level="set")
    console.print(_table(sets.iter_rows(named=True), "set", "set"))
    for row in sets.filter(pl.col("reason").is_not_null()).iter_rows(named=True):
        run, figure, about, *_ = _cells(row, "set")
        console.print(
            plain(f"{figure}, {run}, {about}: {row['reason']}"), soft_wrap=True
        )
    for level in ("document", "group"):
        rows = table.filter(level=level)
        if rows.is_empty():
            continue
        shown = rows.sort("p_value", nulls_last=True, maintain_order=True).head(
            _MOST_DOCUMENTS
        )
        n_known = rows.filter(pl.col("adjusted_p") <= 0.05).height
        known = f"{n_known:,} of {rows.height:,} differences"
        console.print(f"{level}s: {known} have a q-value of at most 0.05")
        console.print(_table(shown.iter_rows(named=True), level, "key"))


def _table(rows: Iterable[dict[str, Any]], about: str, column: str) -> Table:
    numbers = ("value", "95 % interval", "p", "adjusted", "texts")
    cells = (_cells(row, column) for row in rows)
    return table_of("run", "figure", about, *numbers, right=numbers, rows=cells)


def _cells(row: dict[str, Any], column: str) -> list[str]:
    about = row[column].replace("_", "-") if column == "set" else row[column]
    return [
        *(
            row["run"],
            _FIGURES[row["statistic"]],
            about,
            figure(row["value"]),
            limits(row),
        ),
        *(
            _in_form(row["p_value"]),
            _in_form(row["adjusted_p"]),
            f"{row['n_targets']:,}",
        ),
    ]


# The strongest passages of a run, numbered, and the one that a reader names.

SHOWN = 10
_NAME_SHOWN = 24
_LONGEST_NUMBER = 6  # digits; more are the beginning of a target_id
_MOST_NAMES = 10_000  # names among which a near one is looked for
_NAMED = 5  # of several in a message
_WINDOW = re.compile(
    r"(?P<name>.+?)[\s,:]+window\s+(?P<number>[1-9][\d,]*)", re.IGNORECASE
)


def attack_of(run: Run) -> str:
    if "scores" not in run.manifest.made:
        run.refuse("has no scores yet")
    attacks = run.manifest.made["scores"]["attacks"]
    primary: str = (run.manifest.plan or {}).get("primary", attacks[0])
    return primary if primary in attacks else attacks[0]


def strongest(run: Run, n: int) -> pl.DataFrame:
    """Rank the passages that were asked about: long verbatim runs, then scores, then identifiers.

    The first ``n``, which is the order of their numbers in `passage_table` and
    `find_target`.
    """
    attack = attack_of(run)
    longest = pl.lit(None, pl.UInt32)
    ranked = run.scan("scores").select(
        *("target_id", "role", "document_id", "group", "window_index"),
        score=pl.col(attack).cast(pl.Float64),
    )
    if "features" in run.manifest.made:
        runs = find_verbatim_runs(run, stored_settings(run.manifest.settings))
        longest = pl.lit(runs["longest_words"])
    ranked = ranked.with_columns(longest_words=longest).filter(
        pl.any_horizontal(pl.col("score", "longest_words").is_not_null()), role="target"
    )
    verbatim = pl.when(pl.col("longest_words") >= VERBATIM_WORDS).then("longest_words")
    keys = [verbatim, pl.col("score"), pl.col("target_id")]
    ordered = ranked.sort(keys, descending=[True, True, False], nulls_last=True)
    found = ordered.head(n).collect(engine="streaming")
    wanted = pl.col("target_id").is_in(found["target_id"].implode())
    texts = run.scan("targets").filter(wanted).select("target_id", "target")
    return found.join(
        texts.collect(engine="streaming"),
        on="target_id",
        how="left",
        maintain_order="left",
    )


def passage_table(run: Run, width: int) -> Table | str:
    found = strongest(run, SHOWN)
    if found.is_empty():
        return "No passage can be listed: no text has a score."
    name = pl.coalesce(
        "document_id", "group", pl.col("target_id").str.head(_NAME_SHOWN)
    )
    columns: dict[str, list[object]] = {
        "": [str(number + 1) for number in range(found.height)],
        "passage of": [
            cut(each, _NAME_SHOWN) for each in found.select(name).to_series()
        ],
        "window": [f"{1 + index}" for index in found["window_index"]],
        "words": ["-" if n is None else f"{n:,}" for n in found["longest_words"]],
        "score": [figure(score) for score in found["score"]],
        "text": [" ".join(text.split()) for text in found["target"]],
    }
    if not found["window_index"].cast(pl.Boolean).any():
        del columns["window"]
    title = f"strongest passages by {attack_of(run)}"
    if found["longest_words"].count():
        title += "; words: of the longest run that an answer repeats"
    else:
        del columns["words"]
    right = ("", "window", "words", "score")
    return fitted_table(
        columns, "text", width, right=right, title=title, title_justify="left"
    )


def find_target(run: Run, named: str) -> pl.DataFrame:
    """Find a passage by its number, by document and window, or by how its target_id begins."""
    attack_of(run)
    if named.isdecimal() and 0 < len(named) <= _LONGEST_NUMBER and int(named):
        last = strongest(run, int(named))
        if last.height == int(named):
            return _targets(run, pl.col("target_id") == last["target_id"][-1])
    match = _WINDOW.fullmatch(named.strip())
    if (
        found := _of_document(run, match["name"] if match else named.strip())
    ) is not None:
        return _one_window(found, match and int(match["number"].replace(",", "")))
    begins = _targets(run, pl.col("target_id").str.starts_with(named.lower()), 2)
    if begins.height == 1:
        return begins
    if begins.height:
        both = " and ".join(begins["target_id"])
        raise SettingsError(
            f"several target_ids begin with {named!r}: {both}; give more of it"
        )
    documents = run.scan("targets").select(pl.col("document_id").drop_nulls().unique())
    names = (
        documents.head(_MOST_NAMES)
        .collect(engine="streaming")
        .to_series()
        .sort()
        .to_list()
    )
    example = (
        f"a document and window such as {f'{names[0]} window 1'!r}, " if names else ""
    )
    listed = f"a number of the list that `mia-batch show {run.folder}` prints"
    hint = f"name {listed}, {example}or the beginning of a target_id"
    if near := get_close_matches(match["name"] if match else named, names, n=3):
        hint = f"did you mean {_listed(near)}?"
    raise SettingsError(f"{run.folder} has no passage {named!r}; {hint}")


def _targets(run: Run, wanted: pl.Expr, most: int = 1) -> pl.DataFrame:
    return run.scan("targets").filter(wanted).head(most).collect(engine="streaming")


def _of_document(run: Run, name: str) -> pl.DataFrame | None:
    """Find the windows of the one document of a name, as written, or its file without folder."""
    own = pl.col("document_id")
    lower, asked = own.str.to_lowercase(), name.lower()
    file = lower.str.replace(r"^.*/", "")
    stem, asked_stem = (
        file.str.replace(r"\.[^.]+$", ""),
        re.sub(r"\.[^./]+$", "", asked),
    )
    alike = (lower == asked) | (file == asked) | (stem == asked) | (lower == asked_stem)
    titled = pl.lit(value=False)
    if (
        "rollup" in run.manifest.made
        and "title" in (rollup := run.scan("rollup")).collect_schema()
    ):
        title = pl.col("title").cast(pl.String).str.to_lowercase()
        keys = rollup.filter(title == asked, level="document").select("key").collect()
        titled = own.is_in(keys["key"].implode())
    windows = (
        run.scan("targets").filter(alike | titled).select("target_id", "document_id")
    )
    documents = (
        windows.collect(engine="streaming")["document_id"].unique().sort().to_list()
    )
    exact = [each for each in documents if each == name] or documents
    if len(exact) > 1:
        raise SettingsError(f"{name!r} may be {_listed(exact)}; name one of them whole")
    if not exact:
        return None
    return run.scan("targets").filter(own == exact[0]).collect(engine="streaming")


def _one_window(windows: pl.DataFrame, number: int | None) -> pl.DataFrame:
    """Take the window of a number, counted from 1 as people see it, or the only one."""
    name, numbers = (
        windows["document_id"][0],
        (windows["window_index"] + 1).sort().to_list(),
    )
    found = windows if number is None else windows.filter(window_index=number - 1)
    if found.height == 1:
        return found
    if found.height:
        if number is not None:
            ids = _listed(found["target_id"].to_list())
            raise SettingsError(
                f"{name!r} has several windows {number:,}; name a target_id: {ids}"
            )
        such = f"{name} window {numbers[0]}"
        raise SettingsError(
            f"{name!r} has {windows.height:,} windows; name one, such as {such!r}"
        )
    near = sorted(numbers, key=lambda each: abs(each - (number or 0)))[:3]
    there = "it has window" if len(near) == 1 else "the nearest are windows"
    some = ", ".join(map(str, sorted(near)))
    raise SettingsError(
        f"{name!r} has no window {number:,} in this run; {there} {some}"
    )


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:_NAMED]]
    more = [f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else []
    return " or ".join(shown + more)
