"""Authentication: the client of a request, and proof that it signed this request. Reads no configuration."""
