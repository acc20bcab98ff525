"""Finds topics without a language model: noun-like phrases in English and Chinese, with their numbers of mentions.

English phrases are found by RAKE (Rose et al. 2010), as runs of words between stop words and punctuation; Chinese
phrases by part of speech, as runs of nouns. No library is used, because YAKE (LGPL) has no Chinese segmentation, and
the other packages need a download or are unmaintained.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from turnlog.agent.models.language import CHINESE_STOPS, CJK, ENGLISH_STOPS, split_speaker

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9+#'’.-]*[A-Za-z0-9+#]|[A-Za-z]|\d+|[^\w\s]")
# Tags of rjieba: nouns and names, verbal and adjectival nouns, Latin words, abbreviations, set phrases, idioms.
_NOUNS = ("n", "vn", "an", "eng", "j", "l", "i")
_NO_TOPIC_ENDING = re.compile(r"(?:ly|n't)$")
MAX_WORDS = 3


def topics(texts: Sequence[str], limit: int) -> dict[str, int]:
    """Returns {topic: number of mentions} for at most `limit` topics, the most important first. Deterministic."""
    counts: Counter[str] = Counter()
    shown: dict[str, str] = {}
    said = [split_speaker(text) for text in texts]
    names = {speaker.casefold() for speaker, _ in said}
    for _, text in said:
        for phrase in phrases(text):
            if _is_name(phrase.casefold(), names):
                continue
            counts[phrase.casefold()] += 1
            shown.setdefault(phrase.casefold(), phrase)
    chosen: list[str] = []
    for key in sorted(counts, key=lambda k: -_weight(k, counts[k])):
        if len(chosen) == limit:
            break
        if not any(_overlap(key, other) for other in chosen):
            chosen.append(key)
    return {shown[key]: counts[key] for key in chosen}


def _is_name(phrase: str, names: set[str]) -> bool:
    """Returns whether a phrase is a speaker's name or its beginning (Mel for Melanie), because speakers are not
    topics."""
    return any(name == phrase or (len(phrase) > 2 and name.startswith(phrase)) for name in names if name)


def phrases(text: str) -> list[str]:
    """Returns the candidate topics of one text, one entry per mention: every sequence of up to MAX_WORDS words within a
    run of words that can belong to a topic."""
    candidates: list[str] = []
    for run in [*_english_runs(text), *_chinese_runs(text)]:
        spans = [run[i:j] for i in range(len(run)) for j in range(i + 1, min(i + MAX_WORDS, len(run)) + 1)]
        candidates += [_joined(span) for span in spans]
    return [phrase for phrase in candidates if _could_be_a_topic(phrase)]


def _english_runs(text: str) -> Iterator[list[str]]:
    """Yields runs of words without stop words. A run ends at punctuation, numbers and Chinese."""
    for stretch in re.split(r"\n|" + CJK.pattern + "+", text):
        run: list[str] = []
        for word in [*_WORD.findall(stretch), "."]:
            plain = word.lower().replace("’", "'")
            if word[0].isalpha() and plain not in ENGLISH_STOPS and not _NO_TOPIC_ENDING.search(plain):
                run.append(word if word.isupper() else plain.removesuffix("'s"))
            else:
                yield from ([run] if run else [])
                run = []


def _chinese_runs(text: str) -> Iterator[list[str]]:
    """Yields runs of noun-like words that include Chinese; a verb may follow a word in Latin letters (API认证)."""
    if not CJK.search(text):
        return
    import rjieba  # slow to load, as in language.py

    run: list[str] = []
    for word, tag in [*rjieba.tag(text), ("。", "x")]:
        verb_after_latin = tag == "v" and run and run[-1].isascii() and len(word) > 1
        is_noun = tag.startswith(_NOUNS) and word not in CHINESE_STOPS
        if (is_noun or verb_after_latin) and word.lower() not in ENGLISH_STOPS:
            run.append(word)
            continue
        if any(CJK.search(part) for part in run):
            yield run
        run = []


def _joined(run: Sequence[str]) -> str:
    return "".join(run) if any(CJK.search(word) for word in run) else " ".join(run)


def _could_be_a_topic(phrase: str) -> bool:
    if CJK.search(phrase):
        return len(phrase) >= 2 and phrase not in CHINESE_STOPS
    return len(phrase) > 2 or phrase.isupper()


def _weight(phrase: str, mentions: int) -> float:
    """Returns the weight of a phrase. Repeated and specific phrases weigh more: a phrase of two words said twice
    outweighs a word said four times."""
    words = len(phrase.split()) if not CJK.search(phrase) else 1 + (len(phrase) > 3)
    return (mentions - 0.5) * (3.0 if words > 1 else 1.0) + 0.01 * min(len(phrase), 20)


def _overlap(phrase: str, other: str) -> bool:
    """Returns whether one phrase is part of the other, so that as topics they would repeat each other."""
    if CJK.search(phrase + other):
        return phrase in other or other in phrase
    return set(phrase.split()) <= set(other.split()) or set(other.split()) <= set(phrase.split())
