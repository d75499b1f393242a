"""The command line. It parses arguments, and prints one clear line when something is wrong. It has no product
logic.
"""
