"""Long runs that try to break the proxy: load, faults, kills, overload and floods, every answer checked."""
