"""A file that a command writes beside what it shows, such as the picture of `--plot`.

The report is shown first: a file that cannot be written must not take it away.
"""

from collections.abc import Callable
from pathlib import Path

from headrace.writer.core.errors import ConfigError, HeadraceError, file_error


def check_output_file(option: str, path: Path) -> None:
    """Raise ConfigError now, not after an hour, for a file that cannot be written."""
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise ConfigError(f"{option} {path} cannot be written: its directory must exist, and it must be a file")


def write_output_file(option: str, path: Path, write: Callable[[Path], object]) -> HeadraceError | None:
    """Write a file. Returns why it could not be written: the `failure` of the report, which is shown before it."""
    try:
        write(path)
    except OSError as error:
        return output_file_error(option, path, error)
    return None


def output_file_error(option: str, path: Path, error: OSError) -> HeadraceError:
    """Return the error for a file that cannot be written."""
    return file_error(f"{option} {path} cannot be written: {error.strerror}. Name another file.", error)
