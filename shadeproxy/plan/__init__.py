"""Predicts the time, stall, origin bytes and cost of training with other caches, with more or fewer workers,
and with or without announced orders.

Laws: hit ratios come from ``simulate``, which runs the product's own policy. Times come from a replay of the
loader's loop (loop.py). A prediction is fitted to measured epochs (profile.py), and its error is measured on
these epochs. No read of a client calls this package. It needs numpy only (matplotlib for a plot), and no
clock. Only functions whose docstring says so do I/O.
"""
