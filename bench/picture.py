"""Pictures of figures: which formats there are, and how one becomes a file."""

from io import BytesIO
from pathlib import Path
from typing import Any

FORMATS = (".png", ".svg", ".pdf")


def save_picture(figure: Any, path: Path, *, dpi: int) -> None:
    """Write a figure of matplotlib; the suffix of `path`, one of FORMATS, says in which format. Raises OSError.

    It is drawn before the file is begun: matplotlib makes other errors of a file that takes no more.
    """
    content = BytesIO()
    # The same figures make the same file.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(content, format=path.suffix.removeprefix("."), dpi=dpi, metadata=metadata)
    path.write_bytes(content.getvalue())
