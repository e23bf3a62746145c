"""How a user says that files are to be read, where their content does not tell."""

import dataclasses
import io


@dataclasses.dataclass(frozen=True)
class Reading:
    """How files are to be read.

    Attributes:
        encoding: that of all texts; "" detects it for each file.
    """

    encoding: str = ""

    def __post_init__(self):
        try:
            io.TextIOWrapper(io.BytesIO(), self.encoding or "utf-8")
        except LookupError:
            names = "utf-8, utf-16, cp1252, latin-1 or shift_jis"
            raise ValueError(
                f"config.data.encoding: {self.encoding!r} is unknown; name one, such as {names}"
            ) from None
