"""A directory as a Store: sub-directories are buckets, files are objects. Only this package calls the file
system.
"""
