"""Telemetry of the proxy: counters, metrics, log lines, otel spans. Nothing here changes how the proxy
behaves.
"""
