"""Media that fail and stay failed, under a proxy that acknowledges writes (``make chaos MEDIA=1``).

A round reads objects and parts of objects into the tiers, breaks the medium of the disk tier, and then
writes, deletes, copies and purges. It ends the proxy, repairs the medium, starts the proxy again and reads
everything. No answer may be older than the object at the origin.
"""
