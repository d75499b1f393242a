"""Helpers that tests of the S3 listener share."""
