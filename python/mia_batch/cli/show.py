"""What is shown to people: attacks, a plan, a run, its passages by number, comparisons."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from itertools import groupby, takewhile
from typing import Any

import polars as pl
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mia_batch.attacks import Attack, get, names
from mia_batch.attacks.attack import (
    FAMILIES,
    MEASURED,
    find_family,
    list_family_attacks,
)
from mia_batch.cli.options import (
    build_table,
    cut_middle,
    figure,
    fit_table,
    limits,
    measure_columns,
    plain,
)
from mia_batch.diagnostics.preflight import count_reasons
from mia_batch.errors import SettingsError
from mia_batch.evidence.request import Budget, DecodeScope
from mia_batch.inference.memory import (
    VERBATIM_WORDS,
    common_targets,
    longest_stretches,
)
from mia_batch.kernels import pair_features
from mia_batch.known import NamedSet
from mia_batch.pipeline import Run, results
from mia_batch.pipeline.custody import Verification
from mia_batch.pipeline.folder import refuse_unfinished
from mia_batch.pipeline.listing import ListedRun
from mia_batch.pipeline.request import find_paper_table, list_columns_needed
from mia_batch.pipeline.run_names import fill_names, fill_names_of_all
from mia_batch.pipeline.stages.extraction import find_verbatim_runs
from mia_batch.places import is_url
from mia_batch.report import sentences
from mia_batch.report.answer import MEANINGS, shade_strip
from mia_batch.report.masking import MASKED, Masking
from mia_batch.report.paper import describe_missing_rows, select_paper_rows
from mia_batch.report.sentences import dress_sentences, known_sentence, list_names
from mia_batch.schemas import ExtractedDocuments, Extraction
from mia_batch.settings import Settings, load_settings, stored_settings
from mia_batch.views import SHADOW, build_view

_MOST_ROWS = 20
_WIDTH_OF_COSTS = 100
_LEAST_WIDTH = 80  # tables are made for; a narrower terminal breaks their lines
_COST_FORMS = {"tokens": "{:,.0f}", "seconds": "{:.2g}"}


def show_attacks(names: Iterable[str], console: Console) -> None:
    names = [*names]
    rows = [("family", "in papers", "asks a text", "stands for", "needs")]
    for family in FAMILIES:
        first = family.default[0]
        n_members = len(list_family_attacks(family, names))
        stands_for = first
        if n_members != 1:
            stands_for = f"{len(family.default)} of {n_members}: {first}"
        cost, needed = _describe_cost(get(first))
        paper_name = "".join(family.paper_names[:1])
        rows.append((family.name, paper_name, cost, stands_for, needed))
    for name in names:
        if find_family(name) is None:
            cost, needed = _describe_cost(get(name))
            rows.append((name, "", cost, name, needed))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        console.print(plain("  ".join(cells).rstrip()), soft_wrap=True)
    console.print(
        "\n--attacks takes families, names in papers and full names: --attacks"
        " min-k++,ReCaLL\nmia-batch attacks min-k shows what else is in a family, and"
        " the formula and its source."
    )


def _describe_cost(attack: Attack) -> tuple[str, str]:
    """Return what an attack asks about a text at the default settings, and what it needs."""
    settings = load_settings({"input": "-", "model": "-"}, use_config=False)
    counts: dict[str, int] = {}
    for kind in ("samples", "logprobs"):
        for model, view in attack.list_reads(kind):
            question = build_view(settings, model, view)
            unit = question.type.answer_unit if kind == "samples" else "passes"
            if model == SHADOW:
                unit = "by each shadow model"
            n_answers = question.n * question.samples
            counts[unit] = counts.get(unit, 0) + n_answers
    amounts = []
    for unit, n in counts.items():
        is_one_pass = n == 1 and unit == "passes"
        amounts.append("1 pass" if is_one_pass else f"{n} {unit}")
    flags = [needs(attack)]
    for setting in attack.settings:
        alternatives = setting.replace("_", "-").split("|")
        flags.append(" or ".join(f"--{name}" for name in alternatives))
    return " + ".join(amounts) or "nothing", ", ".join(flags)


def show_sets(sets: Iterable[NamedSet], console: Console) -> None:
    for title, family in groupby(sets, lambda named_set: named_set.title):
        console.print(plain(title), style="bold", soft_wrap=True)
        names = ", ".join(named_set.name for named_set in family)
        console.print(Padding(plain(names), (0, 0, 0, 2)))
    console.print(
        "\nmia-batch datasets NAME shows where one is, its licence and its labels."
    )


def show_set(named_set: NamedSet, console: Console) -> None:
    facts = {name: fact for name, fact in asdict(named_set).items() if fact}
    facts.pop("unknown", None)
    for name, reason in named_set.unknown.items():
        facts.setdefault(name, f"unknown: {reason}")
    for name, fact in facts.items():
        text = fact
        if isinstance(fact, dict):
            text = ", ".join(f"{key} = {value}" for key, value in fact.items())
        console.print(plain(f"{name.replace('_', ' '):16}  {text}"), soft_wrap=True)
    command = f"mia-batch audit --dataset {named_set.name} --model MODEL"
    console.print("\nTo use it:", plain(command))


def show_attack(attack: Attack, console: Console) -> None:
    reads = ", ".join(f"{view} by the {model} model" for model, view in attack.reads)
    cost, needed = _describe_cost(attack)
    facts = {"attack": attack.name}
    family = find_family(attack.name)
    if family is not None:
        facts["family"] = f"{family.name}, which stands for {', '.join(family.default)}"
        facts["in papers"] = ", ".join(family.paper_names)
        relatives = [
            name for name in list_family_attacks(family, names()) if name != attack.name
        ]
        facts["others"] = ", ".join(relatives)
    facts |= {
        "source": attack.source,
        "needs": needed,
        "asks": f"{cost} a text",
        "costs": _describe_decoding(attack),
        "reads": reads and f"{reads}; columns {', '.join(attack.columns)}",
        "null": f"where less than {attack.least:.0%} came back, or {attack.undefined}",
        "measured": MEASURED.get(attack.name, ""),
        "higher": "more likely a member",
        "formula": attack.formula or str(attack.expr),
    }
    rows = [(name, fact) for name, fact in facts.items() if fact]
    _print_whole(build_table(rows=rows), console)


def _describe_decoding(attack: Attack) -> str:
    """Return what decoding whole answers costs next to answers of the true text's length."""
    if not attack.whole_candidates:
        return ""
    whole = _count_decoded("whole")
    matched = _count_decoded("matched")
    return (
        f"about {whole:,} tokens to decode for a text of 200 tokens (10 answers to"
        f" 1,024 tokens each, prompt included); samia_matched_v1 about {matched:,}"
    )


