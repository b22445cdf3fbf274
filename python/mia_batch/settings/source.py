"""Settings: endpoints and recordings."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from mia_batch.settings.part import Mark, Part, one_address

__all__ = ["EndpointSettings", "RecordingSettings"]


class EndpointSettings(Part):
    """How an endpoint is reached and asked."""

    topic = "Endpoint"
    engine_of = "openai"
    key = "base_url"

    base_url: Annotated[str | None, BeforeValidator(one_address), Mark.USUAL] = Field(
        None,
        min_length=1,
        description="Address of an OpenAI-compatible endpoint, such as http://host:8000/v1.",
    )
    api_key_env: str = Field(
        "OPENAI_API_KEY", min_length=1, description="Environment variable with the endpoint's key."
    )
    chat: bool = Field(
        default=False, description="Ask the endpoint's chat completions, for chat-only models."
    )
    chat_instruction: str | None = Field(
        None, min_length=1, description="What a chat model is told before the text to continue."
    )
    tokenizer: Annotated[str | None, Mark.MODEL] = Field(
        None,
        min_length=1,
        description="Folder or hub name of the endpoint's tokenizer; probe-logprobs need it.  "
        "[default: tokens estimated]",
    )
    max_concurrency: int = Field(32, ge=1, le=4096, description="Most requests in flight.")
    requests_per_minute: float | None = Field(None, gt=0, description="Kept by the client.")
    tokens_per_minute: float | None = Field(None, gt=0, description="Kept by the client.")
    timeout: float = Field(600.0, gt=0, description="Seconds that an endpoint's answer may take.")
    max_retries: int = Field(8, ge=0, le=100, description="Times that a request is repeated.")
    price_in: float | None = Field(None, ge=0, description="Money per million prompt tokens.")
    price_out: float | None = Field(None, ge=0, description="Money per million output tokens.")
    max_cost: float | None = Field(
        None, gt=0, description="Stop before this much money is spent; needs both prices."
    )


class RecordingSettings(Part):
    """Continuations that were generated elsewhere."""

    topic = "Recording"
    engine_of = "replay"
    key = "samples_from"

    samples_from: Annotated[str | None, Mark.PATH] = Field(
        None,
        min_length=1,
        description="Recorded continuations (Parquet or JSONL), scored without a model.",
    )
    candidate_column: str = Field(
        "candidate", min_length=1, description="Column with the recorded continuation."
    )
