"""Study (d): the case of Monarch, in which a data set of twice the cache's size lies on a shared file
system.
"""
