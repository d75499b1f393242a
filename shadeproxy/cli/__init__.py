"""The command line: arguments in, one clear line out when something is wrong. No product logic."""
