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
from mia_batch.extras.privacy.data import read_rows
from mia_batch.extras.study import frame
from mia_batch.features import embed_words, why_no_similarity
from mia_batch.inference.estimates import FEWEST_GROUPS
from mia_batch.kernels import pair_features
from mia_batch.metrics import evaluate
from mia_batch.pipeline import Run
from mia_batch.pipeline.results import choose_attack
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
_ABOUT = ("author", "year")
"""Columns of the files of books that stand beside each book, where there are any."""


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
    labelled = options.pop("known")
    members = options.pop("known_members")
    nonmembers = options.pop("known_others")
    is_given = [path is not None for path in (labelled, members, nonmembers)]
    if is_given not in ([True, False, False], [False, True, True]):
        raise click.UsageError(
            "give --known, or both --known-members and --known-others"
        )
    with frame.open_study(out, "books", options) as study:
        settings = _PAPER | cli.select_given(options) | {"level": "group"}
        settings |= _write_known_books(study, labelled, members, nonmembers)
        run = study.audit("run", settings)
        if run is None:
            return
        table, sentences = _build_shares(run)
        key, *numbers = _SHOWN
        about = [name for name in _ABOUT if name in table.columns]
        shown = table.filter(kind="asked").head(_TOP).select(key, *about, *numbers)
        lines = []
        for row in shown.rows():
            cells = ["-" if cell is None else frame.format_value(cell) for cell in row]
            lines.append(cells)
        headings = [name.replace("_", " ") for name in shown.columns]
        frame.show(*headings, right=headings[1 + len(about) : -1], rows=lines)
        cli.say(*sentences)
        frame.write_study(out, table, _draw_shares(table))


def _write_known_books(
    study: frame.Study,
    labelled: Path | None,
    members: Path | None,
    nonmembers: Path | None,
) -> dict[str, Any]:
    """Write known books as an audit reads them, and return its settings: members calibrate."""
    settings: dict[str, Any] = {}
    for setting, is_member, path in (
        ("calibration", True, members),
        ("non_members", False, nonmembers),
    ):
        source = path or labelled
        corpus = read_documents(str(source), ColumnNames())
        documents = corpus.documents
        if path is None:
            documents = documents.filter(member=is_member)
        labelled_documents = documents.with_columns(member=pl.lit(is_member))
        known_books = labelled_documents.collect(engine="streaming")
        if known_books.is_empty():
            raise SettingsError(
                f"no known book has member = {is_member}; some of both are needed"
            )
        for place, reason in (corpus.ignored | corpus.set_aside).items():
            study.observer.stage(f"left out of {source}: {place}: {reason}")
        settings[setting] = study.folder / f"known-{setting}.parquet"
        columns = [
            column.name
            for column in known_books
            if column.null_count() < known_books.height
        ]
        write_table(known_books[columns], settings[setting])
    return settings


def _build_shares(run: Run) -> tuple[pl.DataFrame, list[str]]:
    """Build a table with the share of each book, and sentences about it.

    Shares are null where a threshold would mean nothing.
    """
    primary = run.manifest.plan["primary"]
    role = pl.col("role").cast(pl.String)
    scored = run["scores"].filter(role.is_in([*_KINDS]), pl.col(primary).is_finite())
    about = [name for name in _ABOUT if name in scored.columns]
    windows = scored.select(
        *("target_id", "group", "document_id", *about),
        key=pl.coalesce("document_id", "target_id"),
        kind=role.replace_strict(_KINDS),
        member=role == "calibration",
        score=primary,
    )
    known_windows = windows.filter(pl.col("kind") != "asked")
    sentences, reason = _check_separation(run, known_windows)
    shares: list[tuple[Any, ...]] = []
    if not reason:
        shares.extend(_compute_shares(windows, known_windows))
    schema = {
        "kind": pl.String,
        "key": pl.String,
        "threshold": pl.Float64,
        "share": pl.Float64,
    }
    share_table = pl.DataFrame(shares, schema, orient="row")
    verdict = pl.col("verdict").cast(pl.String)
    rollup = run["rollup"].select("key", "p_value", "q_value", verdict)
    table = (
        windows.group_by("kind", "key")
        .agg(pl.col(about).first(), n_windows=pl.len(), mean=pl.col("score").mean())
        .join(share_table, on=["kind", "key"], how="left")
        .join(rollup, on="key", how="left")
        .with_columns(reason=pl.lit(reason, pl.String))
        .sort(
            "kind",
            -pl.col("share"),
            -pl.col("mean"),
            "key",
            nulls_last=True,
        )
    )
    if reason:
        return table, [*sentences, f"No share is given: {reason}."]
    return table, [*sentences, *_describe_shares(table)]


