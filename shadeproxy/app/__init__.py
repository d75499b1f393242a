"""The composition root: the only package that knows the configuration and every part of the proxy. Its
modules are imported one by one, because a worker needs few of them.
"""
