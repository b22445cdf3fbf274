"""Sampling with the transformers library, on any machine that has torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import AutoTokenizer, GenerationConfig

from mia_batch.errors import EngineError
from mia_batch.evidence.engines.adapted import embed_prompts
from mia_batch.evidence.engines.ends import cut_at_end, end_token_ids
from mia_batch.evidence.engines.machine import available_memory
from mia_batch.evidence.engines.pretrained import load_pretrained, ran_out_of_memory
from mia_batch.evidence.engines.requests import why_impossible
from mia_batch.evidence.engines.rows import Row, Shape, take_batch
from mia_batch.evidence.engines.sampler import SeededSampler
from mia_batch.evidence.request import Answer
from mia_batch.models.adapter import tokenizer_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

    from mia_batch.evidence.request import Continuation, Engine, EngineInfo, EngineSpec, Request

__all__ = ["TransformersSamples", "start"]

_SEQUENCES_ON_CPU = 64
_SEQUENCES_ON_ACCELERATOR = 256
_SHARE_OF_MEMORY = 0.5  # of what is left beside the weights, on a CPU
_DRAWING_BYTES = 32  # per row and token of the vocabulary: logits, probabilities, noise


def start(spec: EngineSpec) -> Engine:
    """Start what continues prompts, or what gives log-probabilities."""
    if spec.kind == "samples":
        return TransformersSamples(spec)
    from mia_batch.evidence.engines.transformers_logprobs import TransformersLogprobs

    return TransformersLogprobs(spec)


class TransformersSamples:
    """Batches of left-padded prompts, each continuation drawn with its own seeded generator.

    Of ``engine_args``, ``batch_size`` (most sequences at once) and ``max_model_len`` are meant for
    this class, all others for ``AutoModelForCausalLM.from_pretrained``.
    """

    def __init__(self, spec: EngineSpec) -> None:
        loaded = load_pretrained(spec)
        self._decoding = spec.decoding
        self._model = loaded.model
        self._prompted = loaded.prompted
        self._ends = _find_ends(self._model, spec)
        self._replace_generation_config()
        text_config = self._model.config.get_text_config()
        self._vocab_size = loaded.vocab_size
        self._token_bytes = _numbers_per_token(text_config) * self._model.dtype.itemsize
        self._memory = int(available_memory() * _SHARE_OF_MEMORY)
        self._batch_size = loaded.batch_size or self._default_batch_size()
        self._info = loaded.describe(self._batch_size)
        self._rows: list[Row] = []
        self._outputs: dict[int, dict[int, Continuation]] = {}
        self._refused: list[Answer] = []

    @property
    def info(self) -> EngineInfo:
        """What the started engine says of itself."""
        return self._info

    def submit(self, request: Request) -> None:
        """Queue a request; one that cannot be answered comes back with its reason."""
        room = self._info.max_model_len
        reason = why_impossible(request, max_model_len=room, vocab_size=self._vocab_size)
        if reason is not None:
            refused = Answer(request_id=request.request_id, error=reason)
            self._refused.append(refused)
            return
        max_tokens = min(request.max_tokens, room - len(request.context_ids or ()))
        self._outputs[request.request_id] = {}
        self._rows.extend(
            Row(request=request, index=index, max_tokens=max_tokens) for index in range(request.n)
        )

    def step(self) -> list[Answer]:
        """Decode one batch. Raises `EngineError` if memory does not suffice for one sequence."""
        complete, self._refused = self._refused, []
        batch = take_batch(self._rows, self._fits)
        if not batch:
            return complete
        decoded = self._try_to_decode(batch)
        if decoded is None:
            self._put_back(batch)
            return complete
        for row, output in zip(batch, decoded, strict=True):
            outputs = self._outputs[row.request.request_id]
            outputs[row.index] = output
            if len(outputs) == row.request.n:
                complete.append(self._collect(row.request))
        return complete

    def close(self) -> None:
        """Free the model."""
        del self._model

    def _default_batch_size(self) -> int:
        on_cpu = self._model.device.type == "cpu"
        return _SEQUENCES_ON_CPU if on_cpu else _SEQUENCES_ON_ACCELERATOR

    def _replace_generation_config(self) -> None:
        """Nothing of the checkpoint's own ``generation_config.json`` reaches ``generate``."""
        for model in filter(None, (self._model, self._prompted)):
            model.generation_config = GenerationConfig()

    def _fits(self, shape: Shape) -> bool:
        """Whether a batch fits the context and main memory; an accelerator says so itself."""
        n_tokens = shape.n_prompt + shape.n_output
        if shape.n_rows > self._batch_size or n_tokens > self._info.max_model_len:
            return False
        if self._model.device.type != "cpu":
            return True
        row_bytes = n_tokens * self._token_bytes + self._vocab_size * _DRAWING_BYTES
        return bool(shape.n_rows * row_bytes <= self._memory)

    def _put_back(self, batch: list[Row]) -> None:
        """After memory ran out: the same rows again, half as many at once."""
        if len(batch) == 1:
            msg = (
                f"memory does not suffice for one sequence of {len(batch[0].prompt)} + "
                f"{batch[0].max_tokens} tokens; set a smaller max_model_len through --engine-arg, "
                "or a smaller dtype"
            )
            raise EngineError(msg)
        self._batch_size = len(batch) // 2
        self._rows[:0] = batch

    def _try_to_decode(self, batch: list[Row]) -> list[Continuation] | None:
        """Decode a batch; None where memory ran out."""
        try:
            return self._decode(batch)
        except RuntimeError as error:
            if ran_out_of_memory(error):
                return None
            raise

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
        """Say what continues prompts, what it is given, and how much of that comes back first."""
        if self._prompted is not None and (read := embed_prompts(self._prompted, prompts)):
            given = dict(zip(("inputs_embeds", "attention_mask"), read, strict=True))
            return self._model.generate, given, 0
        token_ids, mask = _pad_left(prompts, self._model.device)
        whole = self._model if self._prompted is None else self._prompted
        given = {"inputs": token_ids, "attention_mask": mask}
        return whole.generate, given, token_ids.shape[1]

    def _collect(self, request: Request) -> Answer:
        outputs = self._outputs.pop(request.request_id)
        in_order = [outputs[index] for index in range(request.n)]
        return Answer(request_id=request.request_id, continuations=in_order)


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


def _pad_left(prompts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, prompts by the longest prompt's length."""
    width = max(len(prompt) for prompt in prompts)
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)
