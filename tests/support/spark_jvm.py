"""A JVM that the drivers of one test process share, one after another.

A driver starts a JVM of its own, and that takes ten seconds of a core until what Spark needs is loaded and compiled.
PySpark uses a running one instead if PYSPARK_GATEWAY_PORT and PYSPARK_GATEWAY_SECRET name it. Each driver makes its
own SparkContext there, with its own configuration, and stops it at its end. A JVM in which a driver left its context
ends with it.
"""

import atexit
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from subprocess import DEVNULL
from typing import cast
from unittest.mock import patch

from pyspark.conf import SparkConf
from pyspark.java_gateway import launch_gateway

from headrace import writer
from headrace.writer.clients import java_artifacts
from tests.support import class_archive

QUICK_START = f"{class_archive.QUICK_START} -XX:SharedArchiveFile={class_archive.path()}"


_SEEN = ("AWS_", "HADOOP_", "HEADRACE_", "SPARK_", "HOME", "TMPDIR")  # variables that a driver or Spark looks at


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_SEEN)}


# Both from before any test changes the environment.
_AT_START = dict(os.environ)
_ENVIRONMENT = _environment()


class SparkJvm:
    """A running JVM with Spark's classes, as `spark-submit pyspark-shell` starts it."""

    def __init__(self) -> None:
        log4j = f'-Dlog4j2.configurationFile="{writer.__path__[0]}/log4j2.properties"'
        jars = ",".join(map(str, java_artifacts.spark_jars()))
        conf = SparkConf(loadDefaults=False)
        conf.set("spark.driver.extraJavaOptions", f"{log4j} {QUICK_START}")
        conf.set("spark.driver.memory", "1g").set("spark.jars", jars)
        java = {"JAVA_HOME": str(java_artifacts.spark_java().parent.parent), "PYSPARK_PYTHON": sys.executable}
        with patch.dict(os.environ, {**_AT_START, **java}, clear=True):
            self._gateway = launch_gateway(conf, {"stdout": DEVNULL, "stderr": DEVNULL})
        parameters = self._gateway.gateway_parameters
        self.environment: Mapping[str, str] = {
            "PYSPARK_GATEWAY_PORT": str(parameters.port),
            "PYSPARK_GATEWAY_SECRET": parameters.auth_token,
        }

    def has_context(self) -> bool:
        """Return whether a driver left its SparkContext."""
        session = self._gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession()
        return session.isDefined() and not session.get().sparkContext().isStopped()

    def stop(self) -> None:
        """End it."""
        self._gateway.shutdown()
        self._gateway.proc.kill()
        self._gateway.proc.wait()


class Shared:
    """The JVM of this process, started when the first driver asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jvm = cast(SparkJvm | None, None)
        atexit.register(self._stop)

    @contextmanager
    def lend(self) -> Iterator[Mapping[str, str]]:
        """Give the variables that make a driver use the JVM.

        There are none while another driver uses it, or when a test changed what a running JVM would not see.
        """
        if _environment() != _ENVIRONMENT or not self._lock.acquire(blocking=False):
            yield {}
            return
        clean = False
        try:
            if self._jvm is None:
                self._jvm = SparkJvm()
            yield self._jvm.environment
            clean = not self._jvm.has_context()
        finally:
            if not clean:
                self._stop()
            self._lock.release()

    def _stop(self) -> None:
        if self._jvm is not None:
            self._jvm.stop()
            self._jvm = None


SHARED = Shared()
