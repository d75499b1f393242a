"""The control listener: HTTP and JSON for access hints, statistics and administration."""
