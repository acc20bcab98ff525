"""Explicit requests to remember: "remember that …", "记住：…". Pure: text in, requests out.

The words after such a verb are remembered as they are. The verb is not a request in a narration ("I remember that day",
"我记住了"), in a question ("can you remember my name?"), in a quotation, or if nothing to remember follows ("remember
me").
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from turnlog.agent.memory.extraction.evidence import is_question, own_words, quotations
from turnlog.agent.memory.sanitiser.sanitise import holds_secret
from turnlog.events.contracts import MemoryKind
from turnlog.projectors.models.terms import terms

MAX_CONTENT = 1_000
LOOK_BACK = 100  # characters before a verb that decide whether it is a request; limits the time for long texts


def _any(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_VERB = _any(
    # The plain verbs, with usual typing errors; not 书记住在…, 登记住址.
    r"(?P<seed>(?<![书登])[记記]住|(?<![a-z])re(?:mem|me|m)ber(?![a-z]))",
    r"别忘[了记]?|不要忘[了记]?|勿忘|牢记(?!住)|[记記]得(?![很挺还最更不清住])|(?<![书登日笔标惦])记(?:一下|下来|下|着)",
    r"(?:备注|备忘|存)(?:一下)?(?=[:：，,])",
    r"\b(?:do not|don['’]?t|never) forget\b|\b(?:keep|bear)(?: (?:this|that|it))? in mind\b|\bmemori[sz]e\b",
    r"\b(?:make|take)(?: a)? note\b|\bnote(?=:| that\b)|\bnote to self\b|\bfor the record\b",
    r"\b(?:save|store|add|put|keep) (?:(?:this|that|it) )?(?:in|to) (?:your |the )?memory\b|\b(?:save|store) this(?=:)",
    r"\b(?:write|jot)(?: (?:this|that|it))? down\b",
)
_BETWEEN_CLAUSES = _any(r"[,，:：、()（）—–…]|\.{2,}| - ", r"\b(?:and|but|so|because|then)\b")

# Patterns for the clause before the verb. ADVERBS: words to ignore. ASKS: the verb is a request. MAY_ASK: it is a
# request or a question. TELLS: it is a narration. OPENS: without ASKS, only these words may precede a verb other than
# "remember" and 记住, because people use these verbs in many other ways.
_ADVERBS = _any(r"(?:(?:^|\s+)(?:just|always|also|still|now|ever|even|only|do|\w+ly))+$")
_ASKS = _any(
    r"\b(?:please|pls|plz|kindly)$|请[你您]?$",
    r"(?<!do )\b(?:you|u) (?:to|must|should|need to|have to|better|ought to|gotta|can|could|will|would)$",
    r"^(?:make sure|be sure|try) (?:to|you)$|\bnote to$",
    r"[帮给替为](?:我|咱|俺)们?[^我他她]{0,4}$",
    r"(?<![谢欢兴])[你您]们?(?:以后|下次|一定|千万|务必|必须|需要|应该|最好|牢牢|好好|永远|[要得给也都就先再])*$",
)
_MAY_ASK = _any(
    r"\b(?:can|could|will|would) (?:you|u)(?: please)?$",
    r"(?:能不能|可不可以|能否|可否|(?:^|[你您])(?:能|可以))(?:请?[你您])?(?:[帮给替]我)?$",
)
_TELLS = _any(
    r"\b(?:i|we|you|u|they|he|she|it|who|people|(?:every|some|any|no)(?:one|body)|no one|all|most|many|some|others"
    r"|me|us|him|her|them|to|not|never|cannot|can|could|may|might|must|should|shall|will|would|does|did|ill?)$",
    r"\b\w+['’](?:ll|d|ve|t)$|\b(?:ca|do|did|does|could|would|wo)nt$",
    r"(?<!for )(?<!from )(?<!in )\b(?:my|our|his|her|their|the|these|those) (?:\w+ )?\w+$",
    r"\b(?:says?|said|tells?|told|asks?|asked|wrote|writes?|reads?|sang)(?: (?:me|us|him|her|them))?(?: that| to)?$",
    r"[我俺咱他她它谁们]|别人|有人|没人|每个人|[没不难会能被]$|不[会能用必要]|难以|没[能法]|还(?!有|要|请)|已经?|只|刚|曾|总(?!结)",
    r"\b(?:how|why|whether)\b|让|叫|令人|被人|说|才能|怎么|怎样|如何|什么|办法|值得|终于|居然|竟然|谢|高兴",
)
_OPENS = _any(
    r"(?:hey|hi|ok|oh|also|btw|quick|first|one more thing|bot|assistant|[\s\W])*",
    r"(?:那么?|对了|好的?|嗯|另外|顺便|还有|也|先|就|以后|下次|千万|一定|务必|麻烦|拜托|都|可|[\s\W])*",
)
_OF_OTHERS = _any(
    r"(?:\b(?:translate|proofread)\b|翻译|润色)[^.。!！\n]*$",
    r"\b(?:says?|said|told|asked|wrote|reads?)(?: (?:me|us|him|her|them))?\s*[,:]\s*$|[说道]\s*[:：，,]\s*$",
    r"(?<!\bi )(?<!\bwe )(?<!\byou )\b(?:says?|said|wrote|reads?|goes)\b[^.,;!?]{0,60}(?:\bthat|:)\s*$",
    r"(?:写的?是?|贴着|[来冒]了?句|念的?是?)\s*[:：，,]?\s*$",
)

# Patterns for the words after the verb. LEAD: words to ignore. POINTER: words that refer to the text before or after
# the verb. NOTHING: words that name nothing to remember.
_POINTING = (
    r"(?:this|that|it|these|those|one|things?|the following|for (?:me|later|the future|(?:the )?next time)|please|pls"
    r"|以下|下面|[这那][个些件句]?(?:一?点|事|话)?|它)"
)
_LEAD = re.compile(
    r"(?:了(?=[哦啊哈呀\W]|$)|[啦咯哦噢喔啊呀哟]|[吧哈](?=\W|$)|一下)*"
    r"(?:\s+(?:that|of)\b)?[ \t\u3000:：,，.。…!！;；~～–—-]*"
    rf"(?:(?:{_POINTING}[ \t]*)+(?:[:：,，–—-]|\bthat\b)[ \t]*)?",
    re.IGNORECASE,
)
_POINTER = re.compile(
    rf"(?:{_POINTING}|too|thanks?|thank you|ok|now|了|一下|[哦哈啊呀好吧]|谢谢|拜托|[\W_])*", re.IGNORECASE
)
_NOTHING = _any(
    r"(?:me|us|him|her|them|you|(?:[我你您他她它]们?)?[的吧呢嘛]?|everything|anything)\W*$|不住|没有?\W*$",
    r"(?:the )?(?:days?|times?|nights?|moments?|summer|winter|weekend|feeling)"
    r"(?:\W*$| (?:i|we|you|they|he|she|when|in|at)\b)",
    r"(?:how|what|where|who|whom|why|which|when(?! i (?:say|ask|write|type|send|mention)))\b[^:：,，–—\d]*$",
    r"了(?!解|不起)|的(?![^:：]*[:：])|小时候|当年|从前|以前",
)
# Advice to another person: "remember to stay patient", 记得保持耐心.
_ADVICE = _any(
    r"to (?:stay (?:patient|calm|positive|strong|focused|safe|hydrated|true|humble|motivated|healthy|kind|open|present)"
    r"|be (?:patient|kind|gentle|brave|careful|yourself|honest with yourself)|breathe|relax|rest|smile|enjoy|have fun"
    r"|take (?:care|breaks?|a (?:break|breath)|it easy|your time|deep breaths?)|(?:believe in|trust|love) yourself"
    r"|listen to your (?:body|heart)|keep (?:calm|going|smiling|your (?:head|chin) up|an open mind))\b",
    r"to (?!.*\b(?:me|my|i)\b)[^,，]*,\s*(?-i:[A-Z][a-z]+)$",
    r"(?:[要得你您]|一定)*(?:保持(?:耐心|冷静|乐观|微笑|积极|健康)|[好早多]{0,2}(?:休息|喝水|放松|保重)|(?:多)?注意(?:身体|休息|安全|保暖)"
    r"|照顾好?(?:你|您)?自己|别太累|相信自己|按时吃饭)",
)
_STATES = _any(
    r"^(?:i|we|he|she|they|there|it)\b \w+|\b(?:is|isn't|are|aren't|am|was|were|has|have)\b|['’](?:m|re|ve)\b|\d|[:：]",
    r"^(?!.*(?:什么|谁|哪|多少|几|怎么))(?:.*(?:[是叫姓有不没怕]|喜欢|讨厌|过敏)|[我他她](?!.*的).{4})",
)
_TAG = _any(
    r"\s*[,，]\s*(?:好吗|好不好|可以吗|行吗|好么|谢谢"
    r"|ok(?:ay)?|alright|got it|will you|would you|please|thanks?|thank you)"
    r"\s*[?？!！.。]*$"
)
_SENTENCE = re.compile(r"[^。！？!?.；\n]+(?:\.(?!\s|$)[^。！？!?.；\n]*)*[。！？!?.；]*")
_LINE = re.compile(r"[ \t]*(?P<bullet>(?:[-*•·]|\d+[.)])[ \t]+|\d+、[ \t]*)?(?P<item>[^\s][^\n]*)\n?")
_KINDS: tuple[tuple[MemoryKind, re.Pattern[str]], ...] = (
    ("DECISION", _any(r"\bi(?:'ve| have)? (?:decided|chose|will not|won't)\b|我(?:已经)?决定|我选择")),
    ("FEEDBACK", _any(r"\byour (?:answers?|repl(?:y|ies)|responses?)\b|你的?(?:回答|回复)")),
    (
        "PREFERENCE",
        _any(
            r"\b(?:like|likes|love|prefer|hate|favou?rite|dislike|enjoy|want)\b",
            r"喜欢|讨厌|偏好|最爱|不爱|宁愿|希望|想要",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to remember something. start, end: the range of its sentences in the text; they become the quote.
    refused: the reason why it is not a request."""

    content: str
    start: int
    end: int
    refused: str | None = None


