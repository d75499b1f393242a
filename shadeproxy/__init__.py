"""ShadeProxy: an S3-compatible caching proxy that evicts by knowledge."""

__version__ = "0.1.0"
