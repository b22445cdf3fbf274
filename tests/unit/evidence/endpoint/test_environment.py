"""Proxies and authorities that the environment names: used, not needed, or wrong."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mia_batch.environment import find_proxy, is_direct
from mia_batch.errors import EngineError, SettingsError
from tests.certificates import write_certificate
from tests.hostile_server import HostileServer, TinyModel
from tests.unit.evidence.endpoint.asking import opened, request, results, texts

MODEL = TinyModel()
NOWHERE = "http://127.0.0.1:9"
VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch):
    for name in (*VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("no_proxy", "address", "expected"),
    [
        ("*", "http://host/v1", True),
        ("other, *", "http://host/v1", True),
        ("[::1]", "http://[::1]:8000/v1", True),
        ("::1", "http://[::1]:8000/v1", True),
        ("0:0::1", "http://[::1]/v1", True),
        ("[::1]:8000", "http://[::1]:8000/v1", True),
        ("[::1]:8001", "http://[::1]:8000/v1", False),
        ("fe80::/10", "http://[fe80::7%25eth0]/v1", True),
        ("::1", "http://[::2]/v1", False),
        ("127.0.0.0/8", "http://127.0.0.1:8000/v1", True),
        ("127.0.0.0/8", "http://[::ffff:127.0.0.1]/v1", True),
        ("10.0.0.0/8", "http://10.1.2.3/v1", True),
        ("10.0.0.0/8", "http://11.1.2.3/v1", False),
        ("10.0.0.0/8", "http://host/v1", False),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1", True),
        ("127.0.0.1:8000", "http://127.0.0.1:8001/v1", False),
        ("host:80", "http://host/v1", True),
        ("host:443", "https://host/v1", True),
        ("host:443", "http://host/v1", False),
        ("Example.com", "http://EXAMPLE.com/v1", True),
        ("example.com", "http://api.example.com/v1", True),
        (".example.com", "http://api.example.com/v1", True),
        ("*.example.com", "http://api.example.com/v1", True),
        ("example.com", "http://badexample.com/v1", False),
        ("http://host", "http://host/v1", True),
        ("one two,host", "http://host/v1", True),
        ("host:port", "http://host/v1", False),
        (" , ", "http://host/v1", False),
        ("", "http://host/v1", False),
    ],
)
def test_hosts_that_are_reached_directly(no_proxy, address, expected, monkeypatch):
    monkeypatch.setenv("NO_PROXY", no_proxy)
    monkeypatch.setenv("HTTP_PROXY", NOWHERE)
    monkeypatch.setenv("HTTPS_PROXY", NOWHERE)
    parts = urlsplit(address)
    assert is_direct(parts) == expected
    assert (find_proxy(parts) is None) == expected


@pytest.mark.parametrize(
    ("variables", "address", "proxy"),
    [
        ({"HTTP_PROXY": "http://a:1"}, "http://host", ("http://a:1", "HTTP_PROXY")),
        ({"HTTP_PROXY": "a:1"}, "http://host", ("http://a:1", "HTTP_PROXY")),
        ({"HTTP_PROXY": "http://a:1"}, "https://host", None),
        ({"https_proxy": "http://a:1"}, "https://host", ("http://a:1", "https_proxy")),
        (
            {"ALL_PROXY": "http://b:2", "HTTP_PROXY": "http://a:1"},
            "http://host",
            ("http://a:1", "HTTP_PROXY"),
        ),
        ({"ALL_PROXY": "http://b:2"}, "https://h", ("http://b:2", "ALL_PROXY")),
        ({"HTTP_PROXY": " "}, "http://host", None),
        # Of no use for this address, so that it may be wrong
        ({"HTTPS_PROXY": "http://["}, "http://host", None),
    ],
)
def test_the_proxy_of_an_address(variables, address, proxy, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_proxy(urlsplit(address)) == proxy


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        (
            "ALL_PROXY",
            "socks5://127.0.0.1:9",
            "ALL_PROXY is 'socks5://127.0.0.1:9', and a SOCKS proxy needs the package"
            r" socksio.*; install it \(pip install socksio\), or correct or unset it",
        ),
        (
            "HTTP_PROXY",
            "http://[::1",
            r"HTTP_PROXY is 'http://\[::1', which is not an address.*; correct or unset"
            " it, or add 127.0.0.1 to NO_PROXY",
        ),
        ("HTTP_PROXY", "http://host:99999", "HTTP_PROXY is 'http://host:99999', which"),
        ("http_proxy", "http://", "http_proxy is 'http://', which is not an address"),
        ("HTTP_PROXY", "a host:1", "HTTP_PROXY is 'a host:1', which is not an address"),
        (
            "HTTP_PROXY",
            "ftp://me:secret@host:1",
            r"HTTP_PROXY is 'ftp://\.\.\.@host:1', which is no proxy of a kind",
        ),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named_before_anything_is_asked(
    variable, value, sentence, tmp_path, monkeypatch
):
    monkeypatch.setattr("mia_batch.environment.find_spec", lambda _: None)
    monkeypatch.setenv(variable, value)
    with HostileServer(MODEL) as server:
        with pytest.raises(SettingsError, match=f"variable {sentence}") as caught:
            opened(server, tmp_path)
        assert server.probes == []
        monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
        with opened(server, tmp_path) as endpoint:
            answers = results(endpoint, [request(1)])
    assert texts(answers[1]) == [MODEL.text("prompt number 1", 65536)]
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_proxy_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://me:secret@127.0.0.1:9")
    sentence = (
        r"no connection through the proxy http://\.\.\.@127.0.0.1:9 .*; check the"
        " environment variable HTTP_PROXY and base_url= and that its server runs"
    )
    with HostileServer(MODEL) as server, pytest.raises(EngineError, match=sentence):
        opened(server, tmp_path, max_retries=0)


class _Relay(http.server.BaseHTTPRequestHandler):
    """A proxy that answers by itself: every address is unknown to it."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        self.send_error(404, "unknown")

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Be quiet."""


@contextmanager
def relaying() -> Iterator[tuple[str, list[str]]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Relay)
    server.paths = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.paths  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_proxy_that_is_there_is_asked_and_no_proxy_passes_it_by(
    tmp_path, monkeypatch
):
    with relaying() as (url, paths), HostileServer(MODEL) as server:
        monkeypatch.setenv("ALL_PROXY", url)
        with pytest.raises(SettingsError, match="has nothing at that address"):
            opened(server, tmp_path)
        assert paths[0] == f"{server.url}/completions"
        assert server.probes == []
        n_asked = len(paths)
        monkeypatch.setenv("NO_PROXY", f"[::1],127.0.0.1:{server.port}")
        with opened(server, tmp_path) as endpoint:
            assert endpoint.capabilities.n == "honoured"
        assert len(paths) == n_asked


# Authorities.


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("authority") / "host.pem")


@contextmanager
def encrypted(certificate: Path) -> Iterator[HostileServer]:
    with HostileServer(MODEL) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listening = server._server
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        yield server


def address_of(server: HostileServer) -> str:
    return server.url.replace("http://", "https://")


def test_an_authority_that_is_named_is_trusted_and_no_other(
    certificate, tmp_path, monkeypatch
):
    with encrypted(certificate) as server:
        settings = {"base_url": address_of(server), "max_retries": 0}
        sentence = (
            "CERTIFICATE_VERIFY_FAILED.*set the environment variable SSL_CERT_FILE"
        )
        with pytest.raises(EngineError, match=sentence):
            opened(server, tmp_path, **settings)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        # The proxy is not for this host, which has no say in whom to trust
        monkeypatch.setenv("HTTPS_PROXY", NOWHERE)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with opened(server, tmp_path, **settings) as endpoint:
            assert endpoint.capabilities.n == "honoured"


@pytest.mark.parametrize(
    ("variable", "value", "fault"),
    [
        ("SSL_CERT_FILE", "{folder}/missing.pem", "where there is no file; give it"),
        ("SSL_CERT_FILE", "{folder}", "where there is no file; give it the file"),
        ("SSL_CERT_FILE", "{folder}/text", "has no certificates in the form PEM"),
        ("SSL_CERT_DIR", "{folder}/missing", "where there is no folder; give it"),
    ],
)
def test_an_authority_that_is_not_there_is_named_before_anything_is_asked(
    variable, value, fault, tmp_path, monkeypatch
):
    (tmp_path / "text").write_text("no certificate")
    path = value.format(folder=tmp_path)
    monkeypatch.setenv(variable, path)
    with HostileServer(MODEL) as server:
        with pytest.raises(SettingsError, match=f"{variable} is '{path}', .*{fault}"):
            opened(server, tmp_path, base_url=address_of(server))
        assert server.probes == []
        # An address without encryption needs no authority
        with opened(server, tmp_path) as endpoint:
            assert endpoint.capabilities.n == "honoured"
