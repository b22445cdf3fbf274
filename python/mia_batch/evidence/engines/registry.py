"""Engines by name: what each can do, as data; a library is imported where its engine runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines import machine
from mia_batch.models.adapter import differ_in_weights, read_adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from mia_batch.evidence.request import Engine, EngineSpec, EvidenceKind
    from mia_batch.models.adapter import Adapter

__all__ = [
    "ENTRY_POINTS",
    "EngineType",
    "can_turn",
    "choose_engine",
    "engine_types",
    "load_engine",
    "why_not",
]

ENTRY_POINTS = "mia_batch.engines"
"""Group of entry points by which another package adds engines: each names an `EngineType`."""

_HIGHEST_RANK = 512  # that vLLM has room for
_HEADS = frozenset({"embed_tokens", "lm_head", "wte"})  # left out of log-probabilities
_SAMPLES: frozenset[EvidenceKind] = frozenset({"samples"})
_BOTH: frozenset[EvidenceKind] = frozenset({"samples", "logprobs"})
_NAMED = {
    "vocabulary_mean": "mean and variance over the vocabulary",
    "vocabulary_variance": "mean and variance over the vocabulary",
    "rank": "exact ranks",
    "support_mass": "the mass that decoding keeps",
    "noise": "noise on embeddings",
    "question": "log-probabilities of several answers",
}
"""What only some engines compute: columns of the logprobs table, and log-probabilities of noise and
of several answers to a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineType:
    """What an engine is and can do.

    Attributes
    ----------
    name
        As setting ``engine`` has it.
    start
        ``module:function`` that takes an `EngineSpec` and returns a started `Engine`; it is
        imported in the engine's own process only.
    kinds
        What it can be asked.
    columns
        Columns of the logprobs table that it can compute beside ``logprob``; ``noise`` stands for
        log-probabilities of texts whose embeddings have noise, ``question`` for those of several
        answers to a question.
    adapter_obstacle
        Says why it cannot run an adapter; None where it can.
    obstacle
        Says why it cannot run on this machine; None where it can. It imports no engine library.
    missing
        Says which package is not installed, the one obstacle that counts where it is to run on
        other machines.
    turns
        Kinds for which its engine has ``turn_to(model)``: it can answer as another adapter that
        differs from its own in its weights alone, so that their base is loaded once.
    on_cpu
        Whether it would run on the CPU of this machine.
    """

    name: str
    start: str
    kinds: frozenset[EvidenceKind] = _SAMPLES
    columns: frozenset[str] = frozenset()
    adapter_obstacle: Callable[[Adapter], str | None] = lambda _: None
    obstacle: Callable[[], str | None] = lambda: None
    missing: Callable[[], str | None] = lambda: None
    turns: frozenset[EvidenceKind] = frozenset()
    on_cpu: Callable[[], bool] = machine.has_no_accelerator


def _why_not_in_vllm(adapter: Adapter) -> str | None:
    if adapter.kind != "LORA":
        return f"engine vllm runs adapters of kind LORA, and {adapter.folder!r} is {adapter.kind}"
    if not adapter.modules:
        return (
            f"engine vllm reads LoRA weights in safetensors only, and {adapter.folder!r} has none"
        )
    if adapter.rank > _HIGHEST_RANK:
        return f"engine vllm runs ranks up to {_HIGHEST_RANK}, and {adapter.folder!r} has more"
    if named := sorted(_HEADS.intersection(adapter.modules)):
        return f"engine vllm leaves out what {adapter.folder!r} adds to {' and '.join(named)}"
    if adapter.extras:
        listed = ", ".join(adapter.extras)
        return f"engine vllm runs plain LoRA adapters, and {adapter.folder!r} has {listed}"
    return None


_BUILT_IN = (
    EngineType(
        name="vllm",
        start="mia_batch.evidence.engines.vllm:VllmEngine",
        kinds=_BOTH,
        turns=_BOTH,
        columns=frozenset({"question"}),
        adapter_obstacle=_why_not_in_vllm,
        obstacle=machine.vllm_obstacle,
        missing=machine.vllm_missing,
        on_cpu=machine.has_vllm_for_cpus,
    ),
    EngineType(
        name="transformers",
        start="mia_batch.evidence.engines.transformers:start",
        kinds=_BOTH,
        columns=frozenset(_NAMED),
        turns=frozenset({"logprobs"}),
        obstacle=machine.transformers_obstacle,
        missing=machine.transformers_obstacle,
    ),
    EngineType(
        name="masked",
        start="mia_batch.evidence.engines.masked:MaskedEngine",
        kinds=frozenset({"fills"}),
        obstacle=machine.transformers_obstacle,
    ),
)
"""``auto`` takes the first that can do what is asked."""

