"""Finds what a user did not claim in the text of a turn: somebody else's words, and what is not meant. Pure.

Somebody else's words are pasted, forwarded or quoted text, code, logs, transcripts, texts to work on and turnlog's own
additions. Not meant are dreams, suppositions, role play, and what "just kidding" takes back. A quote with delimiters
(fences, `>`, quotation marks) ends with them; any other that a clause introduces ends with the text.
"""

import re
from collections import Counter
from collections.abc import Iterator

Range = tuple[int, int]


def _any(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_OURS = re.compile(
    r"^[ \t]*\[(?:LONG-TERM MEMORIES|DOCUMENTS|EARLIER IN THIS CONVERSATION|Conversation Summary|Recallable Topics"
    r"|SYSTEM PROMPT)[^\]\n]*\][^\n]*(?:\n(?![ \t]*\n)[^\n]*|\n[ \t]*\n(?=[ \t]*[-*•]))*",
    re.MULTILINE | re.IGNORECASE,
)
# "Translate into French: …", 写一个故事：…: what follows is somebody's words, whoever "I" is in them.
_TO_WORK_ON = re.compile(
    r"(?:(?<!\bI )\b(?:translate|proofread|rewrite|rephrase|paraphrase|reword|summari[sz]e|polish)\b"
    r"|\b(?:fix|correct|check) (?:the|my|this) (?:grammar|spelling|text|sentence|paragraph|english)\b"
    r"|\b(?:write|tell|continue|finish|create|compose) [^:：.!?\n]{0,60}"
    r"\b(?:story|poem|song|dialogue|scene|script|monologue|novel|lyrics|role-?play)\b"
    r"|(?:(?<![名是做当学业])翻译|译成|润色|改写|校对|改病句|造句|检查(?:一下)?语法|[写编讲续][^：:。！？\n]{0,20}(?:故事|小说|对话|剧本|台词|对白|歌词)))"
    r"[^:：.。!！?？\n]{0,80}(?:[:：]|[.。]?[ \t]*\n).*\Z"
    r"|\A\s*(?:let'?s (?:play|pretend)|role-?play|pretend|imagine)\b.*\Z"
    r"|\A\s*(?:(?:please|pls|can you|could you) )*translate\b[^.:\n]{0,40}\..*\Z"
    r"|\A\s*(?:(?:请|帮|麻烦|把)[^。\n]{0,15})?翻译[^。：\n]{0,20}。.*\Z",
    re.IGNORECASE | re.DOTALL,
)
_HIDDEN = "\ufffc"  # stands for each character of a quote with delimiters while the others are looked for
_DELIMITED = (
    _OURS,
    re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL),
    re.compile(r"<(data|thinking|system|document|memory|memories)\b[^>]*>.*?(?:</\1>|\Z)", re.DOTALL | re.IGNORECASE),
    re.compile(r"^[ \t]*[>＞|][^\n]*", re.MULTILINE),
    re.compile(r"https?://\S+|\[image:[^\]\n]*\]"),
)
_LINES = (
    re.compile(
        r"^[ \t]*(?:assistant|ai|bot|chatgpt|gpt|human|me|system|tool"
        r"|(?:the )?(?:user|customer|client)(?: says| said| wrote)?"
        r"|(?:\w+ )?(?:lyrics|post|review|comment|quote|caption)"
        r"|助手|机器人|用户|系统|我|他|她|歌词|台词|评论|例句)"
        r"[ \t]*[:：][^\n]*",
        re.MULTILINE | re.IGNORECASE,
    ),
    # A line of a log, or of an exported chat: it begins with a time.
    re.compile(r"^[ \t]*(?:[\[(]?\d{4}[-/.]\d\d?[-/.]\d\d?[T ,]+\d\d?:\d\d|\[\d\d?:\d\d)[^\n]*", re.MULTILINE),
    _TO_WORK_ON,
)

