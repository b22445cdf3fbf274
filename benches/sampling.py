"""Tokens per second: ours with parts on disk, bare vLLM, and transformers, on the same requests.

Each way gets a process of its own, in turns; the engine's start is not counted. Ours ends when the
last part is on disk; bare vLLM gets the whole list at once, and its time ends when the same rows
are decoded and written. `transformers.generate` knows no seed of a single row, so it draws other
tokens, for as many as it is given.

    python -m benches.sampling [--model FOLDER] [--corpus FILE] [--targets N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl
from benches.results import append_results, machine

from mia_batch import tables
from mia_batch.corpus import ColumnNames, read_documents
from mia_batch.evidence.collect import LocalExecutor, SampleTask
from mia_batch.evidence.parts import BLOCK_TARGETS, FreshUnits, Missing, Parts
from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import Budget, EngineSpec
from mia_batch.models.tokens import Tokenizer
from mia_batch.prompts import View, continuation
from mia_batch.schemas import Samples, Targets
from mia_batch.targets import TargetPlan, build_targets

if TYPE_CHECKING:
    from mia_batch.evidence.request import Request

SAMPLES = 10
PROMPTS_FOR_TRANSFORMERS = 12


def ours(folder: Path, model: str) -> dict[str, Any]:
    """Sample all targets as a run does; the requests are kept for the others."""
    tokenizer = Tokenizer.load(model)
    (folder / "samples").mkdir(exist_ok=True)
    for part in (folder / "samples").iterdir():
        part.unlink()
    tokens = 0
    asked: list[Request] = []

    class Recording(LocalSource):
        def submit(self, request: Request) -> None:
            asked.append(request)
            super().submit(request)

    def told(_label: str, _units: int, decoded: int, _passes: int) -> None:
        nonlocal tokens
        tokens += decoded

    spec = EngineSpec(engine="vllm", kind="samples", model=model)
    with EngineProcess.start(spec, log=folder / "engine.log") as engine:
        context = engine.info.max_model_len
        task = SampleTask(
            view=View(model="target", name="continuation", make=None),
            measure=tokenizer.measure,
            budget=Budget(scope="matched", max_length=1024, max_model_len=context),
            words="whitespace",
            run_seed=0,
        )
        executor = LocalExecutor(Recording(engine, tokenizer))
        began = time.monotonic()
        parts = Parts(
            folder=folder / "samples",
            schema=Samples,
            model="target",
            view="continuation",
            block_targets=BLOCK_TARGETS,
        )
        view = View(
            model="target", name="continuation", make=continuation, columns=("prefix", "reference")
        )
        units = FreshUnits(tables.scan(folder / "targets.parquet", Targets), view)
        missing = Missing(units, parts, SAMPLES)
        for _ in executor.collect(task, missing.blocks(), told, parts.store):
            pass
        seconds = time.monotonic() - began
        device = engine.info.device
    requests = [
        {"prompt": each.context_ids, "seed": each.seed, "n": each.n, "most": each.max_tokens}
        for each in asked
    ]
    (folder / "requests.json").write_text(json.dumps(requests))
    return {"tokens": tokens, "seconds": seconds, "device": device}


def bare(folder: Path, model: str) -> dict[str, Any]:
    """Give the same requests to `LLM.generate` as one list."""
    import vllm
    from vllm.platforms import current_platform

    tokenizer = Tokenizer.load(model)
    on_cpu = current_platform.is_cpu()
    arguments: dict[str, Any] = {"model": model, "generation_config": "vllm"}
    if on_cpu:
        arguments |= {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False}
        arguments |= {"kv_cache_memory_bytes": 2 << 30}
    llm = vllm.LLM(**arguments)
    requests = json.loads((folder / "requests.json").read_text())
    prompts = [{"prompt_token_ids": each["prompt"]} for each in requests]
    parameters = [
        vllm.SamplingParams(
            n=each["n"],
            seed=each["seed"],
            max_tokens=each["most"],
            temperature=1.0,
            top_k=50,
            top_p=1.0,
            detokenize=False,
        )
        for each in requests
    ]
    began = time.monotonic()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    rows = []
    for number, output in enumerate(outputs):
        ids = [list(each.token_ids) for each in output.outputs]
        _, texts = tokenizer.decode_candidates(output.prompt_token_ids, ids)
        for index, (text, drawn) in enumerate(zip(texts, ids, strict=True)):
            rows.append((f"{number:032x}", index, text, len(drawn)))
    frame = pl.DataFrame(
        rows,
        schema={
            "target_id": pl.String,
            "sample_index": pl.UInt32,
            "candidate": pl.String,
            "n_tokens": pl.UInt32,
        },
        orient="row",
    )
    missing_columns = [
        pl.lit(None, dtype).alias(name)
        for name, dtype in Samples.create_empty().schema.items()
        if name not in frame.columns
    ]
    whole = frame.with_columns(missing_columns).select(Samples.column_names())
    tables.sink(whole, folder / "bare.parquet", Samples)
    return {"tokens": int(frame["n_tokens"].sum()), "seconds": time.monotonic() - began}


def transformers(folder: Path, model: str) -> dict[str, Any]:
    """Give the first requests to `generate`, one prompt with its samples at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    loaded = AutoModelForCausalLM.from_pretrained(model).to(device)
    tokenizer = Tokenizer.load(model)
    requests = json.loads((folder / "requests.json").read_text())[:PROMPTS_FOR_TRANSFORMERS]
    tokens = 0
    began = time.monotonic()
    for each in requests:
        torch.manual_seed(each["seed"])
        prompt = torch.tensor([each["prompt"]], device=device)
        drawn = loaded.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=1.0,
            top_k=50,
            top_p=1.0,
            num_return_sequences=each["n"],
            max_new_tokens=each["most"],
            pad_token_id=0,
        )[:, prompt.shape[1] :].tolist()
        tokenizer.decode_candidates(each["prompt"], drawn)
        tokens += sum(len(row) for row in drawn)
    return {"tokens": tokens, "seconds": time.monotonic() - began}


