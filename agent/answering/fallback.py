"""Chooses the message to show instead of a failed answer, by kind of error, in Chinese or English."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from turnlog.agent.models.protocol import BROKE_OFF, CANCELLED, REPETITION, TIME_UP
from turnlog.events.errors import TurnlogError

Locale = Literal["zh", "en"]
Category = Literal["timeout", "rate_limit", "quota", "circuit_open", "network", "moderation", "unknown"]


@dataclass(frozen=True, slots=True)
class Fallback:
    """The message to a person whose question failed. message, suggestions: in the requested language. status: the HTTP
    status. retry_after_s: None if unknown. action: what helps instead, such as "upgrade"."""

    category: Category
    message: str
    should_retry: bool
    status: int
    retry_after_s: int | None = None
    suggestions: tuple[str, ...] = ()
    action: str | None = None


# HTTP status of errors for which repeating the question does not help: the request, its conversation or the setup must
# change.
REFUSALS: Mapping[str, int] = {
    "token-expired": 401,
    "unauthenticated": 401,
    "forbidden": 403,
    "not-found": 404,
    "agent-disabled": 409,
    "answer-cancelled": 409,
    "ambiguous-conflict": 409,
    "ambiguous-memory": 409,
    "cut-in-a-call": 409,
    "entity-exists": 409,
    "memories-parked": 409,
    "name-taken": 409,
    "not-under-way": 409,
    "rows-not-in-log": 409,
    "subscriber-exists": 409,
    "thread-exists": 409,
    "thread-parked": 409,
    "webhook-exists": 409,
    "receipt-gone": 410,
    "event-too-large": 413,
    "bad-cursor": 422,
    "bad-query": 422,
    "future-event-version": 422,
    "idempotency-key-reused": 422,
    "import-failed": 422,
    "invalid-agent": 422,
    "invalid-entity": 422,
    "invalid-event": 422,
    "invalid-filter": 422,
    "invalid-grant": 422,
    "invalid-grouping": 422,
    "invalid-id": 422,
    "invalid-limit": 422,
    "invalid-memory": 422,
    "invalid-memory-request": 422,
    "invalid-preference": 422,
    "invalid-recall": 422,
    "memory-not-in-use": 422,
    "no-age": 422,
    "not-per-thread": 422,
    "nothing-chosen": 422,
    "nothing-named": 422,
    "nothing-to-revert": 422,
    "question-settled": 422,
    "refused-target": 422,
    "secret-refused": 422,
    "invalid-words": 422,
    "strings-too-short": 422,
    "text-too-long": 422,
    "unknown-event-type": 422,
    "unsigned-event": 422,
    "unsupported_parameter": 422,
    "window-too-small": 422,
    "wrong-receipt": 422,
    "model-no-embeddings": 502,
    "model-not-an-api": 502,
    "model-refused": 502,
}
# Categories of all other error codes.
CATEGORIES: Mapping[str, Category] = {
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
    "archive-damaged": "unknown",
    "archive-missing": "unknown",
    "missing-extra": "unknown",
    "error": "unknown",
    "job-under-way": "unknown",
    "model-bad-answer": "unknown",
    "model-empty-answer": "unknown",
    "model-malformed": "unknown",
    "no-answer": "unknown",
    "rebuild-running": "unknown",
    "rebuild-stopped": "unknown",
    "write-under-way": "unknown",
    "wrong-expected-version": "unknown",
}

# Why a request failed, for a person who reads Chinese; other codes have the text of their category.
_WHY_ZH: Mapping[str, str] = {
    "token-expired": "登录已过期，请重新登录",
    "unauthenticated": "令牌或密钥无效，请重新登录",
    "forbidden": "没有权限做这件事",
    "not-found": "没有找到，可能已被删除，或不属于你",
    "agent-disabled": "这个智能体已停用",
    "answer-cancelled": "回答在有内容之前已被停止",
    "ambiguous-conflict": "这句话可能指多个待回答的问题，请说得更具体",
    "ambiguous-memory": "这些词可能指多条记忆，请说得更具体",
    "cut-in-a-call": "不能在工具调用与其结果之间分开",
    "entity-exists": "已有这个类型和名称的实体",
    "memories-parked": "记忆的一个事件未能应用，需要先由运维处理",
    "name-taken": "这个名称已被使用",
    "not-under-way": "没有正在生成的回答",
    "rows-not-in-log": "数据库比日志更新，需要先由运维处理",
    "subscriber-exists": "已有这个名称的订阅者",
    "thread-exists": "已有这个会话",
    "thread-parked": "会话的一个事件未能应用，需要先由运维处理",
    "webhook-exists": "已有这个 webhook",
    "receipt-gone": "上下文的收据已过期，请重新获取上下文",
    "event-too-large": "内容太大，无法存储",
    "bad-cursor": "翻页标记无效，请从头读取列表",
    "bad-query": "查询无效",
    "future-event-version": "事件来自更新的 turnlog 版本，请先升级",
    "idempotency-key-reused": "这个幂等键已用于另一个请求",
    "import-failed": "文件无法导入",
    "invalid-agent": "智能体的设置无效",
    "invalid-entity": "实体无效",
    "invalid-event": "内容为空或无效",
    "invalid-filter": "筛选条件无效",
    "invalid-grant": "不能授予这些权限",
    "invalid-grouping": "不能这样分组",
    "invalid-id": "标识无效",
    "invalid-limit": "限额无效",
    "invalid-memory": "记忆的内容无效：为空、太长，或附加数据不合规",
    "invalid-memory-request": "对记忆的请求无效",
    "invalid-preference": "偏好无效",
    "invalid-recall": "检索请求无效",
    "memory-not-in-use": "这条记忆已不再使用，不能更改",
    "no-age": "没有给出时长",
    "not-per-thread": "这个读模型不能只为一个会话重建",
    "nothing-chosen": "没有选择任何内容",
    "nothing-named": "没有指明是哪一个",
    "nothing-to-revert": "没有可还原的更早版本",
    "question-settled": "这个问题已经解决",
    "refused-target": "不允许访问这个地址",
    "secret-refused": "内容中有密码或密钥之类的秘密，未存储",
    "invalid-words": "要涂去的词语无效",
    "strings-too-short": "要搜索的词语太短",
    "text-too-long": "文字太长",
    "unknown-event-type": "未知的事件类型",
    "unsigned-event": "事件没有签名",
    "unsupported_parameter": "不支持这个参数",
    "window-too-small": "模型的上下文窗口太小",
    "wrong-receipt": "收据不属于这个请求",
    "model-no-embeddings": "模型服务器不提供向量",
    "model-not-an-api": "配置的地址不是模型服务器",
    "model-refused": "模型服务器拒绝了请求，请检查密钥和模型名称",
    "archive-damaged": "归档文件已损坏",
    "archive-missing": "归档文件不在了",
    "missing-extra": "服务器没有安装这项功能所需的包",
    "job-under-way": "同类任务正在运行，请等它结束",
    "rebuild-running": "重建正在运行，请等它结束",
    "rebuild-stopped": "重建已停止",
    "write-under-way": "同一个请求正在处理中",
    "wrong-expected-version": "会话在此期间有了新内容，请刷新后再试",
    "wrong-origin": "不允许这个网站访问服务器",
    "wrong-host": "服务器不使用这个主机名",
    "body-too-slow": "请求内容未及时到达",
    "body-too-large": "请求内容太大",
    "headers-too-large": "请求头太大",
    "bad-form": "请在表单中只发送一个文件",
    "bad-format": "没有这种导入格式",
    "invalid-request": "请求中有字段无效",
    "invalid-value": "请求中有数据库无法保存的值",
    "too-slow": "数据库处理这个请求太久，请减少一次的数量",
    "method-not-allowed": "这个地址不支持这种请求",
}


@dataclass(frozen=True, slots=True)
class _Row:
    """The fallback of one category of errors. status: HTTP status. retry_after_s: used if the error itself has none."""

    status: int
    zh: str
    en: str
    retry_after_s: int | None = None
    should_retry: bool = True


_TABLE: dict[Category, _Row] = {
    "timeout": _Row(
        504,
        "处理时间较长，请稍后再试或简化您的问题。",
        "This takes longer than expected. Try again later, or ask a simpler question.",
    ),
    "rate_limit": _Row(
        429,
        "请求过于频繁，请稍等片刻后再试。",
        "There were too many requests. Wait a moment and try again.",
        60,
    ),
    "quota": _Row(
        402,
        "今日使用额度已达上限，请明天再试或升级套餐。",
        "Today's quota is used up. Try again tomorrow, or upgrade your plan.",
        should_retry=False,
    ),
    "circuit_open": _Row(
        503,
        "服务暂时不可用，我们正在处理中，请稍后再试。",
        "The service is not available for the moment. Try again soon.",
        30,
    ),
    "network": _Row(502, "网络连接不稳定，请稍后重试。", "The connection is unstable. Try again later.", 5),
    "moderation": _Row(
        422,
        "这个问题我无法回答，请换一种说法。",
        "I cannot answer this question. Try to put it differently.",
        should_retry=False,
    ),
    "unknown": _Row(
        502,
        "出了点问题，已经记录下来，请稍后再试。",
        "Something went wrong, and it was recorded. Try again later.",
        10,
    ),
}
_REFUSED: dict[Locale, str] = {
    "zh": "无法完成这个请求，再试一次也没有用；原因见详细信息。",
    "en": "This request cannot be fulfilled, and repeating it does not help. The details say why.",
}
_SUGGESTIONS: dict[Locale, tuple[str, ...]] = {
    "zh": ("简化问题", "分步询问"),
    "en": ("Ask a simpler question", "Ask step by step"),
}
_ENDED: dict[str, dict[Locale, str]] = {
    TIME_UP: {"zh": "回答超时，到此为止", "en": "the answer took too long and ends here"},
    BROKE_OFF: {"zh": "回答中断，到此为止", "en": "the answer broke off and ends here"},
    CANCELLED: {"zh": "回答已按要求停止", "en": "the answer was stopped on request"},
    REPETITION: {"zh": "回答不断重复，到此为止", "en": "the answer repeated itself and ends here"},
}


def category_of(code: str) -> Category:
    """Returns the category of an error code; "unknown" if the code has none."""
    return CATEGORIES.get(code, "unknown")


def why_zh(code: str) -> str:
    """Returns why a request failed with this code, in a sentence for a person who reads Chinese."""
    return _WHY_ZH.get(code) or _TABLE[category_of(code)].zh


def fallback_of(error: TurnlogError, locale: Locale) -> Fallback:
    """Returns the message for a person whose question failed. The error may have `cause`, the code of its cause, and
    `retry_after_s`."""
    code = getattr(error, "cause", None) or error.code
    if code in REFUSALS:
        return Fallback("unknown", _REFUSED[locale], should_retry=False, status=REFUSALS[code])
    category = category_of(code)
    wait, row = getattr(error, "retry_after_s", None), _TABLE[category]
    return Fallback(
        category,
        row.zh if locale == "zh" else row.en,
        row.should_retry,
        row.status,
        row.retry_after_s if wait is None else max(1, round(wait)),
        _SUGGESTIONS[locale] if category == "timeout" else (),
        "upgrade" if category == "quota" else None,
    )


def ended_early(finish_reason: str | None, locale: Locale) -> str | None:
    """Returns the note to show after an answer that turnlog ended early; None after a complete answer."""
    said = _ENDED.get(finish_reason or "")
    return None if said is None else said[locale]


def locale_of(languages: str | None) -> Locale:
    """Returns "zh" if the header Accept-Language begins with Chinese, otherwise "en"."""
    return "zh" if (languages or "").strip().lower().startswith("zh") else "en"
