"""What the environment says of connections: proxies, and the authorities that are trusted."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable
from importlib.util import find_spec
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from mia_batch.errors import SettingsError, describe_error

_PORTS = {"http": 80, "https": 443}
_PROXY_KINDS = ("http", "https", "socks5", "socks5h")
_SOCKS_PACKAGE = "socksio"
# An entry of NO_PROXY that is a host and a port, or an IPv6 address in brackets
_HOST_AND_PORT = re.compile(
    r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d{1,5}))?"
)


class Proxy(NamedTuple):
    """A proxy, and the environment variable that names it."""

    url: str
    variable: str

    @property
    def shown_url(self) -> str:
        return _hide_password(self.url)


def find_proxy(address: SplitResult) -> Proxy | None:
    """Find the proxy for an address; raise where the environment names one that cannot be used."""
    variable = _find_variable(f"{address.scheme}_proxy", "all_proxy")
    if variable is None or is_direct(address):
        return None
    value = os.environ[variable].strip()
    url = value if "://" in value else f"http://{value}"
    way_out = (
        f"correct or unset it, or add {address.hostname} to NO_PROXY, which lists hosts"
        " that are reached directly"
    )
    fault = _find_fault(url)
    if fault is not None:
        shown = _hide_password(value)
        raise SettingsError(
            f"the environment variable {variable} is {shown!r}, {fault}; {way_out}"
        )
    is_socks = url.lower().startswith("socks")
    if is_socks and find_spec(_SOCKS_PACKAGE) is None:
        raise SettingsError(
            f"the environment variable {variable} is {_hide_password(value)!r}, and a"
            f" SOCKS proxy needs the package {_SOCKS_PACKAGE}, which is not installed;"
            f" install it (pip install {_SOCKS_PACKAGE}), or {way_out}"
        )
    return Proxy(url, variable)


def _find_variable(*names: str) -> str | None:
    """Find the first variable that has a value, in small letters or in capitals."""
    for name in names:
        for spelling in (name, name.upper()):
            if os.environ.get(spelling, "").strip():
                return spelling
    return None


def _find_fault(url: str) -> str | None:
    """Return what is wrong with the address of a proxy."""
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0
        scheme = parts.scheme
    except ValueError:
        is_whole = False
        scheme = ""
    if not is_whole or any(map(str.isspace, url)):
        return "which is not an address of a proxy, such as http://host:3128"
    if scheme not in _PROXY_KINDS:
        kinds = ", ".join(_PROXY_KINDS)
        return f"which is no proxy of a kind that can be used ({kinds})"
    return None


def _hide_password(value: str) -> str:
    """Remove the user's name and password from an address."""
    start, mark, host = value.rpartition("@")
    scheme, slashes, _ = start.partition("://")
    if not mark:
        return value
    return f"{scheme}://...@{host}" if slashes else f"...@{host}"


def is_direct(address: SplitResult) -> bool:
    """Check whether NO_PROXY has the host of an address."""
    variable = _find_variable("no_proxy")
    if variable is None:
        return False
    entries = re.split(r"[,\s]+", os.environ[variable])
    host = (address.hostname or "").rstrip(".").lower()
    port = address.port or _PORTS.get(address.scheme)
    return any(_covers(entry.lower(), host, port) for entry in entries if entry)


def _covers(entry: str, host: str, port: int | None) -> bool:
    """Check whether an entry of NO_PROXY names a host: all, a range, an address, or a suffix."""
    if entry == "*":
        return True
    bare = entry.partition("://")[2] or entry
    name = bare
    network = _parse_network(bare)
    if network is None:
        match = _HOST_AND_PORT.fullmatch(bare)
        if match is None or (match["port"] and int(match["port"]) != port):
            return False
        name = match["v6"] or match["host"] or ""
        network = _parse_network(name)
    if network is not None:
        ip = _parse_ip(host)
        return ip is not None and ip in network
    suffix = name.removeprefix("*").strip(".")
    return bool(suffix) and (host == suffix or host.endswith(f".{suffix}"))


def _parse_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _parse_ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        ip = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


# Authorities by whose certificates servers are known.

_CA_FILE = "SSL_CERT_FILE"
_CA_FOLDERS = "SSL_CERT_DIR"


def build_trust(schemes: Iterable[str]) -> ssl.SSLContext | None:
    """Build what certificates are checked by; None where the environment names no authority."""
    if "https" not in schemes:  # so that no certificate is looked at
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file = os.environ.get(_CA_FILE)
    if file:
        return _load_file(file)
    folders = os.environ.get(_CA_FOLDERS)
    return _load_folders(folders) if folders else None


def _load_file(file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:  # an error of TLS is one, too
        fault = "which has no certificates in the form PEM"
        if not Path(file).is_file():
            fault = "where there is no file"
        elif not isinstance(error, ssl.SSLError):
            fault = f"which cannot be read ({describe_error(error)})"
        raise SettingsError(
            f"the environment variable {_CA_FILE} is {file!r}, {fault}; give it the"
            " file of certificates of the authorities that you trust, or unset it"
        ) from None


def _load_folders(folders: str) -> ssl.SSLContext:
    if not any(Path(folder).is_dir() for folder in folders.split(os.pathsep)):
        raise SettingsError(
            f"the environment variable {_CA_FOLDERS} is {folders!r}, where there is no"
            " folder; give it the folder of certificates of the authorities that you"
            " trust, or unset it"
        )
    return ssl.create_default_context(capath=folders)
