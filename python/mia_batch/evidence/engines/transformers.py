"""Samples and log-probabilities by transformers, with tokens drawn by seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    __version__,
)

from mia_batch.errors import EngineError, SettingsError, describe_error
from mia_batch.evidence.engines import registry
from mia_batch.evidence.engines.logits import (
    SeededSampler,
    complete_columns,
    entry_bytes,
    score_tokens,
)
from mia_batch.evidence.request import (
    Answer,
    Continuation,
    Engine,
    EngineInfo,
    EngineSpec,
    Request,
)
from mia_batch.models.weights import (
    Adapter,
    read_adapter,
    tokenizer_source,
    weights_source,
)

if TYPE_CHECKING:
    from peft import PeftModel

# Models and adapters; these stay apart from the weights of their base and are never
# merged.

_DEFAULT_CONTEXT = 2048  # of models whose configuration names none


class Pretrained:
    """A model as a specification says, loaded and checked."""

    # Of ``engine_args``, ``batch_size`` and ``max_model_len`` stay here, all else goes
    # to ``AutoModelForCausalLM.from_pretrained``. The modules of an adapter are in
    # ``model``, ``added`` is what peft makes of both. ``prompted`` puts its virtual
    # tokens before every text, if it has any; ``max_model_len`` does not count them.

    # With ``loaded`` it goes on with the weights of another engine.

    def __init__(self, spec: EngineSpec, loaded: Pretrained | None = None) -> None:
        if spec.tensor_parallel_size != 1:
            raise SettingsError(
                "tensor_parallel_size: the transformers engine runs on one accelerator;"
                " take engine vllm, or leave the setting at 1"
            )
        arguments = dict(spec.engine_args)
        self.batch_size = _take_positive(arguments, "batch_size")
        max_model_len = _take_positive(arguments, "max_model_len")
        adapter = read_adapter(spec.model)
        if loaded is None:
            self.model = _load(spec, arguments)
            self.added = None if adapter is None else _add_adapter(self.model, adapter)
        else:
            self.model, self.added = loaded.model, loaded.added
        self.prompted = self.added if adapter and adapter.virtual_tokens else None
        self.model = self.model if self.added is None else self.added.get_base_model()
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        config = self.model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        context = _context(config) - (adapter.virtual_tokens if adapter else 0)
        if max_model_len is not None and max_model_len > context:
            raise SettingsError(
                f"engine_arg: max_model_len is above the model's context of {context}"
            )
        self.max_model_len = max_model_len or context
        self.device: torch.device = self.model.device
        self.on_cpu = self.device.type == "cpu"
        if loaded is None:
            self.check(spec.model, spec.revision)

    @torch.inference_mode()
    def check(
        self,
        model: str,
        revision: str | None = None,
    ) -> None:
        """Check what has been loaded, see `check_health`; texts are read one by one."""
        whole = self.prompted or self.model
        logprobs = []
        for text in registry.health_check_texts(self.vocab_size, self.max_model_len):
            token_ids = torch.tensor([text], device=self.device)
            logits = whole(token_ids, use_cache=False).logits[0, -len(text) : -1]
            following = token_ids[0, 1:, None]
            values = logits.float().log_softmax(-1).gather(1, following)[:, 0]
            logprobs.append(values.cpu().numpy())
        registry.check_health(model, revision, self.dtype, logprobs)

    def exchange(self, model: str) -> None:
        """Put the weights of an adapter in the place of another's with the same settings."""
        from peft import (
            get_peft_model_state_dict,
            load_peft_weights,
            set_peft_model_state_dict,
        )

        adapter = read_adapter(model)
        added = self.added
        if adapter is None or added is None:
            raise EngineError(
                f"{model!r} is no adapter, which alone can take the place of another"
            )
        weights = load_peft_weights(adapter.folder, device=str(self.device))
        present = get_peft_model_state_dict(added, save_embedding_layers=False)
        if weights.keys() != present.keys():
            raise EngineError(
                f"the adapter {model!r} has other weights than its settings say"
            )
        set_peft_model_state_dict(added, weights)
        self.check(model)


