"""The numbers that ShadeProxy must reach, measured beside what it is compared with, in one run.

Laws: our side and the reference alternate (A B A B), medians count, ratios are what is judged; a wrong byte
fails a row, a reference that is not there is said in the row, and neither is ever a silent pass. Every server
and client is a process of its own on loopback, so that its CPU can be told apart. Libraries that only a
comparison needs are imported by the function that measures with them.
"""
