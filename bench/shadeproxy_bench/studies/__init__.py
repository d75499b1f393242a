"""Studies: what the product's ideas are worth; each is one command, with its results in docs/studies/."""