def _load(
    spec: EngineSpec,
    arguments: dict[str, Any],
) -> PreTrainedModel:
    on_cpu = not torch.cuda.is_available()
    dtype = "float32" if on_cpu and spec.dtype == "auto" else spec.dtype
    source, revision = weights_source(spec.model, spec.revision)
    options = {"revision": revision, "dtype": dtype, **arguments}
    try:
        model = AutoModelForCausalLM.from_pretrained(source, **options)
        if "device_map" not in arguments:
            model = model.to("cpu" if on_cpu else "cuda")
    except torch.OutOfMemoryError as error:
        raise EngineError(
            f"the weights of {spec.model!r} do not fit the accelerator's memory; take a"
            " smaller dtype, or engine vllm with a larger tensor_parallel_size"
        ) from error
    except Exception as error:
        unknown = [key for key in arguments if repr(key) in str(error)]
        if isinstance(error, TypeError) and unknown:
            msg = f"engine_arg: transformers knows no {unknown[0]!r}; leave it out"
            raise SettingsError(msg) from error
        msg = f"the transformers engine cannot load {spec.model!r} ({describe_error(error)})"
        raise EngineError(msg) from error
    return model.eval()


def _add_adapter(
    model: PreTrainedModel,
    adapter: Adapter,
) -> PeftModel:
    from peft import PeftModel

    try:
        added = PeftModel.from_pretrained(
            model, adapter.folder, torch_device=str(model.device)
        )
    except Exception as error:  # every library behind it raises its own kind
        raise EngineError(
            f"the adapter {adapter.folder!r} cannot be put on {adapter.base!r}"
            f" ({describe_error(error)}); save it again, or correct its"
            " base_model_name_or_path"
        ) from error
    return added.eval()


def _take_positive(
    arguments: dict[str, Any],
    name: str,
) -> int | None:
    value = arguments.pop(name, None)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise SettingsError(
            f"engine_arg: {name} is {value!r}; give a whole number above 0"
        )
    return value


def _context(config: PreTrainedConfig) -> int:
    """Return the tokens of a model's context, by any of the names that it has for them."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    for name in names:
        length = getattr(config, name, None)
        if length is not None:
            return int(length)
    return _DEFAULT_CONTEXT


# What both engines of transformers share: a queue, batches of like lengths, and memory
# that may run out.

Item = TypeVar("Item")


def take_batch(
    queue: list[Item],
    lengths: Callable[[Item], tuple[int, ...]],
    fits: Callable[..., bool],
    padding: float = 1.0,
) -> list[Item]:
    """Pop the oldest item and those most like it in length from a queue, while they fit."""
    # ``padding`` is the largest share of a batch that may be padding; one item always
    # fits.
    if not queue:
        return []
    oldest = lengths(queue[0])
    largest = oldest
    batch: list[Item] = []
    n_tokens = 0

    def difference(item: Item) -> int:
        pairs = zip(lengths(item), oldest, strict=True)
        return sum(abs(length - target) for length, target in pairs)

    for item in sorted(queue, key=difference):
        largest = tuple(map(max, largest, lengths(item)))
        n_tokens += sum(lengths(item))
        n_items = len(batch) + 1
        room = n_items * sum(largest)
        is_dense = room - n_tokens <= padding * room
        if batch and not (fits(n_items, *largest) and is_dense):
            break
        batch.append(item)
    taken_ids = set(map(id, batch))
    queue[:] = [item for item in queue if id(item) not in taken_ids]
    return batch


class _BatchEngine(Pretrained):
    """An engine that answers one batch of items after the other."""

    item_name: str  # of what a batch must at least have room for
    way_out: str  # where it has none
    _accept: Callable[[Request], None]
    _lengths: Callable[[Any], tuple[int, ...]]
    _fits: Callable[..., bool]
    _answers: Callable[[list[Any]], list[Answer]]

    def __init__(self, spec: EngineSpec, loaded: Pretrained | None = None) -> None:
        super().__init__(spec, loaded)
        self._decoding = spec.decoding
        self._queues: dict[object, list[Any]] = defaultdict(list)
        self._refused: list[Answer] = []
        self._padding = 1.0
        self.tell: Callable[[int], None] = lambda _: None

    def _start(self, max_items: int) -> None:
        self._max_items = max_items
        self.info = EngineInfo(
            engine="transformers",
            version=__version__,
            device="cpu" if self.on_cpu else torch.cuda.get_device_name(self.device),
            dtype=self.dtype,
            max_model_len=self.max_model_len,
            max_sequences=max_items,
        )

    def submit(self, request: Request) -> None:
        reason = registry.why_impossible(request, self.max_model_len, self.vocab_size)
        if reason is None:
            self._accept(request)
        else:
            self._refused.append(request.failed(reason))

    def step(self) -> list[Answer]:
        """Work on one batch. Raises `EngineError` if memory does not suffice for one item."""
        complete = self._refused
        self._refused = []
        queue = max(self._queues.values(), key=len, default=[])
        batch = take_batch(queue, self._lengths, self._fits, self._padding)
        if not batch:
            return complete + self._last()
        try:
            complete.extend(self._answers(batch))
        except RuntimeError as error:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # what torch hoards
            # There is no type of its own for it
            on_cpu = "can't allocate memory" in str(error)
            if not (isinstance(error, torch.OutOfMemoryError) or on_cpu):
                raise
            if len(batch) == 1:
                lengths = " + ".join(map(str, self._lengths(batch[0])))
                raise EngineError(
                    f"memory does not suffice for one {self.item_name} of {lengths} tokens;"
                    f" set a smaller max_model_len through --engine-arg, {self.way_out}"
                    " a smaller dtype"
                ) from error
            queue[:0] = batch
            self._max_items = len(batch) // 2
        return complete

    def _last(self) -> list[Answer]:
        """Return the answers that are still to come where nothing waits."""
        return []

    def close(self) -> None:
        vars(self).clear()


def send(
    tensor: Tensor,
    device: torch.device,
) -> Tensor:
    """Copy to a device without waiting for what it still works on."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def pad_rows(
    rows: Sequence[Sequence[int]],
    device: torch.device,
    *,
    on_left: bool = False,
    padding: int = 0,
) -> tuple[Tensor, Tensor]:
    """Put token ids into one tensor; the other has 1 where they are, 0 elsewhere."""
    side = "left" if on_left else "right"
    pad = partial(pad_sequence, batch_first=True, padding_side=side)
    tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
    ids = pad(tensors, padding_value=padding)
    mask = pad([torch.ones_like(tensor) for tensor in tensors])
    return send(ids, device), send(mask, device)


