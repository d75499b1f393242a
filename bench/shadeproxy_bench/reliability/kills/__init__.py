"""Kills: workers and coordinators killed or stopped while cold pages are under way.

``make kills``. Law: a body follows from its key, so every returned byte is judged. The origin counts the
requests for each page.
"""
