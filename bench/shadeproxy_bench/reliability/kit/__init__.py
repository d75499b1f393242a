"""Parts that the long runs and the tests share: faults drawn from a seed, and media that suffer them."""
