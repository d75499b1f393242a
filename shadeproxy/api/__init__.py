"""The listeners: they turn HTTP requests into engine calls. No package below this one knows HTTP requests."""
