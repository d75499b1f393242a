"""Says why TLS with the origin failed, in words that name the setting to change."""

import ssl

# OpenSSL's reasons if the bytes received are no TLS, such as those of a server that speaks plain HTTP.
_NOT_TLS = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "UNKNOWN_PROTOCOL",
        "RECORD_LAYER_FAILURE",
        "PACKET_LENGTH_TOO_LONG",
    }
)


def why_tls_failed(error: BaseException) -> str:
    """Return the reason. ``error``: the error of the TLS library."""
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        return "the server speaks no TLS there; write http:// in origin.endpoint, or another port"
    return f"its certificate was not accepted: {error}; set origin.ca_file for a private authority"
