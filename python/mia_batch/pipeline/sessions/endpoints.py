"""What a run keeps of its endpoint, whose servers come and go, and what it says of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mia_batch.evidence.endpoint import Capabilities, EndpointSettings
    from mia_batch.evidence.request import EvidenceKind
    from mia_batch.pipeline.manifest import Manifest
    from mia_batch.settings import Settings

__all__ = ["ever_asked", "findings", "with_known_address"]


def with_known_address(
    manifest: Manifest, endpoint: EndpointSettings, kind: EvidenceKind
) -> EndpointSettings:
    """Keep answers under the address that the run began with, if one asked now was asked before.

    Otherwise that address is another one than the run's, which `Manifest.agree_model` refuses. All
    addresses that were ever asked for this ``kind`` are recorded where there are several.
    """
    evidence = "endpoint" if kind == "samples" else "logprobs"
    target = manifest.models["target"]
    asked = [url.rstrip("/") for url in endpoint.addresses]
    known = _known(target, evidence) or asked[:1]
    if not set(known) & set(asked):
        return endpoint
    if len(ever := list(dict.fromkeys([*known, *asked]))) > 1:
        target[f"{evidence} replicas"] = ever
    return replace(endpoint, base_url=target.get(f"{evidence} base_url", endpoint.base_url))


def ever_asked(manifest: Manifest) -> str:
    """Name all addresses that a run has asked."""
    target = manifest.models["target"]
    return ", ".join(dict.fromkeys(_known(target, "endpoint") + _known(target, "logprobs")))


def _known(target: Mapping[str, Any], evidence: str) -> list[str]:
    first = target.get(f"{evidence} base_url")
    known = target.get(f"{evidence} replicas", [] if first is None else [first])
    return [url.rstrip("/") for url in known]


def findings(settings: Settings, found: Capabilities, *, drawn: bool) -> Iterator[str]:
    """Say what the endpoint honours, and what follows for samples that are drawn."""
    known = found.max_model_len
    context = f"context {known:,} tokens" if known else "context unknown"
    addresses = settings.base_url or ()
    verb = "serves" if len(addresses) == 1 else "serve"
    yield f"{', '.join(addresses)} {verb} {settings.model}, {context}"
    if found.named_token is not None:
        yield _exactness(found)
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


def _exactness(found: Capabilities) -> str:
    """Say whether the true token's log-probability is known, or a bound where it is not listed."""
    if found.named_token == "honoured":
        return "it honours 'logprob_token_ids': log-probabilities are exact"
    return (
        f"it {_verb(found.named_token or 'refused')} 'logprob_token_ids': a true token that is not "
        f"among the {found.top_logprobs} most likely ones has an upper bound instead of its "
        "log-probability"
    )


def _verb(honour: str) -> str:
    return "ignores" if honour == "ignored" else "refuses"
