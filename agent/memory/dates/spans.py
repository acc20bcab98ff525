"""Calendar arithmetic for dates in questions: days, weeks, months, seasons and years as half-open spans. Pure."""

from calendar import monthrange
from datetime import date, timedelta
from typing import NamedTuple

DAY = timedelta(days=1)
FEW = -1  # an unnamed count: "a few days ago"


class DaySpan(NamedTuple):
    """A span of days. end: the day after the last one."""

    first: date
    end: date


def day(on: date) -> DaySpan:
    return DaySpan(on, on + DAY)


def week(of: date) -> DaySpan:
    """Returns the week of a day, Monday to Sunday."""
    first = of - of.weekday() * DAY
    return DaySpan(first, first + 7 * DAY)


def weekend(of: date) -> DaySpan:
    """Returns the Saturday and Sunday of a day's week."""
    first = week(of).first + 5 * DAY
    return DaySpan(first, first + 2 * DAY)


def month(year_: int, number: int) -> DaySpan:
    first = date(year_, number, 1)
    return DaySpan(first, add_months(first, 1))


def year(number: int) -> DaySpan:
    return DaySpan(date(number, 1, 1), date(number + 1, 1, 1))


def season(year_: int, which: int) -> DaySpan:
    """Returns a season of a year (northern hemisphere) in whole months. which: 0 is spring, from March; 3 is winter,
    from December of the year."""
    first = date(year_, 3 + 3 * which, 1)
    return DaySpan(first, add_months(first, 3))


def add_months(to: date, count: int) -> date:
    """Returns the same day `count` months later, or the last day of that month if the month is shorter."""
    months = to.year * 12 + to.month - 1 + count
    number, month_index = divmod(months, 12)
    return date(number, month_index + 1, min(to.day, monthrange(number, month_index + 1)[1]))


def ago(today: date, count: int, unit: str) -> DaySpan:
    """Returns the span of an expression such as "3 days ago". Longer units are vaguer: "2 weeks ago" is 7 days around
    that day, "a month ago" that calendar month, "a year ago" that calendar year. count: FEW stands for 2 to 5. unit:
    day, week, month or year."""
    if count == FEW:
        return DaySpan(ago(today, 5, unit).first, ago(today, 2, unit).end)
    match unit:
        case "day":
            return day(today - count * DAY)
        case "week":
            middle = today - 7 * count * DAY
            return DaySpan(middle - 3 * DAY, middle + 4 * DAY)
        case "month":
            then = add_months(today, -count)
            return month(then.year, then.month)
        case _:
            return year(today.year - count)


def lately(today: date, count: int, unit: str) -> DaySpan:
    """Returns the last `count` days, weeks, months or years, including today. count: FEW stands for 5."""
    count = 5 if count == FEW else count
    days = {"day": 1, "week": 7}.get(unit)
    if days is not None:
        return DaySpan(today - (days * count - 1) * DAY, today + DAY)
    return DaySpan(add_months(today, -count * (12 if unit == "year" else 1)), today + DAY)


def next_to(today: date, unit: str, step: int) -> DaySpan:
    """Returns a calendar week, weekend, month or year. step: 0 is the present one, -1 the one before, 1 the one after,
    and so on."""
    match unit:
        case "week":
            return week(today + 7 * step * DAY)
        case "weekend":
            return weekend(today + 7 * step * DAY)
        case "month":
            then = add_months(today.replace(day=1), step)
            return month(then.year, then.month)
        case _:
            return year(today.year + step)


def last_month_named(today: date, number: int) -> DaySpan:
    """Returns the latest month of this name that has begun: a question about "May" means the past."""
    return month(today.year if number <= today.month else today.year - 1, number)


def stepped_month(today: date, number: int, step: int) -> DaySpan:
    """Returns the month for "last March", "this March" or "next March". step: -1 is the latest such month before the
    present month, 0 the one of this year, 1 the first one after the present month."""
    if step == 0:
        return month(today.year, number)
    over = number < today.month if step < 0 else number <= today.month
    back = 0 if over else 1
    return month(today.year - back if step < 0 else today.year + 1 - back, number)


def stepped_season(today: date, which: int, step: int) -> DaySpan:
    """Returns the season for "last summer", "this summer" or "next summer". step: -1 is the latest one that has ended,
    0 the one that begins this year, 1 the first one that begins after today."""
    if step == 0:
        return season(today.year, which)
    choices = [season(today.year + back, which) for back in (-2, -1, 0, 1)]
    if step < 0:
        return [span for span in choices if span.end <= today][-1]
    return next(span for span in choices if span.first > today)


def last_season(today: date, which: int) -> DaySpan:
    """Returns the latest season of this name that has begun."""
    return [span for span in (season(today.year + back, which) for back in (-1, 0)) if span.first <= today][-1]


def on_day(year_: int, month_: int, number: int) -> DaySpan | None:
    """Returns the span of one day; None if the date does not exist."""
    try:
        return day(date(year_, month_, number))
    except ValueError:
        return None


def last_on_day(today: date, month_: int, number: int) -> DaySpan | None:
    """Returns the latest day with this month and number, up to today (29 February may be years ago); None if there is
    no such day."""
    days = (on_day(today.year - back, month_, number) for back in range(9))
    return next((span for span in days if span is not None and span.first <= today), None)


def weekday(today: date, number: int, step: int) -> DaySpan:
    """Returns a weekday. number: 0 is Monday. step: -1 is the latest one before today, 0 the one of this week, 1 the
    first one after today."""
    if step == 0:
        return day(week(today).first + number * DAY)
    if step < 0:
        return day(today - ((today.weekday() - number - 1) % 7 + 1) * DAY)
    return day(today + ((number - today.weekday() - 1) % 7 + 1) * DAY)


def last_weekday(today: date, number: int) -> DaySpan:
    """Returns the latest day with this weekday, up to today. number: 0 is Monday."""
    return day(today - (today.weekday() - number) % 7 * DAY)
