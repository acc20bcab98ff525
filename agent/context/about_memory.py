"""Recognises messages about the memory itself: requests to forget something or everything, and questions about
everything that is known. Pure."""

import re


def _any(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


# "Forget my birthday", 忘了我的生日吧, 把我的生日忘了; not "I forgot my keys", 别忘了我的药.
_FORGET = _any(
    r"^\W*(?:(?:please|pls|can you|could you|would you|ok|okay|hey|now|and|also|then)\W+)*"
    r"(?:forget|(?:do not|don['’]?t|stop) remember(?:ing)?|(?:delete|erase|remove)(?=.*\bmemor))"
    r" (?:everything )?(?:(?:about|that|what i (?:said|told you) about|what you know about) )?"
    r"(?P<en>(?:(?:where|what|when|who|how) )?(?:my|i|i['’]m)\b [^.!?\n]{2,80}?)"
    r"(?: (?:from|in) (?:your |the )?memor(?:y|ies))?(?:,? please)?[.!?\s]*$",
    r"^\W*(?:请|麻烦|帮我|你|可以|能不能|把|那|就)*(?:忘[记掉了]+|不要再?记得?住?|别再?记得?住?|从记忆里删[除掉])(?:关于)?"
    r"(?P<zh_after>我(?!忘)[^。！？\n]{1,40}?)(?:这件事|的事)?[吧吗。！？\s]*$",
    r"^\W*(?:请|麻烦|帮我|你|可以|能不能|那|就)*把(?P<zh_before>我[^。！？\n]{1,40}?)(?:这件事|的事)?(?:给)?"
    r"(?:忘[记掉了]+|从(?:你的)?记忆[里中]?删[除掉]+)[吧吗了。！？\s]*$",
)

_ALL_ZH = r"(?:一切|所有|全部|每件事)"
_THINGS_ZH = r"(?:的?(?:信息|记忆|数据|资料|事情?|内容|东西|话))"
_ABOUT_ME_ZH = (
    rf"(?:(?:[你您](?:知道|记得|记住|保存)的)?(?:关于|有关)?我(?:说过|告诉过?[你您])?的?{_ALL_ZH}{_THINGS_ZH}?"
    rf"|{_ALL_ZH}(?:的)?(?:关于|有关)我{_THINGS_ZH}|(?:[你您](?:知道|记得|记住|保存)的)?(?:关于|有关)我{_THINGS_ZH}|我)"
)
_DROP_ZH = r"(?:忘[记掉了]+|删[除掉了]+|清[除空掉]+|抹[去除掉]+)"
_FORGET_ALL = _any(
    r"^\W*(?:(?:please|pls|can you|could you|would you|i want you to|ok|okay|hey|now|and|also|then)\W+)*"
    r"(?:(?:forget(?: about)?|delete|erase|remove|wipe|clear) (?:(?:everything|anything|all(?: the things)?|what)"
    r"(?: that)? (?:(?:about|on) me|you(?:['’]ve| have)? (?:know|knew|remember|learn(?:ed|t)|stored|saved|kept)"
    r"(?: (?:about|on|of) me)?|i(?:['’]ve| have)? (?:ever )?(?:told you|said)(?: about (?:me|myself))?)"
    r"|(?:all (?:of )?(?:my|your) (?:memories|data|information)|your memor(?:y|ies))(?: (?:about|of) me)?)"
    r"|forget(?: about)? (?:everything|me))(?: (?:from|in) (?:your |the )?memor(?:y|ies))?(?:,? please)?[.!?\s]*$",
    rf"^\W*(?:请|麻烦|帮我|[你您]|可以|能不能|那|就)*(?:{_DROP_ZH}{_ABOUT_ME_ZH}"
    rf"|把{_ABOUT_ME_ZH}[都全部统给]*{_DROP_ZH}|忘[记掉]{_ALL_ZH})[了吧吗。！？!?\s]*$",
)
_EVERYTHING = re.compile(
    r"\bwhat (?:all |else )?(?:do|did|have) you (?:all |already |still )?"
    r"(?:know|remember|learn(?:ed|t)?|stored?|saved?|kept|keep) (?:about|of|on) me(?: so far| already)?[\s.?!]*$"
    r"|\b(?:everything|all)(?: that)? you (?:know|remember|have)(?: stored| saved| kept)? (?:about|of|on) me\b"
    r"|\bwhat have i (?:ever )?told you about (?:me|myself)[\s.?!]*$"
    r"|[你您](?:还|都|现在|已经)*(?:知道|记得|了解|记住了?)(?:关于|有关)?我的?(?:哪些|什么|多少|一切|所有)"
    r"(?:的?(?:事情?|信息|东西|情况|内容))?[呢啊呀吗了\s。？！?!.]*$"
    r"|(?:关于我|对我)[，,]?[你您]?(?:还|都|现在|已经)*(?:知道|记得|了解|记住了?)(?:些|了)?(?:哪些|什么|多少)(?:事情?|信息)?[呢啊呀\s。？！?!.]*$",
    re.IGNORECASE,
)


def to_forget(text: str) -> str | None:
    """Returns the words for the thing that a message asks to forget, without "my" or 我的; None if it names no such
    thing, or asks to forget everything."""
    match = _FORGET.match(text)
    if match is None or asks_to_forget_all(text):
        return None
    what = next(words for words in match.groups() if words)
    return re.sub(r"^(?:my|i['’]m|i am|i)\s+|^我的?", "", what, flags=re.IGNORECASE).strip() or None


def asks_to_forget_all(text: str) -> bool:
    """Returns whether a message asks to forget everything about its user."""
    return _FORGET_ALL.match(text) is not None


def asks_to_forget(text: str) -> bool:
    return to_forget(text) is not None or asks_to_forget_all(text)


def asks_for_everything(text: str) -> bool:
    """Returns whether a question asks for everything that is known about the user."""
    return _EVERYTHING.search(text) is not None