def _describe_shares(table: pl.DataFrame) -> Iterator[str]:
    shares = {kind: rows["share"].sort() for (kind,), rows in table.group_by("kind")}
    for kind in ("learnt", "not learnt"):
        low, median, high = (shares[kind].quantile(level) for level in (0, 0.5, 1))
        yield (
            f"{len(shares[kind]):,} books known as {kind}: {low:.0%} to {high:.0%} of a"
            f" book's windows are above, median {median:.0%}, by the threshold that the"
            " other known books choose."
        )
    is_above_all = shares["asked"] > shares["not learnt"].max()
    yield (
        f"{is_above_all.sum():,} of {len(shares['asked']):,} books have a larger share"
        " than every book known as not learnt. Shares have no error rate, and are not"
        " shares of what was learnt; p and q have one."
    )


def _check_separation(
    run: Run, known_windows: pl.DataFrame
) -> tuple[list[str], str | None]:
    """Return how well scores separate known windows, and why a threshold would mean nothing."""
    n_learnt, n_not_learnt = (
        known_windows.filter(kind=kind)["key"].n_unique()
        for kind in ("learnt", "not learnt")
    )
    if min(n_learnt, n_not_learnt) < FEWEST_GROUPS:
        return [], (
            f"{n_learnt:,} books known as learnt and {n_not_learnt:,} known as not"
            " learnt are too few to choose a threshold,"
            f" {FEWEST_GROUPS} of each are needed"
        )
    metrics = evaluate(known_windows.lazy(), ["score"], preset="default")
    areas = metrics.filter(slice="all", metric="roc_auc")
    area = areas.row(0, named=True)
    sentences = [
        f"The scores separate known windows with AUC {area['value']:.3f}"
        f" ({cli.limits(area)})."
    ]
    if area["low"] is None or area["low"] <= 0.5:
        reason = area["reason"] or "by its interval"
        return sentences, f"that is no better than chance ({reason})"
    settings = run.manifest.settings
    labels = known_windows.lazy().select("target_id", "member")
    texts = run.scan("targets").drop("member").join(labels, on="target_id")
    blind = blind_baseline(texts, seed=settings["seed"])
    if blind.verdict == "separable" and not settings["exploratory"]:
        return sentences, (
            f"a classifier that never sees the model has AUC {blind.auc:.3f}, so the"
            " threshold may be one of kinds of books (--exploratory)"
        )
    return sentences, None


def _compute_shares(
    windows: pl.DataFrame, known_windows: pl.DataFrame
) -> Iterator[tuple[Any, ...]]:
    """Iterate over kind, book, threshold and share; no known book chooses its own threshold."""
    for (kind, key), book in windows.group_by("kind", "key"):
        choosing = known_windows
        if kind != "asked":
            choosing = known_windows.filter(pl.col("key") != key)
        curve = intervals.roc_curve(
            choosing["member"].to_numpy(), choosing["score"].to_numpy()
        )
        # Of the highest accuracy, both kinds alike
        threshold = curve.widest_gap().threshold
        yield kind, key, threshold, (book["score"] >= threshold).mean()


def _draw_shares(table: pl.DataFrame) -> Markup | None:
    """Draw the shares of books, a line for each kind; None without books."""
    shares = table.drop_nulls("share")
    lanes = []
    for (kind,), rows in shares.group_by("kind", maintain_order=True):
        name = f"{kind}: {rows.height:,} books"
        lanes.append(Lane(name, rows["share"].to_list(), hollow=kind != "asked"))
    if not lanes:
        return None
    axis = round_axis("share of windows above the threshold", [0, 1])
    return draw_lanes(axis, lanes)


