"""Order: what samplers announce, how far each job is in it, and how far it keeps to it."""
