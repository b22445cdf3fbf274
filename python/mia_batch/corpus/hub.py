"""Data sets at the Hugging Face hub, by hf:// and a revision; its cache is read where it can be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from mia_batch.corpus.addresses import Address, HubPlace, parse_hub
from mia_batch.corpus.remote import RemoteFile, Stamp
from mia_batch.corpus.web import WebClient, check_library
from mia_batch.errors import CorpusError, SettingsError

_SECONDS = 60.0  # for an answer of the hub's interface


class HubFile(NamedTuple):
    """A file of a data set: its path in there, its size, and the hash that the hub has."""

    path: str
    size: int
    sha256: str | None


class HubListing:
    """The files of a data set at one commit, or those of a folder of it."""

    def __init__(self, address: str) -> None:
        self.place: HubPlace = parse_hub(address)
        self._address = address
        if find_spec("huggingface_hub") is None:
            raise SettingsError(
                f"{address} needs the library huggingface_hub; install it: pip install"
                " 'mia-batch[addresses]'"
            )

    def find_snapshot(self) -> Path | None:
        """Return the folder of the data set in the hub's cache, where the hub may not be asked."""
        from huggingface_hub import constants, errors, snapshot_download

        if not constants.HF_HUB_OFFLINE:
            return None
        try:
            folder = snapshot_download(
                self.place.repository,
                repo_type="dataset",
                revision=self.place.revision,
                local_files_only=True,
            )
        except errors.LocalEntryNotFoundError:
            raise CorpusError(
                f"{self._address} is not in the hub's cache, and HF_HUB_OFFLINE is set;"
                " unset it, or give a copy on a disk"
            ) from None
        return Path(folder)

    def find_commit(self) -> str:
        from huggingface_hub import HfApi

        with self._explained():
            info = HfApi().dataset_info(
                self.place.repository, revision=self.place.revision, timeout=_SECONDS
            )
        if not info.sha:
            raise CorpusError(
                f"{self._address} cannot be read: the hub names no commit of it; give a"
                " revision, as in hf://datasets/ORG/NAME@REVISION"
            )
        return str(info.sha)

    def list_files(self, commit: str, folder: str) -> Iterator[HubFile]:
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile

        with self._explained():
            entries = HfApi().list_repo_tree(
                self.place.repository,
                folder or None,
                recursive=True,
                revision=commit,
                repo_type="dataset",
            )
            for entry in entries:
                if {"", ".", ".."} & {*entry.path.split("/")}:
                    raise CorpusError(
                        f"{self._address} cannot be read: the hub lists a file whose path"
                        " leads out of the data set"
                    )
                if isinstance(entry, RepoFile):
                    sha256 = entry.lfs.sha256 if entry.lfs else None
                    yield HubFile(entry.path, entry.size, sha256)

    def open_client(self) -> WebClient:
        from huggingface_hub import constants, get_token

        check_library(self._address)
        return WebClient(get_token(), constants.ENDPOINT)

    def find_cached(self, commit: str, path: str) -> Path | None:
        """Return the file in the hub's cache, if it is there at this commit."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(
            self.place.repository, path, revision=commit, repo_type="dataset"
        )
        return Path(cached) if isinstance(cached, str) else None

    def build_remote(self, client: WebClient, commit: str, file: HubFile) -> RemoteFile:
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(
            self.place.repository, file.path, repo_type="dataset", revision=commit
        )
        return client.build_file(
            self.build_address(commit, file.path),
            Stamp(size=file.size, revision=commit),
            url=url,
            expected=file.sha256,
        )

    def build_address(self, commit: str, path: str) -> Address:
        return Address(f"hf://datasets/{self.place.repository}@{commit}/{path}")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Explain what the hub refused; what its library says may hold parts of a request."""
        from huggingface_hub import errors

        reasons: dict[type[Any], str] = {
            errors.GatedRepoError: (
                "its conditions have to be accepted at the hub, then log in with 'hf auth"
                " login'"
            ),
            errors.RevisionNotFoundError: "it has no such revision; check the name",
            errors.EntryNotFoundError: "it has no such folder; check the path",
            errors.RepositoryNotFoundError: (
                "the hub has no such data set, or none that you may read; check the name,"
                " or log in with 'hf auth login'"
            ),
        }
        try:
            yield
        except CorpusError:
            raise
        except Exception as error:  # the network may throw anything
            reason = (
                "the hub does not answer; check the network, or set HF_HUB_OFFLINE=1 to"
                " read what its cache holds"
            )
            response = getattr(error, "response", None)
            if response is not None:
                reason = f"the hub refuses it (status {response.status_code})"
            for error_type, text in reasons.items():
                if isinstance(error, error_type):
                    reason = text
                    break
        else:
            return
        raise CorpusError(f"{self._address} cannot be read: {reason}")
