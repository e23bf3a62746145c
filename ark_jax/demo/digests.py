"""Digests of files that were fetched or made."""

import hashlib
from pathlib import Path


def sha256(path: Path, pin: str = "", fix: str = "") -> str:
    """The SHA-256 of a file.

    Raises:
        RuntimeError: it differs from `pin`; the message ends with `fix`.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if pin and digest != pin:
        raise RuntimeError(
            f"{path}: sha256 of its {path.stat().st_size:,} bytes is {digest}, expected {pin}; "
            f"{fix}"
        )
    return digest
