"""Finds the parts of a turn's text that are not the user's claims. Pure.

Other people's words: pasted, forwarded or quoted text, code, logs, transcripts, texts to work on, and turnlog's own
additions. Words that are not meant: see not_meant. A quote in delimiters (fences, `>`, quotation marks) ends with them;
any other quote that a clause introduces extends to the end of the text, or of a sentence, line or paragraph if the
clause only says who speaks.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator

from turnlog.agent.context.client_texts import Range, additions, blocks, hidden
from turnlog.agent.context.titles import TITLES
from turnlog.agent.memory.extraction.not_meant import BLANK_LINE, PEOPLE, SENTENCE, any_of, invented, taken_back

_OURS = re.compile(
    rf"^[ \t]*\[(?:{'|'.join(re.escape(title[1:-1]) for title in TITLES)}|SYSTEM PROMPT)"
    r"[^\]\n]*\][^\n]*(?:\n(?![ \t]*\n)[^\n]*|\n[ \t]*\n(?=[ \t]*[-*•]))*",
    re.MULTILINE | re.IGNORECASE,
)
# "Translate into French: …", 写一个故事：…: "I" in the text after such a task is not the user.
_TO_WORK_ON = re.compile(
    r"(?:(?<!\bI )\b(?:translate|proof-?read|rewrite|rephrase|paraphrase|reword|summari[sz]e|polish)\b"
    r"|\b(?:fix|correct|check) (?:the|my|this) (?:grammar|spelling|text|sentence|paragraph|english)\b"
    r"|\b(?:write|tell|continue|finish|create|compose) [^:：.!?\n]{0,60}"
    r"\b(?:story|poem|song|dialogue|scene|script|monologue|novel|lyrics|role-?play)\b"
    r"|(?:(?<![名是做当学业])翻译|[译翻]成|润色|改写|校对|改病句|造句|检查(?:一下)?语法|[写编讲续][^：:。！？\n]{0,20}(?:故事|小说|对话|剧本|台词|对白|歌词)))"
    r"[^:：.。!！?？\n]{0,80}(?:[:：]|[.。]?[ \t]*\n).*\Z"
    r"|\A\s*(?:please )?(?:write|generate|create|make(?: up)?) (?:an?|some) "
    r"(?=[^.\n]*\b(?:in (?:the )?first person|sample|fictional|fake)\b)"
    r"[^.:\n]{0,60}[.:].*\Z"
    r"|\A\s*(?:let'?s (?:play|pretend)|role-?play|pretend)\b.*\Z"
    r"|\A\s*(?:(?:please|pls|can you|could you) )*translate\b[^.:\n]{0,40}\..*\Z"
    r"|\A\s*(?:(?:请|帮|麻烦|把)[^。\n]{0,15})?翻译[^。：\n]{0,20}。.*\Z",
    re.IGNORECASE | re.DOTALL,
)
_HIDDEN = "\ufffc"  # replaces each character of a delimited quote while other quotes are searched
_DELIMITED = (
    _OURS,
    re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.DOTALL),
    re.compile(r"^[ \t]*[>＞|][^\n]*", re.MULTILINE),
    re.compile(r"https?://\S+|\[image:[^\]\n]*\]"),
)
_LINES = (
    re.compile(
        r"^[ \t]*(?:[\[【][^\]】\n]{1,20}[\]】][ \t]*[^\s:：][^:：\n]{0,18}"
        r"|assistant|ai|bot|chatgpt|gpt|human|me|system|tool"
        r"|(?:the )?(?:user|customer|client)(?: says| said| wrote)?"
        r"|(?:\w+ )?(?:lyrics|post|review|comment|quote|caption|persona)|test(?: test)*"
        rf"|(?:my|our) (?:\w+[- ])?{PEOPLE}(?: \w+)?"
        r"(?=[ \t]*[:：]\W*(?:(?:hey|hi|ok|please)\W+)*(?:i|my|we|remember)\b)"
        r"|(?:(?:from|via|on) [^:：\n]{0,30})?\b(?:slack|whatsapp|telegram|facebook|twitter|instagram|discord|reddit)"
        r"|助手|机器人|用户|系统|我|他|她|歌词|台词|评论|例句)"
        r"[ \t]*[:：][^\n]*",
        re.MULTILINE | re.IGNORECASE,
    ),
    # Comments and lines of code without fences.
    re.compile(r"(?<![:/])//[^\n]*|^[^\n]*[{}][ \t]*$", re.MULTILINE),
    # A line of a log, or of an exported chat: it begins with a time.
    re.compile(r"^[ \t]*(?:[\[(]?\d{4}[-/.]\d\d?[-/.]\d\d?[T ,]+\d\d?:\d\d|\[\d\d?:\d\d)[^\n]*", re.MULTILINE),
    _TO_WORK_ON,
)

# A clause that may announce a quote: it ends with a colon, a dash, or the end of its line.
_CLAUSE = re.compile(rf"(?:(?! [-–—] |——|[写唱说]道[，,])[^\n.!?。！？;；:：{_HIDDEN}])+")
_CLAUSE_END = re.compile(r"(?P<inline>[:：](?!//)|\s[-–—]\s|——|[写唱说]道[，,])|[.!?。！？]*[ \t]{0,20}(?=\n)")
MAX_CLAUSE = 160
_BEFORE_DELIMITED = re.compile(rf"\s{{0,9}}(?:{_HIDDEN}|[“\"「『]|[\w.+-]+@\w)")
# After a clause with these words, the text is the user's own: it is meant for turnlog, or about the user.
_MEANT = any_of(
    r"\b(?:remember|memori[sz]e|forget|note (?:that|this|to|for)|keep in mind|save|store|questions?|problem|situation"
    r"|background|context|about (?:me|myself|us)|for you|facts|details|your (?:last )?(?:answer|message|reply|text))\b"
    r"|\b(?:first|second|next|last) (?:message|mail|post)\b",
    r"[记記](?!录|者)|备忘|别忘|问题|关于我|第一|[好坏个]消息|情况|背景|介绍一下我|[你您]的?(?:消息|回答|回复)",
)
_NOUN = (
    r"(?:e-?mails?|mails?|voicemails?|messages?|letters?|texts?|sms|articles?|logs?|posts?|tweets?|comments?|reviews?"
    r"|essays?|compositions?|transcripts?|conversations?|chats?|dialogues?|excerpts?|passages?|paragraphs?|sentences?"
    r"|snippets?|poems?|haikus?|verses?|lyrics|speech|scripts?|novels?|fan ?fics?|fairy tales?|monologues?|subtitles?"
    r"|stor(?:y|ies)(?= (?:for|by|from|of))|user stor(?:y|ies)|chapters?|(?:first|opening|last) lines?|openings?"
    r"|documents?|reports?|tickets?|newsletters?|notices?|memos?|notes?|flyers?|leaflets?|adverts?|ads?|captions?"
    r"|diar(?:y|ies)|journals?|listings?|testimon(?:y|ials?)|feedback|complaints?|statements?|slogans?|quotes?"
    r"|drafts?|abstracts?|prompts?|inputs?|outputs?|examples?|samples?|test data|fake profiles?|traces?|errors?"
    r"|interviews?|press release|job (?:ad|description|posting)"
    r"|(?:her|his|their|dating|tinder|(?!here)\w+['’]s) (?:\w+ )?(?:bio|profile|story|resume|cv|intro))"
)
_TEXT = _NOUN + (
    r"(?=\W*$|\W+(?:from|of|i|we|he|she|they|that|which|to|by|about|says?|said|reads?|today|below|again|me|for|in|on"
    r"|sent|posted|wrote|with|at|and|polite|ok|good|correct|starts?|begins?|goes|page|p|no|number|left|pinned)\b)"
)
_TEXT_ZH = (
    r"(?:邮件|来信|信件|[封条]信|短信|短讯|消息|聊天记录|对话|文章|日志|帖子|[评留]言|评论|[好差书影]评|作文|论文|文案|通知|公告"
    r"|报道|新闻|小说|剧本|歌里|(?:歌|台|广告|欢迎|祝|解说)词|[对独]白|自[传述]|[草讲稿]稿|采访稿|稿子|段落|[一这那]段|段话"
    r"|[这那]句话?|下面的话|文本|[原全课例范]文|原话|报错信息|输出|摘录|节选|(?<!我的)(?<!写)日记|朋友圈|微博|推文|公众号"
    r"|[纸便]条|便签|海报|语音|弹幕|签名|反馈|投诉|说明|口号|开头|第一句|诗|听[写力]|阅读题|例子|示例|测试数据|参考"
    r"|(?<!我)(?<!我的)(?:自我介绍|简介|资料))"
)
_OPENING = r"^\W*(?:(?:and|so|ok|okay|hi|hey|also|well|please|pls|can you|could you|would you)\W+)*"
_SHOWS = any_of(
    _OPENING + r"(?:here(?:['’]?s| is| are| comes)|this is|these are|below|attached|(?:i )?(?:(?:just|recently) )?"
    r"(?:got|received|found|saw|copied|pasted|forwarding|quoting|pasting)|see|read|consider|look at|check|take"
    r"|from|in|according to)\b.{0,100}\b" + _TEXT,
    r"^\W*(?:(?:这|下面|以下)[是为]?|收到|看到|刚?看到).{0,20}" + _TEXT_ZH + r"[^，,]{0,12}\W*$",
    _TEXT_ZH + r"[^，,]{0,4}(?:如下|下面|以下)\W*$",
)
# The first line is the title of a text.
_MARKS = rf"[^\w\n:：{_HIDDEN}]*"
_TITLE_LINE = re.compile(
    rf"\A\W*(?!(?:i|we)\b)(?:[\w'’-]+ ){{0,3}}(?:cover letter|persona|case study|character sheet|{_NOUN})"
    rf"(?: (?:v|version |draft |no\.? ?|#)?\d+| draft| final)?(?: *\([^()\n]*\))?{_MARKS}\n"
    rf"|\A\W*[^，。！？\n我]{{0,6}}(?:求职信|自荐信|投诉信|剧本|{_TEXT_ZH})(?:第.[版稿篇章回]|[终初]稿|[vV]?\d+)?{_MARKS}\n",
    re.IGNORECASE,
)
_TITLES = any_of(
    _OPENING + r"(?!i\b|i['’]|about\b|today|yesterday)"
    r"(?:(?:the|my|his|her|its|their|our|an?|this|that|these|\w+['’]s) )?(?:[\w'’]+ ){0,3}?\b" + _TEXT,
    _TEXT_ZH + r"[^，,]{0,12}$",
    r"^\W*转发\W*$",
)
# Matches a clause that points to a text which follows: a task ("check this") or its origin ("got this from").
_POINTS = any_of(
    _OPENING
    + r"(?:check|review|explain|analy[sz]e|improve|edit|shorten|simplify|condense|expand|rate|critique|read|consider"
    r"|look at|grade|reply to|respond to|comment on|thoughts on|turn|make|convert|answer|finish|continue|correct|fix"
    r"|translate|tl;? ?dr|forwarding|quoting|pasting)\b.{0,40}?(?:\b(?:grammar|spelling|tone|wording|it (?:\w+ )?\w+er"
    r"|this(?! (?:morning|week|month|year|evening|afternoon))|these|the following|below)\b|please)",
    r"\bwhat (?:does|do) (?:this|it|these|the following) (?:mean|say)\b|^\W*dr please\W*$",
    r"\bwhat do (?:you|u) (?:think|make) (?:of|about) (?:this|these|the following|my|h\w\w) \w+",
    r"\bis (?:this|it|the following)\b.{0,30}\b(?:scam|spam|phishing|legit|polite|grammatical|correct|fake|real)\b",
    r"(?:\b(?:this|these|those|the following) (?:\w+ ){0,2}|\b(?:got|received|came|sent)\b.{0,40})\b" + _NOUN + r"\b",
    r"\b" + _NOUN + r"\b.{0,20}\b(?:arrived|came in|was sent)\b",
    r"^\W*(?:i )?(?:just )?(?:got|received) (?:this|it) from\b|\bwhat (?:should|do|can|shall) i "
    r"(?:say|reply|answer|write)(?: back| to \w+)?\W*$|\btranscribed\W*$",
    r"(?:收到|[发寄传送][来给])[^，,]{0,6}" + _TEXT_ZH,
    r"^\W*这是[^，,我]{1,6}[发写寄传](?:来|给我)?的\W*$|[怎如][么何]回复?\W*$",
    r"(?:下面|以下|下列|这)[^，,]{0,6}(?:邮件|信|话|段|文|消息|[评诗]|条|首|篇|份|题|句|[哪开]头|哪)",
    r"(?:总结|概括|解释|[缩扩]写|点评|批改|分析|修改|优化|改(?:一下)?语法|[改写]得.{1,6}[点些]|改成)(?:一下)?(?:这|下面|以下)?"
    r"[^，,]{0,6}\s*$",
    r"(?:这|下面|以下)[^，,]{0,8}(?:什么意思|诈骗|骗局|真的吗|礼貌吗|怎么看|怎么回)",
)
_POINTS_AT_END = any_of(r"\b(?:(?:the )?following(?: \w+)?|below)\W*$", r"(?:如下|下面|以下|这[个篇段些]?)\W*$")
# Somebody else speaks or writes.
_SAYS = any_of(
    r"(?<!\bi )(?<!\bwe )(?<!\byou )\b(?:wrote|writes|says|said|texted|emailed|mailed|messaged|posted|replied|reads"
    r"|answered|commented|tweeted|pinned|stuck|put|left|shared|forwarded|printed|published|sent|goes|thinks|thought"
    r"|(?:asked|wants|told) me to (?:tell|let) \w+(?: know)?|(?:told|gave|sent|handed) (?:me|us)|(?:is|was) like"
    r"|(?:whisper|shout|yell|claim|announce|mutter|insist|confess|quot|present)(?:s|ed|es|d)|declare[sd])"
    r"(?: (?:me|us|this|that|it|(?:a|the) (?:note|message|following)|back|up|to me|today|yesterday|now|like this"
    r"|(?:on|in|at|under) (?:\w+ ){0,2}\w+))*\W*$",
    r"(?<![我先你您来地短实了想])(?:[写唱说]道|写着|发[^，,]{0,4}来|发给我|[发写贴转留唱念]的|[唱写说喊叫念][了过]?|念叨|回复?(?:道|我)|告诉我|来信)"
    r"\W*$",
)
_ARRIVED = any_of(
    r"\b(?:got|received|found|saw|(?:over)?heard|copied|came (?:in|across)|arrived|popped up|was sent)\b",
    r"收到|[看听]到|发现|刷到|转自|来自|[给发].{0,6}写了",
)
_FIRST_PERSON = any_of(r"\b(?:i|my|we|our)\b|[我咱]")
_LABEL = any_of(r"\W*[\w'’/-]+(?: [\w'’/-]+)?\W*", r"\W*[\u4e00-\u9fff]{1,5}\W*")
# A short name before "I …" on the same line is the speaker's name, unless it is a remark of the user (_REMARK).
_NAME = any_of(r"(?:.*[,，])?\W*(?:[\w'’-]+ ){0,2}[\w'’-]+\W*", r".*[，,][^，,\w]*[\u4e00-\u9fff]{1,5}\W*")
_REMARK = any_of(
    r"\b(?:i|we|me|us|my|our|your?|things?|truth|facts?|point|short|background|context|here|please|hi|hey|hello|so|also"
    r"|but|and|because|anyway|today|now|to be|sure|yes|no|important\w*|careful\w*|clear\w*|simpl[ey]|honest\w*"
    r"|basically|record|first\w*|second\w*|third\w*|finally|p\.?s|update|edit|note|fyi|btw|by the way|news|correction"
    r"|warning|reminder|allerg\w+|diet|health|names?|age|job|work|family|hobbies|location|home|pets?|goals?|thanks"
    r"|confession|problem|issue|reason|result|summary|example|caveat|constraints?|requirements?|preferences?|profile|intro|status|\d+|[a-z])\b",
    r"我|[你您说请先看]|总之|其实|另外|还有|顺便|重要|补充|更正|更新|备注|注意?|提醒|坦白|对了|原因|结果|问题|过敏|饮食|健康|姓名|名字"
    r"|年龄|工作|家庭|爱好|地址|目标|要求|首先|其次|第.|一[下句]|知道|是这样",
)
_BEGINS_WITH_I = re.compile(
    r"[^\w\n\ufffc]{0,9}(?:(?:hey|hi|ok|please|请)[^\w\n]{1,3})*(?:i\b|i['’]|my\b|we\b|remember\b|我|记住)",
    re.IGNORECASE,
)
_ITEM = r"[ \t]*(?:\d[.)、]|[A-Da-d][).]|[A-D] |[-*•])"
_PARAGRAPH_ENDS = re.compile(rf"{BLANK_LINE.pattern}|(?<![:：])\n(?={_ITEM})")
# Signs that the user speaks: "I" as a subject, words to the assistant, a greeting, or a complete sentence (_WHOLE) that
# is not about others.
_SPEAKS = any_of(
    r"\b(?:i|we)\b|\b(?:about|for|give|help|recommend|show|suggest|tell) (?:me|us)\b|\b(?:your|please|thanks?|thank you"
    r"|(?:recommend|suggest|plan|find)\b(?=.* for\b))\b",
    r"(?:^|[\s，,。！？!?、；：:]|[今昨]天|[今昨]晚|最近|现在|因为|所以|但是?|其实|就是|对了)\W*(?:我|咱)|[给帮教]我|关于我|你的|谢谢|推荐|建议",
    r"^\W*(?:ok(?:ay)?|hi|hey|hello|morning|yes|no|sure|great|cool|update|good \w+)(?: \w+)?\W*$"
    r"|^\W*(?:你好|您好|嗨|好的?|嗯|早上?好?|晚上好|更新)[呀啊哦呢]?\W*$",
)
_WHOLE = re.compile(r"[.!?。！？…~～]\W*$")
_ABOUT_OTHERS = any_of(
    rf"\b(?:he|she|they|him|her(?:self|s)?|his|them|their|someone|grand\w+|{PEOPLE})\b(?!.*\b(?:me|us)\b)",
    r"[他她谁]|有人|别人|[爸妈爷奶哥姐弟妹]|女儿|儿子|老[板师公婆]|同[事学]|朋友|客[人户服]|邻居|房[东客]|租客|医生",
)
# Signs of somebody else's words: a note about who wrote something, a task for a text, "this" without a noun.
_OF_A_TEXT = any_of(
    r"(?<!\bi )(?<!\bwe )(?<!\byou )\b(?:(?:e-?mail|text|message|post|forward|tweet)(?:s|ed|ing)|wrote|writes|writing"
    r"|sent|replied|says|said|wants (?:me|us) to sign)\b",
    r"\b(?:proof-?read|re-?write|rephrase|paraphrase|reword|summari[sz]e|polish|translate|verbatim|word for word"
    r"|sound)\b",
    r"(?<!help me with )(?<!help with )\b(?:this|these|those)\W*$"
    r"|(?<!\bi )\b(?:look|saw|see|read|check|make|turn|of|which|learn|recite|left|put|found|got) (?:at )?"
    r"(?:this|these|those|what)\b|\bhere(?:['’]s| is| are)\b",
    r"[发写贴转寄留念](?:来|给我|的|了句|着)|一字不差|原[文话]|签这|[润改]色|改写|校对|[译翻]成|写得|[选挑]哪[个句段]|哪[个句段](?:更?好|合适)",
)
_OF_THE_ASSISTANT = any_of(
    r"\b(?:your|you (?:wrote|sent|gave|made|said|told|wrote me))\b|[你您](?:的|写|发|说|给|推荐)"
)
# Begins a comment on the text that the clause names, not the text itself.
_COMMENT = any_of(r"\s{0,9}(?:it|they|he|she|that|this)(?:['’]s| (?:is|was|were|are|has|had|seems))\b")

# All text after these is a forwarded text or a letter.
_LETTERS = re.compile(
    r"^[ \t]*(?:(?:From|Von|De|发件人|寄件人)[ \t]*[:：][^\n]*\n(?:[^\n]{0,200}\n){0,4}?"
    r"[ \t]*(?:To|Subject|Date|Sent|Cc|An|Betreff|Datum|Gesendet|À|Objet|Para|Asunto"
    r"|收件人|主题|日期|发送时间)[ \t]*[:：]"
    r"|(?:Subject|Re|Fwd?|主题|标题)[ \t]*[:：][^\n]*\n"
    r"|-- \n|-{2,}[ \t]*(?:Forwarded|Original) message|Begin forwarded message|-{2,}[ \t]*(?:转发|原始)的?(?:邮件|消息)"
    r"|(?:Dear (?!(?:assistant|ai|chatgpt|claude|bot|turnlog|friend)\b)|尊敬的|亲爱的)"
    r"[^\n,，:：]{1,40}[,，:：][ \t]*\n|[^\n,，。]{2,10}[您你]好[,，:：][ \t]*\n)"
    r"|(?<=\S)[ \t]*\n[ \t]*\n[ \t]*(?:(?:Hi|Hello|Hey|Dear|Good (?:morning|afternoon|evening|day))\b[^\n,]{0,40}"
    r"|(?:各位|尊敬的|亲爱的)[^\n]{1,20}"
    r"|[^\n]{0,10}[您你]好)"
    r"[,，:：][ \t]*\n",
    re.MULTILINE | re.IGNORECASE,
)
_MARKED = re.compile(r"“[^”]*”|\"[^\"]*\"|「[^」]*」")
_SPEAKER = re.compile(r"^[ \t]*(?P<name>[^\W\d][^\n:：.!?。！？]{0,18})[ \t]*[:：]([^\n]*)", re.MULTILINE)


def not_own(text: str) -> list[Range]:
    """Returns the ranges of the text that are not the user's own claims; they may overlap."""
    ranges: list[Range] = []
    for find in (additions, blocks, *map(_spans_of, _DELIMITED)):
        spans = find(text)
        text = hidden(text, spans, _HIDDEN)
        ranges += spans
    ranges += (match.span() for pattern in _LINES for match in pattern.finditer(text))
    for unmeant in (_transcript, _introduced, _in_another_voice, invented, taken_back):
        ranges += unmeant(text)
    return ranges


