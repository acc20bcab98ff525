"""Finds the user's own words that are not meant: role play, dreams, suppositions, and statements that "just kidding"
takes back. Pure."""

import re
from collections.abc import Iterator

from turnlog.agent.context.client_texts import Range


def any_of(*alternatives: str) -> re.Pattern[str]:
    """Returns a pattern that matches any of the alternatives, in upper or lower case."""
    return re.compile("|".join(alternatives), re.IGNORECASE)


PEOPLE = (
    r"(?:friend|husband|wife|partner|sister|brother|mother|mom|mum|father|dad|son|daughter|aunt|uncle|cousin|boss|landlord"
    r"|colleague|roommate|flatmate|neighbou?r|girlfriend|boyfriend|patient|client|customer)"
)
BLANK_LINE = re.compile(r"[ \t]*\n[ \t]*\n")
SENTENCE = re.compile(r"[^.!?。！？\n]+(?:\.(?=\S)[^.!?。！？\n]*)*[.!?。！？~]*")
_STARTS = (
    r"(?:^|(?<=[.!?。！？\n])[ \t]*)(?:(?:ok|okay|so|now|and|hey|please|can you|could you"
    r"|i want you to|let['’]?s|请你?|我们来?|你?来)[\s,]*)*"
)
_ROLE_PLAY = re.compile(
    _STARTS
    + rf"(?:this is \w+['’]s {PEOPLE}(?: here| speaking| writing)?\s*[.,!]|\w+ here,? (?:using|on|with|from) \w+['’]s "
    rf"(?:account|phone|laptop|computer)\b"
    rf"|(?:on behalf of|(?:i['’]?m |i am )?asking for) (?:an?|my) (?:\w+ )?{PEOPLE}\b"
    r"|dear diary\b|chapter (?:\d+|one)\b|亲爱的日记|第[一二三\d]+[章回]"
    r"|(?:bonus \w+: |riddle: |now )?guess (?:who|which|what i am)\b|猜[^。，\n]{0,3}我是谁"
    r"|[替帮代]我?[^，。\n我]{1,4}[问咨]"
    r"|in the style of\b|(?:case (?:study|report)|character sheet)\s*[.:]"
    r"|you be (?:the|an?) [^.!?\n]{1,30}[.!,] i(?:['’]m| am|['’]ll be)\b"
    r"|act (?:as\b(?! if)|like (?:you|an?)\b)|(?:take on|play) the (?:role|part)\b|role-?play|pretend\b|simulate\b"
    r"|once upon a time|let['’]?s write\b|you (?:play|are|be) [^.\n]{1,30} and i(?:['’]ll| will)? (?:play|am|be)\b"
    r"|you(?: are|['’]re| will be|['’]ll be) (?:(?:now|going to be) an?\b|[^.!?,\n]{1,40} now\b)"
    r"|for (?:my|the|our|a) [^.:\n]{0,40}\b(?:character|novel|story|game|play|script|role)\b[^.\n]{0,20}:"
    r"|i(?:['’]ll| will)? (?:be|play) [^.!?\n]{1,30}[,;] (?:and )?you(?:['’]ll| will)? (?:be|play)\b"
    r"|我[来演当扮][^，。\n]{1,8}[，,]\s*你[来演当扮]|扮演|假装|模拟|你[来演当][^，。\n]{1,8}[，,]\s*我|(?:玩|做|进行)?(?:一个)?角色扮演|当(?:一[名个位])?[^，。\n]{0,6}[官师员生者长]。"
    r"|(?:你(?:从)?现在(?:开始|起)?|从?现在(?:开始|起)?[，,]?你)(?:就)?是一[个位名]"
    r"|从前(?:有|[，,])|很久以前|[^。\n：]{0,6}(?:角色|人物)(?:设定|卡)|以[^，。\n]{1,12}的(?:口吻|身份|视角|语气))"
    r"|\bfor (?:the|an?|my|our) (?:\w+ )?(?:play|novel|story|script|role|character|sketch|drama class)\W*[:–—-]"
    r"|\b(?:from|in) the (?:perspective|point of view|viewpoint|voice|persona|role) of\b",
    re.IGNORECASE,
)
_INVENTED = re.compile(
    _STARTS + r"(?:suppose|supposing|assum(?:e|ing)|(?:let['’]?s )?say (?=(?:that )?(?:i|we|my|you)\b)|hypothetically"
    r"|imagine(?! that!)|what if|picture this|for the sake of argument|if you were me"
    r"|if i (?:were|was) (?:an?|the|your)\b(?! (?:bit|little|kid|child))"
    r"|(?:假设|假如|假定|设想|比方说|比如说)(?=我|你)|(?:如果|要是|假如|若)(?:我|你)(?:是|成了|变成)|想象(?:一下|你))"
    r"|\bin (?:my|an?|the|that|this|last night['’]s) (?:\w+ )?(?:dream|nightmare)\b(?! job| house| home| car)"
    r"|\bi (?:just )?had (?:an?|the|this|that|another) (?:\w+ ){0,3}(?:dream|nightmare)\b|\bi (?:\w+ )?dream(?:t|ed)\b"
    r"|梦[见到里中]|做梦(?![都也])|做了个?[^，。\n]{0,4}梦",
    re.IGNORECASE,
)
_REAL_AGAIN = any_of(
    BLANK_LINE.pattern,
    r"\b(?:in reality|in real life|irl|for real|(?:i )?woke up|out of character|end of (?:the )?role-?play)\b",
    r"(?<=[.!?] )(?:actually|anyway|seriously)\b|现实(?:中|里|生活)|说真的|回到现实|醒来|醒了|言归正传",
)
_TAKEN_BACK = any_of(
    r"(?<!not )(?<!no )\b(?:just|only|i['’]?m|i am|was) (?:just |only )?(?:kidding|joking|teasing|pulling your leg"
    r"|messing with you)\b(?! (?:around|with|about))|\bjk\b",
    r"(?<![不没别])(?<!不是)(?:开个?玩笑(?=[的啦而哈])|逗你(?=[的玩])|骗你[的玩]|[瞎胡]编的|瞎说的|闹着玩的|说笑的)",
)
_LAUGHTER = any_of(r"(?:ha|nah|no|oh|lol|ok|哈|呵|啊|哦|嘿|我?其实|[\s\W])*")


def takes_back(text: str) -> bool:
    """Returns whether a turn begins by saying that the previous turn was not meant."""
    match = _TAKEN_BACK.search(text)
    return match is not None and _LAUGHTER.fullmatch(text, 0, match.start()) is not None


def invented(text: str) -> Iterator[Range]:
    """Yields invented text. Role play extends to the end of the text, a dream or a supposition to the end of its
    paragraph; both end earlier if the text says so."""
    for pattern, is_role_play in ((_ROLE_PLAY, True), (_INVENTED, False)):
        at = 0
        while match := pattern.search(text, at):
            ends = (end for end in _REAL_AGAIN.finditer(text, match.end()) if not is_role_play or end.group().strip())
            at = next((end.end() for end in ends), len(text))
            yield match.start(), at


def taken_back(text: str) -> Iterator[Range]:
    """Yields the sentence that a retraction ends ("…, just kidding"). If the retraction is a sentence of its own,
    yields the sentence before it too."""
    before = 0
    for sentence in SENTENCE.finditer(text):
        if match := _TAKEN_BACK.search(text, sentence.start(), sentence.end()):
            is_alone = _LAUGHTER.fullmatch(text, sentence.start(), match.start())
            yield before if is_alone else sentence.start(), match.end()
        before = sentence.start()
