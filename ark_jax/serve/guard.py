"""Who may send requests: clients with the token or, if none is set, programs of this machine."""

import hmac
import ipaddress
import re

from starlette.datastructures import Headers

OPEN_PATHS = ("/", "/page.css", "/page.js", "/health", "/readyz")  # they show nothing secret
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([\w.-]+))(?::\d*)?", re.I)


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
    if "content-length" in headers and "transfer-encoding" in headers:
        # A proxy may believe the other one, and take the end of the body for the next request.
        return 400, "the request has both Content-Length and Transfer-Encoding; send one"
    if token:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(credentials.strip().encode(), token.encode())
        if path in OPEN_PATHS or (scheme.lower() == "bearer" and is_right):
            return None
        return 401, "wrong or no token; send the header Authorization: Bearer TOKEN"
    # DNS rebinding: another site may point its own name to this machine, to read with a browser.
    host = headers.get("host", "")
    match = HOST.fullmatch(host)
    if match and is_loopback((match[1] or match[2]).lower()):
        return None
    return 421, f"this server answers to localhost alone, not to {host[:100]!r}"
