"""The catalogue of metrics, from which a driver's `/metrics` and docs/METRICS.md are made."""

from headrace.writer.web.batch_metrics import BATCH_METRICS
from headrace.writer.web.metric_types import Metric, Reading
from headrace.writer.web.pipeline_metrics import PIPELINE_METRICS
from headrace.writer.web.store_metrics import STORE_METRICS
from headrace.writer.web.table_metrics import TABLE_METRICS

CATALOGUE: tuple[Metric[Reading], ...] = (*PIPELINE_METRICS, *BATCH_METRICS, *TABLE_METRICS, *STORE_METRICS)
