"""The views of the targets that a run's attacks read, made from its settings."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import polars as pl

from mia_batch import tables
from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.errors import SettingsError
from mia_batch.evidence.engines.masked import MaskedModel
from mia_batch.evidence.frequencies import count_frequencies, load_frequencies, save_frequencies
from mia_batch.evidence.scoring import Seen, View
from mia_batch.evidence.scoring.forms import NO_FURTHER, changed, extraction, given, pick
from mia_batch.models.identity import identify_model
from mia_batch.pipeline.manifest import describe
from mia_batch.prompts.lowercase import lowercase
from mia_batch.prompts.shots import choose_shots
from mia_batch.prompts.variants import neighbours, perturbations
from mia_batch.schemas import Targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from mia_batch.attacks import Attack
    from mia_batch.corpus import Corpus
    from mia_batch.models.tokens import Tokenizer
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run
    from mia_batch.prompts.shots import Shots
    from mia_batch.prompts.variants import Variants
    from mia_batch.schemas import ModelRole
    from mia_batch.settings import Settings

__all__ = ["Views", "count_texts"]

_SHOT_VIEWS = ("nonmember_shots", "member_shots")  # and the settings that give the texts
_LONGEST_LOOKED_AT = 1000  # texts, by their bytes, for the one of most tokens
_ROWS_AT_ONCE = 4096
_SHOT = "the text is one of those that are put before others"


def count_texts(settings: Settings, attacks: list[Attack]) -> dict[tuple[str, str], int]:
    """Count the texts per target that log-probabilities are asked of.

    Parameters
    ----------
    settings
        The settings.
    attacks
        The attacks; those that read log-probabilities count.

    Returns
    -------
    dict
        Number by model role and view.
    """
    several = ("neighbour", "perturbation")
    needed = dict.fromkeys(view for attack in attacks for view in attack.views)
    return {view: settings.neighbours if view[1] in several else 1 for view in needed}


class Views:
    """What the models of a run shall see of each target.

    Parameters
    ----------
    settings
        The settings.
    attacks
        Attacks that read log-probabilities.
    run
        The run, held.

    Raises
    ------
    CorpusError
        If a file of texts that the settings name cannot be read.
    SettingsError
        If the masked model cannot be found, or the corpus lacks the column of neighbours.
    """

    def __init__(self, settings: Settings, attacks: list[Attack], run: Run) -> None:
        self._settings = settings
        self._run = run
        self._needed = count_texts(settings, attacks)
        columns = {column for attack in attacks for column in attack.columns}
        self._counts_tokens = "log_inverse_frequency" in columns
        self._shots: dict[str, tuple[Shots, frozenset[str]]] = {}
        self._check_neighbours_column()

    def check(self) -> None:
        """Look whether everything is there that is needed only once an engine has started.

        Raises
        ------
        CorpusError
            If a file of shots cannot be read.
        SettingsError
            If the reference model cannot be found.
        """
        for setting in filter(self._has, _SHOT_VIEWS):
            self._corpus(setting)
        if any(role == "reference" for role, _ in self._needed):
            model = str(self._settings.reference_model)
            try:
                identify_model(model, self._settings.reference_revision)
            except SettingsError as error:
                msg = str(error).replace("setting 'model'", "setting 'reference_model'")
                raise SettingsError(msg) from error

    def load(self) -> None:
        """Load what makes texts, where one is needed.

        Raises
        ------
        SettingsError
            If the masked model cannot be loaded.
        """
        column = self._settings.neighbours_column
        if self._has("perturbation") or (self._has("neighbour") and column is None):
            _ = self._masked_model

    @property
    def evidence(self) -> dict[str, Any]:
        """What of the settings changes these views, by name."""
        settings = self._settings
        values: dict[str, Any] = {"long_texts": settings.long_texts}
        if self._has("extraction"):
            values["extraction_prefix_tokens"] = settings.extraction_prefix_tokens
            values["extraction_tokens"] = settings.extraction_tokens
        if self._has("neighbour"):
            values["neighbours_column"] = settings.neighbours_column
        if settings.masked_model and (self._has("neighbour") or self._has("perturbation")):
            digest = identify_model(settings.masked_model, None).digest
            values["masked_model"] = describe(settings.masked_model, None, digest)
        if self._counts_tokens:
            values["frequencies_from"] = self._corpus("frequencies_from").digest()
        return values

    def of(self, role: ModelRole) -> Iterator[View]:
        """Yield the views of one model."""
        for needed, name in self._needed:
            if needed == role:
                yield self._view(role, name)

    def fit(
        self, tokenizer: Tokenizer | None, context: int, manifest: Manifest, observer: Observer
    ) -> None:
        """Choose how many shots are put before the texts, unless the run has chosen before.

        Parameters
        ----------
        tokenizer
            The model's tokenizer; null where it is not at hand.
        context
            The model's context in tokens.
        manifest
            The run's manifest; the number is recorded in it.
        observer
            Is told the number.

        Raises
        ------
        SettingsError
            If not even one shot fits, there is no tokenizer to tell, or the run was made with
            others.
        """
        for setting in filter(self._has, _SHOT_VIEWS):
            if tokenizer is None:
                msg = f"setting {setting!r} needs setting 'tokenizer', to see how many texts fit"
                raise SettingsError(msg)
            corpus = self._corpus(setting)
            recorded = manifest.evidence.get(setting, {})
            digest, most = corpus.digest(), self._settings.shots
            same = recorded.get("digest") == digest and recorded.get("most") == most
            texts = _texts_of(corpus, recorded["n_shots"] if same else most)
            room = context if same else context - self._longest(tokenizer, context)
            shots = choose_shots(
                texts, room=room, count_tokens=tokenizer.count_tokens, setting=setting
            )
            described = {"digest": digest, "most": most, "n_shots": shots.n_shots}
            manifest.agree({setting: described}, self._run)
            observer.stage(f"{setting}: {shots.n_shots} texts, {shots.n_tokens:,} tokens")
            self._shots[setting] = shots, frozenset(texts[: shots.n_shots])

    def log_inverse_frequency(self, tokenizer: Tokenizer | None) -> NDArray[np.float32] | None:
        """Count the tokens of the reference corpus, unless the run has counted them before.

        Parameters
        ----------
        tokenizer
            The model's tokenizer; null where it is not at hand.

        Returns
        -------
        ndarray or None
            Float32, log of 1 / frequency of each token; null where no attack needs it.
        """
        if tokenizer is None or not self._counts_tokens:
            return None
        path = self._run.frequencies_path
        if not path.exists():
            texts = self._corpus("frequencies_from").documents.select("text").drop_nulls()
            batches = texts.collect_batches(chunk_size=_ROWS_AT_ONCE)
            counted = count_frequencies(
                (batch["text"].to_list() for batch in batches),
                encode=tokenizer.encode,
                vocabulary=tokenizer.vocabulary,
                tokenizer=tokenizer.digest,
            )
            save_frequencies(counted, path)
        return load_frequencies(path, tokenizer.digest).log_inverse()

    def _has(self, name: str) -> bool:
        return any(needed == name for _, needed in self._needed)

    def _corpus(self, setting: str) -> Corpus:
        columns = ColumnNames(text=self._settings.text_column)
        return read_documents(getattr(self._settings, setting), columns)

    def _longest(self, tokenizer: Tokenizer, context: int) -> int:
        """Tokens of the longest target that the context can hold, special tokens included."""
        texts = (
            tables.scan(self._run.targets_path, Targets)
            .select("target", n_bytes=pl.col("target").str.len_bytes())
            .drop_nulls()
            .top_k(_LONGEST_LOOKED_AT, by="n_bytes")
            .collect(engine="streaming")["target"]
        )
        lengths = map(len, tokenizer.encode_prompts(texts.to_list()))
        return max((length for length in lengths if length <= context), default=0)

    def _check_neighbours_column(self) -> None:
        column = self._settings.neighbours_column
        if column is None or not self._has("neighbour"):
            return
        found = tables.scan(self._run.targets_path, Targets).collect_schema().get(column)
        if found != pl.List(pl.String):
            what = "missing" if found is None else f"of type {found}"
            msg = (
                f"setting 'neighbours_column': column {column!r} of the input is {what}; it must "
                "hold lists of texts"
            )
            raise SettingsError(msg)

    @cached_property
    def _masked_model(self) -> MaskedModel:
        return MaskedModel.load(str(self._settings.masked_model))

    def _view(self, role: ModelRole, name: str) -> View:
        n_texts = self._needed[role, name]
        options: dict[str, Any] = {"role": role, "name": name, "n_texts": n_texts}
        match name:
            case "text":
                options["make"] = partial(changed, change=str)
            case "lowercase":
                options["make"] = partial(changed, change=lowercase)
            case "extraction":
                options["make"] = extraction
                options["context_tokens"] = self._settings.extraction_prefix_tokens
                options["text_tokens"] = self._settings.extraction_tokens
            case "neighbour" | "perturbation":
                options["make"] = self._variants(name)
            case _:
                options["make"] = partial(self._after_shots, setting=name)
        return View(**options)

    def _variants(self, name: str) -> Callable[[pl.DataFrame, range], Iterator[list[Seen]]]:
        if name == "neighbour" and self._settings.neighbours_column is not None:
            return partial(given, column=self._settings.neighbours_column)
        return partial(self._made, how=neighbours if name == "neighbour" else perturbations)

    def _made(
        self, targets: pl.DataFrame, indices: range, *, how: Callable[..., Variants]
    ) -> Iterator[list[Seen]]:
        for target_id, text in targets.select("target_id", "target").iter_rows():
            made = how(
                self._masked_model,
                text,
                n=indices.stop,
                target_id=target_id,
                seed=self._settings.seed,
            )
            yield pick(made.texts, indices, made.reason or NO_FURTHER)

    def _after_shots(
        self, targets: pl.DataFrame, _indices: range, *, setting: str
    ) -> Iterator[list[Seen]]:
        shots, texts = self._shots[setting]
        for text in targets["target"]:
            if text in texts:
                yield [Seen(text=None, reason=_SHOT)]
            else:
                yield [Seen(text=text, context=shots.context)]


def _texts_of(corpus: Corpus, n: int) -> list[str]:
    """Take the first texts that are not empty."""
    there = corpus.documents.select("text").filter(pl.col("text").str.contains(r"\S"))
    return there.head(n).collect()["text"].to_list()
