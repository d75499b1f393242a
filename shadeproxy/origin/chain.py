"""The AWS chain by aiobotocore. Imported by credentials.py alone, when it is first asked."""

from typing import Any

from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError


async def find_credentials(profile: str | None) -> Any:
    """Credentials that refresh where they end; None where nothing has any."""
    return await AioSession(profile=profile).get_credentials()


def reason_of(error: Exception) -> str:
    """What an operator may be told of it.

    Some errors quote what a credential process printed or a service sent, which may hold a secret.
    """
    if isinstance(error, CredentialRetrievalError):
        return f"the provider {error.kwargs['provider']!r} failed; run it by hand to see why"
    if not isinstance(error, BotoCoreError | ClientError):
        return f"what a provider found cannot be read ({type(error).__name__}); look at its file or service"
    return str(error)
