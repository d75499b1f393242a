"""Study (a): the hit ratio of every policy on every kind of workload at every cache size, without I/O."""
