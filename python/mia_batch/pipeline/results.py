"""What is done with finished runs: a report, a comparison, samples that are drawn anew."""

import json
import random
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import polars as pl
from markupsafe import escape

from mia_batch.attacks import get, names
from mia_batch.attacks.attack import meant
from mia_batch.corpus.files import KINDS
from mia_batch.errors import MiaBatchError, SettingsError
from mia_batch.evidence.parts import Block, Work
from mia_batch.evidence.request import EvidenceKind
from mia_batch.inference.attempts import Attempts
from mia_batch.inference.findings import VerdictPlan
from mia_batch.inference.paired import compare_scores
from mia_batch.kernels import RARITY_FIELDS
from mia_batch.models.weights import cause_of
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import describe_stamps, record_file
from mia_batch.pipeline.folder import PARTS, TABLES, Manifest, RunFolder
from mia_batch.pipeline.request import build_decision_rule
from mia_batch.pipeline.sessions import ask, build_sample_task, open_session
from mia_batch.pipeline.stages.questions import SAMPLE, read_prompts, reopen_audit
from mia_batch.report.answer import answer, attack_rows, audited_books, shade_strip
from mia_batch.report.html import Contents, as_csv, as_json, as_markdown, render
from mia_batch.report.html.page import environment
from mia_batch.report.paper import PaperColumn, paper_table
from mia_batch.report.sentences import RunResults, checks, later_sentence, sentences
from mia_batch.schemas import Comparisons
from mia_batch.settings import Settings, refuse_code, stored_settings
from mia_batch.tables import READ_ERRORS, digest, is_sound, write_text
from mia_batch.targets import cluster_names
from mia_batch.views import build_view

# What a run answers.


def answer_of(run: RunFolder) -> str:
    manifest, known = finished(run), known_of(run)
    primary = known.rule.primary
    if (
        not run.scan("scores")
        .select(pl.col(primary).count())
        .collect(engine="streaming")
        .item()
    ):
        return f"No answer: no text has a score of {primary}."
    files = manifest.input.get("files") or [""]
    books = all(KINDS.get(Path(file).suffix.lower()) == "books" for file in files)
    rollup = attempts_of(run).rollup(run.scan("rollup"), known.rule.q)
    return answer(known, rollup.collect(), books=books)


def attempts_of(run: RunFolder) -> Attempts:
    """Count this run and the others of its texts and model, see `inference.attempts`."""
    others = run["findings"].filter(check="earlier_runs", statistic="primary")
    return Attempts(1 + others.height)


def plan_of_answer(run: RunFolder) -> VerdictPlan:
    manifest = run.manifest
    return build_decision_rule(
        stored_settings(manifest.settings), manifest.made["scores"]["attacks"]
    )


def known_of(run: RunFolder) -> RunResults:
    attempts, plan = attempts_of(run), plan_of_answer(run)
    verdicts = attempts.verdicts(run.scan("verdicts"))
    findings = attempts.findings(run["findings"], verdicts, plan)
    return RunResults(run["metrics"], verdicts, findings, plan)


def books_of(run: RunFolder) -> pl.DataFrame:
    finished(run)
    return audited_books(_tables(run))


def attacks_of(run: RunFolder) -> pl.DataFrame:
    manifest = finished(run)
    known = [
        get(name) for name in manifest.made["scores"]["attacks"] if name in names()
    ]
    return attack_rows(
        _tables(run), known, manifest.times.get("seconds"), manifest.passes
    )


def table_of(runs: Sequence[RunFolder], kind: str = "md") -> str:
    # Runs that differ in nothing but their seed are averaged.
    return paper_table([_column(run) for run in runs], kind)


def _column(run: RunFolder) -> PaperColumn:
    rows = attacks_of(run)
    if rows.is_empty():
        raise SettingsError(
            f"{run.folder} knows no members and non-members, so there is no figure for"
            " a table; give a column that says which texts are members"
            " (--member-column)"
        )
    settings, manifest = stored_settings(run.manifest.settings), run.manifest
    name = (
        manifest.models["target"]["source"]["name"] if manifest.models else "recorded"
    )
    file = Path(next(iter(manifest.input.get("files") or ["texts"])))
    model, folder = Path(name).name, run.folder.resolve()
    in_run = file.parent.resolve() == folder  # texts that were no file
    data = settings.dataset or (
        folder.name.removesuffix(f"-{model}") if in_run else file.stem
    )
    counts = (
        run["metrics"]
        .filter(slice="all")
        .select("n_members", "n_nonmembers")
        .max()
        .row(0)
    )
    notes = ["{:,} members, {:,} non-members".format(*counts)]
    said = answer_of(run)
    if any(
        each in said
        for each in ("No answer", "; exploratory: ", "it is unknown whether")
    ):
        notes.append(said[:-1])
    notes += [each[:-1] for each in later_sentence(run["findings"])]
    return PaperColumn(data, model, settings.seed, rows, tuple(notes))


