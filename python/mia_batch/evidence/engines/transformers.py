"""Samples and log-probabilities by transformers, with tokens drawn by seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedModel

from mia_batch.errors import EngineError, SettingsError
from mia_batch.evidence.engines.pretrained import (
    NoisyEmbeddings,
    embed_prompts,
    exchange_adapter,
    load_pretrained,
    ran_out_of_memory,
)
from mia_batch.evidence.engines.registry import (
    Row,
    available_memory,
    cut_at_end,
    end_token_ids,
    n_tokens,
    put_back,
    take_batch,
    text_answer,
    why_impossible,
)
from mia_batch.evidence.request import (
    Answer,
    Continuation,
    Decoding,
    Engine,
    EngineSpec,
    Request,
)
from mia_batch.models.weights import cause_of, read_adapter, tokenizer_source

if TYPE_CHECKING:
    from peft import PeftModel


class SeededSampler:
    """Draws each row of a batch with a random stream of its own.

    A logits processor for greedy generation: it leaves the drawn token alone in the running. The
    order of operations (temperature, top-k, top-p, softmax in float32, noise in float64) is that of
    vLLM's float64 sampler, so that both draw the same tokens from the same logits.
    ``argmax(p / e)`` with ``e`` exponential draws from ``p``: the exponential race, or Gumbel-max
    trick, Maddison et al. (2014), section 2. A seed of None takes the most likely token.
    """

    def __init__(
        self, decoding: Decoding, seeds: Sequence[int | None], device: torch.device
    ) -> None:
        self._temperature = torch.tensor(decoding.temperature, dtype=torch.float32, device=device)
        self._top_k = decoding.top_k
        self._top_p = decoding.top_p
        self._generators = [
            None
            if seed is None or decoding.temperature == 0
            else torch.Generator(device).manual_seed(seed)
            for seed in seeds
        ]

    # The library calls with both: one of them is not used.
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        """Return 0 at the drawn token of each row, minus infinity elsewhere."""
        drawn = scores.argmax(dim=-1, keepdim=True)
        if rows := [row for row, generator in enumerate(self._generators) if generator]:
            drawn[rows] = self._draw(scores[rows])
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)

    def _draw(self, scores: Tensor) -> Tensor:
        logits = keep_likeliest(scores / self._temperature, self._top_k, self._top_p)
        noise = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
        for row, generator in zip(noise, filter(None, self._generators), strict=True):
            row.exponential_(generator=generator)
        race = noise.reciprocal_().mul_(logits.softmax(dim=-1, dtype=torch.float32))
        return race.argmax(dim=-1, keepdim=True)


def keep_likeliest(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Put every token out of the running that top-k, then top-p, leaves out.

    Of tokens that tie with the k-th likeliest all stay; top-p keeps the smallest set of likeliest
    tokens with this mass. What is left out is minus infinity.
    """
    if 0 < top_k < logits.shape[-1]:
        weakest = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < weakest, -torch.inf)
    if top_p >= 1.0:
        return logits
    ascending, order = logits.sort(dim=-1)
    least = 1 - torch.tensor(top_p, dtype=logits.dtype, device=logits.device)
    left_out = ascending.softmax(dim=-1).cumsum(dim=-1) <= least
    left_out[:, -1] = False
    return logits.scatter(1, order, ascending.masked_fill(left_out, -torch.inf))


VOCABULARY = frozenset({"vocabulary_mean", "vocabulary_variance"})
"""Columns that are computed together."""

_LEAST = -200.0  # of a logit below the largest: exp is 0 there in float32


def score_tokens(
    logits: Tensor, token_ids: Tensor, columns: frozenset[str], decoding: Decoding
) -> dict[str, Tensor]:
    """Log-probabilities of tokens, and ``columns`` beside them, one entry a token.

    ``logits`` are float32, tokens by vocabulary, and overwritten. Log-probabilities are differences
    to the largest logit, and the variance is that of differences to the mean, so that float32 loses
    nothing.
    """
    own = logits.gather(1, token_ids[:, None])
    top = logits.amax(1, keepdim=True)
    probabilities = logits.softmax(1)
    log_top = probabilities.amax(1, keepdim=True).log_()  # of the likeliest token: never underflows
    found = {"logprob": own - top + log_top}
    if "rank" in columns:
        found["rank"] = (logits > own).sum(1, keepdim=True) + 1
    if "support_mass" in columns:
        kept = keep_likeliest(logits, decoding.top_k, decoding.top_p)
        mass = (kept.logsumexp(1, keepdim=True) - top + log_top).clamp_(max=0.0)
        left_out = kept.gather(1, token_ids[:, None]).isneginf()
        found["support_mass"] = mass.masked_fill_(left_out, torch.nan)
    if columns & VOCABULARY:
        below_top = logits.sub_(top).clamp_(min=_LEAST)  # 0 times minus infinity is no number
        mean = (probabilities * below_top).sum(1, keepdim=True)
        distance = below_top.sub_(mean)
        found["vocabulary_mean"] = mean + log_top
        found["vocabulary_variance"] = (
            probabilities.mul_(distance).mul_(distance).sum(1, keepdim=True)
        )
    return {name: values[:, 0] for name, values in found.items()}


