"""The texts of a run, each with its role."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any

import polars as pl

from mia_batch.attacks import names
from mia_batch.corpus import (
    ColumnNames,
    Corpus,
    DrawRequest,
    canary_documents,
    combine_digests,
    describe_addresses,
    find_files,
    read_canaries,
    read_documents,
)
from mia_batch.corpus.conversations import Layout
from mia_batch.corpus.documents import peek_layout
from mia_batch.corpus.files import find_kind
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.inference.yardstick import sort_levels
from mia_batch.known import advice, find_set
from mia_batch.metrics import find_slices
from mia_batch.places import is_url
from mia_batch.schemas import Documents, SetAside
from mia_batch.settings import CLASSICS, Settings
from mia_batch.tables import digest as stored_digest
from mia_batch.tables import generate, replacing
from mia_batch.targets import Windowing, build_targets
from mia_batch.views import may_cut

_CLASSICS = Path(__file__).parents[1] / "corpus" / "yardstick.jsonl"
_TEXTS = (
    "input",
    "non_members",
    "calibration",
    "nonmember_shots",
    "member_shots",
    "yardstick",
    "frequencies_from",
    "prompts_from",
    "candidate_from",
    "samples_from",
    "logprobs_from",
    "reference_logprobs_from",
    "known_corpus",
)
"""Settings that name texts, which Python may hand over as they are."""
_ROLES = {
    "non_members": "non_member",
    "calibration": "calibration",
    "canaries": "canary",
    "yardstick": "yardstick",
}
"""Settings that name the reference sets, and the role of their texts."""
_FAULTS = {
    "non_member": (pl.col("member"), "are labelled as members; leave them out"),
    "yardstick": (pl.col("group").is_null(), "have no level; give each one"),
    "calibration": (
        pl.col("member").is_null(),
        "have no membership; label or remove them",
    ),
}
"""What no text of a reference set may have, by role."""


@dataclass(frozen=True, kw_only=True)  # without slots: digests are kept
class Corpora:
    """Every text of a run: those that are asked about, and the reference sets by role."""

    input: Corpus
    reference_sets: Mapping[str, Corpus]

    @property
    def _by_setting(self) -> dict[str, Corpus]:
        corpora = {"input": self.input}
        for setting, role in _ROLES.items():
            if role in self.reference_sets:
                corpora[setting] = self.reference_sets[role]
        return corpora

    @cached_property
    def digests(self) -> dict[str, dict[str, str]]:
        """SHA-256 of every file by its name, by the setting that names the files."""
        return {
            setting: dict(corpus.digest_files())
            for setting, corpus in self._by_setting.items()
        }

    @property
    def addresses(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What servers say of files at addresses, by setting and name."""
        addresses = {}
        for setting, corpus in self._by_setting.items():
            stamps = describe_addresses(corpus.files)
            if stamps:
                addresses[setting] = stamps
        return addresses

    @cached_property
    def set_aside(self) -> pl.DataFrame:
        """What was not read of every set, in the columns of the schema `SetAside`."""
        rows = [
            (setting, place, reason)
            for setting, corpus in self._by_setting.items()
            for place, reason in (corpus.ignored | corpus.set_aside).items()
        ]
        return pl.DataFrame(rows, schema=SetAside.create_empty().schema, orient="row")

    def notes(self) -> Iterator[str]:
        """Iterate over what was left out of each set, and which columns have other names."""
        yield from self.input.notes
        by_reason = self.set_aside.group_by("setting", "reason", maintain_order=True)
        for (setting, reason), rows in by_reason:
            others = f" and {rows.height - 1:,} more" if rows.height > 1 else ""
            yield f"left out of {setting}: {rows['place'][0]}{others}: {reason}"

    def fingerprint(self, settings: Settings) -> dict[str, Any]:
        """SHA-256 of the input and each reference set, names of columns, most windows of a text."""
        digests = {name: combine_digests(files) for name, files in self.digests.items()}
        fingerprint: dict[str, Any] = {}
        if self.set_aside.height:
            left_out = self.set_aside.write_json().encode()
            fingerprint["set_aside"] = sha256(left_out).hexdigest()
        fingerprint["input"] = digests.pop("input")
        if self.input.draw is not None:
            fingerprint["draw"] = self.input.draw.describe()
        if settings.dataset:
            fingerprint["dataset"] = settings.dataset
        return fingerprint | {
            "columns": settings.columns,
            "max_windows_per_document": settings.max_windows_per_document,
            "reference_sets": {
                _ROLES[setting]: digest for setting, digest in digests.items()
            },
        }

    def targets(
        self, settings: Settings, *, cuts_prompts: bool | None = None
    ) -> pl.LazyFrame:
        """Cut all texts into targets: those of the input first, then role by role.

        Where prompts may be cut takes a tokenizer; by default they are cut unless texts
        are only read.
        """
        # It is built anew, in batches, each time it is collected. Canaries are not cut
        # into windows; one window of each text of the yardstick is taken.
        if cuts_prompts is None:
            cuts_prompts = settings.evidence != "logprobs"
        windowing = build_windowing(settings)
        if cuts_prompts:
            windowing = replace(windowing, may_cut=may_cut(settings))
        tables = [build_targets(self.input.documents, windowing)]
        if not self.reference_sets:
            return tables[0]
        whole_texts: dict[str, Any] = dict.fromkeys(
            ("window_words", "window_characters", "stride", "max_windows_per_document")
        )
        by_role = {"canary": replace(windowing, **whole_texts)}
        if windowing.window is not None:
            by_role["yardstick"] = replace(windowing, max_windows_per_document=1)
        schema = self.input.documents.collect_schema()
        for role, corpus in self.reference_sets.items():
            documents = _select_documents(corpus, role, schema)
            table = build_targets(documents, by_role.get(role, windowing), role=role)
            tables.append(table)

        def iterate_batches(_names: list[str] | None) -> Iterator[pl.DataFrame]:
            for table in tables:
                yield from table.collect_batches(maintain_order=True)

        return generate(tables[0].collect_schema(), iterate_batches)


