"""Splits English and Chinese text into words and sentences for the offline models."""

import re
from collections.abc import Iterator

from turnlog.projectors.models.terms import STOPWORDS_EN, STOPWORDS_ZH

CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
# A full stop ends a sentence only before white space and a capital letter, digit or Chinese character, and not after an
# abbreviation: not in 3.5, e.g. or turnlog.toml.
_ABBREVIATION = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|No|Fig|approx)|\b[A-Z])\.$")
_BREAK = re.compile(r"(?<=[。！？；…])[”’」』）]*|(?<=[.!?])[\"'”’)]*\s+(?=[\"'“‘(]?[A-Z0-9\u4e00-\u9fff])|\n+")
_RUN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+|[A-Za-zÀ-ɏ0-9][\w.'’+#-]*[A-Za-zÀ-ɏ0-9+#]|\d+")
# A speaker's name of up to 3 words and a colon; more words before a colon are part of a sentence.
_SPEAKER = re.compile(r"^\s*([^\W\d_][\w.\-]*(?: [\w.\-]+){0,2})\s*[:：]\s+")

_ENGLISH = """
others moment moments inspiring inspired inspires lovely wonderful fantastic proud excited thankful grateful glad
matter matters kinda wanna gotta plus ah aw aww y'all means hear heard stay keeping bring brings brought helped helps
interesting believe excellent perfect congrats congratulations journey lately recently check real full half
a about above actually after again all almost also although always am an and another any anyone anything are
around as ask asked at away back be because become been before being below best better between big bit both
but by bye call came can can't cannot come coming could couldn't course day days definitely did didn't do
does doesn't doing don't done down each either else end enough especially even ever every everyone
everything exactly far feel feeling felt few find first for found from fun further gave get gets getting
give given glad go goes going gone gonna good got great had happen happy hard has hasn't have haven't having
he he's hello help hey hi him his hope hot how however i i'd i'll i'm i've idea if important in instead into
is isn't it it's its just keep kind know last later least less let let's like little ll long look looking
lot lots love made make makes making many may maybe me mean might mine more most much must my myself need
needs never new next nice no not nothing now of off oh ok okay old on once one ones only open or other our
out over own part people person place please pretty probably put quite rather re really remember right said
same saw say saying says see seem seems seen set she she's should since so some someone something sometimes
soon sorry still stuff such super sure take taken takes taking talk tell than thank thanks that that's the
their them then there there's these they they're thing things think this those though thought through time
times to today together told tomorrow tonight too took totally tried true try trying two under until up us
use used using ve very wait want wanted wants was wasn't way we we'll we're we've week well went were what
what's when where whether which while who why will wish with within without won't work works worth would
wouldn't wow yeah year years yes yesterday yet you you'd you'll you're you've your yours cool amazing
awesome absolutely sounds sound thinking agree start started share guess guys happened mentioned working
haha user assistant system tool turn message none null true false http https www com
"""
_CHINESE = """
的 了 是 我 你 他 她 它 我们 你们 他们 这 那 这个 那个 这些 那些 什么 怎么 怎样 如何 为什么 哪些 哪个 吗 呢 吧 啊
和 与 及 或 而 但 但是 因为 所以 如果 就 也 都 还 很 最 更 在 有 没有 不 要 会 能 可以 应该 需要 想 说 问 看
做 用 对 把 被 从 到 给 让 上 下 中 里 时候 时间 问题 事情 东西 情况 方面 大家 自己 别人 今天 明天 昨天 现在 以后
以前 之前 之后 然后 已经 一下 一些 一个 有点 比较 可能 知道 觉得 认为 谢谢 好的 请问 您好 你好 建议 方式 方法 内容
部分 结果 意思 地方 办法 用户 助手 系统 工具 消息 回答 帮助
"""
# Words that are never topics: the stop words of the search, common verbs and small talk.
ENGLISH_STOPS = STOPWORDS_EN | frozenset(_ENGLISH.split())
CHINESE_STOPS = STOPWORDS_ZH | frozenset(_CHINESE.split())


def is_chinese(text: str) -> bool:
    """Returns whether more than a fifth of the letters and digits are Chinese, so that mixed text counts as Chinese."""
    letters = sum(1 for char in text if char.isalnum())
    return letters > 0 and len(CJK.findall(text)) / letters > 0.2


def split_speaker(text: str) -> tuple[str, str]:
    """Splits `Caroline: hello` into ("Caroline", "hello"); returns ("", text) for a text without a speaker."""
    match = _SPEAKER.match(text)
    return (match.group(1), text[match.end() :]) if match else ("", text)


def sentences(text: str) -> list[str]:
    """Returns the sentences of mixed English and Chinese text, without surrounding white space."""
    parts: list[str] = []
    for part in filter(None, (piece.strip() for piece in _split(text))):
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] = f"{parts[-1]} {part}"
        else:
            parts.append(part)
    return parts


def _split(text: str) -> Iterator[str]:
    start = 0
    for match in _BREAK.finditer(text):
        if match.end() > start:
            yield text[start : match.end()]
            start = match.end()
    yield text[start:]


def content_words(text: str) -> set[str]:
    """Returns the words of a text in lower case, except function words, small talk and Chinese words of one
    character."""
    import rjieba  # imported here because it takes a quarter of a second to load, which many commands do not need

    words: set[str] = set()
    for run in _RUN.findall(text):
        if CJK.match(run):
            words.update(w for w in rjieba.cut(run) if len(w) > 1 and w not in CHINESE_STOPS)
        elif run.lower().replace("’", "'") not in ENGLISH_STOPS:
            words.add(run.lower())
    return words
