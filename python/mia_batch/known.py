"""Data sets and models that are known by name: where they are, what they hold, what it means.

``records/`` has a file of records for each family of data sets, and one for models. A
fact that is not known is left out there, and a set's record says why.
"""

import glob
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl
from pydantic_core import to_json

from mia_batch.corpus import ColumnNames, Corpus, find_files, read_documents
from mia_batch.errors import CorpusError, SettingsError
from mia_batch.schemas import Documents

_RECORDS = Path(__file__).parent / "records"
_BLIND = (
    "members and non-members of {name} differ: a classifier that never sees the model"
    " tells them apart with AUC {auc:.3f} (95 % CI {low:.3f} to {high:.3f},"
    " {classifier}, measured with this package)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """A data set with labels, as its record describes it; ``unknown`` says why a fact is None.

    Members are marked by a column (in ``columns``), by the folder of a file
    (``folders``), or by a column that counts how often a text was seen (``counted``).
    """

    name: str
    title: str
    paper: str
    source: str  # of these facts
    labels: str  # the models that the labels are about
    corpus: str | None = (
        None  # their training data, in the words of the models' records
    )
    published: date | None = None
    texts_from: date | None = None  # no text is older
    non_members_from: date | None = None
    licence: str | None = None
    hub: str | None = None  # repository at the Hugging Face hub
    address: str | None = None  # where else it is
    revision: str | None = None
    files: str | None = None  # pattern of its files in there; None: all
    columns: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, bool] = field(default_factory=dict)
    counted: str | None = None
    # Values of columns of its rows
    only: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    sha256: str | None = None  # see `content_digest`
    blind: Mapping[str, Any] | None = None  # the strongest classifier without the model
    unknown: Mapping[str, str] = field(default_factory=dict)

    def locate(self) -> str:
        """Find its files at the hub, or in the hub's cache; what is there is fetched, never run."""
        own, local = f"--dataset {self.name}", "or give a local copy with --input PATH"
        if self.hub is None:
            raise SettingsError(
                f"{own} cannot be fetched ({self.unknown['hub']}): download"
                f" {self.address} and give its files with --input PATH"
            )
        try:
            from huggingface_hub import errors, snapshot_download
        except ImportError:
            raise SettingsError(
                f"{own} is fetched by huggingface_hub, which is not installed: "
                f"pip install huggingface_hub, {local}"
            ) from None
        fetch = partial(
            snapshot_download, self.hub, repo_type="dataset", revision=self.revision
        )
        patterns, folder = self.files and [self.files], None
        try:
            if self.sha256:  # by which a part of it would be found out
                with suppress(errors.LocalEntryNotFoundError):
                    folder = fetch(allow_patterns=patterns, local_files_only=True)
            if folder is None or not glob.glob(self._below(folder)):  # noqa: PTH207 - as below
                folder = fetch(allow_patterns=patterns)
        except errors.GatedRepoError:
            raise SettingsError(
                f"{own}: accept the conditions at"
                f" https://huggingface.co/datasets/{self.hub}, then log in with 'hf"
                f" auth login', {local}"
            ) from None
        except Exception as error:  # the network may throw anything
            cause = " ".join(str(error).split(". ")[0].split()) or type(error).__name__
            raise SettingsError(
                f"{own} could not be fetched from {self.hub} ({cause}); check the"
                f" network, {local}"
            ) from None
        if not glob.glob(self._below(folder)):  # noqa: PTH207 - Path.glob takes no absolute pattern
            fault = f"{folder} has no {self.files}; connect to the network to fetch it"
            raise SettingsError(f"{own}: {fault}, {local}")
        return self._below(folder)

    def _below(self, folder: str) -> str:
        return str(Path(glob.escape(folder), self.files)) if self.files else folder

    def read(self, path: str, given: Mapping[str, str], **how: Any) -> Corpus:
        """Read its files, each text with its label; ``given`` are the user's names of columns."""
        columns = replace(ColumnNames(**self.columns), **given)
        if self.folders:
            return self._read_folders(path, columns, **how)
        corpus = read_documents(path, columns, **how)
        documents, found = corpus.documents, corpus.documents.collect_schema()
        for column in (*self.only, *filter(None, [self.counted])):
            if column not in found:
                raise CorpusError(
                    f"{path} has no column {column!r}, which {self.name} needs"
                )
        if self.counted:
            documents = documents.with_columns(
                member=pl.col(self.counted).cast(pl.Float64, strict=False) > 0
            )
        for column, value in self.only.items():
            documents = documents.filter(pl.col(column).cast(pl.String) == value)
        n = corpus.n_documents
        if self.only and not (
            n := documents.select(pl.len()).collect(engine="streaming").item()
        ):
            raise CorpusError(
                f"{path} has no row of {self.name}; give its files with --input PATH"
            )
        return replace(corpus, documents=documents, n_documents=n)

    def _read_folders(self, path: str, columns: ColumnNames, **how: Any) -> Corpus:
        pattern = Path(self.files or "*").name
        parts = [
            (file, self.folders[folder], read_documents(file.path, columns, **how))
            for file in find_files(path).files
            for folder in [
                each for each in Path(file.name).parts if each in self.folders
            ][:1]
            if fnmatch(file.path.name, pattern)
        ]
        if {label for _, label, _ in parts} != {True, False}:
            wanted = " and ".join(f"{folder}/{pattern}" for folder in self.folders)
            raise CorpusError(
                f"{path} has no {wanted}; give the folder that holds both"
            )
        return Corpus(
            documents=pl.concat(
                part.documents.select(Documents.column_names()).with_columns(
                    member=pl.lit(label)
                )
                for _, label, part in parts
            ),
            files=tuple(file for file, _, _ in parts),
            n_documents=sum(part.n_documents for _, _, part in parts),
            set_aside={
                at: why for _, _, part in parts for at, why in part.set_aside.items()
            },
        )

    def check(self, corpus: Corpus, pinned: str | None) -> Corpus:
        """Refuse another content than the one recorded, or pinned; say what is known of it."""
        found, wanted = content_digest(corpus.documents), pinned or self.sha256
        n = corpus.n_documents
        if wanted is None and self.rows not in (None, n):
            raise CorpusError(
                f"this is not {self.name}: it has {n:,} rows and not {self.rows:,}"
            )
        if wanted not in (None, found):
            by = "--dataset-sha256" if pinned else f"the record of {self.name}"
            raise CorpusError(
                f"this is not {self.name}: its {n:,} rows have the SHA-256 {found},"
                f" {by} says {wanted}; give the files of {self.paper}"
                f" ({self.hub or self.address}), or leave --dataset out, or pin these"
                f" with --dataset-sha256 {found}"
            )
        checked = f"its content is the one {'pinned' if pinned else 'recorded'}"
        if wanted is None:
            why = self.unknown["sha256"]
            checked = (
                f"its content was not checked ({why}); --dataset-sha256 {found} pins it"
            )
        notes = [f"{self.name} is {self.title} ({self.paper}); {checked}"]
        if self.blind:
            notes.append(_BLIND.format(name=self.name, **self.blind))
        return replace(corpus, notes=(*corpus.notes, *notes))


@cache
def named_sets() -> dict[str, NamedSet]:
    """Read the records of all data sets, by name; ``{set}`` in a record is a set's own name."""
    found = {}
    for path in sorted(_RECORDS.glob("*.toml")):
        text = path.read_text("utf-8")
        for own in tomllib.loads(text).get("names", ()):
            filled = text.replace("{set}", own).replace("{flat}", own.replace("/", "_"))
            record = tomllib.loads(filled)
            own_facts = record.pop("sets", {}).get(own, {})
            del record["names"]
            name = f"{path.stem}:{own}" if own else path.stem
            found[name] = NamedSet(name=name, **record | own_facts)
    return found


def find_set(name: str) -> NamedSet:
    """Find a data set by its name, in any case; raises `SettingsError` with the nearest names."""
    sets, wanted = named_sets(), name.strip().casefold()
    by_case = {each.casefold(): each for each in sets}
    if wanted in by_case:
        return sets[by_case[wanted]]
    near = [each for each in by_case if each.startswith(f"{wanted.rstrip(':*')}:")][:4]
    near = near or get_close_matches(wanted, by_case, n=3)
    hint = (
        f"did you mean {' or '.join(by_case[each] for each in near)}? " if near else ""
    )
    raise SettingsError(
        f"there is no data set {name!r}; {hint}`mia-batch datasets` lists them all"
    )


def content_digest(documents: pl.LazyFrame) -> str:
    """Hash the rows of a data set, whatever their order, file format or further columns.

    SHA-256 over the SHA-256 of each row, sorted; a row is the compact JSON of ``[text,
    member]`` in UTF-8, such as ``["A text.",true]``.
    """
    hashes = [pl.Series([], dtype=pl.Binary)]
    for frame in documents.select("text", "member").collect_batches():
        rows = (sha256(to_json(row)).digest() for row in frame.iter_rows())
        hashes.append(pl.Series([*rows], dtype=pl.Binary))
    total = sha256()
    for each in pl.concat(hashes).sort():
        total.update(each)
    return total.hexdigest()


def find_model(name: str) -> dict[str, Any] | None:
    """Find the record of a model by its name at the hub, or a folder that ends with it."""
    name = "/".join(Path(name).parts[-2:])
    for record in tomllib.loads((_RECORDS / "models.toml").read_text("utf-8"))[
        "models"
    ]:
        if found := re.fullmatch(record["pattern"], name):
            twin = found.expand(record.get("twin", ""))
            return {**record, "twin": "" if twin == name else twin}
    return None


def advice(model: str, named: NamedSet | None, *, has_reference: bool) -> Iterator[str]:
    """Say what the records know of a model, and of a data set's labels for it."""
    known = find_model(model) or {}
    corpus, until = known.get("corpus", ""), known.get("until")
    if known:
        end = f", whose texts end by {until} ({known['because']})" if until else ""
        twin = (
            f"; its twin {known['twin']} ({known.get('how')}) may serve as"
            " --reference-model"
        )
        twin = "" if has_reference or not known["twin"] else twin
        yield f"{model} was trained on {corpus}{end}{twin}"
    if named is None:
        return
    about = f"the labels of {named.name} are about {named.labels}"
    if named.corpus and corpus.startswith(named.corpus):
        return
    if until and named.texts_from and named.texts_from > until:
        yield (
            f"all texts of {named.name} were written from {named.texts_from} on, after"
            " that: none can be in the training data, whatever their labels say"
        )
    elif known and named.corpus:
        yield f"{about}: of {model} they say nothing"
    else:
        yield about
    if until and named.non_members_from and named.non_members_from <= until:
        yield (
            f"non-members of {named.name} are from {named.non_members_from} on, and"
            f" this model may have seen texts until {until}: some may be in its"
            " training data"
        )