def write_texts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write texts that are no files into the run's folder, and name the files instead."""
    named = dict(settings)
    for name in _TEXTS:
        texts = named.get(name)
        if texts is None or isinstance(texts, str | os.PathLike):
            continue
        content = BytesIO()
        _build_table(name, texts).write_parquet(content)
        sha = sha256(content.getvalue()).hexdigest()
        model = Path(str(named.get("model") or "recorded")).name
        named["out"] = named.get("out") or Path("runs", f"table-{sha[:8]}-{model}")
        if is_url(named["out"]):
            raise SettingsError(
                f"{name}= is no file, and a run in an object store needs one; write it"
            )
        Path(named["out"]).mkdir(parents=True, exist_ok=True)
        path = Path(named["out"], f"{name}.parquet")
        if path.exists() and stored_digest(path) != sha:  # a run rests on what is there
            path = path.with_stem(f"{name}-{sha[:8]}")
        with replacing(path) as file:
            file.write(content.getvalue())
        named[name] = path
    return named


def _build_table(name: str, texts: Any) -> pl.DataFrame:
    """Return texts that Python hands over as a table; refuse what holds none."""
    description = f"{name}= is of type {type(texts).__name__}"
    if type(texts).__name__ == "Series":  # of Polars or pandas
        texts = texts.to_list()
    may_be_list = isinstance(texts, list | tuple)
    if may_be_list and all(isinstance(text, str | Path | None) for text in texts):
        _refuse_file_names(name, texts)
        texts = {"text": texts}
    try:
        is_lazy = isinstance(texts, pl.LazyFrame)
        table = texts.collect() if is_lazy else pl.DataFrame(texts)
    except ImportError as error:
        raise SettingsError(
            f"{description}, which this Python cannot read ({error}); run `pip install"
            " pyarrow`, or write the table to a file and give its path"
        ) from error
    except (TypeError, ValueError, pl.exceptions.PolarsError):
        table = pl.DataFrame({"column_0": [None]})
    if table.columns == ["column_0"]:  # as Polars names what has no name: [1, 2]
        raise SettingsError(
            f"{description}, which holds no texts; give a path, a list of strings, or a"
            " DataFrame with a column of texts"
        )
    if table.is_empty():
        raise CorpusError(f"{name}= has no rows; give at least one text")
    return table