# A clause that may introduce a quote: it ends with a colon, or with its line.
_CLAUSE = re.compile(rf"[^\n.!?。！？;；:：{_HIDDEN}]+")
_CLAUSE_END = re.compile(r"(?P<colon>[:：](?!//))|[.!?。！？]*[ \t]{0,20}(?=\n)")
MAX_CLAUSE = 160
_BEFORE_DELIMITED = re.compile(rf"\s*(?:{_HIDDEN}|[“\"「『]|[\w.+-]+@\w)")
# The words after a clause with these are meant for turnlog.
_MEANT = _any(
    r"\b(?:remember|memori[sz]e|forget|note (?:that|this|to|for)|keep in mind|save|store|question"
    r"|about (?:me|myself)|for you)\b|\b(?:first|second|next|last) (?:message|mail|post)\b",
    r"[记記](?!录|者)|备忘|别忘|问题|关于我|第一|[好坏个]消息",
)
_TEXT = (
    r"(?:e-?mails?|mails?|messages?|letters?|texts?|sms|articles?|logs?|posts?|tweets?|comments?|reviews?|essays?"
    r"|transcripts?|conversations?|chats?|excerpts?|passages?|paragraphs?|sentences?|snippets?|poems?|lyrics|speech|scripts?"
    r"|stor(?:y|ies)(?= (?:for|by|from|of))|chapters?|documents?|reports?|tickets?|newsletters?|notices?|memos?"
    r"|drafts?|abstracts?|prompts?|outputs?|traces?|errors?|interviews?|press release|job (?:ad|description|posting)"
    r"|(?:(?:her|his|their)|\w+['’]s) (?:bio|profile|story|resume|cv))"
    r"(?=\W*$| (?:from|of|i|we|he|she|they|that|which|to|by|about|says?|said|reads?|today|below|again|me|for|in|on|sent"
    r"|posted|wrote|with|at|and|polite|ok|good|correct)\b)"
)
_TEXT_ZH = (
    r"(?:邮件|来信|信件|[封条]信|短信|消息|聊天记录|对话|文章|日志|帖子|评论|作文|论文|文案|通知|公告|报道|新闻|小说|歌词|剧本|台词"
    r"|草稿|讲稿|采访稿|稿子|段落|[一这那]段|段话|[这那]句话?|下面的话|文本|原文|全文|报错信息|输出|留言|摘录|节选|他的自我介绍|[^我]的自我介绍)"
)
_OPENING = r"^\W*(?:(?:and|so|ok|okay|hi|hey|also|well|please|pls|can you|could you|would you)\W+)*"
_PRESENTS = _any(
    _OPENING + r"(?:here(?:['’]?s| is| are| comes)|this is|these are|below|attached|(?:i )?(?:(?:just|recently) )?"
    r"(?:got|received|found|saw|copied|pasted|forwarding|quoting|pasting)|see|read|consider|look at|check|take"
    r"|from|in|according to|about)\b.{0,100}\b" + _TEXT,
    _OPENING + r"(?:(?:the|my|his|her|its|their|our|an?|this|that|these|\w+['’]s) )?(?:\w+ ){0,3}?\b" + _TEXT,
    _TEXT_ZH + r"[^，,]{0,12}\s*[:：]?\W*$",
    r"^\W*转发\W*$",
)
_POINTS = _any(
    _OPENING
    + r"(?:check|review|explain|analy[sz]e|improve|edit|shorten|simplify|condense|expand|rate|critique|read|consider"
    r"|look at|grade|reply to|respond to|comment on|thoughts on|tl;? ?dr)\b"
    r".{0,40}?(?:\b(?:this|these|the following|below)\b|please)",
    r"\bwhat (?:does|do) (?:this|it|these|the following) (?:mean|say)\b|^\W*dr please\W*$",
    r"\bis (?:this|it|the following)\b.{0,30}\b(?:scam|spam|phishing|legit|polite|grammatical|correct|fake|real)\b",
    r"(?:帮|请|读|看|回|改|检查|分析|解释|总结|概括|评价)[^，,]{0,10}(?:这|下面|以下)[^，,]{0,6}(?:邮件|信|话|段|文|消息|评论|条|篇|份)",
    r"(?:总结|概括|解释|缩写|扩写|点评|批改|分析)(?:一下)?(?:这|下面|以下)?[^，,]{0,6}[:：]\s*$",
    r"(?:这|下面|以下)[^，,]{0,8}(?:什么意思|诈骗|骗局|真的吗|礼貌吗|怎么看|怎么回)",
)
_SAYS = _any(
    r"(?<!\bi )(?<!\bwe )(?<!\byou )\b(?:wrote|writes|says|said|texted|emailed|mailed|messaged|posted|replied|reads"
    r"|(?:sent|gave) (?:me|us)|sent)(?: (?:me|us|this|that|the following|back|to me|today|yesterday|now|on \w+))*\W*$",
    r"(?<![我先])(?:写道|写着|发来[^，,]{0,6}|发给我|说|回复道?|来信)\W*$",
)
_POINTS_AT_END = _any(r"\b(?:this|these|(?:the )?following|below)\W*$", r"(?:如下|下面|以下|这[个篇段些]?)\W*$")
LONG_BLOCK = 800  # characters behind a clause that points at them

