"""Telemetry of the proxy: counters, metrics, log lines. Nothing here changes its behaviour."""
