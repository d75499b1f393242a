"""Crash: proxies are killed at random points, and files are damaged between two starts.

Run it by ``make crash``. Law: the body of an object is made from its key and version, so every returned byte
can be judged.
"""
