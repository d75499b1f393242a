"""The SDK's errors. They can be pickled, so that they can leave DataLoader workers, and they contain no
secrets.

Every text says what to change. ``Job.report`` never raises any of these errors.
"""

UNANSWERED = (
    "Start the proxy (shadeproxy serve), or say where the data are: Client(origin=Origin(endpoint_url=...)) "
    "or AWS_ENDPOINT_URL_S3, with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY when the bucket is private"
)


class ShadeError(Exception):
    """The base class of all errors of the SDK. ``str(error)`` is safe to show."""


class ConfigError(ShadeError):
    """Raised if an argument, an environment variable or an installed library must change."""


class ReadError(ShadeError):
    """Raised if an object cannot be read: it does not exist, may not be read, or no server that has it
    answers.
    """


class ControlError(ShadeError):
    """Raised if the control listener refused a call. ``status``: the HTTP status. ``code``, ``message``:
    those in the proxy's answer. ``retry_after_s``: the seconds in its field Retry-After; 0 if it has none.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after_s = 0.0

    def __str__(self) -> str:
        return f"{self.status} {self.code}".rstrip() + f": {self.message}"


class Unreachable(ShadeError):
    """Raised if a server gave no complete answer: it refused or reset the connection, cut the answer short,
    or was too slow.
    """


class Broken(Unreachable):
    """Raised if the connection broke during a call, for example because the server restarted. Another attempt
    may succeed.
    """


class Silent(Unreachable):
    """Raised if a server accepted the connection, but gave no answer in time. It may hang."""


class BadAnswer(Unreachable):
    """Raised if the answer of a server breaks the rules of docs/protocol.md."""


class Busy(ShadeError):
    """Raised if a server answered 429 or 5xx to every attempt."""


def unanswered(what: str, proxy: str, origin: str | None) -> ReadError:
    """Return the error for a read that neither proxy nor origin answered. ``proxy``, ``origin``: texts that
    name each of the two and say what happened there; None if no origin is known.
    """
    second = "no origin is known" if origin is None else f"the origin {origin}"
    return ReadError(f"{what} cannot be read: the proxy at {proxy}, and {second}. {UNANSWERED}")
