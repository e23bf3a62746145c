"""Who may send requests: clients with the token or, if none is set, programs of this machine."""

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

OPEN_PATHS = ("/", "/page.css", "/page.js", "/health")  # they tell nothing that is secret


def is_loopback(host: str) -> bool:
    """Whether a host name or address is that of this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal(path: str, headers: Headers, token: str) -> tuple[int, str] | None:
    """Status and message for a request that may not be answered; None: it may.

    Args:
        token: what requests must bear; empty: the server is for this machine alone.
    """
    if token:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(credentials.strip().encode(), token.encode())
        if path in OPEN_PATHS or (scheme.lower() == "bearer" and is_right):
            return None
        return 401, "wrong or no token; send the header Authorization: Bearer TOKEN"
    # A page elsewhere may give its own name this machine's address; a browser would let it read.
    name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    if is_loopback(name):
        return None
    return 421, f"this server answers to localhost alone, not to {name!r}"
