"""Rewrites a statement into readings, which the rules can match. Pure.

The rules know only statements in the first person. So the readings are the statement itself and its clauses without a
subject, or with a relative as the subject, rewritten to begin with "I" or 我: 我叫王芳，住在上海 also states
我住在上海, and "My son Max is 7 and lives in Rome" states about Max what "I am 7" states about the user. A denied
clause is read without its denial: "I no longer work at Bosch" becomes "I work at Bosch". So each rule also finds the
end of the fact that it states. A reading has the same length as the statement, and its words have the same positions.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import regex

from turnlog.agent.memory.extraction.fact_subjects import EN_KIN, SOMEBODY, ZH_KIN, Subject, named_relative
from turnlog.agent.memory.extraction.rules import parts

_PLAIN = str.maketrans("’\t\u00a0\u3000", "'   ")  # one character to one, so that positions stay the same
_ADVERBS = regex.compile(
    r"(?<![\p{L}])(?P<who>(?:i|we)(?:'m|'ve| am| are| have)? )"
    r"(?:(?:only just|just|recently|currently|now|also|still|already|actually|really|finally|personally) )+"
    r"|(?P<who>我(?:们家?)?)(?:现在|目前|最近|刚刚?|已经|也|还(?!有)|又|一直|其实|平时|真的)+(?=\p{Han})"
    # The time of a change, except before 吃, 喝, 住 and 在, which do not express a change.
    r"|(?P<who>我(?:们家?)?)(?:上个?[月周]|去年|前年|今年|昨天|前天|前几天|前不久|不久前|刚刚?|已经)+(?![吃喝住在])"
    r"(?=[^，。！？,.!?]*了(?:[，。！,.!]|$))",
    regex.IGNORECASE,
)
_MARK = regex.compile(
    r"[，,；;]\s*(?:(?:and|but|because|since|so|而且|并且|但是?|因为|所以)\s*)?|\s(?:and|but|because|since|so)\s",
    regex.IGNORECASE,
)
_OPENING = regex.compile(
    r"(?:\s|(?:well|oh|yes|hi|hello|so|also|and|but|by the way|actually|now|currently|just|then|recently|still)\b"
    r"|嗯|对了|另外|其实|现在|目前|平时|而且|但是?|还|也|已经|刚刚?|才)*",
    regex.IGNORECASE,
)
_SURNAME = "[王李张刘陈杨赵黄周吴徐孙胡朱林何郭马罗梁宋郑谢]"
_ANIMAL_ZH = rf"(?:[只条匹]\p{{Han}}{{0,5}}?|[的家][老大小黑白]?){parts()['{{pet_zh}}']}"
_SOMEBODY_ELSE = regex.compile(
    r"\b(?:who|whom|whose|that|which|man|woman|men|women|guy|girl|boy|people|person|met|saw|heard)\b"
    rf"|听说|认识|遇[到见]|碰到|[看见]到|[老小阿]{_SURNAME}|个(?:女|男|人)|{_ANIMAL_ZH}|{SOMEBODY.pattern}",
    regex.IGNORECASE,
)
_USER = regex.compile(rf"(?:i|we)\b|我(?!们?家?的?(?:{ZH_KIN}))", regex.IGNORECASE)
_NAME_ZH = rf"(?:[小阿]\p{{Han}}{{1,2}}?|(?P<twice>\p{{Han}})(?P=twice)|{_SURNAME}\p{{Han}}{{1,2}}?)"
_RELATIVE = regex.compile(
    rf"(?:my|our(?! partner)) (?P<role>(?:(?:older|younger|elder|little|big) )*(?:{EN_KIN}))"
    r"(?:'s name is|,? called|,? named|,? who)?(?:,? (?P<name>(?-i:\p{Lu}\p{Ll}+)),?)?(?=['\s]|$)"
    rf"|(?:我们?家?(?:的|有[一1]?个)?)?(?P<role>{ZH_KIN})(?:(?:的?名字|名)?叫做?)?(?P<name>{_NAME_ZH})?"
    r"(?=[，,今现对是住在有也从因农阴去上读属。！.!\s]|已经|就读|生日|$)",
    regex.IGNORECASE,
)
_PRONOUN = regex.compile(r"(?:he|she|who)(?=['\s])|[他她]", regex.IGNORECASE)
_NAMES_AN_OBJECT = regex.compile(r"(?:名字|名)?叫|(?:called|named)\b", regex.IGNORECASE)  # 我养了一只猫，叫咪咪
_BASE_FORMS = {
    **{"'s": "am", "is": "am", "has": "have", "goes": "go", "studies": "study", "teaches": "teach"},
    **{f"{verb}s": verb for verb in ("live", "work", "speak", "come", "attend", "suffer", "earn", "take")},
    **{verb: verb for verb in ("was", "turned", "moved", "started", "joined", "quit")},
}
# Matches a denial, up to the verb or its complement. The group `no` distinguishes "no longer" and "stopped", which say
# that the fact was true before, from a plain "not", which does not.
_DENIAL = regex.compile(
    r"(?<!\p{L})(?:(?P<who>(?:i|we)(?:'m| am|'re| are)) (?P<no>no longer|not)(?: actually| really)?"
    r"|(?P<who>i|we) (?:(?P<no>no longer)|do(?:n't| not|nt)(?: actually| really)?)"
    r"|(?P<i>i|we)(?:'ve| have)?(?: just| recently| finally)? (?P<no>stopped)(?: being|(?= \p{L}+ing\b)))(?= \p{L})"
    r"|(?P<who>我们?家?(?:[对在把和跟][^，。！？!?,;；不没]{1,12}?)?)(?:已经|并|根本|完全|再也)*"
    r"(?:不(?P<no>再)?(?:是(?=[吃在住]))?|没(?=有))(?=\p{Han})",
    regex.IGNORECASE,
)
_END_OF_DENIAL = regex.compile(
    r"[,.;!?，。；！？]|\s(?:and|but|so|because|since)\s(?:i|we|my|it|now)\b|$", regex.IGNORECASE
)
_NO_MORE = regex.compile(r"\s(?:any ?more|any ?longer)(?![\p{L}])|了(?=\s*$)", regex.IGNORECASE)
_AFTER_ALL = regex.compile(r"\s(?:after all|at all|actually)\s*$", regex.IGNORECASE)
_WORDS = "|".join(verb for verb in _BASE_FORMS if verb.isalpha())
_VERB = regex.compile(
    rf"(?: (?:just|recently|currently|now|also|still))*('s(?= (?:an?|\d|allergic|from)\b)|\s*\b(?:{_WORDS}))(?= )",
    regex.IGNORECASE,
)


class Reading(NamedTuple):
    """A form of a statement for the rules. text: has the same positions as the statement. subject: the person whom "I"
    means; None for the user. is_whole: True for the complete statement, False for a clause.

    denies: "ended" if the text says that the clause at the position `since` is no longer true, "not" if it says that it
    is not true, None without a denial.
    """

    text: str
    subject: Subject | None = None
    is_whole: bool = False
    denies: Literal["ended", "not"] | None = None
    since: int = 0

    def states_at(self, at: int) -> bool:
        """Returns whether a match at this position belongs to the reading. In a denial, it must begin with the first
        word after `since`, because "I don't think I have asthma" does not deny asthma."""
        return self.denies is None or (at >= self.since and not self.text[self.since : at].strip())

    def begin(self, said: str, at: int) -> int:
        """Returns the position in `said` where the words of a match begin, including adverbs before `at` that the
        reading has left out."""
        while self.is_whole and at and self.text[at - 1] == " " != said[at - 1]:
            at -= 1
        return at


def readings(said: str) -> Iterator[Reading]:
    """Yields the readings of a statement, the complete statement first. Readings of denied clauses follow the reading
    that contains them."""
    for reading in _plain_readings(said):
        yield reading
        yield from _denials(reading)


def _denials(reading: Reading) -> Iterator[Reading]:
    for match in _DENIAL.finditer(reading.text):
        end = _END_OF_DENIAL.search(reading.text, match.end())
        assert end is not None
        clause = _AFTER_ALL.sub(_blank, reading.text[match.end() : end.start()])
        still = _NO_MORE.sub(_blank, clause)
        who = match["who"] or f"{match['i']}'m"
        text = f"{reading.text[: match.start()]}{who.rjust(len(match[0]))}{still.rstrip()}"
        denies: Literal["ended", "not"] = "ended" if match["no"] not in (None, "not") or still != clause else "not"
        text = f"{text}.".ljust(len(reading.text))[: len(reading.text)]
        yield reading._replace(text=text, denies=denies, since=match.start())


def _blank(match: Any) -> str:
    return " " * len(match[0])


def _plain_readings(said: str) -> Iterator[Reading]:
    """Yields the statement and its clauses, without denials. A clause without a subject has the subject of the clause
    before, unless that clause names somebody else."""
    text = said.translate(_PLAIN)
    text = _ADVERBS.sub(lambda match: match["who"].rjust(len(match.group())), text)
    yield Reading(text, is_whole=True)
    topic: Subject | None = None  # the person that the earlier clauses are about, if known
    is_known = False
    for start, end in _clauses(text):
        clause = text[start:end]
        if _USER.match(clause):
            topic, is_known = None, not _SOMEBODY_ELSE.search(clause)
            continue
        if relative := _RELATIVE.match(clause):
            topic = named_relative(relative["role"], relative["name"])
            is_known, subject_end = True, start + relative.end()
        elif pronoun := _PRONOUN.match(clause):
            is_known = is_known and topic is not None
            subject_end = start + pronoun.end()
        elif _NAMES_AN_OBJECT.match(clause):
            continue
        else:
            subject_end = start
        read = _in_first_person(text, subject_end, end, topic is not None) if is_known else None
        if read:
            yield Reading(read, topic)
        is_known = is_known and (subject_end in (start, end) or read is not None)
        if subject_end == start and _SOMEBODY_ELSE.search(clause):
            is_known = False


def _clauses(text: str) -> Iterator[tuple[int, int]]:
    """Yields each clause from its first word that is not a filler."""
    start = 0
    for mark in (*_MARK.finditer(text), None):
        end = mark.start() if mark else len(text)
        opening: Any = _OPENING.match(text, start, end)
        if opening.end() < end:
            yield opening.end(), end
        start = mark.end() if mark else end


def _in_first_person(text: str, at: int, end: int, is_third: bool) -> str | None:
    """Returns the text from `at` on with "I" or 我 before it.

    is_third: the verb is in the form for he or she. Returns None if there is no such verb, or no room before `at`.
    """
    if regex.match(r"(?:\d{1,4}\s*)?\p{Han}", text, pos=at):
        return "我".rjust(at) + text[at:] if at else None
    if not is_third:
        return f"{'I '.rjust(at)}{text[at:]}" if at > 1 else None
    verb = _VERB.match(text, at, end)
    return f"I {_BASE_FORMS[verb[1].strip().lower()]}".rjust(verb.end()) + text[verb.end() :] if verb else None
