"""Java parts: fetched once, whole or not at all, by however many processes; and a Java to run them."""

import os
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.writer.clients import java_artifacts


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """An Ivy settings file of a repository that holds stand-ins for Spark's Kafka jars, and an empty cache."""
    root = tmp_path / "repository"
    for m in java_artifacts.find_bundle("spark-kafka").modules:
        directory = root / m.organisation.replace(".", "/") / m.name / m.version
        directory.mkdir(parents=True)
        (directory / f"{m.name}-{m.version}.jar").write_bytes(b"jar of " + m.name.encode())
        (directory / f"{m.name}-{m.version}.pom").write_text(
            "<project><modelVersion>4.0.0</modelVersion>"
            f"<groupId>{m.organisation}</groupId><artifactId>{m.name}</artifactId><version>{m.version}</version></project>"
        )
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="disk"/><resolvers>'
        f'<ibiblio name="disk" m2compatible="true" root="file://{root}/"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_JARS", raising=False)
    return root


@pytest.mark.slow
def test_a_bundle_is_fetched_once(repository, tmp_path):
    messages = []
    first = java_artifacts.fetch("spark-kafka", progress=messages.append)
    assert first == tmp_path / "cache" / "spark-kafka-4.0.0"
    assert len(messages) == 1
    repository.rename(tmp_path / "gone")
    assert java_artifacts.fetch("spark-kafka", progress=messages.append) == first
    assert len(messages) == 1
    assert java_artifacts.spark_jars() == sorted(first.iterdir())
    assert len(java_artifacts.spark_jars()) == 4


FETCH = """
from headrace.writer.clients import java_artifacts
print(java_artifacts.fetch("spark-kafka", progress=lambda _: None))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("repository")
def test_two_processes_at_once_both_get_the_bundle(tmp_path):
    def run(_):
        return subprocess.run([sys.executable, "-c", FETCH], capture_output=True, text=True, check=True).stdout.strip()

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(4))) == {str(tmp_path / "cache" / "spark-kafka-4.0.0")}
    assert len(list((tmp_path / "cache" / "spark-kafka-4.0.0").glob("*.jar"))) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("repository")
def test_a_killed_fetch_leaves_nothing_that_counts(tmp_path):
    cache = tmp_path / "cache"
    child = subprocess.Popen([sys.executable, "-c", FETCH])
    deadline = time.monotonic() + 60
    while not list(cache.glob(".spark-kafka-4.0.0-*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (cache / "spark-kafka-4.0.0").exists()
    assert len(list(java_artifacts.fetch("spark-kafka", progress=lambda _: None).glob("*.jar"))) == 4
    assert list(cache.glob(".spark-kafka-4.0.0-*")) == []


@pytest.mark.slow
def test_without_a_repository_the_error_is_one_sentence_that_names_the_mends(repository, tmp_path):
    repository.rename(tmp_path / "gone")
    with pytest.raises(java_artifacts.ArtifactError) as caught:
        java_artifacts.fetch("spark-kafka", progress=lambda _: None)
    message = str(caught.value)
    assert "\n" not in message
    for part in ("spark-kafka 4.0.0", "check the network", "HEADRACE_IVY_SETTINGS", "HEADRACE_CACHE", "Ivy said:"):
        assert part in message
    assert not (tmp_path / "cache" / "spark-kafka-4.0.0").exists()


@pytest.mark.parametrize("filters", ["data_filter", None])
@pytest.mark.parametrize("member", ["../outside", "link"])
def test_an_archive_that_reaches_outside_is_refused(filters, member, tmp_path, monkeypatch):
    if filters is None:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    info = tarfile.TarInfo(member)
    if member == "link":
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as tar:
        tar.addfile(info)
    (tmp_path / "into").mkdir()
    with pytest.raises(tarfile.TarError):
        java_artifacts.unpack(tmp_path / "evil.tar.gz", tmp_path / "into")
    assert not (tmp_path / "outside").exists()


def test_jars_baked_into_an_image_are_used_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_JARS", str(tmp_path))
    with pytest.raises(java_artifacts.ArtifactError, match="holds no jar"):
        java_artifacts.spark_jars()
    (tmp_path / "a.jar").touch()
    assert java_artifacts.spark_jars() == [tmp_path / "a.jar"]


def test_java_is_taken_from_java_home_if_new_enough_and_its_absence_is_one_sentence(tmp_path, monkeypatch):
    old = tmp_path / "old" / "bin" / "java"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    new = tmp_path / "new" / "bin" / "java"
    new.parent.mkdir(parents=True)
    new.write_text(
        "#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: x' >&2\necho 'openjdk version \"99\" 2050-01-01' >&2\n"
    )
    new.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    assert java_artifacts.java(90) == new
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(
        java_artifacts.JavaMissing, match=r"^No JDK 17 or newer found \(JAVA_HOME is 8\)\. Install one .*JAVA_HOME"
    ):
        java_artifacts.java(17)
