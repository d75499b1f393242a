"""Memory under streams: many clients, each with an object that is larger than all tiers, up and then down.

``make memory``. Laws: the far side is always the slow one (the origin takes uploads slower than clients send
them, clients take downloads slower than the origin sends them), so that everything the proxy does not bound
piles up in it; every byte is compared where it arrives; neither clients nor origin keep a body.
"""
