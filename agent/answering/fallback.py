"""What a person reads when there is no answer: by the kind of error, in Chinese or English (G5; E 5.2)."""

from dataclasses import dataclass
from typing import Literal

from turnlog.events.errors import TurnlogError

Locale = Literal["zh", "en"]
Category = Literal["timeout", "rate_limit", "quota", "circuit_open", "network", "moderation", "unknown"]


@dataclass(frozen=True, slots=True)
class Fallback:
    """message, suggestions: in the language asked for. retry_after_s: None is unknown. action: what helps instead."""

    category: Category
    message: str
    should_retry: bool
    retry_after_s: int | None = None
    suggestions: tuple[str, ...] = ()
    action: str | None = None


CATEGORIES: dict[str, Category] = {
    "model-timed-out": "timeout",
    "rate-limited": "rate_limit",
    "refused": "rate_limit",
    "too-many-at-once": "rate_limit",
    "too-many-streams": "rate_limit",
    "too-many-waiting": "rate_limit",
    "not-counted-in-time": "network",
    "quota-exceeded": "quota",
    "model-breaker-open": "circuit_open",
    "model-unavailable": "network",
    "model-rate-limited": "rate_limit",
    "model-quota-exceeded": "quota",
    "model-moderated": "moderation",
    "database-unavailable": "network",
    "gap-in-log": "network",
    "issuer-unavailable": "network",
    "key-unavailable": "network",
    "log-closed": "network",
    "log-unavailable": "network",
    "model-error": "network",
    "not-now": "network",
    "not-projected-in-time": "network",
    "stopping": "network",
    "log-full": "circuit_open",
    "other-log": "circuit_open",
    "rebuild-needed": "circuit_open",
    "stream-drift": "circuit_open",
    "switch-refused": "circuit_open",
    "vector-mismatch": "circuit_open",
}
_TEXTS: dict[Locale, dict[Category, str]] = {
    "zh": {
        "timeout": "处理时间较长，请稍后再试或简化您的问题。",
        "rate_limit": "请求过于频繁，请稍等片刻后再试。",
        "quota": "今日使用额度已达上限，请明天再试或升级套餐。",
        "circuit_open": "服务暂时不可用，我们正在处理中，请稍后再试。",
        "network": "网络连接不稳定，请稍后重试。",
        "moderation": "这个问题我无法回答，请换一种说法。",
        "unknown": "出了点问题，已经记录下来，请稍后再试。",
    },
    "en": {
        "timeout": "This takes longer than expected. Try again later, or ask a simpler question.",
        "rate_limit": "There were too many requests. Wait a moment and try again.",
        "quota": "Today's quota is used up. Try again tomorrow, or upgrade your plan.",
        "circuit_open": "The service is not available for the moment. Try again soon.",
        "network": "The connection is unstable. Try again later.",
        "moderation": "I cannot answer this question. Try to put it differently.",
        "unknown": "Something went wrong, and it was recorded. Try again later.",
    },
}
_SUGGESTIONS: dict[Locale, tuple[str, ...]] = {
    "zh": ("简化问题", "分步询问"),
    "en": ("Ask a simpler question", "Ask step by step"),
}
_RETRY_AFTER_S: dict[Category, int] = {"rate_limit": 60, "circuit_open": 30, "network": 5, "unknown": 10}


def fallback_of(error: TurnlogError, locale: Locale) -> Fallback:
    """An error without an answer may carry the code of its cause as `cause`, and `retry_after_s`."""
    category = CATEGORIES.get(getattr(error, "cause", None) or error.code, "unknown")
    wait = getattr(error, "retry_after_s", None)
    return Fallback(
        category,
        _TEXTS[locale][category],
        category not in ("quota", "moderation"),
        _RETRY_AFTER_S.get(category) if wait is None else max(1, round(wait)),
        _SUGGESTIONS[locale] if category == "timeout" else (),
        "upgrade" if category == "quota" else None,
    )
