"""An engine of this machine as a source: texts are encoded and decoded on this side of its pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mia_batch.errors import EngineError
from mia_batch.evidence.engine import SampleRequest
from mia_batch.evidence.source import TextOutput, TextResult

if TYPE_CHECKING:
    from mia_batch.evidence.engine import SampleResult
    from mia_batch.evidence.process import EngineProcess
    from mia_batch.evidence.source import TextRequest
    from mia_batch.models.tokens import Tokenizer

__all__ = ["LocalSource"]


class LocalSource:
    """A started engine and its model's tokenizer.

    Parameters
    ----------
    engine
        The engine, ready.
    tokenizer
        The model's tokenizer.
    """

    def __init__(self, engine: EngineProcess, tokenizer: Tokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._most = 2 * engine.info.max_sequences
        self._prompts: dict[int, list[int]] = {}

    def has_room(self, *, requests: int, samples: int) -> bool:  # noqa: ARG002 - of the protocol
        """Keep twice as many sequences in flight as the engine decodes at once."""
        return samples < self._most

    def submit(self, request: TextRequest) -> None:
        """Queue a request, which must carry its token ids; returns at once."""
        if request.prompt_token_ids is None:
            msg = "a request for an engine of this machine lacks its token ids; encode the prompt"
            raise EngineError(msg)
        self._prompts[request.request_id] = request.prompt_token_ids
        self._engine.submit(
            SampleRequest(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                seed=request.seed,
                n=request.n,
                max_tokens=request.max_tokens,
            )
        )

    def results(self, timeout: float | None = None) -> list[TextResult]:
        """Wait for answers, decoded; see `Source.results`."""
        return [self._decode(result) for result in self._engine.results(timeout)]

    def _decode(self, result: SampleResult) -> TextResult:
        prompt_ids = self._prompts.pop(result.request_id)
        if result.error is not None:
            return TextResult(request_id=result.request_id, outputs=[], error=result.error)
        token_ids = [output.token_ids for output in result.outputs]
        prompt, texts = self._tokenizer.decode_candidates(prompt_ids, token_ids)
        outputs = [
            TextOutput(text=text, n_tokens=len(ids), finish_reason=output.finish_reason)
            for text, ids, output in zip(texts, token_ids, result.outputs, strict=True)
        ]
        return TextResult(request_id=result.request_id, outputs=outputs, prompt=prompt)
