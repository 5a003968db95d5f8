"""Names the file whose content is not of its format: what a parser raises of damaged content has no name of it."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from headrace.writer.core.errors import HeadraceError

_TEXT_MAX = 200


class FileDamaged(OSError):
    """A file is there, and its content is not of its format."""

    # The same bytes are read again.
    may_pass = False


@contextmanager
def naming_damage(path: str, content: str) -> Iterator[None]:
    """Raise FileDamaged for whatever a parser raises of a file's content. `content`: of the format, as a phrase.

    What the storage raises stays what it is; only where it has neither a number nor the file's name, it gets the name.
    """
    try:
        yield
    except gzip.BadGzipFile as error:
        raise _damage(path, content, error) from error
    except OSError as error:
        if type(error) is not OSError or error.errno is not None or path in str(error):
            raise
        raise OSError(f"cannot read {path}: {_text(error)}") from error
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:
        raise _damage(path, content, error) from error


def _damage(path: str, content: str, error: Exception) -> FileDamaged:
    return FileDamaged(f"{path} is damaged, or is not {content} ({_text(error)}). Restore it from a copy")


def _text(error: Exception) -> str:
    """Return an error's text in one line; of pydantic its kind alone, since its text has values of the file."""
    text = ""
    if not isinstance(error, ValidationError):
        text = " ".join(str(error).split())[:_TEXT_MAX].rstrip(".")
    return text or type(error).__name__
