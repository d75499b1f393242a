"""Values, errors and pure functions that every layer shares. Nothing here does I/O."""
