"""What the proxy says of itself: counters, metrics, log lines. Nothing here changes what it does."""
