"""Authentication: finds the client that signed a request, and verifies the signature. These modules read no
configuration.
"""
