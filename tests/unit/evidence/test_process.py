"""An engine in its own process, and texts in, numbers of their tokens out."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence import process
from mia_batch.evidence.engines import registry
from mia_batch.evidence.process import (
    EngineProcess,
    LocalSource,
    _explain,
    _set_environment,
)
from mia_batch.evidence.request import EngineSpec, Request
from mia_batch.models.tokens import Tokenizer
from tests.checkpoints import BOS_ID, CONTEXT, TEXTS, change, save_tokenizer
from tests.engine_conformance import answers, outputs, request
from tests.processes import HANGS, is_alive, wait_until_gone


def start(checkpoint: Path, folder: Path, **changes: Any) -> EngineProcess:
    spec = EngineSpec(
        engine="transformers", kind="samples", model=str(checkpoint), **changes
    )
    return EngineProcess(spec, log=folder / "engine.log")


LONG = {"n": 200, "max_tokens": CONTEXT - 2}


def test_a_killed_worker_is_an_error_at_once(checkpoint, tmp_path):
    with start(checkpoint, tmp_path) as engine:
        engine.submit(request(0, [BOS_ID], **LONG))
        assert engine.results(timeout=0.2) == []
        os.kill(engine._process.pid, signal.SIGKILL)
        with pytest.raises(
            EngineError, match=r"was killed, most likely .* out of memory; take a"
        ):
            engine.results()
        for again in (lambda: engine.submit(request(1, [BOS_ID])), engine.results):
            with pytest.raises(EngineError, match="was killed"):
                again()


def test_a_crash_loses_nothing_that_was_finished_and_is_explained(checkpoint, tmp_path):
    with start(checkpoint, tmp_path) as engine:
        engine.submit(request(0, [BOS_ID], max_tokens=1))
        assert engine._connection.poll(HANGS)
        os.kill(engine._process.pid, signal.SIGSEGV)
        engine._process.wait()
        assert [result.request_id for result in engine.results()] == [0]
        match = f"ended by SIGSEGV .*whole log is in {tmp_path}/engine.log"
        with pytest.raises(EngineError, match=match):
            engine.results()


SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(2)
torch.ones(500, 500) @ torch.ones(500, 500)
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
from tests.engine_conformance import outputs, request

engine = EngineProcess(
    EngineSpec(engine="transformers", kind="samples", model=sys.argv[1]), log=Path(sys.argv[2])
)
print(engine._process.pid)
print(outputs(engine, [request(0, [0], seed=7, n=9)]), flush=True)
engine.submit(request(1, [0], n=200, max_tokens=200))
engine.results()
"""


def test_an_engine_works_in_any_script_and_dies_with_it(
    checkpoint, tmp_path, transformers_engine
):
    """A script without a main guard that has used torch, killed while its engine works."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, script, checkpoint, tmp_path / "engine.log"],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as running:
        assert running.stdout is not None
        worker = int(running.stdout.readline())
        greeting = running.stdout.readline().strip()
        assert is_alive(worker)
        running.kill()
    assert greeting == str(outputs(transformers_engine, [request(0, [0], seed=7, n=9)]))
    wait_until_gone(worker)


def test_closing_a_busy_engine_takes_seconds_and_ends_it(checkpoint, tmp_path):
    engine = start(checkpoint, tmp_path)
    for i in range(50):
        engine.submit(request(i, [BOS_ID], **LONG))
    engine.close()
    assert not is_alive(engine._process.pid)
    engine.close()
    for again in (lambda: engine.submit(request(0, [BOS_ID])), engine.results):
        with pytest.raises(EngineError, match="has been closed"):
            again()
    engine.restart()
    os.kill(engine._process.pid, signal.SIGSTOP)  # it would not answer a request to end
    engine.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not is_alive(engine._process.pid)


def test_an_idle_engine_goes_on_and_interrupts_are_the_parents_business(
    transformers_engine,
):
    assert transformers_engine.results(timeout=0.01) == []
    os.killpg(transformers_engine._process.pid, signal.SIGINT)
    assert len(answers(transformers_engine, [request(0, [BOS_ID])])) == 1


@pytest.mark.parametrize(
    "prompt", [[BOS_ID] * CONTEXT, [BOS_ID]], ids=["refused", "answered"]
)
def test_any_number_of_requests_can_wait_while_nobody_reads(
    transformers_engine, prompt
):
    n = 30_000 if len(prompt) == CONTEXT else 2_000
    answers_by_request = answers(
        transformers_engine, (request(i, prompt, max_tokens=1) for i in range(n))
    )
    assert sorted(answers_by_request) == list(range(n))


def test_a_model_that_cannot_start_names_its_cause_and_the_log(checkpoint, tmp_path):
    with pytest.raises(
        EngineError, match=rf"cannot load .* \(\w+: .*\); .*log is {tmp_path}"
    ):
        start(tmp_path / "nothing", tmp_path)
    # As it was raised there
    with pytest.raises(SettingsError, match=r"^tensor_parallel_size: "):
        start(checkpoint, tmp_path, tensor_parallel_size=2)


HUB_MODEL = """
import sys
from pathlib import Path
from mia_batch.errors import SettingsError
from mia_batch.evidence.process import EngineProcess
from mia_batch.evidence.request import EngineSpec
spec = EngineSpec(engine="transformers", kind="samples", model="some/model")
try:
    EngineProcess(spec, log=Path(sys.argv[1]))
