"""From ``[[rules]]`` to what the engine asks about freshness."""

from shadeproxy.config import Settings
from shadeproxy.engine.rules import Freshness, Rule


def build_rules(settings: Settings) -> tuple[Rule, ...]:
    """In the order of the settings; the first that applies decides."""
    return tuple(
        Rule(rule.bucket, rule.prefix, Freshness(rule.freshness), rule.ttl, rule.cache)
        for rule in settings.rules
    )