def _count_decoded(scope: DecodeScope) -> int:
    budget = Budget(scope=scope, max_length=1024, max_model_len=1024)
    return 10 * budget.first(100, 100)


def _print_whole(table: Table | str, console: Console) -> None:
    """Print a table of which no column may be lost, however narrow the terminal is."""
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table)


def needs(attack: Attack) -> str:
    """Return the evidence of an attack, or the access to the model that it takes."""
    if attack.evidence == "scores":
        return "scores"
    if attack.evidence == "samples":
        samples = "whole samples" if attack.whole_candidates else "samples"
        return f"{samples} and log-probabilities" if attack.logprobs else samples
    return "full distribution" if list_columns_needed([attack]) else "log-probabilities"


def show_plan(
    plan: Iterable[tuple[str, str]], settings: Settings, console: Console
) -> None:
    rows: list[tuple[str, ...]] = [*plan, ()]
    for name, values in results.list_changed_settings(settings):
        rows.append((name, " ".join(values) or "yes"))
    if settings.out is None:
        rows.append(("--out", str(settings.place)))
    rows.append(
        ("", "All other settings have their defaults; run.json will name them.")
    )
    console.print(build_table(rows=rows))


def show_run(run: Run, console: Console) -> None:
    manifest = run.manifest
    settings = stored_settings(manifest.settings)
    masking = fill_names(run, MASKED)
    console.print(plain(results.build_answer(run, masking)), style="bold")
    console.print()
    width = max(console.width, _LEAST_WIDTH)
    books, attacks = results.list_books(run, masking), results.list_attacks(run)
    if attacks.height:
        paper_names = find_paper_table(settings)
        _print_whole(_attack_table(attacks, width, paper_names), console)
        for sentence in describe_missing_rows(
            paper_names, results.list_missing_rows(run)
        ):
            console.print(plain(f"{sentence}."))
        console.print(_figures_sentence(run, attacks))
    elif books.height:
        _print_whole(_book_table(books, width), console)
    else:
        show_passages(run, console, masking)
    console.print()
    _print_next_step(run, console, masking)
    lines = [*sentences(results.load_results(run, masking)), *_missing(run)]
    root = manifest.custody.get("root")
    if root:
        lines.append(f"root of inputs and tables: {root}")
    place = str(run.folder)
    if is_url(settings.out):
        place = f"{settings.out}, copied to {run.folder}"
    lines.append(f"scores, metrics and evidence: {place}")
    for line in lines:
        console.print(plain(line))
    if settings.report:
        console.print(plain(f"report: {run.folder / results.REPORT}"), soft_wrap=True)


def _print_next_step(run: Run, console: Console, masking: Masking) -> None:
    step = results.find_step(run, masking)
    if step is not None:
        console.print(plain(f"{step.title}. {step.sentence}"))
        console.print(plain(f"  {step.command}"), soft_wrap=True)
        console.print()


def show_runs(runs: Sequence[ListedRun], console: Console) -> None:
    """Print the answers of a folder's runs, the last written first."""
    for run in runs:
        heading = f"{run.folder}  ({run.written:%Y-%m-%d %H:%M} UTC)"
        console.print(plain(heading), style="bold", soft_wrap=True)
        console.print(plain(run.answer))
    console.print(plain(f"next: mia-batch show {shlex.quote(str(runs[0].folder))}"))


def _figures_sentence(run: Run, attacks: pl.DataFrame) -> str:
    """Return what the figures of the table of attacks are about."""
    counts = run["metrics"].row(0, named=True)
    low, high = attacks.select("tpr_1_low", "tpr_1_high").row(0)
    interval = ""
    if low is not None:
        interval = f"first TPR@1%: 95 % interval {low:.2f} to {high:.2f}; "
    return (
        f"{counts['n_members']:,} members, {counts['n_nonmembers']:,} non-members."
        f" {interval}lead: AUC less that of the best classifier that never sees the"
        " model; tokens, seconds: a text; -: the data cannot support the figure,"
        " reasons in metrics.parquet."
    )