# Everything behind these is a forwarded text or a letter.
_LETTERS = re.compile(
    r"^[ \t]*(?:(?:From|发件人|寄件人)[ \t]*[:：][^\n]*\n(?:[^\n]{0,200}\n){0,4}?"
    r"[ \t]*(?:To|Subject|Date|Sent|Cc|收件人|主题|日期|发送时间)[ \t]*[:：]"
    r"|-{2,}[ \t]*(?:Forwarded|Original) message|Begin forwarded message|-{2,}[ \t]*(?:转发|原始)的?(?:邮件|消息)"
    r"|(?:Dear (?!(?:assistant|ai|chatgpt|claude|bot|turnlog|friend)\b)|尊敬的|亲爱的)"
    r"[^\n,，:：]{1,40}[,，:：][ \t]*\n)"
    r"|(?<=\S)[ \t]*\n[ \t]*\n[ \t]*(?:(?:Hi|Hello|Hey|Dear)\b[^\n,]{0,40}|(?:各位|尊敬的|亲爱的)[^\n]{1,20}"
    r"|[^\n]{0,10}[您你]好)"
    r"[,，:：][ \t]*\n",
    re.MULTILINE | re.IGNORECASE,
)
_STARTS = (
    r"(?:^|(?<=[.!?。！？\n])[ \t]*)(?:(?:ok|okay|so|now|and|hey|please|can you|could you"
    r"|i want you to|let['’]?s|请你?|我们来?|你?来)[\s,]*)*"
)
_ROLE_PLAY = re.compile(
    _STARTS
    + r"(?:act as\b(?! if)|(?:take on|play) the (?:role|part)\b|role-?play|pretend\b|you are (?:now|going to be) an?\b"
    r"|扮演|假装|(?:玩|做|进行)?(?:一个)?角色扮演|(?:你(?:从)?现在(?:开始|起)?|从?现在(?:开始|起)?[，,]?你)(?:就)?是一[个位名])",
    re.IGNORECASE,
)
_INVENTED = re.compile(
    _STARTS
    + r"(?:suppose|supposing|assum(?:e|ing)|(?:let['’]?s )?say (?=(?:that )?(?:i|we|my|you)\b)|hypothetically|imagine"
    r"|what if|picture this|for the sake of argument|(?:假设|假如|假定|设想|比方说|比如说)(?=我|你)|想象一下)"
    r"|\bin (?:my|a|the|that|last night['’]s) (?:dream|nightmare)\b"
    r"|\bi (?:just )?had (?:an?|the|this|that|another) (?:\w+ ){0,3}(?:dream|nightmare)\b|\bi (?:\w+ )?dream(?:t|ed)\b"
    r"|梦[见到里中]|做了个?[^，。\n]{0,4}梦",
    re.IGNORECASE,
)
_REAL_AGAIN = _any(
    r"\n[ \t]*\n",
    r"\b(?:in reality|in real life|irl|for real|(?:i )?woke up|out of character|end of (?:the )?role-?play)\b",
    r"(?<=[.!?] )(?:actually|anyway|seriously)\b|现实(?:中|里|生活)|说真的|回到现实|醒来|醒了|言归正传",
)
_TAKEN_BACK = _any(
    r"(?<!not )(?<!no )\b(?:just|only|i['’]?m|i am) (?:just )?(?:kidding|joking)\b(?! (?:around|with|about))|\bjk\b",
    r"(?<![不没别])(?<!不是)(?:开个?玩笑(?=[的啦而哈])|逗你(?=[的玩])|骗你的|瞎说的|闹着玩的|说笑的)",
)
_LAUGHTER = _any(r"(?:ha|nah|no|oh|lol|ok|哈|呵|啊|哦|嘿|我?其实|[\s\W])*")
_SENTENCE = re.compile(r"[^.!?。！？\n]+(?:\.(?=\S)[^.!?。！？\n]*)*[.!?。！？~]*")
_SPEAKER = re.compile(r"^[ \t]*(?P<name>[^\W\d][^\n:：.!?。！？]{0,18})[ \t]*[:：]([^\n]*)", re.MULTILINE)


