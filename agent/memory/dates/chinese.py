"""Chinese date expressions as rules: a pattern, and the span that it means relative to a day. Pure."""

import re
from datetime import date

from turnlog.agent.memory.dates import spans
from turnlog.agent.memory.dates.english import Read, Rule
from turnlog.agent.memory.dates.spans import DaySpan

_DIGITS = {char: n for n, char in enumerate("零一二三四五六七八九")} | {"〇": 0, "两": 2, "俩": 2}
_YEARS = {"大前年": -3, "前年": -2, "去年": -1, "上一年": -1, "今年": 0, "本年": 0, "明年": 1, "后年": 2}
_DAYS = {"大前天": 3, "前天": 2, "前日": 2, "昨天": 1, "昨日": 1, "昨晚": 1, "昨夜": 1} | dict.fromkeys(
    ("今天", "今日", "今晚", "今早", "今晨"), 0
)
_LATER = {"明天": -1, "明日": -1, "明晚": -1, "后天": -2}
_UNITS = {"天": "day", "日": "day", "周": "week", "星期": "week", "礼拜": "week", "月": "month", "年": "year"}
_SEASONS = {"春": 0, "夏": 1, "秋": 2, "冬": 3}
_WEEKDAYS = "一二三四五六日天"

_NUMBER = r"[0-9零一二三四五六七八九十两俩几]{1,4}"
_FULL_YEAR = r"(?P<year>(?:19|20)\d\d|(?:一九|二[〇零○0])[〇零○一二三四五六七八九]{2})年"
_NAMED_YEAR = rf"(?P<named>{'|'.join(_YEARS)})"
_MONTH = r"(?P<month>1[0-2]|0?[1-9]|十[一二]?|[一二三四五六七八九])月"
_DAY = r"(?P<day>[12]\d|3[01]|0?[1-9]|[一二三]?十[一二三四五六七八九]?|[一二三四五六七八九])[日号]"
_SEASON = r"(?P<season>[春夏秋冬])(?:天|季)"
_BACK = r"(?P<step>上+|这|本|下)(?:一)?个?"
_WEEK = r"(?:周|星期|礼拜)"
_NOT_PART = r"(?<![0-9零一二三四五六七八九十两第])(?<!每年)(?<!每年的)"


def _rule(pattern: str, read: Read) -> Rule:
    return Rule(re.compile(pattern), read)


def number(said: str) -> int:
    """Returns the value of a numeral: 十二 → 12, 二十 → 20, 两 → 2, 2023 → 2023, 二〇二三 → 2023."""
    if said.isdigit() and said.isascii():
        return int(said)
    if "十" in said:
        tens, _, ones = said.partition("十")
        return (_DIGITS.get(tens, 1) if tens else 1) * 10 + _DIGITS.get(ones, 0)
    return int("".join(str(_DIGITS.get(char, 0)) if not char.isascii() else char for char in said.replace("○", "零")))


def _year_of(match: re.Match[str], today: date) -> int:
    named = match.groupdict().get("named")
    return today.year + _YEARS[named] if named else number(match["year"])


def _step_of(match: re.Match[str]) -> int:
    said = match["step"]
    return -len(said) if said.startswith("上") else int(said == "下")


def _dated(match: re.Match[str], today: date) -> DaySpan | None:
    return spans.on_day(_year_of(match, today), number(match["month"]), number(match["day"]))


def _part_of_year(match: re.Match[str], today: date) -> DaySpan:
    first = {"初": 1, "底": 11, "末": 11, "上半年": 1, "下半年": 7}[match["part"]]
    year = _year_of(match, today)
    begin = date(year, first, 1)
    return DaySpan(begin, spans.add_months(begin, 6 if "半" in match["part"] else 2))


def _weekday(match: re.Match[str], today: date) -> DaySpan:
    """Returns the span of a weekday or weekend, such as 上周五, which is always the Friday of last week."""
    step = _step_of(match) if match.groupdict().get("step") else 0
    if match["day"] == "末":
        return spans.next_to(today, "weekend", step)
    weekday = min(_WEEKDAYS.index(match["day"]), 6)
    return spans.day(spans.next_to(today, "week", step).first + weekday * spans.DAY)


def counts(said: str) -> tuple[int, int]:
    """Returns the range of an approximate number: 几 → 2 to 5, 两三 → 2 to 3, 二三十 → 20 to 30, 十几 → 11 to 19."""
    if "几" in said:
        rough = {"几": (2, 5), "几十": (20, 90)}
        tens = number(said.replace("几", "")) if said not in rough else 0
        return rough.get(said, (tens + 1, tens + 9))
    if match := re.fullmatch("([一二三四五六七八九两])([二三四五六七八九])(十?)", said):
        times = 10 if match[3] else 1
        return _DIGITS[match[1]] * times, _DIGITS[match[2]] * times
    return number(said), number(said)


