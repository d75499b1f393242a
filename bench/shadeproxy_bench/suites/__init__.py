"""Suites: one module for each group of rows. A suite starts only the servers that its rows need, and ends
them.
"""
