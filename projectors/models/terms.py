"""Makes search terms from English, Chinese and mixed text, in the same way for chunks and queries. Pure.

Postgres has no Chinese parser, and its English parser drops words that people search for (`snake_case`, `bob@x.org`),
so turnlog makes the terms itself and stores them as text[]. A term contains no space, quote, backslash or NUL.
English words are stemmed by Snowball English (Porter 2).
"""

import re
import unicodedata
from functools import lru_cache
from pathlib import Path

import Stemmer

from turnlog.events.personal_data_caches import caches_words

MAX_TERM_CHARS = 64
MAX_TERMS = 2048
MAX_CHARS = 100_000
CACHED_CHARS = 32  # words up to this length are likely to recur; longer words would only fill the cache

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

_ENGLISH = """
a about above after again against all am an and any are aren't as at be because been before being below
between both but by can can't cannot could couldn't did didn't do does doesn't doing don't down during
each few for from further had hadn't has hasn't have haven't having he he'd he'll her here hers herself
him himself his how i i'd i'll i'm i've if in into is isn't it its itself just let's me more most my
myself no nor not now of off on once only or other our ours ourselves out over own same shall shan't she
she'd she'll should shouldn't so some such than that the their theirs them themselves then there these
they they'd they'll they're they've this those through to too under until up us very was wasn't we we'd
we'll we're we've were weren't what when where which while who whom why will with won't would wouldn't
you you'd you'll you're you've your yours yourself yourselves
"""
_CHINESE = """
的 了 是 我 你 他 她 它 们 我们 你们 他们 她们 在 有 和 与 也 就 都 不 吗 呢 吧 啊 呀 哦 嗯 很 这 那
这个 那个 一个 个 什么 怎么 谁 哪 哪里 哪些 哪个 多少 几 会 要 说 到 对 把 被 让 给 从 还 又 着 过 得
地 之 年 日 号 曾经 曾 么 为什么 为什 怎样 怎么样 如何 哪儿 没有
"""
# Function words and question words, which tell the kind of answer that is wanted, not its subject.
STOPWORDS_EN = frozenset(_ENGLISH.split())
STOPWORDS_ZH = frozenset(_CHINESE.split())
# People also omit the apostrophe ("dont", "ive"), but "shell", "ill" and "id" are different words.
_STOP = STOPWORDS_EN | {w.replace("'", "") for w in STOPWORDS_EN if w.endswith(("n't", "'m", "'ve", "'re"))}

_CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_LETTER = rf"[^\W_{_CJK}]"
_WORD = re.compile(
    rf"(?<!\d)(?:1[0-2]|0?[1-9])月|(?<=\d)[年日号]|[{_CJK}]+"
    rf"|\d{{1,3}}(?:,\d{{3}})+|[@#]?{_LETTER}+(?:['@._\-]+{_LETTER}+)*(?:\+\+|\#)?"
)
_ASCII_WORD = re.compile(r"\d{1,3}(?:,\d{3})+|[@#]?[A-Za-z0-9]+(?:['@._\-]+[A-Za-z0-9]+)*(?:\+\+|#)?")
_PART = re.compile(r"[A-Z]?[^\W\dA-Z_]+|[A-Z]+(?![^\W\dA-Z_])|\d+|[^\W_]+")
_ISO_DATE = re.compile(r"(\d{4})-(0?[1-9]|1[0-2])-(\d{1,2})")
_AREAS = "都道府县市区州"  # the last character of an area's name: 东京都, 深圳市
_KANA = re.compile(r"[\u3040-\u30ff]")
_CJK_RUN = re.compile(rf"[{_CJK}]")
_APOSTROPHES = str.maketrans("\u2018\u2019\u02bc\uff07`\u00b4", "''''''")
# Snowball in C stems as its Python package does, in a fiftieth of the time. It has no cache, which would keep people's
# words.
_stem = Stemmer.Stemmer("english", 0).stemWord


def terms(text: str) -> list[str]:
    """Returns up to MAX_TERMS search terms of `text` in order, with repeats, because BM25 counts them."""
    all_terms: list[str] = []
    for word in _words(text[:MAX_CHARS]):
        all_terms.extend(_expand_often(word) if len(word) <= CACHED_CHARS else _expand(word))
        if len(all_terms) >= MAX_TERMS:
            return all_terms[:MAX_TERMS]
    return all_terms


def has_words(text: str, words: str) -> bool:
    """Returns whether the text contains these words in this order as entire words, ignoring case and spaces.

    "corgi" is a word, "c" is not; 生日 is a word, 日 is not.
    """
    boundaries, pieces = _boundaries(text)
    wanted = "".join(_boundaries(words)[1])
    whole = "".join(pieces)
    at = whole.find(wanted)
    while wanted and at >= 0:
        if at in boundaries and at + len(wanted) in boundaries:
            return True
        at = whole.find(wanted, at + 1)
    return False


