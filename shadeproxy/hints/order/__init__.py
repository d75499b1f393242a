"""Order: the announced order of each job, the job's place in it, and how far the job's reads follow it."""