def _ago(match: re.Match[str], today: date, unit: str) -> DaySpan:
    fewest, most = counts(match["count"])
    return DaySpan(spans.ago(today, most, unit).first, spans.ago(today, fewest, unit).end)


def _month_and_day(match: re.Match[str], today: date) -> DaySpan | None:
    month = spans.next_to(today, "month", _step_of(match)).first
    return spans.on_day(month.year, month.month, number(match["day"]))


# In this order: text that a rule has matched is not read by later rules.
RULES = (
    _rule(rf"(?P<date>{_FULL_YEAR}{_MONTH}{_DAY})", _dated),
    _rule(rf"(?P<date>{_NAMED_YEAR}的?{_MONTH}{_DAY})", _dated),
    _rule(rf"(?P<date>{_FULL_YEAR}的?{_MONTH}份?)", lambda m, t: spans.month(_year_of(m, t), number(m["month"]))),
    _rule(rf"(?P<date>{_NAMED_YEAR}的?{_MONTH}份?)", lambda m, t: spans.month(_year_of(m, t), number(m["month"]))),
    _rule(rf"(?P<date>{_FULL_YEAR}的?{_SEASON})", lambda m, t: spans.season(_year_of(m, t), _SEASONS[m["season"]])),
    _rule(rf"(?P<date>{_NAMED_YEAR}的?{_SEASON})", lambda m, t: spans.season(_year_of(m, t), _SEASONS[m["season"]])),
    _rule(rf"(?P<date>{_FULL_YEAR}的?年?(?P<part>初|底|末|上半年|下半年))", _part_of_year),
    _rule(rf"(?P<date>{_NAMED_YEAR}的?年?(?P<part>初|底|末|上半年|下半年))", _part_of_year),
    _rule(rf"(?P<date>{_FULL_YEAR})", lambda m, t: spans.year(_year_of(m, t))),
    _rule(rf"(?P<date>{_NAMED_YEAR})", lambda m, t: spans.year(_year_of(m, t))),
    _rule(rf"(?P<date>{'|'.join(_DAYS)})", lambda m, t: spans.day(t - _DAYS[m["date"]] * spans.DAY)),
    _rule(rf"(?P<date>{'|'.join(_LATER)})", lambda m, t: spans.day(t - _LATER[m["date"]] * spans.DAY)),
    _rule(
        rf"(?:过去|最近|近)的?这?(?P<date>(?P<count>{_NUMBER})个?(?P<unit>天|周|星期|礼拜|月|年))(?!前|以前|之前)",
        lambda m, t: spans.lately(t, counts(m["count"])[1], _UNITS[m["unit"]]),
    ),
    _rule(r"(?P<date>半年(?:多)?(?:以|之)?前)", lambda m, t: spans.ago(t, 6, "month")),
    _rule(r"(?P<date>半个(?:多)?月(?:以|之)?前)", lambda m, t: spans.ago(t, 2, "week")),
    _rule(
        rf"{_NOT_PART}(?P<date>(?P<count>{_NUMBER})多?(?:个多?(?P<whole>月|星期|礼拜)|(?P<unit>天|日|周|星期|礼拜|年))多?(?:以|之)?前)",
        lambda m, t: _ago(m, t, _UNITS[m["whole"] or m["unit"]]),
    ),
    _rule(rf"(?P<date>{_BACK}{_WEEK}(?P<day>[一二三四五六日天末]))", _weekday),
    _rule(rf"(?P<date>{_BACK}月的?{_DAY})", _month_and_day),
    _rule(rf"(?P<date>{_BACK}{_WEEK})", lambda m, t: spans.next_to(t, "week", _step_of(m))),
    _rule(
        r"(?P<date>(?P<step>上+|这|本|下)(?:一)?个?月)(?!亮|球|光|饼)",
        lambda m, t: spans.next_to(t, "month", _step_of(m)),
    ),
    _rule(
        rf"(?P<date>(?P<step>上|这|下)(?:一)?个{_SEASON})",
        lambda m, t: spans.stepped_season(t, _SEASONS[m["season"]], _step_of(m)),
    ),
    _rule(r"(?P<date>周末)(?!愉快|快乐)", lambda m, t: spans.weekend(spans.last_weekday(t, 5).first)),
    _rule(
        r"(?P<date>(?<!每)(?:星期|礼拜|(?<!每)周)(?P<day>[一二三四五六日天]))(?![年岁到至])",
        lambda m, t: spans.last_weekday(t, min(_WEEKDAYS.index(m["day"]), 6)),
    ),
    _rule(
        rf"{_NOT_PART}(?P<date>{_MONTH}{_DAY})", lambda m, t: spans.last_on_day(t, number(m["month"]), number(m["day"]))
    ),
    _rule(
        rf"{_NOT_PART}(?P<date>{_MONTH}份?)(?!天|河|[日号])",
        lambda m, t: spans.last_month_named(t, number(m["month"])),
    ),
)
