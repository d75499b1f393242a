"""The table ``[telemetry.otel]`` of config.toml, with every default."""

from shadeproxy.config.fields import CollectorUrl, Section
from shadeproxy.config.secrets import Reference, resolve


class Otel(Section):
    enabled: bool = False
    endpoint: CollectorUrl = ""
    headers: Reference = ""

    def resolve_headers(self) -> str | None:
        """Return the header fields for the collector; None if they come from OpenTelemetry's own variables.
        Raises ConfigError like ``read_secret``.
        """
        return resolve("telemetry.otel.headers", self.headers)
