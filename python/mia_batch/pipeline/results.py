"""What is done with finished runs: a report, a comparison, samples that are drawn anew."""

import json
import random
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import polars as pl
from markupsafe import escape

from mia_batch.attacks import get, names
from mia_batch.attacks.attack import find_attack_names
from mia_batch.corpus.files import KINDS
from mia_batch.errors import MiaBatchError, SettingsError, describe_error
from mia_batch.evidence.parts import Block, Work
from mia_batch.evidence.request import EvidenceKind
from mia_batch.identifiers import mask
from mia_batch.inference.attempts import Attempts
from mia_batch.inference.findings import DecisionRule
from mia_batch.inference.paired import compare_scores
from mia_batch.kernels import RARITY_FIELDS
from mia_batch.observer import Observer
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.custody import describe_stamps, record_file
from mia_batch.pipeline.folder import (
    PARTS,
    TABLES,
    AuditFolder,
    Manifest,
    RunFolder,
    refuse_unfinished,
)
from mia_batch.pipeline.request import (
    build_decision_rule,
    explain_missing_rows,
    find_paper_table,
)
from mia_batch.pipeline.run_names import (
    fill_names,
    fill_names_of_all,
    list_corpus_columns,
    mask_places,
)
from mia_batch.pipeline.sessions import ask, build_sample_task, open_session
from mia_batch.pipeline.stages.questions import SAMPLE, read_prompts, reopen_audit
from mia_batch.report.answer import (
    Answer,
    attack_rows,
    audited_books,
    find_answer,
    shade_strip,
)
from mia_batch.report.html import (
    Contents,
    as_csv,
    as_json,
    as_markdown,
    find_document,
    render,
    render_document,
    render_models,
)
from mia_batch.report.html.page import environment
from mia_batch.report.masking import MASKED, Masking
from mia_batch.report.next_step import NextStep, find_next_step
from mia_batch.report.paper import (
    USUAL_FIGURES,
    Blind,
    Names,
    PaperColumn,
    paper_table,
)
from mia_batch.report.passages import list_passages
from mia_batch.report.sentences import RunResults, checks, later_sentence, sentences
from mia_batch.schemas import Comparisons
from mia_batch.settings import (
    CLASSICS,
    FLAGS,
    N_STRONGEST,
    NO_YARDSTICK,
    Settings,
    refuse_code,
    stored_settings,
)
from mia_batch.tables import READ_ERRORS, digest, is_sound, write_text
from mia_batch.targets import cluster_names
from mia_batch.views import RunModel, build_view

_WHOLE = Masking(unmask=True)

# What a run answers.


def build_answer(run: RunFolder, masking: Masking = MASKED) -> str:
    """Return the sentence that answers, and any doubt; see `mia_batch.report.answer`."""
    return str(split_answer(run, masking))


def split_answer(run: RunFolder, masking: Masking = MASKED) -> Answer:
    """Return the verdict of a run, and apart from it what makes it doubtful."""
    masking = fill_names(run, masking)
    manifest, results = check_finished(run), load_results(run, masking)
    primary = results.rule.primary
    scored = run.scan("scores").select(pl.col(primary).count())
    if not scored.collect(engine="streaming").item():
        return Answer(f"No answer: no text has a score of {primary}.", "")
    rollup = _read_rollup(run, results, masking)
    return find_answer(results, rollup, books=_are_books(manifest))


def find_step(run: RunFolder, masking: Masking = MASKED) -> NextStep | None:
    """Return what to type next, see `mia_batch.report.next_step`."""
    masking = fill_names(run, masking)
    manifest, results = check_finished(run), load_results(run, masking)
    are_books = _are_books(manifest)
    options = list_given_settings(
        stored_settings(manifest.settings), are_books=are_books
    )
    return find_next_step(
        results,
        _read_rollup(run, results, masking),
        books=are_books,
        options=options,
        folder=str(run.folder),
    )