def finished(run: RunFolder, *, sealed: bool = False) -> Manifest:
    manifest = run.manifest
    # The last of its tables
    judged = "verdicts" in manifest.made and run.path("rollup").exists()
    if not (manifest.custody if sealed else judged):
        run.refuse("is not finished")
    return manifest


def _tables(run: RunFolder) -> dict[str, pl.LazyFrame]:
    """Open the tables of a finished run, with answers that count all attempts at its texts."""
    found = {name: run.scan(name) for name in TABLES | PARTS if run.path(name).exists()}
    attempts, plan = attempts_of(run), plan_of_answer(run)
    if attempts.n > 1:
        found["verdicts"] = attempts.verdicts(found["verdicts"])
        found["rollup"] = attempts.rollup(found["rollup"], plan.q)
        findings = found["findings"].collect(engine="streaming")
        found["findings"] = attempts.findings(findings, found["verdicts"], plan).lazy()
    return found


# A run's report.

Format = Literal["html", "md", "json", "csv", "latex"]
FORMATS = {"html": render, "md": as_markdown, "json": as_json, "csv": as_csv}
REPORT = "report.html"


def report_of(run: RunFolder, kind: Format = "html") -> str:
    if kind == "latex":
        return table_of([run], kind)
    manifest, known = finished(run), known_of(run)
    settings, root = stored_settings(manifest.settings), manifest.custody.get("root")
    schemas = (TABLES | PARTS).items()
    options = ((option, *values) for option, values in changed_settings(settings))
    contents = Contents(
        manifest=json.loads((run.folder / "run.json").read_text("utf-8")),
        tables=_tables(run),
        answer=answer_of(run),
        conclusions=[*sentences(known)],
        checks=checks(known),
        primary=known.rule.primary,
        command=shlex.join(["mia-batch", *chain.from_iterable(options)]),
        stamps=describe_stamps(run.folder, root) if root else "",
        meanings={
            name: (each.__doc__ or "").partition("\n")[0] for name, each in schemas
        },
    )
    return FORMATS[kind](contents)


def write_report(run: RunFolder) -> Path:
    path = run.folder / REPORT
    write_text(path, report_of(run))
    record_file(run, REPORT)
    return path


def has_report(audit: Audit) -> bool:
    """Whether the report is there as it was recorded, or none is wanted."""
    path = audit.run.folder / REPORT
    known = audit.run.manifest.custody.get("files", {}).get(REPORT)
    return not audit.settings.report or (path.is_file() and digest(path) == known)


def try_report(run: RunFolder) -> str | None:
    """Write the report of a run whose tables are sealed; if it cannot be made, say why."""
    try:
        write_report(run)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a library's panic is no Exception
        if isinstance(error, READ_ERRORS) and not all(
            map(is_sound, run.folder.rglob("*.parquet"))
        ):
            raise
        return (
            f"the report could not be made ({cause_of(error)}); the tables of the run"
            f" are whole, and `mia-batch report {run.folder}` tries again"
        )
    return None


_MOST_SHOWN = 10


def first_screen(run: RunFolder) -> str:
    try:
        answered, attacks, books = answer_of(run), attacks_of(run), books_of(run)
    except MiaBatchError as error:
        return f"<p>{escape(str(error))}</p>"
    shown = attacks if attacks.height else books
    template = environment().get_template("notebook.html.jinja")
    return template.render(
        answer=answered,
        attacks=attacks.head(_MOST_SHOWN).to_dicts(),
        books=books.head(_MOST_SHOWN).to_dicts(),
        more=max(shown.height - _MOST_SHOWN, 0),
        report=str(run.folder / REPORT),
        shade_strip=shade_strip,
    )


