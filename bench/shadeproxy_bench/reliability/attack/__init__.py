"""Attack: hostile and broken clients, and a hostile or broken origin, against running proxies.

Run it by ``make attack``. Laws: the seed decides all bytes. The origin (origin.py) records each request byte
by byte, and answers as a script says. Each attack knows the truth before it begins, so that every answer and
every request at the origin can be judged. A violation is reported with the bytes that reproduce it.
"""
