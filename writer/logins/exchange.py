"""What every login of SASL is: a mechanism, and an exchange of messages with a broker."""

from collections.abc import Callable
from typing import Protocol

# Sends a message of the login, returns the broker's. Raises OSError, LoginRefused.
Exchange = Callable[[bytes], bytes]


class SaslLogin(Protocol):
    """A login. It can be pickled, and is used by many connections."""

    @property
    def mechanism(self) -> str:
        """The mechanism of SASL, in Kafka's spelling."""

    @property
    def advice(self) -> str:
        """What to look at where a broker refuses it: a sentence without its full stop."""

    def log_in(self, host: str, exchange: Exchange, /) -> None:
        """Log in at a broker. `host`: as the connection names it. Raises LoginRefused, LoginUnavailable, OSError."""
