"""Archives that have the same bytes wherever and whenever they are made."""

import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from release.errors import ReleaseError

_EXECUTABLE = 0o111


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def rewrite_tar(path: Path, epoch_s: int) -> None:
    """Write a .tar.gz anew, so that it tells nothing of the machine and the moment: members by name, all of `epoch_s`.

    setuptools' sdist keeps modification times, owner and umask of the checkout, and gzip the time of its making;
    `helm package` writes the current time to all files. `epoch_s`: seconds since 1970, SOURCE_DATE_EPOCH.
    """
    buffer = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            clean = tarfile.TarInfo(member.name)
            clean.type = member.type
            clean.linkname = member.linkname
            clean.size = member.size
            clean.mtime = epoch_s
            is_executable = member.isdir() or bool(member.mode & _EXECUTABLE)
            clean.mode = 0o755 if is_executable else 0o644
            new.addfile(clean, old.extractfile(member) if member.isfile() else None)
    with path.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch_s) as zipped:
        zipped.write(buffer.getvalue())


def compare_builds(first: Iterable[Path], second: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file by its name. Raises ReleaseError where two builds differ, and names in what."""
    first_by_name = {path.name: path for path in first}
    second_by_name = {path.name: path for path in second}
    if first_by_name.keys() != second_by_name.keys():
        raise ReleaseError(f"two builds made other files: {sorted(first_by_name)} and {sorted(second_by_name)}")
    hashes = {name: sha256(path) for name, path in first_by_name.items()}
    for name, digest in hashes.items():
        if sha256(second_by_name[name]) != digest:
            members = _different_members(first_by_name[name], second_by_name[name])
            raise ReleaseError(
                f"two builds of {name} differ in {members}. A release must be reproducible: find what the build takes "
                "from the machine or the moment."
            )
    return hashes


def _different_members(first: Path, second: Path) -> str:
    first_members = _members(first)
    second_members = _members(second)
    names = sorted(first_members.keys() | second_members.keys())
    different = [name for name in names if first_members.get(name) != second_members.get(name)]
    return ", ".join(different) or "their order or their headers"


def _members(path: Path) -> Mapping[str, object]:
    """Return what an archive says of each member, by name, with its content's hash."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {
                member.filename: (member.date_time, member.external_attr, member.CRC) for member in archive.infolist()
            }
    with tarfile.open(path) as archive:
        return {member.name: (member.get_info(), _content(archive, member)) for member in archive.getmembers()}


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = archive.extractfile(member) if member.isfile() else None
    return "" if file is None else hashlib.sha256(file.read()).hexdigest()
