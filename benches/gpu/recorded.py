"""An engine that keeps what it is asked, and when: samples by vLLM, log-probabilities by either."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mia_batch.evidence.engines.registry import (
    EngineType,
    choose_engine,
    has_vllm_for_cpus,
    load_engine,
)
from mia_batch.evidence.request import Answer, EngineSpec, Request


class Recorded:
    """Passes everything on; seconds of a view count from its first request to its last answer."""

    def __init__(self, spec: EngineSpec) -> None:
        chosen, _ = choose_engine("auto", spec.kind, spec.columns)
        self._engine = load_engine(replace(spec, engine=chosen))
        self.info = self._engine.info
        self._requests: list[dict[str, Any]] = []
        self._views: dict[str, dict[str, float]] = {}
        self._view: dict[int, str] = {}

    def submit(self, request: Request) -> None:
        view = (
            "texts" if request.text_ids else "probes" if request.n == 1 else "samples"
        )
        counts = {"requests": 0, "tokens": 0, "seconds": 0.0, "began": time.monotonic()}
        self._views.setdefault(view, counts)["requests"] += 1
        self._view[request.request_id] = view
        ids = [*(request.context_ids or ()), *(request.text_ids or ())]
        how = {
            name: getattr(request, name)
            for name in ("n", "seed", "max_tokens", "greedy")
        }
        self._requests.append({"view": view, "ids": ids, **how})
        self._engine.submit(request)

    def step(self) -> list[Answer]:
        answers = self._engine.step()
        for answer in answers:
            counts = self._views[self._view.pop(answer.request_id)]
            counts["tokens"] += sum(
                len(each.token_ids or ()) for each in answer.continuations
            )
            counts["tokens"] += (
                0 if answer.tokens is None else answer.tokens["logprob"].size
            )
            counts["seconds"] = time.monotonic() - counts["began"]
        return answers

    def close(self) -> None:
        views = {
            name: {k: v for k, v in each.items() if k != "began"}
            for name, each in self._views.items()
        }
        found = {"views": views, "requests": self._requests}
        Path(os.environ["MIA_BATCH_RECORDED"]).write_text(json.dumps(found))
        self._engine.close()


ENGINE_TYPE = EngineType(
    name="recorded",
    start="benches.gpu.recorded:Recorded",
    kinds=frozenset({"samples", "logprobs"}),
    columns=frozenset({"vocabulary_mean", "vocabulary_variance", "rank"}),
    on_cpu=has_vllm_for_cpus,
)
