"""The SDK's errors: few, picklable because they leave DataLoader workers, and free of secrets.

Every text says what to change. Only ``Client``, ``S3Dataset`` and the samplers raise them; ``Job.report``
never does.
"""

UNANSWERED = (
    "Start the proxy (shadeproxy serve), or say where the data are: Client(origin=Origin(endpoint_url=...)) "
    "or AWS_ENDPOINT_URL_S3, with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY when the bucket is private"
)


class ShadeError(Exception):
    """The base class of all errors of the SDK. ``str(error)`` is safe to show."""


class ConfigError(ShadeError):
    """An argument, an environment variable or an installed library must change."""


class ReadError(ShadeError):
    """An object cannot be read: it is missing, forbidden, or no server that has it answers."""


class ControlError(ShadeError):
    """The control listener refused a call. ``status`` is the HTTP status; ``code`` and ``message`` are the
    proxy's.
    """

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(status, code, message)
        self.status = status
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"


class Unreachable(ShadeError):
    """A server gave no complete answer: it refused or reset the connection, cut the answer short, or was too
    slow.
    """


class Broken(Unreachable):
    """The connection broke during a call, as an idle connection does when its server restarts. Trying again
    may help.
    """


class Silent(Unreachable):
    """A server gave no answer in time, although it did not refuse the connection. It may hang."""


class BadAnswer(Unreachable):
    """A server's answer breaks the rules of docs/protocol.md."""


class Busy(ShadeError):
    """A server answered 429 or 5xx to every attempt."""


def unanswered(what: str, proxy: str, origin: str | None) -> ReadError:
    """Return the error for a read that neither proxy nor origin answers. ``proxy`` and ``origin`` say what
    happened at each.
    """
    second = "no origin is known" if origin is None else f"the origin {origin}"
    return ReadError(f"{what} cannot be read: the proxy at {proxy}, and {second}. {UNANSWERED}")
