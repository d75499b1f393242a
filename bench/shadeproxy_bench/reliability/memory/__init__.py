"""Memory under streams: many clients upload and then download at the same time, each an object that is larger
than all tiers.

Run it by ``make memory``. Laws: the side that receives is always the slow one. The origin reads uploads
slower than clients send them, and clients read downloads slower than the origin sends them. A buffer without
a bound would therefore grow in the proxy's memory. Every byte is compared on arrival. Neither clients nor
origin keep a body.
"""