def _refuse_file_names(name: str, texts: Sequence[str | Path | None]) -> None:
    """Refuse a list of files instead of texts, and one that holds nothing."""
    given = [text for text in texts if text is not None]
    # `os.path.isfile` raises nothing where a text is too long for the name of a file.
    are_files = any(isinstance(text, Path) or os.path.isfile(text) for text in given)  # noqa: PTH113
    look_like_files = bool(given) and all(
        find_kind(PurePath(text)) and len(str(text).split()) == 1 for text in given
    )
    if are_files or look_like_files:
        raise SettingsError(f"{name}= is a list of files; give their folder, or a glob")
    if texts and not given:
        raise CorpusError(f"{name}= has no text, only None; give at least one text")


def build_windowing(settings: Settings) -> Windowing:
    shared_names = {field.name for field in fields(Windowing)} - {"words"}
    values = settings.model_dump(include=shared_names)
    return Windowing(words=settings.word_rule, **values)


def check_paths(settings: Settings) -> None:
    """Refuse paths of texts that are not there."""
    yardstick = settings.yardstick if settings.has_yardstick else None
    paths = (settings.input, settings.non_members, settings.calibration, yardstick)
    for path in paths:
        if path not in (None, CLASSICS):
            find_files(path)


def reading_options(settings: Settings) -> dict[str, Any]:
    return {
        "encoding": settings.encoding,
        "bad_input": settings.bad_input,
        "conversations": settings.conversations or "refuse",
    }


def find_layout_of_input(settings: Settings) -> Layout | None:
    """Find the columns of conversations in the input, of which only the columns are read."""
    names = _name_columns(settings)
    return peek_layout(settings.input, names, encoding=settings.encoding)


def open_corpora(settings: Settings) -> Corpora:
    """Read and check the input and the reference sets, whose role may say the membership."""
    reference_sets = _open_reference_sets(settings)
    corpora = Corpora(input=_open_input(settings), reference_sets=reference_sets)
    _check_same_kind(corpora)
    _check_slices(settings.slice_by, corpora)
    return corpora


def _name_columns(settings: Settings) -> ColumnNames:
    columns = {
        setting.removesuffix("_column"): name
        for setting, name in settings.columns.items()
    }
    return ColumnNames(**columns)


def _open_reference_sets(settings: Settings) -> dict[str, Corpus]:
    """Read the reference sets by role; refuse texts that a role may not have."""
    columns, sets = _name_columns(settings), {}
    for setting, role in _ROLES.items():
        path = getattr(settings, setting)
        if path is None or (role == "yardstick" and not settings.has_yardstick):
            continue
        if role == "canary":
            sets[role] = _open_canaries(path)
            continue
        if role == "yardstick":
            corpus = _open_yardstick(path, columns, reading_options(settings))
        else:
            is_labelled = role == "calibration"
            unlabelled = replace(columns, member=None, label=None)
            corpus = read_documents(
                path,
                columns if is_labelled else unlabelled,
                reserved=frozenset(names()),
                **reading_options(settings),
            )
        no_text = (pl.col("text").is_null(), "have no text; leave them out")
        for noun, (is_wrong, fault) in (("rows", no_text), ("texts", _FAULTS[role])):
            counts = corpus.documents.select(is_wrong.sum())
            n_wrong = counts.collect(engine="streaming").item()
            if n_wrong:
                raise CorpusError(f"{setting}: {n_wrong:,} {noun} of {path} {fault}")
        sets[role] = corpus
    if "yardstick" in sets:
        levels = sets["yardstick"].documents.select(pl.col("group").unique())
        sort_levels(levels.collect(engine="streaming")["group"])
    return sets


def _open_canaries(path: str) -> Corpus:
    rows = canary_documents(read_canaries(Path(path)))
    files = find_files(path).files
    return Corpus(documents=rows.lazy(), files=files, n_documents=rows.height)


