"""Computes a model's context window and the conversation's share of it."""

from dataclasses import dataclass
from functools import cache

from turnlog.events.errors import TurnlogError

DEFAULT_WINDOW = 128_000
OUTPUT_RESERVE = MOST_RESULTS = 16_000
# With fewer tokens for the complete conversation, no sensible answer is possible.
MIN_BUDGET = 128

# Documented context windows by name prefix; the longest prefix wins. If windows within a family differ, the smaller one
# is listed, because a context that is too large is refused.
WINDOWS: dict[str, int] = {
    "gpt-5": 400_000,
    "gpt-5-chat": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4.5": 128_000,
    "gpt-4o": 128_000,
    "chatgpt-4o": 128_000,
    "gpt-4-turbo": 128_000,
    "gpt-4-1106": 128_000,
    "gpt-4-0125": 128_000,
    "gpt-4-32k": 32_768,
    "gpt-4": 8_192,
    "gpt-3.5-turbo-instruct": 4_096,
    "gpt-3.5": 16_385,
    "gpt-35": 16_385,
    "gpt-oss": 131_072,
    "o1": 200_000,
    "o1-mini": 128_000,
    "o1-preview": 128_000,
    "o3": 200_000,
    "o4": 200_000,
    "claude": 200_000,
    "claude-2.0": 100_000,
    "claude-instant": 100_000,
    "deepseek": 128_000,
    "deepseek-v2": 64_000,
    "deepseek-v3-0324": 64_000,
    "deepseek-coder": 64_000,
    "glm-4": 128_000,
    "glm-4.6": 200_000,
    "glm-4-long": 1_000_000,
    "glm-4v": 8_000,
    "qwen": 32_768,
    "qwen-turbo": 131_072,
    "qwen-plus": 131_072,
    "qwen-long": 1_000_000,
    "qwen2.5": 32_768,
    "qwen3": 32_768,
    "qwen3-max": 262_144,
    "qwen3-coder": 262_144,
    "gemini": 1_000_000,
    "gemini-1.0": 32_768,
    "gemini-pro": 32_768,
    "gemma": 8_192,
    "gemma-3": 128_000,
    "llama": 128_000,
    "llama-2": 4_096,
    "llama2": 4_096,
    "llama-3-": 8_192,
    "llama3:": 8_192,
    "llama3-": 8_192,
    "meta-llama-3-": 8_192,
    "meta-llama": 128_000,
    "mistral": 32_768,
    "mistral-large": 128_000,
    "mixtral": 32_768,
    "moonshot-v1-8k": 8_192,
    "moonshot-v1-32k": 32_768,
    "moonshot-v1-128k": 131_072,
    "kimi": 128_000,
    "grok": 131_072,
}
_PREFIXES = sorted(WINDOWS, key=len, reverse=True)


class WindowTooSmall(TurnlogError):
    """The system prompt and the tools leave no room for the conversation."""

    code = "window-too-small"


@dataclass(frozen=True, slots=True)
class Budget:
    """The tokens of one request. budget: tokens that are left for the conversation."""

    window: int
    safety: int
    reserve: int
    system: int
    tools: int
    budget: int


@cache
def window_for(model: str) -> int:
    """Returns the context window in tokens by the model's name; 128,000 for an unknown name.

    Names may include a maker (`openai/gpt-4o`, `anthropic.claude-3`) or a fine-tune (`ft:gpt-4o:…`).
    """
    name = model.lower().rsplit("/", 1)[-1].removeprefix("ft:")
    parts = name.split(".")
    for start in range(len(parts)):
        tail = ".".join(parts[start:])
        for prefix in _PREFIXES:
            if tail.startswith(prefix):
                return WINDOWS[prefix]
    return DEFAULT_WINDOW


def output_reserve(window: int) -> int:
    """Returns how many tokens of the window are kept for the answer: 16,000, but at most a quarter, so that a small
    model has room for input."""
    return min(OUTPUT_RESERVE, window // 4)


def results_room(window: int, taken: int) -> int:
    """Returns how many tokens all results of tools may have together, beside a context of `taken` tokens: the rest of
    the window without the reserves, at most 16,000. It is at least the safety margin, a tenth of the window, because a
    context may fill everything else."""
    return max(window // 10, min(MOST_RESULTS, window - window // 10 - output_reserve(window) - taken))


def budget_for(model: str, window: int, system: int, tools: int, answer: int = 0) -> Budget:
    """Returns the Budget of a request, whose `budget` is window - 10 % safety - output reserve - system prompt - tools,
    all in tokens.

    window: 0 infers it from the model (MEMORY_CONTEXT_WINDOW). answer: maximum number of tokens in the answer; 0 if
    unknown. The reserve is output_reserve, or `answer` if that is larger. Raises WindowTooSmall if fewer than 128
    tokens are left.
    """
    window = window or window_for(model)
    safety = window // 10
    reserve = max(output_reserve(window), answer)
    left = window - safety - reserve - system - tools
    if left < MIN_BUDGET:
        raise WindowTooSmall(
            f"the context window of {window:,} tokens has no room for the conversation: the system prompt "
            f"takes {system:,}, the tools {tools:,}, safety and the answer {safety + reserve:,}; shorten the "
            f"prompt, give fewer tools, allow a shorter answer, or raise MEMORY_CONTEXT_WINDOW if the model takes more"
        )
    return Budget(window, safety, reserve, system, tools, left)
