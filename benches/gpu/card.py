"""What mia-batch makes of a GPU, beside vLLM alone, a padded loop and the card's own limit.

One command for whatever card there is, in at most eight minutes: a model of random
weights is made (8 B in bf16, fewer where memory is short), texts of real words are
audited with it, and the same requests go to `LLM.generate`. ``--small`` does the same
with a tiny model on a CPU, to show that all of it works; its figures are printed, not
kept.

    python -m benches.gpu.card [--small] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from benches.results import append_results, versions

from mia_batch.evidence.engines.registry import has_no_accelerator
from mia_batch.extras.speed.machine import describe_machine

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Row = dict[str, Any]

GIB = 1 << 30
LARGE: Row = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
LARGE |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
MIDDLE = LARGE | {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
}
SMALL: Row = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8192}
WORDS = 128
WORK: dict[str, Row] = {
    "samples": {
        "attacks": ["probe_leading_rarity_v1", "samia_matched_v1"],
        "texts": 256,
    },
    "logprobs": {
        "attacks": ["loss_v1", "min_k_plus_plus_20_v1", "log_rank_v1"],
        "texts": 3072,
    },
}
PADDED_TEXTS = 16  # of a batch of the bare loop
SIDE, SMALL_SIDE = 8192, 512  # of the matrices whose product is the card's limit


def make_model(folder: str, *, small: bool) -> Row:
    """Save a Llama of random weights that draws neither unknown tokens nor the end of a text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from mia_batch.extras.sets.demo import (
        DemoSettings,
        build_corpus,
        save,
        train_tokenizer,
    )

    texts = build_corpus(DemoSettings())["text"]
    tokenizer: Tokenizer = train_tokenizer(texts, 1024 if small else 16384)
    on_gpu = torch.cuda.is_available()
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else 0
    sizes = SMALL if small else LARGE if memory > 40 * GIB else MIDDLE
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    ends = {"bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False}
    with torch.device("cuda" if on_gpu else "cpu"), torch.no_grad():
        model = LlamaForCausalLM(
            LlamaConfig(**sizes, **ends, max_position_embeddings=4096)
        )
        model.lm_head.weight[:2].zero_()
        model.lm_head.weight[tokenizer.get_vocab_size() :].zero_()
    save(model, tokenizer, Path(folder, "model"))
    words, rng = " ".join(texts).split(), random.Random(0)
    for name, work in WORK.items():
        n = 8 if small else work["texts"]
        starts = rng.sample(range(len(words) - WORDS), n)
        cut = [" ".join(words[at : at + WORDS]) for at in starts]
        pl.DataFrame({"text": cut}).write_parquet(Path(folder, f"{name}.parquet"))
    own = (
        sum(each.numel() for each in model.parameters())
        - model.model.embed_tokens.weight.numel()
    )
    return {"weights": own, "dtype": "bfloat16" if on_gpu else "float32"}


def limit(weights: int, *, small: bool) -> Row:
    """Multiply matrices: two operations a weight and token is all that a model must do."""
    import torch

    on_gpu, side = torch.cuda.is_available(), SMALL_SIDE if small else SIDE
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    matrix = torch.randn(side, side, device=device, dtype=dtype)
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        product = matrix @ matrix
        product[0, 0].item()  # waits for it
        best = min(best, time.perf_counter() - began)
    speed = 2 * side**3 / best
    return {
        "tflops": round(speed / 1e12, 2),
        "tokens_per_second": round(speed / (2 * weights)),
    }


def audit(folder: str, kind: str) -> Row:
    """Audit texts by an engine that keeps what it is asked; start and end of each view count."""
    from mia_batch.observer import Observer
    from mia_batch.pipeline.audits import run_audit
    from mia_batch.settings import load_settings

    info = Path(folder, "recorded-1.dist-info")
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: recorded\nVersion: 1\n"
    )
    entry = "[mia_batch.engines]\nrecorded = benches.gpu.recorded:ENGINE_TYPE\n"
    (info / "entry_points.txt").write_text(entry)
    sys.path.insert(0, folder)  # what this process starts has the same path
    os.environ["MIA_BATCH_RECORDED"] = str(Path(folder, f"{kind}.json"))
    given: Row = {
        "input": f"{folder}/{kind}.parquet",
        "model": f"{folder}/model",
        "report": False,
    }
    given |= {
        "out": f"{folder}/{kind}",
        "attacks": WORK[kind]["attacks"],
        "engine": "recorded",
    }
    run_audit(load_settings(given, use_config=False), Observer())
    views: dict[str, Row] = json.loads(Path(folder, f"{kind}.json").read_text())[
        "views"
    ]
    return {view: speeds(**counts) for view, counts in views.items()}


