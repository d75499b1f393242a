"""Storage of page bodies: one segment store class on two media, tmpfs (RAM) and local disk."""
