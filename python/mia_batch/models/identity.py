"""Which model it is: what a run records so that samples of two models are never mixed."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from mia_batch.models.checkpoint import check_model
from mia_batch.models.imports import auto_classes

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["ModelIdentity", "digest_folder", "identify_model"]

_PIECE = 1 << 20
_SUFFIXES = frozenset({".bin", ".json", ".jinja", ".model", ".pt", ".safetensors", ".txt"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """Which model it is.

    Attributes
    ----------
    digest
        Of a folder: see `digest_folder`. Of a hub name: the commit.
    max_model_len
        The context that the configuration states, in tokens; null where it states none.
    """

    digest: str
    max_model_len: int | None


def identify_model(model: str, revision: str | None) -> ModelIdentity:
    """Check that a model is there, and say which one it is; no weights are loaded.

    Parameters
    ----------
    model
        Checkpoint folder or hub name.
    revision
        Hub revision; null = the default branch.

    Returns
    -------
    ModelIdentity
        Digest and context.

    Raises
    ------
    SettingsError
        If the model cannot be found or is not a checkpoint.
    """
    check_model(model, revision)
    configs, _ = auto_classes()
    config = configs.from_pretrained(model, revision=revision, trust_remote_code=False)
    digest = digest_folder(model) or str(config._commit_hash)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    return ModelIdentity(digest=digest, max_model_len=context)


def digest_folder(model: str) -> str | None:
    """Say what a checkpoint folder holds, without reading the weights whole.

    Parameters
    ----------
    model
        Checkpoint folder or hub name.

    Returns
    -------
    str or None
        SHA-256 over names and sizes of the files and the first and last mebibyte of each, which
        any training changes; null where there is no such folder.
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
