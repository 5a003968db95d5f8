"""docker/base.sh: which certificates a base image trusts. Programs of the path stand for debootstrap and buildah."""

import os
import subprocess
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

ROOT = Path(__file__).parents[2]
DEBOOTSTRAP = """#!/bin/bash
mkdir -p "$3"/etc/dpkg/dpkg.cfg.d "$3"/usr/share/{doc/a,info,locale/de,man/man1} "$3"/var/{cache/apt,lib/apt/lists}
touch "$3"/usr/share/doc/a/copyright "$3"/usr/share/doc/a/README "$3"/usr/share/man/man1/a.1
"""
# Keeps the archive of which the image would be made.
BUILDAH = '#!/bin/bash\ncp "${!#}"/root.tar "$KEPT"\n'
OF_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="debootstrap must be root")


def certificate(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + timedelta(days=1))
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("debootstrap", DEBOOTSTRAP), ("buildah", BUILDAH)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def make_base(programs: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Make a base; its files are in base.tar."""
    path = f"{programs}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "KEPT": str(programs.parent / "base.tar"), **variables}
    command = ["bash", "docker/base.sh", "localhost/base"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def files(programs: Path) -> dict[str, bytes]:
    with tarfile.open(programs.parent / "base.tar") as archive:
        return {member.name: archive.extractfile(member).read() for member in archive if member.isfile()}  # type: ignore[union-attr]


@OF_ROOT
def test_a_base_trusts_each_certificate_of_files_and_folders(tmp_path: Path, programs: Path) -> None:
    own = [certificate(f"ca-{number}") for number in range(4)]
    (tmp_path / "bundle").write_bytes(b"# a comment\n" + own[0] + b"\n" + own[1])
    (tmp_path / "more" / "deep").mkdir(parents=True)
    (tmp_path / "more" / "a.pem").write_bytes(own[2])
    (tmp_path / "more" / "deep" / "b.crt").write_bytes(own[3].rstrip(b"\n"))
    (tmp_path / "more" / "README").write_text("no certificate")
    done = make_base(programs, CA=f"{tmp_path}/bundle {tmp_path}/more")
    assert done.returncode == 0, done.stderr
    assert "certificates of its own that localhost/base trusts: 4" in done.stdout
    trusted = [text for name, text in files(programs).items() if "ca-certificates/" in name]
    assert sorted(trusted) == sorted(own)


@OF_ROOT
def test_a_base_without_own_certificates_is_slim_and_keeps_licences(programs: Path) -> None:
    assert make_base(programs, CA="").returncode == 0
    names = files(programs).keys()
    assert {"./usr/share/doc/a/copyright", "./etc/dpkg/dpkg.cfg.d/slim"} == set(names)


@OF_ROOT
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "which cannot be read"),
        (b"", "where no certificate lies"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "certificate 1, in"),
    ],
)
def test_a_file_that_is_no_certificate_is_refused_before_anything_is_fetched(
    tmp_path: Path, programs: Path, text: bytes | None, sentence: str
) -> None:
    if text is not None:
        (tmp_path / "own.crt").write_bytes(text)
    (programs / "debootstrap").write_text("#!/bin/bash\nexit 77\n")
    done = make_base(programs, CA=f"{tmp_path}/own.crt")
    assert done.returncode == 2
    assert sentence in done.stderr


@OF_ROOT
def test_what_a_base_lacks_is_named(programs: Path) -> None:
    (programs / "debootstrap").unlink()
    for name in ("bash", "id", "dirname"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    done = make_base(programs, PATH=str(programs))
    assert done.returncode == 2
    assert "base: debootstrap is not installed (Debian: apt-get install debootstrap)." in done.stderr
