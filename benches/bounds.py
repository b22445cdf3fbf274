"""How tight the bounds of near-verbatim extraction are, what they cost, and whether they hold.

First 1,000 passages of small tables of next tokens, in which the exact probability can be added up:
how often it lies outside the bounds. Then the recited passages of ../shared/models/manuals-47m
(50 tokens of documents after 50 others, the likeliest place of each): bounds at the cost of 20
samples next to a wide search, whose estimate stands for many samples.

    python -m benches.bounds [--passages N]
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch
from benches.manuals import MODEL
from benches.results import append_results

from mia_batch.evidence.engines.transformers import Pretrained
from mia_batch.evidence.request import Decoding, EngineSpec
from mia_batch.extras.bounds import Nearness, bound, reader
from mia_batch.models.tokens import Tokenizer
from mia_batch.models.weights import quiet
from tests.unit.pipeline.test_bounds import exact_in, passage_of

_TOKENS, _WITHIN = 50, 5
_PLAIN = Decoding(top_k=0)
_WIDE = {"width": 30, "draws": 200}


def on_tables(n: int = 1000) -> dict[str, Any]:
    """Bound passages of small tables, and count those whose exact probability lies outside."""
    outside, beyond, gaps = 0, 0, []
    for passage in range(n):
        table, near, width = passage_of(passage)  # type: ignore[no-untyped-call]
        found = bound(table, near, width=width, draws=10, seed=passage)
        exact = exact_in(table, near)  # type: ignore[no-untyped-call]
        outside += not found.lower <= exact <= found.upper
        beyond += exact > found.likely_upper
        gaps.append(found.upper - found.lower)
    widths = [round(float(each), 4) for each in np.quantile(gaps, [0.5, 0.9])]
    counts = {"outside": int(outside), "above_likely_upper": int(beyond)}
    return {"passages": n, **counts, "gap": widths}


def recited(model: Pretrained, n: int) -> list[tuple[float, list[int], list[int]]]:
    """Take the likeliest tokens of documents, with what stands before them, the likeliest first."""
    tokenizer, found = Tokenizer.load(str(MODEL)), []
    for line in (MODEL / "documents.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        ids = tokenizer.encode([row["text"]])[0][:260]
        if row["copies"] < 4 or len(ids) < 2 * _TOKENS + 20:
            continue
        with torch.inference_mode():
            said = model.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        own = said[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
        sums = np.convolve(own, np.ones(_TOKENS), "valid")
        start = int(sums[20:].argmax()) + 21
        verbatim = float(np.exp(sums[start - 1]))
        found.append((verbatim, ids[max(0, start - 50) : start], ids[start : start + _TOKENS]))
        if len(found) == 40:
            break
    likely = sorted(each for each in found if 1e-3 < each[0] < 0.95)
    different = {round(each[0], 1): each for each in likely}  # many are one licence
    return sorted(different.values(), reverse=True)[:n]


def on_manuals(n: int) -> list[dict[str, Any]]:
    """Bound recited passages by a narrow and a wide search."""
    spec = EngineSpec(engine="transformers", kind="logprobs", model=str(MODEL), dtype="float32")
    with quiet():
        model = Pretrained(spec)
    rows = []
    for verbatim, prompt, truth in recited(model, n):
        near = Nearness(truth=np.array(truth), within=_WITHIN, edits=True, ends=(0,))
        row: dict[str, Any] = {"verbatim": round(verbatim, 4)}
        for name, how in (("cost_of_20", {"width": 10, "draws": 10}), ("wide", _WIDE)):
            began = time.process_time()
            found = bound(reader(model, _PLAIN, prompt), near, **how)
            figures = {key: round(float(value), 4) for key, value in found._asdict().items()}
            row[name] = figures | {"cpu_seconds": round(time.process_time() - began, 1)}
        best = row["wide"]["estimate"]
        row["off"] = {
            key: round(float(row["cost_of_20"][key] / best - 1), 3) for key in ("lower", "estimate")
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--passages", type=int, default=6)
    torch.set_num_threads(1)
    passages = parser.parse_args().passages
    figures = {"tables": on_tables(), "manuals": on_manuals(passages)}
    how = {"tokens": _TOKENS, "within": _WITHIN, "distance": "levenshtein", "wide": _WIDE}
    append_results("bounds", how | figures)


if __name__ == "__main__":
    main()
