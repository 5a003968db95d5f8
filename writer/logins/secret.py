"""A secret by itself, or by a file that is read whenever it is needed, so that it may rotate during a run."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from headrace.writer.logins.errors import LoginRefused

# Larger than any token. What is mounted by mistake may have no end.
_BYTES_MAX = 2**20


@dataclass(frozen=True)
class Secret:
    """A password, or a token that proves a client. `key`: of the configuration, for messages."""

    key: str
    text: str = field(default="", repr=False)
    file: Path | None = None

    def __str__(self) -> str:
        """Name it, and not what it is."""
        return self.key if self.file is None else f"{self.key} {self.file}"

    def read(self) -> str:
        """Return it as it is now; of a file, without white space around.

        Raises LoginRefused for a file that has none, and for characters that cannot be sent.
        """
        text = self.text
        if self.file is not None:
            text = _decode(self._read_file(self.file)).strip()
            if not text:
                raise LoginRefused(f"{self} is empty. Write the secret into it.")
        # These are the bytes of a text that is no UTF-8, as Python keeps them.
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text):
            raise LoginRefused(f"{self} is no text: it is not UTF-8, or has a zero byte. Give the secret, alone.")
        return text

    def _read_file(self, file: Path) -> bytes:
        try:
            with open(file, "rb", opener=_open_at_once) as opened:
                content = opened.read(_BYTES_MAX + 1) or b""
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "the path is none"
            raise LoginRefused(
                f"{self} cannot be read: {why}. Mount it on the driver and on every executor."
            ) from error
        if len(content) > _BYTES_MAX:
            raise LoginRefused(f"{self} is larger than {_BYTES_MAX // 2**20} MiB, and no secret. Correct the path.")
        return content


def _open_at_once(path: str, flags: int) -> int:
    """Open a file; a pipe, which has no secret to read anew, without a wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _decode(content: bytes) -> str:
    """Return a text, without the mark that some editors begin it with. What is no UTF-8 stays to be seen.

    An error of a decoder would have the content in it.
    """
    return content.decode(errors="surrogateescape").removeprefix("\ufeff")