except SettingsError as error:
    print(error)
"""


def test_files_of_a_hub_are_checked_once_they_are_here(checkpoint, tmp_path):
    cached = tmp_path / "models--some--model"
    snapshot = shutil.copytree(checkpoint, cached / "snapshots" / "0123")
    change(
        snapshot,
        lambda tensors: {
            name: tensors[name] for name in tensors if name != "lm_head.weight"
        },
    )
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0123")
    result = subprocess.run(
        [sys.executable, "-c", HUB_MODEL, tmp_path / "engine.log"],
        capture_output=True,
        check=True,
        text=True,
        env=os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert "the weights of 'some/model' lack lm_head.weight" in result.stdout


def raised(message: str, cause: Exception) -> EngineError:
    with pytest.raises(EngineError) as caught:
        raise EngineError(message) from cause
    return caught.value


EAGER, SEVERAL = {"enforce_eager": False}, "VLLM_ENABLE_V1_MULTIPROCESSING"


@pytest.mark.parametrize(
    ("changes", "on_cpu", "compilers", "expected"),
    [
        (
            {},
            True,
            {"g++"},
            {"TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1", SEVERAL: "0"},
        ),
        ({"engine_args": EAGER}, True, {"g++"}, {"TORCH_COMPILE_DISABLE": None}),
        ({"kind": "logprobs"}, False, {"clang++"}, {"TORCH_COMPILE_DISABLE": None}),
        ({"kind": "logprobs"}, False, set(), {"TORCH_COMPILE_DISABLE": "1"}),
        ({}, False, set(), {"TORCH_COMPILE_DISABLE": None, "OMP_NUM_THREADS": None}),
        (
            {"tensor_parallel_size": 2},
            False,
            set(),
            {SEVERAL: None, "VLLM_NO_USAGE_STATS": "1"},
        ),
    ],
)
def test_what_libraries_read_as_they_are_imported(
    monkeypatch, changes, on_cpu, compilers, expected
):
    environment = {"VLLM_DO_NOT_TRACK": "0"}  # what the user set stays
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(
        registry, "_ACCELERATORS", ("no such device",) if on_cpu else ("null",)
    )
    monkeypatch.setattr(
        process, "which", lambda name: name if name in compilers else None
    )
    _set_environment(
        EngineSpec(
            **{"engine": "transformers", "kind": "samples", "model": "m"} | changes
        )
    )
    assert {name: environment.get(name) for name in expected} == expected
    assert environment["VLLM_DO_NOT_TRACK"] == "0"


KNOWN_CAUSE = ("out of memory; take less", ValueError("no room"))
OLD = "ValueError: of an older run\n"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (KNOWN_CAUSE, "out of memory; take less"),
        (None, "the vllm engine stopped (KeyError: 'x')"),
        *(
            (
                ("vLLM stopped", RuntimeError(words)),
                "vLLM stopped: ValueError: of this run",
            )
            for words in ("See root cause above.", "See stack trace (above)")
        ),
    ],
)
def test_why_an_engine_ended_and_a_cause_that_only_this_runs_log_names(
    tmp_path, error, sentence
):
    log = tmp_path / "engine.log"
    log.write_text(f"{OLD}ValueError: of this run\n")
    cause = KeyError("x") if error is None else raised(*error)
    message = str(_explain(cause, "vllm", str(log), len(OLD)))
    assert message == f"{sentence}; the engine's log is {log}"


TEXT = " ".join(TEXTS[0].split()[:30])
LONG_TEXT = " ".join(TEXTS[1].split()[:400])
MOMENTS = frozenset({"vocabulary_mean", "vocabulary_variance"})


@pytest.fixture(scope="module")
def engine(checkpoint, tmp_path_factory):
    spec = EngineSpec(
        engine="transformers", kind="logprobs", model=str(checkpoint), columns=MOMENTS
    )
    with EngineProcess(
        spec, log=tmp_path_factory.mktemp("log") / "engine.log"
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def bare_tokenizer(tmp_path_factory, checkpoint):
    """The same without a special token before a text."""
    import tokenizers

    folder = tmp_path_factory.mktemp("bare")
    save_tokenizer(
        tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json")), folder, "$A"
    )
    return Tokenizer.load(str(folder), setting="tokenizer")


def ask(engine, tokenizer, *, strides=False, **request):
    source = LocalSource(engine, tokenizer, strides=strides)
    source.submit(Request(request_id=7, kind="logprobs", columns=MOMENTS, **request))
    (result,) = source.results()
    assert result.request_id == 7
    return result


def test_each_token_has_its_numbers_after_the_special_token(
    engine, tokenizer, bare_tokenizer
):
    result = ask(engine, tokenizer, text=TEXT)
    n_tokens = len(result.tokens["token_ids"])
    assert (result.bos, result.passes) == (True, 1)
    assert result.tokens["token_ids"].tolist() == tokenizer.encode([TEXT])[0]
    assert (result.tokens["logprob"] < 0).all()
    assert {len(values) for values in result.tokens.values()} == {n_tokens}
    assert result.tokens.keys() == MOMENTS | {"token_ids", "logprob"}
    result = ask(engine, bare_tokenizer, text=TEXT)
    assert not result.bos
    assert np.flatnonzero(np.isnan(result.tokens["logprob"])).tolist() == [0]


def test_a_text_after_another_is_scored_as_a_part_of_both(engine, tokenizer):
    context, text = TEXT[:50], TEXT[50:]
    whole = ask(engine, tokenizer, text=TEXT).tokens
    part = ask(engine, tokenizer, context=context, text=text).tokens
    n = len(part["token_ids"])
    assert 0 < n < len(whole["token_ids"])
    assert part["token_ids"].tolist() == whole["token_ids"][-n:].tolist()
    np.testing.assert_allclose(part["logprob"], whole["logprob"][-n:], atol=1e-5)


def test_only_so_many_tokens_of_context_and_text_are_looked_at(engine, tokenizer):
    context, text = TEXT[:60], TEXT[60:]
    (ids,) = tokenizer.encode([TEXT])
    n_text = len(tokenizer.encode_after(context, text)[2])
    limited = ask(
        engine, tokenizer, context=context, text=text, context_tokens=3, text_tokens=4
    )
    assert limited.tokens["token_ids"].tolist() == ids[-n_text:][:4]
    whole = ask(engine, tokenizer, context=context, text=text)
    assert not np.allclose(
        limited.tokens["logprob"], whole.tokens["logprob"][:4], atol=1e-3
    )
    without_context = ask(
        engine, tokenizer, context=context, text=text, context_tokens=0, text_tokens=4
    )
    assert (
        without_context.tokens["token_ids"].tolist()
        == limited.tokens["token_ids"].tolist()
    )


def test_a_long_text_is_scored_in_strides_that_do_not_see_each_other(
    engine, tokenizer, bare_tokenizer
):
    (ids,) = tokenizer.encode([LONG_TEXT])
    result = ask(engine, tokenizer, text=LONG_TEXT, strides=True)
    assert result.passes == -(-len(ids) // (CONTEXT - 1)) > 1
    assert result.tokens["token_ids"].tolist() == ids
    assert np.isfinite(result.tokens["logprob"]).all()
    (ids,) = bare_tokenizer.encode([LONG_TEXT])
    result = ask(engine, bare_tokenizer, text=LONG_TEXT, strides=True)
    unscored = np.flatnonzero(np.isnan(result.tokens["logprob"]))
    assert unscored.tolist() == list(range(0, len(ids), CONTEXT))


@pytest.mark.parametrize(
    ("request_fields", "reason"),
    [
        ({"text": ""}, "the text has no token"),
        ({"text": "a"}, "the text has one token, and nothing precedes it"),
        (
            {"text": LONG_TEXT},
            rf"has \d+ tokens .*, the context {CONTEXT}; --long-texts .* pieces",
        ),
        (
            {"context": TEXT, "text": LONG_TEXT, "strides": True},
            f", the context {CONTEXT}",
        ),
        (
            {"context": TEXT, "text": " word", "text_tokens": 50},
            "tokens, fewer than the 50 wanted",
        ),
    ],
)
def test_texts_without_anything_to_ask_or_too_long(
    engine, bare_tokenizer, request_fields, reason
):
    result = ask(engine, bare_tokenizer, **request_fields)
    assert (result.tokens, result.passes) == (None, 0)
    assert re.search(f"{reason}$", result.error)
    # A text of another kind is no failure
    assert result.is_eligible == ("text_tokens" not in request_fields)