def _spans_of(pattern: re.Pattern[str]) -> Callable[[str], list[Range]]:
    return lambda text: [match.span() for match in pattern.finditer(text)]


def _introduced(text: str) -> Iterator[Range]:
    """Yields letters and texts with a title up to the end of the text, and the text that a clause introduces: all
    following text, or if the clause says who speaks, the rest of its line, or one sentence (with "I", the rest of the
    paragraph)."""
    for pattern in (_LETTERS, _TITLE_LINE):
        if match := pattern.search(text):
            yield match.start(), len(text)
    end = 0
    for match in _CLAUSE.finditer(text):
        if match.start() < end:
            continue
        ended = _CLAUSE_END.match(text, match.end())
        clause = match.group()[-MAX_CLAUSE:].strip()
        if ended is None or _MEANT.search(clause) or _BEFORE_DELIMITED.match(text, ended.end()):
            continue
        at = ended.end()
        if _announces(clause, bool(ended["inline"]), text, at):
            yield at, len(text)
            return
        if (
            ended["inline"] in (":", "：")
            and _NAME.fullmatch(clause)
            and not _REMARK.search(clause)
            and _BEGINS_WITH_I.match(text, at)
        ):
            end = at + len(text[at:].split("\n", 1)[0])
            yield at, end
        elif ended["inline"] and _SAYS.search(clause) and (said := SENTENCE.match(text, at)):
            end = said.end()
            if _FIRST_PERSON.search(said.group()):  # the speaker of "I" in the next sentence is unknown
                blank = BLANK_LINE.search(text, end)
                end = blank.end() if blank else len(text)
            yield at, end


