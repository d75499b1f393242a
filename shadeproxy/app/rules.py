"""From ``[[rules]]`` to what the engine asks about freshness."""

from shadeproxy.config import Settings
from shadeproxy.engine.rules import Freshness, Rule, Rules


def build_rules(settings: Settings) -> Rules:
    """In the order of the settings; the first that applies decides."""
    return Rules(
        [
            Rule(rule.bucket, rule.prefix, Freshness(rule.freshness), rule.ttl, rule.cache)
            for rule in settings.rules
        ]
    )