def speeds(*, requests: int, tokens: int, seconds: float) -> Row:
    return {
        "requests": requests,
        "tokens": tokens,
        "requests_per_second": round(requests / seconds, 1),
        "tokens_per_second": round(tokens / seconds),
    }


def bare_vllm(folder: str) -> Row:
    """Give `LLM.generate` the very same requests, the prompts of each view as one list."""
    import vllm
    from vllm.platforms import current_platform

    arguments: Row = {"model": f"{folder}/model", "generation_config": "vllm"}
    if current_platform.is_cpu():
        arguments |= {
            "dtype": "float32",
            "enforce_eager": True,
            "enable_chunked_prefill": False,
        }
        arguments |= {"kv_cache_memory_bytes": GIB // 4}
    llm, found = vllm.LLM(**arguments), Row()
    requests: list[Row] = json.loads(Path(folder, "samples.json").read_text())[
        "requests"
    ]
    for view in dict.fromkeys(each["view"] for each in requests):
        asked = [each for each in requests if each["view"] == view]
        drawn = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
        how = [
            vllm.SamplingParams(
                **({"temperature": 0.0} if each["greedy"] else drawn),
                **{name: each[name] for name in ("n", "seed", "max_tokens")},
                detokenize=False,
            )
            for each in asked
        ]
        llm.reset_prefix_cache()
        began = time.perf_counter()
        prompts = [{"prompt_token_ids": each["ids"]} for each in asked]
        given = llm.generate(prompts, how, use_tqdm=False)
        seconds = time.perf_counter() - began
        tokens = sum(len(each.token_ids) for output in given for each in output.outputs)
        found[view] = speeds(requests=len(asked), tokens=tokens, seconds=seconds)
    return found


def padded_loop(folder: str) -> Row:
    """Read the same texts as a first script does: sorted, a few padded at a time, all logits."""
    import torch
    from transformers import AutoModelForCausalLM

    on_gpu = torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(
        f"{folder}/model", dtype="auto" if on_gpu else torch.float32
    ).to("cuda" if on_gpu else "cpu")
    requests: list[Row] = json.loads(Path(folder, "logprobs.json").read_text())[
        "requests"
    ]
    texts = sorted((each["ids"] for each in requests), key=len)

    @torch.inference_mode()
    def read(texts: list[list[int]]) -> None:
        for start in range(0, len(texts), PADDED_TEXTS):
            batch = [torch.tensor(each) for each in texts[start : start + PADDED_TEXTS]]
            ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True).to(
                model.device
            )
            logits = model(ids, use_cache=False).logits[:, :-1].float()
            own = logits.gather(2, ids[:, 1:, None])[..., 0]
            (own - logits.logsumexp(2)).cpu()

    read(texts[: 2 * PADDED_TEXTS])
    began = time.perf_counter()
    read(texts)
    tokens = sum(map(len, texts))
    return speeds(
        requests=len(texts), tokens=tokens, seconds=time.perf_counter() - began
    )


