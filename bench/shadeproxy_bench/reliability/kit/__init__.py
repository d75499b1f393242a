"""Parts that the long runs and the tests share: faults drawn from a seed, and media and origins with these
faults.
"""
