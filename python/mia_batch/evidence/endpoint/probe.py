"""Learn what an endpoint honours, by asking it; documentation and silence are not believed."""

import re
from dataclasses import replace
from itertools import product
from math import isclose
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.dress import (
    AnsweredPrompt,
    known_openings,
    learn,
    recorded_rule,
    undress,
)
from mia_batch.evidence.endpoint import wire
from mia_batch.evidence.endpoint.stream import STREAMED
from mia_batch.evidence.endpoint.transport import (
    RefusedError,
    RequestRunner,
    UnansweredError,
)
from mia_batch.models.tokens import Tokenizer
from mia_batch.schemas import FILTERED, AnswerKind

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
_NOT_THERE = frozenset({404, 405})
# What addresses end with that name more than the base, and a version that is doubled
_ENDING = re.compile(r"/(?:chat|completions|chat/completions|models|embeddings)$")
_DOUBLED = re.compile(r"(/v\d+)(?:\1)+$")
_VERSION = re.compile(r"/v\d+$")
_SAYS_MODEL = re.compile(r"\b(?:model|deployment)")
_MOST_LISTED = 5
_GIVE = "give base_url= as {}, where models are listed"
_LLAMA_CPP = "llama.cpp"  # as its server calls itself in every answer
# They stand beside /v1, where the base address ends
_LLAMA_CPP_PROPERTIES = "/../props"
# What vLLM and OpenAI's chat list at most, OpenAI's completions, anyone
_TOP = (20, 5, 1)
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
        """Probe the endpoint; its format is set to what it understands."""
        target_format = self._format
        plain = wire.Chat if self._settings.chat else wire.RequestFormat
        self._runner.request_format = plain(self._settings)
        draws = type(target_format) in {wire.RequestFormat, wire.Chat}
        answer = await self._agree(draws=draws)
        dialect = self._format.dialect
        self._runner.request_format = replace(target_format, dialect=dialect)
        models = await self._get("/models")
        is_llama_cpp = models is not None and models.headers.get("server") == _LLAMA_CPP
        if isinstance(target_format, wire.Echo):
            await self._check_echo(is_llama_cpp=is_llama_cpp)
            # What was not asked counts as refused, so it is not sent
            capabilities = wire.Capabilities()
        elif isinstance(target_format, wire.NextToken):
            capabilities = await self._next_token(target_format)
        else:
            capabilities = await self._samples(answer)
        usage = wire.read_usage(answer.document)
        return replace(
            capabilities,
            counts_prompts=usage is not None and usage.prompt > 0,
            max_model_len=self._max_model_len(models),
            prompt_slots=await self._prompt_slots() if is_llama_cpp else None,
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
                raise await self._explain(error) from None
            refusal = error
        settings = self._settings
        values = {"temperature": settings.temperature, "top_p": settings.top_p}
        optional = [*sorted(values, key=lambda name: values[name] == 1), *wire.NEUTRAL]
        for limit in _LIMITS:
            self._speak(limit=limit, withdrawn=tuple(optional))
            answer = await self._try()
            if answer is not None:
                break
        else:
            raise await self._explain(refusal)
        for name in optional:
            withdrawn = self._format.dialect.withdrawn
            self._speak(withdrawn=tuple(field for field in withdrawn if field != name))
            following = await self._try()
            if following is not None:
                answer = following
                continue
            self._speak(withdrawn=withdrawn)
            if draws and values.get(name, 1) != 1:
                raise SettingsError(
                    f"the endpoint {settings.base_url} refuses {name}"
                    f" {values[name]:g} ({refusal}); leave {name}= at 1"
                )
        return answer

    async def _look_for_thoughts(self, answer: wire.Choices) -> None:
        """Find how to keep the model from thinking, or make room for its thoughts."""
        if _kind(answer) != "thinking":
            return
        for added in _UNTHINKING:
            self._speak(added=added)
            if _kind(await self._try()) not in (None, "thinking"):
                return
        self._speak(added={}, thinking=_THOUGHTS)
        answer_with_room = await self._try()
        if answer_with_room is None or _kind(answer_with_room) == "thinking":
            raise EngineError(
                f"the model {self._settings.model} spends {_THOUGHTS:,} tokens and more"
                " on thoughts and gives no answer; take a model that does not think,"
                " or a server setting that keeps it from thinking"
            )

    # Samples.

    async def _samples(self, answer: wire.Choices) -> wire.Capabilities:
        """Probe what acts on samples."""
        await self._look_for_thoughts(answer)
        # Until more answers say whether it always does
        self._speak(repeats_prompt=_kind(answer) in _WITH_PROMPT)
        draws = self._settings.temperature > 0
        seed, varied = await self._seed()
        greedy: wire.Support = "honoured"
        if draws:
            texts = await self._texts({"temperature": 0.0}, {"temperature": 0.0})
            is_same = texts is not None and texts[0] == texts[1]
            greedy = _support(texts, has_effect=is_same)
        top_k: wire.Support | None = None
        if draws:
            # Only the most likely token may be drawn, so what is drawn must always be
            # the same.
            fields = ({"top_k": 1} | _seeded(seed, i) for i in range(3))
            texts = await self._texts(*fields)
            is_same = texts is not None and len(set(texts)) == 1
            top_k = _support(texts, has_effect=varied and is_same)
        limits_k = self._settings.top_k > 0
        neutral = {} if top_k is None or limits_k else {"top_k": top_k}
        neutral |= await self._neutral(seed, greedy, varied=varied)
        n = await self._several(seed, varied=varied)
        with_ids = await self._try(return_token_ids=True)
        token_ids = None
        if with_ids is not None:
            token_ids = with_ids.document["choices"][0].get("token_ids")
        return wire.Capabilities(
            dress=await self._dress(),
            greedy=greedy,
            neutral=neutral,
            n=n,
            seed=seed,
            varied=varied,
            top_k=top_k if limits_k else None,
            output_token_ids=token_ids is not None,
        )

    async def _seed(self) -> tuple[wire.Support, bool]:
        """Probe what a seed does; return also if samples differ at all."""
        seeds = (_SEED, _SEED, _SEED + 1)
        texts = await self._texts(*({"seed": seed} for seed in seeds))
        if texts is None:
            support: wire.Support = "refused"
            texts = [_text(await self._try()) for _ in range(2)]
        else:
            support = "honoured" if texts[0] == texts[1] else "ignored"
        return support, len(set(texts)) > 1

    async def _several(self, seed: wire.Support, *, varied: bool) -> wire.Support:
        """Probe several continuations in one request; copies of one count as ignored."""
        # With a seed, because some endpoints then draw every continuation with the
        # same.
        answer = await self._try(2, n=2, **_seeded(seed))
        if answer is None:
            return "refused"
        texts = [part.text for part in answer.continuations.values()]
        has_copies = varied and len(set(texts)) < len(texts)
        return "honoured" if len(texts) == 2 and not has_copies else "ignored"

    async def _dress(self) -> list[dict[str, str]]:
        """Find what stands around continuations that every model knows; make room for it."""
        answered = []
        says_prompt = False
        repeats_prompt = self._format.dialect.repeats_prompt
        for prompt, continuation in known_openings():
            try:
                answer = await self._ask(
                    {},
                    prompt=prompt,
                    max_tokens=_OPENING_TOKENS,
                    max_retries=_RETRIES,
                )
            except RefusedError:
                continue
            text = _text(answer)
            if text:
                answered.append(AnsweredPrompt(prompt, text, continuation))
            is_repeated = _kind(answer) in _WITH_PROMPT
            says_prompt |= prompt in text or is_repeated
            # A server puts it before every answer, a model before one that it draws so
            repeats_prompt &= is_repeated
        rule = learn(answered, fewest=_FEWEST_DRESSED)
        if rule:
            lengths = []
            for item in answered:
                bare = undress(item.answer, item.prompt, rule)
                lengths.append(len(item.answer) - len(bare))
            self._speak(lead=max(lengths) // _CHARACTERS_A_TOKEN + _SPARE)
        self._speak(says_prompt=says_prompt, repeats_prompt=repeats_prompt)
        return recorded_rule(rule)

    async def _neutral(
        self, seed: wire.Support, greedy: wire.Support, *, varied: bool
    ) -> dict[str, wire.Support]:
        """Probe the values that keep the endpoint's own settings from acting."""
        # Only an effect on answers that are the same otherwise shows it.
        names = (*_PENALTIES, "min_p")
        withdrawn = self._format.dialect.withdrawn
        support: dict[str, wire.Support] = {
            name: "refused" for name in names if name in withdrawn
        }
        likely: dict[str, object] = {} if greedy == "refused" else {"temperature": 0.0}
        likely |= _seeded(seed)
        is_certain = "honoured" in {seed, greedy}
        plain = await self._try(prompt=_REPETITIVE, **likely)
        for name, value in _PENALTIES.items():
            if name not in support:
                fields = likely | {name: value}
                answer = await self._try(prompt=_REPETITIVE, **fields)
                is_same = answer is None or _text(answer) == _text(plain)
                support[name] = "honoured" if is_certain and not is_same else "ignored"
        if "min_p" not in support:
            fields_of_two = ({"min_p": 1.0} | _seeded(seed, i) for i in range(2))
            texts = await self._texts(*fields_of_two)
            is_same = varied and texts is not None and texts[0] == texts[1]
            support["min_p"] = "honoured" if is_same else "ignored"
        return {name: support[name] for name in names}

    async def nudge(self, tokenizer: Tokenizer) -> wire.Support:
        """Raise the logits of unlikely words, of which each must then be said, space and all."""
        (prompt_ids,) = tokenizer.encode_prompts([PROBE_PROMPT])
        spread = _spread_tokens(tokenizer)
        _, texts = tokenizer.decode_candidates(
            prompt_ids, [[token] for token in spread]
        )
        words = {
            token: text
            for token, text in zip(spread, texts, strict=True)
            if text.strip().isalpha()
        }
        in_order = sorted(words, key=lambda token: words[token][0] != " ")
        for token in in_order[:_N_NAMED]:
            fields: dict[str, object] = {
                "logit_bias": {str(token): 100},
                "temperature": 0.0,
            }
            answer = await self._one_token(fields)
            if isinstance(answer, RefusedError):
                return "refused"
            if answer.text != words[token]:
                return "ignored"
        return "honoured" if words else "ignored"

    # Log-probabilities.

    async def _check_echo(self, *, is_llama_cpp: bool) -> None:
        try:
            choices = await self._ask({}, max_tokens=1)
            listing = wire.Echo.parse_listing(choices.text)
            echo = wire.read_echo(*listing, "", PROBE_PROMPT, n_drawn=None)
        except RefusedError as error:
            echo = str(error)
        if not isinstance(echo, str):
            return
        cause = f"({echo})"
        way_out = "take another endpoint, or engine transformers or vllm"
        if is_llama_cpp:
            cause = "(llama.cpp's server has none for them)"
            way_out = (
                "give the model's file itself, model= and the path of the .gguf file,"
                " without base_url=, or take evidence 'probe-logprobs' or 'samples'"
            )
        raise SettingsError(
            f"the endpoint {self._settings.base_url} does not echo"
            f" log-probabilities of prompts {cause}; {way_out}"
        )

    async def _next_token(self, next_token: wire.NextToken) -> wire.Capabilities:
        """Probe what the endpoint lists about the next token."""
        try:
            top, answer = await self._most_likely(next_token)
            listed = next_token.parse_listing(answer.text)
            by_id = all(wire.is_id(name) for name, _ in listed)
            plain = answer
            if by_id:
                plain = await self._ask(next_token.listing_fields(top), max_tokens=1)
            _check_names(next_token, listed, plain)
            named_token = await self._named_token(next_token, listed, by_id=by_id)
        except RefusedError as error:
            raise await self._explain(error) from None
        return wire.Capabilities(
            named_token=named_token,
            top_logprobs=top,
            token_id_names=by_id,
        )

    async def _most_likely(
        self, next_token: wire.NextToken
    ) -> tuple[int, wire.Choices]:
        """Find how many of the most likely tokens it lists; return also a listing."""
        answer: wire.Choices | RefusedError | None = None
        for n, by_id in product(_TOP, (True, False)):
            answer = await self._one_token(next_token.listing_fields(n, by_id=by_id))
            if isinstance(answer, wire.Choices):
                return n, answer
        raise SettingsError(
            f"the endpoint {self._settings.base_url} gives no log-probabilities of the"
            f" next token ({answer}); take another endpoint, engine transformers or"
            " vllm, or evidence 'samples'"
        )

    async def _named_token(
        self, next_token: wire.NextToken, listed: wire.ListedTokens, *, by_id: bool
    ) -> wire.Support:
        """Probe unlikely tokens by name: each has a value, twice the same, below all listed."""
        unlikely = self._unlikely_tokens(next_token.tokenizer, listed, by_id=by_id)
        values = []
        for token in (*unlikely, *unlikely[:1]):
            fields = next_token.listing_fields(1, [token], by_id=by_id)
            answer = await self._one_token(fields)
            if isinstance(answer, RefusedError):
                return "refused"
            entries = next_token.parse_listing(answer.text)
            value = wire.read_next_token(
                entries, token, next_token.tokenizer, exact=True
            )
            if isinstance(value, str):
                return "ignored"
            values.append(value[0])
        if not values:
            return "ignored"
        is_same = isclose(values[0], values[-1], rel_tol=0, abs_tol=_NOISE)
        do_differ = len(set(values[:-1])) > 1
        lowest_listed = min(value for _, value in listed)
        are_below = max(values) <= lowest_listed + _NOISE
        return "honoured" if is_same and do_differ and are_below else "ignored"

    def _unlikely_tokens(
        self, tokenizer: Tokenizer, listed: wire.ListedTokens, *, by_id: bool
    ) -> list[int]:
        """Choose tokens that are not listed, and that have a name which no other has."""
        likely = wire.find_ids(listed, tokenizer)
        unlikely = []
        for token in dict.fromkeys(_spread_tokens(tokenizer)):
            text = tokenizer.token_text(token)
            has_name = by_id or tokenizer.ids_by_text.get(text) == token
            if has_name and token not in likely:
                unlikely.append(token)
        return unlikely[:_N_NAMED]

    async def _explain(self, error: RefusedError) -> SettingsError | EngineError:
        """Build the error for an endpoint that answers no request at all."""
        is_nothing_there = error.status in _NOT_THERE
        if not (error.unusable or is_nothing_there):
            return _explain_refusal(error, self._settings)
        models = _list_models(await self._get("/models"))
        guess = None if models is not None else await self._find_address()
        if error.unusable:
            return _explain_unusable(error, self._settings, guess)
        return _explain_nothing_there(error, self._settings, models, guess)

    async def _find_address(self) -> str | None:
        """Find an address of the same host where models are listed."""
        for address in _guess_addresses(self._settings.base_url):
            start, mark, query = address.partition("?")
            if _list_models(await self._get(f"{start}/models")) is not None:
                return start + mark + query
        return None

    # Requests.

    async def _get(self, path: str) -> wire.Reply | None:
        """Get a page below the base address; None where no answer comes."""
        try:
            return await self._runner.transport.send(path)
        except UnansweredError:
            return None

    async def _prompt_slots(self) -> int:
        """Ask llama.cpp's server how many slots it has; it has at least one."""
        reply = await self._get(_LLAMA_CPP_PROPERTIES)
        document = wire.decode_object(reply.body) if reply is not None else None
        n_slots = (document or {}).get("total_slots")
        return n_slots if type(n_slots) is int and n_slots > 0 else 1

    def _max_model_len(self, reply: wire.Reply | None) -> int | None:
        """Read the model's context from the list of models; None where it is not stated."""
        if reply is None:
            return None
        document = wire.decode_object(reply.body) or {}
        models = document.get("data") if reply.status == 200 else None
        for model in models if isinstance(models, list) else []:
            if isinstance(model, dict) and model.get("id") == self._settings.model:
                lengths = map(model.get, _CONTEXT_NAMES)
                return next((n for n in lengths if type(n) is int and n > 0), None)
        return None

    def _speak(self, **changes: Any) -> None:
        """Change how requests are written from here on."""
        dialect = replace(self._format.dialect, **changes)
        self._runner.request_format = replace(self._format, dialect=dialect)

    async def _texts(self, *requests: dict[str, Any]) -> list[str] | None:
        """Ask with some fields, then with others; None where the endpoint refuses any."""
        answers = [await self._try(**fields) for fields in requests]
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
        choices = await self._runner.complete(
            request, lambda *_: None, max_retries=max_retries
        )
        if choices.is_prompt_filtered:  # which says nothing of the fields
            reason = choices.continuations[0].reason
            raise RefusedError(None, str(reason), is_json=True, unusable=True)
        return choices


def _support(answers: object, *, has_effect: bool) -> wire.Support:
    """Return what an effect on answers shows, which are None where the field was refused."""
    if answers is None:
        return "refused"
    return "honoured" if has_effect else "ignored"


def _seeded(seed: wire.Support, number: int = 0) -> dict[str, Any]:
    return {} if seed == "refused" else {"seed": _SEED + number}


def _text(answer: wire.Choices | None) -> str:
    return "" if answer is None else answer.text


def _kind(answer: wire.Choices | None) -> AnswerKind | None:
    first = None if answer is None else answer.continuations.get(0)
    return None if first is None else first.answer


def _spread_tokens(tokenizer: Tokenizer) -> list[int]:
    """Choose tokens all over the vocabulary."""
    return [tokenizer.vocabulary * i // _TRIED for i in range(1, _TRIED)]


def _check_names(
    next_token: wire.NextToken, listed: wire.ListedTokens, plain: wire.Choices
) -> None:
    """Check that most tokens that are named are the tokenizer's, which has the same texts."""
    # Where they are named by text alone, the drawn token's own text must be among them:
    # a name that has lost its space, for one, is that of another token.
    tokenizer = next_token.tokenizer
    ids = wire.find_ids(listed, tokenizer)
    texts = {tokenizer.token_text(token) for token in ids if token is not None}
    names = [name for name, _ in listed]
    plain_names = [name for name, _ in next_token.parse_listing(plain.text)]
    reply = str(next_token.reply_text(plain.document["choices"][0]) or "")
    if all(map(wire.is_id, plain_names)):
        is_right = reply.strip() in {"", *map(str.strip, texts)}
    else:
        n_shared = len(texts.intersection(plain_names))
        is_right = 2 * n_shared >= len(set(plain_names))
        if plain_names == names and reply not in {"", *names}:
            is_right = False
    if not is_right:
        raise SettingsError(
            "tokenizer: the endpoint's tokens are named otherwise"
            f" ({', '.join(map(repr, plain_names[:3]))}, where the answer is {reply!r});"
            " give the folder or hub name of the model's own tokenizer, or take engine"
            " transformers or vllm"
        )


def _other_name(served: object, requested: str) -> str | None:
    """Return what answers call a model, unless it is its name, shortened or with a version."""
    if not isinstance(served, str) or not served.strip():
        return None
    served_name = _bare_name(served)
    requested_name = _bare_name(requested)
    is_form = served_name in requested_name or requested_name in served_name
    return None if is_form else wire.shorten(served)


def _bare_name(model: str) -> str:
    """Return the name of a model without the folders before it, in lower case."""
    return model.casefold().rstrip("/").rpartition("/")[2]


def _list_models(reply: wire.Reply | None) -> list[str] | None:
    """Read the names in a list of models; None where a reply is no such list."""
    document = wire.decode_object(reply.body) if reply is not None else None
    if reply is None or reply.status != 200 or document is None:
        return None
    models = document.get("data")
    if not isinstance(models, list):
        return None
    return [str(model.get("id")) for model in models if isinstance(model, dict)]


def _guess_addresses(base_url: str) -> list[str]:
    """Guess addresses of the same host that may be meant: /v1 is often missing or doubled."""
    address = urlsplit(base_url)
    path = address.path.rstrip("/")
    bare = _ENDING.sub("", path)
    paths = [bare, _DOUBLED.sub(r"\1", bare), "/v1"]
    if _VERSION.search(bare) is None:
        paths.insert(0, f"{bare}/v1")
    guesses = dict.fromkeys(paths)
    guesses.pop(path, None)
    return [urlunsplit(address._replace(path=guess)) for guess in guesses]


def _blames_model(error: RefusedError) -> bool:
    """Check whether a refusal speaks of the model, not merely of a path with its name."""
    without_paths = re.sub(r"\S*/\S*", " ", str(error)).lower()
    return error.is_json and _SAYS_MODEL.search(without_paths) is not None


def _explain_unusable(
    error: RefusedError, settings: wire.ClientSettings, guess: str | None
) -> EngineError:
    """Build the error for an endpoint of which no answer can be used."""
    way_out = "its replies are not of the form that OpenAI's API has"
    if str(error).startswith(FILTERED):
        way_out = "the prompt is harmless: have its filter set less strictly"
    elif STREAMED in str(error):
        way_out = "let the server, or the gateway before it, answer whole"
    elif guess is not None:
        way_out = _GIVE.format(guess)
    elif not error.is_json:
        way_out = "check base_url=, which usually ends with /v1"
    return EngineError(
        f"the endpoint {settings.base_url} gives no usable answer ({error}); {way_out}"
    )


def _explain_nothing_there(
    error: RefusedError,
    settings: wire.ClientSettings,
    models: list[str] | None,
    guess: str | None,
) -> SettingsError:
    """Build the error for an address where nothing is asked in this way."""
    address = settings.base_url
    alternative = "the completions endpoint" if settings.chat else "chat="
    if _blames_model(error):
        way_out = f"check model=, or try {alternative}"
        names = [wire.shorten(name) for name in models or []]
        if names and settings.model not in names:
            listed = ", ".join(map(repr, names[:_MOST_LISTED]))
            way_out = f"give a model= that it lists, such as {listed}"
        return SettingsError(
            f"the endpoint {address} refuses model {settings.model!r} ({error});"
            f" {way_out}"
        )
    if models is not None:
        kind = "chats" if settings.chat else "completions"
        return SettingsError(
            f"the endpoint {address} lists models and takes no {kind} ({error}); try"
            f" {alternative}"
        )
    way_out = f"check base_url=, which usually ends with /v1, or try {alternative}"
    if guess is not None:
        way_out = _GIVE.format(guess)
    return SettingsError(
        f"the endpoint {address} has nothing at that address ({error}); {way_out}"
    )


def _explain_refusal(
    error: RefusedError, settings: wire.ClientSettings
) -> SettingsError | EngineError:
    """Build the error for an endpoint that refuses every request."""
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
    elif 300 <= status < 400:
        way_out = "set base_url= to the address that answers by itself"
    return SettingsError(f"{start}; {way_out}")
