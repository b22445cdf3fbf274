"""A real peer: vLLM's own API server, against the same model run in-process."""

import os
import runpy
import signal
import socket
import sys
import urllib.error
import urllib.request
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from mia_batch.evidence.endpoint import Capabilities, ClientSettings, Endpoint
from mia_batch.evidence.process import EngineProcess, LocalSource
from mia_batch.evidence.request import EngineSpec, Request
from mia_batch.models.tokens import Tokenizer
from mia_batch.prompts import sample_seed
from tests.checkpoints import CONTEXT, TEXTS
from tests.engine_conformance import ids, outputs, request
from tests.forked import Forked, redirect
from tests.processes import HANGS
from tests.runs import audit, tables_of
from tests.unit.evidence.endpoint.asking import results

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed"
)
Sample = tuple[str | None, int | None, str | None]
"""Text, number of tokens, finish_reason."""
SAMPLES, MAX_TOKENS = 5, 24
PROMPTS = [text[100 : 130 + 7 * i] for i, text in enumerate(TEXTS[:12])]
FLAGS = (
    "--dtype float32 --enforce-eager --no-enable-chunked-prefill "
    f"--max-model-len {CONTEXT} --max-num-batched-tokens 2048 --served-model-name tiny"
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # As our engines have it; without vector units torch compiles none
    "TORCHDYNAMO_DISABLE": ("1"),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process less to start
    "VLLM_NO_USAGE_STATS": "1",
}


@pytest.fixture(scope="module")
def server(checkpoint, tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("server")
    log = folder / "server.log"
    options = ["--port", str(port), "--host", "127.0.0.1"]
    options += model_options(checkpoint, folder)
    process = Forked(start, "api_server", options, str(log))
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(url, process, log)
        yield f"{url}/v1"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def model_options(checkpoint: Path, folder: Path) -> list[str]:
    """Options of the model, which chats by a template of its own."""
    template = folder / "template.jinja"
    template.write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    model_flags = ["--model", str(checkpoint), "--chat-template", str(template)]
    return [*model_flags, *FLAGS.split()]


def start(program: str, options: list[str], log: str) -> None:
    os.setpgid(0, 0)
    redirect(log, log)
    os.environ |= ENVIRONMENT
    sys.argv = [program, *options]
    runpy.run_module(f"vllm.entrypoints.openai.{program}", run_name="__main__")


def wait_until_ready(url: str, process: Forked, log: Path) -> None:
    deadline = monotonic() + HANGS
    while process.poll() is None and monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=10).close()
        except (urllib.error.URLError, OSError):
            sleep(0.2)
        else:
            return
    pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