def _missing(run: Run) -> Iterator[str]:
    """Iterate over what has no samples or no score, with reasons, the most frequent first."""
    # By number of texts, reason and what they are without: samples, or some attacks
    missing = {
        (n, reason, ""): ["samples"]
        for reason, n in run.manifest.failed["reasons"].items()
    }
    for attack in run.manifest.made["scores"]["attacks"]:
        unscored = run.scan("unscored").filter(attack=attack)
        for reason, n in count_reasons(unscored).items():
            missing.setdefault((n, reason, "a score of "), []).append(attack)
    by_count = sorted(missing.items(), key=lambda item: -item[0][0])
    for (n, reason, prefix), subjects in by_count:
        texts = "text" if n == 1 else "texts"
        yield f"{n:,} {texts} without {prefix}{list_names(subjects, 2)}: {reason}"
    incomplete = run.manifest.failed.get("incomplete", {"targets": 0})
    if incomplete["targets"]:
        reason, _ = max(incomplete["reasons"].items(), key=lambda item: item[1])
        texts = "text is" if incomplete["targets"] == 1 else "texts are"
        yield (
            f"{incomplete['targets']:,} {texts} scored without"
            f" {incomplete['missing']:,} of {incomplete['asked']:,} answers; mostly:"
            f" {reason}"
        )
    n_short = run["scores"]["n_short"].sum()
    if n_short:
        answers = "answer" if n_short == 1 else "answers"
        yield f"{n_short:,} {answers} ended before the true text's length"


def _attack_table(
    attacks: pl.DataFrame, width: int, paper_names: Mapping[str, str]
) -> Table:
    """Build a row per attack, the best first; the last is the best that never sees the model.

    Where a run is to give a paper's table, its rows stand alone, in its order.
    """
    blind = attacks.filter("is_blind")
    seeing = attacks.filter(~pl.col("is_blind"))
    shown = select_paper_rows(seeing, paper_names).head(_MOST_ROWS)
    rows = pl.concat([shown, blind.head(1)])
    forms = {}
    if width >= _WIDTH_OF_COSTS:  # a recording has no costs
        forms = {name: form for name, form in _COST_FORMS.items() if rows[name].count()}
    numbers = ("TPR@1%", "TPR@0.1%", "lead", *forms)
    caption = _caption("metrics.parquet", {"attacks": seeing.height - shown.height})
    headings = ("attack", "AUC", "95 % interval", *numbers)
    table = build_table(*headings, right=("AUC", *numbers), **caption)
    for row in rows.iter_rows(named=True):
        name = paper_names.get(row["attack"], row["attack"])
        name = f"{name} (later)" if row["is_later"] else name
        figures = [figure(row[column]) for column in ("tpr_1", "tpr_01", "lead")]
        costs = [_format(row[column], form) for column, form in forms.items()]
        cells = (name, figure(row["auc"]), limits(row), *figures, *costs)
        table.add_row(*map(plain, cells))
    return table


def _caption(table: str, not_shown: Mapping[str, int]) -> dict[str, Any]:
    counts = [f"{n:,} more {unit}" for unit, n in not_shown.items() if n > 0]
    caption = f"{' and '.join(counts)} in {table}" if counts else None
    return {"caption": caption, "caption_justify": "left"}


_VERDICT_STYLES = {"comes_out": "red", "known_better": "magenta", "above_all": "yellow"}
_MOST_COMPARED = 3


def _book_table(books: pl.DataFrame, width: int) -> Table:
    """Build a row per book, strongest evidence first, then the highest comparison; cut titles."""
    audited = books.filter(pl.col("level") != "outside")
    comparison = books.filter(pl.col("strip").is_not_null(), level="outside")
    compared = comparison.head(_MOST_COMPARED)
    compared = compared.with_columns(answer=pl.lit("comparison"))
    table_rows = pl.concat([audited.head(_MOST_ROWS), compared])
    not_shown = {
        "audited": audited.height - _MOST_ROWS,
        "for comparison": comparison.height - _MOST_COMPARED,
    }
    columns = _book_columns(table_rows, has_room=True)
    others = {name: cells for name, cells in columns.items() if name != "title"}
    if measure_columns(others) + _LEAST_TITLE > width:
        columns = _book_columns(table_rows, has_room=False)
    caption = _caption("rollup.parquet", not_shown)
    lines = [caption["caption"]]
    if not columns.keys().isdisjoint(_STRIPS):
        is_compared = comparison.height > 0
        lines.append(_write_legend(table_rows["strip"], is_compared=is_compared))
    shown = [name for name in MEANINGS if table_rows[name].count()]
    lines.append("; ".join(MEANINGS[name] for name in shown))
    caption["caption"] = "\n".join(line for line in lines if line) or None
    return fit_table(
        columns,
        next(iter(columns)),
        width,
        [_VERDICT_STYLES.get(verdict, "") for verdict in table_rows["verdict"]],
        cut_middle,
        _SHORTEST_TITLE,
        right=("longest stretch", "longest", "p", "q"),
        **caption,
    )


def _write_legend(strips: pl.Series, *, is_compared: bool) -> str:
    """Write what the bars of strips mean, and their dots, if there are any."""
    if strips.count() == 0:
        return ""
    against = "comparison texts" if is_compared else "your own texts"
    asked = strips.drop_nulls().list.eval(pl.element().is_null()).list.any()
    dots = "; ·: not asked about" if asked.any() else ""
    return f"bars: share of {against} that score lower{dots}"


