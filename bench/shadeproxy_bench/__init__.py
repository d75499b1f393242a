"""Benchmarks: the figures that ShadeProxy must reach, each measured beside a reference in the same run.

Laws: rounds of our side and of the reference alternate (A B A B). The median of the rounds counts, and the
ratio of both sides is judged. A row with a wrong byte fails, and a row whose reference is missing says so;
neither ever passes silently. Every server and client is a process of its own on loopback, so that the CPU
time of each can be measured. A library that only one comparison needs is imported by the function that
measures with it.
"""
