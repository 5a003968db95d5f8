"""Clients of Kafka, HTTP servers, the driver's endpoint and the Java artifact store."""
