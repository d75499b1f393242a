"""One module for each group of rows. A suite measures; it starts no more than its rows need, and ends it."""
