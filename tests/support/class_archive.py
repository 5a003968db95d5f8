"""An archive of the classes that Spark loads at its start: with it a driver starts in about half the time.

This is class data sharing of the JVM (JEP 350). `make slow` makes the archive, once in the cache for each Java and
pyspark: `python -m tests.support.class_archive`. Where it is missing, a JVM starts as it would without.
"""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

from headrace.writer.clients.java_artifacts import cache_dir, spark_java

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a third off the start on two cores
_PROGRAM = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate()
spark.range(100).selectExpr("id", "id % 7 as k").write.parquet(f"{sys.argv[2]}/rows")
rows = spark.readStream.schema("id long, k long").parquet(f"{sys.argv[2]}/rows")
passed = rows.mapInArrow(lambda batches: batches, rows.schema).writeStream.foreachBatch(lambda f, _: f.collect())
passed.option("checkpointLocation", f"{sys.argv[2]}/run").trigger(availableNow=True).start().awaitTermination()
gateway = spark.sparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()  # the JVM ends, and writes the archive
gateway.proc.wait()
"""


def path() -> Path:
    """Return where the archive is, or would be. A JVM takes one only from its own build, for its own class path."""
    build = subprocess.run([spark_java(), "-version"], capture_output=True, check=True).stderr
    digest = sha256(build + pyspark.__file__.encode()).hexdigest()[:12]
    return cache_dir() / f"spark-classes-{pyspark.__version__}-{digest}.jsa"


def main() -> None:
    """Make the archive unless it is there."""
    archive = path()
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=archive.parent) as folder:
        draft = Path(folder) / "archive"
        options = f"{QUICK_START} -XX:ArchiveClassesAtExit={draft} -Xlog:cds=off -Xlog:cds+dynamic=off"
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(spark_java().parent.parent)}
        process = subprocess.run(
            [sys.executable, "-c", _PROGRAM, options, folder],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=environment,
        )
        if process.returncode != 0 or not draft.exists():
            sys.exit(f"class_archive: Spark could not be started to archive its classes:\n{process.stderr}")
        draft.rename(archive)


if __name__ == "__main__":
    main()
