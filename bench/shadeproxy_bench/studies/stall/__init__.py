"""Study (c): how long a training loop waits for data, against the origin's latency and bandwidth."""
