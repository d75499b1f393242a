"""The composition root: the only package that knows the configuration and every part. Its modules are
imported one by one: a worker needs few of them.
"""
