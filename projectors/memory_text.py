"""Normal forms by which memories and entities are the same, whoever wrote them how. Pure."""

import hashlib
import re
import unicodedata

MAX_NAME_CHARS = 200
_SPACE = re.compile(r"\s+")
_ENDING = " .,;:!?。，；：！？、…~"


def normal(text: str) -> str:
    """Case, width and spaces folded; without the punctuation at the end."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return _SPACE.sub(" ", folded).strip().rstrip(_ENDING)


def content_key(kind: str, content: str) -> bytes:
    """SHA-256 of what a memory says: two of one kind with the same key say the same words."""
    return hashlib.sha256(f"{kind}\n{normal(content)}".encode()).digest()


def name_key(name: str) -> str:
    """An entity's name in normal form. A very long one is cut and hashed, for index rows are bounded."""
    folded = normal(name) or name
    if len(folded) <= MAX_NAME_CHARS:
        return folded
    return f"{folded[: MAX_NAME_CHARS // 2]}…{hashlib.sha256(folded.encode()).hexdigest()}"