def _announces(clause: str, has_colon: bool, text: str, at: int) -> bool:
    """Returns whether a clause that ends at `at` announces that all following text is somebody else's. A colon at the
    end of a line is enough, unless the clause is about the user or is only a label."""
    if not has_colon:
        is_alone = BLANK_LINE.match(text, at) and (_POINTS.search(clause) or _SHOWS.search(clause))
        return bool(is_alone or _POINTS_AT_END.search(clause))
    if _SHOWS.search(clause) or _TITLES.search(clause):
        return not _COMMENT.match(text, at)
    if not text.startswith("\n", at):
        return False
    named = _ARRIVED.search(clause) or _SAYS.search(clause) or _POINTS.search(clause)
    return bool(named or (not _FIRST_PERSON.search(clause) and not _LABEL.fullmatch(clause)))


def _in_another_voice(text: str) -> Iterator[Range]:
    """Yields all text after the first paragraph in which the user does not seem to speak: a heading, a task for a text,
    or news about others. Paragraphs in or before a delimited quote do not count, because the quote is their text; nor
    do items of a list."""
    start = 0
    for gap in _PARAGRAPH_ENDS.finditer(text):
        paragraph = text[start : gap.start()]
        passes = _HIDDEN in paragraph or _BEFORE_DELIMITED.match(text, gap.end()) or re.match(_ITEM, paragraph.lstrip())
        if paragraph.strip() and not passes and not _shows_the_person(paragraph):
            yield gap.end(), len(text)
            return
        start = gap.end()


def _shows_the_person(paragraph: str) -> bool:
    sentences = [match.group().strip() for match in SENTENCE.finditer(_MARKED.sub("", paragraph))]
    is_meant = [bool(_MEANT.search(sentence) or _OF_THE_ASSISTANT.search(sentence)) for sentence in sentences]
    if any(_OF_A_TEXT.search(sentence) and not meant for sentence, meant in zip(sentences, is_meant, strict=True)):
        return False
    is_of_the_person = not _ABOUT_OTHERS.search(paragraph)
    return any(is_meant) or any(
        _SPEAKS.search(sentence) or (is_of_the_person and _WHOLE.search(sentence)) for sentence in sentences
    )


def _transcript(text: str) -> Iterator[Range]:
    """Yields the lines of a transcript ("Ann: …"). A text is a transcript if it has two or more speakers and one of
    them speaks again; a form does not repeat a field name."""
    lines = [match for match in _SPEAKER.finditer(text) if not _MEANT.search(match["name"])]
    names = Counter(match["name"].strip().lower() for match in lines)
    if len(names) > 1 and max(names.values()) > 1:
        yield from (match.span() for match in lines)
