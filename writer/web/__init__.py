"""The driver's HTTP server: status, metrics, health checks, the page."""