_STRIPS = ("first to last page", "pages")
_LEAST_TITLE = 24  # columns
_SHORTEST_TITLE = 12
# What fits next to a name, a strip and numbers in 80 columns
_SHORT_ANSWERS = {
    "comes_out": "comes out",
    "above_all": "above all; too few",
    "cannot_tell": "not judged",
}


def _book_columns(books: pl.DataFrame, *, has_room: bool) -> dict[str, list[str]]:
    """Return what the table says of each book; without room answers and strips are short."""
    strip = _STRIPS[not has_room]
    longest = "longest stretch" if has_room else "longest"
    rows = []
    for row in books.iter_rows(named=True):
        answer, values = row["answer"], row["strip"]
        if not has_room:
            answer, values = _SHORT_ANSWERS.get(row["verdict"], answer), _halve(values)
        if row["level"] == "outside":
            answer = row["answer"]
        numbers = {
            longest: _format(row["longest_words"], "{:,}"),
            "share learnt": _share_learnt(row),
            "p": _format(row["p_value"]),
            "q": _format(row["q_value"]),
        }
        rows.append(
            {"title": row["title"], strip: shade_strip(values), "answer": answer}
            | numbers
        )
    columns = {}
    for name in rows[0]:
        cells = [row[name] for row in rows]
        if not {*cells} <= {"", "-"}:
            columns[name] = cells
    if not has_room and "share learnt" in columns:
        columns.pop(strip, None)
    return columns


def _halve(strip: Sequence[float | None] | None) -> list[float | None] | None:
    """Return half as many stretches: of each two the higher one that was asked about."""
    if strip is None:
        return None
    pairs = zip(strip[::2], strip[1::2], strict=True)
    values = [[value for value in pair if value is not None] for pair in pairs]
    return [max(pair, default=None) for pair in values]


def _format(value: float | None, form: str = "{:.2g}") -> str:
    return "-" if value is None else form.format(value)


def _share_learnt(row: Mapping[str, Any]) -> str:
    share, low = row["share"], row["share_low"]
    if share is None:
        return f"at least {low:.0%}" if low else "-"
    if low is None:
        return f"{share:.0%}"
    return f"{share:.0%} ({low:.0%} to {row['share_high']:.0%})"


_MOST_SHOWN = 4000  # characters of one text
_ROUND_A_DIFFERENCE = 60  # characters
_MARKS = ("⟦", "⟧")
_LINE_END = re.compile("\r?\n")


def show_checked(checked: Verification, console: Console) -> None:
    lines = [f"{fault}: {name}" for name, fault in checked.faults]
    lines += [f"not found, not checked: {name}" for name in checked.not_found]
    for line in lines:
        console.print(plain(line), soft_wrap=True)
    if checked.not_found:
        console.print("say where these inputs lie by now with --input PATH")
    if not checked.faults:
        console.print(f"{checked.n_files:,} files are as they were")
        console.print(f"root of inputs and tables: {checked.root}")


def show_lodged(digest: str, differences: Sequence[str], console: Console) -> bool:
    """Print how a run differs from the plan lodged; return whether it does not."""
    comparison = "different from" if differences else "equal to"
    sentence = f"{comparison} the plan lodged (SHA-256 {digest})"
    console.print(plain(sentence), soft_wrap=True)
    for difference in differences:
        console.print(plain(f"  {difference}"), soft_wrap=True)
    return not differences


def show_agreement(
    samples: pl.DataFrame, console: Console, masking: Masking = MASKED
) -> bool:
    differing = samples.filter(pl.col("candidate").ne_missing(pl.col("again")))
    n_same = samples.height - differing.height
    console.print(f"drawn again: {n_same:,} of {samples.height:,} samples agree")
    if differing.is_empty():
        return True
    row = differing.row(0, named=True)
    difference = f"target {row['target_id']}, {_sample_name(row)}"
    console.print(plain(f"first difference: {difference}"))
    for name, column in (("stored", "candidate"), ("drawn again", "again")):
        excerpt = _excerpt(row, column, masking)
        console.print(plain(f"  {name:11}  {excerpt}"), soft_wrap=True)
    console.print(
        "A CPU in float32 draws the same to the bit, a GPU only the same on average."
    )
    return False


def _sample_name(row: dict[str, Any]) -> str:
    return f"{row['view']} {row['view_index']}, sample {row['sample_index']}"


def _excerpt(row: dict[str, Any], column: str, masking: Masking) -> str:
    """Return the text of a column around the first difference of the two candidates."""
    if row[column] is None:
        return "none"
    pairs = zip(row["candidate"] or "", row["again"] or "", strict=False)
    n_shared = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
    start = max(0, n_shared - _ROUND_A_DIFFERENCE)
    excerpt = masking.write(row[column][start : n_shared + _ROUND_A_DIFFERENCE])
    return f"from character {start:,}: {excerpt!r}"


