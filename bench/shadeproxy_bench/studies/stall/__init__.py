"""Study (c): the time that a training loop waits for data, against the origin's latency and bandwidth."""
