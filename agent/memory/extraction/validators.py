"""Validators for extraction rules: each returns the reason why a value is refused, or None. Pure."""

import re
from collections.abc import Callable, Sequence

import rjieba

Validator = Callable[..., str | None]
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII)
_CJK = re.compile(r"[\u3400-\u9fff]")
_WORDS = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+(?:['’.\-][^\W\u3400-\u9fff]+)*")
# The most common Chinese surnames of one character; compound surnames are below.
_SURNAMES = frozenset(
    "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛叶阎余潘杜戴夏钟汪田任姜范方"
    "石姚谭廖邹熊金陆郝孔白崔康毛邱秦江史顾侯邵孟龙万段雷钱汤尹黎易常武乔贺赖龚文庞樊兰殷施陶洪翟安颜倪严牛温芦季俞章鲁葛伍韦申尤毕聂"
    "丛焦向柳邢路岳齐沿梅莫庄辛管祝左涂谷祁时舒耿牟卜路詹关苗凌费纪靳盛童欧甄项曲成游阳裴席卫查屈鲍位覃霍翁隋植甘景薄单包司柏宁柯阮桂闵解强柴华车冉房边辜吉宫"
)
_DOUBLE_SURNAMES = (
    "欧阳",
    "上官",
    "司马",
    "诸葛",
    "东方",
    "皇甫",
    "尉迟",
    "公孙",
    "慕容",
    "令狐",
    "司徒",
    "夏侯",
    "端木",
)
_NO_NAME = re.compile(
    r"(?:me|back|here|home|sorry|glad|happy|sad|tired|fine|good|great|ok|okay|sure|ready|new|not|so|very|just|really|in"
    r"|at|on|an?|the|looking|going|trying|thinking|your?|it|this|that|what|who|how|chinese|american|english|student"
    r"|teacher|engineer)",
    re.IGNORECASE,
)
_MUST_NOT_START = frozenset(
    ("it", "this", "that", "these", "those", "them", "you", "your", "him", "her", "how", "what", "when", "if", "there")
)


_UNFINISHED = re.compile(r"\b(?:the|an?|my|our|to|of|and|or|for|with|in|at|on|from|by)$", re.IGNORECASE)


_POINTS_BACK = re.compile(r"\bthese\b(?! days)|\bthose\b(?! (?:who|that|with|of))", re.IGNORECASE)


def number(value: str, *, min: float | None = None, max: float | None = None) -> str | None:
    try:
        amount = float(value)
    except ValueError:
        return "no number"
    if min is not None and amount < min:
        return f"below {min:g}"
    return f"above {max:g}" if max is not None and amount > max else None


def length(value: str, *, min: int = 1, max: int = 80) -> str | None:
    """Checks the number of characters."""
    return None if min <= len(value) <= max else f"{len(value)} characters, not {min} to {max}"


def words(value: str, *, min: float = 0.5, max: float = 12) -> str | None:
    """Checks the number of words; a Chinese character counts as half a word (two per word on average)."""
    count = sum(0.5 if _CJK.match(word) else 1.0 for word in _WORDS.findall(value))
    return None if min <= count <= max else f"{count:g} words, not {min} to {max}"


def email(value: str) -> str | None:
    return None if _EMAIL.fullmatch(value) else "no email address"


def one_of(value: str, *, values: Sequence[str]) -> str | None:
    return None if value.lower() in {known.lower() for known in values} else "none of the values that the rule knows"


def matches(value: str, *, pattern: str) -> str | None:
    return None if re.search(pattern, value) else f"does not match {pattern}"


def lacks(value: str, *, pattern: str) -> str | None:
    match = re.search(pattern, value, re.IGNORECASE)
    return f"has {match.group()!r}" if match else None


def statement(value: str) -> str | None:
    """Refuses questions, values that refer to another sentence ("these kids"), and unfinished values ("use the")."""
    if _UNFINISHED.search(value):
        return "is not finished"
    if _POINTS_BACK.search(value):
        return "points to a sentence before it"
    if re.search(r"[?？]|[吗呢]$|什么|怎么|如何|哪[里儿些个种]", value):
        return "a question"
    first = re.match(r"[A-Za-z']+", value)
    if (first and first.group().lower() in _MUST_NOT_START) or re.match(r"[它他她你您这那]", value):
        return "does not say what is meant"
    return None


def person_name(value: str, *, surname: bool = True) -> str | None:
    """Accepts one to four capitalised words, or a Chinese name of up to four characters (eight with "·"). surname: a
    Chinese name must begin with a known surname."""
    if _CJK.search(value):
        return _chinese_name(value, surname)
    parts = value.split()
    if not 1 <= len(parts) <= 4 or any(
        not part[0].isupper() or not part.replace("-", "").replace("'", "").replace(".", "").replace("’", "").isalpha()
        for part in parts
    ):
        return "no name"
    return "no name" if _NO_NAME.fullmatch(parts[0]) else None


def _chinese_name(value: str, surname: bool) -> str | None:
    if not re.fullmatch(r"[\u3400-\u9fff·]{1,8}", value) or len(value) > (8 if "·" in value else 4):
        return "no name"
    if not surname or "·" in value:
        return None
    known = value[0] in _SURNAMES or value.startswith(_DOUBLE_SURNAMES)
    return None if known and len(value) >= 2 else "does not begin with a surname"


def no_common_word(value: str) -> str | None:
    """Refuses Chinese words that begin with a surname but are not names: 左撇子, 高血压, 单亲妈妈."""
    if not _CJK.search(value) or "·" in value:
        return None
    first, *rest = rjieba.tag(value)
    is_name = (
        first[1].startswith("n") and (len(first[0]) == 1 or first[0] in _DOUBLE_SURNAMES)
        if rest
        else (first[1].startswith(("nr", "x")))
    )
    return None if is_name else "a word that is no name"


_DURATION_ZH = re.compile(
    r"[一二两三四五六七八九十几半多数\d]+个?多?(?:晚|夜|天|日|周|星期|礼拜|月|年|宿|小时|钟头|阵|会儿|段时间|学期|季)[上半多左右]*$"
)


def place(value: str) -> str | None:
    """Accepts 2 to 15 Chinese characters, or up to 9 words of which one begins with a capital letter ("a small town
    near Lyon"). Refuses a duration such as 两晚."""
    if _DURATION_ZH.match(value):
        return "a duration"
    if _CJK.search(value):
        return None if 2 <= len(value) <= 15 else "no place"
    return None if re.search(r"\b[^\W\d_a-z]", value) and len(value.split()) <= 9 else "no name of a place"


VALIDATORS: dict[str, Validator] = {
    f.__name__: f
    for f in (number, length, words, email, one_of, matches, lacks, statement, person_name, no_common_word, place)
}