# Unlearning (section 7): the model before, after, and one that never learnt the texts.
# They are screened by the ratio of their Min-K% Prob under two models, and completed;
# questions about them are answered.

_SCREEN = "min_k_20_v1"
"""The attack whose ratio screens texts."""
_NEAREST = 1.15
"""The largest ratio that is as before (section 7.2.1)."""
_ATTACKS = {"texts": "samia_matched_v1", "questions": "rouge_l_v1"}
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
# A share of what retraining removes: limits are over texts, and trainings differ by
# chance, too.
_SEEDS = 0.1
_EQUAL = "it is the same in all groups of texts, so that its spread is unknown"
_LEARNT = pl.col("member").ne_missing(other=False)  # and no control
_KEYS = ("part", "set", "measure", "run", "versus", "statistic")
_REMOVED = ("after", "before", "removed_share")
_COMPARED = [("after", "before"), ("retrained", "before"), ("after", "retrained")]
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
    columns = [options.pop("question_column"), options.pop("answer_column")]
    if columns.count(None) == 1:
        raise click.UsageError("--question-column and --answer-column belong together")
    embedder = options.pop("embedder")
    models = cli.select_given(
        {
            "before": options.pop("before"),
            "after": options["model"],
            "retrained": options.pop("retrained"),
        }
    )
    if "after" not in models:
        raise click.UsageError("--model is missing: the model after unlearning")
    with frame.open_study(out, "unlearning", options) as study:
        settings = _DEFAULTS | cli.select_given(options)
        embed = _open_embedder(embedder, study)
        audits = {"texts": settings}
        if None not in columns:
            path = study.folder / "asked.parquet"
            audits["questions"] = _write_questions(path, settings, columns)
        tables: dict[str, pl.DataFrame] = {}
        for subject, audit_settings in audits.items():
            runs = _audit_models(study, subject, audit_settings, models)
            if runs:
                tables[subject] = _compare_models(runs, subject, embed)
        if not tables:
            return
        figures = build_figures(tables, [*models])
        cli.say(*conclusions(figures))
        _print_figures(figures, [*models])
        for subject, table in tables.items():
            write_table(table.drop("cluster"), out / f"{subject}.parquet")
        frame.write_study(out, figures, _draw_scores(tables, [*models]))


def _audit_models(
    study: frame.Study,
    subject: str,
    settings: Mapping[str, Any],
    models: Mapping[str, str],
) -> dict[str, Run]:
    """Return the run of each model; none of a dry run."""
    attacks = (_SCREEN, _ATTACKS[subject])
    runs: dict[str, Run] = {}
    for name, model in models.items():
        model_settings = {**settings, "attacks": attacks, "model": model}
        try:
            run = study.audit(f"{subject}-{name}", model_settings)
        except RequestError as error:
            raise type(error)(f"the model {name}: {error}") from error
        if run is not None:
            runs[name] = run
    return runs


def _draw_scores(
    tables: Mapping[str, pl.DataFrame], names: Sequence[str]
) -> Markup | None:
    """Draw the screen's scores of what was learnt, a line for each table and model."""
    lanes = []
    for (subject, table), name in product(tables.items(), names):
        scores = table.filter(_LEARNT)[f"min_k_{name}"].drop_nulls().to_list()
        if scores:
            lanes.append(Lane(f"{subject}, {name}: {len(scores):,}", scores))
    if not lanes:
        return None
    values = chain.from_iterable(lane.values for lane in lanes)
    return draw_lanes(round_axis(_MEASURES["min_k"], values), lanes)


def _write_questions(
    path: Path, settings: Mapping[str, Any], columns: Sequence[str]
) -> dict[str, Any]:
    """Write questions and answers as prefixes and references; return the audit's settings."""
    rows = read_rows(settings["input"], columns).drop_nulls()
    question, answer = map(pl.col, columns)
    rows = rows.select(
        text=question, prefix=question, reference=pl.format(" {}", answer)
    )
    write_table(rows, path)
    shared_settings = {
        name: value
        for name, value in settings.items()
        if name not in _TEXT_SETTINGS and not name.endswith("_column")
    }
    return {"max_length": _QUESTION_TOKENS} | shared_settings | {"input": str(path)}