def show_passages(run: Run, console: Console, masking: Masking = MASKED) -> None:
    masking = fill_names(run, masking)
    table = passage_table(run, max(console.width, _LEAST_WIDTH), masking)
    _print_whole(table, console)
    if isinstance(table, str):
        return
    for sentence in dress_sentences(masking.hide_passages(run["findings"])):
        console.print(plain(sentence), soft_wrap=True)
    if not run.manifest.custody:
        console.print(
            "The run was stopped before its end; the audit's command again goes on."
        )
    stretches = masking.write_names(find_stretches(run).head(_N_STRETCHES))
    for row in stretches.iter_rows(named=True):
        words = shlex.join(["mia-batch", "show", str(run.folder), row["document_id"]])
        console.print(
            plain(
                f"{row['n_left']:,} words in a row came out of {row['document_id']}:"
                f" {words}"
            ),
            soft_wrap=True,
        )
    hint = (
        f"mia-batch show {run.folder} NUMBER shows one next to the true text; so does a"
        ' document with its window, such as "moby_dick window 12".'
    )
    console.print(plain(hint), soft_wrap=True)


_N_STRETCHES = 5


def find_stretches(run: Run) -> pl.DataFrame:
    """Find the longest stretch that extraction gave of each document, unless it is common."""
    extraction: pl.LazyFrame = Extraction.create_empty(lazy=True)
    extracted: pl.LazyFrame = ExtractedDocuments.create_empty(lazy=True)
    if run.path("extraction").exists():
        extraction = run.scan("extraction")
        extracted = run.scan("extracted_documents")
    if run.path("controls").exists():
        common = common_targets(run.scan("controls"))
        extraction = extraction.filter(~pl.col("target_id").is_in(common.implode()))
    rows = longest_stretches(extraction, extracted)
    long_rows = rows.filter(pl.col("n_left") >= VERBATIM_WORDS)
    return long_rows.sort("n_left", "document_id", descending=[True, False])


def show_target(
    run: Run, target: pl.DataFrame, console: Console, masking: Masking = MASKED
) -> None:
    """Print what a passage is: where it stands, and what further tables say of it."""
    masking = fill_names(run, masking)
    row = masking.write_names(target).row(0, named=True)
    characters = None
    if row["start"] is not None:
        end = row["start"] + len(row["target"])
        characters = f"{row['start']:,} to {end:,} of the document"
    facts = {
        "target": row["target_id"],
        "document": row["document_id"],
        "group": row["group"],
        "chapter": row.get("window_chapter"),
        "window": f"{row['window_index'] + 1:,} of {row['n_windows']:,}",
        "characters": characters,
        "role": row["role"],
        "member": row["member"],
        "not sampled": row["reason"],
    }
    is_target = pl.col("target_id") == row["target_id"]
    for name, (label, describe) in _DESCRIPTIONS.items():
        if run.path(name).exists():
            matches = run.scan(name).filter(is_target).collect(engine="streaming")
            for match in masking.write_names(matches.head(1)).to_dicts():
                facts[label] = describe(match)
    _print_pairs(facts, console)


_SCORES_SHOWN = 5


def show_scores(
    run: Run, target: pl.DataFrame, console: Console, *, all_scores: bool
) -> None:
    """Print the scores of a passage, that of the primary attack first, or the first five."""
    is_target = pl.col("target_id") == target["target_id"][0]
    attacks = run.manifest.made["scores"]["attacks"]
    scores = run.scan("scores").filter(is_target).select(attacks)
    facts = scores.collect(engine="streaming").row(0, named=True)
    unscored = run.scan("unscored").filter(is_target).collect(engine="streaming")
    for attack, reason in unscored.select("attack", "reason").iter_rows():
        facts[attack] = f"no score: {reason}"
    primary = find_primary_attack(run)
    ordered = sorted(facts, key=lambda attack: attack != primary)
    n_shown = len(ordered) if all_scores else _SCORES_SHOWN
    console.print("\nscores", style="bold")
    _print_pairs({attack: facts[attack] for attack in ordered[:n_shown]}, console)
    n_hidden = len(ordered[n_shown:])
    if n_hidden:
        console.print(f"{n_hidden:,} more with --scores")


def _bounds_sentence(row: Mapping[str, Any]) -> str:
    if row["reason"] is not None:
        return f"no bounds: {row['reason']}"
    near = f"{row['within']} of {row['n_tokens']} tokens ({row['distance']})"
    likely = f"likely at most {row['likely_upper']:.3g}"
    return f"within {near}: {row['lower']:.3g} to {row['upper']:.3g}, {likely}"


# Of further tables the label and the sentence of a row
_DESCRIPTIONS = {
    "known": ("known corpus", known_sentence),
    "bounds": ("comes near", _bounds_sentence),
}


def _print_pairs(pairs: Mapping[str, object], console: Console) -> None:
    table = build_table()
    for name, value in pairs.items():
        if value is not None:
            text = f"{value:.4g}" if type(value) is float else value
            table.add_row(plain(name), plain(text))
    console.print(table)


