"""A run whose requests go by files of a batch service, and stops where answers are missing."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mia_batch.errors import EngineError
from mia_batch.evidence.endpoint.batch import BatchFiles, describe_count
from mia_batch.evidence.endpoint.wire import NO_TOKENS, money
from mia_batch.pipeline.context import Audit
from mia_batch.pipeline.costs import format_amount
from mia_batch.pipeline.stages import Stage
from mia_batch.settings import endpoint_settings


@contextmanager
def opening_files(audit: Audit) -> Iterator[None]:
    """Let an audit write its requests to files and read answers from files, if it is to."""
    settings = audit.settings
    if settings.requests_to is None and not settings.answers_from:
        yield
        return
    audit.observer.step("reading answers")
    requests_to = settings.requests_to
    with BatchFiles(
        endpoint_settings(settings),
        None if requests_to is None else Path(requests_to).expanduser(),
        settings.answers_from,
        audit.run.folder / "journal.sqlite",
        forgets_refusals=settings.retry_failed,
    ) as audit.batch:
        yield


def stop_before(audit: Audit, stage: Stage) -> None:
    """Let stages of evidence leave requests; no other stage goes on before they are answered."""
    if audit.batch is not None:
        audit.batch.gathers = stage.phase == "evidence"
        audit.batch.stop_if_left()


def finish_files(audit: Audit) -> None:
    """Put the files of requests in place, and say what came and what is left."""
    batch = audit.batch
    if batch is None:
        return
    paths = batch.finish()
    for sentence in batch.counts.lines():
        audit.observer.stage(sentence)
    if batch.n_left == 0:
        return
    if audit.settings.requests_to is None:
        raise EngineError(
            f"{describe_count(batch.n_left, 'request')} not answered: give requests_to= as well"
            " to write them to files, or leave answers_from= out to have them asked"
            " now; no answer is lost"
        )
    for sentence in _describe_left(audit, batch, paths):
        audit.observer.stage(sentence)


def _describe_left(
    audit: Audit, batch: BatchFiles, paths: Sequence[Path]
) -> Iterator[str]:
    if batch.n_beyond:
        yield (
            f"{describe_count(batch.n_beyond, 'request')} not written, because all together could"
            " cost more than max_cost= allows: give a higher one, or have those before"
            " answered first"
        )
    if not paths:
        return
    n_megabytes = sum(path.stat().st_size for path in paths) / 1e6
    names = str(paths[0])
    if len(paths) > 1:
        names += f" to {paths[-1].name}"
    n_written = batch.n_left - batch.n_beyond
    tokens = batch.most_tokens
    cost = money(endpoint_settings(audit.settings), NO_TOKENS, tokens)
    amount = "" if cost is None else f", {format_amount(audit.settings, cost)}"
    yield (
        f"{describe_count(n_written, 'request')} left and stand in {names}"
        f" ({n_megabytes:,.3g} MB): at most {tokens.prompt:,} prompt tokens and"
        f" {tokens.output:,} output tokens{amount}"
    )
    yield (
        "give them to the batch service, and then the same command with answers_from="
        " and the files that come back; without requests_to= and answers_from= what is"
        " left is asked at once"
    )
