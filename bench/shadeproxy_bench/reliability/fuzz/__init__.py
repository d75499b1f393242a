"""Fuzz: damaged and odd requests against real listeners.

``make fuzz``. Laws: equal seeds send equal bytes; every byte that comes back is judged, and so is all that is
left under way at the end.
"""
