"""Helpers that several tests of the S3 listener share."""
