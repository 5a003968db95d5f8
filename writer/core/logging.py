"""Log lines on standard error: an event's past-tense name, then fields. Logged once, at the shell.

$HEADRACE_LOG chooses between `text`, for people, and `json`, one object a line. Lines of libraries take the same form.
"""

import logging
import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

import structlog
from structlog.contextvars import bound_contextvars as bound, merge_contextvars
from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter as Shown, plain_traceback
from structlog.processors import JSONRenderer, TimeStamper, format_exc_info
from structlog.stdlib import BoundLogger, LoggerFactory, ProcessorFormatter, add_log_level, filter_by_level
from structlog.typing import EventDict, Processor

from headrace.writer.core.errors import ConfigError, HeadraceError

# `with bound(…)` adds fields to the lines of a block.
__all__ = [
    "bound",
    "detail",
    "error",
    "event",
    "set_up",
    "warning",
]


def _quote_text(value: object) -> str:
    if isinstance(value, str) and " " in value:
        return repr(value)
    return str(value)


def _order_fields(_logger: object, _method: str, fields: EventDict) -> EventDict:
    first = {name: fields[name] for name in ("time", "level", "event", "pipeline") if name in fields}
    return {**first, **fields}


_STAMPS: list[Processor] = [merge_contextvars, add_log_level, TimeStamper("%Y-%m-%dT%H:%M:%S%z", utc=False, key="time")]
_COLUMNS = [
    Column("time", Shown(None, "", "", str)),
    Column("level", Shown(None, "", "", lambda level: str(level).upper())),
    Column("event", Shown(None, "", "", str)),
    Column("pipeline", Shown("", "", "", _quote_text)),
    # All others.
    Column("", Shown("", "", "", _quote_text)),
]
_FORMATS: Mapping[str, list[Processor]] = MappingProxyType({
    "text": [ConsoleRenderer(columns=_COLUMNS, sort_keys=False, exception_formatter=plain_traceback)],
    "json": [_order_fields, format_exc_info, JSONRenderer(default=str)],
})  # fmt: skip
_LOGGER: BoundLogger = structlog.get_logger("headrace")
# Until `set_up`: only warnings, as text.
structlog.configure(
    [filter_by_level, *_STAMPS, *_FORMATS["text"]], wrapper_class=BoundLogger, logger_factory=LoggerFactory()
)


def set_up() -> None:
    """Send events to standard error, one a line, and the warnings of libraries. Raises ConfigError."""
    log_format = os.environ.get("HEADRACE_LOG", "text")
    if log_format not in _FORMATS:
        raise ConfigError(f"HEADRACE_LOG is {log_format!r}: set it to {' or '.join(_FORMATS)}, or unset it.")
    steps = [ProcessorFormatter.remove_processors_meta, *_FORMATS[log_format]]
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_has_no_sentence)
    handler.setFormatter(ProcessorFormatter(processors=steps, foreign_pre_chain=_STAMPS))
    logging.getLogger().addHandler(handler)
    logging.getLogger("headrace").setLevel(logging.INFO)
    structlog.configure([filter_by_level, *_STAMPS, ProcessorFormatter.wrap_for_formatter])


def _has_no_sentence(record: logging.LogRecord) -> bool:
    """Leave out the stack that a library logs of an error of ours: a sentence says it where the pipeline ends."""
    return not (record.exc_info and isinstance(record.exc_info[1], HeadraceError))


def event(name: str, /, **fields: object) -> None:
    """Log that something happened. Fields are not named `event`, `level` or `time`: a line has these of its own."""
    _LOGGER.info(name, **fields)


def warning(name: str, /, **fields: object) -> None:
    """Log an event that an operator should look at."""
    _LOGGER.warning(name, **fields)


def error(name: str, /, **fields: object) -> None:
    """Log what ended a pipeline."""
    _LOGGER.error(name, **fields)


def detail(unexpected: BaseException | None) -> None:
    """Log an unexpected error with its trace."""
    _LOGGER.error("unexpected", exc_info=unexpected)
