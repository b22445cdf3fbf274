"""What asking costs: tokens and money at an endpoint, expected, at most, and spent."""

from collections.abc import Iterator

import polars as pl

from mia_batch.evidence.endpoint.journal import Journal
from mia_batch.evidence.endpoint.wire import (
    MOST_BYTES_PER_TOKEN,
    NO_TOKENS,
    Tokens,
    money,
    most_prompt_tokens,
)
from mia_batch.evidence.parts import Missing
from mia_batch.evidence.request import MOST_ATTEMPTS, Workload
from mia_batch.pipeline.context import Audit
from mia_batch.settings import Settings, endpoint_settings
from mia_batch.views import View

_PROBES_EXCLUDED = "some thirty small requests of each probe come on top"


def forecast_cost(audit: Audit, workload: Workload) -> Iterator[tuple[str, str]]:
    """Iterate over requests and costs of samples, as name and text; the worst case is counted."""
    if not workload.prompts:
        return
    settings = audit.settings
    n_most = _count_attempts(workload) * workload.samples
    most = f" to {n_most:,}" if n_most > workload.prompts else ""
    yield "requests", f"{workload.prompts:,}{most}"
    expected = _count_expected(workload)
    yield "expected", f"about {_format_cost(settings, expected)}"
    yield from _forecast_batch_cost(settings, "expected", expected)
    first_attempts = _count_at_most(settings, workload, workload.first_tokens)
    all_attempts = count_most_tokens(settings, workload)
    cost, limit = compute_cost(settings, expected), settings.max_cost
    if cost is not None and limit is not None and cost > limit:
        yield (
            "limit",
            "expected to stop the run before its end: give a higher --max-cost",
        )
    yield "at most, first attempts", _format_cost(settings, first_attempts)
    yield "at most, all attempts", _format_cost(settings, all_attempts)
    audit.most_paid.append(all_attempts)


def forecast_part_cost(
    audit: Audit, part: str, workload: Workload
) -> Iterator[tuple[str, str]]:
    """Iterate over what a part costs that is asked as far as the money lasts."""
    if not workload.prompts:
        return
    expected = _count_expected(workload)
    most = count_most_tokens(audit.settings, workload)
    yield f"{part}, expected", f"about {_format_cost(audit.settings, expected)}"
    yield f"{part}, at most", _format_cost(audit.settings, most)
    audit.most_paid_if_left = audit.most_paid_if_left.plus(most)


def describe_part_cost(audit: Audit, workload: Workload) -> str:
    """Return what asking would cost, as the end of a sentence: money where it is known."""
    expected = _count_expected(workload)
    if not audit.asks_endpoint("target"):
        return f"about {expected.output:,} tokens to decode"
    settings = audit.settings
    cost = compute_cost(settings, expected)
    if cost is None:
        return (
            f"about {expected.prompt:,} prompt tokens and {expected.output:,} output"
            " tokens"
        )
    most = compute_cost(settings, count_most_tokens(settings, workload)) or cost
    return f"about {format_amount(settings, cost)}, at most {format_amount(settings, most)}"


def _count_attempts(workload: Workload) -> int:
    may_ask_again = workload.most_tokens > workload.first_tokens
    return MOST_ATTEMPTS if may_ask_again else 1


