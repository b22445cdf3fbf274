"""A real S3 server, and environments of machines that know it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from unittest.mock import patch

import httpx
import obstore
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

KEY, SECRET = "AKIATESTONLYNOTAKEY0", "secretOfTestsOnly/0123456789"
BUCKET = "runs-of-tests"


class Server:
    def __init__(self, url: str) -> None:
        self.url = url
        httpx.put(f"{url}/{BUCKET}").raise_for_status()

    def environment(self, cache: object) -> dict[str, str]:
        """What a machine knows; each has a cache of its own."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "XDG_CACHE_HOME": str(cache),
        }

    @contextmanager
    def refusing_all(self) -> Iterator[None]:
        address = f"{self.url}/moto-api/reset-auth"
        httpx.post(address, content=b"0").raise_for_status()
        try:
            yield
        finally:
            httpx.post(address, content=b"inf").raise_for_status()

    def store(self, run: str) -> S3Store:
        return S3Store(
            BUCKET,
            prefix=run,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            endpoint=self.url,
            client_options={"allow_http": True},
        )

    def contents(self, run: str) -> dict[str, bytes]:
        store = self.store(run)
        names = [each["path"] for chunk in obstore.list(store) for each in chunk]
        return {name: bytes(obstore.get(store, name).bytes()) for name in names}


@contextmanager
def s3_server() -> Iterator[Server]:
    """Run a server in threads of this process."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    with patch.object(S3Response, "put_object", _put_alone):
        server.start()
        try:
            yield Server("http://{}:{}".format(*server.get_host_and_port()))
        finally:
            server.stop()


_putting = Lock()
_put_object = S3Response.put_object


def _put_alone(response: S3Response) -> object:
    """Look and write in one step, which this server does in two."""
    with _putting:
        return _put_object(response)