def show_answers(
    answers: pl.DataFrame,
    target: pl.DataFrame,
    run: Run,
    console: Console,
    masking: Masking = MASKED,
) -> None:
    evidence = run.manifest.evidence
    is_token = pl.col("view") == "token"
    pairs = pair_features(
        "candidate",
        "text",
        words=evidence["word_rule"],
        groups=["blocks", "leading"],
    )
    unseeded = "recorded" if run.manifest.source == "recording" else "most likely"
    nudge = evidence.get("nudge")
    origin = (
        pl.when(is_token, pl.lit(bool(nudge)))
        .then(pl.lit(f"nudged {nudge} nats"))
        .otherwise(pl.format("seed {}", "seed").fill_null(unseeded))
    )
    is_same_token = pl.col("candidate") == pl.col("text")
    begins_alike = pl.col("leading_words") > 0
    hit = pl.when(is_token).then(is_same_token).otherwise(begins_alike)
    compared = answers.with_columns(pairs, how=origin).unnest("features")
    compared = compared.with_columns(hit=hit)
    for (model, view), rows in compared.group_by("model", "view", maintain_order=True):
        console.print(f"\n{view}, {model} model", style="bold")
        if view in ("token", "probe"):
            _show_probes(rows, target.row(0, named=True), console, masking)
        else:
            _show_continuations(rows, console, masking)
    if answers.is_empty():
        console.print("\nno samples were drawn of it")


def _show_probes(
    rows: pl.DataFrame, target: dict[str, Any], console: Console, masking: Masking
) -> None:
    table = build_table(
        "character", "true word", "model's word", "hit", "sample", "how"
    )
    text = target["target"].encode()
    for row in rows.sort("cut", "sample_index").iter_rows(named=True):
        position = target["start"] + len(text[: row["cut"] or 0].decode())
        answer = row["reason"]
        if row["candidate"] is not None:
            answer = _beginning(masking.write(row["candidate"]))
        cells = (
            f"{position:,}",
            _beginning(masking.write(row["text"] or "")),
            answer,
            "yes" if row["hit"] else "no",
            row["sample_index"],
            row["how"],
        )
        table.add_row(*map(plain, cells))
    console.print(table)


def _show_continuations(rows: pl.DataFrame, console: Console, masking: Masking) -> None:
    prefix = ""
    for row in rows.iter_rows(named=True):
        if row["context"] != prefix:
            prefix = row["context"]
            _print_pairs({"prefix": _end(masking.write(prefix or ""))}, console)
        name = f"{_sample_name(row)}, {row['how']}"
        if row["candidate"] is None:
            console.print(plain(f"{name}: {row['reason']}"))
            continue
        n_words, run = row["longest_block_words"], ""
        if n_words:
            start = row["longest_block_chars_start"]
            run = row["text"][start : start + row["longest_block_chars"]]
        sentence = "no word is shared"
        if run:
            sentence = f"longest shared run: {n_words:,} words, {len(run):,} characters"
        console.print(plain(f"{name}; {sentence}"))
        table = build_table("true continuation", "model", expand=True)
        for column in table.columns:
            column.ratio = 1
        sides = (row["text"], row["candidate"])
        table.add_row(*(mark_run(side, run, masking) for side in sides))
        console.print(table)
        if row["raw"] is not None:
            raw = _beginning(masking.write(row["raw"]))
            console.print(plain(f"as it came: {raw}"))


def mark_run(text: str, run: str, masking: Masking = MASKED) -> Text:
    """Mark the shared run, with signs that stay where there are no colours."""
    head, run, tail = text.partition(run) if run else (text, "", "")
    pieces = masking.write_pieces([(head, False), (run, True), (tail, False)])
    marked = plain("")
    for index, (piece, is_run) in enumerate(pieces):
        if is_run:
            shown_run = plain(_MARKS[0] + _beginning(piece) + _MARKS[1])
            shown_run.stylize("bold")
            marked += shown_run
        elif index == 0 and len(pieces) > 1:
            marked += plain(_end(piece))
        else:
            marked += plain(_beginning(piece))
    return marked


def _beginning(text: str) -> str:
    n_left_out = len(text) - _MOST_SHOWN
    shown_text = _LINE_END.sub("↵", text[:_MOST_SHOWN])
    if n_left_out <= 0:
        return shown_text
    return f"{shown_text}… ({n_left_out:,} more characters)"


def _end(text: str) -> str:
    n_left_out = len(text) - _MOST_SHOWN
    shown_text = _LINE_END.sub("↵", text[-_MOST_SHOWN:])
    if n_left_out <= 0:
        return shown_text
    return f"({n_left_out:,} characters before) …{shown_text}"


_MOST_DOCUMENTS = 10  # shown, the smallest p-values first
_FIGURES = {
    "roc_auc": "AUC",
    "roc_auc_difference": "difference of AUC",
    "mean_difference": "mean difference of scores",
    "removed_share": "share removed",
    "rank_correlation": "rank correlation with the first",
    "rank_correlation_difference": "never saw, less learnt",
}


def show_comparisons(
    table: pl.DataFrame, console: Console, runs: Sequence[Run]
) -> None:
    table = fill_names_of_all(runs, MASKED).write_names(table)
    first, attack = table["versus"].drop_nulls()[0], table["attack"][0]
    console.print(plain(f"{attack}: differences are each run less {first}"))
    primaries = {find_primary_attack(run) for run in runs}
    if primaries != {attack}:
        names = " and ".join(sorted(primaries))
        line = f"all runs have scores of {attack}; their primary attacks: {names}"
        console.print(plain(line))
    sets = table.filter(level="set")
    console.print(_comparison_table(sets, "set", "set"))
    for row in sets.filter(pl.col("reason").is_not_null()).iter_rows(named=True):
        figure_name = _FIGURES[row["statistic"]]
        set_name = row["set"].replace("_", "-")
        line = f"{figure_name}, {row['run']}, {set_name}: {row['reason']}"
        console.print(plain(line), soft_wrap=True)
    for level in ("document", "group"):
        rows = table.filter(level=level)
        if rows.is_empty():
            continue
        ordered = rows.sort("p_value", nulls_last=True, maintain_order=True)
        n_significant = rows.filter(pl.col("adjusted_p") <= 0.05).height
        counts = f"{n_significant:,} of {rows.height:,} differences"
        console.print(f"{level}s: {counts} have a q-value of at most 0.05")
        console.print(_comparison_table(ordered.head(_MOST_DOCUMENTS), level, "key"))