def _open_input(settings: Settings) -> Corpus:
    """Read the texts that are audited, of files or of a named data set."""
    options = {"reserved": frozenset(names()), **reading_options(settings)}
    if settings.dataset is None:
        named_set = None
        corpus = read_documents(
            settings.input,
            _name_columns(settings),
            draw=_build_draw_request(settings),
            **options,
        )
    else:
        named_set = find_set(settings.dataset)
        given_columns = {
            setting.removesuffix("_column"): name
            for setting, name in settings.columns.items()
            if setting in settings.model_fields_set
        }
        corpus = named_set.read(settings.input, given_columns, **options)
        corpus = named_set.check(corpus, settings.dataset_sha256)
    has_reference = settings.reference_model is not None
    notes = advice(settings.model, named_set, has_reference=has_reference)
    return replace(corpus, notes=(*corpus.notes, *notes))


def _check_same_kind(corpora: Corpora) -> None:
    """Refuse plain texts beside answers of conversations, which are read after others."""
    has_conversations = corpora.input.has_conversations
    for role, corpus in corpora.reference_sets.items():
        if role == "yardstick" or corpus.has_conversations == has_conversations:
            continue
        kinds = ("plain texts", "conversations")
        setting = next(name for name, of_set in _ROLES.items() if of_set == role)
        raise CorpusError(
            f"the input holds {kinds[has_conversations]}, and {setting}="
            f" {kinds[corpus.has_conversations]}; give both in one form, or"
            " conversations= text"
        )


def _build_draw_request(settings: Settings) -> DrawRequest | None:
    if settings.documents is None:
        return None
    return DrawRequest(settings.documents, settings.seed, settings.draw_by)


def _check_slices(columns: tuple[str, ...], corpora: Corpora) -> None:
    """Refuse what no slices can be made of, before there are scores to slice."""
    documents = corpora.input.documents.drop("text", "prefix", "reference")
    schema = documents.collect_schema()
    for column in columns:
        if column not in schema:
            raise SettingsError(
                f"slice_by: the input has no column {column!r}, only"
                f" {', '.join(schema)}"
            )
        if schema[column].is_nested() or schema[column] == pl.Binary:
            raise SettingsError(
                f"slice_by: column {column!r} holds {schema[column]}, which makes no"
                " slices; name a column of strings, numbers, dates or booleans"
            )
    if columns:
        labelled = [documents.filter(pl.col("member").is_not_null())]
        non_members = corpora.reference_sets.get("non_member")
        if non_members is not None:
            labelled.append(_select_documents(non_members, "non_member", schema))
        find_slices(pl.concat(labelled), columns)


def _open_yardstick(
    path: str, columns: ColumnNames, options: Mapping[str, Any]
) -> Corpus:
    """Read a yardstick; its levels are its groups, whatever groups it has."""
    if path == CLASSICS:
        corpus = read_documents(_CLASSICS, ColumnNames())
    else:
        unlabelled = replace(columns, member=None, label=None, group=None)
        corpus = read_documents(path, unlabelled, **options)
    level_columns = {"level", "copies"} & {*corpus.documents.collect_schema()}
    if not level_columns:
        raise CorpusError(
            f"yardstick: {path} has no column level or copies; give each text one"
        )
    documents = corpus.documents.with_columns(
        group=pl.col(max(level_columns)).cast(pl.String),
        member=pl.lit(None, pl.Boolean),
    )
    return replace(corpus, documents=documents)


def _select_documents(corpus: Corpus, role: str, schema: pl.Schema) -> pl.LazyFrame:
    """Open the documents of a reference set with the columns of a schema, null where missing."""
    dtypes, documents = corpus.documents.collect_schema(), corpus.documents
    if role == "non_member":
        documents = documents.with_columns(member=pl.lit(value=False))
    return documents.select(
        pl.col(name)
        if name in Documents.column_names() or dtypes.get(name) == dtype
        else pl.lit(None, dtype).alias(name)
        for name, dtype in schema.items()
    )
