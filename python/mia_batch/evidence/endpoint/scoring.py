"""An endpoint that echoes log-probabilities of prompts, as a scorer of texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint.client import Endpoint
from mia_batch.evidence.endpoint.echo import Echo, read_echo
from mia_batch.evidence.scoring.source import TextScoreResult
from mia_batch.evidence.source import TextRequest

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random
    from types import TracebackType

    from mia_batch.evidence.endpoint.answers import Form
    from mia_batch.evidence.endpoint.capabilities import Capabilities
    from mia_batch.evidence.endpoint.exchange import Exchange
    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.endpoint.transport import Transport
    from mia_batch.evidence.scoring.source import TextScoreRequest
    from mia_batch.evidence.source import TextResult
    from mia_batch.models.tokens import Tokenizer

__all__ = ["EndpointScorer"]


class EndpointScorer:
    """A client whose endpoint was found to echo; made by :meth:`open`, used as a context manager.

    Requests are journalled, repeated, limited and paid for as those for samples are. Each draws one
    token, because not every endpoint takes a request for none; it is thrown away.

    Parameters
    ----------
    endpoint
        The client, open.
    tokenizer
        The model's tokenizer, where there is one here.
    """

    def __init__(self, endpoint: Endpoint, tokenizer: Tokenizer | None) -> None:
        self._endpoint = endpoint
        self._tokenizer = tokenizer
        self._open: dict[int, tuple[TextScoreRequest, str]] = {}
        self._refused: list[TextScoreResult] = []

    @classmethod
    def open(
        cls,
        settings: EndpointSettings,
        *,
        journal: Path,
        tokenizer: Tokenizer | None = None,
        rng: Random | None = None,
    ) -> Self:
        """Connect to an endpoint and see whether it echoes.

        Parameters
        ----------
        settings
            How to reach the endpoint; how tokens are drawn plays no part.
        journal
            SQLite file of the answers that were paid for, as for :meth:`Endpoint.open`.
        tokenizer
            The model's tokenizer; null = contexts cannot be cut to a number of tokens.
        rng
            Source of the jitter between retries; null = one of its own.

        Returns
        -------
        EndpointScorer
            Ready for requests.

        Raises
        ------
        SettingsError
            If the endpoint does not echo log-probabilities, or takes no request.
        EngineError
            If the endpoint cannot be reached, or the journal cannot be used.
        """
        if settings.chat:
            msg = (
                "setting 'chat': a chat endpoint gives no log-probabilities of a prompt; take a "
                "completions endpoint that echoes, or engine transformers or vllm"
            )
            raise SettingsError(msg)
        plain = replace(settings, temperature=1.0, top_k=0, top_p=1.0)
        return cls(_EchoEndpoint.open(plain, journal=journal, rng=rng), tokenizer)

    @property
    def capabilities(self) -> Capabilities:
        """What the endpoint was found to honour; what scoring does not need was not asked."""
        return self._endpoint.capabilities

    def has_room(self, *, requests: int) -> bool:
        """Keep so many requests submitted that the client never waits for the next."""
        return self._endpoint.has_room(requests=requests, samples=requests)

    def submit(self, request: TextScoreRequest) -> None:
        """Queue a request; returns at once."""
        context = request.context
        if request.context_tokens is not None and context:
            if self._tokenizer is None:
                reason = "the context cannot be cut without its tokens; set 'tokenizer'"
                self._refuse(request, reason)
                return
            context = self._tokenizer.keep_last(context, request.context_tokens)
        if not request.text:
            self._refuse(request, "the text has no token")
            return
        self._open[request.request_id] = request, context
        self._endpoint.submit(
            TextRequest(
                request_id=request.request_id,
                key=request.key,
                prompt=context + request.text,
                seed=0,
                n=1,
                max_tokens=1,
            )
        )

    def results(self, timeout: float | None = None) -> list[TextScoreResult]:
        """Wait for answers; see `TextScorer.results`."""
        refused, self._refused = self._refused, []
        if refused:
            return refused
        return [self._read(result) for result in self._endpoint.results(timeout)]

    def close(self) -> None:
        """End the client at once; answers on their way are lost, journalled ones are not."""
        self._endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _refuse(self, request: TextScoreRequest, error: str) -> None:
        refused = TextScoreResult(request_id=request.request_id, passes=0, error=error)
        self._refused.append(refused)

    def _read(self, result: TextResult) -> TextScoreResult:
        request, context = self._open.pop(result.request_id)
        if result.error is not None:
            return TextScoreResult(request_id=result.request_id, error=result.error)
        (output,) = result.outputs
        scores = read_echo(output.text, context, request.text, n_drawn=output.n_tokens)
        if isinstance(scores, str):
            return TextScoreResult(request_id=result.request_id, error=scores)
        n_tokens = len(scores.logprob)
        if n_tokens < (request.text_tokens or 0):
            error = f"the text has {n_tokens} tokens, fewer than the {request.text_tokens} wanted"
            return TextScoreResult(request_id=result.request_id, error=error, asked=False)
        first = replace(scores, logprob=scores.logprob[: request.text_tokens])
        return TextScoreResult(request_id=result.request_id, scores=first)


class _EchoEndpoint(Endpoint):
    """A client all of whose requests ask for an echo."""

    def _form(self) -> Form:
        return Echo()

    async def _probe(self, exchange: Exchange, transport: Transport, form: Form) -> Capabilities:
        from mia_batch.evidence.endpoint.probe import Probe

        return await Probe(exchange, transport, form, self._settings).run_echo()
