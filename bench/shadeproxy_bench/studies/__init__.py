"""Studies: the worth of the product's ideas; each is one command, with its results in docs/studies/."""
