"""Data sets and models with a record: where they are, what they hold, what it means.

``records/`` has a file of records for each family of data sets, and one for models. A
fact that nobody knows is left out there, and a set's record says why.
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
    """A data set with labels, as its record describes it.

    Members are marked by a column (in ``columns``), by the folder of a file
    (``folders``), or by a column that counts how often a text was seen (``counted``);
    a set without ``labels`` marks none.
    """

    name: str
    title: str
    paper: str
    source: str  # of these facts
    labels: str = ""  # the models that the labels are about
    # Their training data, in the words of the models' records
    corpus: str | None = None
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
    only: Mapping[str, str] = field(default_factory=dict)  # values of its rows' columns
    # The column that says which of several holds a row's text, and these by its values
    choices: Mapping[str, str] = field(default_factory=dict)
    rows: int | None = None
    sha256: str | None = None  # see `content_digest`
    blind: Mapping[str, Any] | None = None  # the strongest classifier without the model
    unknown: Mapping[str, str] = field(default_factory=dict)  # why a fact is None

    def locate(self) -> str:
        """Return its files, fetched from the hub where its cache lacks them; run none."""
        option = f"--dataset {self.name}"
        local_copy = "or give a local copy with --input PATH"
        if self.hub is None:
            raise SettingsError(
                f"{option} cannot be fetched ({self.unknown['hub']}): download"
                f" {self.address} and give its files with --input PATH"
            )
        try:
            from huggingface_hub import errors, snapshot_download
        except ImportError:
            raise SettingsError(
                f"{option} is fetched by huggingface_hub, which is not installed: "
                f"pip install huggingface_hub, {local_copy}"
            ) from None
        fetch = partial(
            snapshot_download, self.hub, repo_type="dataset", revision=self.revision
        )
        patterns = self.files and [self.files]
        folder = None
        try:
            if self.sha256:  # by which a part of it would be found out
                with suppress(errors.LocalEntryNotFoundError):
                    folder = fetch(allow_patterns=patterns, local_files_only=True)
            if folder is None or not self._has_files(folder):
                folder = fetch(allow_patterns=patterns)
        except errors.GatedRepoError:
            raise SettingsError(
                f"{option}: accept the conditions at"
                f" https://huggingface.co/datasets/{self.hub}, then log in with 'hf"
                f" auth login', {local_copy}"
            ) from None
        except Exception as error:  # the network may throw anything
            first_sentence = str(error).split(". ")[0]
            cause = " ".join(first_sentence.split()) or type(error).__name__
            raise SettingsError(
                f"{option} could not be fetched from {self.hub} ({cause}); check the"
                f" network, {local_copy}"
            ) from None
        if not self._has_files(folder):
            raise SettingsError(
                f"{option}: {folder} has no {self.files}; connect to the network to"
                f" fetch it, {local_copy}"
            )
        return self._pattern_below(folder)

    def _pattern_below(self, folder: str) -> str:
        """Return the glob of its files in a folder, or the folder where all are its own."""
        return str(Path(glob.escape(folder), self.files)) if self.files else folder

    def _has_files(self, folder: str) -> bool:
        pattern = self._pattern_below(folder)
        return bool(glob.glob(pattern))  # noqa: PTH207 - Path.glob takes no absolute pattern

    def read(
        self,
        path: str,
        user_columns: Mapping[str, str],
        **options: Any,
    ) -> Corpus:
        """Read its files, each text with its label; ``user_columns`` rename columns."""
        columns = replace(ColumnNames(**self.columns), **user_columns)
        if self.folders:
            return self._read_folders(path, columns, **options)
        corpus = read_documents(path, columns, **options)
        documents = corpus.documents
        schema = documents.collect_schema()
        needed = [*self.only]
        if self.choices:
            needed.append(self.choices["column"])
        if self.counted:
            needed.append(self.counted)
        for column in needed:
            if column not in schema:
                raise CorpusError(
                    f"{path} has no column {column!r}, which {self.name} needs"
                )
        if self.counted:
            n_times_seen = pl.col(self.counted).cast(pl.Float64, strict=False)
            documents = documents.with_columns(member=n_times_seen > 0)
        for column, value in self.only.items():
            documents = documents.filter(pl.col(column).cast(pl.String) == value)
        if self.choices:
            documents = self._choose_texts(documents, path, user_columns)
        n_documents = corpus.n_documents
        if self.only:
            height = documents.select(pl.len()).collect(engine="streaming")
            n_documents = height.item()
            if n_documents == 0:
                raise CorpusError(
                    f"{path} has no row of {self.name}; give its files with --input"
                    " PATH"
                )
        return replace(corpus, documents=documents, n_documents=n_documents)

    def _choose_texts(
        self, documents: pl.LazyFrame, path: str, user_columns: Mapping[str, str]
    ) -> pl.LazyFrame:
        """Take the text of each row from the column that another one names."""
        if "text" in user_columns:
            return documents
        choices = dict(self.choices)
        answer = pl.col(choices.pop("column")).cast(pl.String)
        text = pl.lit(None, pl.String)
        for value, column in choices.items():
            name = "text" if column == self.columns["text"] else column
            text = pl.when(answer == value).then(pl.col(name)).otherwise(text)
        is_unclear = ~answer.is_in(list(choices)).fill_null(value=False)
        n_unclear = documents.select(is_unclear.sum()).collect().item()
        if n_unclear:
            raise CorpusError(
                f"{path}: {n_unclear:,} rows have a column {self.choices['column']!r}"
                f" that is none of {', '.join(choices)}, so it is unknown which text is"
                f" the one of {self.name}; name it with text_column="
            )
        return documents.with_columns(text=text)

    def _read_folders(self, path: str, columns: ColumnNames, **options: Any) -> Corpus:
        """Read the files below its folders, which label their texts."""
        pattern = Path(self.files or "*").name
        files = []
        labels = set()
        documents = []
        n_documents = 0
        set_aside: dict[str, str] = {}
        for file in find_files(path).files:
            names = [name for name in Path(file.name).parts if name in self.folders]
            if not names or not fnmatch(file.path.name, pattern):
                continue
            label = self.folders[names[0]]
            corpus = read_documents(str(file.path), columns, **options)
            texts = corpus.documents.select(Documents.column_names())
            files.append(file)
            labels.add(label)
            documents.append(texts.with_columns(member=pl.lit(label)))
            n_documents += corpus.n_documents
            set_aside |= corpus.set_aside
        if labels != {True, False}:
            folders = " and ".join(f"{folder}/{pattern}" for folder in self.folders)
            raise CorpusError(
                f"{path} has no {folders}; give the folder that holds both"
            )
        return Corpus(
            documents=pl.concat(documents),
            files=tuple(files),
            n_documents=n_documents,
            set_aside=set_aside,
        )

    def check(self, corpus: Corpus, pinned: str | None) -> Corpus:
        """Check that the content is the recorded or pinned one; add notes about the set."""
        digest = content_digest(corpus.documents)
        expected = pinned or self.sha256
        n_rows = corpus.n_documents
        if expected is None and self.rows not in (None, n_rows):
            raise CorpusError(
                f"this is not {self.name}: it has {n_rows:,} rows and not {self.rows:,}"
            )
        if expected not in (None, digest):
            origin = "--dataset-sha256" if pinned else f"the record of {self.name}"
            raise CorpusError(
                f"this is not {self.name}: its {n_rows:,} rows have the SHA-256"
                f" {digest}, {origin} says {expected}; give the files of {self.paper}"
                f" ({self.hub or self.address}), or leave --dataset out, or pin these"
                f" with --dataset-sha256 {digest}"
            )
        if expected is None:
            reason = self.unknown["sha256"]
            content = f"was not checked ({reason}); --dataset-sha256 {digest} pins it"
        else:
            content = "is the one pinned" if pinned else "is the one recorded"
        notes = [f"{self.name} is {self.title} ({self.paper}); its content {content}"]
        notes += self._describe_commit(corpus)
        if self.blind:
            notes.append(_BLIND.format(name=self.name, **self.blind))
        return replace(corpus, notes=(*corpus.notes, *notes))

    def _describe_commit(self, corpus: Corpus) -> Iterator[str]:
        """Say at which commit of the hub a set was read whose record pins none."""
        is_pinned = re.fullmatch("[0-9a-f]{40}", self.revision or "")
        if is_pinned or self.hub is None:
            return
        commits = set[str]()
        for file in corpus.files:
            if file.remote is not None and file.remote.stamp.revision:
                commits.add(file.remote.stamp.revision)
            elif isinstance(file.path, Path) and "snapshots" in file.path.parts:
                parts = file.path.parts
                commits.add(parts[parts.index("snapshots") + 1])
        for commit in sorted(commits):
            yield (
                f"no commit of {self.name} was pinned beforehand: it was read at {commit}"
            )


@cache
def named_sets() -> dict[str, NamedSet]:
    """Read the records of all data sets, by name.

    ``{set}`` in a record is the name of a subset, ``{flat}`` that name without slashes.
    """
    sets = {}
    for path in sorted(_RECORDS.glob("*.toml")):
        text = path.read_text("utf-8")
        for subset in tomllib.loads(text).get("names", ()):
            flat_name = subset.replace("/", "_")
            filled = text.replace("{set}", subset).replace("{flat}", flat_name)
            record = tomllib.loads(filled)
            subset_facts = record.pop("sets", {}).get(subset, {})
            del record["names"]
            name = f"{path.stem}:{subset}" if subset else path.stem
            sets[name] = NamedSet(name=name, **record | subset_facts)
    return sets


def find_set(name: str) -> NamedSet:
    """Find a data set by its name, in any case.

    Raises `SettingsError` with the nearest names.
    """
    sets = named_sets()
    lower_name = name.strip().casefold()
    full_names = {full_name.casefold(): full_name for full_name in sets}
    if lower_name in full_names:
        return sets[full_names[lower_name]]
    family = f"{lower_name.rstrip(':*')}:"
    nearest = [lower for lower in full_names if lower.startswith(family)][:4]
    if not nearest:
        nearest = get_close_matches(lower_name, full_names, n=3)
    hint = ""
    if nearest:
        proposals = " or ".join(full_names[lower] for lower in nearest)
        hint = f"did you mean {proposals}? "
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
        row_hashes = [sha256(to_json(row)).digest() for row in frame.iter_rows()]
        hashes.append(pl.Series(row_hashes, dtype=pl.Binary))
    total = sha256()
    for row_hash in pl.concat(hashes).sort():
        total.update(row_hash)
    return total.hexdigest()


def find_model(name: str) -> dict[str, Any] | None:
    """Find the record of a model by its name at the hub, or a folder that ends with it."""
    name = "/".join(Path(name).parts[-2:])
    text = (_RECORDS / "models.toml").read_text("utf-8")
    for record in tomllib.loads(text)["models"]:
        match = re.fullmatch(record["pattern"], name)
        if match:
            twin = match.expand(record.get("twin", ""))
            return {**record, "twin": "" if twin == name else twin}
    return None


def advice(
    model: str, data_set: NamedSet | None, *, has_reference: bool
) -> Iterator[str]:
    """Iterate over what the records know of a model, and of a set's labels for it."""
    record = find_model(model) or {}
    corpus = record.get("corpus", "")
    cutoff = record.get("until")
    if record:
        end = f", whose texts end by {cutoff} ({record['because']})" if cutoff else ""
        twin = ""
        if record["twin"] and not has_reference:
            twin = (
                f"; its twin {record['twin']} ({record.get('how')}) may serve as"
                " --reference-model"
            )
        yield f"{model} was trained on {corpus}{end}{twin}"
    if data_set is None:
        return
    if not data_set.labels:
        yield (
            f"{data_set.name} has no labels of membership: compare it with texts known to"
            " be outside, or tune a model on a part of it"
        )
        return
    if data_set.corpus and corpus.startswith(data_set.corpus):
        return
    about = f"the labels of {data_set.name} are about {data_set.labels}"
    texts_from = data_set.texts_from
    if cutoff and texts_from and texts_from > cutoff:
        yield (
            f"all texts of {data_set.name} were written from {texts_from} on, after"
            " that: none can be in the training data, whatever their labels say"
        )
    elif record and data_set.corpus:
        yield f"{about}: of {model} they say nothing"
    else:
        yield about
    non_members_from = data_set.non_members_from
    if cutoff and non_members_from and non_members_from <= cutoff:
        yield (
            f"non-members of {data_set.name} are from {non_members_from} on, and"
            f" this model may have seen texts until {cutoff}: some may be in its"
            " training data"
        )
