"""A secret by itself, or by a file that is read whenever it is needed, so that it may rotate during a run."""

from dataclasses import dataclass, field
from pathlib import Path

from headrace.writer.logins.errors import LoginRefused


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
        """Return it as it is now, without white space around. Raises LoginRefused for a file that has none."""
        if self.file is None:
            return self.text
        try:
            text = self.file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why: str | None = "its text is not UTF-8"
            if isinstance(error, OSError):
                why = error.strerror
            raise LoginRefused(
                f"{self.key} {self.file} cannot be read: {why}. Mount it on the driver and on every executor."
            ) from error
        if not text:
            raise LoginRefused(f"{self.key} {self.file} is empty. Write the secret into it.")
        return text
