"""Benchmarks: the figures that ShadeProxy must reach, each measured beside a reference in the same run.

Laws: our side and the reference alternate (A B A B), medians count, and ratios are judged. A wrong byte fails
its row, and a missing reference is stated in its row; neither ever passes silently. Every server and client
is a process of its own on loopback, so that the CPU of each can be told apart. A library that only one
comparison needs is imported by the function that measures with it.
"""
