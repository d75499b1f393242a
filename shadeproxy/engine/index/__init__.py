"""Index: which pages are resident, the prefix group of each page, and the metadata of objects. It decides
nothing.
"""
