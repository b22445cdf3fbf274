"""Sentences about an endpoint: what it serves, which parameters act, what stands around answers."""

from collections.abc import Iterator

from mia_batch.evidence.endpoint import Capabilities
from mia_batch.report.sentences import describe_layers
from mia_batch.settings import Settings


def describe_endpoint(
    settings: Settings, capabilities: Capabilities, *, draws_samples: bool
) -> Iterator[str]:
    """Iterate over sentences about an endpoint that has been probed."""
    context = "context unknown"
    if capabilities.max_model_len:
        context = f"context {capabilities.max_model_len:,} tokens"
    yield f"{settings.base_url} serves {settings.model}, {context}"
    if capabilities.serves is not None:
        yield f"its answers say that {capabilities.serves} wrote them: check model="
    if not capabilities.counts_prompts:
        yield (
            "it does not count the tokens of prompts: whether it cuts long ones cannot be"
            " found out"
        )
    if capabilities.prompt_slots is not None:
        slots = "slot" if capabilities.prompt_slots == 1 else "slots"
        yield (
            f"it is llama.cpp's server with {capabilities.prompt_slots} {slots}: so many"
            " texts are asked about at a time, each from its shortest prompt on"
        )
    if capabilities.named_token == "honoured":
        yield "it honours 'logprob_token_ids': log-probabilities are exact"
    elif capabilities.named_token is not None:
        yield (
            f"it {refusal_verb(capabilities.named_token)} 'logprob_token_ids': a true"
            f" token that is not among the {capabilities.top_logprobs} most likely ones"
            " has an upper bound instead of its log-probability"
        )
    if draws_samples:
        yield from _describe_sampling(settings, capabilities)
        yield from _describe_answers(capabilities)


def _describe_sampling(settings: Settings, capabilities: Capabilities) -> Iterator[str]:
    consequences = [
        (capabilities.n, "'n': one request for each sample"),
        (capabilities.seed, "'seed': another run would draw other samples"),
        (
            capabilities.top_k,
            f"'top_k': any token may be drawn, not only {settings.top_k}",
        ),
        (
            capabilities.greedy,
            "temperature 0: what asks for the likeliest text is drawn",
        ),
    ]
    for support, consequence in consequences:
        if support not in ("honoured", None):
            yield f"it {refusal_verb(support)} {consequence}"
    if not capabilities.varied:
        yield (
            "it gives the same text whatever the seed: its samples are copies, not"
            " draws"
        )
    dialect = capabilities.dialect
    acting = [
        name for name, support in capabilities.neutral.items() if support != "honoured"
    ]
    acting += sorted({"temperature", "top_p"}.intersection(dialect.withdrawn))
    if acting:
        yield (
            f"its own values of {', '.join(acting)} may act: it ignores or refuses"
            " neutral ones"
        )
    if dialect.limit != "max_tokens":
        yield f"it takes {dialect.limit!r} for the limit of tokens"


def _describe_answers(capabilities: Capabilities) -> Iterator[str]:
    dialect = capabilities.dialect
    if dialect.added:
        (name, value), *_ = dialect.added.items()
        yield (
            f"the model would think before it answers: {name} {value} keeps it from"
            " that"
        )
    if dialect.thinking:
        yield (
            "the model thinks before it answers, which cannot be kept off: each answer"
            f" may take {dialect.thinking:,} tokens more"
        )
    if capabilities.dress:
        layers = describe_layers(
            (layer["kind"], layer["text"]) for layer in capabilities.dress
        )
        yield (
            "classics that it continues have more around them, which is taken off:"
            f" {layers}"
        )
    if dialect.repeats_prompt:
        yield "it puts the prompt before each answer: it is taken off"


def refusal_verb(support: str | None) -> str:
    return "ignores" if support == "ignored" else "refuses"
