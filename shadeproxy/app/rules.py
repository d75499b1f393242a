"""From ``[[rules]]`` to what the engine asks about freshness and pins."""

from shadeproxy.config import Settings
from shadeproxy.engine.rules import Freshness, Rule


def build_rules(settings: Settings) -> tuple[Rule, ...]:
    """In the order of the settings; the first that applies decides."""
    return tuple(
        Rule(rule.bucket, rule.prefix, Freshness(rule.freshness), rule.ttl, rule.cache, rule.pin)
        for rule in settings.rules
    )
