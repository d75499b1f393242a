"""Durable control state: small values that survive a restart. No other package knows diskcache."""
