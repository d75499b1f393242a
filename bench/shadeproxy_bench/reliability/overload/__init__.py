"""Overload: a running proxy under more load than it can carry, phase by phase, and its state afterwards.

Run it by ``make overload``. Laws: bodies are computed from their keys (``shadeproxy_bench.objects``), so
every byte is compared. A good client runs beside each kind of bad client, and its answers are counted apart.
Requests to the origin are counted at the origin. The run is judged once, at its end, from samples and counts
alone (``verdict``).
"""
