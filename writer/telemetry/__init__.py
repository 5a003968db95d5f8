"""Sends commits to receivers of lineage (OpenLineage) and traces (OpenTelemetry), where they are configured."""
