"""Who may send requests: clients with the token or, if none is set, programs of this machine."""

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

OPEN_PATHS = ("/", "/page.css", "/page.js", "/health")  # they show nothing secret


def is_loopback(host: str) -> bool:
    """Whether a host name or address is that of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(path: str, headers: Headers, token: str) -> tuple[int, str] | None:
    """HTTP status and message of a request that is refused; None if it is not.

    Args:
        token: the token that requests must send; empty: only this machine may send requests.
    """
    if token:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(credentials.strip().encode(), token.encode())
        if path in OPEN_PATHS or (scheme.lower() == "bearer" and is_right):
            return None
        return 401, "wrong or no token; send the header Authorization: Bearer TOKEN"
    # DNS rebinding: another site may point its own name to this machine, to read with a browser.
    name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    if is_loopback(name):
        return None
    return 421, f"this server answers to localhost alone, not to {name!r}"
