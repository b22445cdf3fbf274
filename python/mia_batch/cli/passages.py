"""The strongest passages of a run, numbered, and the one that a reader names."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

import polars as pl
from rich.table import Table

from mia_batch.cli.options import cut, figure, fitted_table
from mia_batch.errors import RunFolderError, SettingsError
from mia_batch.inference.memory import VERBATIM_WORDS, verbatim_runs
from mia_batch.pipeline import Run
from mia_batch.settings import stored_settings

SHOWN = 10
_NAME_SHOWN = 24
_LONGEST_NUMBER = 6  # digits; more are the beginning of a target_id
_MOST_COMPARED = 10_000  # names among which a near one is looked for
_NAMED = 5  # of several in a message
_WINDOW = re.compile(r"(?P<name>.+?)[\s,:]+window\s+(?P<number>[1-9][\d,]*)", re.IGNORECASE)


def attack_of(run: Run) -> str:
    if "scores" not in run.manifest.made:
        again = "give the audit's command again, which goes on"
        raise RunFolderError(f"{run.folder} has no scores yet; {again}")
    attacks = run.manifest.made["scores"]["attacks"]
    primary: str = (run.manifest.plan or {}).get("primary", attacks[0])
    return primary if primary in attacks else attacks[0]


def strongest(run: Run, n: int) -> pl.DataFrame:
    """Rank the passages that were asked about: long verbatim runs, then scores, then identifiers.

    The first ``n``, which is the order of their numbers in `passage_table` and `find_target`.
    """
    attack = attack_of(run)
    longest = pl.lit(None, pl.UInt32)
    ranked = run.scan("scores").select(
        *("target_id", "role", "document_id", "group", "window_index"),
        score=pl.col(attack).cast(pl.Float64),
    )
    if "features" in run.manifest.made:
        samples = stored_settings(run.manifest.settings).continuations
        runs = verbatim_runs(run.scan("targets"), run.scan("features"), samples)
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
        texts.collect(engine="streaming"), on="target_id", how="left", maintain_order="left"
    )


def passage_table(run: Run, width: int) -> Table | str:
    found = strongest(run, SHOWN)
    if found.is_empty():
        return "No passage can be listed: no text has a score."
    name = pl.coalesce("document_id", "group", pl.col("target_id").str.head(_NAME_SHOWN))
    columns: dict[str, list[object]] = {
        "": [str(number + 1) for number in range(found.height)],
        "passage of": [cut(each, _NAME_SHOWN) for each in found.select(name).to_series()],
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
    return fitted_table(columns, "text", width, right=right, title=title, title_justify="left")


def find_target(run: Run, named: str) -> pl.DataFrame:
    """Find a passage by its number, by document and window, or by how its target_id begins."""
    attack_of(run)
    if named.isdecimal() and 0 < len(named) <= _LONGEST_NUMBER and int(named):
        last = strongest(run, int(named))
        if last.height == int(named):
            return _targets(run, pl.col("target_id") == last["target_id"][-1])
    match = _WINDOW.fullmatch(named.strip())
    if (found := _of_document(run, match["name"] if match else named.strip())) is not None:
        return _one_window(found, match and int(match["number"].replace(",", "")))
    begins = _targets(run, pl.col("target_id").str.starts_with(named.lower()), 2)
    if begins.height == 1:
        return begins
    if begins.height:
        both = " and ".join(begins["target_id"])
        raise SettingsError(f"several target_ids begin with {named!r}: {both}; give more of it")
    documents = run.scan("targets").select(pl.col("document_id").drop_nulls().unique())
    names = documents.head(_MOST_COMPARED).collect(engine="streaming").to_series().sort().to_list()
    example = f"a document and window such as {f'{names[0]} window 1'!r}, " if names else ""
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
    stem, asked_stem = file.str.replace(r"\.[^.]+$", ""), re.sub(r"\.[^./]+$", "", asked)
    alike = (lower == asked) | (file == asked) | (stem == asked) | (lower == asked_stem)
    titled = pl.lit(value=False)
    if "rollup" in run.manifest.made and "title" in (rollup := run.scan("rollup")).collect_schema():
        title = pl.col("title").cast(pl.String).str.to_lowercase()
        keys = rollup.filter(title == asked, level="document").select("key").collect()
        titled = own.is_in(keys["key"].implode())
    windows = run.scan("targets").filter(alike | titled).select("target_id", "document_id")
    found = windows.collect(engine="streaming")
    documents = found["document_id"].unique().sort().to_list()
    exact = [each for each in documents if each == name] or documents
    if len(exact) > 1:
        raise SettingsError(f"{name!r} may be {_listed(exact)}; name one of them whole")
    if not exact:
        return None
    return run.scan("targets").filter(own == exact[0]).collect(engine="streaming")


def _one_window(windows: pl.DataFrame, number: int | None) -> pl.DataFrame:
    """Take the window of a number, counted from 1 as people see it, or the only one."""
    name, numbers = windows["document_id"][0], (windows["window_index"] + 1).sort().to_list()
    found = windows if number is None else windows.filter(window_index=number - 1)
    if found.height == 1:
        return found
    if found.height:
        if number is not None:
            ids = _listed(found["target_id"].to_list())
            raise SettingsError(f"{name!r} has several windows {number:,}; name a target_id: {ids}")
        such = f"{name} window {numbers[0]}"
        raise SettingsError(f"{name!r} has {windows.height:,} windows; name one, such as {such!r}")
    near = sorted(numbers, key=lambda each: abs(each - (number or 0)))[:3]
    there = "it has window" if len(near) == 1 else "the nearest are windows"
    some = ", ".join(map(str, sorted(near)))
    raise SettingsError(f"{name!r} has no window {number:,} in this run; {there} {some}")


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:_NAMED]]
    more = [f"{len(names) - _NAMED:,} more"] if len(names) > _NAMED else []
    return " or ".join(shown + more)
