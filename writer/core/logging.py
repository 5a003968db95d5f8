"""Events on standard error: a past-tense name, then fields. Logged once, at the shell."""

import logging
import sys

_LOGGER = logging.getLogger("headrace")


def set_up() -> None:
    """Send events to standard error, one a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S%z"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False


def event(name: str, /, **fields: object) -> None:
    """Log that something happened."""
    _LOGGER.info("%s", _line(name, fields))


def warning(name: str, /, **fields: object) -> None:
    """Log what somebody should look at."""
    _LOGGER.warning("%s", _line(name, fields))


def _line(name: str, fields: dict[str, object]) -> str:
    shown = (
        f"{key}={value!r}" if isinstance(value, str) and " " in value else f"{key}={value}"
        for key, value in fields.items()
    )
    return " ".join([name, *shown])


def detail(error: BaseException | None) -> None:
    """Log an unexpected error with its trace."""
    _LOGGER.error("unexpected", exc_info=error)
