"""The warnings and facts about tiers. A disk that hangs is named, and not looked at."""

from types import SimpleNamespace

import pytest

from shadeproxy.app.tier_facts import facts_unseen, look_at_tier, tier_warnings
from shadeproxy.config import Settings
from shadeproxy.core.types import Source
from shadeproxy.engine.storage.medium import Medium


class Watched(SimpleNamespace):
    """A tier that counts how often it is asked whether its directory is there."""

    def is_detached(self) -> bool:
        self.asked += 1
        return False


def medium(busy_s: float, **changes: object) -> Medium:
    well = {
        "name": "disk", "asked": 0, "disabled_reason": None, "limit_bytes": 9, "capacity_bytes": 9,
        "erasures": SimpleNamespace(any_unmarked="", owed=0),
    }  # fmt: skip
    return Medium(Watched(**well | changes), Source.DISK, busy_s=lambda: busy_s)


@pytest.mark.parametrize(
    ("found", "warnings"),
    [
        (medium(9.9), []),
        (medium(10.1), ["the disk of tier disk hangs"]),
        (medium(0.0, disabled_reason="EIO"), ["tier disk takes no more pages"]),
        (medium(0.0, limit_bytes=8), ["the medium of tier disk is full: it holds less than its capacity"]),
    ],
)
def test_a_tier_warns_of_what_it_cannot_do(found, warnings):
    assert list(tier_warnings(found)) == warnings


def test_only_a_disk_that_answers_is_looked_at(tmp_path):
    cache = Settings.load(None, [f"cache.disk.path={tmp_path}"]).cache
    (tmp_path.parent / f"{tmp_path.name}.incompatible-1").mkdir()
    answers, hangs = medium(0.0), medium(12.0)
    facts = look_at_tier(answers, cache, 5)
    assert (facts.hangs_s, answers.tier.asked, len(facts.aside)) == (0.0, 1, 1)
    assert facts.file_system_bytes > 0
    facts = look_at_tier(hangs, cache, 5)
    assert (facts.hangs_s, hangs.tier.asked, facts.aside) == (12.0, 0, ())
    assert facts.file_system_bytes == 0
    facts = facts_unseen(answers, cache, 5, 5.0)
    assert (facts.hangs_s, answers.tier.asked) == (5.0, 1)
