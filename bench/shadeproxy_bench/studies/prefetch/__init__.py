"""Study (e): the bytes that are read from the origin and the time of epochs with prefetching, in virtual
time.
"""