def _boundaries(text: str) -> tuple[set[int], list[str]]:
    """Returns the positions at which the words of a text begin and end when spaces and marks are removed, and the
    words."""
    import rjieba

    pieces, boundaries, at = list[str](), {0}, 0
    for run in re.findall(rf"[{_CJK}]+|{_LETTER}+", unicodedata.normalize("NFKC", text[:MAX_CHARS]).casefold()):
        for word in rjieba.cut(run) if _CJK_RUN.match(run) else (run,):
            pieces.append(word)
            at += len(word)
            boundaries.add(at)
    return boundaries, pieces


def _words(text: str) -> list[str]:
    """Returns raw words. ASCII text takes a fast path; other text is normalised first."""
    if text.isascii():
        return _ASCII_WORD.findall(text)
    text = unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)).translate(_APOSTROPHES)
    return [match.group() for match in _WORD.finditer(text)]


def _expand(word: str) -> tuple[str, ...]:
    if _CJK_RUN.search(word):
        return _chinese(word)
    lower = word.lower()
    if lower in _STOP:
        return ()
    if lower.isalpha() and (word == lower or word.istitle()):
        return (_english(lower),)
    return _compound(word)


_expand_often = lru_cache(maxsize=100_000)(_expand)
caches_words(_expand_often.cache_clear)


def _english(lower: str) -> str:
    """Returns a word without accents (café finds cafe), stemmed."""
    if not lower.isascii():
        folded = unicodedata.normalize("NFKD", lower)
        lower = "".join(char for char in folded if not unicodedata.combining(char)) or lower
    return str(_stem(lower))[:MAX_TERM_CHARS]


def _compound(word: str) -> tuple[str, ...]:
    """Returns a compound word and its parts, each once: `snake_case`, camelCase, e-mail, @handle, 2023-05-08, 10th."""
    if "," in word:
        return (word.replace(",", ""),)
    if date := _ISO_DATE.fullmatch(word):
        return (word, date[1], _month(int(date[2])), date[3].lstrip("0") or "0")
    if "'" in word:
        word = re.sub(r"'(?:s|d|m|re|ve|ll)?$|'(?=s\b)", "", word.lower()).replace("'", "")
    whole = word.lower().replace("-", "") if word[:1].isalpha() else word.lower()
    parts = [part.lower() for part in _PART.findall(word)]
    simple = [] if parts == [whole] else [_simple(whole)]
    simple.extend(_simple(part) for part in parts if part not in _STOP)
    return tuple(dict.fromkeys(term for term in simple if term))


def _simple(word: str) -> str:
    if word.isdigit():
        return (word.lstrip("0") or "0")[:MAX_TERM_CHARS]
    return _english(word) if word.isalpha() else word[:MAX_TERM_CHARS]


def _chinese(run: str) -> tuple[str, ...]:
    """Returns words and the words within them; where the dictionary has no word, characters and pairs of characters.
    All terms are in simplified characters, so that 电商 finds 電商.

    The pairs are for names and for Japanese: 曼婷 finds 张曼婷, タワー finds 東京タワー.
    `5月` becomes the term of `May`.
    """
    if run[0].isdigit():
        return (_month(int(run[:-1])),)
    import rjieba  # loading takes a quarter of a second, so that only Chinese text waits for it

    all_terms: list[str] = []
    letters = ""  # consecutive words of one character
    for word in (*rjieba.cut(run.translate(_simplified())), ""):
        if len(word) == 1 and word not in STOPWORDS_ZH:
            letters += word
            continue
        all_terms += [letter for letter in letters if not _KANA.match(letter)] + _pairs(letters)
        all_terms += [part[:MAX_TERM_CHARS] for part in (*_within(word), word) if part and part not in STOPWORDS_ZH]
        letters = ""
    return tuple(all_terms)


@lru_cache
def _simplified() -> dict[int, str]:
    """Returns a map from traditional to simplified characters, that of OpenCC's t2s without its dictionary of words."""
    traditional, simplified = Path(__file__).with_name("simplified.txt").read_text("utf-8").splitlines()
    return str.maketrans(dict(zip(traditional, simplified, strict=True)))


def _pairs(letters: str) -> list[str]:
    return [letters[at : at + 2] for at in range(len(letters) - 1)]


def _within(word: str) -> list[str]:
    """Returns the words within a word: 東京 for 東京都, but not 京都."""
    import rjieba

    parts = [part for part in rjieba.cut_for_search(word) if part != word] if len(word) > 2 else []
    if len(word) == 3 and word[2] in _AREAS:
        parts = [part for part in parts if word.startswith(part)]
    return _pairs(word) if len(word) == 3 and not parts else parts


def _month(number: int) -> str:
    return _english(MONTHS[number - 1].lower())
