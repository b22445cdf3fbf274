"""Learn what an endpoint honours, by asking it; documentation and silence are not believed."""

from dataclasses import replace
from math import isclose
from typing import Any

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.dress import (
    Asked,
    known_openings,
    learn,
    recorded_rule,
    undress,
)
from mia_batch.evidence.endpoint import wire
from mia_batch.evidence.endpoint.transport import (
    RefusedError,
    RequestRunner,
    UnansweredError,
)
from mia_batch.models.tokens import Tokenizer
from mia_batch.schemas import AnswerKind

PROBE_PROMPT = "On the first day of spring, the people of the town"
"""Open enough that two samples of it hardly ever agree."""

_REPETITIVE = f"{PROBE_PROMPT} sang: {'one two three, ' * 6}one two"
"""A prompt whose continuation repeats its words, which penalties forbid."""
_PENALTIES = {
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
    "repetition_penalty": 2.0,
}
"""Fields that act on repeated words, with values at which they must."""
# OpenAI's reasoning models refuse the older name, and most other servers do not know
# the newer one.
_LIMITS = ("max_tokens", "max_completion_tokens")
_UNTHINKING: tuple[dict[str, Any], ...] = (
    {"reasoning_effort": "none"},
    {"reasoning_effort": "minimal"},
    {"reasoning_effort": "low"},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"thinking": {"type": "disabled"}},
)
"""Ways to keep a model from thinking before it answers, as servers name them."""
_THOUGHTS = 4096  # tokens to allow for thoughts that cannot be kept off
_MAX_TOKENS = 24  # so many that two samples differ, and few that cost little
_SEED = 3 << 60  # as large as the seeds of samples are
_OPENING_TOKENS = 64  # a lead-in, and enough of what follows
_FEWEST_DRESSED = 2  # openings that show a layer
_CHARACTERS_A_TOKEN, _SPARE = 2, 8  # of a lead-in, at least
_WITH_PROMPT = ("prompt_removed", "prompt_repeated")
_RETRIES = 2  # of a question that the endpoint may fail at
_CONTEXT_NAMES = (
    "max_model_len",
    "context_length",
    "max_context_length",
    "context_window",
)
_UNKNOWN_FIELD = frozenset({400, 422, 501})
# What vLLM and OpenAI's chat list at most, OpenAI's completions, anyone
_TOP = (
    20,
    5,
    1,
)
_NOISE = 0.1  # nats between two answers to the same question, on an accelerator
_N_NAMED = 3  # one value could be a constant of the server's
_TRIED = 64  # tokens, spread over the vocabulary, of which some unlikely ones are named


