"""The S3 listener: parses, authenticates and authorises every request. The engine answers reads that the
cache may answer; all other requests go to the origin. The package ``app`` builds a listener as
``S3Server(S3Handler(...), FastLane(...))``.
"""

from shadeproxy.api.s3.auth.authenticator import Authenticator
from shadeproxy.api.s3.auth.clients import ALL_RIGHTS, ClientKey, Right
from shadeproxy.api.s3.compiled import COMPILED
from shadeproxy.api.s3.exchange import CLIENT_CLOSED, RequestObserver
from shadeproxy.api.s3.handler import S3Handler
from shadeproxy.api.s3.lane import FastLane
from shadeproxy.api.s3.server import S3Server

__all__ = [
    "ALL_RIGHTS",
    "CLIENT_CLOSED",
    "COMPILED",
    "Authenticator",
    "ClientKey",
    "FastLane",
    "RequestObserver",
    "Right",
    "S3Handler",
    "S3Server",
]
