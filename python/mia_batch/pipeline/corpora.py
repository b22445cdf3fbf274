"""The texts of a run, each with its role."""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from pathlib import Path, PurePath
from typing import Any

import polars as pl

from mia_batch.attacks import Attack, names
from mia_batch.attacks.attack import CONTINUATION
from mia_batch.corpus import (
    ColumnNames,
    Corpus,
    canary_documents,
    digest_each,
    digest_of,
    find_files,
    read_canaries,
    read_documents,
)
from mia_batch.corpus.files import find_kind
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.inference.yardstick import sort_levels
from mia_batch.known import advice, find_set
from mia_batch.metrics import find_slices
from mia_batch.places import is_url
from mia_batch.schemas import Documents, SetAside
from mia_batch.settings import CLASSICS, NO_YARDSTICK, Settings
from mia_batch.tables import digest as stored_digest
from mia_batch.tables import generate, replacing
from mia_batch.targets import TargetPlan, build_targets
from mia_batch.views import may_cut

_BOOK_WINDOW_WORDS = 128
_CLASSICS = Path(__file__).parents[1] / "corpus" / "yardstick.jsonl"
_TEXTS = (  # settings that name texts, which Python may hand over as they are
    *(
        "input",
        "non_members",
        "calibration",
        "nonmember_shots",
        "member_shots",
        "yardstick",
    ),
    *(
        "frequencies_from",
        "prompts_from",
        "candidate_from",
        "samples_from",
        "known_corpus",
    ),
)
_ROLES = {  # settings that name the reference sets, and the role of their texts
    "non_members": "non_member",
    "calibration": "calibration",
    "canaries": "canary",
    "yardstick": "yardstick",
}
_FAULTS = {  # what no text of a reference set may have
    "non_member": (pl.col("member"), "are labelled as members; leave them out"),
    "yardstick": (pl.col("group").is_null(), "have no level; give each one"),
    "calibration": (
        pl.col("member").is_null(),
        "have no membership; label or remove them",
    ),
}


@dataclass(frozen=True, kw_only=True)  # without slots: digests are kept
class Corpora:
    """Every text of a run: those that are asked about, and the reference sets by role."""

    input: Corpus
    reference_sets: Mapping[str, Corpus]

    @property
    def _by_setting(self) -> dict[str, Corpus]:
        sets = self.reference_sets
        named = {
            setting: sets[role] for setting, role in _ROLES.items() if role in sets
        }
        return {"input": self.input} | named

    @cached_property
    def digests(self) -> dict[str, dict[str, str]]:
        """SHA-256 of every file by its name, by the setting that names the files."""
        return {
            setting: digest_each(each.files)
            for setting, each in self._by_setting.items()
        }

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
        """Say what was left out of each set, and why, and which columns have other names."""
        yield from self.input.notes
        reasons = self.set_aside.group_by("setting", "reason", maintain_order=True)
        for (setting, reason), rows in reasons:
            more = f" and {rows.height - 1:,} more" if rows.height > 1 else ""
            yield f"left out of {setting}: {rows['place'][0]}{more}: {reason}"

    def fingerprint(self, settings: Settings) -> dict[str, Any]:
        """SHA-256 of the input and each reference set, names of columns, most windows of a text."""
        digests = {name: digest_of(each) for name, each in self.digests.items()}
        left_out = sha256(self.set_aside.write_json().encode()).hexdigest()
        return {
            **({"set_aside": left_out} if self.set_aside.height else {}),
            "input": digests.pop("input"),
            **({"dataset": settings.dataset} if settings.dataset else {}),
            "columns": settings.columns,
            "max_windows_per_document": settings.max_windows_per_document,
            "reference_sets": {
                _ROLES[setting]: found for setting, found in digests.items()
            },
        }

    def targets(self, settings: Settings) -> pl.LazyFrame:
        """Cut all texts into targets: those of the input first, then role by role."""
        # It is built anew, in batches, each time it is collected. Canaries are not cut
        # into windows; one window of each text of the yardstick is taken.
        is_continued = settings.evidence != "logprobs"
        plan = replace(
            target_plan(settings), may_cut=may_cut(settings) if is_continued else None
        )
        built = [build_targets(self.input.documents, plan)]
        if not self.reference_sets:
            return built[0]
        names = (
            "window_words",
            "window_characters",
            "stride",
            "max_windows_per_document",
        )
        uncut: dict[str, Any] = dict.fromkeys(names)
        plans = {"canary": replace(plan, **uncut)}
        if plan.window is not None:
            plans["yardstick"] = replace(plan, max_windows_per_document=1)
        schema = self.input.documents.collect_schema()
        for role, corpus in self.reference_sets.items():
            documents = _documents(corpus, role, schema)
            built.append(build_targets(documents, plans.get(role, plan), role=role))

        def frames(_names: list[str] | None) -> Iterator[pl.DataFrame]:
            for targets in built:
                yield from targets.collect_batches(maintain_order=True)

        return generate(built[0].collect_schema(), frames)


