"""Dates in questions are recognised, other texts are not taken for dates, and each date means an interval."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import hypothesis.strategies as st
import pytest
from hypothesis import given

from turnlog.agent.memory.dates.dates import dates_in

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)  # a Sunday
BEGINNING = "1970-01-01"


def intervals(text: str, now: datetime = NOW) -> list[tuple[str, str]]:
    return [
        (f"{interval.from_time:%Y-%m-%d}".zfill(10), f"{interval.to_time:%Y-%m-%d}") for interval in dates_in(text, now)
    ]


ENGLISH = [
    ("What did I say yesterday?", "2026-11-21", "2026-11-22"),
    ("Where was I the day before yesterday?", "2026-11-20", "2026-11-21"),
    ("What did we talk about last night?", "2026-11-21", "2026-11-22"),
    ("What did I eat two days ago?", "2026-11-20", "2026-11-21"),
    ("Whom did I meet two weeks ago?", "2026-11-05", "2026-11-12"),
    ("What happened a month ago?", "2026-10-01", "2026-11-01"),
    ("I moved 3 years ago", "2023-01-01", "2024-01-01"),
    ("A few days ago I lost my keys", "2026-11-17", "2026-11-21"),
    ("a couple of weeks ago", "2026-11-05", "2026-11-12"),
    ("What did I read in the last three weeks?", "2026-11-02", "2026-11-23"),
    ("What changed over the past year?", "2025-11-22", "2026-11-23"),
    ("What changed in the past 2 years?", "2024-11-22", "2026-11-23"),
    ("Where did I go last week?", "2026-11-09", "2026-11-16"),
    ("Where did I go last weekend?", "2026-11-14", "2026-11-16"),
    ("What did I do this month?", "2026-11-01", "2026-12-01"),
    ("What did I do last year?", "2025-01-01", "2026-01-01"),
    ("What did I plan for next month?", "2026-12-01", "2027-01-01"),
    ("Where did I travel last March?", "2026-03-01", "2026-04-01"),
    ("Where did I travel last December?", "2025-12-01", "2026-01-01"),
    ("Where did I travel in March?", "2026-03-01", "2026-04-01"),
    ("Where did I travel in December?", "2025-12-01", "2026-01-01"),
    ("Where did I travel in May 2023?", "2023-05-01", "2023-06-01"),
    ("What about sept. 2022?", "2022-09-01", "2022-10-01"),
    ("Where was I in March of last year?", "2025-03-01", "2025-04-01"),
    ("What did I do last summer?", "2026-06-01", "2026-09-01"),
    ("What did I do last winter?", "2025-12-01", "2026-03-01"),
    ("Who visited in the fall of 2022?", "2022-09-01", "2022-12-01"),
    ("Who visited in the spring?", "2026-03-01", "2026-06-01"),
    ("Who came on 8 May?", "2026-05-08", "2026-05-09"),
    ("Who came on the 8th of May, 2023?", "2023-05-08", "2023-05-09"),
    ("Who came on December 24th?", "2025-12-24", "2025-12-25"),
    ("Who came on may 8, 2023?", "2023-05-08", "2023-05-09"),
    ("Who came on the 8th?", "2026-11-08", "2026-11-09"),
    ("Who came on the 30th?", "2026-10-30", "2026-10-31"),
    ("It was 1:56 pm on 8 May, 2023", "2023-05-08", "2023-05-09"),
    ("See 2023-05-08.", "2023-05-08", "2023-05-09"),
    ("See 2023-05.", "2023-05-01", "2023-06-01"),
    ("See 5/13/2023.", "2023-05-13", "2023-05-14"),
    ("See 13/5/2023.", "2023-05-13", "2023-05-14"),
    ("What did I say on Friday?", "2026-11-20", "2026-11-21"),
    ("What did I say last Sunday?", "2026-11-15", "2026-11-16"),
    ("What is next Monday?", "2026-11-23", "2026-11-24"),
    ("Where did I live in 2019?", "2019-01-01", "2020-01-01"),
    ("Where have I lived since 2021?", "2021-01-01", "2026-11-22"),
    ("Where have I lived since last summer?", "2026-06-01", "2026-11-22"),
    ("Where did I work after 2020?", "2021-01-01", "2026-11-22"),
    ("Where did I work before May 2023?", BEGINNING, "2023-05-01"),
    ("What did I do the week before August 3, 2023?", "2023-07-27", "2023-08-03"),
    ("What did I get two weeks before August 11, 2023?", "2023-07-25", "2023-08-01"),
    ("Who came on the Sunday before October 25, 2022?", "2022-10-23", "2022-10-24"),
    ("Where did I go the month before 16 November 2023?", "2023-10-15", "2023-11-16"),
]
CHINESE = [
    ("昨天我说了什么？", "2026-11-21", "2026-11-22"),
    ("前天我们聊了什么？", "2026-11-20", "2026-11-21"),
    ("大前天呢", "2026-11-19", "2026-11-20"),
    ("昨晚我去哪儿了", "2026-11-21", "2026-11-22"),
    ("三天前我买了什么？", "2026-11-19", "2026-11-20"),
    ("几天前", "2026-11-17", "2026-11-21"),
    ("两三天前", "2026-11-19", "2026-11-21"),
    ("三四个月前", "2026-07-01", "2026-09-01"),
    ("十几天前", "2026-11-03", "2026-11-12"),
    ("几十年前", "1936-01-01", "2007-01-01"),
    ("二三十年前", "1996-01-01", "2007-01-01"),
    ("最近两三年", "2023-11-22", "2026-11-23"),
    ("两周前我见了谁？", "2026-11-05", "2026-11-12"),
    ("三个月前", "2026-08-01", "2026-09-01"),
    ("半年前", "2026-05-01", "2026-06-01"),
    ("三年前我在哪里？", "2023-01-01", "2024-01-01"),
    ("十二年以前", "2014-01-01", "2015-01-01"),
    ("最近三个月我读了什么书？", "2026-08-22", "2026-11-23"),
    ("过去两年", "2024-11-22", "2026-11-23"),
    ("上周我做了什么？", "2026-11-09", "2026-11-16"),
    ("上上周", "2026-11-02", "2026-11-09"),
    ("上个星期三", "2026-11-11", "2026-11-12"),
    ("上周五我和谁吃饭？", "2026-11-13", "2026-11-14"),
    ("下周一", "2026-11-23", "2026-11-24"),
    ("周五我说了什么", "2026-11-20", "2026-11-21"),
    ("上周末", "2026-11-14", "2026-11-16"),
    ("上个月我去了哪里？", "2026-10-01", "2026-11-01"),
    ("上上个月", "2026-09-01", "2026-10-01"),
    ("本月", "2026-11-01", "2026-12-01"),
    ("上个月8号", "2026-10-08", "2026-10-09"),
    ("去年三月我去了哪里？", "2025-03-01", "2025-04-01"),
    ("去年的十二月份", "2025-12-01", "2026-01-01"),
    ("前年冬天", "2024-12-01", "2025-03-01"),
    ("今年夏天我去了哪里？", "2026-06-01", "2026-09-01"),
    ("去年夏天", "2025-06-01", "2025-09-01"),
    ("去年年底", "2025-11-01", "2026-01-01"),
    ("今年上半年", "2026-01-01", "2026-07-01"),
    ("去年我在哪儿工作？", "2025-01-01", "2026-01-01"),
    ("2023年5月我说了什么？", "2023-05-01", "2023-06-01"),
    ("二〇二三年十月", "2023-10-01", "2023-11-01"),
    ("2023年5月8日", "2023-05-08", "2023-05-09"),
    ("5月8日是谁的生日？", "2026-05-08", "2026-05-09"),
    ("十二月二十五号", "2025-12-25", "2025-12-26"),
    ("三月我在忙什么", "2026-03-01", "2026-04-01"),
    ("2019年我住在哪里？", "2019-01-01", "2020-01-01"),
    ("去年三月以来", "2025-03-01", "2026-11-22"),
    ("2020年以后", "2021-01-01", "2026-11-22"),
    ("三月之前", BEGINNING, "2026-03-01"),
]


@pytest.mark.parametrize(("text", "first", "end"), ENGLISH + CHINESE)
def test_a_date_is_understood_relative_to_the_time_of_the_question(text: str, first: str, end: str) -> None:
    assert intervals(text) == [(first, end)]


@pytest.mark.parametrize(
    "text",
    [
        "May I ask you something?",
        "I think this may be wrong, and the next may come soon.",
        "Answer in 2000 words, with meals before 1900 calories.",
        "may i march on",
        "We march on, and June told April about Sunny.",
        "It came second; give me a second.",
        "Prices fall and flowers spring up in a moment.",
        "I have 2 sons and 3 cats, room 2021.",
        "It is on the 2nd floor.",
        "The ratio is 3/4 and version 1.2.2023 is out.",
        "I work on Mondays and at weekends.",
        "The summer school was mid-sized.",
        "Whom did I meet in the summer camp?",
        "What did I learn during the winter course?",
        "I last ate this.",
        "一月河边，五月天的歌",
        "我工作了三年，有三个月假期",
        "月亮很圆，第三天",
        "每周五我打球，每年三月下雪",
        "坐8号线去三号楼",
        "下个月饼",
        "",
    ],
)
def test_ordinary_words_are_not_dates(text: str) -> None:
    assert intervals(text) == []


def test_a_weekend_is_the_last_one_that_has_begun_unless_this_one_is_named() -> None:
    friday = datetime(2026, 11, 20, 12, tzinfo=UTC)
    assert intervals("周末我去了哪里？", friday) == [("2026-11-14", "2026-11-16")]
    assert intervals("这个周末有什么安排？", friday) == [("2026-11-21", "2026-11-23")]
    assert intervals("周末我去了哪里？") == [("2026-11-21", "2026-11-23")]


def test_several_dates_come_in_the_order_of_the_text() -> None:
    assert intervals("Between May 2023 and last summer, 还有去年三月?") == [
        ("2023-05-01", "2023-06-01"),
        ("2026-06-01", "2026-09-01"),
        ("2025-03-01", "2025-04-01"),
    ]


def test_a_day_that_does_not_exist_is_not_a_date() -> None:
    assert intervals("2023-02-31 and 2023年2月31日") == [("2023-02-01", "2023-03-01")]


def test_days_begin_at_midnight_in_the_users_timezone() -> None:
    late = datetime(2026, 11, 21, 18, tzinfo=UTC)  # this is the 22nd in Shanghai
    (day,) = dates_in("昨天", late, ZoneInfo("Asia/Shanghai"))
    assert day.from_time == datetime(2026, 11, 20, 16, tzinfo=UTC)
    assert day.to_time - day.from_time == timedelta(days=1)


def test_the_last_29_february_may_be_years_back() -> None:
    assert intervals("on 29 February") == [("2024-02-29", "2024-03-01")]


@given(st.text(max_size=60), st.dates(date(1900, 1, 1), date(2100, 12, 31)))
def test_dates_in_any_text_are_intervals_that_end_after_they_begin(text: str, today: date) -> None:
    for interval in dates_in(text, datetime(today.year, today.month, today.day, tzinfo=UTC)):
        assert interval.from_time < interval.to_time


@given(
    st.sampled_from([text for text, *_ in ENGLISH + CHINESE]),
    st.dates(date(2024, 1, 1), date(2100, 12, 31)),
)
def test_known_expressions_are_intervals_on_every_day(text: str, today: date) -> None:
    for interval in dates_in(text, datetime(today.year, today.month, today.day, tzinfo=UTC)):
        assert interval.from_time < interval.to_time
