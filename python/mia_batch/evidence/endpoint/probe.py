"""Learn what an endpoint honours, by asking it; documentation and silence are not believed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.endpoint.capabilities import Capabilities
from mia_batch.evidence.endpoint.echo import Echo, read_echo
from mia_batch.evidence.endpoint.next_token import NextToken
from mia_batch.evidence.endpoint.next_token_probe import probe_next_token
from mia_batch.evidence.endpoint.replies import decode_object
from mia_batch.evidence.endpoint.retry import RefusedError, UnusableError
from mia_batch.evidence.endpoint.transport import UnansweredError

if TYPE_CHECKING:
    from mia_batch.evidence.endpoint.capabilities import Honour
    from mia_batch.evidence.endpoint.replies import Choices
    from mia_batch.evidence.endpoint.runner import RequestRunner
    from mia_batch.evidence.endpoint.settings import EndpointSettings

__all__ = ["PROBE_PROMPT", "Probe"]

PROBE_PROMPT = "On the first day of spring, the people of the town"
"""Open enough that two samples of it hardly ever agree."""

_MAX_TOKENS = 24
_SEED = 3 << 60  # as large as the seeds of samples are
_TOKEN_IDS = [5, 6, 7]  # in every vocabulary
_RETRIES = 2  # of a question that the endpoint may fail at
_CONTEXT_NAMES = ("max_model_len", "context_length", "max_context_length", "context_window")


class Probe:
    """Questions to one server of an endpoint, about ten small requests in all."""

    def __init__(self, runner: RequestRunner) -> None:
        self._runner = runner
        runner.probing = True
        self._format = runner.request_format
        self._settings = runner.request_format.settings

    async def run(self) -> Capabilities:
        """Ask all questions that the format allows.

        Raises `SettingsError` if the endpoint takes no request of this format, or does not echo;
        `EngineError` if it cannot be reached, or gives nothing that can be used.
        """
        if isinstance(self._format, Echo):
            return await self._run_echo()
        if isinstance(self._format, NextToken):
            return await self._run_next_token(self._format)
        try:
            await self._ask_plainly()
        except UnusableError as error:
            msg = (
                f"the endpoint {self._settings.base_url} gives no usable answer ({error}); "
                "check setting 'base_url', which usually ends with /v1"
            )
            raise EngineError(msg) from None
        seed, varied = await self._seed()
        completes = not self._settings.chat
        return Capabilities(
            n=await self._n(seed, varied=varied),
            seed=seed,
            varied=varied,
            top_k=await self._top_k(seed, varied=varied) if self._limits_k else None,
            prompt_token_ids=completes and await self._prompt_token_ids(),
            output_token_ids=await self._output_token_ids(),
            echo_logprobs=completes and await self._echo_logprobs(),
            max_model_len=await self._max_model_len(),
        )

    @property
    def _limits_k(self) -> bool:
        """Whether it makes a difference to the run if only the k most likely tokens are drawn."""
        return self._settings.top_k > 0 and self._settings.temperature > 0

    async def _run_echo(self) -> Capabilities:
        """Ask only whether it echoes; what was not asked counts as refused, so it is not sent."""
        try:
            choices = await self._ask_plainly(max_tokens=1)
            found = read_echo(choices.text, "", PROBE_PROMPT, n_drawn=None)
        except UnusableError as error:
            found = str(error)
        if isinstance(found, str):
            msg = (
                f"the endpoint {self._settings.base_url} does not echo log-probabilities of "
                f"prompts ({found}); take another endpoint, or engine transformers or vllm"
            )
            raise SettingsError(msg)
        return Capabilities(echo_logprobs=True, max_model_len=await self._max_model_len())

    async def _run_next_token(self, request_format: NextToken) -> Capabilities:
        """Ask only for log-probabilities of the next token."""
        retries = self._settings.max_retries

        async def ask(fields: dict[str, object]) -> Choices:
            return await self._ask(fields, max_tokens=1, max_retries=retries)

        try:
            found = await probe_next_token(request_format, ask)
        except RefusedError as error:
            raise _first_refusal(error, self._settings) from None
        return replace(found, max_model_len=await self._max_model_len())

    async def _ask_plainly(self, *, max_tokens: int = _MAX_TOKENS) -> Choices:
        """Make the request that every endpoint must take."""
        retries = self._settings.max_retries
        try:
            return await self._ask({}, max_tokens=max_tokens, max_retries=retries)
        except UnusableError:
            raise
        except RefusedError as error:
            raise _first_refusal(error, self._settings) from None

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
        texts = [found.text for found in answer.found.values()]
        several = len(texts) == 2 and not (varied and texts[0] == texts[1])
        return "honoured" if several else "ignored"

    async def _top_k(self, seed: Honour, *, varied: bool) -> Honour:
        """Only the most likely token may be drawn, so what is drawn must always be the same."""
        answers = [await self._try(top_k=1, **_seeded(seed, _SEED + i)) for i in range(3)]
        if None in answers:
            return "refused"
        return "honoured" if varied and len({_text(found) for found in answers}) == 1 else "ignored"

    async def _prompt_token_ids(self) -> bool:
        answer = await self._try(prompt=_TOKEN_IDS, max_tokens=1)
        if answer is None or answer.used is None:
            return False
        return answer.used.given in {len(_TOKEN_IDS), len(_TOKEN_IDS) + 1}

    async def _output_token_ids(self) -> bool:
        answer = await self._try(return_token_ids=True)
        return answer is not None and isinstance(_choice(answer).get("token_ids"), list)

    async def _echo_logprobs(self) -> bool:
        answer = await self._try(echo=True, logprobs=1, max_tokens=1)
        if answer is None or answer.used is None:
            return False
        logprobs = _choice(answer).get("logprobs")
        given = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        echoed = _text(answer).startswith(PROBE_PROMPT)
        return echoed and isinstance(given, list) and len(given) - answer.used.given in {0, 1}

    async def _max_model_len(self) -> int | None:
        try:
            reply = await self._runner.transport.send("/models")
        except UnansweredError:
            return None
        models = (decode_object(reply.body) or {}).get("data") if reply.status == 200 else None
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and model.get("id") == self._settings.model:
                stated = (model.get(name) for name in _CONTEXT_NAMES)
                return next((n for n in stated if type(n) is int and n > 0), None)
        return None

    async def _try(self, n: int = 1, /, **fields: object) -> Choices | None:
        """Ask with a field more; None where the endpoint refuses it."""
        try:
            return await self._ask(fields, n=n, max_retries=_RETRIES)
        except RefusedError:
            return None

    async def _ask(
        self,
        fields: dict[str, object],
        *,
        max_retries: int,
        n: int = 1,
        max_tokens: int = _MAX_TOKENS,
    ) -> Choices:
        """Ask until the answer can be used, with the patience that every later request has."""
        request = self._format.write(PROBE_PROMPT, fields, n=n, max_tokens=max_tokens)
        answers: list[Choices] = []
        await self._runner.complete(
            lambda: None if answers and answers[-1].problem is None else request,
            lambda _, choices: answers.append(choices),
            max_retries=max_retries,
        )
        return answers[-1]


def _seeded(seed: Honour, value: int) -> dict[str, object]:
    return {} if seed == "refused" else {"seed": value}


def _choice(answer: Choices) -> dict[str, Any]:
    choices = answer.document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _text(answer: Choices | None) -> str:
    return "" if answer is None else answer.text


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
