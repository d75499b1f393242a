"""The demonstration: trains a real model several times in different ways, and measures each training. Imports
torch.
"""