class Probe:
    """Questions to an endpoint, about thirty small requests in all."""

    def __init__(self, runner: RequestRunner) -> None:
        self._runner = runner
        runner.probing = True
        self._settings = runner.request_format.settings

    @property
    def _format(self) -> wire.RequestFormat:
        return self._runner.request_format

    async def run(self) -> wire.Capabilities:
        wanted = self._format
        plain = wire.Chat if self._settings.chat else wire.RequestFormat
        self._runner.request_format = plain(self._settings)
        answer = await self._agree(
            draws=type(wanted) in {wire.RequestFormat, wire.Chat}
        )
        self._runner.request_format = replace(wanted, dialect=self._format.dialect)
        if isinstance(wanted, wire.Echo):
            await self._check_echo()
            # What was not asked counts as refused, so it is not sent
            found = wire.Capabilities()
        elif isinstance(wanted, wire.NextToken):
            found = await self._next_token(wanted)
        else:
            found = await self._samples(answer)
        return replace(
            found,
            max_model_len=await self._max_model_len(),
            dialect=self._format.dialect,
            serves=_other_name(answer.document.get("model"), self._settings.model),
        )

    # How requests must be written.

    async def _agree(self, *, draws: bool) -> wire.Choices:
        """Find the fields that the endpoint takes: all of them, or as many as it takes together."""
        # First without any, under each name of the limit, then with one more after the
        # other; those of which the user chose a value come first, and must be taken
        # where answers are drawn.
        try:
            return await self._ask({})
        except RefusedError as error:
            if error.unusable or error.status not in _UNKNOWN_FIELD:
                raise _first_refusal(error, self._settings) from None
            first = error
        chosen = {
            "temperature": self._settings.temperature,
            "top_p": self._settings.top_p,
        }
        optional = [*sorted(chosen, key=lambda name: chosen[name] == 1), *wire.NEUTRAL]
        for limit in _LIMITS:
            self._speak(limit=limit, withdrawn=tuple(optional))
            answer = await self._try()
            if answer is not None:
                break
        else:
            raise _first_refusal(first, self._settings)
        for name in optional:
            before = self._format.dialect.withdrawn
            self._speak(withdrawn=tuple(each for each in before if each != name))
            if (more := await self._try()) is not None:
                answer = more
                continue
            self._speak(withdrawn=before)
            if draws and chosen.get(name, 1) != 1:
                raise SettingsError(
                    f"the endpoint {self._settings.base_url} refuses {name}"
                    f" {chosen[name]:g} ({first}); leave {name}= at 1"
                )
        return answer

    async def _look_for_thoughts(self, answer: wire.Choices) -> None:
        if _kind(answer) != "thinking":
            return
        for added in _UNTHINKING:
            self._speak(added=added)
            if _kind(await self._try()) not in (None, "thinking"):
                return
        self._speak(added={}, thinking=_THOUGHTS)
        if (found := await self._try()) is None or _kind(found) == "thinking":
            raise EngineError(
                f"the model {self._settings.model} spends {_THOUGHTS:,} tokens and more"
                " on thoughts and gives no answer; take a model that does not think,"
                " or a server setting that keeps it from thinking"
            )

    # Samples.

    async def _samples(self, answer: wire.Choices) -> wire.Capabilities:
        await self._look_for_thoughts(answer)
        self._speak(repeats_prompt=_kind(answer) in _WITH_PROMPT)
        seed: wire.Honour = "refused"
        texts = await self._texts(
            *({"seed": each} for each in (_SEED, _SEED, _SEED + 1))
        )
        if texts is not None:
            seed = "honoured" if texts[0] == texts[1] else "ignored"
        else:
            texts = [_text(await self._try()) for _ in range(2)]
        varied = len(set(texts)) > 1
        greedy: wire.Honour = "honoured"
        if self._settings.temperature > 0:
            twice = await self._texts(*[{"temperature": 0.0}] * 2)
            greedy = _shown(twice is not None and twice[0] == twice[1], twice)
        top_k, limits_k = None, self._settings.top_k > 0
        if self._settings.temperature > 0:
            # Only the most likely token may be drawn, so what is drawn must always be
            # the same.
            drawn = await self._texts(
                *({"top_k": 1} | _seeded(seed, i) for i in range(3))
            )
            top_k = _shown(varied and drawn is not None and len(set(drawn)) == 1, drawn)
        neutral = {} if top_k is None or limits_k else {"top_k": top_k}
        neutral |= await self._neutral(seed, greedy, varied=varied)
        # With a seed, because some endpoints then draw every continuation with the
        # same.
        two = await self._try(2, n=2, **_seeded(seed))
        copies = [] if two is None else [found.text for found in two.found.values()]
        several = len(copies) == 2 and not (varied and copies[0] == copies[1])
        with_ids = await self._try(return_token_ids=True)
        return wire.Capabilities(
            dress=await self._dress(),
            greedy=greedy,
            neutral=neutral,
            n=_shown(several, two),
            seed=seed,
            varied=varied,
            top_k=top_k if limits_k else None,
            output_token_ids=with_ids is not None
            and with_ids.document["choices"][0].get("token_ids") is not None,
        )

    async def _dress(self) -> list[dict[str, str]]:
        """Find what stands around continuations that every model knows; make room for it."""
        asked, says_prompt = [], False
        for prompt, continuation in known_openings():
            try:
                length = {"max_tokens": _OPENING_TOKENS, "max_retries": _RETRIES}
                answer = await self._ask({}, prompt=prompt, **length)
            except RefusedError:
                continue
            if text := _text(answer):
                asked.append(Asked(prompt, text, continuation))
            says_prompt |= prompt in text or _kind(answer) in _WITH_PROMPT
        if rule := learn(asked, fewest=_FEWEST_DRESSED):
            taken_off = [
                len(each.answer) - len(undress(each.answer, each.prompt, rule))
                for each in asked
            ]
            self._speak(lead=max(taken_off) // _CHARACTERS_A_TOKEN + _SPARE)
        self._speak(says_prompt=says_prompt)
        return recorded_rule(rule)

    async def _neutral(
        self, seed: wire.Honour, greedy: wire.Honour, *, varied: bool
    ) -> dict[str, wire.Honour]:
        """Find whether the values act that keep the endpoint's own settings from acting."""
        # Only an effect on answers that are the same otherwise shows it.
        asked, withdrawn = (*_PENALTIES, "min_p"), self._format.dialect.withdrawn
        found: dict[str, wire.Honour] = {
            name: "refused" for name in asked if name in withdrawn
        }
        likely: dict[str, object] = {} if greedy == "refused" else {"temperature": 0.0}
        likely |= _seeded(seed)
        plain = await self._try(prompt=_REPETITIVE, **likely)
        for name, value in _PENALTIES.items():
            if name not in found:
                other = await self._try(prompt=_REPETITIVE, **likely, **{name: value})
                same = other is None or _text(other) == _text(plain)
                certain = "honoured" in {seed, greedy}
                found[name] = "honoured" if certain and not same else "ignored"
        if "min_p" not in found:
            texts = await self._texts(
                *({"min_p": 1.0} | _seeded(seed, i) for i in range(2))
            )
            same = varied and texts is not None and texts[0] == texts[1]
            found["min_p"] = "honoured" if same else "ignored"
        return {name: found[name] for name in asked}

    async def nudge(self, tokenizer: Tokenizer) -> wire.Honour:
        """Raise the logits of unlikely words, of which each must then be said, space and all."""
        size, (before,) = tokenizer.vocabulary, tokenizer.encode_prompts([PROBE_PROMPT])
        spread = [size * i // _TRIED for i in range(1, _TRIED)]
        _, texts = tokenizer.decode_candidates(before, [[token] for token in spread])
        words = {
            token: text
            for token, text in zip(spread, texts, strict=True)
            if text.strip().isalpha()
        }
        named = sorted(words, key=lambda token: words[token][0] != " ")[:_N_NAMED]
        for token in named:
            answer = await self._one_token(
                {"logit_bias": {str(token): 100}, "temperature": 0.0}
            )
            if isinstance(answer, RefusedError):
                return "refused"
            if answer.text != words[token]:
                return "ignored"
        return "honoured" if named else "ignored"

    # Log-probabilities.

    async def _check_echo(self) -> None:
        try:
            choices = await self._ask({}, max_tokens=1)
            found = wire.read_echo(
                *wire.Echo.listed(choices.text), "", PROBE_PROMPT, n_drawn=None
            )
        except RefusedError as error:
            found = str(error)
        if isinstance(found, str):
            raise SettingsError(
                f"the endpoint {self._settings.base_url} does not echo"
                f" log-probabilities of prompts ({found}); take another endpoint, or"
                " engine transformers or vllm"
            )

    async def _next_token(self, of: wire.NextToken) -> wire.Capabilities:
        try:
            top, answer = await self._most_likely(of)
            listed = of.listed(answer.text)
            by_id = all(wire.is_id(name) for name, _ in listed)
            plain = await self._ask(of.listing(top), max_tokens=1) if by_id else answer
            _check_names(of, listed, plain)
            named = await self._named_token(of, listed, by_id=by_id)
        except RefusedError as error:
            raise _first_refusal(error, self._settings) from None
        return wire.Capabilities(
            named_token=named, top_logprobs=top, token_id_names=by_id
        )

    async def _most_likely(self, of: wire.NextToken) -> tuple[int, wire.Choices]:
        found: wire.Choices | RefusedError | None = None
        for n, by_id in ((n, by_id) for n in _TOP for by_id in (True, False)):
            found = await self._one_token(of.listing(n, by_id=by_id))
            if isinstance(found, wire.Choices):
                return n, found
        raise SettingsError(
            f"the endpoint {self._settings.base_url} gives no log-probabilities of the"
            f" next token ({found}); take another endpoint, engine transformers or"
            " vllm, or evidence 'samples'"
        )

    async def _named_token(
        self, of: wire.NextToken, listed: wire.Listed, *, by_id: bool
    ) -> wire.Honour:
        """Name unlikely tokens: each has a value of its own, twice the same, below all listed."""
        tokenizer = of.tokenizer
        likely = wire.named_ids(listed, tokenizer)
        spread = dict.fromkeys(
            tokenizer.vocabulary * i // _TRIED for i in range(1, _TRIED)
        )
        unlikely = [
            token
            for token in spread
            if token not in likely
            and (
                by_id or tokenizer.ids_by_text.get(tokenizer.token_text(token)) == token
            )
        ][:_N_NAMED]
        values = []
        for token in (*unlikely, *unlikely[:1]):
            answer = await self._one_token(of.listing(1, [token], by_id=by_id))
            if isinstance(answer, RefusedError):
                return "refused"
            found = wire.read_next_token(
                of.listed(answer.text), token, tokenizer, exact=True
            )
            if isinstance(found, str):
                return "ignored"
            values.append(found[0])
        least = min(value for _, value in listed)
        same = values and isclose(values[0], values[-1], rel_tol=0, abs_tol=_NOISE)
        differ = len(set(values[:-1])) > 1
        return (
            "honoured"
            if same and differ and max(values) <= least + _NOISE
            else "ignored"
        )

    # Requests.

    async def _max_model_len(self) -> int | None:
        try:
            reply = await self._runner.transport.send("/models")
        except UnansweredError:
            return None
        models = (
            (wire.decode_object(reply.body) or {}).get("data")
            if reply.status == 200
            else None
        )
        listed = models if isinstance(models, list) else []
        own = (each for each in listed if isinstance(each, dict))
        of = next((each for each in own if each.get("id") == self._settings.model), {})
        return next(
            (n for n in map(of.get, _CONTEXT_NAMES) if type(n) is int and n > 0), None
        )

    def _speak(self, **changed: Any) -> None:
        dialect = replace(self._format.dialect, **changed)
        self._runner.request_format = replace(self._format, dialect=dialect)

    async def _texts(self, *asked: dict[str, Any]) -> list[str] | None:
        """Ask with some fields, then with others; None where the endpoint refuses any."""
        answers = [await self._try(**fields) for fields in asked]
        return None if None in answers else [_text(answer) for answer in answers]

    async def _try(
        self, n: int = 1, /, prompt: str = PROBE_PROMPT, **fields: object
    ) -> wire.Choices | None:
        """Ask with a field more; None where the endpoint refuses it."""
        try:
            return await self._ask(fields, prompt=prompt, n=n, max_retries=_RETRIES)
        except RefusedError:
            return None

    async def _one_token(
        self, fields: dict[str, object]
    ) -> wire.Choices | RefusedError:
        """Ask for one token with some fields; the error where the endpoint refuses these."""
        try:
            return await self._ask(fields, max_tokens=1)
        except RefusedError as error:
            if not (error.unusable or error.status in _UNKNOWN_FIELD):
                raise
            return error

    async def _ask(
        self,
        fields: dict[str, object],
        *,
        prompt: str = PROBE_PROMPT,
        n: int = 1,
        max_tokens: int = _MAX_TOKENS,
        max_retries: int | None = None,
    ) -> wire.Choices:
        """Ask until the answer can be used, with the patience that every later request has."""
        request = self._format.write(prompt, fields, n=n, max_tokens=max_tokens)
        return await self._runner.complete(
            request, lambda *_: None, max_retries=max_retries
        )


def _shown(effect: bool, answers: object) -> wire.Honour:  # noqa: FBT001 - what is asked
    """Say what an effect on answers shows, which are None where the field was refused."""
    return "refused" if answers is None else "honoured" if effect else "ignored"


def _seeded(seed: wire.Honour, number: int = 0) -> dict[str, Any]:
    return {} if seed == "refused" else {"seed": _SEED + number}


def _text(answer: wire.Choices | None) -> str:
    return "" if answer is None else answer.text


def _kind(answer: wire.Choices | None) -> AnswerKind | None:
    return answer.found[0].answer if answer is not None and 0 in answer.found else None


def _check_names(of: wire.NextToken, listed: wire.Listed, plain: wire.Choices) -> None:
    """Look whether most tokens that are named are the tokenizer's, which has the same texts."""
    # Where they are named by text alone, the drawn token's own text must be among them:
    # a name that has lost its space, for one, is that of another token.
    ids = wire.named_ids(listed, of.tokenizer)
    known = {of.tokenizer.token_text(token) for token in ids if token is not None}
    names, others = (
        [name for name, _ in each] for each in (listed, of.listed(plain.text))
    )
    said = str(of.said(plain.document["choices"][0]) or "")
    if all(map(wire.is_id, others)):
        right = said.strip() in {"", *map(str.strip, known)}
    else:
        right = 2 * len(known.intersection(others)) >= len(set(others))
        right = right and (others != names or said in {"", *names})
    if not right:
        raise SettingsError(
            "tokenizer: the endpoint's tokens are named otherwise"
            f" ({', '.join(map(repr, others[:3]))}, where the answer is {said!r}); give"
            " the folder or hub name of the model's own tokenizer, or take engine"
            " transformers or vllm"
        )


def _other_name(said: object, asked: str) -> str | None:
    """Return what answers call a model, unless it is its name, shortened or with a version."""
    if not isinstance(said, str) or not said.strip():
        return None
    one, other = (
        name.casefold().rstrip("/").rpartition("/")[2] for name in (said, asked)
    )
    return None if one in other or other in one else wire.shorten(said)


def _first_refusal(
    error: RefusedError, settings: wire.ClientSettings
) -> SettingsError | EngineError:
    if error.unusable:
        way_out = "its replies are not of the form that OpenAI's API has"
        if wire.STREAMED in str(error):
            way_out = "let the server, or the gateway before it, answer whole"
        elif not error.is_json:
            way_out = "check base_url=, which usually ends with /v1"
        said = f"the endpoint {settings.base_url} gives no usable answer ({error})"
        return EngineError(f"{said}; {way_out}")
    start = (
        f"the endpoint {settings.base_url} refuses model {settings.model!r} ({error})"
    )
    status = error.status or 500
    if status >= 500 or status in {408, 409, 429}:
        return EngineError(f"{start}; give the same command again when it is well")
    way_out = "change what it names"
    if status in {401, 403}:
        way_out = "check the API key and what it may use"
        if settings.api_key is None:
            way_out = "OPENAI_API_KEY is not set, and api_key_env= names no other"
    elif status in {404, 405}:
        other = "the completions endpoint" if settings.chat else "chat="
        way_out = f"check model=, or try {other}"
        if not error.is_json or "model" not in str(error).lower():
            start = (
                f"the endpoint {settings.base_url} has nothing at that address"
                f" ({error})"
            )
            way_out = f"check base_url=, which usually ends with /v1, or try {other}"
    elif 300 <= status < 400:
        way_out = "set base_url= to the address that answers by itself"
    return SettingsError(f"{start}; {way_out}")
