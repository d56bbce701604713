"""URLs of webhooks, and the addresses to which deliveries may be sent.

A receiver on the internet is reached by https at one of the usual ports. Addresses that are not public are reached
only if the operator's allow-list contains them.
"""

import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from holdfast.domain import errors, limits, validation

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORTS: Final = (443, 8443)
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
# The forms of IPv6 addresses that contain an IPv4 address to which a gateway may forward.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = (
    ipaddress.ip_network("64:ff9b:1::/48"),
    ipaddress.ip_network("100.64.0.0/10"),
    ipaddress.ip_network("192.88.99.0/24"),
    ipaddress.ip_network("fec0::/10"),
    ipaddress.ip_network("5f00::/16"),
    ipaddress.ip_network("3fff::/20"),
)


class WebhookUrl(NamedTuple):
    """The parts of a valid URL."""

    scheme: str
    host: str
    """In lower case, without brackets."""
    port: int
    target: str
    """Path and query."""

    @property
    def authority(self) -> str:
        """The host, with the port unless it is the default of the scheme, as in the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The URL without path and query."""
        return f"{self.scheme}://{self.authority}"


def parse_url(url: object, field: str) -> WebhookUrl:
    """Return the parts of *url*, or raise `InvalidInput`.

    A URL is refused that has user information or a fragment, that uses http, or a port other than 443 and 8443;
    http and other ports are for receivers that are known not to be public: an address that is not public, localhost,
    or a name without a dot. Only an allow-list lets deliveries reach those.
    """
    text = validation.name(url, field, limits.URL_CHARS_MAX)
    if not text.isascii() or any(character.isspace() or character in '\\"<>^`{|}' for character in text):
        raise errors.InvalidInput(field, "contains a character that must be percent-encoded")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise errors.InvalidInput(field, "is not a URL; write https://host/path") from None
    host = (parts.hostname or "").rstrip(".")
    if parts.scheme not in _DEFAULT_PORTS or not host:
        raise errors.InvalidInput(field, "must start with https:// and a host")
    if "@" in parts.netloc:
        raise errors.InvalidInput(field, "must not contain a user name or password")
    if "#" in text:
        raise errors.InvalidInput(field, "must not contain a fragment")
    if "%" in host:
        raise errors.InvalidInput(field, "must not name a network interface")
    if parts.port == 0:
        raise errors.InvalidInput(field, "has port 0")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    found = WebhookUrl(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], target)
    if not _is_internal(host, field):
        if found.scheme != "https":
            raise errors.InvalidInput(field, "must use https")
        if found.port not in _PORTS:
            raise errors.InvalidInput(field, f"has port {found.port}; the ports of public receivers are 443 and 8443")
    return found


def check_url(url: object, field: str) -> str:
    """Return *url* if `parse_url` accepts it."""
    parse_url(url, field)
    return str(url)


def _is_internal(host: str, field: str) -> bool:
    """Return whether a host is known not to be public; raise `InvalidInput` for an unusual form of an address."""
    try:
        return not is_public(ipaddress.ip_address(host))
    except ValueError:
        pass
    last = host.rpartition(".")[2]
    if ":" in host or last.isdigit() or last.startswith("0x"):
        # Resolvers read 0177.1 and 2130706433 as addresses.
        raise errors.InvalidInput(field, "has a host that is neither a name nor an address in its usual form")
    return "." not in host


def is_public(address: Address) -> bool:
    """Return whether *address*, and every address that it contains, belongs to the public internet."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or int(address) >> 32 == 0:
            return False
    if address.is_multicast or address.is_reserved or not address.is_global:
        return False
    return not any(address in network for network in _NOT_PUBLIC if network.version == address.version)


def parse_networks(text: str, field: str) -> tuple[Network, ...]:
    """Return the networks of a list such as `127.0.0.0/8,10.1.2.3`, or raise `InvalidInput`."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ipaddress.ip_network(part))
        except ValueError as error:
            raise errors.InvalidInput(field, f"{part!r} is not a network such as 127.0.0.0/8: {error}") from None
    return tuple(found)


def refusal(scheme: str, addresses: Sequence[str], allowed: Sequence[Network]) -> str | None:
    """Return why nothing is sent to a host with *addresses*; None if each of them may be connected to.

    http is used only for addresses of the allow-list: its content could be read and changed on the way.
    """
    for text in addresses:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return f"{text} is not an address"
        if any(address in network for network in allowed if network.version == address.version):
            continue
        if not is_public(address):
            return f"{text} is not a public address; HOLDFAST_WEBHOOK_ALLOW can allow it"
        if scheme != "https":
            return "http is used for addresses of HOLDFAST_WEBHOOK_ALLOW only"
    return None if addresses else "the host has no address"
