"""What the demo shows of its writer."""

from headrace.writer.demo.status_view import View
from headrace.writer.status.document import document
from tests.support.pipeline_states import NOW, pipeline_states

_STATUS = document([pipeline_states()["backlog"]], NOW)
VIEW = View("the writer runs", "events", 120_000, 200_000, {**_STATUS["pipelines"]["clicks"], "at": _STATUS["at"]})