def entry_bytes(columns: frozenset[str], decoding: Decoding) -> int:
    """Bytes that one entry of the logits takes at most, with all that is computed from it."""
    return 48 if "support_mass" in columns and decoding.top_p < 1.0 else 16


# Logits of any causal language model, a chunk of positions at a time.
#
# The body of a model runs once over a batch, its head over one chunk after the other, so that the
# logits of a whole batch never exist. Whether a model can be taken apart is tested on a short
# text.

_TEST_TOKENS = 12
_TEST_CHUNK = 5
_LENGTH_DEPENDENT = {"dynamic", "longrope"}  # kinds of rotary embedding that see the longest text
_DIFFERENCE = {torch.float32: 1e-3}  # that rounding explains, of logits relative to the largest
_DIFFERENCE_OF_HALVES = 2e-2


class ChunkedLogits:
    """A causal language model whose logits come in chunks.

    No attention mask is given: a token looks only at those before it, and padding is on the right.

    ``prompted`` is the same model with virtual tokens before every text, whose logits are left out.
    Raises `EngineError` if the model can only give all logits at once.
    """

    def __init__(self, model: PreTrainedModel, prompted: PeftModel | None = None) -> None:
        self._model = model
        self._whole = model if prompted is None else prompted
        self._virtual = 0  # positions before the first token's
        self._apart: _Apart | None = _Apart(model, prompted)
        with torch.inference_mode():
            self._test()

    @property
    def may_batch(self) -> bool:
        return self._apart is not None

    @property
    def may_pad(self) -> bool:
        rope = getattr(self._model.config.get_text_config(), "rope_parameters", None) or {}
        kinds = [rope, *(each for each in rope.values() if isinstance(each, dict))]
        return not {str(each.get("rope_type")) for each in kinds} & _LENGTH_DEPENDENT

    def chunks(
        self, token_ids: Tensor, places: Tensor, most: int, embeddings: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Yield the logits (float32) of ``most`` positions of the flattened batch at a time.

        ``embeddings`` are those of the tokens, in place of the model's own. A batch has one text
        where ``may_batch`` is false. The caller may overwrite what it gets.
        """
        read = {"input_ids": token_ids} if embeddings is None else {"inputs_embeds": embeddings}
        if self._apart is not None:
            hidden = self._apart.hidden(read, token_ids.shape[1]).flatten(0, 1)[places]
            for rows in torch.split(hidden, most):
                yield self._apart.logits(rows).float()
        else:  # the body runs again for every chunk
            for chunk in torch.split(places, most):
                kept = chunk + self._virtual
                output = self._whole(**read, use_cache=False, logits_to_keep=kept)
                yield output.logits[0].float()

    def _test(self) -> None:
        """Compare with the model's own logits; take the next best way where they differ."""
        vocab_size = self._model.config.get_text_config().vocab_size
        text = torch.arange(5, 5 + 37 * _TEST_TOKENS, 37, device=self._model.device) % vocab_size
        own = self._whole(text[None], use_cache=False).logits[0].float()
        self._virtual = len(own) - _TEST_TOKENS
        own = own[self._virtual :]
        if self._why_wrong(text[None], own) is not None:
            self._apart = None
            if (reason := self._why_wrong(text[None], own)) is not None:
                raise EngineError(
                    f"the transformers engine cannot compute the logits of a "
                    f"{type(self._model).__name__} in parts ({reason}); take engine vllm"
                )

    def _why_wrong(self, text: Tensor, own: Tensor) -> str | None:
        """Why chunks are not the model's own logits; None where they are."""
        places = torch.arange(_TEST_TOKENS, device=text.device)
        try:
            found = torch.cat(list(self.chunks(text, places, _TEST_CHUNK)))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever code of a stranger's model says
            return cause_of(error)
        if found.shape != own.shape:
            return "their shape is another"
        share = _DIFFERENCE.get(self._model.dtype, _DIFFERENCE_OF_HALVES)
        scale = own[own.isfinite()].abs().max().item() if own.isfinite().any() else 0.0
        same = torch.allclose(found, own, rtol=share, atol=share * scale, equal_nan=True)
        return None if same else "they differ from its own"


class _Apart:
    """Body and head of a model, one without the other."""

    def __init__(self, model: PreTrainedModel, prompted: PeftModel | None) -> None:
        self._model = model
        self._prompted = prompted
        self._body = model.get_decoder()
        self._run_body: Callable[..., object] = self._body.forward
        self._body.forward = self._forward
        self._given: Any = None
        self._kind: Any = None
        self._output: Any = None  # of the body, when peft has run it

    def hidden(self, read: dict[str, Tensor], n_tokens: int) -> Tensor:
        if self._prompted is None:
            output: Any = self._body(**read, use_cache=False)
        else:
            self._prompted(**read, use_cache=False, logits_to_keep=1)
            output, self._output = self._output, None
        self._kind = type(output)
        hidden: Tensor = output.last_hidden_state[:, -n_tokens:]
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        self._given = self._kind(last_hidden_state=hidden[None])
        placeholders = torch.zeros((1, len(hidden)), dtype=torch.long, device=self._model.device)
        try:
            logits: Tensor = self._model(placeholders, use_cache=False).logits
        finally:
            self._given = None
        return logits[0]

    def _forward(self, *args: object, **kwargs: object) -> object:
        """Stand in for the body while the head is asked."""
        if self._given is not None:
            return self._given
        output = self._run_body(*args, **kwargs)
        self._output = None if self._prompted is None else output
        return output


# Sampling with the transformers library, on any machine that has torch.

_SEQUENCES_ON_CPU = 64
_SEQUENCES_ON_ACCELERATOR = 256
_SHARE_OF_MEMORY = 0.5  # of what is left beside the weights, on a CPU
_DRAWING_BYTES = 32  # per row and token of the vocabulary: logits, probabilities, noise


def start(spec: EngineSpec) -> Engine:
    return TransformersSamples(spec) if spec.kind == "samples" else TransformersLogprobs(spec)


class TransformersSamples:
    """Batches of left-padded prompts, each continuation drawn with its own seeded generator.

    ``batch_size`` of the ``engine_args`` is the most sequences at once.
    """

    def __init__(self, spec: EngineSpec) -> None:
        loaded = load_pretrained(spec)
        self._decoding = spec.decoding
        self._model = loaded.model
        self._prompted = loaded.prompted
        self._ends = _find_ends(self._model, spec)
        for model in filter(None, (self._model, self._prompted)):
            model.generation_config = GenerationConfig()  # nothing of the checkpoint's own acts
        text_config = self._model.config.get_text_config()
        self._vocab_size = loaded.vocab_size
        self._token_bytes = _numbers_per_token(text_config) * self._model.dtype.itemsize
        self._memory = int(available_memory() * _SHARE_OF_MEMORY)
        on_cpu = self._model.device.type == "cpu"
        most = _SEQUENCES_ON_CPU if on_cpu else _SEQUENCES_ON_ACCELERATOR
        self._batch_size = loaded.batch_size or most
        self.info = loaded.describe(self._batch_size)
        self._rows: list[Row] = []
        self._outputs: dict[int, dict[int, Continuation]] = {}
        self._refused: list[Answer] = []

    def submit(self, request: Request) -> None:
        room = self.info.max_model_len
        reason = why_impossible(request, max_model_len=room, vocab_size=self._vocab_size)
        if reason is not None:
            self._refused.append(request.failed(reason))
            return
        max_tokens = min(request.max_tokens, room - len(request.context_ids or ()))
        self._outputs[request.request_id] = {}
        self._rows.extend(
            Row(request=request, index=index, max_tokens=max_tokens) for index in range(request.n)
        )

    def step(self) -> list[Answer]:
        """Decode one batch. Raises `EngineError` if memory does not suffice for one sequence."""
        complete, self._refused = self._refused, []
        batch = take_batch(self._rows, lambda row: (len(row.prompt), row.max_tokens), self._fits)
        if not batch:
            return complete
        try:
            decoded = self._decode(batch)
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            what = f"one sequence of {len(batch[0].prompt)} + {batch[0].max_tokens}"
            self._batch_size = put_back(batch, self._rows, what, "or")
            return complete
        for row, output in zip(batch, decoded, strict=True):
            outputs = self._outputs[row.request.request_id]
            outputs[row.index] = output
            if len(outputs) == row.request.n:
                in_order = [outputs[index] for index in range(row.request.n)]
                number = row.request.request_id
                complete.append(Answer(request_id=number, continuations=in_order))
                del self._outputs[number]
        return complete

    def close(self) -> None:
        del self._model

    def _fits(self, n_rows: int, n_prompt: int, n_output: int) -> bool:
        """Whether a batch fits the context and main memory; an accelerator says so itself."""
        n_tokens = n_prompt + n_output
        if n_rows > self._batch_size or n_tokens > self.info.max_model_len:
            return False
        if self._model.device.type != "cpu":
            return True
        row_bytes = n_tokens * self._token_bytes + self._vocab_size * _DRAWING_BYTES
        return bool(n_rows * row_bytes <= self._memory)

    @torch.inference_mode()
    def _decode(self, batch: list[Row]) -> list[Continuation]:
        device = self._model.device
        generate, given, width = self._opening([row.prompt for row in batch])
        sampler = SeededSampler(self._decoding, [row.seed for row in batch], device)
        budgets = torch.tensor([row.max_tokens for row in batch], device=device)
        sequences = generate(
            **given,
            generation_config=GenerationConfig(
                max_new_tokens=max(row.max_tokens for row in batch), do_sample=False, pad_token_id=0
            ),
            logits_processor=[sampler],
            stopping_criteria=[_Finished(width, budgets, sorted(self._ends))],
        )
        decoded = sequences[:, width:].tolist()
        return [
            cut_at_end(ids, self._ends, row.max_tokens)
            for row, ids in zip(batch, decoded, strict=True)
        ]

    def _opening(
        self, prompts: list[list[int]]
    ) -> tuple[Callable[..., Tensor], dict[str, Tensor], int]:
        if self._prompted is not None and (read := embed_prompts(self._prompted, prompts)):
            tensors = dict(zip(("inputs_embeds", "attention_mask"), read, strict=True))
            return self._model.generate, tensors, 0
        width, device = max(map(len, prompts)), self._model.device
        ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        whole = self._model if self._prompted is None else self._prompted
        given = {"inputs": ids, "attention_mask": mask}
        tensors = {name: torch.tensor(rows, device=device) for name, rows in given.items()}
        return whole.generate, tensors, width


class _Finished:
    """Which rows of a batch need no further token."""

    def __init__(self, prompt_width: int, budgets: Tensor, ends: list[int]) -> None:
        self._prompt_width = prompt_width
        self._budgets = budgets
        self._ends = torch.tensor(ends, dtype=torch.long, device=budgets.device)
        self._done = torch.zeros_like(budgets, dtype=torch.bool)

    # The library calls with both: one of them is not used.
    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:  # noqa: ARG002
        self._done |= torch.isin(input_ids[:, -1], self._ends)
        self._done |= self._budgets <= input_ids.shape[1] - self._prompt_width
        return self._done


def _find_ends(model: PreTrainedModel, spec: EngineSpec) -> frozenset[int]:
    source, revision = tokenizer_source(spec.model, spec.revision)
    tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    return end_token_ids(
        tokenizer.eos_token_id,
        model.config.get_text_config().eos_token_id,
        model.generation_config.eos_token_id,
    )


def _numbers_per_token(config: PreTrainedConfig) -> int:
    """Count the numbers that one token of a batch needs in memory, roughly.

    Keys and values of every layer, twice, since they are copied as they grow, and what one layer
    computes from the token.
    """
    heads = getattr(config, "num_attention_heads", 1)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(4 * config.num_hidden_layers * kv_heads * head_size + 16 * config.hidden_size)


# Log-probabilities with the transformers library, on any machine that has torch.

_TEXTS = 256
_TOKENS_ON_CPU = 2048
_TOKENS_ON_ACCELERATOR = 32768
_CHUNK_ON_CPU = 128  # positions whose logits a processor's caches hold
_LARGEST_BLOCK = 31 << 20  # that glibc learns from; its limit is 32 MiB


class TransformersLogprobs:
    """Batches of right-padded texts of like length; the head works on chunks of their tokens.

    Texts with noise are in batches of their own, see `NoisyEmbeddings`; their log-probabilities are
    those of the true tokens. ``batch_size`` of the ``engine_args`` is the most texts at once.
    """

    def __init__(self, spec: EngineSpec) -> None:
        self._columns = _whole(spec.columns)
        self._logits_bytes = spec.logits_bytes
        self._decoding = spec.decoding
        if "support_mass" in self._columns and spec.decoding.temperature != 1.0:
            raise SettingsError(
                "setting 'temperature': the mass that decoding keeps is defined at temperature 1; "
                "leave the setting at 1"
            )
        self._loaded = loaded = load_pretrained(spec)
        self._device: torch.device = loaded.model.device
        self._vocab_size = loaded.vocab_size
        self._noisy = NoisyEmbeddings(loaded.model)
        self._logits = ChunkedLogits(loaded.model, loaded.prompted)
        if self._on_cpu:
            # So that the memory of one chunk serves the next, since fresh pages cost time: glibc
            # gives freed blocks back at once, up to the size of the largest that it ever freed.
            torch.empty(_LARGEST_BLOCK, dtype=torch.uint8)
        self._most_texts = loaded.batch_size or _TEXTS if self._logits.may_batch else 1
        self.info = loaded.describe(self._most_texts)
        self._queues: dict[tuple[frozenset[str], bool], list[Request]] = defaultdict(list)
        self._refused: list[Answer] = []

    def turn_to(self, model: str) -> None:
        adapter, added = read_adapter(model), self._loaded.added
        if adapter is None or added is None:
            raise EngineError(f"{model!r} is no adapter, which alone can take the place of another")
        exchange_adapter(added, adapter)
        self._loaded.check(model)
        self._logits = ChunkedLogits(self._loaded.model, self._loaded.prompted)

    def submit(self, request: Request) -> None:
        reason = why_impossible(
            request, max_model_len=self.info.max_model_len, vocab_size=self._vocab_size
        )
        if reason is None:
            columns = self._columns & _whole(request.columns)
            self._queues[columns, request.noise != 0].append(request)
        else:
            self._refused.append(request.failed(reason))

    def step(self) -> list[Answer]:
        """Work on one batch. Raises `EngineError` if memory does not suffice for one text."""
        complete, self._refused = self._refused, []
        queue = max(self._queues.values(), key=len, default=[])
        most = _TOKENS_ON_CPU if self._on_cpu else _TOKENS_ON_ACCELERATOR
        batch = take_batch(
            queue,
            lambda request: (n_tokens(request),),
            lambda n_texts, longest: n_texts <= self._most_texts and n_texts * longest <= most,
            may_pad=self._logits.may_pad,
        )
        if batch:
            try:
                columns = self._columns & _whole(batch[0].columns)
                complete.extend(self._answers(batch, columns))
            except RuntimeError as error:
                if not ran_out_of_memory(error):
                    raise
                what = f"one text of {n_tokens(batch[0])}"
                self._most_texts = put_back(batch, queue, what, "a smaller logits_memory or")
        return complete

    def close(self) -> None:
        del self._loaded, self._logits, self._noisy

    @property
    def _on_cpu(self) -> bool:
        return self._device.type == "cpu"

    @torch.inference_mode()
    def _answers(self, batch: list[Request], columns: frozenset[str]) -> list[Answer]:
        texts = [[*(each.context_ids or ()), *(each.text_ids or ())] for each in batch]
        width = max(map(len, texts))
        token_ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
        scored = [
            range(len(request.context_ids or ()), len(text))
            for request, text in zip(batch, texts, strict=True)
        ]
        places = torch.tensor(
            [row * width + place for row, each in enumerate(scored) for place in each]
        )
        wanted = token_ids.flatten()[places].to(self._device)
        # The logits of the token before give a token's probability, or of what all of them answer.
        starts = [
            row * width + (each.start if request.question else place)
            for row, (request, each) in enumerate(zip(batch, scored, strict=True))
            for place in each
        ]
        before = torch.tensor(starts).to(self._device) - 1
        token_ids = token_ids.to(self._device)
        embeddings = self._noisy(token_ids, batch) if batch[0].noise else None
        position_bytes = self._vocab_size * entry_bytes(columns, self._decoding)
        most = max(1, self._logits_bytes // position_bytes)
        if self._on_cpu:
            most = min(most, _CHUNK_ON_CPU)
        parts = [
            score_tokens(logits, chunk.to(logits.device), columns, self._decoding)
            for logits, chunk in zip(
                self._logits.chunks(token_ids, before, most, embeddings),
                torch.split(wanted, most),
                strict=True,
            )
        ]
        found = {name: torch.cat([part[name] for part in parts]).cpu().numpy() for name in parts[0]}
        ends = accumulate(map(len, scored), initial=0)
        if "rank" in found:
            found["rank"] = found["rank"].astype(np.uint32)
        return [
            text_answer(request, {name: values[start:end] for name, values in found.items()})
            for request, (start, end) in zip(batch, pairwise(ends), strict=True)
        ]


def _whole(columns: frozenset[str]) -> frozenset[str]:
    return columns | VOCABULARY if columns & VOCABULARY else columns
