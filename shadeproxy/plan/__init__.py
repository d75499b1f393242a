"""Predicts time, stall, origin bytes and cost of training if the cache, the workers or the announcing of
orders are changed.

Laws: hit ratios come from ``simulate``, which runs the product's own policy; times come from a replay of the
loader's loop (loop.py). A prediction is fitted to measured epochs (profile.py), and its error is measured on
these epochs. Pure and off the serving path: numpy only, no I/O, no clock.
"""
