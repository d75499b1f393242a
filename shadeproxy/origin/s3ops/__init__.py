"""The S3 API over a plain store: what an origin that is not an S3 server must answer itself.

``store.py`` is the small protocol a backend implements; ``origin.py`` turns any such store into an Origin.
Nothing here knows files or memory, and no backend knows XML, HTTP headers of requests, or S3 operations.
"""