def _open_embedder(model: str | None, study: frame.Study) -> Any:
    """Return what embeds texts: a model, or WordLlama's mean of tokens; None if that is missing."""
    if model is not None:
        from mia_batch.extras.privacy.inversion.models import embed_all, open_embedder

        return partial(
            embed_all,
            embedder=open_embedder(model),
            folder=study.folder / "embeddings",
            observer=study.observer,
        )
    if (reason := why_no_similarity()) is not None:
        study.observer.stage(f"completions are not compared by embeddings: {reason}")
        return None
    return embed_words


def _compare_models(runs: Mapping[str, Run], subject: str, embed: Any) -> pl.DataFrame:
    """Build a table of texts with columns of each model; null where it has no score."""
    choose_attack([*runs.values()], _SCREEN)  # refuses runs that do not compare
    has_question = pl.col("role").is_in(["target", "non_member"])
    scores = runs["before"].scan("scores").filter(has_question)
    keys = ("target_id", "document_id", "window_index", "member")
    table = scores.select(*keys, cluster=cluster_names(scores)).collect()
    for name, run in runs.items():
        completions = _compare_completions(run, subject, embed)
        measures = run["scores"].select("target_id", min_k=_SCREEN)
        measures = measures.join(completions, on="target_id", how="left")
        columns = pl.all().exclude("target_id").name.suffix(f"_{name}")
        measures = measures.select("target_id", columns)
        table = table.join(
            measures,
            on="target_id",
            how="left",
            maintain_order="left",
        )
        ratio = pl.col(f"min_k_{name}") / pl.col("min_k_before")
        ratio = pl.when(ratio.is_finite()).then(ratio)
        is_as_before = ratio.is_between(1 / _NEAREST, _NEAREST)
        table = table.with_columns(
            ratio.alias(f"ratio_{name}"),
            is_as_before.cast(pl.Float64).alias(f"as_before_{name}"),
        )
    return table


def _compare_completions(run: Run, subject: str, embed: Any) -> pl.DataFrame:
    """Compare completions with the true ones: means over those of a text."""
    references = run.scan("targets").select("target_id", "reference")
    completions = run.scan("samples").filter(
        pl.col("candidate").is_not_null(), view="continuation"
    )
    completions = completions.select("target_id", "candidate")
    pairs = completions.join(references, on="target_id").collect()
    features = pair_features(
        "candidate",
        "reference",
        words=run.manifest.evidence["word_rule"],
        groups=["lcs", "matched"],
    )
    counts = pairs.select(features).unnest("features")
    shared_words = "lcs_words_matched" if subject == "texts" else "lcs_words"
    measures = {"rouge_l": counts[shared_words] / counts["words_reference"]}
    if embed is not None:
        texts = pl.concat([pairs["candidate"], pairs["reference"]])
        is_blank = ~texts.str.contains(r"\S")
        embedded = iter(embed(texts.filter(~is_blank).to_list()))
        vectors = [next(embedded) if text.strip() else np.zeros(1) for text in texts]
        cosines = map(_compute_cosine, vectors[: pairs.height], vectors[pairs.height :])
        measures["similarity"] = pl.Series(list(cosines), dtype=pl.Float64)
    measured = pairs.select("target_id", **measures)
    return measured.group_by("target_id").agg(pl.all().mean())


def _compute_cosine(first: Any, second: Any) -> float | None:
    """Return the cosine of two embeddings: 0 of a zero one, None where one is only a reason."""
    if isinstance(first, str) or isinstance(second, str):
        return None
    norms = np.linalg.norm(first) * np.linalg.norm(second)
    return float((first * second).sum() / (norms or 1))


def build_figures(
    tables: Mapping[str, pl.DataFrame], names: Sequence[str]
) -> pl.DataFrame:
    """Build the figures of each table, a fact a row, over what all models have measured."""
    rows: list[dict[str, Any]] = []
    for subject, table in tables.items():
        rows.extend({"part": subject} | row for row in _measure_sets(table, names))
    return pl.DataFrame(rows, _FIGURES)


