"""What `mia-batch bench` measures, each way in a process of its own; starts are not counted."""

import json
import os
import re
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from timeit import repeat
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from mia_batch import tables
from mia_batch.errors import EngineError, MiaBatchError, describe_error
from mia_batch.evidence.collect import LocalExecutor, SampleTask
from mia_batch.evidence.engines import registry
from mia_batch.evidence.parts import BLOCK_TARGETS, FreshUnits, Missing, Parts
from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import Budget, EngineSpec, Request
from mia_batch.kernels import pair_features
from mia_batch.models.formats import CHECKPOINT, find_format
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import load_config, weights_source
from mia_batch.observer import Observer
from mia_batch.pipeline import Run, run_audit
from mia_batch.pipeline.stages.recitals import RecitalsStage
from mia_batch.prompts import continuation
from mia_batch.schemas import Samples, Targets
from mia_batch.settings import load_settings
from mia_batch.views import View

Row: TypeAlias = dict[str, Any]
Text: TypeAlias = list[int]

SAMPLES = 10
_LONGEST = 1000  # tokens of a text
_MOST_NEW = 128  # tokens decoded, where a model with random weights would go on
_TEXTS_AT_ONCE = 32
FEWEST_AUDITED = 8


def _build_spec(
    engine: str, batch_size: int | None, tensor_parallel_size: int, **fields: Any
) -> EngineSpec:
    """Specify an engine that works on so many texts at once, whatever it calls that."""
    arguments: Row = {}
    if batch_size is not None:
        taken = registry.engine_types()[engine].arguments
        names = [name for name in ("max_num_seqs", "batch_size") if name in taken]
        if not names:
            raise EngineError(f"engine {engine} takes no size of a batch")
        arguments[names[0]] = batch_size
    spec = EngineSpec(
        engine=engine,
        tensor_parallel_size=tensor_parallel_size,
        engine_args=arguments,
        **fields,
    )
    registry.engine_types()[engine].check(spec)
    return spec


def sample(
    folder: str,
    model: str,
    engine: str = "vllm",
    seconds: float | None = None,
    batch_size: int | None = None,
    tensor_parallel_size: int = 1,
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
    spec = _build_spec(
        engine, batch_size, tensor_parallel_size, kind="samples", model=model
    )
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
            block_targets=BLOCK_TARGETS if seconds is None else FEWEST_AUDITED,
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
    model: str,
    *,
    engine: str = "transformers",
    columns: frozenset[str] = frozenset(),
    batch_size: int | None = None,
    tensor_parallel_size: int = 1,
) -> Callable[[list[Text]], None]:
    spec = _build_spec(
        engine,
        batch_size,
        tensor_parallel_size,
        kind="logprobs",
        model=model,
        columns=columns,
    )
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


def score_texts(
    folder: str, model: str, *, seconds: float, bare: bool = False, **fields: Any
) -> Row:
    """Score texts by a bare loop, or an engine and what it is given in ``fields``."""
    texts = pl.read_parquet(Path(folder, "texts.parquet"))["text"].to_list()
    longest = _LONGEST
    if find_format(model) is CHECKPOINT:
        config = load_config(*weights_source(model, None)).get_text_config()
        longest = min(longest, getattr(config, "max_position_embeddings", longest))
    prompts = Tokenizer.load(model).encode_prompts(texts)
    encoded = [ids[:longest] for ids in prompts if len(ids) > 1]
    run = bare_scorer(model) if bare else scorer(model, **fields)
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
RIVALS = {
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
    compute, n_pairs, groups = RIVALS[rival]
    features = pair_features("candidate", "reference", **groups)
    ours = {"pairs": _PAIRS, "seconds": fastest(lambda: pairs.select(features))}
    some_pairs = candidates[:n_pairs], references[:n_pairs]
    seconds = fastest(lambda: compute(*some_pairs))
    return {"pairs": n_pairs, "seconds": seconds, "ours": ours}


def list_children() -> list[str]:
    """List the processes that any thread of this one has started."""
    tasks = Path("/proc/self/task").iterdir()
    lists = [(task / "children").read_text().split() for task in tasks]
    return [child for children in lists for child in children]


def read_peak_mb(process: str = "self") -> float:
    """Return the largest resident memory of a process; 0 of one that has ended."""
    # ``ru_maxrss`` of a child begins with what its parent had when the child was forked
    try:
        status = Path("/proc", process, "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        status = ""
    peak = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    return int(peak[1]) / 1024 if peak else 0.0


class _WorkClock(Observer):
    """Adds up the seconds in which engines worked, without their start, by what they did."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.engines_mb = 0.0  # the largest of engines that worked together
        self._work, self._start = "", 0.0

    def working(self, what: str, *, done: int, total: int, unit: str) -> None:
        del done, total, unit
        self._work, self._start = what, time.monotonic()

    def work_ended(self) -> None:
        seconds = time.monotonic() - self._start
        self.seconds[self._work] = self.seconds.get(self._work, 0.0) + seconds
        engines_mb = sum(read_peak_mb(child) for child in list_children())
        self.engines_mb = max(self.engines_mb, engines_mb)


def small_audit(
    folder: str, model: str, n: int, *, labelled: bool, engine: str = "auto"
) -> Row:
    """Audit the first texts; of labelled ones log-probabilities are asked for, too."""
    place = Path(folder)
    clock = _WorkClock()
    start = time.monotonic()
    texts = pl.read_parquet(place / "texts.parquet").head(n)
    audited = place / "audited.parquet"
    texts.write_parquet(audited)
    settings: Row = {"input": audited, "model": model, "engine": engine}
    if labelled:
        settings["evidence"] = "both"
    # A folder of its own: in that of a finished audit there is nothing left to ask
    with TemporaryDirectory(dir=folder) as out:
        settings["out"] = Path(out, "run")
        run = run_audit(load_settings(settings, use_config=False), clock)
        return _read_audit(run, clock, time.monotonic() - start, labelled=labelled)


def _read_audit(run: Run, clock: _WorkClock, seconds: float, *, labelled: bool) -> Row:
    # However many texts there are, so many of the highest scores are continued
    continuing = clock.seconds.pop(RecitalsStage.activity, 0.0)
    figures: Row = {
        "seconds": seconds,
        "asking": sum(clock.seconds.values()),
        "continuing": continuing,
        "most_continued": run.manifest.settings["continue_strongest"] or 0,
        "peak_mb": read_peak_mb() + clock.engines_mb,
    }
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
        "mia_batch.extras.speed.ways",
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


if __name__ == "__main__":
    _run_way()
