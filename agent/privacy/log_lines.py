"""Log lines without secrets and without numbers that name a person (M8, level LIGHT)."""

import logging


class SanitisedLines(logging.Filter):
    """A filter for logging handlers that sanitises messages and tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        from turnlog.agent.privacy.sanitise import SanitiseLevel, sanitise

        record.msg, record.args = sanitise(record.getMessage(), SanitiseLevel.LIGHT), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = sanitise(record.exc_text, SanitiseLevel.LIGHT)
        return True


def sanitise_log_lines() -> None:
    """Adds the filter to every handler of the root logger, once each."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(one, SanitisedLines) for one in handler.filters):
            handler.addFilter(SanitisedLines())