def with_files(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write texts that are no files into the run's folder, and name the files instead."""
    given = dict(settings)
    for name in _TEXTS:
        value = given.get(name)
        if value is None or isinstance(value, str | os.PathLike):
            continue
        _as_table(name, value).write_parquet(content := BytesIO())
        sha = sha256(content.getvalue()).hexdigest()
        model = Path(str(given.get("model") or "recorded")).name
        given["out"] = given.get("out") or Path("runs", f"table-{sha[:8]}-{model}")
        if is_url(given["out"]):
            raise SettingsError(
                f"{name}= is no file, and a run in an object store needs one; write it"
            )
        Path(given["out"]).mkdir(parents=True, exist_ok=True)
        path = Path(given["out"], f"{name}.parquet")
        if path.exists() and stored_digest(path) != sha:  # a run rests on what is there
            path = path.with_stem(f"{name}-{sha[:8]}")
        with replacing(path) as new:
            new.write(content.getvalue())
        given[name] = path
    return given


def _as_table(name: str, value: Any) -> pl.DataFrame:
    given = f"{name}= is of type {type(value).__name__}"
    if type(value).__name__ == "Series":  # of Polars or pandas
        value = value.to_list()
    of_python = str | Path | None
    if isinstance(value, list | tuple) and all(
        isinstance(each, of_python) for each in value
    ):
        there = [each for each in value if each is not None]
        # `os.path.isfile` raises nothing where a text is too long for the name of a
        # file.
        files = (isinstance(each, Path) or os.path.isfile(each) for each in there)  # noqa: PTH113
        named = (
            find_kind(PurePath(each)) and len(str(each).split()) == 1 for each in there
        )
        if any(files) or (there and all(named)):
            raise SettingsError(
                f"{name}= is a list of files; give their folder, or a glob"
            )
        if value and not there:
            raise CorpusError(f"{name}= has no text, only None; give at least one text")
        value = {"text": value}
    try:
        table = (
            value.collect() if isinstance(value, pl.LazyFrame) else pl.DataFrame(value)
        )
    except ImportError as error:
        raise SettingsError(
            f"{given}, which this Python cannot read ({error}); run `pip install"
            " pyarrow`, or write the table to a file and give its path"
        ) from error
    except (TypeError, ValueError, pl.exceptions.PolarsError):
        table = pl.DataFrame({"column_0": [None]})
    if table.columns == ["column_0"]:  # as Polars names what has no name: [1, 2]
        raise SettingsError(
            f"{given}, which holds no texts; give a path, a list of strings, or a"
            " DataFrame with a column of texts"
        )
    if table.is_empty():
        raise CorpusError(f"{name}= has no rows; give at least one text")
    return table


def target_plan(settings: Settings) -> TargetPlan:
    same = {field.name for field in fields(TargetPlan)} - {"words"}
    return TargetPlan(words=settings.word_rule, **settings.model_dump(include=same))


def with_windows(settings: Settings) -> Settings:
    whole = settings.window_words is None and settings.window_characters is None
    if whole and find_files(settings.input).kind == "books":
        filled = settings.text_length or _BOOK_WINDOW_WORDS
        settings = settings.model_copy(update={"window_words": filled})
    target_plan(settings)  # refuses what contradicts itself
    return settings


def with_yardstick(settings: Settings, attacks: Iterable[Attack]) -> Settings:
    """Fill in the yardstick of books where something is said of it: it is compared or continued."""
    if settings.yardstick is not None or settings.engine == "replay":
        return settings
    continued = any(CONTINUATION in attack.reads for attack in attacks)
    books = find_files(settings.input).kind == "books" and (
        settings.non_members or continued
    )
    return settings.model_copy(
        update={"yardstick": CLASSICS if books else NO_YARDSTICK}
    )


def check_paths(settings: Settings) -> None:
    own = settings.yardstick if settings.has_yardstick else None
    for path in (settings.input, settings.non_members, settings.calibration, own):
        if path not in (None, CLASSICS):
            find_files(path)


def how_to_read(settings: Settings) -> dict[str, Any]:
    return {"encoding": settings.encoding, "bad_input": settings.bad_input}


def open_corpora(settings: Settings) -> Corpora:
    """Read and check the input and the reference sets, whose role may say the membership."""
    parts = {
        name.removesuffix("_column"): value for name, value in settings.columns.items()
    }
    columns = ColumnNames(**parts)
    reserved, how = frozenset(names()), how_to_read(settings)
    sets = {}
    for setting, role in _ROLES.items():
        path = getattr(settings, setting)
        if path is None or (role == "yardstick" and not settings.has_yardstick):
            continue
        if role == "canary":
            rows, files = (
                canary_documents(read_canaries(Path(path))),
                find_files(path).files,
            )
            sets[role] = Corpus(
                documents=rows.lazy(), files=files, n_documents=rows.height
            )
            continue
        if role == "yardstick":
            sets[role] = _open_yardstick(path, columns, how)
        else:
            unlabelled = replace(columns, member=None, label=None)
            wanted = columns if role == "calibration" else unlabelled
            sets[role] = read_documents(path, wanted, reserved=reserved, **how)
        no_text = (pl.col("text").is_null(), "have no text; leave them out")
        for noun, (wrong, what) in (("rows", no_text), ("texts", _FAULTS[role])):
            if (
                n := sets[role]
                .documents.select(wrong.sum())
                .collect(engine="streaming")
                .item()
            ):
                raise CorpusError(f"{setting}: {n:,} {noun} of {path} {what}")
    if "yardstick" in sets:
        levels = sets["yardstick"].documents.select(pl.col("group").unique())
        sort_levels(levels.collect(engine="streaming")["group"])
    if settings.dataset is None:
        named, asked = (
            None,
            read_documents(settings.input, columns, reserved=reserved, **how),
        )
    else:
        named = find_set(settings.dataset)
        own = {name for name in settings.columns if name in settings.model_fields_set}
        given = {part: each for part, each in parts.items() if f"{part}_column" in own}
        asked = named.read(settings.input, given, reserved=reserved, **how)
        asked = named.check(asked, settings.dataset_sha256)
    said = advice(
        settings.model, named, has_reference=settings.reference_model is not None
    )
    asked = replace(asked, notes=(*asked.notes, *said))
    _check_slices(
        settings.slice_by, corpora := Corpora(input=asked, reference_sets=sets)
    )
    return corpora


def _check_slices(columns: tuple[str, ...], corpora: Corpora) -> None:
    """Refuse what no slices can be made of, before there are scores to slice."""
    asked = corpora.input.documents.drop("text", "prefix", "reference")
    schema = asked.collect_schema()
    for column in columns:
        if column not in schema:
            known = ", ".join(schema)
            raise SettingsError(
                f"slice_by: the input has no column {column!r}, only {known}"
            )
        if schema[column].is_nested() or schema[column] == pl.Binary:
            raise SettingsError(
                f"slice_by: column {column!r} holds {schema[column]}, which makes no"
                " slices; name a column of strings, numbers, dates or booleans"
            )
    if columns:
        labelled = [asked.filter(pl.col("member").is_not_null())]
        if (others := corpora.reference_sets.get("non_member")) is not None:
            labelled.append(_documents(others, "non_member", schema))
        find_slices(pl.concat(labelled), columns)


def _open_yardstick(path: str, columns: ColumnNames, how: Mapping[str, Any]) -> Corpus:
    """Read a yardstick; its levels are its groups, whatever groups it has."""
    own = path == CLASSICS
    wanted = (
        ColumnNames() if own else replace(columns, member=None, label=None, group=None)
    )
    corpus = read_documents(_CLASSICS if own else path, wanted, **({} if own else how))
    names = {"level", "copies"} & {*corpus.documents.collect_schema()}
    if not names:
        raise CorpusError(
            f"yardstick: {path} has no column level or copies; give each text one"
        )
    level, unknown = pl.col(max(names)).cast(pl.String), pl.lit(None, pl.Boolean)
    return replace(
        corpus, documents=corpus.documents.with_columns(group=level, member=unknown)
    )


def _documents(corpus: Corpus, role: str, schema: pl.Schema) -> pl.LazyFrame:
    """Open the documents of a reference set with the columns of a schema, null where missing."""
    found, own = corpus.documents.collect_schema(), Documents.column_names()
    known = pl.lit(value=False) if role == "non_member" else pl.col("member")
    return corpus.documents.with_columns(member=known).select(
        (
            pl.col(name)
            if name in own or found.get(name) == dtype
            else pl.lit(None, dtype).alias(name)
        )
        for name, dtype in schema.items()
    )
