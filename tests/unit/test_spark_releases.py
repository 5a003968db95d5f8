"""Java artefacts by the Spark that is installed."""

import zipfile
from pathlib import Path

import pyspark
import pytest

from headrace.bench.job import plain_bundles
from headrace.recovery.escalation.diagnosis import diagnose_exit
from headrace.writer.clients import java_artifacts
from headrace.writer.clients.java_artifacts import SPARK_RELEASES, SparkUnsupported, find_bundle, spark_release
from headrace.writer.driver.restart_policy import causes
from headrace.writer.driver.spark import _LOCAL_FILE_MANAGERS


@pytest.fixture
def install_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let this process see a pyspark of another version."""

    def install(version: str) -> None:
        metadata = tmp_path / f"pyspark-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: pyspark\nVersion: {version}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.mark.parametrize(
    ("spark", "source", "bundle"),
    [("4.0.2", "4.0.0", "3.4.1"), ("4.1.4", "4.1.1", "3.4.2"), ("4.2.1", "4.2.0", "3.5.0-1.3.1")],
)
def test_artefacts_are_those_of_the_installed_minor_version(install_spark, spark, source, bundle):
    install_spark(spark)
    assert find_bundle("spark-kafka").version == source
    assert find_bundle("spark-s3a").version == bundle
    assert {module.version for module in find_bundle("spark-kafka").modules[:2]} == {source}
    assert f"delta-spark_{spark[:3]}_2.13" in {module.name for module in plain_bundles()[1].modules}


@pytest.mark.parametrize("spark", ["3.5.9", "4.3.0", "5.0.0.dev1"])
def test_a_spark_outside_the_table_is_a_sentence_that_names_version_and_range(install_spark, spark):
    install_spark(spark)
    sentence = rf"^pyspark {spark} is installed, and headrace runs with Spark 4\.0 to 4\.2\. Install .*pyspark>=4\.0\.2"
    for ask in (java_artifacts.spark_java, lambda: find_bundle("spark-kafka")):
        with pytest.raises(SparkUnsupported, match=sentence):
            ask()
    assert find_bundle("kafka").version == java_artifacts.SERVERS["kafka"].version


def test_a_supervisor_halts_where_the_spark_is_outside_the_table(install_spark):
    install_spark("4.3.0")
    with pytest.raises(SparkUnsupported) as caught:
        spark_release()
    verdict = diagnose_exit(caught.value.exit_code, causes(caught.value))
    assert (verdict.row, verdict.halt) == ("configuration", True)


def test_bundles_of_two_releases_share_no_directory():
    for bundles in zip(*((r.kafka_bundle(), r.s3_bundle()) for r in SPARK_RELEASES.values()), strict=True):
        assert len({bundle.version for bundle in bundles}) == len(SPARK_RELEASES)
        assert all(bundle.files == len(bundle.modules) for bundle in bundles)


def test_the_range_of_the_package_is_that_of_the_table():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    last_major, last_minor = map(int, list(SPARK_RELEASES)[-1].split("."))
    assert f'"pyspark>=4.0.2,<{last_major}.{last_minor + 1}"' in text
    assert f"pyspark>=4.0.2,<{last_major}.{last_minor + 1}" in java_artifacts._INSTALL_SPARK
    assert spark_release("4.0.2").minor == next(iter(SPARK_RELEASES))


def test_a_java_that_is_too_new_for_this_spark_is_not_taken(tmp_path, monkeypatch):
    binary = tmp_path / "bin" / "java"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\necho 'openjdk version \"25.0.1\" 2025-10-21' >&2\n")
    binary.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert java_artifacts.java(17) == binary
    with pytest.raises(java_artifacts.JavaMissing, match=r"^No JDK 17 to 21 found \(JAVA_HOME is 25\)\."):
        java_artifacts.java(17, 21)


def test_what_writes_checkpoints_on_a_local_disk_is_a_class_of_the_installed_spark():
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_2.13-*.jar")
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in _LOCAL_FILE_MANAGERS if f"{name.replace('.', '/')}.class" in archive.namelist()]
    assert len(names) == 1
