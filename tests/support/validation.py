"""What `headrace validate` finds."""

from headrace.writer.maintenance import local_pipeline
from headrace.writer.preflight.checks import source_checks
from tests.support.sample_records import EVENT, NOW, Schemas, config


def sample_findings(batch, tmp_path, schemas=None, registered=(1,), **pipeline):
    """Findings about a sample, by check."""
    settings = config(tmp_path, **pipeline)
    looked = local_pipeline.open_local_pipeline("clicks", settings, Schemas(schemas or {1: EVENT}, registered))
    return {finding.check: finding for finding in source_checks.sample_findings(looked, batch, NOW)}
