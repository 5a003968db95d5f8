"""What docker/Dockerfile puts into the image of the writer, laid out of this machine's own files."""

import shutil
import sys
from pathlib import Path

import pyspark

from headrace.writer.clients import java_artifacts
from tests.servers.containers import Image, Mount

ROOT = Path(__file__).parents[2]
HOME = "/opt/headrace"
USER = 10001


def headrace_image(folder: Path, **env: str) -> Image:
    """Lay the image out in a folder: the same places as in docker/Dockerfile. `env`: variables beyond the image's."""
    command = folder / "headrace"
    command.write_text('#!/bin/sh\nexec python -m headrace.writer.cli "$@"\n')
    command.chmod(0o755)
    passwd = folder / "passwd"
    passwd.write_text(Path("/etc/passwd").read_text() + f"headrace:x:{USER}:{USER}::/tmp:/usr/sbin/nologin\n")
    java = java_artifacts.spark_java().resolve().parent.parent
    packages = Path(pyspark.__file__).parents[1]
    mounts = [
        Mount(Path(sys.prefix), f"{HOME}/venv"),
        Mount(packages, f"{HOME}/packages"),
        Mount(ROOT, f"{HOME}/source"),
        Mount(_jars(folder / "jars"), f"{HOME}/jars"),
        Mount(command, f"{HOME}/bin/headrace"),
        Mount(ROOT / "docker" / "entrypoint.sh", f"{HOME}/entrypoint.sh"),
        Mount(ROOT / "docker" / "decom.sh", "/opt/decom.sh"),
        Mount(passwd, "/etc/passwd"),
    ]
    environment = {
        "PATH": f"{HOME}/bin:{HOME}/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        # The product, the bucketers of tests, and the packages, where another environment has them.
        "PYTHONPATH": f"{HOME}/source/src:{HOME}/source:{HOME}/packages",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LC_ALL": "C.UTF-8",
        "HOME": "/tmp",
        "HEADRACE_JARS": f"{HOME}/jars",
        "JAVA_HOME": str(java),
        "SPARK_HOME": f"{HOME}/packages/pyspark",
    }
    return Image([f"{HOME}/entrypoint.sh"], environment | env, mounts)


def _jars(folder: Path) -> Path:
    """Put the jars of Spark's Kafka source and of its S3 file system into one folder."""
    folder.mkdir()
    for bundle in ("spark-kafka", "spark-s3a"):
        for jar in java_artifacts.fetch(bundle, progress=print).glob("*.jar"):
            shutil.copy(jar, folder)
    return folder
