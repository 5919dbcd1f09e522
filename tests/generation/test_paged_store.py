"""Keys and values in blocks: what a view of them returns is what was appended."""

import pytest
import torch

from gpt.generation.paged_store import ContiguousView, GatheredView, PagedStore
from gpt.model.attention import Cache
from tiny import tiny_config

CONFIG = tiny_config(n_kv_head=2)  # 2 layers, 2 heads of keys and values, 8 wide
LAYER = 1


@pytest.fixture
def store() -> PagedStore:
    store = PagedStore(CONFIG, 8, 4, torch.float32, torch.device("cpu"))
    store.keys.fill_(torch.nan)  # what nobody has written must not be read
    store.values.fill_(torch.nan)
    return store


def append(view: Cache, x: torch.Tensor) -> torch.Tensor:
    """Append x (B, K, T, D) as keys and 2 x as values; return all keys."""
    keys, values = view.append(LAYER, x, 2 * x)
    assert torch.equal(values, 2 * keys)
    return keys


@pytest.mark.parametrize(
    ("table", "kind"), [([2, 3, 4], ContiguousView), ([6, 1, 5], GatheredView)]
)
def test_view_of_one_sequence_returns_all_positions(
    store: PagedStore, table: list[int], kind: type[Cache]
) -> None:
    x = torch.randn(1, 2, 9, 8)
    first = store.view([table], [0], 7)
    then = store.view([table], [7], 2)
    assert isinstance(first, kind)
    assert isinstance(then, kind)
    assert torch.equal(append(first, x[:, :, :7]), x[:, :, :7])
    assert torch.equal(append(then, x[:, :, 7:]), x)
    assert then.positions(2).tolist() == [7, 8]
    assert then.mask(2) is None


def test_view_of_several_sequences_hides_what_is_not_theirs(store: PagedStore) -> None:
    x = torch.randn(2, 2, 6, 8)
    long = [7, 0]
    short = [3]
    append(store.view([long], [0], 5), x[:1, :, :5])
    append(store.view([short], [0], 2), x[1:, :, :2])
    view = store.view([long, short], [5, 2], 1)
    keys = append(view, torch.stack((x[0, :, 5:], x[1, :, 2:3])))
    assert torch.equal(keys[0], x[0])
    assert torch.equal(keys[1, :, :3], x[1, :, :3])
    assert (keys[1, :, 3:] == 0).all()
    assert view.positions(1).tolist() == [[5], [2]]
    mask = view.mask(1)
    assert mask is not None
    assert mask[:, 0, 0].tolist() == [[True] * 6, [True] * 3 + [False] * 3]


def test_copied_block_is_a_block_of_its_own(store: PagedStore) -> None:
    x = torch.randn(1, 2, 4, 8)
    append(store.view([[2]], [0], 4), x)
    store.copy_blocks([(5, 2)])
    changed = append(store.view([[5]], [3], 1), -x[:, :, 3:])
    assert torch.equal(changed[:, :, :3], x[:, :, :3])
    assert torch.equal(append(store.view([[2]], [3], 1), x[:, :, 3:]), x)