def _are_books(manifest: Manifest) -> bool:
    files = manifest.input.get("files") or [""]
    return all(KINDS.get(Path(file).suffix.lower()) == "books" for file in files)


def _read_rollup(run: RunFolder, results: RunResults, masking: Masking) -> pl.DataFrame:
    rollup = count_attempts(run).rollup(run.scan("rollup"), results.rule.q)
    return masking.write_names(rollup.collect())


def count_attempts(run: RunFolder) -> Attempts:
    """Count this run and the others of its texts and model, see `inference.attempts`."""
    others = run["findings"].filter(check="earlier_runs", statistic="primary")
    return Attempts(1 + others.height)


def load_rule(run: RunFolder) -> DecisionRule:
    """Return how a finished run decides."""
    manifest = run.manifest
    attacks = manifest.made["scores"]["attacks"]
    return build_decision_rule(stored_settings(manifest.settings), attacks)


def load_results(run: RunFolder, masking: Masking = MASKED) -> RunResults:
    """Load what sentences are made from, with verdicts that count all attempts."""
    masking = fill_names(run, masking)
    attempts, rule = count_attempts(run), load_rule(run)
    verdicts = attempts.verdicts(run.scan("verdicts"))
    findings = attempts.findings(run["findings"], verdicts, rule)
    findings = masking.write_names(masking.hide_passages(findings))
    return RunResults(run["metrics"], masking.write_names(verdicts), findings, rule)


def list_books(run: RunFolder, masking: Masking = _WHOLE) -> pl.DataFrame:
    """List the documents that were audited, with names as they are unless they are masked."""
    check_finished(run)
    return audited_books(_open_tables(run, masking))


def list_attacks(run: RunFolder) -> pl.DataFrame:
    manifest = check_finished(run)
    registered = names()
    attacks = [
        get(name) for name in manifest.made["scores"]["attacks"] if name in registered
    ]
    seconds = manifest.times.get("seconds")
    return attack_rows(_open_tables(run), attacks, seconds, manifest.passes)


def list_run_passages(run: RunFolder) -> pl.DataFrame:
    manifest = check_finished(run)
    samples = stored_settings(manifest.settings).samples
    words = manifest.evidence.get("word_rule")
    return list_passages(_open_tables(run), words, samples)


def build_table(
    runs: Sequence[RunFolder],
    kind: str = "md",
    names: Names = "paper",
    blind: Blind = "best",
    figures: Sequence[str] = USUAL_FIGURES,
) -> str:
    """Return the table of a paper; runs that differ in nothing but their seed are averaged."""
    columns = [_build_column(run) for run in runs]
    return paper_table(columns, kind, names, blind, figures)


def _build_column(run: RunFolder) -> PaperColumn:
    rows = list_attacks(run)
    if rows.is_empty():
        raise SettingsError(
            f"{run.folder} knows no members and non-members, so there is no figure for"
            " a table; give a column that says which texts are members"
            " (--member-column)"
        )
    settings, manifest = stored_settings(run.manifest.settings), run.manifest
    source_name = "recorded"
    if manifest.models:
        source_name = manifest.models["target"]["source"]["name"]
    model, folder = Path(source_name).name, run.folder.resolve()
    file = Path(next(iter(manifest.input.get("files") or ["texts"])))
    data = mask(file.stem)
    if file.parent.resolve() == folder:  # texts that were no file
        data = folder.name.removesuffix(f"-{model}")
    labelled = run["metrics"].filter(slice="all").select("n_members", "n_nonmembers")
    n_members, n_nonmembers = labelled.max().row(0)
    notes = [f"{n_members:,} members, {n_nonmembers:,} non-members"]
    sentence = build_answer(run)
    doubts = ("No answer", "; exploratory: ", "it is unknown whether")
    if any(doubt in sentence for doubt in doubts):
        notes.append(sentence[:-1])
    notes += [later[:-1] for later in later_sentence(run["findings"])]
    return PaperColumn(
        settings.dataset or data,
        model,
        settings.seed,
        rows,
        tuple(notes),
        find_paper_table(settings),
        list_missing_rows(run),
    )


