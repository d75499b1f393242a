"""The AWS credential chain of aiobotocore. Only credentials.py imports this module, and only when it needs
it: it is slow to import.
"""

from typing import Any

from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError


async def find_credentials(profile: str | None) -> Any:
    """Return credentials that refresh themselves; None if no provider of the chain has credentials."""
    return await AioSession(profile=profile).get_credentials()


def reason_of(error: Exception) -> str:
    """Return the text of an error without secrets.

    Some errors quote the output of a credential process or the answer of a service, which may contain a
    secret.
    """
    if isinstance(error, CredentialRetrievalError):
        return f"the provider {error.kwargs['provider']!r} failed; run it by hand to see why"
    if not isinstance(error, BotoCoreError | ClientError):
        return (
            f"a provider's credentials cannot be read ({type(error).__name__}); look at its file or service"
        )
    return str(error)
