"""The demonstration: trains a real model several times, each time with another cache, and measures each
training. Imports torch.
"""
