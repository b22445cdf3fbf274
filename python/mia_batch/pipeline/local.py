"""Sampling with a model on this machine."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from mia_batch.evidence.local import LocalSource
from mia_batch.evidence.process import EngineProcess
from mia_batch.models.identity import identify_model
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.manifest import describe_model
from mia_batch.pipeline.resolve import decode_budget, engine_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.evidence.budget import Budget, DecodeScope
    from mia_batch.evidence.engine import EngineName
    from mia_batch.evidence.source import Source
    from mia_batch.evidence.workload import Workload
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run
    from mia_batch.settings import Settings

__all__ = ["LocalSampling"]


class LocalSampling:
    """An engine that is still to be started.

    Parameters
    ----------
    settings
        How to sample.
    engine
        The engine.
    scope
        How far candidates are decoded.

    Raises
    ------
    SettingsError
        If model or tokenizer cannot be found.
    """

    def __init__(self, settings: Settings, engine: EngineName, scope: DecodeScope) -> None:
        self._settings = settings
        self._spec = engine_spec(settings, engine)
        self._scope = scope
        self._identity = identify_model(settings.model, settings.revision)
        self._tokenizer = Tokenizer.load(settings.model, settings.revision)
        self.measure = self._tokenizer.measure

    @property
    def expected_budget(self) -> Budget:
        """How many tokens to decode, as far as it is known before the engine has started."""
        stated = self._settings.engine_arg.get("max_model_len") or self._identity.max_model_len
        return self._budget(int(stated or self._settings.max_length))

    def describe(self, workload: Workload) -> Iterator[tuple[str, str]]:
        """Yield what is to be said of the work before it begins: nothing."""
        del workload
        yield from ()

    @contextmanager
    def opened(
        self, manifest: Manifest, run: Run, observer: Observer
    ) -> Iterator[tuple[Source, Budget]]:
        """Start the engine.

        Parameters
        ----------
        manifest
            The run's manifest; model, tokenizer and engine are recorded in it.
        run
            The run, held.
        observer
            Is told of the engine.

        Yields
        ------
        tuple[Source, Budget]
            The engine, ready, and how many tokens to decode.

        Raises
        ------
        SettingsError
            If the model or its tokenizer is not the one that the run's samples came from.
        EngineError
            If the engine cannot start.
        """
        model = describe_model(self._settings, self._identity.digest)
        manifest.agree({"model": model, "tokenizer": self._tokenizer.digest}, run)
        observer.stage(f"starting {self._spec.engine}: {manifest.engine_choice}")
        with EngineProcess.start(self._spec, log=run.engine_log) as engine:
            info = engine.info
            manifest.started(asdict(info), {"model_dtype": info.dtype}, run)
            observer.stage(
                f"{info.engine} {info.version} runs {self._spec.model} in {info.dtype} on "
                f"{info.device}, context {info.max_model_len:,} tokens"
            )
            yield LocalSource(engine, self._tokenizer), self._budget(info.max_model_len)

    def _budget(self, max_model_len: int) -> Budget:
        return decode_budget(self._settings, self._scope, max_model_len)
