"""Names the user and host that run a command."""

import getpass
import os
import socket

# Between the user, the host and the number of the process.
_SEPARATOR = "/"


def person() -> str:
    """Return this user at this machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def process(by: str) -> str:
    """Return a name that only this process has: person/host/number."""
    return _SEPARATOR.join([by, socket.gethostname(), str(os.getpid())])


def is_gone(name: str) -> bool:
    """Return whether a process with such a name was of this machine, and lives no more."""
    _, _, process_name = name.partition(_SEPARATOR)
    host, _, number = process_name.partition(_SEPARATOR)
    if host != socket.gethostname() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
