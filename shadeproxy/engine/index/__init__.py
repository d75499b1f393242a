"""Index: which pages are resident, in which group, and what is known of their objects. It decides nothing."""
