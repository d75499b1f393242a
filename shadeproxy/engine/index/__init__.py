"""Index: which pages are resident, in which group, and the metadata of their objects. It decides nothing."""