def kernels(folder: str, n_pairs: int) -> Row:
    """Compare pairs of 64 words, ten candidates a reference; the most pairs a second of five."""
    from mia_batch.kernels import pair_features

    words = " ".join(pl.read_parquet(Path(folder, "samples.parquet"))["text"]).split()
    rng = random.Random(0)
    cut = [" ".join(rng.choices(words, k=64)) for _ in range(n_pairs + n_pairs // 10)]
    pairs = pl.DataFrame({"candidate": cut[:n_pairs]}).with_columns(
        reference=pl.Series(cut[n_pairs:]).gather(
            pl.int_range(n_pairs, eager=True) // 10
        )
    )
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        pairs.select(pair_features("candidate", "reference"))
        best = min(best, time.perf_counter() - began)
    return {"pairs_per_second": round(n_pairs / best)}


def alone(way: Callable[..., Row], *arguments: object, **more: object) -> Row:
    """Work in a fresh process, so that nothing of another is left on the card."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        found: Row = pool.submit(way, *arguments, **more).result()
        return found


def by_threads(folder: str, *, small: bool) -> Row:
    found = Row()
    for threads in (2**i for i in range(len(os.sched_getaffinity(0)).bit_length())):
        os.environ |= dict.fromkeys(
            ("RAYON_NUM_THREADS", "POLARS_MAX_THREADS"), str(threads)
        )
        row = found[str(threads)] = alone(kernels, folder, 2_000 if small else 200_000)
        of_one = found["1"]["pairs_per_second"]
        row["efficiency"] = round(row["pairs_per_second"] / threads / of_one, 3)
    return found


def measure(folder: str, *, small: bool) -> Row:
    """Measure part by part; a part that fails is a reason, and the others go on."""
    began, figures = time.monotonic(), Row()

    def take(
        name: str, way: Callable[..., Row], *arguments: object, **more: object
    ) -> Row:
        try:
            figures[name] = alone(way, *arguments, **more)
        except Exception as error:  # whatever a library raises is a reason
            figures[name] = {"reason": f"{type(error).__name__}: {error}"}
        print(
            f"{time.monotonic() - began:4.0f} s {name}: {json.dumps(figures[name])}",
            flush=True,
        )
        return Row(figures[name])

    weights = take("model", make_model, folder, small=small).get("weights", 1)
    most = take("limit", limit, weights, small=small)
    ours = take("mia-batch", audit, folder, "samples")
    reads = take("mia-batch, log-probabilities", audit, folder, "logprobs").get(
        "texts", {}
    )
    bare = take("LLM.generate", bare_vllm, folder)
    loop = take("padded loop", padded_loop, folder)
    figures["kernels"] = by_threads(folder, small=small)
    figures["ratios"] = ratios = {
        f"{view}, to LLM.generate": ratio(row, bare[view])
        for view, row in ours.items()
        if isinstance(bare.get(view), dict)
    }
    ratios["log-probabilities, to the limit"] = ratio(reads, most)
    ratios["log-probabilities, to the padded loop"] = ratio(reads, loop)
    figures["seconds"] = round(time.monotonic() - began)
    return figures


def ratio(one: Row, other: Row) -> float | None:
    """Divide speeds; None where one of both has a reason instead."""
    speed = "tokens_per_second"
    has_both = speed in one and speed in other
    return round(one[speed] / other[speed], 3) if has_both else None


def main() -> None:
    """Measure everything, print it, and keep it unless it is small."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument(
        "--folder", help="with room for the model: 16 GB on a large card"
    )
    given = parser.parse_args()
    if has_no_accelerator():  # as the package's own engine process has it
        alike = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        os.environ |= alike | {"VLLM_LOGGING_LEVEL": "ERROR"}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        figures = measure(folder, small=given.small)
    packages = [each for each in describe_machine()["versions"] if each != "python"]
    figures = {
        "card": describe_machine()["gpus"],
        "versions": versions(*packages),
    } | figures
    print(json.dumps(figures, indent=2))
    if not given.small:
        append_results("gpu", figures)


if __name__ == "__main__":
    main()
