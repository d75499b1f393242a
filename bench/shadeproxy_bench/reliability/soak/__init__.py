"""The soak: a running proxy under full load for an hour. Every byte of every answer is compared.

Run it by ``make soak``. Laws: a body is computed from seed, object and version, so every process can compute
the right answer without storing it. Each key has one writer, so that "never older than the acknowledged
version" has one meaning. Clients count every answer, also a wrong one, and do not stop at the first fault.
The run is judged once, at its end, from the samples and counts alone (``verdict``).
"""
