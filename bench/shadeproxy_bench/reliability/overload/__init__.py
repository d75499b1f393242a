"""Overload: a running proxy under more than it can carry, phase by phase, and what is left afterwards.

``make overload``. Laws: bodies follow from their key (bench/objects.py), so every byte is compared; beside
each kind of bad client there is a good one, whose answers are counted apart; what the origin was asked is
counted at the origin; what was found is judged once, at the end, from samples and counts alone (``verdict``).
"""
