"""Studies of the Min-K% paper (Shi et al. 2024, arXiv:2310.16789): books, and unlearning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

import click
import numpy as np
import polars as pl
from markupsafe import Markup

from mia_batch.cli import options as cli
from mia_batch.cli.help import TopicCommand
from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.diagnostics.blind import blind_baseline
from mia_batch.errors import RequestError, SettingsError
from mia_batch.extras.privacy.data import rows_of
from mia_batch.extras.study import frame
from mia_batch.features import embed_words, why_no_similarity
from mia_batch.inference.estimates import FEWEST_GROUPS
from mia_batch.kernels import pair_features
from mia_batch.metrics import evaluate
from mia_batch.pipeline import Run
from mia_batch.pipeline.results import attack_of
from mia_batch.report.html.plots import Lane, draw_lanes, round_axis
from mia_batch.stats import intervals
from mia_batch.tables import write_table
from mia_batch.targets import cluster_names

# Books (section 5): the share of each one's windows above a threshold that known books
# chose. In the paper the share has no error rate. Here known books have shares, too,
# each by a threshold that the others chose, and next to all of them stands what the
# audit reports at its own q.

_KINDS = {"target": "asked", "calibration": "learnt", "non_member": "not learnt"}
"""What is known of the books of a role."""
_PAPER: dict[str, Any] = {"window_words": 512, "max_windows_per_document": 100}
_SHOWN = ("key", "n_windows", "share", "mean", "p_value", "q_value", "verdict")
_TOP = 20


@click.command("books", cls=TopicCommand)
@cli.option(
    "known", cli.PATH, "PATH", "Whole books with a column that says which are members."
)
@cli.option(
    "known-members", cli.PATH, "PATH", "Or books known to be in the training data,"
)
@cli.option("known-others", cli.PATH, "PATH", "and books known not to be.")
@frame.study_options
@cli.settings_options(without=("out", "shard", "non_members", "calibration", "level"))
def books(*, out: Path, **options: Any) -> None:
    """Give the share of each book's windows above a threshold that known books chose.

    Of a book at most 100 windows of 512 words are asked about. Say how it is known that
    the others are not in the training data with --non-members-known.
    """
    known = [options.pop(name) for name in ("known", "known_members", "known_others")]
    if [each is None for each in known] not in (
        [False, True, True],
        [True, False, False],
    ):
        raise click.UsageError(
            "give --known, or both --known-members and --known-others"
        )
    with frame.opened(out, "books", options) as study:
        settings = (
            _PAPER
            | cli.select_given(options)
            | {"level": "group"}
            | _written(study, *known)
        )
        if (run := study.audited("run", settings)) is None:
            return
        table, said = _shares(run)
        names = [name.replace("_", " ") for name in _SHOWN]
        top = table.filter(kind="asked").head(_TOP).select(_SHOWN).rows()
        rows = (
            ["-" if cell is None else frame.written(cell) for cell in row]
            for row in top
        )
        frame.show(*names, right=names[1:-1], rows=rows)
        cli.say(*said)
        lanes = [
            Lane(
                f"{kind}: {rows.height:,} books",
                rows["share"].to_list(),
                hollow=kind != "asked",
            )
            for (kind,), rows in table.drop_nulls("share").group_by(
                "kind", maintain_order=True
            )
        ]
        axis = round_axis("share of windows above the threshold", [0, 1])
        frame.write_study(out, table, draw_lanes(axis, lanes) if lanes else None)


def _written(
    study: frame.Study, known: Path | None, *each: Path | None
) -> dict[str, Any]:
    """Write known books as the audit takes them: members calibrate, others are compared."""
    paths = dict[str, Any]()
    for setting, path in zip(("calibration", "non_members"), each, strict=True):
        corpus, member = read_documents(str(path or known), ColumnNames()), not paths
        wanted = corpus.documents if path else corpus.documents.filter(member=member)
        books = wanted.with_columns(member=pl.lit(member)).collect(engine="streaming")
        if books.is_empty():
            raise SettingsError(
                f"no known book has member = {member}; some of both are needed"
            )
        for place, reason in (corpus.ignored | corpus.set_aside).items():
            study.observer.stage(f"left out of {path or known}: {place}: {reason}")
        paths[setting] = study.folder / f"known-{setting}.parquet"
        there = [column.name for column in books if column.null_count() < books.height]
        write_table(books[there], paths[setting])
    return paths


def _shares(run: Run) -> tuple[pl.DataFrame, list[str]]:
    """Lay out the share of each book, null where a threshold is worth nothing, and what it says."""
    primary, role = run.manifest.plan["primary"], pl.col("role").cast(pl.String)
    scored = run["scores"].filter(role.is_in([*_KINDS]), pl.col(primary).is_finite())
    windows = scored.select(
        *("target_id", "group", "document_id"),
        key=pl.coalesce("document_id", "target_id"),
        kind=role.replace_strict(_KINDS),
        member=role == "calibration",
        score=primary,
    )
    known = windows.filter(pl.col("kind") != "asked")
    said, reason = _worth(run, known)
    made = [] if reason else [*_thresholded(windows, known)]
    names = {
        "kind": pl.String,
        "key": pl.String,
        "threshold": pl.Float64,
        "share": pl.Float64,
    }
    ours = run["rollup"].select(
        "key", "p_value", "q_value", pl.col("verdict").cast(pl.String)
    )
    table = (
        windows.group_by("kind", "key")
        .agg(n_windows=pl.len(), mean=pl.col("score").mean())
        .join(pl.DataFrame(made, names, orient="row"), on=["kind", "key"], how="left")
        .join(ours, on="key", how="left")
        .with_columns(reason=pl.lit(reason, pl.String))
        .sort("kind", -pl.col("share"), -pl.col("mean"), "key", nulls_last=True)
    )
    if reason:
        return table, [*said, f"No share is given: {reason}."]
    of = {kind: rows["share"].sort() for (kind,), rows in table.group_by("kind")}
    for kind in ("learnt", "not learnt"):
        low, median, high = (of[kind].quantile(q) for q in (0, 0.5, 1))
        said.append(
            f"{len(of[kind]):,} books known as {kind}: {low:.0%} to {high:.0%} of a"
            f" book's windows are above, median {median:.0%}, by the threshold that the"
            " other known books choose."
        )
    beyond = (of["asked"] > of["not learnt"].max()).sum()
    said.append(
        f"{beyond:,} of {len(of['asked']):,} books have a larger share than every book"
        " known as not learnt. Shares have no error rate, and are not shares of what"
        " was learnt; p and q have one."
    )
    return table, said


def _worth(run: Run, known: pl.DataFrame) -> tuple[list[str], str | None]:
    """Say how well scores separate known windows, and why a threshold would mean nothing."""
    n_in, n_out = (
        known.filter(kind=kind)["key"].n_unique() for kind in ("learnt", "not learnt")
    )
    if min(n_in, n_out) < FEWEST_GROUPS:
        few = (
            f"{n_in:,} books known as learnt and {n_out:,} known as not learnt are"
            " too few"
        )
        return [], f"{few} to choose a threshold, {FEWEST_GROUPS} of each are needed"
    rows = evaluate(known.lazy(), ["score"], preset="default").filter(
        slice="all", metric="roc_auc"
    )
    area, settings = rows.row(0, named=True), run.manifest.settings
    said = [
        f"The scores separate known windows with AUC {area['value']:.3f}"
        f" ({cli.limits(area)})."
    ]
    if area["low"] is None or area["low"] <= 0.5:
        return (
            said,
            f"that is no better than chance ({area['reason'] or 'by its interval'})",
        )
    labels = known.lazy().select("target_id", "member")
    texts = run.scan("targets").drop("member").join(labels, on="target_id")
    blind = blind_baseline(texts, seed=settings["seed"])
    if blind.verdict == "separable" and not settings["exploratory"]:
        without = f"a classifier that never sees the model has AUC {blind.auc:.3f}"
        return (
            said,
            f"{without}, so the threshold may be one of kinds of books (--exploratory)",
        )
    return said, None


def _thresholded(
    windows: pl.DataFrame, known: pl.DataFrame
) -> Iterator[tuple[Any, ...]]:
    """Yield kind, book, threshold and share; a known book has no say in its own threshold."""
    for (kind, key), own in windows.group_by("kind", "key"):
        others = known if kind == "asked" else known.filter(pl.col("key") != key)
        curve = intervals.roc_curve(
            others["member"].to_numpy(), others["score"].to_numpy()
        )
        # Of the highest accuracy, both kinds alike
        threshold = curve.widest_gap().threshold
        yield kind, key, threshold, (own["score"] >= threshold).mean()


# Unlearning (section 7): the model before, after, and one that never learnt the texts.
# They are screened by the ratio of their Min-K% Prob under two models, and completed;
# questions about them are answered.

_SCREEN, _NEAREST = "min_k_20_v1", 1.15
"""The attack whose ratio screens texts, and the largest ratio that is as before (section 7.2.1)."""
_PARTS = {"texts": "samia_matched_v1", "questions": "rouge_l_v1"}
"""What is audited, and an attack that has it answered at the length that is compared."""
_DEFAULTS = {"samples": 20, "top_k": 0}  # multinomial sampling
_QUESTION_TOKENS = 256  # most of a question and an answer
_TEXT_SETTINGS = {
    "window_words",
    "window_characters",
    "max_windows_per_document",
    "prefix_ratio",
}
_FIXED = {
    "evidence",
    "attacks",
    "preset",
    "stride",
    "prefix_column",
    "reference_column",
}
_MEASURES = {
    "as_before": "scored as before",
    "min_k": "Min-20% Prob",
    "rouge_l": "ROUGE-L recall",
    "similarity": "similarity",
}
# Of what retraining removes: limits are over texts, and trainings differ by chance,
# too.
_SEEDS = 0.1
_EQUAL = "it is the same in all groups of texts, so that its spread is unknown"
_LEARNT = pl.col("member").ne_missing(other=False)  # and no control
_KEYS = ("part", "set", "measure", "run", "versus", "statistic")
_REMOVED = ("after", "before", "removed_share")
_FIGURES: dict[str, Any] = dict.fromkeys((*_KEYS, "reason"), pl.String)
_FIGURES |= dict.fromkeys(("value", "low", "high"), pl.Float64)
_FIGURES |= dict.fromkeys(("n", "n_unscored"), pl.UInt32)


@click.command("unlearning", cls=TopicCommand)
@cli.option(
    "before",
    str,
    "MODEL",
    "Model before unlearning, where --model is after.",
    required=True,
)
@cli.option(
    "retrained", str, "MODEL", "One that was trained in the same way without the texts."
)
@cli.option("question-column", str, "COLUMN", "Column of questions about the texts.")
@cli.option("answer-column", str, "COLUMN", "Column of their answers.")
@cli.option("embedder", str, "MODEL", "What embeds completions.  [default: WordLlama]")
@frame.study_options
@cli.settings_options(without=("out", "shard", *_FIXED))
def unlearning(*, out: Path, **options: Any) -> None:
    """Say how many texts an unlearned model still remembers as it did before.

    Texts are cut with --window-words; half of a window is completed, so that 400 gives
    completions of 200 words. Without --retrained a score as before is no memory: nobody
    knows how a model that never learnt the text would score it.
    """
    names = ("question_column", "answer_column", "embedder", "before", "retrained")
    *columns, embedder, before, retrained = map(options.pop, names)
    if columns.count(None) == 1:
        raise click.UsageError("--question-column and --answer-column belong together")
    models = cli.select_given(
        {"before": before, "after": options["model"], "retrained": retrained}
    )
    if "after" not in models:
        raise click.UsageError("--model is missing: the model after unlearning")
    with frame.opened(out, "unlearning", options) as study:
        settings = _DEFAULTS | cli.select_given(options)
        embed = _embedder(embedder, study)
        parts = {"texts": settings}
        if None not in columns:
            parts["questions"] = _of_questions(
                study.folder / "asked.parquet", settings, columns
            )
        found = dict[str, pl.DataFrame]()
        for part, how in parts.items():
            asked = {**how, "attacks": (_SCREEN, _PARTS[part])}
            runs = dict[str, Run]()
            for name, model in models.items():
                try:
                    run = study.audited(f"{part}-{name}", asked | {"model": model})
                except RequestError as error:
                    raise type(error)(f"the model {name}: {error}") from error
                runs |= {} if run is None else {name: run}
            if runs:
                found[part] = _paired(runs, part, embed)
        if not found:
            return
        figures = figures_of(found, [*models])
        cli.say(*conclusions(figures))
        _show(figures, [*models])
        for part, some in found.items():
            write_table(some.drop("cluster"), out / f"{part}.parquet")
        frame.write_study(out, figures, _drawn(found, [*models]))


def _drawn(found: Mapping[str, pl.DataFrame], names: Sequence[str]) -> Markup | None:
    """Draw the screen's scores of what was learnt, a line for each part and model."""
    scores = {
        f"{part}, {name}": some.filter(_LEARNT)[f"min_k_{name}"].drop_nulls().to_list()
        for (part, some), name in product(found.items(), names)
    }
    lanes = [Lane(f"{name}: {len(of):,}", of) for name, of in scores.items() if of]
    axis = (
        round_axis(_MEASURES["min_k"], chain.from_iterable(scores.values()))
        if lanes
        else None
    )
    return axis and draw_lanes(axis, lanes)


