"""ShadeProxy: an S3-compatible caching proxy that evicts by importance scores and announced order."""

__version__ = "0.1.0"
