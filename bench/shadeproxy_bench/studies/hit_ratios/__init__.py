"""Study (a): every policy on every kind of workload at every cache size, without I/O."""