def not_own(text: str) -> list[Range]:
    """The ranges of the text that are not the user's own claims; they may overlap."""
    ranges = list[Range]()
    for pattern in _DELIMITED:
        ranges += (found.span() for found in pattern.finditer(text))
        text = pattern.sub(lambda found: re.sub(r"[^\n]", _HIDDEN, found.group()), text)
    ranges += (found.span() for pattern in _LINES for found in pattern.finditer(text))
    return [*ranges, *_transcript(text), *_introduced(text), *_invented(text), *_taken_back(text)]


def _introduced(text: str) -> Iterator[Range]:
    """What follows a clause that introduces it: all of the text, or a sentence where the clause says who speaks."""
    if found := _LETTERS.search(text):
        yield found.start(), len(text)
    for found in _CLAUSE.finditer(text):
        ended = _CLAUSE_END.match(text, found.end())
        clause = found.group()[-MAX_CLAUSE:]
        if ended is None or _MEANT.search(clause) or _BEFORE_DELIMITED.match(text, ended.end()):
            continue
        at, ends_line, has_colon = ended.end(), text.startswith("\n", ended.end()), bool(ended["colon"])
        if _is_introduction(clause + ended.group(), len(text) - at, ends_line, has_colon):
            yield at, len(text)
            return
        if has_colon and _SAYS.search(clause) and (said := _SENTENCE.match(text, at)):
            yield at, said.end()


def _is_introduction(clause: str, size: int, ends_line: bool, has_colon: bool) -> bool:
    """size: of the text behind the clause."""
    bare = clause.rstrip(":：.?？!！ \t")
    if ends_line and (_POINTS.search(clause) or (has_colon and _SAYS.search(bare))):
        return True
    if ends_line and size > LONG_BLOCK and _POINTS_AT_END.search(bare):
        return True
    return (has_colon or (ends_line and "?" in clause.replace("？", "?"))) and bool(_PRESENTS.search(bare))


def _invented(text: str) -> Iterator[Range]:
    """Role play lasts to the end, a dream or a supposition to the end of its paragraph; both end where the text says
    so."""
    for pattern, is_role_play in ((_ROLE_PLAY, True), (_INVENTED, False)):
        at = 0
        while found := pattern.search(text, at):
            ends = (end for end in _REAL_AGAIN.finditer(text, found.end()) if not is_role_play or end.group().strip())
            at = next((end.end() for end in ends), len(text))
            yield found.start(), at


def _taken_back(text: str) -> Iterator[Range]:
    """The sentence up to the retraction; where that is empty, the one before too."""
    before = 0
    for sentence in _SENTENCE.finditer(text):
        if found := _TAKEN_BACK.search(text, sentence.start(), sentence.end()):
            is_alone = _LAUGHTER.fullmatch(text, sentence.start(), found.start())
            yield before if is_alone else sentence.start(), found.end()
        before = sentence.start()


def _transcript(text: str) -> Iterator[Range]:
    """Lines of two speakers or more of whom one speaks again; a form names each of its fields once."""
    lines = [found for found in _SPEAKER.finditer(text) if not _MEANT.search(found["name"])]
    names = Counter(found["name"].strip().lower() for found in lines)
    if len(names) > 1 and max(names.values()) > 1:
        yield from (found.span() for found in lines)
