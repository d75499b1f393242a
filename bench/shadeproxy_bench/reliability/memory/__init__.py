"""Memory under streams: many clients, each with an object that is larger than all tiers, upload and then
download.

Run it by ``make memory``. Laws: the side that receives is always the slow one. The origin reads uploads
slower than clients send them, and clients read downloads slower than the origin sends them. Anything that the
proxy does not bound therefore piles up in its memory. Every byte is compared on arrival. Neither clients nor
origin keep a body.
"""
