"""Read: turns a request into bytes, from the cache or by a fill from the origin."""
