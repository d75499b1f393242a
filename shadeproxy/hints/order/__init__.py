"""Order: what samplers announce, each job's place in its order, and how far its reads keep to it."""
