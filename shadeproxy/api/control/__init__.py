"""The control listener: HTTP and JSON in front of knowledge, statistics and administration."""