def _measure_sets(
    table: pl.DataFrame, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Iterate over figures of all texts, of those scored as before, of others and of controls."""
    is_as_before = pl.col("as_before_after")
    sets = {
        "all": _LEARNT,
        "as before": _LEARNT & (is_as_before == 1),
        "others": _LEARNT & (is_as_before == 0),
        "controls": ~_LEARNT,
    }
    for (name, is_in_set), measure in product(sets.items(), _MEASURES):
        is_share = measure == "as_before"
        if is_share and name in ("as before", "others"):
            continue  # sets that this measure chose
        texts = table.filter(is_in_set)
        # Before unlearning all texts are scored as before.
        compared = names[1:] if is_share else names
        columns = {run: f"{measure}_{run}" for run in compared}
        if texts.is_empty() or columns["after"] not in texts.columns:
            continue
        scored = texts.select("cluster", *columns.values()).drop_nulls()
        n = {"n": scored.height, "n_unscored": texts.height - scored.height}
        scores = {run: scored[column].to_numpy() for run, column in columns.items()}
        clusters = scored["cluster"].to_numpy()
        for fact in _compute_facts(scores, clusters, is_share=is_share):
            yield {"set": name, "measure": measure, **n, **fact}


def _compute_facts(
    scores: Mapping[str, np.ndarray], clusters: np.ndarray, *, is_share: bool
) -> Iterator[dict[str, Any]]:
    """Iterate over means, differences and what is removed, with intervals over whole clusters."""
    if not clusters.size:
        reason = "no text is measured under every model"
        for run in scores:
            yield {"run": run, "statistic": "mean", "reason": reason}
        return
    differences = [pair for pair in _COMPARED if {*pair} <= {*scores}]
    measured = [*((run, None) for run in scores), *differences]
    columns = []
    for run, versus in measured:
        baseline = scores[versus] if versus else 0
        columns.append(scores[run] - baseline)
    codes = np.unique(clusters, return_inverse=True)[1]
    means = intervals.cluster_means(
        np.stack(columns, axis=1), np.zeros(codes.size, np.intp), codes
    )
    values = means.value[0]
    half_widths = means.half_widths()[0]
    n_effective = float(means.effective[0])
    low, high = values - half_widths, values + half_widths
    if is_share and means.enough[0]:
        low, high = _limit_shares(values, scores, codes)
    reason = _EQUAL if means.enough[0] else intervals.too_few(n_effective)
    for index, (run, versus) in enumerate(measured):
        fact = {
            "run": run,
            "versus": versus,
            "statistic": "difference" if versus else "mean",
            "value": values[index],
        }
        if np.isfinite(low[index]):
            yield fact | {"low": low[index], "high": high[index]}
        else:
            yield fact | {"reason": reason}
    if len(scores) > 2:
        falls = [measured.index(pair) for pair in _COMPARED[:2]]
        covariance = means.covariance[0][np.ix_(falls, falls)]
        share = intervals.removed_share(-values[falls], covariance, n_effective)
        limits = share.interval._asdict() if share.interval else {}
        labels = dict(zip(_KEYS[3:], _REMOVED, strict=True))
        yield {
            **labels,
            **limits,
            "value": share.value,
            "reason": share.reason,
        }


def _limit_shares(
    values: np.ndarray, scores: Mapping[str, np.ndarray], codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return Clopper-Pearson limits of shares and, where there are two, of their difference.

    The difference has those limits joined as if its sides were independent (Zou and
    Donner 2008, equations 1 and 2): wide, but never of zero width.
    """
    exact = []
    for share, score in zip(values, scores.values(), strict=False):
        n = intervals.independent_number(score == 1, codes)
        exact.append(intervals.clopper_pearson(share * n, n))
    low = np.array([interval.low for interval in exact])
    high = np.array([interval.high for interval in exact])
    if len(exact) > 1:
        below = values[:2] - low
        above = high - values[:2]
        low = np.append(low, values[2] - np.hypot(below[0], above[1]))
        high = np.append(high, values[2] + np.hypot(above[0], below[1]))
    return low, high


def conclusions(figures: pl.DataFrame) -> Iterator[str]:
    """Iterate over what may be said of texts and questions: how much is as before, what is gone."""
    rows = {}
    for row in figures.iter_rows(named=True):
        rows[tuple(row[key] for key in _KEYS)] = row
    for subject in dict.fromkeys(figures["part"]):
        key = (subject, "all", "as_before")
        unlearned = rows.get((*key, "after", None, "mean"))
        retrained = rows.get((*key, "retrained", None, "mean"))
        if unlearned is None or unlearned["value"] is None:
            reason = unlearned["reason"] if unlearned else "the study has none"
            yield f"Nothing can be said of {subject}: {reason}."
            continue
        n, n_unscored = unlearned["n"], unlearned["n_unscored"]
        count = f"{unlearned['value'] * n:.0f} of {n:,}"
        sentence = f"{count} {subject} are scored as before unlearning"
        if n_unscored:
            sentence += f" ({n_unscored:,} have no score)"
        if retrained is None:
            yield (
                f"{sentence}. Whether they are still remembered cannot be said without"
                " --retrained, a model trained in the same way without them: it may"
                " score them as before, too."
            )
            continue
        removed = {}
        for measure, name in _MEASURES.items():
            share = rows.get((subject, "all", measure, *_REMOVED))
            if share is not None:
                removed[name] = share
        difference = rows[*key, "after", "retrained", "difference"]
        verdict = _judge(difference, subject, next(iter(removed.values()), {}))
        n_alike = round(retrained["value"] * n)
        yield (
            f"{verdict}: {sentence}, and {n_alike:,} by the retrained model, so that no"
            f" more than {n - n_alike:,} can be shown."
        )
        for name, share in removed.items():
            yield f"{subject}, {name}: {_describe_removed(share)}."


def _judge(
    difference: Mapping[str, Any], subject: str, removed: Mapping[str, Any]
) -> str:
    """Return how many more are as before than under the retrained model, or what is gone."""
    n, low, high = difference["n"], difference["low"], difference["high"]
    if low is None:
        reason = difference["reason"]
        return f"Whether {subject} are still remembered cannot be said ({reason})"
    if low > 0:
        count = f"{difference['value'] * n:.0f} of {n:,}"
        ends = f"{low * n:.0f} to {min(1, high) * n:.0f}"
        return f"{count} {subject} are still remembered as before (95 %: {ends})"
    if (removed.get("high") or 1) < 1 - _SEEDS:
        extent = ", if less than before" if removed["low"] > 0 else ""
        return f"{subject.capitalize()} are still remembered{extent}"
    if (removed.get("low") or 1) > 1 + _SEEDS:
        return (
            f"Unlearning went further than never having learnt the {subject}, and so"
            " marks them"
        )
    limit = f" (95 %: at most {high * n:.0f} of {n:,})" if high > 0 else ""
    return f"Nothing shows that {subject} are still remembered as before{limit}"


def _describe_removed(share: Mapping[str, Any]) -> str:
    if share["value"] is None:
        return f"how much of the memory is gone cannot be said: {share['reason']}"
    sentence = f"{share['value'] + 0.0:.0%} of what retraining would remove is gone"
    if share["low"] is None:
        return f"{sentence}; {share['reason']}"
    return f"{sentence} (95 %: {share['low']:.0%} to {share['high']:.0%})"


def _print_figures(figures: pl.DataFrame, names: Sequence[str]) -> None:
    """Print the models side by side, a line for each measure of a set of texts."""
    keys = ("part", "set", "measure")
    lines: list[list[str]] = []
    for key, rows in figures.group_by(*keys, maintain_order=True):
        subject, set_name, measure = map(str, key)
        means = dict(rows.filter(statistic="mean").select("run", "value").iter_rows())
        line = [subject, set_name, _MEASURES[measure], f"{rows['n'][0]:,}"]
        line += [cli.figure(means.get(name)) for name in names]
        differences = rows.filter(run="after", versus="retrained")
        for difference in differences.iter_rows(named=True):
            line += [cli.figure(difference["value"]), cli.limits(difference)]
        lines.append(line)
    numbers = ["n", *names]
    if len(names) > 2:
        numbers += ["after - retrained", "95 % interval"]
    frame.show(
        "part",
        "texts",
        "measure",
        *numbers,
        right=numbers,
        rows=lines,
    )