def requests(text: str) -> list[Request]:
    """Returns the requests in the order of the text. A request extends to the end of its line, or to the first question
    after the verb."""
    words = own_words(text)
    quoted = quotations(words)
    made: list[Request] = []
    for verb in _VERB.finditer(words):
        if any(request.refused is None and verb.start() < request.end for request in made):
            continue
        if any(start < verb.start() < end for start, end in quoted):
            made.append(Request(verb.group(), *verb.span(), "quoted"))
        else:
            made += _requests(words, verb)
    return made


def asks_to_keep_a_secret(text: str) -> bool:
    if not holds_secret(text):  # as most texts; to find their requests takes four times as long
        return False
    return any(
        request.refused is None and holds_secret(text[request.start : request.end]) for request in requests(text)
    )


def kind_of(content: str) -> MemoryKind:
    return next((kind for kind, pattern in _KINDS if pattern.search(content)), "FACT")


def _requests(words: str, verb: re.Match[str]) -> Iterator[Request]:
    start, line_end = _sentence_start(words, verb.start()), words.find("\n", verb.end())
    end = line_end if line_end >= 0 else len(words)
    before = words[max(start, verb.start() - LOOK_BACK) : verb.start()]
    clause = _clause(before)
    may_ask = bool(_MAY_ASK.search(_ADVERBS.sub("", clause)))
    if _OF_OTHERS.search(before) or not (may_ask or _is_request(clause, verb["seed"] is not None)):
        yield Request(verb.group(), start, end, "no-request")
        return
    lead = _LEAD.match(words, verb.end(), end)
    at = lead.end() if lead else verb.end()
    is_head = words[verb.end() : end].rstrip().endswith((":", "："))
    if is_head and (items := list(_items(words, end + 1))):
        yield from items
    else:
        yield _request(words, start, verb.start(), words[at:end], at, may_ask)