# Samples.


_SEQUENCES_ON_CPU = 64
_SEQUENCES_ON_ACCELERATOR = 256
_SHARE_OF_MEMORY = 0.5  # of what is left after the weights, on a CPU
_DRAWING_BYTES = 32  # per row and token of the vocabulary: logits, probabilities, noise


def start(spec: EngineSpec) -> Engine:
    if spec.kind == "samples":
        return TransformersSamples(spec)
    return TransformersLogprobs(spec)


class _Row(NamedTuple):
    """One continuation to decode: the ``number``-th of a request."""

    request: Request
    number: int
    max_tokens: int
    prompt: list[int]


def _find_end_token(spec: EngineSpec) -> int | None:
    if spec.end_token is not None:
        return spec.end_token
    source, revision = tokenizer_source(spec.model, spec.revision)
    tokenizer = AutoTokenizer.from_pretrained(
        source, revision=revision, trust_remote_code=False
    )
    end_token: int | None = tokenizer.eos_token_id
    return end_token


class TransformersSamples(_BatchEngine):
    """Batches of left-padded prompts, each continuation drawn with its own seeded generator."""

    item_name = "sequence"
    way_out = "or"

    def __init__(self, spec: EngineSpec, loaded: Pretrained | None = None) -> None:
        super().__init__(spec, loaded)
        config = self.model.config.get_text_config()
        self._ends = registry.end_token_ids(
            _find_end_token(spec),
            config.eos_token_id,
            self.model.generation_config.eos_token_id,
        )
        # Nothing of the checkpoint's own acts
        self.model.generation_config = GenerationConfig()
        if self.prompted is not None:
            self.prompted.generation_config = GenerationConfig()
        self._token_bytes = numbers_per_token(config) * self.model.dtype.itemsize
        self._memory = int(registry.available_memory() * _SHARE_OF_MEMORY)
        self._outputs: dict[int, dict[int, Continuation]] = defaultdict(dict)
        n_sequences = _SEQUENCES_ON_CPU if self.on_cpu else _SEQUENCES_ON_ACCELERATOR
        self._start(self.batch_size or n_sequences)

    def _accept(self, request: Request) -> None:
        prompt = request.context_ids or []
        room = self.max_model_len - len(prompt)
        max_tokens = min(request.max_tokens, room)
        rows = (_Row(request, i, max_tokens, prompt) for i in range(request.n))
        self._queues[None].extend(rows)

    def _lengths(self, item: _Row) -> tuple[int, int]:
        return len(item.prompt), item.max_tokens

    def _fits(
        self,
        n_items: int,
        *largest: int,
    ) -> bool:
        """Check that a batch fits the context and main memory; an accelerator says so itself."""
        n_tokens = sum(largest)
        if n_items > self._max_items or n_tokens > self.max_model_len:
            return False
        row_bytes = n_tokens * self._token_bytes + self.vocab_size * _DRAWING_BYTES
        return not self.on_cpu or n_items * row_bytes <= self._memory

    def _answers(self, batch: list[_Row]) -> list[Answer]:
        complete = []
        for row, output in zip(batch, self._decode(batch), strict=True):
            number = row.request.request_id
            n = row.request.n
            outputs = self._outputs[number]
            outputs[row.number] = output
            if len(outputs) == n:
                del self._outputs[number]
                continuations = [outputs[i] for i in range(n)]
                answer = Answer(request_id=number, continuations=continuations)
                complete.append(answer)
        return complete

    @torch.inference_mode()
    def _decode(self, batch: list[_Row]) -> list[Continuation]:
        generate, inputs, width = self._prepare([row.prompt for row in batch])
        budgets = [row.max_tokens for row in batch]
        max_tokens = torch.tensor(budgets, device=self.device)
        ends = torch.tensor(sorted(self._ends), dtype=torch.long, device=self.device)
        finished = torch.zeros_like(max_tokens, dtype=torch.bool)
        loops = [registry.build_loop_detector(row.request) for row in batch]

        def find_finished(
            token_ids: Tensor,
            _scores: Tensor,
            **_: object,
        ) -> Tensor:
            """Find the rows that need no further token."""
            self.tell(len(batch) - int(finished.sum()))
            latest = token_ids[:, -1]
            in_loop = [
                loop is not None and loop.add(token)
                for loop, token in zip(loops, latest.tolist(), strict=True)
            ]
            finished.logical_or_(torch.tensor(in_loop, device=self.device))
            is_full = max_tokens <= token_ids.shape[1] - width
            finished.logical_or_(torch.isin(latest, ends) | is_full)
            return finished

        config = GenerationConfig(
            max_new_tokens=max(budgets),
            do_sample=False,
            pad_token_id=0,
        )
        sequences = generate(
            **inputs,
            generation_config=config,
            logits_processor=[self._build_sampler(batch)],
            stopping_criteria=[find_finished],
        )
        continuations = []
        for ids, row in zip(sequences[:, width:].tolist(), batch, strict=True):
            loop = registry.build_loop_detector(row.request)
            continuation = registry.cut_at_end(ids, self._ends, row.max_tokens, loop)
            continuations.append(continuation)
        return continuations

    def _build_sampler(self, batch: list[_Row]) -> SeededSampler:
        seeds: list[int | None] = []
        for row in batch:
            seed = row.request.seed + row.number
            seeds.append(None if row.request.greedy else seed)
        nudges = [row.request.nudge for row in batch]
        return SeededSampler(self._decoding, seeds, self.device, nudges)

    def _prepare(
        self, prompts: list[list[int]]
    ) -> tuple[Callable[..., Tensor], dict[str, Tensor], int]:
        """Return what generates, its inputs, and how many tokens of its output it has read."""
        # Virtual tokens stand between padding and prompt, as embeddings; but those of
        # prefix tuning have none: peft puts them into the cache.
        prompted = self.prompted
        ids, mask = pad_rows(prompts, self.device, on_left=True)
        if prompted is None or prompted.active_peft_config.peft_type == "PREFIX_TUNING":
            generate = (prompted or self.model).generate
            return (
                generate,
                {
                    "inputs": ids,
                    "attention_mask": mask,
                },
                ids.shape[1],
            )
        embedded = self.model.get_input_embeddings()(ids)
        virtual = prompted.get_prompt(batch_size=1)[0].to(self.device, embedded.dtype)
        rows = []
        for row, gap in zip(embedded, (mask == 0).sum(1).tolist(), strict=True):
            rows.append(torch.cat([row[:gap], virtual, row[gap:]]))
        virtual_mask = mask.new_ones((len(mask), len(virtual)))
        inputs = {
            "inputs_embeds": torch.stack(rows),
            "attention_mask": torch.cat([mask, virtual_mask], dim=1),
        }
        return self.model.generate, inputs, 0


