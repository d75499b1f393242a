"""The demonstration: a real training run, several times over, with measured numbers. Imports torch."""
