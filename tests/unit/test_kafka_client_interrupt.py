"""Ctrl-C within a call of Confluent's client is Ctrl-C."""

from typing import NoReturn

import pytest

from headrace.writer.clients.kafka import ask_client


def interrupt() -> NoReturn:
    """Fail as Confluent's client does where Ctrl-C comes within one of its calls."""
    raise SystemError("<built-in method list_offsets> returned a result with an exception set") from KeyboardInterrupt()


def crash() -> NoReturn:
    raise SystemError("bad argument to an internal function")


def test_an_interrupt_within_a_call_is_an_interrupt_and_another_error_stays() -> None:
    with pytest.raises(KeyboardInterrupt):
        ask_client(interrupt)
    with pytest.raises(SystemError, match="internal function"):
        ask_client(crash)
    assert ask_client(divmod, 7, 2) == (3, 1)