def list_missing_rows(run: RunFolder) -> dict[str, str]:
    """Return why attacks of the table of the preset's paper are not computed in a run."""
    settings = stored_settings(run.manifest.settings)
    return explain_missing_rows(settings, run.manifest.made["scores"]["attacks"])


def check_finished(run: RunFolder, *, sealed: bool = False) -> Manifest:
    """Return the manifest of a finished run; raises `RunFolderError` for any other."""
    manifest = run.manifest
    # The last of its tables
    has_rollup = "verdicts" in manifest.made and run.path("rollup").exists()
    if not (manifest.custody if sealed else has_rollup):
        refuse_unfinished(run.folder, "is not finished")
    return manifest


def _open_tables(run: RunFolder, masking: Masking = _WHOLE) -> dict[str, pl.LazyFrame]:
    """Open the tables of a finished run, with answers that count all attempts at its texts."""
    masking = fill_names(run, masking)
    tables = {
        name: run.scan(name) for name in TABLES | PARTS if run.path(name).exists()
    }
    attempts, rule = count_attempts(run), load_rule(run)
    if attempts.n > 1:
        tables["verdicts"] = attempts.verdicts(tables["verdicts"])
        tables["rollup"] = attempts.rollup(tables["rollup"], rule.q)
        findings = tables["findings"].collect(engine="streaming")
        corrected = attempts.findings(findings, tables["verdicts"], rule)
        tables["findings"] = corrected.lazy()
    columns = list_corpus_columns(tables["rollup"])
    tables["rollup"] = masking.write_names(tables["rollup"], columns)
    return {name: masking.write_names(table) for name, table in tables.items()}


# A run's report.

Format = Literal["html", "md", "json", "csv", "latex"]
FORMATS = {"html": render, "md": as_markdown, "json": as_json, "csv": as_csv}
REPORT = "report.html"
_LONGEST_STEM = 60  # characters


def render_report(
    run: RunFolder, kind: Format = "html", masking: Masking = MASKED
) -> str:
    if kind == "latex":
        return build_table([run], kind)
    return FORMATS[kind](collect_contents(run, masking))


def compare_models(
    runs: Sequence[RunFolder], kind: str, masking: Masking = MASKED
) -> str:
    """Return a table of documents by models, of which each run has one."""
    masking = fill_names_of_all(runs, masking)
    return render_models([collect_contents(run, masking) for run in runs], kind)


def collect_contents(run: RunFolder, masking: Masking = MASKED) -> Contents:
    """Collect what a report shows of a finished run."""
    manifest = check_finished(run)
    masking = fill_names(run, masking)
    results = load_results(run, masking)
    settings, root = stored_settings(manifest.settings), manifest.custody.get("root")
    command = ["mia-batch"]
    for option, values in list_changed_settings(settings):
        command += [option, *values]
    meanings = {
        name: (schema.__doc__ or "").partition("\n")[0]
        for name, schema in (TABLES | PARTS).items()
    }
    tables = _open_tables(run, masking)
    findings = tables["findings"].collect(engine="streaming")
    tables["findings"] = masking.hide_passages(findings).lazy()
    answer_of_run = split_answer(run, masking)
    step = find_step(run, masking)
    if step is not None and not masking.unmask:
        step = step._replace(command=mask(step.command))
    if not masking.unmask:
        command = [mask(word) for word in command]
    record = json.loads((run.folder / "run.json").read_text("utf-8"))
    return Contents(
        manifest=mask_places(record, masking),
        tables=tables,
        answer=answer_of_run.verdict,
        doubt=answer_of_run.doubt,
        next_step=step,
        conclusions=[*sentences(results)],
        checks=checks(results),
        primary=results.rule.primary,
        command=shlex.join(command),
        masking=masking,
        stamps=describe_stamps(run.folder, root) if root else "",
        meanings=meanings,
    )