_REMOTE = (
    EngineType(name="openai", start="", kinds=_BOTH, columns=frozenset({"question"})),
    EngineType(name="replay", start="", kinds=_SAMPLES),
)
"""Not started here: an endpoint and a recording."""


@cache
def engine_types() -> dict[str, EngineType]:
    """All engines by name, those of other packages included."""
    found = {engine.name: engine for engine in (*_BUILT_IN, *_REMOTE)}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            engine = point.load()
        except Exception as error:  # whatever a stranger's module raises
            msg = f"the engine {point.name!r} of {point.value} cannot be loaded: {error}"
            raise EngineError(msg) from error
        if not isinstance(engine, EngineType) or engine.name in found:
            msg = f"{point.value} is not an EngineType with a name of its own; remove its package"
            raise EngineError(msg)
        found[engine.name] = engine
    return found


def choose_engine(
    name: str,
    kind: EvidenceKind,
    columns: frozenset[str],
    *,
    model: str | None = None,
    elsewhere: bool = False,
) -> tuple[str, str]:
    """Choose an engine that can run here, or ``elsewhere``, and do what is asked; say why.

    ``auto`` takes vLLM where it can run, else transformers. Where the engine that was asked for
    cannot compute a column, or run the ``model``, transformers does. Raises `SettingsError` if none
    can run.
    """
    known = engine_types()
    if name not in (*known, "auto"):
        msg = f"setting 'engine' is {name!r}; known are auto, {', '.join(known)}"
        raise SettingsError(msg)
    able = [engine for engine in known.values() if kind in engine.kinds and engine.start]
    wanted = able if name == "auto" else [known[name]]
    obstacles = {
        engine.name: engine.missing() if elsewhere else engine.obstacle() for engine in wanted
    }
    usable = [engine.name for engine in wanted if obstacles[engine.name] is None]
    if not usable:
        raise SettingsError(_none_can_run(name, obstacles))
    first = usable[0]
    if (reason := why_not(first, kind, columns, model)) is not None:
        return "transformers", reason
    if name != "auto":
        return first, "asked for"
    if first == "vllm":
        return first, f"vLLM's {'CPU' if known[first].on_cpu() else 'GPU'} build is installed"
    others = [f"{each} cannot run here, because {why}" for each, why in obstacles.items() if why]
    return first, "; ".join(others).replace("vllm cannot", "vLLM cannot") or "it is installed"


def why_not(
    name: str, kind: EvidenceKind, columns: frozenset[str], model: str | None = None
) -> str | None:
    """Why an engine cannot give what is asked for, known before anything starts."""
    engine = engine_types()[name]
    if kind not in engine.kinds:
        return f"engine {name} gives no {kind}"
    if (obstacle := _adapter_obstacle(engine, model)) is not None:
        return obstacle
    lacking = list(dict.fromkeys(_NAMED.get(column, column) for column in _sorted(columns, engine)))
    if not lacking:
        return None
    *others, last = lacking
    named = f"{', '.join(others)} and {last}" if others else last
    return f"engine {name} cannot compute {named}"


def can_turn(spec: EngineSpec, other: EngineSpec) -> bool:
    """Whether a started engine can be turned to another model instead of starting one."""
    return (
        replace(spec, model=other.model) == other
        and spec.kind in engine_types()[spec.engine].turns
        and differ_in_weights(spec.model, other.model)
    )


def load_engine(spec: EngineSpec) -> Engine:
    """Start an engine in this process, which is best its own."""
    if (reason := why_not(spec.engine, spec.kind, spec.columns, spec.model)) is not None:
        msg = f"{reason}; take engine transformers"
        raise SettingsError(msg)
    module, _, function = engine_types()[spec.engine].start.partition(":")
    with machine.kept_for_good():
        start: Callable[[EngineSpec], Engine] = getattr(import_module(module), function)
    return start(spec)


def _adapter_obstacle(engine: EngineType, model: str | None) -> str | None:
    adapter = None if model is None else read_adapter(model)
    return None if adapter is None else engine.adapter_obstacle(adapter)


def _sorted(columns: frozenset[str], engine: EngineType) -> list[str]:
    known = [name for name in _NAMED if name in columns]
    return [
        name for name in (*known, *sorted(columns.difference(known))) if name not in engine.columns
    ]


def _none_can_run(name: str, obstacles: dict[str, str | None]) -> str:
    if name != "auto":
        return f"setting 'engine': {name!r} cannot run here, because {obstacles[name]}"
    listed = "; ".join(f"for {each}, {why}" for each, why in obstacles.items())
    return f"setting 'engine': no engine can run here: {listed}"
