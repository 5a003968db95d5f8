"""Run in a driver's pod, in the driver's place: Spark asks Kubernetes for more executors, and for fewer.

Says how many are registered after each change, one line of JSON for each.
"""

import json
import sys
import time
from pathlib import Path

from writer import job
from writer.file import load

WITHIN_S = 180


def registered(context):
    return set(context.getExecutorMemoryStatus().keys().mkString(" ").split()) - {driver(context)}


def driver(context):
    manager = context.env().blockManager().blockManagerId()
    return f"{manager.host()}:{manager.port()}"


def main(totals: list[int]) -> None:
    spark = job.session(load(Path("/etc/headrace/pipelines.yaml")))
    jvm, context = spark.sparkContext._jvm, spark.sparkContext._jsc.sc()
    nobody = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(jvm.java.util.HashMap())
    for total in totals:
        assert context.requestTotalExecutors(total, 0, nobody)
        backend = context.schedulerBackend()
        surplus = sorted(backend.getExecutorIds().mkString(" ").split(), key=int)[total:]
        for executor in surplus:
            info = jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("fewer", jvm.scala.Option.empty())
            assert backend.decommissionExecutor(executor, info, False, False)
        deadline = time.monotonic() + WITHIN_S
        while len(registered(context)) != total and time.monotonic() < deadline:
            time.sleep(0.2)
        print(json.dumps({"asked": total, "registered": len(registered(context)), "sum": added(spark)}), flush=True)
    spark.stop()


def added(spark) -> int:
    """Let the executors do something."""
    return int(spark.range(0, 1000, 1, 8).selectExpr("sum(id)").first()[0])


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