def _of_questions(
    path: Path, settings: Mapping[str, Any], columns: Sequence[str]
) -> dict[str, Any]:
    """Write questions and answers as prefixes and references, and say how they are audited."""
    rows = rows_of(settings["input"], columns).drop_nulls()
    question, answer = map(pl.col, columns)
    rows = rows.select(
        text=question, prefix=question, reference=pl.format(" {}", answer)
    )
    write_table(rows, path)
    kept = {name for name in settings if not name.endswith("_column")} - _TEXT_SETTINGS
    own = {name: settings[name] for name in kept}
    return {"max_length": _QUESTION_TOKENS} | own | {"input": str(path)}


def _embedder(model: str | None, study: frame.Study) -> Any:
    """Open what embeds texts: a model, or WordLlama's mean of tokens; None if that is missing."""
    if model is not None:
        from mia_batch.extras.privacy.inversion.models import embed_all, open_embedder

        where: dict[str, Any] = {
            "folder": study.folder / "embeddings",
            "observer": study.observer,
        }
        return partial(embed_all, embedder=open_embedder(model), **where)
    if (reason := why_no_similarity()) is not None:
        study.observer.stage(f"completions are not compared by embeddings: {reason}")
        return None
    return embed_words


def _paired(runs: Mapping[str, Run], part: str, embed: Any) -> pl.DataFrame:
    """Lay out what each model makes of each text; null where it has no score or no completion."""
    attack_of([*runs.values()], _SCREEN)  # refuses runs that do not compare
    scores = (
        runs["before"]
        .scan("scores")
        .filter(pl.col("role").is_in(["target", "non_member"]))
    )
    keys = ("target_id", "document_id", "window_index", "member")
    table = scores.select(*keys, cluster=cluster_names(scores)).collect()
    for name, run in runs.items():
        own = run["scores"].select("target_id", min_k=_SCREEN)
        own = own.join(_completions(run, part, embed), on="target_id", how="left")
        named = own.select(
            "target_id", pl.all().exclude("target_id").name.suffix(f"_{name}")
        )
        near = pl.col(f"min_k_{name}") / pl.col("min_k_before")
        ratio = pl.when(near.is_finite()).then(near)
        table = table.join(
            named, on="target_id", how="left", maintain_order="left"
        ).with_columns(
            ratio.alias(f"ratio_{name}"),
            ratio.is_between(1 / _NEAREST, _NEAREST)
            .cast(pl.Float64)
            .alias(f"as_before_{name}"),
        )
    return table


