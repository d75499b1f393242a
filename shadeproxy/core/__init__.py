"""The vocabulary: values, errors and pure functions that every layer shares. No I/O lives here."""
