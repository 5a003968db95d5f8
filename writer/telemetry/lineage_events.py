"""OpenLineage events of a commit: which topics were read, which version of which table was written, and how much.

Each batch is a run of its own, START and COMPLETE, as the standard wants it of a run. Datasets are named as its naming
conventions say: kafka://host:port and the topic; file or s3://bucket and the path.
"""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import version
from typing import Any

from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import OpenLineage
from headrace.writer.status.model import Commit

PRODUCER = "https://github.com/headrace/headrace"


def sender(section: OpenLineage, config: Config, pipeline: str) -> Callable[[Commit], None]:
    """Return a function that posts the events of a commit. It raises what the transport raises.

    Raises ImportError without openlineage-python.
    """
    from openlineage.client.event_v2 import set_producer
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider

    set_producer(PRODUCER)
    key = section.api_key
    auth = TokenProvider({}) if key is None else ApiKeyTokenProvider({"api_key": key.get_secret_value()})
    timeout_s = section.timeout.total_seconds()
    transport = HttpTransport(HttpConfig(url=str(section.url), timeout=timeout_s, retry={"total": 0}, auth=auth))

    def send(commit: Commit) -> None:
        for event in events(commit, section.namespace, config, pipeline):
            transport.emit(event)

    return send


def events(commit: Commit, namespace: str, config: Config, pipeline: str) -> list[Any]:
    """Return START and COMPLETE of a batch, as openlineage-python's RunEvent."""
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.generated.job_type_job import JobTypeJobFacet
    from openlineage.client.generated.processing_engine_run import ProcessingEngineRunFacet
    from openlineage.client.uuid import generate_static_uuid

    table = config.pipelines[pipeline].table
    began = datetime.fromisoformat(commit.facts["started"])
    identity = f"{table.location} {pipeline} {commit.version}".encode()
    engine = ProcessingEngineRunFacet(version=version("headrace"), name="headrace")
    run = Run(str(generate_static_uuid(began, identity)), {"processing_engine": engine})
    job_type = JobTypeJobFacet(processingType="STREAMING", integration="HEADRACE", jobType="JOB")
    job = Job(namespace, pipeline, {"jobType": job_type})
    inputs = _inputs(commit, config.kafka.bootstrap_servers)
    output = _output(commit, table.location, table.format)
    states: list[tuple[datetime, Any, list[Any]]] = [
        (began, RunState.START, []),
        (commit.at, RunState.COMPLETE, [output]),
    ]
    return [
        RunEvent(eventTime=time.isoformat(), run=run, job=job, eventType=state, inputs=inputs, outputs=outputs)
        for time, state, outputs in states
    ]


def _inputs(commit: Commit, bootstrap_servers: str) -> list[Any]:
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet

    cluster = f"kafka://{bootstrap_servers.partition(',')[0].strip()}"
    read = Counter[str]()
    for account in commit.facts["ranges"]:
        read[account["topic"]] += account.get("read", 0)
    return [
        InputDataset(
            namespace=cluster,
            name=topic,
            inputFacets={"inputStatistics": InputStatisticsInputDatasetFacet(rowCount=count)},
        )
        for topic, count in sorted(read.items())
    ]


def _output(commit: Commit, location: str, form: str) -> Any:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated.dataset_version_dataset import DatasetVersionDatasetFacet
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet
    from openlineage.client.generated.storage_dataset import StorageDatasetFacet

    scheme, _, path = location.partition("://")
    bucket, _, key = path.partition("/")
    if path:
        namespace = f"{scheme}://{bucket}"
        name = key
    else:
        namespace = "file"
        name = location
    facts = commit.facts
    return OutputDataset(
        namespace=namespace,
        name=name,
        facets={
            "version": DatasetVersionDatasetFacet(datasetVersion=str(commit.version)),
            "storage": StorageDatasetFacet(storageLayer=form, fileFormat="parquet"),
        },
        outputFacets={
            "outputStatistics": OutputStatisticsOutputDatasetFacet(
                rowCount=facts["rows"], size=facts["bytes"], fileCount=facts["files"]
            )
        },
    )