def _count_expected(workload: Workload) -> Tokens:
    """Count the tokens of first answers; a prompt is read for each of its samples."""
    samples_per_prompt = -(-workload.samples // max(workload.prompts, 1))
    return Tokens(samples_per_prompt * workload.read_tokens, workload.first_tokens)


def count_most_tokens(settings: Settings, workload: Workload) -> Tokens:
    """Count what can be paid for: each answer is asked for as often as may be."""
    if not workload.prompts:
        return NO_TOKENS
    attempts = _count_attempts(workload)
    return _count_at_most(settings, workload, workload.most_tokens, attempts)


def forecast_logprob_cost(
    audit: Audit, view: View, missing: Missing
) -> Iterator[tuple[str, str]]:
    """Iterate over what log-probabilities of a view cost at an endpoint: a request each."""
    if not audit.asks_endpoint(view.model):
        return
    n_bytes = pl.col("context").str.len_bytes() + pl.col("text").str.len_bytes()
    can_ask = pl.col("text").is_not_null()
    sizes = [
        block.units.filter(can_ask).select(n_bytes).to_series()
        for block in missing.blocks()
    ]
    n_requests = sum(map(len, sizes))
    if n_requests:
        workload = Workload(
            prompts=n_requests,
            samples=n_requests,
            prompt_bytes=sum(int(block_sizes.sum()) for block_sizes in sizes),
        )
        tokens = _count_at_most(audit.settings, workload, n_requests)
        audit.most_paid.append(tokens)
        cost = _format_cost(audit.settings, tokens)
        yield f"{view.model} {view.name}, at most", f"{n_requests:,} requests, {cost}"


def forecast_whole_cost(audit: Audit) -> Iterator[tuple[str, str]]:
    """Return what all parts of a run can cost, and whether its limit may stop it."""
    settings, needed = audit.settings, NO_TOKENS
    for tokens in audit.most_paid:
        needed = needed.plus(tokens)
    total = needed.plus(audit.most_paid_if_left)
    if total == NO_TOKENS:
        return
    text = f"{_format_cost(settings, total)} ({_PROBES_EXCLUDED})"
    yield "the whole run, at most", text
    yield from _forecast_batch_cost(settings, "the whole run, at most", total)
    cost, limit = compute_cost(settings, total), settings.max_cost
    if cost is None or limit is None or cost <= limit:
        return
    amount = format_amount(settings, cost)
    # What is asked after the continuations may find too little money left.
    is_last = not (settings.controls or settings.extract)
    if not is_last or (compute_cost(settings, needed) or 0) > limit:
        yield "limit", f"--max-cost may stop the run, which could cost {amount}"
    else:
        yield (
            "limit",
            "--max-cost may leave some texts without a continuation: with all of them"
            f" the run could cost {amount}",
        )


def compute_money_left(audit: Audit) -> float | None:
    """Compute what the run may still spend; None without a limit, or without an endpoint."""
    settings, path = audit.settings, audit.run.folder / "journal.sqlite"
    if settings.max_cost is None or not audit.asks_endpoint("target"):
        return None
    spent, batch_spent = NO_TOKENS, NO_TOKENS
    if path.exists():
        with Journal(path) as journal:
            spent, batch_spent = journal.spent(), journal.spent(by_batch=True)
    cost = money(endpoint_settings(settings), spent, batch_spent)
    return None if cost is None else settings.max_cost - cost


def describe_spending(audit: Audit) -> str | None:
    """Return what the run has paid for, earlier calls included; None without an endpoint."""
    settings, path = audit.settings, audit.run.folder / "journal.sqlite"
    if audit.manifest.source != "endpoint" or not path.exists():
        return None
    with Journal(path) as journal:
        spent = journal.spent()
        batch_spent = journal.spent(by_batch=True)
    cost = money(endpoint_settings(settings), spent, batch_spent)
    if cost is None:
        spent = spent.plus(batch_spent)
        return (
            f"spent {spent.prompt:,} prompt tokens and {spent.output:,} output tokens"
            f" ({_PROBES_EXCLUDED})"
        )
    limit = "" if settings.max_cost is None else f" of at most {settings.max_cost:,.2f}"
    amount = format_amount(settings, cost)
    prices = "prices as given"
    if any(batch_spent):
        prices += f", of batches {settings.batch_price:g} of them"
    return f"spent {amount}{limit} ({prices}; {_PROBES_EXCLUDED})"


def format_amount(settings: Settings, cost: float) -> str:
    """Return an amount of money as text; a small one with two digits that are not 0."""
    number = f"{cost:,.2f}" if cost >= 0.1 or not cost else f"{cost:.2g}"
    return f"{settings.currency} {number}"


def _format_cost(settings: Settings, tokens: Tokens) -> str:
    text = f"{tokens.prompt:,} prompt tokens, {tokens.output:,} output tokens"
    cost = money(endpoint_settings(settings), tokens)
    return text if cost is None else f"{text}, cost: {format_amount(settings, cost)}"


def _forecast_batch_cost(
    settings: Settings, name: str, tokens: Tokens
) -> Iterator[tuple[str, str]]:
    """Iterate over what tokens cost by batch files, where prices are given."""
    cost = money(endpoint_settings(settings), NO_TOKENS, tokens)
    if cost is not None:
        amount = format_amount(settings, cost)
        yield (
            f"{name}, by batch files",
            f"{amount} (--requests-to; {settings.batch_price:g} of the prices)",
        )


def compute_cost(settings: Settings, tokens: Tokens) -> float | None:
    """Compute what tokens cost in the way that the run asks for them."""
    endpoint = endpoint_settings(settings)
    if settings.requests_to is None and not settings.answers_from:
        return money(endpoint, tokens)
    return money(endpoint, NO_TOKENS, tokens)


def _count_at_most(
    settings: Settings, workload: Workload, n_tokens: int, attempts: int = 1
) -> Tokens:
    """Count a request for each sample, so that the prompt is paid for with each."""
    n_times = attempts * -(-workload.samples // workload.prompts)
    n_bytes = n_times * workload.prompt_bytes
    if n_tokens > workload.first_tokens:
        n_bytes += MOST_BYTES_PER_TOKEN * workload.resent_tokens
    n_prompt_tokens = most_prompt_tokens(
        endpoint_settings(settings),
        prompt_bytes=n_bytes,
        prompts=n_times * workload.prompts,
    )
    return Tokens(n_prompt_tokens, n_tokens)
