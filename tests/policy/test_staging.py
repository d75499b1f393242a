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


def test_a_bypassed_page_asked_again_soon_brings_the_full_share_back():
    staging = StagingShare(0.02)
    idle(staging, 100_000)
    staging.on_bypass(1, 100)
    assert not staging.on_miss(2, CAPACITY)
    assert staging.share() == 0
    assert staging.on_miss(1, CAPACITY)
    assert staging.share() == 0.02


def test_soon_is_what_a_full_share_would_have_held():
    staging = StagingShare(0.02)
    idle(staging, 100_000)
    staging.on_bypass(1, 100)
    staging.on_bypass(2, 100)
    staging.on_bypass(3, 100)
    assert not staging.on_miss(1, CAPACITY)
    assert staging.share() == 0
    assert staging.on_miss(2, CAPACITY)


def test_a_page_larger_than_the_share_never_brings_it_back():
    staging = StagingShare(0.02)
    idle(staging, 100_000)
    staging.on_bypass(1, 201)
    assert not staging.on_miss(1, CAPACITY)


def test_only_the_last_1024_bypassed_pages_are_remembered():
    staging = StagingShare(1.0)
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
