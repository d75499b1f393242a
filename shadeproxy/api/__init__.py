"""The listeners: HTTP in, engine calls out. Nothing below this package knows HTTP requests."""
