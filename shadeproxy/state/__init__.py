"""Durable control state: small values that survive a restart. The only package that knows diskcache."""
