"""Durable control state: small values that survive a restart. Only this package imports diskcache."""
