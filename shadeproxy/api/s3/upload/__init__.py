"""Bodies of uploads. Framing is removed. Length, digests and signatures are checked before the last byte is
sent.
"""