def _completions(run: Run, part: str, embed: Any) -> pl.DataFrame:
    """Compare completions with the true ones: means over those of a text."""
    true = run.scan("targets").select("target_id", "reference")
    rows = run.scan("samples").filter(
        pl.col("candidate").is_not_null(), view="continuation"
    )
    pairs = rows.select("target_id", "candidate").join(true, on="target_id").collect()
    words = run.manifest.evidence["word_rule"]
    compared = pair_features(
        "candidate", "reference", words=words, groups=["lcs", "matched"]
    )
    counts = pairs.select(compared).unnest("features")
    shared = "lcs_words_matched" if part == "texts" else "lcs_words"
    measured = {"rouge_l": counts[shared] / counts["words_reference"]}
    if embed is not None:
        said = pl.concat([pairs["candidate"], pairs["reference"]])
        vectors = iter(embed(said.filter(said.str.contains(r"\S")).to_list()))
        found = [next(vectors) if text.strip() else np.zeros(1) for text in said]
        cosines = [  # 0 of a blank text, None where one could not be embedded
            (
                None
                if isinstance(one, str) or isinstance(other, str)
                else float(
                    (one * other).sum()
                    / (np.linalg.norm(one) * np.linalg.norm(other) or 1)
                )
            )
            for one, other in zip(
                found[: pairs.height], found[pairs.height :], strict=True
            )
        ]
        measured["similarity"] = pl.Series(cosines, dtype=pl.Float64)
    return (
        pairs.select("target_id", **measured).group_by("target_id").agg(pl.all().mean())
    )