def _clause(before: str) -> str:
    return _BETWEEN_CLAUSES.split(before)[-1].strip()


def _is_request(clause: str, is_seed: bool) -> bool:
    bare = _ADVERBS.sub("", clause)
    if _ASKS.search(clause) or _ASKS.search(bare):
        return True
    return not _TELLS.search(bare) if is_seed else bool(_OPENS.fullmatch(bare))


def _items(words: str, at: int) -> Iterator[Request]:
    """Yields the lines of a list as separate requests; without bullets, only the next line."""
    at += len(words[at:]) - len(words[at:].lstrip())
    first = at
    while (line := _LINE.match(words, at)) and (line["bullet"] or at == first):
        item, begin = line["item"].rstrip(), line.start("item")
        asked = "question" if is_question(item) else None
        yield Request(item.rstrip("。.;；"), begin, begin + len(item), asked)
        if not line["bullet"]:
            return
        at = line.end()


def _request(words: str, start: int, verb: int, rest: str, at: int, may_ask: bool) -> Request:
    said, asks = _stated(rest)
    end = at + len(said)
    content = _bare(said)
    if _POINTER.fullmatch(content):
        after, _ = _stated(rest[len(said) :])
        content = _bare(after)
        end += len(after)
        if content:
            asks = may_ask = False
        elif not asks and not may_ask:
            start, content = _said_before(words, start, verb)
    if (asks or may_ask) and not (may_ask and _STATES.search(content)):
        return Request(content, start, end, "question")
    if not content or _NOTHING.match(content):
        return Request(content, start, end, "says-nothing")
    if _ADVICE.match(content):
        return Request(content, start, end, "advice")
    return Request(content[:MAX_CONTENT], start, end)


def _bare(said: str) -> str:
    return re.sub(r"[吗么]$", "", _TAG.sub("", said).strip().rstrip("。.!！?？；;，, "))


def _stated(rest: str) -> tuple[str, bool]:
    """Returns the sentences before the first question, and False. If the first sentence is a question, returns it and
    True."""
    kept = 0
    for match in _SENTENCE.finditer(rest):
        if is_question(_TAG.sub("", match.group().strip())):
            return (rest[:kept], False) if kept else (rest[: match.end()], True)
        kept = match.end()
    return rest[:kept], not kept and "?" in rest.replace("？", "?")


def _said_before(words: str, start: int, verb: int) -> tuple[int, str]:
    """Returns the start and the text of the statement that "remember that" points back to; "" if there is none."""
    before = words[start:verb].rstrip()
    clause = _clause(before)
    content = before.removesuffix(clause).strip(" ,，:：、—–-") or ("" if _ASKS.search(clause) else clause)
    if len(terms(content)) < 2 and (earlier := _SENTENCE.findall(words[:start].rstrip())):
        content = earlier[-1].strip()
        start = words.rfind(content, 0, start)
    return (start, _bare(content)) if len(terms(content)) >= 2 and not is_question(content) else (start, "")


def _sentence_start(words: str, at: int) -> int:
    marks = [words.rfind(mark, 0, at) for mark in "。！？!?；;\n"]
    stop = words.rfind(". ", 0, at)
    start = max([*marks, stop]) + 1
    return start + len(words[start:at]) - len(words[start:at].lstrip())
