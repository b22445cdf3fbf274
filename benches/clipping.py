"""Memory and time of one step of DP-SGD: gradients text by text, and ghost clipping.

A GPT-2 of random weights, all of which are trained, on texts of random tokens. Each way has a
process of its own, whose peak of resident memory is taken. Time is that of the processor.

    OMP_NUM_THREADS=1 python -m benches.clipping [--hidden 512] [--texts 16] [--tokens 128]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from benches.results import append_results, versions


def step(way: str, hidden: int, texts: int, tokens: int) -> dict[str, float]:
    """Take the gradients of one batch."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from mia_batch.finetuning import clipping, ghost

    ways = {"none": None, "per text": clipping.per_text, "ghost": ghost.ghost}
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=8192, n_embd=hidden, n_layer=6, n_head=8, n_positions=tokens)
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config)
    ids = torch.randint(8192, (texts, tokens))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    before, start = _peak(), time.process_time()
    if (chosen := ways[way]) is None:  # a step without privacy
        weights = dict(model.named_parameters())
        loss = clipping.losses_of(model, weights, "causal", batch).mean()
        torch.autograd.grad(loss, [*weights.values()])
    else:
        clipping.clipped_sums(model, "causal", batch, 0.1, texts, chosen)
    return {
        "weights": model.num_parameters(),
        "seconds": time.process_time() - start,
        "peak_mib": (_peak() - before) / 1024,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _measured(asked: argparse.Namespace, way: str) -> dict[str, Any]:
    sizes = [f"--hidden={asked.hidden}", f"--texts={asked.texts}", f"--tokens={asked.tokens}"]
    command = [sys.executable, "-m", "benches.clipping", *sizes, f"--way={way}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return {"way": way} | found


def main() -> None:
    """Measure each way, and store the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sizes = {"hidden": asked.hidden, "texts": asked.texts, "tokens": asked.tokens}
    if asked.way:
        print(json.dumps(step(asked.way, **sizes)))
        return
    rows = [_measured(asked, way) for way in ("none", "per text", "ghost")]
    for row in rows:
        print(row)
    append_results("clipping", sizes | {"rows": rows} | versions("torch"))


if __name__ == "__main__":
    main()
