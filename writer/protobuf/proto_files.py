"""Reads a Protobuf schema from a file, with the files beside it that it imports."""

from pathlib import Path, PurePosixPath

from headrace.writer.protobuf.registered_schema import imported_names, wrap_schema

PROTO = ".proto"


def read_schema_file(path: Path) -> str:
    """Return the text of a file of a schema; of a .proto file together with those that it imports from its folder.

    What is not there is left to protoc, which has Google's files, and names what it lacks. Raises OSError.
    """
    # A name that is not UTF-8 is refused by the parser.
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    if path.suffix != PROTO:
        return text
    references: dict[str, str] = {}
    _read_imports(path.parent, text, references)
    return wrap_schema(text, references)


def _read_imports(folder: Path, text: str, references: dict[str, str]) -> None:
    """Add the text of each imported file that lies below a folder, and of those that it imports, by their names."""
    for name in imported_names(text):
        path = PurePosixPath(name)
        if name in references or path.is_absolute() or ".." in path.parts or not (folder / path).is_file():
            continue
        references[name] = (folder / path).read_text(encoding="utf-8", errors="surrogateescape")
        _read_imports(folder, references[name], references)
