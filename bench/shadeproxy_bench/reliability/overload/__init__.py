"""Overload: a running proxy under more load than it can carry, phase by phase, and its state afterwards.

``make overload``. Laws: bodies follow from their key (bench/objects.py), so every byte is compared; beside
each kind of bad client runs a good one, whose answers are counted apart; requests to the origin are counted
at the origin; the run is judged once, at the end, from samples and counts alone (``verdict``).
"""
