from shadeproxy.policy.staging import StagingShare

CAPACITY = 10_000


class Reads:
    """A share under reads that are numbered as they come."""

    def __init__(self, full_share=0.02):
        self.staging = StagingShare(full_share)
        self.tick = 0

    @property
    def share(self):
        return self.staging.share()

    def miss(self, page, size=10):
        """A read of a page that finds no room; whether the share would have held it."""
        self.tick += 1
        held = self.staging.on_miss(page, CAPACITY, self.tick)
        self.staging.on_crowded(size, CAPACITY)
        return held

    def pass_by(self, page, size=10):
        self.staging.on_bypass(page, size)

    def hits(self, count):
        self.tick += count
        self.staging.on_staged_hit(count)

    def idle(self, pages):
        """Pages that are never read again; of them nothing is remembered."""
        for page in range(pages):
            self.miss(-1 - page)

    def again(self, pages, size=10):
        """Pages that are passed by and missed at once; how large the share was after each."""
        shares = []
        for page in pages:
            self.miss(page, size)
            self.pass_by(page, size)
            self.miss(page, size)
            shares.append(self.share)
        return shares


def test_a_share_that_saves_nothing_halves_each_time_it_is_turned_over_and_ends_at_zero():
    reads = Reads()
    reads.idle(4 * 20 - 1)
    assert reads.share == 0.02
    reads.idle(1)
    assert reads.share == 0.01
    reads.idle(4 * 10)
    assert reads.share == 0.005
    reads.idle(4 * 10)
    assert reads.share == 0


def test_it_stays_as_long_as_it_saves_more_than_its_places_had_to_bring():
    """A fiftieth of the places has a fiftieth of the reads at most."""
    reads = Reads()
    for _ in range(10):
        reads.hits(2)
        reads.idle(80)
    assert reads.share == 0.02
    reads.hits(1)
    reads.idle(80)
    assert reads.share == 0.01


def test_several_pages_asked_again_soon_bring_the_full_share_back():
    reads = Reads()
    reads.idle(1000)
    # Twice the root of the 20 pages that it holds: 9.
    shares = reads.again(range(9))
    assert shares == [0] * 8 + [0.02]


def test_what_happens_by_chance_now_and_then_does_not():
    """Between two shuffled epochs a few pages are read twice in quick succession."""
    reads = Reads()
    reads.idle(1000)
    for round_ in range(50):
        assert reads.again([round_]) == [0]
        reads.idle(60)


def test_it_grows_to_the_smallest_step_that_would_have_held_what_is_missed():
    reads = Reads()
    reads.idle(1000)
    rounds = 0
    while not reads.share:
        # Thirty readers in turn, of pages of 10 bytes: 3 % of the capacity.
        for _ in range(2):
            for reader in range(30):
                reads.miss(100 * rounds + reader)
                reads.pass_by(100 * rounds + reader)
        rounds += 1
    assert reads.share == 0.04
    assert rounds == 1


def test_what_lay_in_the_share_counts_for_a_page_that_left_it():
    """Forty readers in turn with a share for twenty of their pages."""
    reads = Reads()
    for page in range(40):
        reads.miss(page)
        if page >= 20:
            reads.staging.on_bypass(page - 20, 10, held_bytes=200)
    assert reads.share == 0.02
    for page in range(40):
        reads.miss(page)
        reads.staging.on_bypass(20 + page, 10, held_bytes=200)
    assert reads.share == 0.08  # 41 pages: its own place is needed while the newest comes


def test_a_share_that_grew_and_saves_nothing_goes_back_at_once_and_is_doubted():
    reads = Reads()
    reads.idle(1000)
    assert reads.again(range(9))[-1] == 0.02
    reads.idle(4 * 20)
    assert reads.share == 0
    shares = reads.again(range(1000, 1019))
    assert shares.index(0.02) > 12
    reads.hits(10)
    reads.idle(4 * 20)
    assert reads.share == 0.02, "it paid"
    reads.idle(4 * 20)
    assert reads.share == 0.01, "and shrinks as any other"


def test_only_reads_within_the_largest_share_are_evidence():
    reads = Reads()
    reads.idle(1000)
    assert not any(reads.again(range(50), size=6401))


def test_whether_it_would_have_held_a_page_is_told_of_the_share_as_it_is():
    reads = Reads()
    reads.miss(1)
    reads.pass_by(1, 100)
    reads.pass_by(2, 100)
    assert reads.miss(1)
    assert reads.share == 0.02
    reads.pass_by(3, 100)
    reads.pass_by(4, 101)
    assert not reads.miss(3)
    assert not reads.miss(5)


def test_only_the_last_1024_pages_are_remembered():
    reads = Reads(0.5)
    for page in range(1025):
        reads.pass_by(page, 1)
    assert not reads.miss(0)
    assert reads.miss(1)


def test_a_policy_without_staging_never_stages():
    reads = Reads(0)
    assert not any(reads.again(range(100)))
