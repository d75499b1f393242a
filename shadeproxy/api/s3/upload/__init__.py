"""Bodies on their way up: framing taken off, every promise checked before the last byte goes."""