def write_report(run: RunFolder) -> Path:
    return _write_page(run, REPORT, render_report(run))


def write_shared_report(
    run: RunFolder, masking: Masking, document: str | None = None
) -> Path:
    """Write a report for others next to the run's own, which stays as it is."""
    parts = ["report"]
    if document is not None:
        contents = collect_contents(run, masking)
        page = render_document(contents, document)
        name = Path(document).stem
        if not masking.unmask and mask(document) != document:
            name = find_document(contents, document)["key"]
        parts.append(re.sub(r"[^\w.-]+", "-", name).strip("-")[:_LONGEST_STEM])
    else:
        page = render_report(run, "html", masking)
    if masking.texts != "all":
        parts.append(masking.texts)
    if masking.unmask:
        parts.append("unmasked")
    return _write_page(run, f"{'-'.join(parts)}.html", page)


def _write_page(run: RunFolder, name: str, page: str) -> Path:
    path = run.folder / name
    write_text(path, page)
    record_file(run, name)
    return path


def has_report(audit: Audit) -> bool:
    """Return whether the report is there as it was recorded, or none is asked for."""
    if not audit.settings.report:
        return True
    path = audit.run.folder / REPORT
    recorded = audit.run.manifest.custody.get("files", {}).get(REPORT)
    return path.is_file() and digest(path) == recorded


def try_report(run: RunFolder) -> str | None:
    """Write the report of a run whose tables are sealed; return why it cannot be made, if so."""
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
            f"the report could not be made ({describe_error(error)}); the tables of the run"
            f" are whole, and `mia-batch report {run.folder}` tries again"
        )
    return None


_MAX_ROWS = 10


def render_for_notebook(run: RunFolder) -> str:
    """Render the answer with the first attacks and books, as a notebook shows a run."""
    try:
        sentence = build_answer(run)
        attacks, books = list_attacks(run), list_books(run, MASKED)
    except MiaBatchError as error:
        return f"<p>{escape(str(error))}</p>"
    n_rows = attacks.height or books.height
    template = environment().get_template("notebook.html.jinja")
    return template.render(
        answer=sentence,
        attacks=attacks.head(_MAX_ROWS).to_dicts(),
        books=books.head(_MAX_ROWS).to_dicts(),
        more=max(n_rows - _MAX_ROWS, 0),
        report=str(run.folder / REPORT),
        shade_strip=shade_strip,
    )


