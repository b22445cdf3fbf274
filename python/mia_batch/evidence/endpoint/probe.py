"""Learn what an endpoint honours, by asking it; documentation and silence are not believed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.endpoint.capabilities import Capabilities
from mia_batch.evidence.endpoint.cost import Tokens, most_prompt_tokens
from mia_batch.evidence.endpoint.echo import read_echo
from mia_batch.evidence.endpoint.exchange import Ask
from mia_batch.evidence.endpoint.payload import common_fields
from mia_batch.evidence.endpoint.refusal import RefusedError, decode_object
from mia_batch.evidence.endpoint.transport import UnansweredError

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.answers import Answer, Form
    from mia_batch.evidence.endpoint.capabilities import Honour
    from mia_batch.evidence.endpoint.exchange import Exchange
    from mia_batch.evidence.endpoint.settings import EndpointSettings
    from mia_batch.evidence.endpoint.transport import Transport

__all__ = ["PROBE_PROMPT", "Probe"]

PROBE_PROMPT = "On the first day of spring, the people of the town"
"""Open enough that two samples of it hardly ever agree."""

_MAX_TOKENS = 24
_SEED = 3 << 60  # as large as the seeds of samples are
_TOKEN_IDS = [5, 6, 7]  # in every vocabulary
_RETRIES = 2  # of a question that the endpoint may fail at
_CONTEXT_NAMES = ("max_model_len", "context_length", "max_context_length", "context_window")


class Probe:
    """Questions to an endpoint, about ten small requests in all.

    Parameters
    ----------
    exchange
        Sends requests.
    transport
        Connections to the endpoint.
    form
        The kind of endpoint.
    settings
        How to draw.
    """

    def __init__(
        self, exchange: Exchange, transport: Transport, form: Form, settings: EndpointSettings
    ) -> None:
        self._exchange = exchange
        self._transport = transport
        self._form = form
        self._settings = settings

    async def run(self) -> Capabilities:
        """Ask all questions.

        Returns
        -------
        Capabilities
            What the endpoint honours.

        Raises
        ------
        SettingsError
            If it takes no request of ours at all.
        EngineError
            If it cannot be reached, or gives nothing that can be used.
        """
        await self._ask_plainly()
        seed, varied = await self._seed()
        return Capabilities(
            n=await self._n(seed, varied=varied),
            seed=seed,
            varied=varied,
            top_k=await self._top_k(seed, varied=varied) if self._settings.top_k > 0 else None,
            prompt_token_ids=await self._prompt_token_ids(),
            output_token_ids=await self._output_token_ids(),
            echo_logprobs=await self._echo_logprobs(),
            max_model_len=await self._max_model_len(),
        )

    async def run_echo(self) -> Capabilities:
        """Ask only what scoring needs, in a form whose answers are log-probabilities.

        Returns
        -------
        Capabilities
            What was not asked counts as refused, so that it is not sent.

        Raises
        ------
        SettingsError
            If the endpoint takes no request, or does not echo log-probabilities of the prompt.
        EngineError
            If it cannot be reached.
        """
        ask = self._ask(max_tokens=1)
        try:
            answer = await self._exchange.ask(ask, max_retries=self._settings.max_retries)
        except RefusedError as error:
            raise _first_refusal(error, self._settings) from None
        problem = answer.problem
        if problem is None:
            found = read_echo(_text(answer), "", PROBE_PROMPT, n_drawn=None)
            problem = found if isinstance(found, str) else None
        if problem is not None:
            msg = (
                f"the endpoint {self._settings.base_url} does not echo log-probabilities of "
                f"prompts ({problem}); take another endpoint, or engine transformers or vllm"
            )
            raise SettingsError(msg)
        return Capabilities(
            n="refused",
            seed="refused",
            varied=False,
            top_k=None,
            prompt_token_ids=False,
            output_token_ids=False,
            echo_logprobs=True,
            max_model_len=await self._max_model_len(),
        )

    async def _ask_plainly(self) -> None:
        """Make the request that every endpoint must take."""
        try:
            answer = await self._exchange.ask(self._ask(), max_retries=self._settings.max_retries)
        except RefusedError as error:
            raise _first_refusal(error, self._settings) from None
        if answer.problem is not None:
            msg = (
                f"the endpoint {self._settings.base_url} gives no usable answer "
                f"({answer.problem}); check setting 'base_url', which usually ends with /v1"
            )
            raise EngineError(msg)

    async def _seed(self) -> tuple[Honour, bool]:
        answers = [await self._try(seed=seed) for seed in (_SEED, _SEED, _SEED + 1)]
        seed: Honour = "refused"
        if None in answers:
            answers = [await self._try() for _ in range(2)]
        else:
            seed = "honoured" if _text(answers[0]) == _text(answers[1]) else "ignored"
        return seed, len({_text(answer) for answer in answers}) > 1

    async def _n(self, seed: Honour, *, varied: bool) -> Honour:
        """With a seed, because some endpoints then draw every continuation with the same."""
        answer = await self._try(2, n=2, **_seeded(seed, _SEED))
        if answer is None:
            return "refused"
        texts = [output.text for output in answer.outputs.values()]
        return (
            "honoured" if len(texts) == 2 and not (varied and texts[0] == texts[1]) else "ignored"
        )

    async def _top_k(self, seed: Honour, *, varied: bool) -> Honour:
        """Only the likeliest token may be drawn, so what is drawn must always be the same."""
        answers = [await self._try(top_k=1, **_seeded(seed, _SEED + i)) for i in range(3)]
        if None in answers:
            return "refused"
        return "honoured" if varied and len({_text(found) for found in answers}) == 1 else "ignored"

    async def _prompt_token_ids(self) -> bool:
        answer = await self._try(prompt=_TOKEN_IDS, max_tokens=1) if self._completes else None
        if answer is None or answer.used is None:
            return False
        return answer.used.given in {len(_TOKEN_IDS), len(_TOKEN_IDS) + 1}

    async def _output_token_ids(self) -> bool:
        answer = await self._try(return_token_ids=True)
        return answer is not None and isinstance(_choice(answer).get("token_ids"), list)

    async def _echo_logprobs(self) -> bool:
        if not self._completes:
            return False
        answer = await self._try(echo=True, logprobs=1, max_tokens=1)
        if answer is None or answer.used is None:
            return False
        logprobs = _choice(answer).get("logprobs")
        given = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        echoed = _text(answer).startswith(PROBE_PROMPT)
        return echoed and isinstance(given, list) and len(given) - answer.used.given in {0, 1}

    async def _max_model_len(self) -> int | None:
        try:
            reply = await self._transport.get("/models")
        except UnansweredError:
            return None
        models = (decode_object(reply.body) or {}).get("data") if reply.status == 200 else None
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and model.get("id") == self._settings.model:
                stated = (model.get(name) for name in _CONTEXT_NAMES)
                return next((n for n in stated if type(n) is int and n > 0), None)
        return None

    @property
    def _completes(self) -> bool:
        return not self._settings.chat

    async def _try(self, asked: int = 1, /, **fields: object) -> Answer | None:
        """Ask with a field more; null where the endpoint refuses it."""
        try:
            return await self._exchange.ask(self._ask(asked, **fields), max_retries=_RETRIES)
        except RefusedError:
            return None

    def _ask(self, asked: int = 1, /, **fields: object) -> Ask:
        prompt_bytes = len(PROBE_PROMPT.encode())
        given = most_prompt_tokens(self._settings, prompt_bytes=prompt_bytes)
        payload = {
            **self._form.prompt_fields(PROBE_PROMPT),
            **common_fields(self._settings, _MAX_TOKENS),
            **fields,
        }
        return Ask(payload=payload, n=asked, most=Tokens(given, asked * _MAX_TOKENS))


def _seeded(seed: Honour, value: int) -> dict[str, object]:
    return {} if seed == "refused" else {"seed": value}


def _choice(answer: Answer) -> dict[str, Any]:
    choices = answer.document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _text(answer: Answer | None) -> str:
    output = answer.outputs.get(0) if answer is not None else None
    return output.text if output is not None else ""


def _first_refusal(error: RefusedError, settings: EndpointSettings) -> SettingsError | EngineError:
    """Say what to change, as far as the status tells."""
    start = f"the endpoint {settings.base_url} refuses model {settings.model!r} ({error})"
    if error.status in {401, 403}:
        return SettingsError(f"{start}; check the API key and what it may use")
    if error.status in {404, 405}:
        other = "the completions endpoint" if settings.chat else "setting 'chat'"
        way_out = f"check 'model', that 'base_url' ends with /v1, or try {other}"
        return SettingsError(f"{start}; {way_out}")
    if error.status is not None and 300 <= error.status < 400:
        return SettingsError(f"{start}; set 'base_url' to the address that answers by itself")
    if error.status is not None and error.status < 500 and error.status not in {408, 409, 429}:
        return SettingsError(f"{start}; change what it names")
    return EngineError(f"{start}; give the same command again when it is well")
