"""The table ``[telemetry.otel]`` of config.toml, with every default."""

from shadeproxy.config.fields import CollectorUrl, Section
from shadeproxy.config.secrets import Reference, resolve


class Otel(Section):
    enabled: bool = False
    endpoint: CollectorUrl = ""
    headers: Reference = ""

    def resolve_headers(self) -> str | None:
        """Return the header fields for requests to the collector, or None if OpenTelemetry's own environment
        variables set them. Raises ConfigError like ``read_secret``.
        """
        return resolve("telemetry.otel.headers", self.headers)
