"""Why a login fails.

LoginFailed
├── LoginRefused      somebody has to mend it: the secret, the rights, the clock, a file
│   └── BrokerRefused a broker says so, with a reason
└── LoginUnavailable  who gives tokens or tickets does not answer now; another try may succeed

No message has a secret or a token in it.
"""

from headrace.writer.core.errors import HeadraceError


class LoginFailed(HeadraceError):
    """There is no login now."""


class LoginRefused(LoginFailed):
    """The login is wrong: another try does not help before somebody mends it."""


class BrokerRefused(LoginRefused):
    """A broker refuses the login. `reason`: its words; they may repeat what was sent.

    What to do about it, the login says (`SaslLogin.advice`).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the broker refuses it ({self.reason})"


class LoginUnavailable(LoginFailed):
    """Who gives tokens or tickets does not answer; another try may succeed."""
