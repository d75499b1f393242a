from shadeproxy.policy.staging import StagingShare

CAPACITY = 10_000


def idle(staging, staged_bytes):
    for _ in range(staged_bytes // 10):
        staging.on_staged(10, CAPACITY)


def test_share_halves_after_eight_turnovers_without_a_hit_and_ends_at_zero():
    staging = StagingShare(0.02)
    idle(staging, 8 * 200 - 10)
    assert staging.share() == 0.02
    idle(staging, 10)
    assert staging.share() == 0.01
    idle(staging, 8 * 200)
    assert staging.share() == 0


def test_a_hit_starts_the_count_anew():
    staging = StagingShare(0.02)
    for _ in range(10):
        idle(staging, 8 * 200 - 10)
        staging.on_staged_hit()
    assert staging.share() == 0.02


def again(staging, pages, size=10):
    """Whether the share came back, for pages that are passed by and missed again at once."""
    answers = []
    for page in pages:
        staging.on_bypass(page, size)
        answers.append(staging.on_miss(page, CAPACITY))
    return answers


def test_several_bypassed_pages_asked_again_soon_bring_the_full_share_back():
    staging = StagingShare(0.02)
    idle(staging, 100_000)
    staging.on_bypass(9, 100)
    assert not staging.on_miss(10, CAPACITY)
    assert again(staging, range(3)) == [False] * 3
    assert staging.share() == 0
    assert again(staging, [3]) == [True]
    assert staging.share() == 0.02


def test_what_happens_by_chance_now_and_then_does_not():
    """Between two shuffled epochs a few pages are read twice in quick succession."""
    staging = StagingShare(0.02)
    idle(staging, 100_000)
    for round_ in range(50):
        assert not any(again(staging, [round_]))
        assert not any(staging.on_miss(1000 + miss, CAPACITY) for miss in range(60))
    assert staging.share() == 0


def test_soon_is_what_a_full_share_would_have_held():
    staging = StagingShare(0.02)
    idle(staging, 100_000)
    again(staging, range(3))
    staging.on_bypass(11, 100)
    staging.on_bypass(12, 100)
    staging.on_bypass(13, 100)
    assert not staging.on_miss(11, CAPACITY)
    assert staging.share() == 0
    assert staging.on_miss(12, CAPACITY)


def test_a_page_larger_than_the_share_never_brings_it_back():
    staging = StagingShare(0.02)
    idle(staging, 100_000)
    assert not any(again(staging, range(9), size=201))


def test_only_the_last_1024_bypassed_pages_are_remembered():
    staging = StagingShare(0.5)
    again(staging, range(-10, 0), size=1)
    for page in range(1025):
        staging.on_bypass(page, 1)
    assert not staging.on_miss(0, CAPACITY)
    assert staging.on_miss(1, CAPACITY)


def test_a_policy_without_staging_never_stages():
    staging = StagingShare(0)
    staging.on_bypass(1, 0)
    assert not staging.on_miss(1, CAPACITY)
    idle(staging, 1000)
    assert staging.share() == 0
