"""Build the engine's rules of freshness and pins from ``[[rules]]``."""

from shadeproxy.config import Settings
from shadeproxy.engine.rules import Freshness, Rule


def build_rules(settings: Settings) -> tuple[Rule, ...]:
    """Return the rules in the order of the settings; the first that matches decides."""
    return tuple(
        Rule(rule.bucket, rule.prefix, Freshness(rule.freshness), rule.ttl, rule.cache, rule.pin)
        for rule in settings.rules
    )
