"""Predicts time, stall, origin bytes and cost of training with another cache, other workers or an announced
order.

Laws: hit ratios come from ``simulate``, which runs the product's own policy; times come from a replay of the
loader's loop (loop.py). A prediction starts from measured epochs (profile.py), and its error is measured on
these epochs. Pure and off the serving path: numpy only, no clock, and no I/O except where a docstring says
so.
"""
