"""Tokens per second and memory of scoring texts: ours, bare loops of transformers, and vLLM.

Each way has a process of its own with the same texts, lengths between 50 and 1000
tokens, a third of them 1000; the processes take turns, one works while the others wait.
Memory is the largest resident size above that of the process once its model is loaded.

    python -m benches.logprobs [--model FOLDER] [--corpus FILE] [--texts N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from benches.results import append_results, machine

from mia_batch.extras.speed.ways import Text, bare_scorer, scorer
from mia_batch.models.tokens import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from torch import Tensor
    from transformers import PreTrainedModel


LONGEST = 1000
TEXTS_OF_A_FULL_BATCH = 8

MOMENTS = frozenset({"vocabulary_mean", "vocabulary_variance"})


def loaded(model: str) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_grad_enabled(mode=False)
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def padded(texts: list[Text]) -> Tensor:
    import torch

    width = max(map(len, texts))
    return torch.tensor([text + [0] * (width - len(text)) for text in texts])


def one_by_one(model: str) -> Callable[[list[Text]], None]:
    """All logits of one text after the other, as a first script does it."""
    whole = loaded(model)

    def run(texts: list[Text]) -> None:
        for text in texts:
            ids = padded([text])
            logprobs = whole(ids).logits[0, :-1].log_softmax(-1)
            logprobs.gather(1, ids[0, 1:, None]).numpy()

    return run


def full_batches(model: str) -> Callable[[list[Text]], None]:
    """All logits of padded batches with a mask, as a second script does it."""
    import torch

    whole = loaded(model)

    def run(texts: list[Text]) -> None:
        for start in range(0, len(texts), TEXTS_OF_A_FULL_BATCH):
            batch = texts[start : start + TEXTS_OF_A_FULL_BATCH]
            ids = padded(batch)
            mask = torch.tensor(
                [[int(i < len(each)) for i in range(ids.shape[1])] for each in batch]
            )
            logprobs = whole(ids, attention_mask=mask).logits[:, :-1].log_softmax(-1)
            logprobs.gather(2, ids[:, 1:, None]).numpy()

    return run


WAYS: dict[str, Callable[[str], Callable[[list[Text]], None]]] = {
    "ours": lambda model: scorer(model, columns=MOMENTS),
    "ours with all columns": lambda model: scorer(
        model, columns=MOMENTS | {"rank", "top_logprob"}
    ),
    "ours without vocabulary mean and variance": scorer,
    "bare loop": bare_scorer,
    "one by one": one_by_one,
    "full batches": full_batches,
    "vllm": lambda model: scorer(model, engine="vllm"),
}


def make_texts(model: str, corpus: str, n: int) -> list[Text]:
    tokenizer = Tokenizer.load(model)
    joined = "\n".join(pl.read_parquet(corpus)["text"])
    rng = np.random.default_rng(0)
    lengths = rng.integers(50, LONGEST, size=n)
    lengths[::3] = LONGEST
    encoded = tokenizer.encode_prompts([joined[: 8 * int(lengths.sum())]])[0]
    ends = lengths.cumsum()
    return [
        encoded[end - length : end] for end, length in zip(ends, lengths, strict=True)
    ]


def resident(field: str) -> float:
    """MiB of this process: VmRSS now, or VmHWM at most since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def serve(way: str, model: str, connection: Connection) -> None:
    """Load, then score the texts that come in, until none come."""
    run = WAYS[way](model)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    while texts := connection.recv():
        began, worked = time.perf_counter(), time.process_time()
        run(texts)
        taken = {
            "seconds": time.perf_counter() - began,
            "cpu": time.process_time() - worked,
        }
        connection.send(taken | {"above_model": resident("VmHWM") - before})


def started(way: str, model: str) -> Connection:
    """Start a way in a process of its own; texts go in, what they took comes out."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(way, model, theirs), daemon=True).start()
    return ours


def timed(connection: Connection, texts: list[Text]) -> dict[str, float]:
    connection.send(texts)
    found: dict[str, float] = connection.recv()
    return found


def main() -> None:
    """Take turns, print the ratios, store them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo/model")
    parser.add_argument("--corpus", default="demo/corpus.parquet")
    parser.add_argument("--texts", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    texts = make_texts(given.model, given.corpus, given.texts)
    processes = {way: started(way, given.model) for way in WAYS}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for process in processes.values():
        timed(process, texts[:3])  # what is done once is not counted
    for _ in range(given.rounds):
        for way, process in processes.items():
            found[way].append(timed(process, texts))
    for process in processes.values():
        process.send(None)
    tokens = sum(map(len, texts))
    figures = {
        "model": Path(given.model).name,
        "texts": len(texts),
        "tokens": tokens,
        "tokens_per_second": {
            way: round(tokens / median(each["seconds"] for each in rounds))
            for way, rounds in found.items()
        },
        "ours_to": {
            way: ratios(found["ours"], rounds) for way, rounds in found.items()
        },
        "mib_above_model": {
            way: round(rounds[-1]["above_model"]) for way, rounds in found.items()
        },
    }
    append_results("logprobs", figures)
    print(machine())
    print(json.dumps(figures, indent=2))


def ratios(
    one: list[dict[str, float]], other: list[dict[str, float]]
) -> dict[str, float]:
    """How much faster one way is, round by round; the median of the rounds."""
    pairs = list(zip(one, other, strict=True))
    return {
        clock: round(median(b[clock] / a[clock] for a, b in pairs), 3)
        for clock in ("seconds", "cpu")
    }


if __name__ == "__main__":
    main()
