"""The S3 API over a plain store, for origins that are not S3 servers.

``store.py`` has the small protocol that a store implements. ``origin.py`` makes an Origin of any such store.
This package knows neither files nor memory. A store knows neither XML, nor header fields of requests, nor S3
operations.
"""
