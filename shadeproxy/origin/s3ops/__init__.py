"""The S3 API over a plain store, for origins that are not S3 servers.

``store.py`` is the small protocol a backend implements; ``origin.py`` turns any such store into an Origin.
This package knows neither files nor memory, and no backend knows XML, HTTP headers of requests, or S3
operations.
"""
