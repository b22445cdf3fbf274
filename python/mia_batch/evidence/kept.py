"""An engine that stays after it was used, for the next model if that is alike."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from mia_batch.errors import EngineError
from mia_batch.evidence.engines.registry import can_turn
from mia_batch.evidence.process import EngineProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mia_batch.evidence.request import EngineSpec

__all__ = ["KeptEngine"]


class KeptEngine:
    """At most one engine, which has nothing to do; must be closed."""

    def __init__(self) -> None:
        self._engine: EngineProcess | None = None

    def serves(self, spec: EngineSpec) -> bool:
        """Whether the engine can answer as another model."""
        return self._engine is not None and can_turn(self._engine.spec, spec)

    @contextmanager
    def lent(self, spec: EngineSpec, log: Path, *, keep: bool) -> Iterator[EngineProcess]:
        """Turn the engine to a model, or start one; ``keep`` it afterwards unless that failed."""
        engine = self._turned(spec) or EngineProcess.start(spec, log=log)
        with ExitStack() as ends:
            yield ends.enter_context(engine)
            if keep:
                ends.pop_all()
                self._engine = engine

    def close(self) -> None:
        """End the engine."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _turned(self, spec: EngineSpec) -> EngineProcess | None:
        if self._engine is not None and self.serves(spec):
            with suppress(EngineError):  # starting another says what is wrong
                self._engine.turn_to(spec)
                engine, self._engine = self._engine, None
                return engine
        self.close()
        return None
