"""Addresses of servers: what is a good one, what a message may show of it, and how the environment says to get there.

A proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) leads to other machines, never to this one. Certificates are checked
against the system's and certifi's, or against those of SSL_CERT_FILE or REQUESTS_CA_BUNDLE alone. Which addresses everybody
can reach, and which are of this machine, its network or its cloud, is known here too.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import re
import ssl
import urllib.request
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from parallelsearch.errors import UsageError

_AUTHORITY = re.compile(r"(?:[\w.~%-]+|\[[0-9A-Fa-f:.]+\])(?::\d*)?(?=[/?#]|$)")
_BETWEEN_URLS = re.compile(r"([\s,])")
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
CA_HINT = f"For a certificate authority of your own set {CA_VARIABLES[0]} to a file with its certificate"


def checked_url(url: str, what: str) -> str:
    """The address without white space and final slash, or a `UsageError` that says what is wrong with it."""
    url = url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise UsageError(f"{what} needs an address such as http://127.0.0.1:8000, not '{without_secrets(url)}'")
    return url


def with_version(url: str, version: str | None) -> str:
    """The base address of an API of Azure with the date of its version, which stands behind every path below it."""
    return url if version is None else f"{url}{'&' if '?' in url else '?'}api-version={quote(version, safe='')}"


def without_secrets(url: str) -> str:
    """The address as a message or a manifest may show it: no user, password, query or fragment."""
    before, at, rest = url.partition("://")
    if not at:
        return url.rpartition("@")[2].partition("?")[0]
    # Not by the first slash: a password may hold one, as it was typed, and ? and # too. What stands before an @ is not
    # shown, even if it was a path; only behind the ? of a good address an @ is a matter of course.
    shown = re.split("[?#]", rest, maxsplit=1)[0]
    if "@" in shown or not _AUTHORITY.match(rest):
        shown = re.split("[?#]", rest.rpartition("@")[2], maxsplit=1)[0]
    return f"{before}://{shown}"


def without_login(address: str) -> str:
    """An address of this package, in which several URLs may stand, without users and passwords; what else it says stays."""
    return "".join(_without_login(piece) for piece in _BETWEEN_URLS.split(address))


def _without_login(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    _, at, host = rest.partition("@")
    if not mark or not at:
        return url
    more, at, behind = host.partition("@")  # a password may hold one
    return f"{scheme}{mark}{behind if at and '/' not in more else host}"


@functools.lru_cache(maxsize=1024)  # a server asks this of every request
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SPECIAL = (
    ipaddress.IPv4Network("192.0.0.0/24"),  # protocol assignments; 192.0.0.192 is a cloud's metadata service
    ipaddress.IPv4Network("192.88.99.0/24"),  # relays of 6to4
    ipaddress.IPv4Network("168.63.129.16/32"),  # of Azure: a public address that means the host of the virtual machine
)


def is_public(address: str) -> bool:
    """Whether an IP address is one that everybody reaches alike. Not those of this machine, its network and its cloud, nor
    IPv6 ones that stand for such. Of the many ways to write an address only the usual one counts."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        behind = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF) if ip in _NAT64 else ip.sixtofour
        if behind is None:
            # All other blocks, of IPv4 in IPv6 too, have a meaning on one machine or in one network only.
            return ip in _UNICAST and ip.scope_id is None and ip.is_global
        ip = behind
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _SPECIAL)


def proxy_for(scheme: str, host: str, port: int | None) -> str | None:
    """The proxy that the environment names for an address; none for this machine, which no proxy leads to."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    where = host if port is None else f"{host}:{port}"
    if not proxy or is_loopback(host) or urllib.request.proxy_bypass(where) or _is_in_bypassed_net(host, proxies):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise UsageError(
            f"the proxy {without_secrets(proxy)} is of a kind that is not supported; name one that begins with http://"
        )
    return proxy


def _is_in_bypassed_net(host: str, proxies: Mapping[str, str]) -> bool:
    """NO_PROXY may hold networks (10.0.0.0/8), which the standard library takes for names."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    for entry in proxies.get("no", "").split(","):
        try:
            if "/" in entry and address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


def tls_context() -> ssl.SSLContext:
    """What a server's certificate is checked against."""
    name = next((name for name in CA_VARIABLES if os.environ.get(name)), None)
    return _made_tls_context(name, os.environ[name] if name else "", os.environ.get("SSL_CERT_DIR", ""))


@functools.lru_cache(maxsize=8)  # reading the certificates takes 20 ms
def _made_tls_context(name: str | None, path: str, folder: str) -> ssl.SSLContext:
    try:
        if name is not None:
            is_folder = os.path.isdir(path)
            return ssl.create_default_context(cafile=None if is_folder else path, capath=path if is_folder else None)
        context = ssl.create_default_context()  # the system's own, and SSL_CERT_DIR
        if not folder:
            import certifi

            context.load_verify_locations(certifi.where())
        return context
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the certificates that {name or 'certifi'} names cannot be read: {path} ({error})") from error
