"""Study (d): the case of Monarch, a data set of twice the cache's size in front of a shared file system."""
