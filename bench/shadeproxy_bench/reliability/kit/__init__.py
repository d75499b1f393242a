"""What the long runs and the tests share: faults that are drawn from a seed, and media that suffer them."""
