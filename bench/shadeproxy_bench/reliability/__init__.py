"""Long runs that try to break the proxy by load, faults, kills, overload and damaged requests. Every answer
is checked.
"""
