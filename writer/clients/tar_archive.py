"""Unpacks tar archives of plain files, and only what is wanted of them."""

import tarfile
from pathlib import Path


def unpack(archive: Path, into: Path, keep: tuple[str, ...] = ()) -> None:
    """Unpack a tar of plain files, or what lies below the folders `keep`, seen from the archive's own top folder.

    Raises TarError for a member that would land, or point, outside.
    """
    with tarfile.open(archive) as tar:  # its names are known once it is read; it is read again for what is kept
        wanted = [member for member in tar.getmembers() if not keep or _below(member.name, keep)]
    with tarfile.open(archive) as tar:
        originals = {member.linkname for member in wanted if member.islnk()} - {member.name for member in wanted}
        names = originals.union(member.name for member in wanted)
        for member in tar:
            if member.name in names:
                _extract(tar, member, into)
    for name in originals:
        (into / name).unlink()
        _prune((into / name).parent)


def _below(name: str, folders: tuple[str, ...]) -> bool:
    inside = name.partition("/")[2]
    return any(inside == folder or inside.startswith(f"{folder}/") for folder in folders)


def _prune(folder: Path) -> None:
    """Remove folders that hold nothing any more."""
    while not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path) -> None:
    if hasattr(tarfile, "data_filter"):
        tar.extract(member, into, filter="data")
        return
    # Python before 3.11.4, such as Debian 12's, has no filters
    names = [member.name, *([member.linkname] if member.islnk() else [])]
    inside = all((into / name).resolve().is_relative_to(into.resolve()) for name in names)
    if not inside or not (member.isfile() or member.isdir() or member.islnk()):
        raise tarfile.ExtractError(f"the archive holds {member.name!r}, which is not a plain file inside it")
    tar.extract(member, into)
