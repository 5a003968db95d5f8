"""Why a login fails.

LoginFailed
├── LoginRefused      somebody has to mend it: the secret, the rights, the clock, a file
│   └── BrokerRefused a broker says so, with a reason
└── LoginUnavailable  who gives tokens or tickets does not answer now; another try may succeed

No message has a secret or a token in it.
"""

from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.text import one_line


class LoginFailed(HeadraceError):
    """There is no login now."""


class LoginRefused(LoginFailed):
    """The login is wrong: another try does not help before somebody mends it."""


class BrokerRefused(LoginRefused):
    """A broker refuses the login. `reason`: its words, as it sent them; the login hides in them what it sent itself.

    The message has them on one line. What to do about it, the login says (`SaslLogin.advice`).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the broker refuses it ({one_line(self.reason)})"


class LoginUnavailable(LoginFailed):
    """Who gives tokens or tickets does not answer; another try may succeed."""

    def __init__(self, message: str, retry_after_s: float = 0) -> None:
        """`retry_after_s`: how long a server asks to be left alone."""
        super().__init__(message)
        self.retry_after_s = retry_after_s
