from itertools import pairwise

import pytest

from shadeproxy.cluster.signed import Seals
from shadeproxy.core.errors import PeerError

SEALED = Seals("c", ["secret"]).seal("node", b"body")


def test_a_sealed_body_comes_back():
    assert Seals("c", ["secret"]).unseal("node", SEALED) == b"body"
    assert Seals("c").unseal("node", Seals("c").seal("node", b"")) == b""


@pytest.mark.parametrize(
    ("seals", "purpose", "sealed"),
    [
        (Seals("c", ["other"]), "node", SEALED),
        (Seals("another cluster", ["secret"]), "node", SEALED),
        (Seals("c"), "node", SEALED),
        (Seals("c", ["secret"]), "event k", SEALED),
        (Seals("c", ["secret"]), "node", SEALED[:-1] + b"x"),
        (Seals("c", ["secret"]), "node", SEALED[:20] + bytes([SEALED[20] ^ 1]) + SEALED[21:]),
        (Seals("c", ["secret"]), "node", SEALED[:10]),
        (Seals("c", ["secret"]), "node", b"\x02" + SEALED[1:]),
        (Seals("c", ["secret"]), "node", b""),
    ],
)
def test_any_other_secret_cluster_purpose_or_byte_is_refused(seals, purpose, sealed):
    with pytest.raises(PeerError) as raised:
        seals.unseal(purpose, sealed)
    assert "secret'" not in str(raised.value)


def test_the_purpose_cannot_be_moved_into_the_body():
    one, other = Seals("c", ["s"]).seal("ab", b"c"), Seals("c", ["s"]).seal("a", b"bc")
    assert one[1:33] != other[1:33]


def test_nodes_change_to_a_new_secret_one_after_the_other():
    """Each round changes one node after the other, so the nodes of two rounds must understand each other."""
    rounds = [Seals("c", secrets) for secrets in (["old"], ["old", "new"], ["new", "old"], ["new"])]
    for before, after in pairwise(rounds):
        assert after.unseal("node", before.seal("node", b"1")) == b"1"
        assert before.unseal("node", after.seal("node", b"2")) == b"2"
    for one, other in ((rounds[0], rounds[2]), (rounds[3], rounds[1])):
        with pytest.raises(PeerError, match=r"cluster\.secret"):  # So no round can be left out.
            one.unseal("node", other.seal("node", b"3"))
