"""Sampling from an OpenAI-compatible endpoint."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from mia_batch.errors import SettingsError
from mia_batch.evidence.endpoint import (
    CHAT_INSTRUCTION,
    Endpoint,
    EndpointSettings,
    estimate_cost,
)
from mia_batch.models.measure import estimate_tokens
from mia_batch.models.tokens import Tokenizer
from mia_batch.pipeline.resolve import decode_budget
from mia_batch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mia_batch.evidence.budget import Budget, DecodeScope
    from mia_batch.evidence.endpoint import Capabilities
    from mia_batch.evidence.source import Source
    from mia_batch.evidence.workload import Workload
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.pipeline.observer import Observer
    from mia_batch.pipeline.run import Run

__all__ = ["UNSTATED_CONTEXT", "RemoteSampling", "endpoint_settings", "endpoint_tokenizer"]

UNSTATED_CONTEXT = 131_072
"""Assumed of endpoints that do not state theirs; they refuse what is too long themselves."""
_MOST_ATTEMPTS = 3  # each is paid for


class RemoteSampling:
    """An endpoint that has not been asked anything yet.

    Parameters
    ----------
    settings
        How to reach it, and how to sample.
    scope
        How far candidates are decoded.

    Raises
    ------
    SettingsError
        If the address or the key cannot be used, or the tokenizer cannot be loaded.
    """

    def __init__(self, settings: Settings, scope: DecodeScope) -> None:
        self._settings = settings
        self._scope = scope
        self._endpoint = endpoint_settings(settings)
        self._tokenizer = endpoint_tokenizer(settings)
        self.measure = self._tokenizer.measure if self._tokenizer else estimate_tokens

    @property
    def expected_budget(self) -> Budget:
        """How many tokens to decode, as far as it is known before the endpoint was asked."""
        return self._budget(UNSTATED_CONTEXT, _MOST_ATTEMPTS)

    def describe(self, workload: Workload) -> Iterator[tuple[str, str]]:
        """Say what the work may cost.

        Parameters
        ----------
        workload
            What there is to sample.

        Yields
        ------
        tuple[str, str]
            Name and text.
        """
        if not workload.prefixes:
            return
        for name, tokens in (
            ("at most, first attempts", workload.first_tokens),
            ("at most, all attempts", workload.most_tokens),
        ):
            estimate = estimate_cost(
                self._endpoint,
                prompts=workload.prefixes,
                prompt_bytes=workload.prompt_bytes,
                samples=-(-workload.samples // workload.prefixes),
                max_tokens=-(-tokens * workload.prefixes // workload.samples),
                honours_n=False,
            )
            text = f"{estimate.tokens_in:,} prompt tokens, {estimate.tokens_out:,} output tokens"
            yield name, text if estimate.cost is None else f"{text}, cost {estimate.cost:,.2f}"

    @contextmanager
    def opened(
        self, manifest: Manifest, run: Run, observer: Observer
    ) -> Iterator[tuple[Source, Budget]]:
        """Probe the endpoint.

        Parameters
        ----------
        manifest
            The run's manifest; what the endpoint honours is recorded in it.
        run
            The run, held.
        observer
            Is told what the endpoint honours.

        Yields
        ------
        tuple[Source, Budget]
            The endpoint, ready, and how many tokens to decode.

        Raises
        ------
        SettingsError
            If the endpoint refuses these settings, or the run's samples came from another.
        EngineError
            If it cannot be reached.
        """
        observer.stage(f"probing {self._endpoint.base_url}")
        with Endpoint.open(self._endpoint, journal=run.journal_path) as endpoint:
            found = endpoint.capabilities
            manifest.started(self._description(found), self._evidence(found), run)
            for sentence in _sentences(self._settings, found):
                observer.stage(sentence)
            context = found.max_model_len or UNSTATED_CONTEXT
            yield endpoint, self._budget(context, _MOST_ATTEMPTS if endpoint.repeats else 1)

    def _budget(self, max_model_len: int, max_attempts: int) -> Budget:
        return decode_budget(self._settings, self._scope, max_model_len, max_attempts)

    def _description(self, found: Capabilities) -> dict[str, object]:
        return {
            "engine": "openai",
            "base_url": self._endpoint.base_url,
            "capabilities": asdict(found),
        }

    def _evidence(self, found: Capabilities) -> dict[str, object]:
        identity = self._endpoint.sample_identity(sends_top_k=found.top_k == "honoured")
        digest = self._tokenizer.digest if self._tokenizer else None
        return {f"endpoint {name}": value for name, value in identity.items()} | {
            "tokenizer": digest
        }


def endpoint_settings(settings: Settings) -> EndpointSettings:
    """Return what the client follows, the key included.

    Parameters
    ----------
    settings
        The settings; the key comes from the environment variable that they name.

    Returns
    -------
    EndpointSettings
        Checked; nothing has been asked yet.

    Raises
    ------
    SettingsError
        If the address or the key cannot be used.
    """
    key = os.environ.get(settings.api_key_env)
    default = Settings.model_fields["api_key_env"].default
    if key is None and settings.api_key_env != default:
        msg = (
            f"setting 'api_key_env' is {settings.api_key_env!r}, but there is no such environment "
            "variable; set it to the endpoint's key"
        )
        raise SettingsError(msg)
    return EndpointSettings(
        base_url=settings.base_url or "",
        model=settings.model,
        api_key=key,
        chat=settings.chat,
        chat_instruction=settings.chat_instruction or CHAT_INSTRUCTION,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        max_concurrency=settings.max_concurrency,
        timeout=settings.timeout,
        max_retries=settings.max_retries,
        price_in=settings.price_in,
        price_out=settings.price_out,
        max_cost=settings.max_cost,
    )


def _sentences(settings: Settings, found: Capabilities) -> Iterator[str]:
    """Say what the endpoint honours, and what follows where it does not."""
    context = (
        f"context {found.max_model_len:,} tokens" if found.max_model_len else "context unknown"
    )
    yield f"{settings.base_url} serves {settings.model}, {context}"
    if found.n != "honoured":
        yield f"it {_verb(found.n)} 'n': one request for each sample"
    if found.seed != "honoured":
        yield f"it {_verb(found.seed)} 'seed': another run would draw other samples"
    if found.top_k not in ("honoured", None):
        yield f"it {_verb(found.top_k)} 'top_k': any token may be drawn, not only {settings.top_k}"
    if not found.varied:
        yield "it gives the same text whatever the seed: its samples are copies, not draws"


def _verb(honour: str) -> str:
    return "ignores" if honour == "ignored" else "refuses"


def endpoint_tokenizer(settings: Settings) -> Tokenizer | None:
    """Load the tokenizer of the endpoint's model.

    Parameters
    ----------
    settings
        The settings, which may name it.

    Returns
    -------
    Tokenizer or None
        None where they name none.

    Raises
    ------
    SettingsError
        If it cannot be loaded.
    """
    if settings.tokenizer is None:
        return None
    return Tokenizer.load(settings.tokenizer, setting="tokenizer")
