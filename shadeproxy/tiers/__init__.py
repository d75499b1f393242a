"""Storage of page bodies: one class of segment store on two media, tmpfs (RAM) and local disk."""
