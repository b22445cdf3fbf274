"""Sampling with vLLM, in this process, on GPUs or with its CPU build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from mia_batch.errors import SettingsError
from mia_batch.evidence.engine import SampleOutput, SampleResult
from mia_batch.evidence.engines.ends import end_token_ids
from mia_batch.evidence.engines.requests import why_impossible
from mia_batch.evidence.engines.vllm_core import (
    check_arguments,
    describe_vllm,
    start_vllm,
    step_vllm,
)
from mia_batch.models.causes import cause_of

if TYPE_CHECKING:
    from mia_batch.evidence.engine import Decoding, EngineInfo, EngineSpec, SampleRequest

__all__ = ["VllmEngine"]


class VllmEngine:
    """vLLM's own loop, fed request by request.

    All of ``engine_args`` goes to ``vllm.EngineArgs`` and wins over what is set here.

    Parameters
    ----------
    spec
        What to start.

    Raises
    ------
    SettingsError
        If a setting is unknown to vLLM or out of its range.
    EngineError
        If the model cannot be loaded.
    """

    def __init__(self, spec: EngineSpec) -> None:
        check_arguments(spec.engine_args)
        self._sampling = _sampling_arguments(spec.decoding)
        self._engine = start_vllm(spec)
        self._sampling["stop_token_ids"] = sorted(_find_ends(self._engine))
        self._vocab_size = self._engine.model_config.get_vocab_size()
        self._info = describe_vllm(self._engine)
        self._refused: list[SampleResult] = []

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""
        return self._info

    def submit(self, request: SampleRequest) -> None:
        """Queue a request.

        Parameters
        ----------
        request
            The request; one that cannot be answered comes back with its reason.
        """
        reason = why_impossible(
            request, max_model_len=self._info.max_model_len, vocab_size=self._vocab_size
        )
        try:
            if reason is None:
                self._add(request)
        except (ValueError, TypeError, vllm.exceptions.VLLMClientError) as error:
            reason = cause_of(error)
        if reason is not None:
            refused = SampleResult(request_id=request.request_id, outputs=[], error=reason)
            self._refused.append(refused)

    def step(self) -> list[SampleResult]:
        """Decode one token of every sequence that runs.

        Returns
        -------
        list of SampleResult
            Requests that are complete, possibly none.

        Raises
        ------
        EngineError
            If the engine cannot go on.
        """
        complete, self._refused = self._refused, []
        if self._engine.has_unfinished_requests():
            complete.extend(_result(output) for output in step_vllm(self._engine))
        return complete

    def close(self) -> None:
        """Free the model."""
        self._engine.engine_core.shutdown()

    def _add(self, request: SampleRequest) -> None:
        parameters = vllm.SamplingParams(
            **self._sampling, n=request.n, seed=request.seed, max_tokens=request.max_tokens
        )
        prompt = tokens_input(request.prompt_token_ids)
        self._engine.add_request(str(request.request_id), prompt, parameters)


def _sampling_arguments(decoding: Decoding) -> dict[str, Any]:
    """Everything that decides how tokens are drawn, so that no default of the model remains."""
    arguments: dict[str, Any] = {
        "temperature": decoding.temperature,
        "top_k": decoding.top_k,
        "top_p": decoding.top_p,
        "detokenize": False,
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    try:
        accepted = vllm.SamplingParams(**arguments)
    except (ValueError, vllm.exceptions.VLLMClientError) as error:
        msg = f"vLLM cannot draw tokens like this ({cause_of(error)}); change the setting"
        raise SettingsError(msg) from error
    if accepted.temperature != decoding.temperature:
        msg = (
            f"setting 'temperature': vLLM would raise {decoding.temperature} to "
            f"{accepted.temperature}; set at least that"
        )
        raise SettingsError(msg)
    return arguments


def _find_ends(engine: vllm.LLMEngine) -> frozenset[int]:
    model = engine.model_config
    return end_token_ids(
        engine.renderer.get_eos_token_id(),
        getattr(model.hf_text_config, "eos_token_id", None),
        model.try_get_generation_config().get("eos_token_id"),
    )


def _result(output: vllm.RequestOutput) -> SampleResult:
    request_id = int(output.request_id)
    outputs = []
    for completion in output.outputs:
        if completion.finish_reason not in ("stop", "length"):
            error = f"vLLM ended the request with {completion.finish_reason!r}"
            return SampleResult(request_id=request_id, outputs=[], error=error)
        outputs.append(
            SampleOutput(
                token_ids=list(completion.token_ids), finish_reason=completion.finish_reason
            )
        )
    return SampleResult(request_id=request_id, outputs=outputs)
