"""How an object store is reached: credentials, and a sentence where it refuses."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from mia_batch.errors import MiaBatchError, RunFolderError, SettingsError

_NO_BUCKET = "NoSuchBucket|bucket does not exist|ContainerNotFound"
_REASONS = {
    "^(?:PermissionDenied|Unauthenticated)Error ": (
        "access is denied; check the credentials and what they allow"
    ),
    "^NotSupportedError ": "it cannot write on a condition, which keeps two runs apart",
    _NO_BUCKET: "there is no such bucket; make it, or name another",
    r"169\.254\.169\.254|metadata\.google|Account must be specified": (
        "there are no credentials for it in the environment"
    ),
    "(?s)builder error.*http://|http://.*builder error": (
        "its endpoint is http://; set AWS_ALLOW_HTTP=true if that is meant"
    ),
    r"<Code>(\w+)</Code>|status code: (\d+)": "it said {}",
}
"""What a refusal means, by patterns in the kind of the error and its text; the first counts."""
NO_ANSWER = "it does not answer; check the network and the endpoint"


def check_environment(url: str) -> None:
    """Refuse an address whose library is not installed, or would panic."""
    if find_spec("obstore") is None:
        raise SettingsError(
            f"{url} needs the library obstore; install it: pip install 'mia-batch[s3]'"
        )
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        # The library would panic.
        if not re.match("https?://.", os.environ.get(name, "https://any")):
            raise SettingsError(
                f"the environment variable {name} must begin with https:// or http://"
            )


def find_credentials(url: str) -> dict[str, Any]:
    """Have boto3 look in profiles, where keys are not in the environment."""
    if (
        not url.startswith("s3")
        or "AWS_ACCESS_KEY_ID" in os.environ
        or find_spec("boto3") is None
    ):
        return {}
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return {"credential_provider": Boto3CredentialProvider()}
    except ValueError:  # it has none, so obstore may look for the machine's role
        return {}
    except BotoCoreError as error:
        raise SettingsError(f"{url} cannot be used: {error}") from None


@contextmanager
def explained(
    url: str, error_type: type[MiaBatchError] = RunFolderError
) -> Iterator[None]:
    """Explain what the store refused; only a missing object of a bucket is `FileNotFoundError`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        is_object = not re.search(_NO_BUCKET, str(error))
        if isinstance(error, FileNotFoundError) and is_object:
            raise
        reason = explain(error)
    else:
        return
    # Outside, so that not even the cause holds anything of a request.
    raise error_type(f"{url} cannot be used: {reason}")


def explain(error: Exception) -> str:
    text = f"{type(error).__name__} {error}"
    for pattern, reason in _REASONS.items():
        match = re.search(pattern, text)
        if match is not None:
            return reason.format(*filter(None, match.groups()))
    return NO_ANSWER
