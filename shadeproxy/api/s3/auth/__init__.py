"""Who sent this request, and is it the request that was signed. Nothing here reads configuration."""
