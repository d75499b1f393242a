"""Kills: workers and coordinators are killed or stopped while cold pages are under way.

Run it by ``make kills``. Law: a body is computed from its key and version, so every returned byte can be
judged. The origin counts the requests for each page.
"""
