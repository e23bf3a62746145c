"""Characters that show nothing."""

import re

# Unicode's Default_Ignorable_Code_Point: soft hyphen, zero-width characters, direction marks,
# variation selectors, ...
INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Anything but them, blanks, control characters and the Braille pattern without dots.
_VISIBLE = re.compile(rf"[^{INVISIBLE}\s\x00-\x1f\x7f-\x9f\u2800]")


def has_visible(text: str) -> bool:
    """Whether `text` has a character that a reader sees."""
    return _VISIBLE.search(text) is not None
