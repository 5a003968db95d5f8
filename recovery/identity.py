"""Names the user and host that run a command."""

import getpass
import os
import socket

_PROCESS = "/"  # between the person and the number of the process


def person() -> str:
    """Return this user at this machine."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def process(by: str) -> str:
    """Return a name that only this process has."""
    return f"{by}{_PROCESS}{socket.gethostname()}{_PROCESS}{os.getpid()}"


def gone(name: str) -> bool:
    """Return whether a process with such a name was of this machine, and lives no more."""
    _, _, rest = name.partition(_PROCESS)
    host, _, number = rest.partition(_PROCESS)
    if host != socket.gethostname() or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
