"""Fuzz: damaged and odd requests are sent to real listeners.

Run it by ``make fuzz``. Laws: equal seeds send equal bytes. Every byte that comes back is judged, and so is
any work or resource that is left at the end.
"""