WAYS = {"ours": ours, "bare": bare, "transformers": transformers}


def in_a_process(way: str, folder: Path, model: str) -> dict[str, Any]:
    """Run one way in a process of its own."""
    environment = os.environ | {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [
        sys.executable,
        "-m",
        "benches.sampling",
        "--way",
        way,
        "--folder",
        str(folder),
        "--model",
        model,
    ]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Take turns, print the ratios, store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo/model")
    parser.add_argument("--corpus", default="demo/corpus.parquet")
    parser.add_argument("--targets", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(WAYS[given.way](given.folder, given.model)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        documents = read_documents(given.corpus, ColumnNames(), reserved=frozenset()).documents
        targets = build_targets(documents.head(given.targets), TargetPlan())
        tables.sink(targets, folder / "targets.parquet", Targets)
        found: dict[str, list[dict[str, Any]]] = {"ours": [], "bare": []}
        for _ in range(given.rounds):
            for way, results in found.items():
                results.append(in_a_process(way, folder, given.model))
        found["transformers"] = [in_a_process("transformers", folder, given.model)]
    speeds = {
        way: [each["tokens"] / each["seconds"] for each in results]
        for way, results in found.items()
    }
    ratios = [one / other for one, other in zip(speeds["ours"], speeds["bare"], strict=True)]
    figures = {
        "device": found["ours"][0]["device"],
        "model": given.model,
        "tokens": {way: results[0]["tokens"] for way, results in found.items()},
        "tokens_per_second": {
            way: [round(each) for each in each_way] for way, each_way in speeds.items()
        },
        "ours_to_bare": [round(ratio, 3) for ratio in ratios],
        "ours_to_bare_median": round(median(ratios), 3),
        "ours_to_transformers": round(median(speeds["ours"]) / speeds["transformers"][0], 1),
    }
    append_results("sampling", figures)
    print(machine())
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
