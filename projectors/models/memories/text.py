"""Makes normal forms, by which memories and entities are compared. Pure."""

import hashlib
import re
import unicodedata

MAX_NAME_CHARS = 200
_SPACE = re.compile(r"\s+")
_ENDING = " .,;:!?。，；：！？、…~"


def normal(text: str) -> str:
    """Returns the text with case, width and spaces folded, and without punctuation at the end."""
    folded = text.casefold()
    if not text.isascii():
        folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _SPACE.sub(" ", folded).strip().rstrip(_ENDING)


def content_key(kind: str, content: str) -> bytes:
    """Returns the SHA-256 of kind and normalised content; it is equal for memories of the same kind with the same
    words."""
    return hashlib.sha256(f"{kind}\n{normal(content)}".encode()).digest()


def name_key(name: str) -> str:
    """Returns an entity's name in normal form. A very long name is cut and hashed, because the size of index rows is
    limited."""
    folded = normal(name) or name
    if len(folded) <= MAX_NAME_CHARS:
        return folded
    return f"{folded[: MAX_NAME_CHARS // 2]}…{hashlib.sha256(folded.encode()).hexdigest()}"
