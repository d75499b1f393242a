"""Study: unequal training loops that share a cache and a link, over the real engine, in virtual time."""
