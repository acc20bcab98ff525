"""Log lines without secrets and without numbers that name a person (M8, level LIGHT)."""

import logging


class SanitisedLines(logging.Filter):
    """For a handler: what it writes is sanitised, tracebacks too."""

    def filter(self, record: logging.LogRecord) -> bool:
        from turnlog.agent.privacy.sanitise import (  # slow to load, and most commands log nothing
            SanitiseLevel,
            sanitise,
        )

        record.msg, record.args = sanitise(record.getMessage(), SanitiseLevel.LIGHT), None
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = sanitise(record.exc_text, SanitiseLevel.LIGHT)
        return True


def sanitise_log_lines() -> None:
    """Every handler of the process's root logger, once each."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(one, SanitisedLines) for one in handler.filters):
            handler.addFilter(SanitisedLines())