def numbers_per_token(config: PreTrainedConfig) -> int:
    """Count the numbers that one token of a batch needs in memory, roughly."""
    # Keys and values twice, as they are copied while they grow, and what one layer
    # computes from them.
    return int(2 * count_keys_and_values(config) + 16 * config.hidden_size)


def count_keys_and_values(config: PreTrainedConfig) -> int:
    """Count the keys and values that a model keeps of one token."""
    heads = getattr(config, "num_attention_heads", 1)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * config.num_hidden_layers * kv_heads * head_size)


# Log-probabilities.

_TEST_TOKENS = 12
_TEST_CHUNK = 5
# Kinds of rotary embedding that see the longest text
_LENGTH_DEPENDENT = {"dynamic", "longrope"}
# That rounding explains, of logits relative to the largest
_DIFFERENCE = {torch.float32: 1e-3}
_DIFFERENCE_OF_HALVES = 2e-2


class ChunkedLogits:
    """A causal language model whose logits come in chunks."""

    # The body of the model runs once over a batch, its head over one chunk after the
    # other, so that the logits of a whole batch never exist. Whether a model can be
    # taken apart so is tested on a short text. No attention mask is given: a token
    # looks only at those before it.

    def __init__(
        self,
        model: PreTrainedModel,
        prompted: PeftModel | None = None,
    ) -> None:
        self._model = model
        self._prompted = prompted
        self._whole = model if prompted is None else prompted
        self._virtual = 0  # positions before the first token's
        self._body = model.get_decoder()
        self._run_body: Callable[..., Any] = self._body.forward
        self._body.forward = self._forward
        self._body_output: Any = None  # that stands in while the head is asked
        self._output: Any = None  # of the body, when peft has run it
        self._output_type: Any = None
        self.test()

    def give_back(self) -> None:
        """Leave the model as it was."""
        self._body.forward = self._run_body

    @property
    def may_pad(self) -> bool:
        """True where padding changes nothing: not where embeddings depend on the length."""
        config = self._model.config.get_text_config()
        rope = getattr(config, "rope_parameters", None) or {}
        layers = [value for value in rope.values() if isinstance(value, dict)]
        kinds = {str(options.get("rope_type")) for options in [rope, *layers]}
        return not kinds & _LENGTH_DEPENDENT

    def chunks(
        self,
        token_ids: Tensor,
        places: Tensor,
        size: int,
        embeddings: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """Iterate over the logits (float32) of ``size`` positions of the flattened batch."""
        # The caller may overwrite what it gets.
        inputs = {"input_ids": token_ids}
        if embeddings is not None:
            inputs = {"inputs_embeds": embeddings}
        if not self.may_batch:  # the body runs again for every chunk
            for chunk in torch.split(places, size):
                positions = chunk + self._virtual
                output = self._whole(
                    **inputs,
                    use_cache=False,
                    logits_to_keep=positions,
                )
                yield output.logits[0].float()
            return
        if self._prompted is None:
            output = self._body(**inputs, use_cache=False)
        else:
            self._prompted(
                **inputs,
                use_cache=False,
                logits_to_keep=1,
            )
            output = self._output
            self._output = None
        self._output_type = type(output)
        width = token_ids.shape[1]
        hidden = output.last_hidden_state[:, -width:].flatten(0, 1)[places]
        del output
        for rows in torch.split(hidden, size):
            yield self._head(rows).float()

    def _head(self, hidden: Tensor) -> Tensor:
        self._body_output = self._output_type(last_hidden_state=hidden[None])
        placeholders = torch.zeros(
            (1, len(hidden)), dtype=torch.long, device=self._model.device
        )
        try:
            logits: Tensor = self._model(placeholders, use_cache=False).logits
        finally:
            self._body_output = None
        return logits[0]

    def _forward(
        self,
        *args: object,
        **kwargs: object,
    ) -> object:
        """Stand in for the body while the head is asked."""
        if self._body_output is not None:
            return self._body_output
        output = self._run_body(*args, **kwargs)
        self._output = None if self._prompted is None else output
        return output

    @torch.inference_mode()
    def test(self) -> None:
        """Compare with the model's own logits; take the next best way where they differ."""
        vocab_size = self._model.config.get_text_config().vocab_size
        end = 5 + 37 * _TEST_TOKENS
        text = torch.arange(5, end, 37, device=self._model.device) % vocab_size
        expected = self._whole(text[None], use_cache=False).logits[0].float()
        self._virtual = len(expected) - _TEST_TOKENS
        expected = expected[self._virtual :]
        reason = None
        for may_batch in (True, False):
            self.may_batch = may_batch
            reason = self._why_wrong(text[None], expected)
            if reason is None:
                return
        raise EngineError(
            "the transformers engine cannot compute the logits of a "
            f"{type(self._model).__name__} in parts ({reason}); take engine vllm"
        )

    def _why_wrong(
        self,
        text: Tensor,
        expected: Tensor,
    ) -> str | None:
        """Return why chunks are not the model's own logits; None where they are."""
        places = torch.arange(_TEST_TOKENS, device=text.device)
        try:
            logits = torch.cat(list(self.chunks(text, places, _TEST_CHUNK)))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever code of a stranger's model says
            return describe_error(error)
        if logits.shape != expected.shape:
            return "their shape is another"
        share = _DIFFERENCE.get(self._model.dtype, _DIFFERENCE_OF_HALVES)
        finite = expected[expected.isfinite()]
        scale = finite.abs().max().item() if finite.numel() else 0.0
        is_same = torch.allclose(
            logits,
            expected,
            rtol=share,
            atol=share * scale,
            equal_nan=True,
        )
        return None if is_same else "they differ from its own"


_ROWS = 4096  # of the matrix at once, in float64


class NoisyEmbeddings:
    """Embeddings of texts, of which the tokens that are scored have noise.

    The embedding of each token of a request's text is moved by ``noise * s * z``: ``s``
    is the standard deviation of the entries of the model's input embedding matrix,
    ``z`` is drawn from N(0, I) by NumPy's ``default_rng(seed)``, text tokens by
    features. Tokens of the context stay as they are: special tokens, and the first of a
    text that nothing precedes, which has no probability. The noise depends on the
    request alone, and minus ``noise`` with the same seed is its exact opposite.

    Fu et al. (2023), arXiv:2311.06062, Algorithm 1. There, the scale of the noise is a
    number, 0.05 in appendix A.6.4; so it is here where a request ``is_absolute``, as if
    ``s`` were 1. Otherwise it is in units of ``s``, so that it means the same for every
    model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._embed: Any = model.get_input_embeddings()

    @cached_property
    def _scale(self) -> float:
        weights: Tensor = self._embed.weight.detach()
        parts = torch.split(weights, _ROWS)
        n = weights.numel()
        mean = sum(rows.double().sum().item() for rows in parts) / n
        squares = ((rows.double() - mean).square().sum().item() for rows in parts)
        variance = sum(squares) / n
        return sqrt(variance) * float(getattr(self._embed, "embed_scale", 1.0))

    def __call__(
        self,
        token_ids: Tensor,
        batch: Sequence[Request],
    ) -> Tensor:
        """Embed a batch of right-padded texts; requests are in the order of its rows."""
        embedded: Tensor = self._embed(token_ids)
        for row, request in zip(embedded, batch, strict=True):
            first = len(request.context_ids or ())
            n_tokens = len(request.text_ids or ())
            generator = np.random.default_rng(request.seed)
            z = generator.standard_normal((n_tokens, row.shape[1]))
            sigma = request.noise * (1.0 if request.is_absolute else self._scale)
            noise = torch.from_numpy(sigma * z).to(row.device, torch.float32)
            text = row[first : first + n_tokens]
            text.copy_(text.float() + noise)
        return embedded


_TEXTS = 256
_TOKENS_ON_CPU = 2048
_MOST_TOKENS = 32768  # at once, on an accelerator: more are no faster
_FEWEST_TOKENS = 1024
_TOKENS_OF_SHORT_TEXTS = 32
_NUMBERS_OF_A_LAYER = 24  # that it computes from a token, in units of the hidden size
# Of what weights leave free: one part in so many
_SHARE_FOR_LOGITS = 8
_SHARE_FOR_TOKENS = 4
_PADDING = 0.02  # what packing without any could save at most, for masks that cost more
_NUMBERS_OF_A_ROW = 256  # that it may always give
_CHUNK_ON_CPU = 256  # positions whose logits are computed together
# Of these, whose logits a processor's caches hold with all that is made of them
_ROWS_ON_CPU = 32
_LARGEST_BLOCK = 31 << 20  # that glibc learns from; its limit is 32 MiB


class TransformersLogprobs(_BatchEngine):
    """Batches of right-padded texts of like length; the head works on chunks of their tokens."""

    # It works on a batch while the answers of the one before are made. Texts with noise
    # are in batches of their own, see `NoisyEmbeddings`. An item of a batch is what one
    # row answers: a text, after others that are its beginnings.

    item_name = "text"
    way_out = "a smaller logits_memory or"

    def __init__(self, spec: EngineSpec) -> None:
        self._columns = complete_columns(spec.columns)
        self._take_pending: Callable[[], list[Answer]] = list
        if "support_mass" in self._columns and spec.decoding.temperature != 1.0:
            raise SettingsError(
                "temperature: the mass that decoding keeps is defined at temperature 1;"
                " leave the setting at 1"
            )
        super().__init__(spec)
        self._noisy = NoisyEmbeddings(self.model)
        self._logits = ChunkedLogits(self.model, self.prompted)
        self._padding = _PADDING if self._logits.may_pad else 0.0
        free = None if self.on_cpu else torch.cuda.mem_get_info(self.device)[0]
        room = free and free // _SHARE_FOR_LOGITS
        self._logits_bytes = registry.logits_bytes(spec, room)
        self._max_tokens = _TOKENS_ON_CPU
        n_texts = _TEXTS
        if free is not None:
            hidden: int = self.model.config.get_text_config().hidden_size
            token_bytes = _NUMBERS_OF_A_LAYER * hidden * self.model.dtype.itemsize
            fitting = max(free // _SHARE_FOR_TOKENS // token_bytes, _FEWEST_TOKENS)
            self._max_tokens = min(fitting, _MOST_TOKENS)
            n_texts = max(n_texts, self._max_tokens // _TOKENS_OF_SHORT_TEXTS)
        if self.on_cpu:
            # So that the memory of one chunk serves the next, since fresh pages cost
            # time: glibc gives freed blocks back at once, up to the size of the largest
            # that it ever freed.
            torch.empty(_LARGEST_BLOCK, dtype=torch.uint8)
        self._start((self.batch_size or n_texts) if self._logits.may_batch else 1)

    def turn_to(self, model: str) -> None:
        self.exchange(model)
        self._logits.test()

    def turn_to_samples(self, spec: EngineSpec) -> TransformersSamples:
        """Return an engine that continues texts with these weights, and end this one."""
        self._logits.give_back()
        engine = TransformersSamples(spec, loaded=self)
        self.close()
        return engine

    def _accept(self, request: Request) -> None:
        columns = self._columns & complete_columns(request.columns)
        queue = self._queues[columns, request.noise != 0]
        # Points of a text come one after the other: a text that another begins with is
        # read in its row, because a token looks only at those before it.
        may_share = self._logits.may_pad and not request.noise
        if queue and may_share and self._insert(queue[-1], request):
            return
        queue.append([request])

    def _insert(
        self,
        item: list[Request],
        request: Request,
    ) -> bool:
        """Put a text into an item of which the longest text begins it, or continues it."""
        longest = _token_ids(item)
        ids = _token_ids([request])
        is_longer = len(longest) < len(ids)
        beginning = longest if is_longer else ids
        whole = ids if is_longer else longest
        # A row gives few numbers more than it has tokens, so that memory for a batch
        # stays what it is; copies of a long text therefore have rows of their own.
        n_scored = sum(len(text.text_ids or ()) for text in (*item, request))
        if n_scored > max(len(whole), _NUMBERS_OF_A_ROW):
            return False
        if whole[: len(beginning)] != beginning:
            return False
        item.insert(len(item) if is_longer else 0, request)
        return True

    def _lengths(self, item: list[Request]) -> tuple[int]:
        longest = item[-1]
        return (len(longest.context_ids or ()) + len(longest.text_ids or ()),)

    def _fits(
        self,
        n_items: int,
        *largest: int,
    ) -> bool:
        has_room = n_items * sum(largest) <= self._max_tokens
        return n_items <= self._max_items and has_room

    def _answers(self, batch: list[list[Request]]) -> list[Answer]:
        take_answers = self._read(batch)
        if self.on_cpu:  # which has nothing to do meanwhile
            return take_answers()
        take_earlier = self._take_pending
        self._take_pending = take_answers
        return take_earlier()

    def _last(self) -> list[Answer]:
        take_answers = self._take_pending
        self._take_pending = list
        return take_answers()

    @torch.inference_mode()
    def _read(self, batch: list[list[Request]]) -> Callable[[], list[Answer]]:
        """Put the device to work on a batch; what is returned waits for it."""
        rows: list[tuple[int, Request]] = []
        for row, item in enumerate(batch):
            rows += ((row, text) for text in item)
        texts = [text for _, text in rows]
        columns = self._columns & complete_columns(texts[0].columns)
        token_ids, _ = pad_rows([_token_ids(item) for item in batch], self.device)
        places = send(_places_before(rows, token_ids.shape[1]), self.device)
        noisy = self._noisy(token_ids, texts) if texts[0].noise else None
        scored = np.concatenate([text.text_ids or [] for text in texts])
        scored_ids = send(torch.from_numpy(scored), self.device)
        size = self._chunk_size(columns)
        chunks = self._logits.chunks(token_ids, places, size, noisy)
        parts = self._score(chunks, torch.split(scored_ids, size), columns)
        values = {}
        for name in parts[0]:
            column = torch.cat([part[name] for part in parts])
            values[name] = column.to("cpu", non_blocking=True)
        event = None
        if self.device.type != "cpu":
            event = torch.cuda.current_stream().record_event()
        return partial(_build_answers, rows, values, event)

    def _score(
        self,
        chunks: Iterator[Tensor],
        token_ids: Sequence[Tensor],
        columns: frozenset[str],
    ) -> list[dict[str, Tensor]]:
        """Compute the columns of all chunks of logits, some rows of a chunk at a time."""
        parts = []
        for chunk, chunk_ids in zip(chunks, token_ids, strict=True):
            size = _ROWS_ON_CPU if self.on_cpu else len(chunk)
            split_ids = torch.split(chunk_ids, size)
            for logits, ids in zip(torch.split(chunk, size), split_ids, strict=True):
                ids_there = ids.to(logits.device)
                scores = score_tokens(logits, ids_there, columns, self._decoding)
                parts.append(scores)
        return parts

    def _chunk_size(self, columns: frozenset[str]) -> int:
        """Compute how many positions have their logits computed together."""
        position_bytes = self.vocab_size * entry_bytes(columns, self._decoding)
        size = self._logits_bytes // position_bytes
        if self.on_cpu:
            size = min(size, _CHUNK_ON_CPU)
        return max(1, size)


def _token_ids(item: list[Request]) -> list[int]:
    """Return the tokens of an item's last text, the longest."""
    return [*(item[-1].context_ids or ()), *(item[-1].text_ids or ())]


def _places_before(
    rows: list[tuple[int, Request]],
    width: int,
) -> Tensor:
    """Find the tokens of a flattened batch whose logits give the texts' probabilities."""
    places = []
    for row, request in rows:
        offsets = np.arange(len(request.text_ids or ()))
        if request.question:
            offsets = np.zeros_like(offsets)
        last_before = row * width + len(request.context_ids or ()) - 1
        places.append(last_before + offsets)
    return torch.from_numpy(np.concatenate(places))


def _build_answers(
    rows: list[tuple[int, Request]],
    values: dict[str, Tensor],
    event: torch.cuda.Event | None,
) -> list[Answer]:
    """Wait until the device is done and its numbers are here; give each text its own."""
    # The first text of a row counts its pass.
    if event is not None:
        event.synchronize()
    columns = {name: column.numpy() for name, column in values.items()}
    if "rank" in columns:
        columns["rank"] = columns["rank"].astype(np.uint32)
    answers = []
    start = 0
    previous_row = -1
    for row, request in rows:
        end = start + len(request.text_ids or ())
        tokens = {name: column[start:end] for name, column in columns.items()}
        passes = int(row != previous_row)
        answers.append(registry.text_answer(request, tokens, passes))
        start = end
        previous_row = row
    return answers
