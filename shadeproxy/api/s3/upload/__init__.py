"""Bodies of uploads. The proxy removes the aws-chunked framing. It checks length, digests and signatures
before it sends the last byte to the origin.
"""
