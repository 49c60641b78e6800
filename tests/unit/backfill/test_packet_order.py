"""Packets come in order whether memory holds them or not, and their file is gone afterwards."""

import random
from operator import attrgetter

import pytest

from penstock.backfill.exchange import Packet
from penstock.backfill.packet_order import in_order


def drawn(count):
    rand = random.Random(count)
    return [
        Packet(
            3, rand.randrange(-5, 5), rand.randrange(2), rand.randrange(3), number, rand.randbytes(rand.randrange(90))
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("most_bytes", [1, 1_000, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_packets_come_in_the_order_of_their_places(most_bytes, count, tmp_path):
    packets = drawn(count)
    found = list(in_order(iter(packets), most_bytes, str(tmp_path)))
    assert found == sorted(packets, key=attrgetter("place"))
    assert list(tmp_path.iterdir()) == []


def test_beyond_the_bound_the_data_is_in_the_folder(tmp_path):
    packets = drawn(200)
    assert len(list(in_order(packets, 1 << 20, str(tmp_path / "none")))) == 200
    with pytest.raises(FileNotFoundError, match="none"):
        list(in_order(packets, 1_000, str(tmp_path / "none")))
