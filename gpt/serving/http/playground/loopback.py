"""Who may start and stop a training: a person at this machine, from the page of this server.

The server's guard has refused pages of other sites and names that are not the server's. What starts a process asks for
more: a loopback address at both ends, no proxy between, and a token that only the page of this server could read.
"""

import hmac
import ipaddress
import secrets
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from gpt.serving.http.errors import APIError

TOKEN_HEADER = "X-Training-Token"
"""No form can send it, and a script of another site must first ask, which this server refuses."""
PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class Loopback:
    """Checks requests.

    Attributes:
        token: this process's token, which the page reads and sends with requests that change something.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)

    def check(self, request: HTTPConnection) -> None:
        """Make sure that a request comes from this machine and was meant for it.

        Raises:
            APIError: it does not, or was not.
        """
        if request.client is None or not is_loopback(request.client.host):
            raise APIError(403, "training can only be seen and started from the machine that the server runs on")
        if any(name in request.headers for name in PROXY_HEADERS):
            raise APIError(403, "training cannot be seen or started through a proxy")
        host = request.headers.get("host", "")
        if not _names_loopback(f"//{host}"):
            raise APIError(403, "training can only be seen and started at http://127.0.0.1 or http://localhost")
        origin = request.headers.get("origin")
        if origin is not None and (not _names_loopback(origin) or urlsplit(origin).netloc.lower() != host.lower()):
            raise APIError(403, "training can only be seen and started from this server's own page")

    def check_change(self, request: HTTPConnection) -> None:
        """Make sure that a request that changes something comes from the page, see `check`.

        Raises:
            APIError: it does not.
        """
        self.check(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise APIError(403, "send a JSON object as Content-Type: application/json")
        given = request.headers.get(TOKEN_HEADER, "")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise APIError(403, f"the header {TOKEN_HEADER} is not the token that /api/training gives; reload the page")


def is_loopback(host: str) -> bool:
    """Return whether an address is one of the loopback interface, IPv4 mapped into IPv6 included."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _names_loopback(url: str) -> bool:
    """Return whether the host of a URL is localhost or a loopback address."""
    try:
        name = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return name == "localhost" or is_loopback(name)
