"""Measured epochs beside those that ``shadeproxy plan`` predicts for them, from the profile of one run."""