def _comparison_table(rows: pl.DataFrame, heading: str, column: str) -> Table:
    numbers = ("value", "95 % interval", "p", "adjusted", "texts")
    table = build_table("run", "figure", heading, *numbers, right=numbers)
    for row in rows.iter_rows(named=True):
        name = row[column]
        cells = (
            row["run"],
            _FIGURES[row["statistic"]],
            name.replace("_", "-") if column == "set" else name,
            figure(row["value"]),
            limits(row),
            _format(row["p_value"]),
            _format(row["adjusted_p"]),
            f"{row['n_targets']:,}",
        )
        table.add_row(*map(plain, cells))
    return table


# The strongest passages of a run, numbered, and the one that a reader names.

SHOWN = 10
_NAME_SHOWN = 24
_LONGEST_NUMBER = 6  # digits; more are the beginning of a target_id
_MOST_NAMES = 10_000  # names among which a near one is looked for
_NAMED = 5  # of several in a message
_WINDOW = re.compile(
    r"(?P<name>.+?)[\s,:]+window\s+(?P<number>[1-9][\d,]*)", re.IGNORECASE
)


def find_primary_attack(run: Run) -> str:
    if "scores" not in run.manifest.made:
        refuse_unfinished(run.folder, "has no scores yet")
    attacks = run.manifest.made["scores"]["attacks"]
    primary: str = (run.manifest.plan or {}).get("primary", attacks[0])
    return primary if primary in attacks else attacks[0]


def rank_passages(run: Run, n: int) -> pl.DataFrame:
    """Rank the passages that were asked about: long verbatim runs, then scores, then identifiers.

    The first ``n``, which is the order of their numbers in `passage_table` and
    `find_target`.
    """
    first = _scan_ranked(run).head(n).collect(engine="streaming")
    is_ranked = pl.col("target_id").is_in(first["target_id"].implode())
    texts = run.scan("targets").filter(is_ranked).select("target_id", "target")
    return first.join(
        texts.collect(engine="streaming"),
        on="target_id",
        how="left",
        maintain_order="left",
    )


def rank_windows(run: Run, windows: pl.DataFrame) -> pl.DataFrame:
    """Rank the windows of a document as `rank_passages` does."""
    is_of_document = pl.col("target_id").is_in(windows["target_id"].implode())
    return _scan_ranked(run).filter(is_of_document).collect(engine="streaming")


def _scan_ranked(run: Run) -> pl.LazyFrame:
    attack = find_primary_attack(run)
    longest = pl.lit(None, pl.UInt32)
    passages = run.scan("scores").select(
        "target_id",
        "role",
        "document_id",
        "group",
        "window_index",
        score=pl.col(attack).cast(pl.Float64),
    )
    if "features" in run.manifest.made:
        runs = find_verbatim_runs(run, stored_settings(run.manifest.settings))
        longest = pl.lit(runs["longest_words"])
    has_evidence = pl.any_horizontal(pl.col("score", "longest_words").is_not_null())
    passages = passages.with_columns(longest_words=longest)
    passages = passages.filter(has_evidence, role="target")
    is_verbatim = pl.col("longest_words") >= VERBATIM_WORDS
    keys = [
        pl.when(is_verbatim).then("longest_words"),
        pl.col("score"),
        pl.col("target_id"),
    ]
    return passages.sort(keys, descending=[True, True, False], nulls_last=True)


def passage_table(run: Run, width: int, masking: Masking = MASKED) -> Table | str:
    passages = fill_names(run, masking).write_names(rank_passages(run, SHOWN))
    if passages.is_empty():
        return "No passage can be listed: no text has a score."
    short_id = pl.col("target_id").str.head(_NAME_SHOWN)
    names = passages.select(pl.coalesce("document_id", "group", short_id)).to_series()
    columns: dict[str, list[object]] = {
        "": [str(number + 1) for number in range(passages.height)],
        "passage of": [cut_middle(name, _NAME_SHOWN) for name in names],
        "window": [f"{1 + index}" for index in passages["window_index"]],
        "words": [_format(n, "{:,}") for n in passages["longest_words"]],
        "score": [figure(score) for score in passages["score"]],
        "text": [" ".join(masking.write(text).split()) for text in passages["target"]],
    }
    if not passages["window_index"].cast(pl.Boolean).any():
        del columns["window"]
    title = f"strongest passages by {find_primary_attack(run)}"
    if passages["longest_words"].count():
        title += "; words: of the longest run that an answer repeats"
    else:
        del columns["words"]
    return fit_table(
        columns,
        "text",
        width,
        right=("", "window", "words", "score"),
        title=title,
        title_justify="left",
    )


