"""Benchmarks: the figures that ShadeProxy must reach, measured beside a reference in the same run.

Laws: our side and the reference alternate (A B A B), medians count, ratios are judged; a wrong byte fails a
row, a missing reference is stated in the row, and neither is ever a silent pass. Every server and client is a
process of its own on loopback, so that its CPU can be told apart. Libraries that only a comparison needs are
imported by the function that measures with them.
"""