def over_http(server: str, folder: Path) -> dict[int, list[Sample]]:
    settings = ClientSettings(base_url=server, model="tiny", max_concurrency=6)
    requests = [
        Request(
            request_id=i,
            kind="samples",
            key=f"{i}:0:{SAMPLES}:{MAX_TOKENS}",
            context=prompt,
            seed=sample_seed(0, str(i)),
            n=SAMPLES,
            max_tokens=MAX_TOKENS,
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    with Endpoint.open(settings, journal=folder / "journal.sqlite") as endpoint:
        neutral = endpoint.capabilities.neutral
        assert neutral["min_p"] == "honoured"
        # Penalties act where words are repeated, which this model's are not
        assert "refused" not in neutral.values()
        whole = Capabilities(
            greedy="honoured",
            n="honoured",
            seed="honoured",
            top_k="honoured",
            varied=True,
            output_token_ids=True,
            max_model_len=CONTEXT,
        )
        assert replace(endpoint.capabilities, neutral={}) == whole
        answers_by_id = results(endpoint, requests)
    assert [result.error for result in answers_by_id.values()] == [None] * len(PROMPTS)
    return {
        i: [
            (continuation.text, continuation.n_tokens, continuation.finish_reason)
            for continuation in result.continuations
        ]
        for i, result in answers_by_id.items()
    }


def in_process(checkpoint: Path, folder: Path) -> dict[int, list[Sample]]:
    tokenizer = Tokenizer.load(str(checkpoint))
    prompt_ids = tokenizer.encode_prompts(PROMPTS)
    requests = [
        request(
            i, prompt, seed=sample_seed(0, str(i)), n=SAMPLES, max_tokens=MAX_TOKENS
        )
        for i, prompt in enumerate(prompt_ids)
    ]
    spec = EngineSpec(
        engine="vllm",
        kind="samples",
        model=str(checkpoint),
        engine_args={"kv_cache_memory_bytes": 64 << 20},
    )
    with EngineProcess(spec, log=folder / "engine.log") as engine:
        outputs_by_number = outputs(engine, requests)
    samples_by_number: dict[int, list[Sample]] = {}
    for i, samples in outputs_by_number.items():
        _, texts = tokenizer.decode_candidates(
            prompt_ids[i], [ids(sample) for sample in samples]
        )
        samples_by_number[i] = [
            (text, len(ids(sample)), sample.finish_reason)
            for text, sample in zip(texts, samples, strict=True)
        ]
    return samples_by_number


def test_samples_over_http_are_those_of_the_same_model_in_process(
    server, checkpoint, tmp_path
):
    over_http_samples = over_http(server, tmp_path)
    assert over_http_samples == in_process(checkpoint, tmp_path)
    assert {
        finish for samples in over_http_samples.values() for _, _, finish in samples
    } == {
        "stop",
        "length",
    }


def test_log_probabilities_over_http_are_those_of_the_same_model_in_process(
    server, checkpoint, tmp_path
):
    tokenizer = Tokenizer.load(str(checkpoint))
    views = [("", prompt) for prompt in PROMPTS] + [
        (PROMPTS[0], prompt) for prompt in PROMPTS
    ]
    requests = [
        Request(
            request_id=i, kind="logprobs", key=f"{i}:text:0", context=context, text=text
        )
        for i, (context, text) in enumerate(views)
    ]
    settings = ClientSettings(base_url=server, model="tiny", max_concurrency=6)
    spec = EngineSpec(engine="transformers", kind="logprobs", model=str(checkpoint))
    journal = tmp_path / "journal.sqlite"
    with (
        Endpoint.open(settings, kind="logprobs", journal=journal) as remote,
        EngineProcess(spec, log=tmp_path / "engine.log") as engine,
    ):
        answers_there = results(remote, requests)
        here = results(LocalSource(engine, tokenizer), requests)
    assert answers_there.keys() == here.keys()
    for i, expected in here.items():
        tokens, expected_tokens = answers_there[i].tokens, expected.tokens
        assert tokens is not None, answers_there[i].error
        assert expected_tokens is not None, expected.error
        assert answers_there[i].bos == expected.bos
        logprobs_there, right = (
            tokens["logprob"].tolist(),
            expected_tokens["logprob"].tolist(),
        )
        np.testing.assert_allclose(logprobs_there, right, rtol=1e-5, atol=1e-5)


def audited(server, checkpoint, folder, engine="transformers", **settings):
    """The same audit over HTTP and by the engine here."""
    texts = [" ".join(text.split()[:20]) for text in TEXTS[:8]]
    pl.DataFrame({"text": texts}).write_parquet(folder / "corpus.parquet")
    settings["input"] = str(folder / "corpus.parquet")
    endpoint_settings: dict[str, Any] = {
        "model": "tiny",
        "base_url": server,
        "tokenizer": str(checkpoint),
    }
    here: dict[str, Any] = {"model": str(checkpoint), "engine": engine}
    if engine == "vllm":
        here["engine_arg"] = {"kv_cache_memory_bytes": 64 << 20}
    return (
        audit(**settings, **endpoint_settings, out=str(folder / "remote")),
        audit(**settings, **here, out=str(folder / "here")),
    )


def test_an_audit_over_http_has_the_tables_of_one_in_process(
    server, checkpoint, tmp_path
):
    sample_settings = {"samples": SAMPLES, "attacks": "samia_v1"}
    run_there, here = audited(server, checkpoint, tmp_path, "vllm", **sample_settings)
    assert run_there["samples"].height == 8 * SAMPLES
    of_endpoints = pl.col("check").is_in(["endpoint", "dress", "order"])
    for path in sorted(here.folder.rglob("*.parquet")):
        path_there = run_there.folder / path.relative_to(here.folder)
        if path.name == "findings.parquet":
            findings = pl.read_parquet(path_there).filter(~of_endpoints)
            assert findings.equals(pl.read_parquet(path).filter(~of_endpoints))
        else:
            assert path_there.read_bytes() == path.read_bytes()


def test_an_audit_from_log_probabilities_scores_as_the_engine_here(
    server, checkpoint, tmp_path
):
    names = ["lowercase_ratio_v1", "min_k_20_v1", "extraction_v1"]
    logprob_settings = {"attacks": ",".join(names), "extraction_tokens": 10}
    remote, here = audited(server, checkpoint, tmp_path, **logprob_settings)
    assert remote["scores"].select(names).null_count().row(0) == (0, 0, 0)
    assert_frame_equal(
        remote["scores"].select(names), here["scores"].select(names), abs_tol=1e-4
    )
    assert sum(remote.manifest.passes.values()) == 3 * 8


def test_an_audit_at_points_over_http_has_the_log_probabilities_of_the_engine_here(
    server, checkpoint, tmp_path
):
    point_settings = {"evidence": "probe-logprobs", "probes": 3}
    remote, here = audited(server, checkpoint, tmp_path, **point_settings)
    assert remote.manifest.models["target"]["probe-logprobs"] == "exact"
    assert remote["logprobs"]["logprob"].null_count() == 0
    bound, exact = (
        run["logprobs"]["vocabulary_mean"].explode() for run in (remote, here)
    )
    assert (bound >= exact - 1e-4).all()  # of what is not listed a bound alone is known
    alike = [
        run["logprobs"].drop(pl.selectors.starts_with("vocabulary"))
        for run in (remote, here)
    ]
    assert_frame_equal(*alike, abs_tol=1e-4)


def answer_batch(checkpoint: Path, requests: Path, folder: Path) -> Path:
    """Answer a file of requests by vLLM's own batch runner."""
    output, log = folder / "output.jsonl", folder / "batch.log"
    options = ["-i", str(requests), "-o", str(output)]
    options += model_options(checkpoint, folder)
    process = Forked(start, "run_batch", options, str(log))
    try:
        process.wait(HANGS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert output.exists(), log.read_text(errors="replace")[-3000:]
    return output


def test_a_chat_by_batch_files_has_the_tables_of_one_over_http(
    server, checkpoint, tmp_path
):
    texts = [" ".join(text.split()[:20]) for text in TEXTS[:8]]
    pl.DataFrame({"text": texts}).write_parquet(tmp_path / "corpus.parquet")
    settings: dict[str, Any] = {
        "input": str(tmp_path / "corpus.parquet"),
        "model": "tiny",
        "base_url": server,
        "chat": True,
        "chat_instruction": "Go on:",
        "samples": SAMPLES,
        "attacks": "samia_v1",
        "max_failed": 1.0,
        "anyway": True,
    }
    live = audit(**settings, out=str(tmp_path / "live"))
    files = settings | {"out": str(tmp_path / "batch")}
    run_of_files = audit(**files, requests_to=str(tmp_path / "requests"))
    assert run_of_files["prompts"].height == 8
    assert not run_of_files.manifest.custody
    (requests,) = (tmp_path / "requests").iterdir()
    output = answer_batch(checkpoint, requests, tmp_path)
    run = audit(**files, answers_from=str(output))
    assert run.manifest.requests["from_batch_files"] == 8
    assert run["samples"].height == 8 * SAMPLES
    assert run["samples"]["candidate"].drop_nulls().len() > 0
    assert tables_of(run.folder) == tables_of(live.folder)
