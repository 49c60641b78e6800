"""The Nexmark generator: the same events for everyone, from any position, in Nexmark's proportions."""

import json

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from penstock.connector.sink import load_factory
from penstock.connector.source import SourceContext, SourceSpec, SourceSplit
from penstock.core.clock import ManualClock
from penstock.core.errors import GraphError
from penstock_lab.nexmark import AUCTION_SCHEMA, BID_SCHEMA, PERSON_SCHEMA, NexmarkSource, events
from penstock_lab.nexmark.events import EventMaker, NexmarkPattern
from penstock_lab.nexmark.strings import Strings, salt

SCHEMAS = {"bid": BID_SCHEMA, "auction": AUCTION_SCHEMA, "person": PERSON_SCHEMA}


def frame(count, **settings):
    pattern = NexmarkSource(**settings).pattern()
    return pl.DataFrame(pl.from_arrow(pa.Table.from_batches(events(pattern, count), schema=pattern.schema)))


def open_reader(source, splits=None, clock=None):
    spec = msgspec.json.decode(json.dumps(msgspec.to_builtins(source.spec())), type=SourceSpec)
    factory = load_factory(spec.factory)
    factory.validate(spec)
    reader = factory.create_reader(spec, SourceContext(0, 1, "job", "uid", clock or ManualClock()))
    if splits is None:
        splits = factory.create_enumerator(spec, first_run=True).discover(frozenset())
    reader.add_splits(splits)
    return reader


def drain(reader, schema, max_rows=1000):
    found, finished = [], 0
    while finished < len(reader.snapshot()):
        result = reader.poll(max_rows)
        found += [batch.data for batch in result.batches]
        finished += len(result.finished)
    return pl.DataFrame(pl.from_arrow(pa.Table.from_batches(found, schema=schema)))


def test_of_fifty_events_one_is_a_person_three_are_auctions_the_rest_bids():
    assert [frame(10_000, kind=kind).height for kind in ("person", "auction", "bid")] == [200, 600, 9200]
    for count, expected in ((0, (0, 0, 0)), (1, (1, 0, 0)), (3, (1, 2, 0)), (57, (2, 6, 49))):
        assert tuple(frame(count, kind=kind, splits=3).height for kind in ("person", "auction", "bid")) == expected


@pytest.mark.parametrize("kind", ["bid", "auction", "person"])
def test_the_stream_is_the_same_whatever_the_splits_and_the_size_of_batches(kind):
    order = ["dateTime", *(["id"] if kind != "bid" else ["auction", "bidder", "price", "extra"])]
    one = frame(2_000, kind=kind, splits=1).sort(order)
    assert one.equals(frame(2_000, kind=kind, splits=7).sort(order))
    source = NexmarkSource(events=2_000, kind=kind, splits=3)
    read = drain(open_reader(source), SCHEMAS[kind], max_rows=100)
    assert one.equals(read.sort(order))


def test_columns_alone_are_the_same_as_among_all():
    whole = frame(1_000)
    for name in BID_SCHEMA.names:
        assert frame(1_000, columns=[name]).equals(whole.select(name))
    assert frame(1_000, columns=["price", "auction"]).columns == ["price", "auction"]


def test_a_replay_from_any_position_gives_exactly_the_rest():
    source = NexmarkSource(events=5_000, splits=2)
    reader = open_reader(source)
    before = [b.data for _ in range(3) for b in reader.poll(700).batches]
    splits = msgspec.json.decode(msgspec.json.encode(reader.snapshot()), type=tuple[SourceSplit, ...])
    after = drain(open_reader(source, splits), BID_SCHEMA, max_rows=333)
    both = pl.concat([pl.DataFrame(pl.from_arrow(pa.Table.from_batches(before))), after])
    order = BID_SCHEMA.names
    assert both.sort(order).equals(frame(5_000, splits=2).sort(order))


