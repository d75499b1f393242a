"""Where page bodies live: one segment store class on two media, tmpfs (RAM) and local disk."""
