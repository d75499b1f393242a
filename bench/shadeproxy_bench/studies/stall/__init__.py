"""Study (c): the time that a training loop waits for data, by the origin's latency and bandwidth."""
