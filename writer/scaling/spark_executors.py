"""Spark's calls for executors: list them, request a total, decommission some.

They are the JVM's, behind PySpark. Four of Spark's own ways are not used: `killExecutors` of the context ends running
tasks; its `requestTotalExecutors` mixes up profiles where it is given tasks with localities; `requestExecutors` adds
to what was asked for, not to what is there; and a decommission that adjusts the total takes it below what is wanted.
"""

import json
from datetime import UTC, datetime
from typing import Any

from headrace.writer.scaling.scale_steps import Executor

_DRIVER = "driver"


class SparkExecutors:
    """The executors of a Spark application."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark.sparkContext._jvm  # noqa: SLF001 - PySpark shows no executors
        self._context = spark.sparkContext._jsc.sc()  # noqa: SLF001
        self._json = self._jvm.org.apache.spark.status.api.v1.JacksonMessageWriter().mapper()
        self._no_hosts = self._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(self._jvm.java.util.HashMap())

    def list_executors(self) -> list[Executor]:
        """Return the executors that are registered, those that drain too."""
        documents = json.loads(self._json.writeValueAsString(self._context.statusStore().executorList(True)))
        return [_executor(document) for document in documents if document["id"] != _DRIVER and document["isActive"]]

    def ask(self, total: int) -> bool:
        """Request this total; False if the cluster cannot. A lower total removes no executor."""
        return bool(self._context.requestTotalExecutors(total, 0, self._no_hosts))

    def drain(self, executor: str) -> bool:
        """Let an executor finish its tasks and go; it gets no others. The total stays as it was asked for."""
        info = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            "fewer executors are wanted", self._jvm.scala.Option.empty()
        )
        return bool(self._context.schedulerBackend().decommissionExecutor(executor, info, False, False))


def slots(spark: Any) -> int:
    """Return how many tasks can run at once now; executors that drain have no part in it. At least one."""
    context = spark.sparkContext._jsc.sc()  # noqa: SLF001
    profile = context.resourceProfileManager().defaultResourceProfile()
    return max(1, int(context.maxNumConcurrentTasks(profile)))


def _executor(document: dict[str, Any]) -> Executor:
    came = datetime.strptime(document["addTime"].removesuffix("GMT"), "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=UTC)
    return Executor(
        id=document["id"],
        since=came,
        cores=document["totalCores"],
        failed_tasks=document["failedTasks"],
        task_s=document["totalDuration"] / 1000,
        gc_s=document["totalGCTime"] / 1000,
    )
