"""Laws of every codec: what is sent and what is kept back add up, packets weigh what they say, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

torch = pytest.importorskip("torch")

from densing.core import InputError, UnknownNameError  # noqa: E402
from densing.efficiency.parallel.codecs.buckets import Bucket  # noqa: E402
from densing.efficiency.parallel.codecs.codec import Codec, Dense, Half, Int8, Reader, pack  # noqa: E402
from densing.efficiency.parallel.codecs.frequency import Frequencies, dct4  # noqa: E402
from densing.efficiency.parallel.codecs.low_rank import LowRank  # noqa: E402
from densing.efficiency.parallel.codecs.rows import Entries, RowThreshold  # noqa: E402
from densing.efficiency.parallel.codecs.sparse import Threshold, TopK  # noqa: E402
from densing.efficiency.simulation.sizes import (  # noqa: E402
    edge_shares,
    factors,
    gather_crossover,
    kept,
    sparse_bytes,
    sparse_share,
)

EXACT: dict[str, Callable[[], Codec]] = {
    "dense": Dense,
    "half": Half,
    "int8": Int8,
    "int8 in blocks": lambda: Int8(block=16),
    "topk": lambda: TopK(0.3),
    "topk of few": lambda: TopK(0.01),
    "threshold": lambda: Threshold(0.7),
    "threshold of all": lambda: Threshold(0.0),
    "threshold seldom": lambda: Threshold(0.9, refresh=3),
    "rows": lambda: RowThreshold(0.7),
    "rows whole": lambda: RowThreshold(0.0),
    "rows seldom": lambda: RowThreshold(0.9, refresh=3),
}
ALL = {
    **EXACT,
    "prefix": lambda: Frequencies(0.4),
    "coefficients": lambda: Frequencies(0.4, "magnitude"),
    "low rank": lambda: LowRank(1),
    "two factors": lambda: LowRank(2),
}
TENSORS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12),
    elements=st.floats(-1e4, 1e4, width=32) | st.just(0.0),
)


def there_and_back(codec: Codec, tensor: Any) -> Any:
    packet = codec.encode(tensor)
    data = pack([packet])
    assert len(data) == packet.bytes
    low, high = codec.bounds(tensor)
    assert low <= packet.bytes <= high
    reader = Reader(data)
    decoded = codec.decode(reader, tensor)
    assert reader.at == len(data)
    assert (decoded.shape, decoded.dtype) == (tensor.shape, tensor.dtype)
    return decoded


@pytest.mark.parametrize("name", EXACT)
@given(array=TENSORS)
def test_what_is_sent_and_what_is_kept_back_add_up_to_the_last_bit(name: str, array: Any) -> None:
    tensor = torch.from_numpy(np.array(array))
    decoded = there_and_back(EXACT[name](), tensor)
    assert torch.equal(decoded + (tensor - decoded), tensor)


@pytest.mark.parametrize("name", ALL)
@given(array=TENSORS, seed=st.integers(0, 9))
def test_all_packets_weigh_what_they_say_and_are_read_to_their_end(name: str, array: Any, seed: int) -> None:
    tensor = torch.from_numpy(np.array(array))
    codec = ALL[name]()
    for _ in range(2):
        there_and_back(codec, tensor)
    # Gaps between elements, and other types.
    there_and_back(ALL[name](), tensor.t() if tensor.dim() == 2 else tensor)
    there_and_back(ALL[name](), tensor.bfloat16())
    there_and_back(ALL[name](), tensor.double())


@pytest.mark.parametrize("name", ALL)
def test_a_codec_goes_on_from_a_state_in_mid_period(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(400, generator=generator) for _ in range(7)]
    codec, whole = ALL[name](), []
    for row in rows:
        whole.append(pack([codec.encode(row)]).tolist())
    first = ALL[name]()
    for row in rows[:4]:
        first.encode(row)
    second = ALL[name]()
    second.load_state_dict(first.state_dict())
    assert [pack([second.encode(row)]).tolist() for row in rows[4:]] == whole[4:]


@given(array=hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-5, 5, width=32)), eta=st.floats(0, 0.99))
def test_a_threshold_is_numpys_partition(array: Any, eta: float) -> None:
    codec = Threshold(eta)
    there_and_back(codec, torch.from_numpy(np.array(array)))
    held = len(array) - kept(len(array), 1 - eta)
    assert codec.threshold == (np.partition(np.abs(array), held)[held] if held else 0.0)


@given(array=hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(1, 5, width=32), unique=True))
def test_a_threshold_renewed_each_time_is_top_k(array: Any) -> None:
    tensor = torch.from_numpy(np.array(array))
    assert torch.equal(there_and_back(Threshold(0.75), tensor), there_and_back(TopK(0.25), tensor))


def test_of_equal_entries_all_are_sent_and_of_zeros_none() -> None:
    assert there_and_back(Threshold(0.9), torch.ones(50)).sum() == 50
    assert Threshold(0.9).encode(torch.zeros(50)).bytes == 4


def test_a_threshold_of_zeros_is_renewed_with_the_first_tensor_that_is_not() -> None:
    """Heads that begin at zero, LoRA and idle experts leave zeros first: later packets must not be dense."""
    codec, rng = Threshold(0.9, refresh=1000), torch.Generator().manual_seed(0)
    sent = [len(codec.encode(row).tensors[-1]) for row in (torch.zeros(500), *torch.randn(4, 500, generator=rng))]
    assert sent[:2] == [0, 50] and all(30 < count < 75 for count in sent[2:])
    assert codec.threshold > 0
    assert TopK(0.5).encode(torch.zeros(50)).bytes == 4


ROWS = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.integers(1, 40)), elements=st.floats(1, 5, width=32), unique=True
)


@given(array=ROWS, eta=st.floats(0, 0.95))
def test_rows_renewed_each_time_send_the_largest_of_every_row(array: Any, eta: float) -> None:
    width = array.shape[1]
    decoded = there_and_back(RowThreshold(eta), torch.from_numpy(np.array(array))).numpy()
    many = kept(width, 1 - eta)
    assert ((decoded != 0).sum(1) == many).all()
    for row, sent in zip(array, decoded, strict=True):
        assert set(sent[sent != 0]) == set(np.sort(row)[width - many :])


@given(array=ROWS, scale=st.sampled_from([0.125, 1.0, 64.0]))
def test_between_renewals_a_row_is_held_to_a_multiple_of_its_own_size(array: Any, scale: float) -> None:
    codec, tensor = RowThreshold(0.75, refresh=3), torch.from_numpy(np.array(array))
    codec.encode(tensor)
    largest = np.sort(array, axis=1)[:, array.shape[1] - kept(array.shape[1], 0.25)]
    size = np.sqrt(np.square(array.astype(float)).mean(1))
    assert codec.multiple == pytest.approx((largest / size).mean() if array.shape[1] > 1 else 0.0, rel=1e-5)
    # How large a row is as a whole does not matter.
    assert codec.drifts
    first = there_and_back(codec, tensor)
    assert torch.equal(there_and_back(codec, tensor * scale), first * scale)
    assert codec.count == 3


def test_of_rows_of_zeros_nothing_is_sent_and_no_threshold_is_made() -> None:
    codec = RowThreshold(0.5, refresh=2)
    assert codec.encode(torch.zeros(3, 4)).bytes == 4
    assert codec.count == 0
    mixed = torch.tensor([[0.0, 0.0], [3.0, -4.0]])
    assert there_and_back(codec, mixed).tolist() == [[0.0, 0.0], [0.0, -4.0]]


@given(array=TENSORS, data=st.data())
def test_values_at_known_places_need_no_indices(array: Any, data: Any) -> None:
    tensor = torch.from_numpy(np.array(array))
    count = tensor.numel()
    places = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=20)) if count else []
    codec = Entries(torch.tensor(sorted(places), dtype=torch.int64))
    decoded = there_and_back(codec, tensor)
    assert codec.encode(tensor).bytes == 4 * len(places)
    kept_back = torch.ones(count, dtype=torch.bool)
    kept_back[places] = False
    assert torch.equal(decoded.view(-1)[~kept_back], tensor.reshape(-1)[~kept_back])
    assert not decoded.view(-1)[kept_back].any()


@pytest.mark.parametrize("name", ["topk", "threshold", "rows", "rows seldom"])
def test_a_sparse_codec_says_where_its_entries_are_on_both_sides(name: str) -> None:
    tensor = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    sender, receiver = EXACT[name](), EXACT[name]()
    receiver.decode(Reader(pack([sender.encode(tensor)])), tensor)
    assert torch.equal(sender.where, receiver.where)  # type: ignore[attr-defined]


@given(array=hnp.arrays(np.float32, st.integers(1, 64), elements=st.floats(-5, 5, width=32)))
def test_cosine_transforms_are_the_sum_they_are_defined_by(array: Any) -> None:
    count = len(array)
    at = np.arange(count) + 0.5
    direct = np.sqrt(2 / count) * np.cos(np.pi / count * np.outer(at, at)) @ array.astype(float)
    ours = dct4(torch.from_numpy(np.array(array))).numpy()
    np.testing.assert_allclose(ours, direct, atol=1e-4)
    # Parseval, and an involution.
    assert np.square(ours).sum() == pytest.approx(np.square(array).sum(), rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(dct4(torch.from_numpy(ours.copy())).numpy(), array, atol=1e-4)


def test_sizes_are_those_of_packets() -> None:
    tensor = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    for share in (0.001, 0.01, 0.2):
        assert TopK(share).encode(tensor).bytes == sparse_bytes(100_000, kept(100_000, share))
        assert sparse_bytes(100_000, kept(100_000, share)) / 400_000 == pytest.approx(sparse_share(share), rel=0.01)


def test_99_percent_sparse_is_fifty_fold_and_a_hundred_ranks_undo_it() -> None:
    # Arithmetic of the issue: values and indices of four bytes each.
    assert 1 / sparse_share(0.01) == pytest.approx(50)
    assert 1 / sparse_share(0.005) == pytest.approx(100)
    assert gather_crossover(0.01) == pytest.approx(100)
    # With indices at 5.6 % it would be 18; a bit per element weighs less there.
    assert round(2 / (0.056 * 2)) == 18
    assert round(gather_crossover(0.056)) == 23


def test_adatopk_compresses_the_slowest_edge_most_and_leaves_what_would_gain_nothing() -> None:
    assert edge_shares([1.0, 0.5, 0.015, 0.0], 100) == [0.01, 0.02, 1.0, 1.0]
    assert edge_shares([0.0, 0.0], 100) == [1.0, 1.0]
    assert edge_shares([], 2) == []
    with pytest.raises(InputError, match="ratio of at least 1"):
        edge_shares([1.0], 0.5)


def test_factors_are_those_of_torchs_hook() -> None:
    assert factors((64, 176), 4) == 4 * 240
    assert factors((64,), 4) == 64
    assert factors((8, 8), 2) == 64
    assert factors((10, 2, 5), 1) == 20


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), "share=0"),
        (lambda: TopK(1.5), "share=1.5"),
        (lambda: Threshold(1.0), "eta=1.0"),
        (lambda: Threshold(0.5, 0), "refresh=0"),
        (lambda: Frequencies(0.0), "keep=0"),
        (lambda: RowThreshold(1.0), "eta=1.0"),
        (lambda: RowThreshold(0.5, 0), "refresh=0"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Codec], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_an_unknown_rule_and_a_packet_cut_short_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="rule"):
        Frequencies(0.5, "random")  # type: ignore[arg-type]
    tensor = torch.arange(100.0)
    data = pack([TopK(0.1).encode(tensor)])
    with pytest.raises(InputError, match="ends after"):
        TopK(0.1).decode(Reader(data[:-1]), tensor)
    with pytest.raises(InputError, match="tensors of the same shape"):
        TopK(0.1).decode(Reader(data), tensor[:5])


def codecs_of(kind: str, count: int) -> list[Codec]:
    make: dict[str, Callable[[], Codec]] = {
        "dense": Dense, "int8": Int8, "blocks": lambda: Int8(block=64), "top-k": lambda: TopK(0.01),
        "half": lambda: TopK(0.4), "threshold": lambda: Threshold(0.9, 3),
    }  # fmt: skip
    return [Dense() if number % 3 == 0 else make[kind]() for number in range(count)]


@pytest.mark.parametrize("kind", ["dense", "int8", "blocks", "top-k", "half", "threshold"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_bucket_of_all_ranks_adds_up_as_packet_after_packet_does(kind: str, ranks: int) -> None:
    """Masks and indices in one row, ranks with rows of other lengths, an empty tensor and one of zeros."""
    generator = torch.Generator().manual_seed(ranks)
    shapes = [(7,), (30, 11), (300,), (0,), (0,), (9, 9), (1,), (64,), (1000,)]
    lengths = [torch.Size(shape).numel() for shape in shapes]
    team = [(codecs_of(kind, len(shapes)), codecs_of(kind, len(shapes))) for _ in range(ranks)]
    for turn in range(4):
        rows, packets, expected = [], [], torch.zeros(sum(lengths))
        for rank, (mine, theirs) in enumerate(team):
            tensors = [torch.randn(shape, generator=generator) * (1 + rank) for shape in shapes]
            tensors[5][: rank + turn] = 0.0
            others = [tensor.clone() for tensor in tensors]
            rows.append(Bucket(mine, lengths).take(tensors))
            packets.append(pack([codec.take(tensor) for codec, tensor in zip(theirs, others, strict=True)]))
            assert all(torch.equal(one, other) for one, other in zip(tensors, others, strict=True))
            assert len(rows[-1]) == len(packets[-1])
            reader = Reader(packets[-1])
            parts = [codec.decode(reader, other) for codec, other in zip(theirs, others, strict=True)]
            expected.add_(torch.cat([part.flatten() for part in parts]))
        longest = max(map(len, rows))
        together = torch.stack([torch.nn.functional.pad(row, (0, longest - len(row)), value=255) for row in rows])
        found = Bucket(team[0][0], lengths).sum(together)
        assert torch.equal(found, expected) if ranks < 4 else torch.allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_a_bucket_takes_no_mixture_and_reads_no_row_that_is_too_short() -> None:
    with pytest.raises(InputError, match="codecs Int8, TopK: a bucket takes Dense with"):
        Bucket([Int8(), TopK(0.1)], [4, 4])
    with pytest.raises(InputError, match="codecs Half: a bucket"):
        Bucket([Half()], [4])
    bucket = Bucket([TopK(0.5)], [4])
    row = bucket.take([torch.tensor([1.0, 2.0, 3.0, 4.0])])
    with pytest.raises(InputError, match=f"a packet ends after {len(row) - 1} bytes, but {len(row)} were expected"):
        bucket.sum(row[None, :-1])
    row[0] = 9
    with pytest.raises(InputError, match="more entries than its tensor has elements"):
        bucket.sum(row[None])


def test_factors_of_a_matrix_become_its_best_ones_and_go_on_where_they_were() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(40, 30, generator=generator)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    best = float((matrix - left[:, :3] * values[:3] @ right[:3]).norm())
    codec = LowRank(3)
    misses = [float((matrix - there_and_back(codec, matrix)).norm()) for _ in range(60)]
    assert best - 1e-4 < misses[-1] < 1.002 * best < misses[0]
    assert codec.encode(matrix).bytes == 4 * 3 * (40 + 30)
    other = LowRank(3)
    other.load_state_dict(codec.state_dict())
    assert torch.equal(there_and_back(other, matrix), there_and_back(codec, matrix))
    exact = left[:, :3] * values[:3] @ right[:3]
    torch.testing.assert_close(there_and_back(LowRank(3), exact), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rank", [0, -1, 1.5, True])
def test_a_rank_that_is_none_is_refused(rank: Any) -> None:
    with pytest.raises(InputError, match="rank="):
        LowRank(rank)
