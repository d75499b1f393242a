"""Study (d): Monarch's case, a data set twice the cache in front of a shared file system."""
