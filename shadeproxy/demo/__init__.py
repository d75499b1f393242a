"""The demonstration: trains a real model several times, and measures each training. Imports torch."""