def test_half_of_the_bids_are_for_the_hot_auction_and_three_quarters_by_the_hot_bidder():
    bids = frame(500_000, splits=1, columns=["auction", "bidder", "price", "dateTime"])
    epoch = pl.Series(np.arange(bids.height) // 46)
    last = epoch * 3 + 2
    hot_auction = last // 100 * 100 + 1000
    assert (bids["auction"] == hot_auction).mean() == pytest.approx(0.5 + 0.5 / 110, abs=0.005)
    assert (bids["bidder"] == epoch // 100 * 100 + 1001).mean() == pytest.approx(0.75, abs=0.005)
    cold = bids.filter(bids["auction"] != hot_auction)["auction"] - 1000
    lag = last.filter(bids["auction"] != hot_auction) - cold
    assert lag.min() == -10
    assert lag.max() == 100
    assert bids["bidder"].max() <= epoch.max() + 1010
    logs = (bids["price"] / 100).log(10)
    assert logs.mean() == pytest.approx(3, abs=0.01)
    assert bids["price"].min() >= 100
    assert bids["price"].max() <= 100_000_000
    assert logs.std() == pytest.approx(6 / 12**0.5, abs=0.01)


def test_event_time_follows_number_and_rate_in_milliseconds():
    bids = frame(100_000, splits=1, rate=1_000, columns=["dateTime"])["dateTime"]
    micros = bids.cast(pl.Int64) - 1_700_000_000_000_000
    numbers = np.arange(bids.len()) // 46 * 50 + 4 + np.arange(bids.len()) % 46
    assert micros.to_list() == (numbers * 1000).tolist()


@pytest.mark.parametrize("kind", ["bid", "auction", "person"])
@pytest.mark.parametrize(("splits", "start"), [(1, 0), (3, 45), (2, 46 * 10**6 + 1)])
def test_views_are_of_the_same_strings_as_copies(kind, splits, start):
    """Short ones stand in their view (names, most item names), long ones in the pool."""
    copied = EventMaker(NexmarkPattern(kind=kind, splits=splits, seed=3)).batch(splits - 1, start, 500)
    pattern = NexmarkPattern(kind=kind, splits=splits, seed=3, text="views")
    seen = EventMaker(pattern).batch(splits - 1, start, 500)
    assert seen.schema == pattern.schema
    for field, column in zip(copied.schema, seen.columns, strict=True):
        column.validate(full=True)
        assert column.type == (pa.string_view() if field.type == pa.string() else field.type)
        assert column.cast(field.type).equals(copied.column(field.name)), field.name


@pytest.mark.parametrize("rate", [1, 7, 999, 1_000, 1_024, 100_000, 10**9])
def test_event_time_is_the_division_whatever_the_rate_and_where_a_batch_begins(rate):
    maker = EventMaker(NexmarkPattern(rate=rate, splits=3, columns=("dateTime",)))
    for split, start in ((0, 0), (2, 45), (1, 10_000_001)):
        found = maker.batch(split, start, 300).column(0).cast(pa.int64()).to_pylist()
        rows = [divmod(start + row, 46) for row in range(300)]
        numbers = [(epoch * 3 + split) * 50 + 4 + inside for epoch, inside in rows]
        assert found == [1_700_000_000_000_000 + number * 1000 // rate * 1000 for number in numbers]


def draw(number, field):
    """The draw of a field, in Python integers: its low half and its high half."""
    mask = (1 << 64) - 1
    mixed = (number + salt(5, field)) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    mixed ^= mixed >> 31
    return mixed & 0xFFFFFFFF, mixed >> 32


def test_numbers_are_what_the_draws_say():
    """Bit by bit: every implementation of the stream repeats these."""
    settings = {"hot_auction_ratio": 3, "active_people": 70}
    bids = frame(10_000, splits=1, seed=5, columns=["auction", "bidder", "price"], **settings)
    for row, (auction, bidder, price) in enumerate(bids.iter_rows()):
        epoch, inside = divmod(row, 46)
        number, last = epoch * 50 + 4 + inside, epoch * 3 + 2
        low, high = draw(number, "auction")
        least = max(last - 100, 0)
        assert auction == 1000 + (last // 100 * 100 if low * 3 >> 32 else least + (high * (last - least + 11) >> 32))
        low, high = draw(number, "bidder")
        near = min(epoch + 1, 70)
        assert bidder == 1000 + (
            epoch // 100 * 100 + 1 if low * 4 >> 32 else epoch + 1 - near + (high * (near + 10) >> 32)
        )
        low, high = draw(number, "price")
        even = (((high << 32) + low) >> 12) * 4096
        curve = [100.0 * 10.0 ** (6.0 * ((even >> 52) + step) / 4096) for step in (0, 1)]
        exact = curve[0] + (curve[1] - curve[0]) * (even & ((1 << 52) - 1)) / 2.0**52
        assert abs(price - exact) <= 0.5001


def test_strings_are_what_the_draws_say():
    """Bit by bit, too."""
    strings = Strings(5, "copied")
    pool = strings._letters.to_pybytes()[: 1 << 20].decode()
    bids = frame(5_000, splits=1, seed=5)
    for row, (channel, url, extra) in enumerate(bids.select("channel", "url", "extra").iter_rows()):
        number = row // 46 * 50 + 4 + row % 46
        low, high = draw(number, "extra")
        size = 54 + (low * 28 >> 32)
        first = high * ((1 << 20) - size) >> 32
        assert extra == pool[first : first + size]
        low, high = draw(number, "channel")
        place = high * 4 >> 32 if low & 1 else 4 + (high * 10_000 >> 32)
        assert (channel, url) == strings._channels[place]
    assert (
        strings._channels[3][1] == f"https://www.nexmark.com/{pool[45:48]}/{pool[50:54]}/{pool[55:60]}/item.htm?query=1"
    )


def test_strings_have_the_sizes_and_shares_of_nexmark():
    bids = frame(100_000, splits=1, columns=["channel", "url", "extra"])
    sizes = bids["extra"].str.len_bytes()
    assert sizes.min() == 54
    assert sizes.max() == 81
    assert sizes.mean() == pytest.approx(67.5, abs=0.2)
    assert bids["extra"].n_unique() > 90_000
    hot = bids["channel"].is_in(["Google", "Facebook", "Baidu", "Apple"])
    assert hot.mean() == pytest.approx(0.5, abs=0.01)
    assert 9_800 < bids["channel"].n_unique() <= 10_004
    assert bids.group_by("channel").agg(pl.col("url").n_unique())["url"].max() == 1
    assert bids["url"].str.contains("channel_id=").mean() == pytest.approx(0.45, abs=0.01)
    assert bids["url"].str.starts_with("https://www.nexmark.com/").all()


def test_auctions_and_persons_refer_to_each_other():
    people, auctions = frame(50_000, kind="person", splits=2), frame(50_000, kind="auction", splits=2)
    assert sorted(people["id"]) == list(range(1000, 2000))
    assert sorted(auctions["id"]) == list(range(1000, 4000))
    assert auctions["seller"].is_between(1000, 2009).all()
    assert (auctions["expires"] > auctions["dateTime"]).all()
    assert (auctions["reserve"] > auctions["initialBid"]).all()
    assert auctions["category"].is_between(10, 14).all()
    assert people["emailAddress"].str.contains(r"^\w+@\w+\.com$").all()
    assert people["creditCard"].str.contains(r"^\d{4} \d{4} \d{4} \d{4}$").all()


def test_what_memory_held_before_is_in_no_string():
    """Buffers have room behind what is written, and memory of earlier batches is used for them."""
    for _ in range(20):
        used = [pa.allocate_buffer(size) for size in (1 << 20, (1 << 20) + 256)]
        for buffer in used:
            np.frombuffer(buffer, np.uint8)[:] = 0xC0
        del used, buffer
    strings = Strings(1, "copied")
    assert strings._channels == Strings(1, "copied")._channels
    assert strings._person_values("emailAddress")


def test_a_rate_limit_counts_the_events_of_the_whole_stream():
    clock = ManualClock()
    reader = open_reader(NexmarkSource(splits=1, events_per_second=1_000), clock=clock)
    assert reader.poll(10_000).batches == ()
    clock.advance(500)
    assert [b.data.num_rows for b in reader.poll(10_000).batches] == [460]
    clock.advance(500)
    assert not reader.poll(100).drained
    result = reader.poll(10_000)
    assert (result.batches[0].data.num_rows, result.drained) == (360, True)
    assert reader.poll(10_000).caught_up == ("nexmark-0",)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"kind": "bids"}, "there is no kind 'bids'"),
        ({"columns": ["bid"]}, "column 'bid' is unknown"),
        ({"columns": ["price", "price"]}, "column 'price' is given twice"),
        ({"splits": 0}, "splits must be at least 1"),
        ({"events": -1}, "events must not be -1"),
        ({"text": "copies"}, "text is 'copies'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, match):
    with pytest.raises(GraphError, match=match):
        NexmarkSource(**settings).spec()
