"""Kills: workers and coordinators killed or stopped while cold pages are under way.

``make kills``. Law: a body is made from its key, so every byte that comes back is judged; the origin counts
how often it was asked for each page.
"""
