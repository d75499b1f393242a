"""Bodies of uploads: framing is removed, and every promise is checked before the last byte is sent on."""
