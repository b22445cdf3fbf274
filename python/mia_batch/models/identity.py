"""Which model it is: what a run records so that samples of two models are never mixed."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from mia_batch.models.adapter import read_adapter
from mia_batch.models.checkpoint import check_model

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["ModelIdentity", "digest_folder", "identify_model"]

_PIECE = 1 << 20
_SUFFIXES = frozenset({".bin", ".json", ".jinja", ".model", ".pt", ".safetensors", ".txt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """Digest of a folder, or commit at the hub; the context in tokens, None where not stated."""

    digest: str
    max_model_len: int | None


def identify_model(model: str, revision: str | None, asked: str = "logprobs") -> ModelIdentity:
    """Check that a model is there, and say which one it is; no weights are loaded.

    For what is ``asked`` see `check_weights`. An adapter has a digest of itself and its base, and
    what its virtual tokens leave of the base's context.
    """
    check_model(model, revision, asked)
    adapter = read_adapter(model)
    if adapter is None:
        return _identify(model, revision)
    base = _identify(adapter.base, adapter.base_revision)
    context = base.max_model_len
    return ModelIdentity(
        digest=sha256(f"{digest_folder(model)}\0{base.digest}".encode()).hexdigest(),
        max_model_len=None if context is None else context - adapter.virtual_tokens,
    )


def _identify(model: str, revision: str | None) -> ModelIdentity:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
    digest = digest_folder(model) or str(config._commit_hash)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    return ModelIdentity(digest=digest, max_model_len=context)


def digest_folder(model: str) -> str | None:
    """SHA-256 of names, sizes and the first and last mebibyte of each file of a checkpoint.

    Any training changes these. None where there is no such folder.
    """
    folder = Path(model)
    if not folder.is_dir():
        return None
    digest = sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in _SUFFIXES and path.is_file():
            digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            _add_ends(path, digest)
    return digest.hexdigest()


def _add_ends(path: Path, digest: _Hash) -> None:
    with path.open("rb") as file:
        digest.update(file.read(_PIECE))
        file.seek(max(_PIECE, path.stat().st_size - _PIECE))
        digest.update(file.read(_PIECE))
