"""What a run says of its endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.evidence.endpoint import Capabilities
    from mia_batch.settings import Settings

__all__ = ["findings"]


def findings(settings: Settings, found: Capabilities, *, drawn: bool) -> Iterator[str]:
    """Say what the endpoint honours, and what follows for samples that are drawn."""
    known = found.max_model_len
    context = f"context {known:,} tokens" if known else "context unknown"
    yield f"{settings.base_url} serves {settings.model}, {context}"
    if found.serves is not None:
        yield f"its answers say that {found.serves} wrote them: check setting 'model'"
    if found.named_token == "honoured":
        yield "it honours 'logprob_token_ids': log-probabilities are exact"
    elif found.named_token is not None:
        yield (
            f"it {_verb(found.named_token)} 'logprob_token_ids': a true token that is not among "
            f"the {found.top_logprobs} most likely ones has an upper bound instead of its "
            "log-probability"
        )
    if not drawn:
        return
    if found.n != "honoured":
        yield f"it {_verb(found.n)} 'n': one request for each sample"
    if found.seed != "honoured":
        yield f"it {_verb(found.seed)} 'seed': another run would draw other samples"
    if found.top_k not in ("honoured", None):
        yield f"it {_verb(found.top_k)} 'top_k': any token may be drawn, not only {settings.top_k}"
    if not found.varied:
        yield "it gives the same text whatever the seed: its samples are copies, not draws"
    yield from _of_dialect(found)


def _of_dialect(found: Capabilities) -> Iterator[str]:
    """Say how requests are written, and what may still act on the draw."""
    dialect = found.dialect
    if found.greedy not in ("honoured", None):
        yield f"it {_verb(found.greedy)} temperature 0: what asks for the likeliest text is drawn"
    if acting := unsure_fields(found):
        yield f"its own values of {', '.join(acting)} may act: it ignores or refuses neutral ones"
    if dialect.limit != "max_tokens":
        yield f"it takes {dialect.limit!r} for the limit of tokens"
    if dialect.added:
        (name, value), *_ = dialect.added.items()
        yield f"the model would think before it answers: {name} {value} keeps it from that"
    if dialect.thinking:
        yield (
            "the model thinks before it answers, which cannot be kept off: each answer may take "
            f"{dialect.thinking:,} tokens more"
        )
    if dialect.repeats_prompt:
        yield "it puts the prompt before each answer: it is taken off"


def unsure_fields(found: Capabilities) -> list[str]:
    """Name fields of which the endpoint's own values may act on the draw."""
    neutral = [name for name, honour in found.neutral.items() if honour != "honoured"]
    withdrawn = {"temperature", "top_p"}.intersection(found.dialect.withdrawn)
    return [*neutral, *sorted(withdrawn)]


def _verb(honour: str) -> str:
    return "ignores" if honour == "ignored" else "refuses"