def list_changed_settings(settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """Iterate over the options whose settings are not the defaults, with their values."""
    for name, value in settings.model_dump(mode="json").items():
        default = Settings.model_fields[name].get_default(call_default_factory=True)
        # What a file set follows, and an address says which engine it takes
        is_implied = name == "engine" and settings.base_url is not None
        if name == "config" or is_implied or getattr(settings, name) == default:
            continue
        option = FLAGS[name]
        if isinstance(value, bool):
            yield (option if value else option.replace("--", "--no-", 1)), []
        elif isinstance(value, dict):
            for key, argument in value.items():
                yield option, [f"{key}={json.dumps(argument)}"]
        elif isinstance(value, list):
            yield option, [",".join(map(str, value))]
        elif value is not None:
            yield option, [str(value)]


_LONGEST_LIST = 5  # attacks that people name
_FILLED_IN = {
    "--continue-strongest": ([str(N_STRONGEST)],),
    "--evidence": (["logprobs"],),
    "--long-texts": (["stride"],),
    "--window-words": (["128"],),
    "--yardstick": ([CLASSICS], [NO_YARDSTICK]),
}
"""What a run without these options sets them to, by its texts and its model."""


def _is_filled_in(option: str, values: Sequence[str]) -> bool:
    """Return whether a run sets this by itself, as it does when it is repeated."""
    if option == "--attacks":
        return values[0].count(",") >= _LONGEST_LIST
    return option in _FILLED_IN and [*values] in _FILLED_IN[option]


def list_given_settings(
    settings: Settings, *, are_books: bool
) -> list[tuple[str, list[str]]]:
    """List the options of a run's command, less those that a run sets by itself."""
    changed = [*list_changed_settings(settings)]
    kept = [] if are_books else ["--window-words"]
    if any(option == "--base-url" for option, _ in changed):
        kept += ["--evidence", "--long-texts"]  # an endpoint's run chooses otherwise
    return [
        (option, values)
        for option, values in changed
        if option in kept or not _is_filled_in(option, values)
    ]


# Whether the scores of several runs can be compared.

_MAY_DIFFER = (
    *("engine", "dtype", "tensor_parallel_size", "engine_arg", "recording", "decode"),
    "long_texts",  # a long text is refused in one run, so that no pair of scores is compared
)
"""Evidence settings that say what the model is and how it runs."""
_EVIDENCE: dict[EvidenceKind, str]
_EVIDENCE = {"samples": "prompts", "logprobs": "texts with log-probabilities"}


def choose_attack(runs: Sequence[RunFolder], attack: str | None) -> str:
    """Return the attack to compare; refuse runs whose scores of it do not compare.

    Unless it is named, it is the first run's primary attack that all have scores of,
    else a later run's, else the first in the first run's order.
    """
    manifests = [check_finished(run, sealed=True) for run in runs]
    attacks: list[list[str]]
    attacks = [manifest.made["scores"]["attacks"] for manifest in manifests]
    if attack is None:
        primaries = [str(manifest.plan["primary"]) for manifest in manifests]
        candidates = [*primaries, *attacks[0]]
        shared = [
            name for name in candidates if all(name in others for others in attacks)
        ]
        if not shared:
            raise SettingsError(
                f"there is no attack of which all runs have scores; add one with"
                f" `mia-batch score {runs[-1].folder} --attacks {primaries[0]}`"
            )
        name = shared[0]
    else:
        # A family stands for its first default
        name = next(iter(find_attack_names(attack, names())), attack)
    for run, scored in zip(runs, attacks, strict=True):
        if name not in scored:
            raise SettingsError(
                f"{run.folder} has no scores of the attack {name!r}; compute them"
                f" with `mia-batch score {run.folder} --attacks {name}`, or name"
                " another with --attack"
            )
    borrows = any("from" in manifest.made.get("rarity", {}) for manifest in manifests)
    first_basis, *bases = (
        _describe_basis(run, name, borrowed_rarity=borrows) for run in runs
    )
    for run, basis in zip(runs[1:], bases, strict=True):
        differences = [
            f"{part} is {value!r} in the first and {basis[part]!r} in the second"
            for part, value in first_basis.items()
            if part in basis and value != basis[part]
        ]
        if differences:
            raise SettingsError(
                f"scores of {name!r} in {runs[0].folder} and {run.folder} are not"
                f" comparable: {'; '.join(differences)}; audit both alike"
            )
    return name


def _describe_basis(
    run: RunFolder, attack_name: str, *, borrowed_rarity: bool
) -> dict[str, Any]:
    """Return by name what scores of an attack rest on, apart from the model."""
    manifest = run.manifest
    attack = get(attack_name) if attack_name in names() else None
    basis = {
        f"{name}=": value
        for name, value in manifest.evidence.items()
        if name not in _MAY_DIFFER
    }
    views = set()
    for kind in _EVIDENCE:
        pairs = attack.list_reads(kind) if attack else ()
        views |= {view for _, view in pairs}
    for kind, noun in _EVIDENCE.items():
        for view, counts in manifest.made["scores"][kind].items():
            if views and view not in views:
                continue
            n_prompts, *n_samples = counts if isinstance(counts, list) else [counts]
            basis[f"the number of {noun} (view {view!r})"] = n_prompts
            if n_samples:
                basis[f"the number of samples (view {view!r})"] = n_samples[0]
    for model, record in manifest.models.items():
        if model != "target" and "source" in record:
            source = record["source"]
            basis[f"model {model!r}"] = source["digest"] or source["name"]
    files = manifest.inputs.get("attacks_from", {})
    basis["the file of attacks"] = [*files.values()] or "none"
    # Which the user's own attacks may read
    columns = {field.name for field in RARITY_FIELDS}
    reads_rarity = attack is None or not columns.isdisjoint(attack.columns)
    if borrowed_rarity and "rarity" in manifest.made and reads_rarity:
        table = manifest.made["rarity"].get("from") or digest(run.path("rarity"))
        basis["the SHA-256 of the rarity table (rarity_from=)"] = table
    return basis


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
        Whose scores are compared; by default the first primary attack of which all
        runs have scores, else the first attack of the first run of which they do.
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
    references = [folder for folder in (retrained, learnt) if folder is not None]
    runs = [RunFolder(folder) for folder in (*folders, *references)]
    if len(folders) < 2 or len({run.folder.resolve() for run in runs}) < len(runs):
        raise SettingsError(
            "a comparison needs at least two runs, each of a folder of its own; that of"
            " a retrained model is not one of them"
        )
    attack_name = choose_attack(runs, attack)
    facts = compare_scores(
        _join_scores(runs, attack_name),
        _number_titles([run.folder.resolve().name for run in runs]),
        retrained=retrained is not None,
        learnt=learnt is not None,
        overlapping=_has_overlaps(runs[0].manifest.evidence),
    )
    return _add_keys(facts, runs[0]).with_columns(attack=pl.lit(attack_name))


def _number_titles(titles: list[str]) -> list[str]:
    """Return titles of which those that were there before have a number."""
    numbered = []
    for place, title in enumerate(titles):
        n = titles[: place + 1].count(title)
        numbered.append(title if n == 1 else f"{title} ({n})")
    return numbered


def _has_overlaps(evidence: dict[str, Any]) -> bool:
    """Return whether windows of a text share words."""
    stride = evidence.get("stride")
    if stride is None:
        return False
    sizes = (evidence.get("window_words"), evidence.get("window_characters"))
    return any(size and stride < size for size in sizes)


def _join_scores(runs: Sequence[RunFolder], attack: str) -> pl.DataFrame:
    """Return the scores of all runs by the hash of the target, with its cluster and label."""
    first_scores = runs[0].scan("scores")
    scores = first_scores.filter(pl.col("role").is_in(["target", "non_member"]))
    keys = pl.col("target_id", "cluster", "document", "group").hash()
    document = cluster_names(scores.drop("group"))
    named = scores.with_columns(cluster=cluster_names(scores), document=document)
    hashed = named.select(keys, grouped=pl.col("group").is_not_null(), member=_MEMBER)
    joined = hashed.collect(engine="streaming")
    for number, run in enumerate(runs):
        run_scores = run.scan("scores").select(
            pl.col("target_id").hash(),
            pl.col(attack).cast(pl.Float64).alias(f"score_{number}"),
            run_member=_MEMBER,
        )
        joined = joined.join(
            run_scores.collect(engine="streaming"),
            on="target_id",
            maintain_order="left",
        )
        if joined["member"].ne_missing(joined["run_member"]).any():
            raise SettingsError(
                f"{runs[0].folder} and {run.folder} disagree on which targets are"
                " members; audit both with the same labels"
            )
        joined = joined.drop("run_member")
    return joined


def _add_keys(facts: pl.DataFrame, run: RunFolder) -> pl.DataFrame:
    """Return facts with the names of documents and groups instead of their hashes."""
    scores = run.scan("scores")
    scores = scores.with_columns(document=cluster_names(scores.drop("group")))
    names_by_level = {
        "document": pl.col("document").str.splitn(" ", 2).struct[1],
        "group": pl.col("group"),
    }
    hashes = facts["unit"].drop_nulls().unique().implode()
    tables = []
    for level, name in names_by_level.items():
        unit = pl.col(level).hash()
        table = scores.select(
            unit=unit,
            level=pl.lit(level, facts.schema["level"]),
            key=pl.when(unit.is_in(hashes)).then(name),
        )
        tables.append(table.filter(pl.col("key").is_not_null()).unique())
    keys = pl.concat(tables).collect(engine="streaming")
    joined = facts.drop("key").join(
        keys, on=["level", "unit"], how="left", maintain_order="left"
    )
    ordered = joined.sort("level", "key", maintain_order=True)
    return ordered.select(Comparisons.column_names())


# Samples drawn anew by the model that a run was made with, next to those that it has.


def choose_samples(run: RunFolder, n: int, seed: int) -> pl.DataFrame:
    """Choose ``n`` of a run's samples at random, or all; failed ones are left out."""
    samples = run.scan("samples").filter(
        pl.col("reason").is_null(), pl.col("view") != "generation"
    )
    n_samples = samples.select(pl.len()).collect(engine="streaming").item()
    numbers = random.Random(seed).sample(range(n_samples), min(n, n_samples))
    chosen = pl.LazyFrame({"row": numbers}, schema={"row": pl.get_index_type()})
    rows = samples.with_row_index("row").join(chosen, on="row", how="semi")
    return rows.drop("row").sort(SAMPLE).collect(engine="streaming")


def draw_again(
    run: RunFolder,
    samples: pl.DataFrame,
    observer: Observer,
    **changed: Any,
) -> pl.DataFrame:
    """Draw samples of a run anew, each with its own seed; the run is not touched."""
    # A run may be a stranger's, so what it stored sends no key and loads no code.
    stored = run.manifest.settings
    if run.manifest.source == "recording":
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
    if run.manifest.source == "endpoint":
        if not changed.get("base_url"):
            raise SettingsError(
                f"the samples of {run.folder} came from {stored['base_url']}, and your"
                " key is sent to no address that only the run names; give it yourself"
                " with --base-url"
            )
        defaults = {"api_key_env": Settings.model_fields["api_key_env"].default}
        changed = defaults | changed
    tables = [samples.clear().select(*SAMPLE, again="candidate")]
    with tempfile.TemporaryDirectory() as folder:
        audit = reopen_audit(run, observer, AuditFolder(Path(folder)), **changed)
        try:
            for (model,), rows in samples.group_by("model", maintain_order=True):
                tables += _draw(audit, run, RunModel(model), rows)
        except SettingsError as error:
            raise SettingsError(str(error).replace(folder, str(run.folder))) from error
    return samples.join(pl.concat(tables), on=SAMPLE, how="left").sort(SAMPLE)


def _draw(
    audit: Audit, run: RunFolder, model: RunModel, samples: pl.DataFrame
) -> list[pl.DataFrame]:
    """Draw samples of one model anew; return them in tables, as column ``again``."""
    is_sampled = pl.col("target_id").is_in(samples["target_id"].unique().implode())
    targets = run.scan("targets").filter(is_sampled).collect(engine="streaming")
    tables: list[pl.DataFrame] = []

    def add(_task: object, _block: Block, rows: pl.DataFrame) -> None:
        tables.append(rows.select(*SAMPLE, again="candidate"))

    with open_session(audit, model, "samples") as session:
        tasks = []
        for (name,), rows in samples.group_by("view", maintain_order=True):
            view = build_view(audit.settings, model, str(name))
            blocks = _build_blocks(read_prompts(run, view, targets), rows)
            task = build_sample_task(audit, session, view)
            tasks.append((task, blocks, lambda _, rows: rows))
        work = Work(left=samples.height)
        ask(audit, session, "drawing again", work, tasks, on_block=add)
    return tables


def _build_blocks(prompts: pl.DataFrame, samples: pl.DataFrame) -> Iterator[Block]:
    for index in samples["sample_index"].unique().sort():
        rows = samples.filter(sample_index=index)
        units = prompts.join(rows, on=["target_id", "view_index"], how="semi")
        yield Block(
            index=0, first=index, last=index + 1, attempt=0, label="", units=units
        )
