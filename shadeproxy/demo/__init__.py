"""The demonstration: trains a real model several times and measures it. Imports torch."""
