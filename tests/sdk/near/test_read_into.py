"""Many samples without torch: into rows of an array, from few files, by several threads, and after a fork."""

import os
import struct
import threading

import numpy as np
import pytest

import shadeproxy_sdk as shade
from shadeproxy_sdk.batch_buffer import UNKNOWN, BatchBuffer, LengthGuess
from shadeproxy_sdk.segments import Segments


@pytest.mark.parametrize("kept", [0, 8, 16])
@pytest.mark.parametrize("offers", [True, False])
def test_rows_are_filled_in_order(client, near, even, kept, offers):
    manifest, bodies = even
    near.keep(*(manifest[i].key for i in range(kept)))
    if not offers:
        near.proxy.offers.clear()
    ids = np.array([3, 15, 3, 0, 7])
    out = np.zeros((5, 50), np.uint8)
    for _ in range(2):
        out[:] = 0
        client.read_into(manifest, ids, out)
        assert [bytes(row) for row in out] == [bodies[i] for i in ids]


def test_rows_of_more_samples_than_one_call_takes(client, near, even, monkeypatch):
    monkeypatch.setattr("shadeproxy_sdk.bulk.MOST_ITEMS", 3)
    manifest, bodies = even
    out = np.zeros((16, 50), np.uint8)
    client.read_into(manifest, range(16), out)
    assert [bytes(row) for row in out] == bodies


def test_an_answer_of_another_length_than_was_asked_for_is_no_sample(client, near, proxy):
    """A sample whose length differs from the length in the manifest is refused. This holds even if the sample
    fits into its row.
    """
    near.proxy.offers["locate"] = False
    near.in_order, near.chunk = True, 1 << 20
    proxy.put("train", **{f"a/{i}": bytes([i + 1]) * 30_000 for i in range(4)})
    entries = [shade.Entry("train", f"a/{i}", 0, 20_000 if i == 2 else 30_000) for i in range(4)]
    frame = struct.Struct("<IHBBQ")
    frames = (frame.pack(i, 200, 0, 0, 30_000) + bytes([i + 1]) * 30_000 for i in range(4))
    answer = b"".join(frames) + frame.pack(0xFFFFFFFF, 0, 0, 0, 4)
    near.mangle = lambda _: answer
    with pytest.raises(shade.ReadError, match="s3://train/a/2 has 20000 bytes, but the rows of out have"):
        client.read_into(shade.Manifest.from_entries("a", entries), range(4), np.zeros((4, 30_000), np.uint8))


@pytest.mark.parametrize("kept", [True, False])
def test_a_sample_of_another_length_is_an_error(client, near, even, kept):
    manifest, _ = even
    near.proxy.objects["train", "even/05"] = b"x" * 49
    if kept:
        near.keep_all()
    with pytest.raises(shade.ReadError, match="s3://train/even/05 has 49 bytes, but the rows of out have 50"):
        client.read_into(manifest, range(16), np.zeros((16, 50), np.uint8))


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.zeros((2, 5), np.uint8), r"uint8\[2, 5\]: make it uint8\[1, length"),
        (np.zeros(5, np.uint8), "make it uint8"),
        (np.zeros((1, 5), np.int8), r"int8\[1, 5\]: make it uint8"),
        (np.zeros((5, 1), np.uint8).T[:, ::2], "must be C-contiguous and writable"),
        (np.frombuffer(b"12345", np.uint8).reshape(1, 5), "must be C-contiguous and writable"),
    ],
)
def test_an_array_that_cannot_be_filled_says_why(client, manifest, out, text):
    with pytest.raises(shade.ConfigError, match=text):
        client.read_into(manifest, [0], out)


@pytest.mark.parametrize("ids", [[0, 40], [-1], [5, -40]])
def test_unknown_ids_read_nothing(client, near, manifest, ids):
    with pytest.raises(IndexError, match=r"sample -?\d+ of dataset .* which has 40"):
        client.read_many(manifest, ids)
    assert not near.batches


def test_threads_share_a_client(client, near, manifest):
    near.keep(*(key for _, key in list(near.proxy.objects)[::2]))
    wrong = []

    def read(seed):
        for _ in range(10):
            ids = np.random.default_rng(seed).integers(0, 40, 30).tolist()
            if client.read_many(manifest, ids) != [near.bodies[i] for i in ids]:
                wrong.append(ids)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not near.proxy.reads


def test_files_are_let_go_when_they_are_deleted_and_at_the_end(
    client, near, manifest, open_files, monkeypatch
):
    before = open_files()
    near.keep_all()
    client.read_many(manifest, range(40))
    assert open_files() == before + 2
    near.restart()
    monkeypatch.setattr("shadeproxy_sdk.segments._SWEEP_S", 0.0)
    near.keep("1/001")
    client.read_many(manifest, range(20))
    # The client has closed the file from which no sample was requested any more.
    assert open_files() == before + 1
    client.close()
    assert open_files() == before


# The threads of the fake proxy run in this process. From Python 3.12 on, a fork in a process with threads
# gives a warning.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_lets_go_of_its_parents_files(client, near, manifest, open_files):
    before = open_files()
    near.keep_all()
    client.read_many(manifest, range(40))
    child = os.fork()
    if not child:
        client.connections  # noqa: B018 (what the first use in a process does)
        os._exit(open_files() - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert open_files() == before + 2
    assert client.read_many(manifest, range(40)) == near.bodies


def test_open_files_are_bounded(tmp_path, open_files):
    before = open_files()
    segments = Segments(most_files=3)
    for number in range(10):
        (tmp_path / f"{number}.seg").write_bytes(bytes([number]))
    with segments:
        opened = [segments.open(str(tmp_path / f"{number}.seg")) for number in range(10)]
        assert [os.pread(descriptor, 1, 0) for descriptor in opened] == [bytes([n]) for n in range(10)]
    assert open_files() == before + 3
    segments.close()
    assert open_files() == before


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.seg")
    (tmp_path / "link.seg").symlink_to("/dev/zero")
    segments = Segments()
    for path in (tmp_path / "pipe.seg", tmp_path / "link.seg", tmp_path, "/dev/zero", tmp_path / "none"):
        assert segments.open(str(path)) is None


def test_guess_is_the_length_of_all():
    guess = LengthGuess()
    lengths = []
    for length in (5, 5, 6, 5, 5):
        guess.seen(length)
        lengths.append(guess.length)
    assert lengths == [5, 5, UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_sample_that_fits_no_slot_has_bytes_of_its_own():
    batch = BatchBuffer([7, 8, 7])
    batch.put(0, b"abc")
    memory = memoryview(bytearray(9))
    batch.lay([3, 2, 3], lambda _: memory)
    room = batch.room(1, 4)
    room[:] = b"long"
    batch.views[1] = room
    assert batch.missing() == []
    assert [bytes(data) for data in batch.finish()] == [b"abc", b"long", b"abc"]
    assert [batch.in_slot(i) for i in range(3)] == [True, False, True]
    assert bytes(memory) == b"abc\0\0abc\0"


def test_twins_without_a_slot_share_no_memory():
    batch = BatchBuffer([8, 8])
    batch.views[0] = batch.room(0, 2)
    first, second = batch.finish()
    first[:] = b"ab"
    assert bytes(second) == b"\0\0"