def figures_of(found: Mapping[str, pl.DataFrame], names: Sequence[str]) -> pl.DataFrame:
    """Lay out the figures of each part, a fact a row, over what all models have measured."""
    rows = (
        {"part": part} | row
        for part, some in found.items()
        for row in _sets(some, names)
    )
    return pl.DataFrame(rows, _FIGURES)


def _sets(found: pl.DataFrame, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield figures of the texts, of those scored as before and of the others; of controls."""
    near = pl.col("as_before_after")
    sets = {
        "all": _LEARNT,
        "as before": _LEARNT & (near == 1),
        "others": _LEARNT & (near == 0),
    }
    for (name, of), measure in product(
        (sets | {"controls": ~_LEARNT}).items(), _MEASURES
    ):
        is_share, some = measure == "as_before", found.filter(of)
        columns = {each: f"{measure}_{each}" for each in names[is_share:]}
        if (
            some.is_empty()
            or columns["after"] not in some.columns
            or (is_share and name in ("as before", "others"))  # which it chose
        ):
            continue
        there = some.select("cluster", *columns.values()).drop_nulls()
        n = {"n": there.height, "n_unscored": some.height - there.height}
        score = {each: there[column].to_numpy() for each, column in columns.items()}
        for fact in _facts(score, there["cluster"].to_numpy(), is_share=is_share):
            yield {"set": name, "measure": measure, **n, **fact}


def _facts(
    score: Mapping[str, np.ndarray], cluster: np.ndarray, *, is_share: bool
) -> Iterator[dict[str, Any]]:
    """Yield means, differences and what is removed, with intervals over whole clusters.

    Shares have Clopper-Pearson limits, and their difference those limits joined as if
    its sides were independent (Zou and Donner 2008, equations 1 and 2): wide, but never
    of zero width.
    """
    pairs = [("after", "before"), ("retrained", "before"), ("after", "retrained")]
    wanted = [
        *((run, None) for run in score),
        *(pair for pair in pairs if {*pair} <= {*score}),
    ]
    if not cluster.size:
        reason = "no text is measured under every model"
        yield from (
            {"run": run, "statistic": "mean", "reason": reason} for run in score
        )
        return
    values = [score[run] - (score[versus] if versus else 0) for run, versus in wanted]
    codes = np.unique(cluster, return_inverse=True)[1]
    means = intervals.cluster_means(
        np.stack(values, axis=1), np.zeros(codes.size, np.intp), codes
    )
    value, half, worth = (
        means.value[0],
        means.half_widths()[0],
        float(means.effective[0]),
    )
    low, high = value - half, value + half
    if is_share and means.enough[0]:
        sizes = [
            intervals.independent_number(each == 1, codes) for each in score.values()
        ]
        exact = [
            intervals.clopper_pearson(p * n, n)
            for p, n in zip(value, sizes, strict=False)
        ]
        low, high = (
            np.array([getattr(each, end) for each in exact]) for end in ("low", "high")
        )
        if len(exact) > 1:
            below, above = value[:2] - low, high - value[:2]
            low = np.append(low, value[2] - np.hypot(below[0], above[1]))
            high = np.append(high, value[2] + np.hypot(above[0], below[1]))
    lack = _EQUAL if means.enough[0] else intervals.few(worth)
    for at, (run, versus) in enumerate(wanted):
        fact = {
            "run": run,
            "versus": versus,
            "statistic": "difference" if versus else "mean",
        }
        ends = (
            {"low": low[at], "high": high[at]}
            if np.isfinite(low[at])
            else {"reason": lack}
        )
        yield fact | {"value": value[at]} | ends
    if len(score) > 2:
        both = [wanted.index(pair) for pair in pairs[:2]]
        covariance = means.covariance[0][np.ix_(both, both)]
        share = intervals.removed_share(-value[both], covariance, worth)
        limits = share.interval._asdict() if share.interval else {}
        about = dict(zip(_KEYS[3:], _REMOVED, strict=True))
        yield {**about, **limits, "value": share.value, "reason": share.reason}


def conclusions(figures: pl.DataFrame) -> Iterator[str]:
    """Yield what may be said of each part: first how much is as before, then what is gone."""
    rows = {
        tuple(row[key] for key in _KEYS): row for row in figures.iter_rows(named=True)
    }
    for part in dict.fromkeys(figures["part"]):
        key = (part, "all", "as_before")
        one, other = (
            rows.get((*key, run, None, "mean")) for run in ("after", "retrained")
        )
        if one is None or one["value"] is None:
            reason = one["reason"] if one else "the study has none"
            yield f"Nothing can be said of {part}: {reason}."
            continue
        n, unscored = one["n"], one["n_unscored"]
        near = f"{one['value'] * n:.0f} of {n:,} {part} are scored as before unlearning"
        near += f" ({unscored:,} have no score)" if unscored else ""
        if other is None:
            yield (
                f"{near}. Whether they are still remembered cannot be said without"
                " --retrained, a model trained in the same way without them: it may"
                " score them as before, too."
            )
            continue
        shares = (
            (each, rows.get((part, "all", each, *_REMOVED))) for each in _MEASURES
        )
        gone = [(_MEASURES[each], share) for each, share in shares if share is not None]
        gap, alike = (
            rows[*key, "after", "retrained", "difference"],
            round(other["value"] * n),
        )
        yield (
            f"{_verdict(gap, part, gone[0][1] if gone else {})}: {near}, and {alike:,}"
            f" by the retrained model, so that no more than {n - alike:,} can be shown."
        )
        yield from (f"{part}, {measure}: {_removed(share)}." for measure, share in gone)


def _verdict(gap: Mapping[str, Any], part: str, gone: Mapping[str, Any]) -> str:
    """Say how many more are as before than of a model that never learnt them, or what is gone."""
    n, low, high = gap["n"], gap["low"], gap["high"]
    if low is None:
        return f"Whether {part} are still remembered cannot be said ({gap['reason']})"
    if low > 0:
        ends = f"{low * n:.0f} to {min(1, high) * n:.0f}"
        still = f"{gap['value'] * n:.0f} of {n:,} {part} are still remembered as before"
        return f"{still} (95 %: {ends})"
    if (gone.get("high") or 1) < 1 - _SEEDS:
        less = ", if less than before" if gone["low"] > 0 else ""
        return f"{part.capitalize()} are still remembered{less}"
    if (gone.get("low") or 1) > 1 + _SEEDS:
        return (
            f"Unlearning went further than never having learnt the {part}, and so marks"
            " them"
        )
    most = f" (95 %: at most {high * n:.0f} of {n:,})" if high > 0 else ""
    return f"Nothing shows that {part} are still remembered as before{most}"


def _removed(share: Mapping[str, Any]) -> str:
    if share["value"] is None:
        return f"how much of the memory is gone cannot be said: {share['reason']}"
    said = f"{share['value'] + 0.0:.0%} of what retraining would remove is gone"
    if share["low"] is None:
        return f"{said}; {share['reason']}"
    return f"{said} (95 %: {share['low']:.0%} to {share['high']:.0%})"


def _show(figures: pl.DataFrame, names: Sequence[str]) -> None:
    """Print the models side by side, a line for each measure of a set of texts."""
    lines = list[list[str]]()
    for key, rows in figures.group_by("part", "set", "measure", maintain_order=True):
        means = dict(rows.filter(statistic="mean").select("run", "value").iter_rows())
        gap = next(
            rows.filter(run="after", versus="retrained").iter_rows(named=True), None
        )
        lines.append(
            [str(key[0]), str(key[1]), _MEASURES[str(key[2])], f"{rows['n'][0]:,}"]
        )
        lines[-1] += [cli.figure(means.get(name)) for name in names]
        lines[-1] += (
            [cli.figure(gap["value"]), cli.limits(gap)] if gap is not None else []
        )
    right = (
        "n",
        *names,
        *(("after - retrained", "95 % interval") if len(names) > 2 else ()),
    )
    frame.show("part", "texts", "measure", *right, right=right, rows=lines)
