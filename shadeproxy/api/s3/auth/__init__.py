"""Authentication: finds the client that signed a request, and verifies the signature. Reads no
configuration.
"""