def changed_settings(settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """Yield the options that give the settings other than the defaults, with their values."""
    for name, value in settings.model_dump(mode="json").items():
        default = Settings.model_fields[name].get_default(call_default_factory=True)
        # What a file set follows
        if name == "config" or getattr(settings, name) == default:
            continue
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield (option if value else option.replace("--", "--no-", 1)), []
        elif isinstance(value, dict):
            for key, each in value.items():
                yield option, [f"{key}={json.dumps(each)}"]
        elif isinstance(value, list):
            yield option, [",".join(map(str, value))]
        elif value is not None:
            yield option, [str(value)]


# Whether the scores of several runs can be compared.

_MAY_DIFFER = (
    *("engine", "dtype", "tensor_parallel_size", "engine_arg", "recording", "decode"),
    "long_texts",  # a long text is refused in one run, so that no pair of scores is compared
)
"""Evidence settings that say what the model is and how it runs."""
_EVIDENCE: dict[EvidenceKind, str]
_EVIDENCE = {"samples": "prompts", "logprobs": "texts with log-probabilities"}


def attack_of(runs: Sequence[RunFolder], attack: str | None) -> str:
    """Name the attack to compare; refuse runs whose scores of it do not compare."""
    manifests = [finished(run, sealed=True) for run in runs]
    chosen: str = attack or manifests[0].plan["primary"]
    chosen = next(iter(meant(chosen, names())), chosen)  # a family by its first default
    for run, manifest in zip(runs, manifests, strict=True):
        if attack is None and manifest.plan["primary"] != chosen:
            raise SettingsError(
                f"the primary attack of {runs[0].folder} is {chosen!r}, that of"
                f" {run.folder} is {manifest.plan['primary']!r}; name one that all have"
                " with --attack"
            )
        if chosen not in manifest.made["scores"]["attacks"]:
            raise SettingsError(
                f"{run.folder} has no scores of the attack {chosen!r}; compute them"
                f" with `mia-batch score {run.folder} --attacks {chosen}`, or name"
                " another with --attack"
            )
    others = any("from" in manifest.made.get("rarity", {}) for manifest in manifests)
    first, *rest = (_rests_on(run, chosen, borrowed_rarity=others) for run in runs)
    for run, second in zip(runs[1:], rest, strict=True):
        differing = [
            f"{name} is {first[name]!r} in the first and {second[name]!r} in the second"
            for name in first
            if name in second and first[name] != second[name]
        ]
        if differing:
            raise SettingsError(
                f"scores of {chosen!r} in {runs[0].folder} and {run.folder} are not"
                f" comparable: {'; '.join(differing)}; audit both alike"
            )
    return chosen


def _rests_on(run: RunFolder, attack: str, *, borrowed_rarity: bool) -> dict[str, Any]:
    """Say by name what scores of an attack rest on, apart from the model."""
    manifest = run.manifest
    known = get(attack) if attack in names() else None
    asked = manifest.evidence.items()
    evidence = {f"{name}=": value for name, value in asked if name not in _MAY_DIFFER}
    reads = {
        view
        for kind in _EVIDENCE
        for _, view in (known.reads_of(kind) if known else ())
    }
    for kind, what in _EVIDENCE.items():
        for view, n in manifest.made["scores"][kind].items():
            if reads and view not in reads:
                continue
            n_prompts, *n_samples = n if isinstance(n, list) else [n]
            evidence[f"the number of {what} (view {view!r})"] = n_prompts
            if n_samples:
                evidence[f"the number of samples (view {view!r})"] = n_samples[0]
    for model, made in manifest.models.items():
        if model != "target" and "source" in made:
            evidence[f"model {model!r}"] = (
                made["source"]["digest"] or made["source"]["name"]
            )
    evidence["the file of attacks"] = [
        *manifest.inputs.get("attacks_from", {}).values()
    ] or "none"
    # Which the user's own attacks may read
    columns = {field.name for field in RARITY_FIELDS}
    weighed = known is None or not columns.isdisjoint(known.columns)
    if borrowed_rarity and "rarity" in manifest.made and weighed:
        table = manifest.made["rarity"].get("from") or digest(run.path("rarity"))
        evidence["the SHA-256 of the rarity table (rarity_from=)"] = table
    return evidence


# Several runs of one corpus in one table: several models, or before and after
# unlearning.

_MEMBER = (
    pl.when(pl.col("role") == "non_member")
    .then(statement=False)
    .otherwise(pl.col("member"))
)


def compare(
    folders: Sequence[Path | str],
    attack: str | None = None,
    retrained: Path | str | None = None,
    learnt: Path | str | None = None,
) -> pl.DataFrame:
    """Compare finished runs of one corpus with the first of them, on the targets that all have.

    Parameters
    ----------
    folders
        Folders, or addresses, of at least two runs. For unlearning: the run before,
        then those after.
    attack
        Whose scores are compared; by default the runs' primary attack.
    retrained
        Folder of the run of a model that never saw the texts, trained alike otherwise:
        says how much of the difference between the first run and this one each run
        after has removed.
    learnt
        Folder of the run of a reference model that learnt the texts. The first run is
        then of the audited model, the second of that reference model before it learnt
        them: says whether the audited model ranks the texts as one that never saw them,
        see `mia_batch.inference.paired.agreement`.

    Returns
    -------
    DataFrame
        A row for each fact, with the columns of `mia_batch.schemas.Comparisons`.
        Differences are the run less the first; intervals take groups, else documents,
        else targets as independent. What the texts cannot support is null and has its
        reason. Memory: some 150 bytes a target.

    Raises
    ------
    SettingsError
        If there is one run alone, the runs' scores are not comparable, no target has a
        score in every run, or the runs disagree on what is a member.
    RunFolderError
        If a folder holds no finished run.

    Examples
    --------
    >>> import mia_batch
    >>> mia_batch.compare(["runs/corpus-llama"])
    Traceback (most recent call last):
    ...
    mia_batch.errors.SettingsError: a comparison needs at least two runs, each of a folder of its...
    """
    folders = [folders] if isinstance(folders, str | Path) else folders
    if learnt is not None and (retrained is not None or len(folders) != 2):
        raise SettingsError(
            "learnt= takes two runs, of the audited model and of the reference model,"
            " and no retrained="
        )
    given = [*folders, *(each for each in (retrained, learnt) if each is not None)]
    runs = [RunFolder(folder) for folder in given]
    if len(folders) < 2 or len({run.folder.resolve() for run in runs}) < len(runs):
        raise SettingsError(
            "a comparison needs at least two runs, each of a folder of its own; that of"
            " a retrained model is not one of them"
        )
    chosen = attack_of(runs, attack)
    titles = [run.folder.resolve().name for run in runs]
    for at in reversed(range(len(titles))):  # folders of one name are numbered
        if (n := titles[: at + 1].count(titles[at])) > 1:
            titles[at] += f" ({n})"
    cut = runs[0].manifest.evidence
    stride, sizes = (
        cut.get("stride"),
        (cut.get("window_words"), cut.get("window_characters")),
    )
    made = compare_scores(
        _scores(runs, chosen),
        titles,
        retrained=retrained is not None,
        learnt=learnt is not None,
        overlapping=stride is not None
        and any(size and stride < size for size in sizes),
    )
    return _with_keys(made, runs[0]).with_columns(attack=pl.lit(chosen))


def _scores(runs: Sequence[RunFolder], attack: str) -> pl.DataFrame:
    scores = (
        runs[0].scan("scores").filter(pl.col("role").is_in(["target", "non_member"]))
    )
    keys = pl.col("target_id", "cluster", "document", "group").hash()
    document = cluster_names(scores.drop("group"))
    named = scores.with_columns(cluster=cluster_names(scores), document=document)
    hashed = named.select(keys, grouped=pl.col("group").is_not_null(), member=_MEMBER)
    joined = hashed.collect(engine="streaming")
    for number, run in enumerate(runs):
        own = run.scan("scores").select(
            pl.col("target_id").hash(),
            pl.col(attack).cast(pl.Float64).alias(f"score_{number}"),
            other=_MEMBER,
        )
        joined = joined.join(
            own.collect(engine="streaming"), on="target_id", maintain_order="left"
        )
        if joined["member"].ne_missing(joined["other"]).any():
            raise SettingsError(
                f"{runs[0].folder} and {run.folder} disagree on which targets are"
                " members; audit both with the same labels"
            )
        joined = joined.drop("other")
    return joined


def _with_keys(made: pl.DataFrame, run: RunFolder) -> pl.DataFrame:
    scores = run.scan("scores")
    names = {
        "document": pl.col("document").str.splitn(" ", 2).struct[1],
        "group": pl.col("group"),
    }
    numbers = made["unit"].drop_nulls().unique().implode()
    keys = pl.concat(
        scores.with_columns(document=cluster_names(scores.drop("group")))
        .select(
            unit=pl.col(level).hash(),
            level=pl.lit(level, made.schema["level"]),
            key=pl.when(pl.col(level).hash().is_in(numbers)).then(name),
        )
        .filter(pl.col("key").is_not_null())
        .unique()
        for level, name in names.items()
    ).collect(engine="streaming")
    joined = made.drop("key").join(
        keys, on=["level", "unit"], how="left", maintain_order="left"
    )
    ordered = joined.sort("level", "key", maintain_order=True)
    return ordered.select(Comparisons.column_names())


# Samples drawn anew by the model that a run was made with, next to those that it has.


def choose_samples(run: RunFolder, n: int, seed: int) -> pl.DataFrame:
    """Choose ``n`` of a run's samples at random, or all; failed ones are left out."""
    drawn = run.scan("samples").filter(
        pl.col("reason").is_null(), pl.col("view") != "generation"
    )
    height = drawn.select(pl.len()).collect(engine="streaming").item()
    chosen = random.Random(seed).sample(range(height), min(n, height))
    numbers = pl.LazyFrame({"row": chosen}, schema={"row": pl.get_index_type()})
    rows = drawn.with_row_index("row").join(numbers, on="row", how="semi")
    return rows.drop("row").sort(SAMPLE).collect(engine="streaming")


def draw_again(
    run: RunFolder,
    samples: pl.DataFrame,
    observer: Observer,
    **changed: Any,
) -> pl.DataFrame:
    """Draw samples of a run anew, each with its own seed; the run is not touched."""
    # A run may be a stranger's, so what it stored sends no key and loads no code.
    stored, engine = run.manifest.settings, run.manifest.evidence["engine"]
    if engine == "replay":
        raise SettingsError(
            f"the samples of {run.folder} came from a recording: no model can draw them"
            " again"
        )
    if samples.is_empty():
        raise SettingsError(
            f"{run.folder} has no such samples: there is nothing to draw again"
        )
    refuse_code(
        stored["engine_arg"], str(run.folder), but=changed.get("engine_arg", ())
    )
    if engine == "openai":
        if not changed.get("base_url"):
            raise SettingsError(
                f"the samples of {run.folder} came from {stored['base_url']}, and your"
                " key is sent to no address that only the run names; give it yourself"
                " with --base-url"
            )
        changed = {
            "api_key_env": Settings.model_fields["api_key_env"].default
        } | changed
    drawn = [samples.clear().select(*SAMPLE, again="candidate")]
    with tempfile.TemporaryDirectory() as folder:
        audit = reopen_audit(run, observer, RunFolder(Path(folder)), **changed)
        try:
            for (model,), rows in samples.group_by("model", maintain_order=True):
                drawn += _draw(audit, run, str(model), rows)
        except SettingsError as error:
            raise SettingsError(str(error).replace(folder, str(run.folder))) from error
    return samples.join(pl.concat(drawn), on=SAMPLE, how="left").sort(SAMPLE)


def _draw(
    audit: Audit, run: RunFolder, model: str, samples: pl.DataFrame
) -> list[pl.DataFrame]:
    own = pl.col("target_id").is_in(samples["target_id"].unique().implode())
    targets = run.scan("targets").filter(own).collect(engine="streaming")
    drawn: list[pl.DataFrame] = []
    with open_session(audit, model, "samples") as session:
        wanted = []
        for (name,), rows in samples.group_by("view", maintain_order=True):
            view = build_view(audit.settings, model, str(name))
            blocks = _blocks(read_prompts(run, view, targets), rows)
            wanted.append(
                (build_sample_task(audit, session, view), blocks, lambda _, rows: rows)
            )
        ask(
            audit,
            session,
            "drawing again",
            Work(left=samples.height),
            wanted,
            on_block=lambda *found: drawn.append(
                found[2].select(*SAMPLE, again="candidate")
            ),
        )
    return drawn


def _blocks(prompts: pl.DataFrame, samples: pl.DataFrame) -> Iterator[Block]:
    for index in samples["sample_index"].unique().sort():
        rows = samples.filter(sample_index=index)
        units = prompts.join(rows, on=["target_id", "view_index"], how="semi")
        yield Block(
            index=0, first=index, last=index + 1, attempt=0, label="", units=units
        )