def find_target(run: Run, passage: str) -> pl.DataFrame:
    """Find a passage by its number, by document and window, or by how its target_id begins."""
    find_primary_attack(run)
    is_number = passage.isdecimal() and 0 < len(passage) <= _LONGEST_NUMBER
    if is_number and int(passage):
        number = int(passage)
        passages = rank_passages(run, number)
        if passages.height == number:
            return _scan_targets(run, pl.col("target_id") == passages["target_id"][-1])
    match = _WINDOW.fullmatch(passage.strip())
    document = match["name"] if match else passage.strip()
    windows = _find_windows(run, document)
    if windows is not None:
        window = int(match["number"].replace(",", "")) if match else None
        return _select_window(windows, window)
    is_beginning = pl.col("target_id").str.starts_with(passage.lower())
    targets = _scan_targets(run, is_beginning, 2)
    if targets.height == 1:
        return targets
    if targets.height:
        examples = " and ".join(targets["target_id"])
        raise SettingsError(
            f"several target_ids begin with {passage!r}: {examples}; give more of it"
        )
    hint = _passage_hint(run, match["name"] if match else passage)
    raise SettingsError(f"{run.folder} has no passage {passage!r}; {hint}")


def find_document(run: Run, passage: str) -> pl.DataFrame | None:
    """Find the windows of a document that is named alone; None where it has one, or none."""
    if passage.isdecimal() or not passage.strip():
        return None
    windows = _find_windows(run, passage.strip())
    return windows if windows is not None and windows.height > 1 else None


def _passage_hint(run: Run, document: str) -> str:
    documents = run.scan("targets").select(pl.col("document_id").drop_nulls().unique())
    first = documents.head(_MOST_NAMES).collect(engine="streaming")
    written = fill_names(run, MASKED).names or {}
    names = first.to_series().sort().replace(written).to_list()
    near = get_close_matches(document, names, n=3)
    if near:
        return f"did you mean {_join_names(near)}?"
    example = ""
    if names:
        example = f"a document and window such as {f'{names[0]} window 1'!r}, "
    number = f"a number of the list that `mia-batch show {run.folder}` prints"
    return f"name {number}, {example}or the beginning of a target_id"


def _scan_targets(run: Run, condition: pl.Expr, limit: int = 1) -> pl.DataFrame:
    matches = run.scan("targets").filter(condition)
    return matches.head(limit).collect(engine="streaming")


def _find_windows(run: Run, name: str) -> pl.DataFrame | None:
    """Find the windows of the one document of a name, as written, or its file without folder."""
    if "‹" in name:  # what a report calls it
        name = fill_names(run, MASKED).originals.get(name, name)
    document_id = pl.col("document_id")
    lower_name = name.lower()
    lower = document_id.str.to_lowercase()
    file = lower.str.replace(r"^.*/", "")
    stem = file.str.replace(r"\.[^.]+$", "")
    is_match = (
        (lower == lower_name)
        | (file == lower_name)
        | (stem == lower_name)
        | (lower == re.sub(r"\.[^./]+$", "", lower_name))
        | _has_title(run, lower_name)
    )
    windows = run.scan("targets").filter(is_match).select("target_id", "document_id")
    documents = windows.collect(engine="streaming")["document_id"]
    names = documents.unique().sort().to_list()
    if name in names:
        names = [name]
    if len(names) > 1:
        listing = _join_names(names)
        raise SettingsError(f"{name!r} may be {listing}; name one of them whole")
    if not names:
        return None
    is_document = document_id == names[0]
    return run.scan("targets").filter(is_document).collect(engine="streaming")


def _has_title(run: Run, lower_title: str) -> pl.Expr:
    """Return a condition on documents whose title, where the run has one, is this."""
    if "rollup" not in run.manifest.made:
        return pl.lit(value=False)
    rollup = run.scan("rollup")
    if "title" not in rollup.collect_schema():
        return pl.lit(value=False)
    title = pl.col("title").cast(pl.String).str.to_lowercase()
    documents = rollup.filter(title == lower_title, level="document")
    keys = documents.select("key").collect()["key"]
    return pl.col("document_id").is_in(keys.implode())


def _select_window(windows: pl.DataFrame, number: int | None) -> pl.DataFrame:
    """Return the window of a number, counted from 1 as people see it, or the only one."""
    name = windows["document_id"][0]
    numbers = (windows["window_index"] + 1).sort().to_list()
    if number is None:
        if windows.height == 1:
            return windows
        example = f"{name} window {numbers[0]}"
        raise SettingsError(
            f"{name!r} has {windows.height:,} windows; name one, such as {example!r}"
        )
    matches = windows.filter(window_index=number - 1)
    if matches.height == 1:
        return matches
    if matches.height:
        ids = _join_names(matches["target_id"].to_list())
        raise SettingsError(
            f"{name!r} has several windows {number:,}; name a target_id: {ids}"
        )
    nearest = sorted(numbers, key=lambda window: abs(window - number))[:3]
    introduction = "it has window" if len(nearest) == 1 else "the nearest are windows"
    listing = ", ".join(map(str, sorted(nearest)))
    raise SettingsError(
        f"{name!r} has no window {number:,} in this run; {introduction} {listing}"
    )


def _join_names(names: Sequence[str]) -> str:
    listing = [repr(name) for name in names[:_NAMED]]
    if len(names) > _NAMED:
        listing.append(f"{len(names) - _NAMED:,} more")
    return " or ".join(listing)
