import pytest
import torch

from gpt.accounting.allocations import AllocationMode
from gpt.inspection.tracing.activation_cache import run_with_cache
from gpt.inspection.tracing.edits import zero
from gpt.inspection.views.lens import logit_lens
from gpt.model import GPT
from gpt.system.errors import InputError
from inspection.variants import VARIANTS, every_variant, some_ids
from tiny import sharp_model, tiny_config


@every_variant
@torch.no_grad()
def test_row_i_is_the_output_of_a_model_of_i_blocks(variant: dict[str, object]) -> None:
    model, idx = sharp_model(**variant), some_ids()
    with torch.enable_grad():
        lens = logit_lens(model, idx)
    assert (lens.shape, lens.dtype, lens.requires_grad) == ((3, 2, 7, 23), torch.float32, False)
    shorter = GPT(tiny_config(**{"tie_weights": False, **variant, "n_layer": 1})).eval()
    shorter.load_state_dict({name: w for name, w in model.state_dict().items() if not name.startswith("h.1.")})
    torch.testing.assert_close(lens[1], shorter(idx), rtol=0, atol=1e-5)
    torch.testing.assert_close(lens[2], model(idx), rtol=0, atol=1e-6)


def test_edits_reach_the_rows_after_them() -> None:
    model, idx = sharp_model(**VARIANTS["llama"]), some_ids()
    plain, edited = logit_lens(model, idx), logit_lens(model, idx, {"blocks.1.attn.hook_z": zero()})
    assert torch.equal(plain[:2], edited[:2])
    assert not torch.allclose(plain[2], edited[2], atol=1e-2)


def test_the_memory_limit_is_kept_before_anything_runs() -> None:
    model, calls = sharp_model(n_embd=4, n_head=2), []  # so that the streams are smaller than the logits
    model.wte.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(InputError, match="takes 3,864 bytes, more than the limit of 3,863"):
        logit_lens(model, some_ids(), memory_limit=3863)
    assert not calls
    assert logit_lens(model, some_ids(), memory_limit=3864).nbytes == 3864


def test_the_last_row_is_what_the_edited_model_says() -> None:
    model, idx = sharp_model(), some_ids()
    for name in ("blocks.1.hook_resid_post", "blocks.0.hook_mlp_out"):
        edits = {name: zero()}
        assert torch.equal(logit_lens(model, idx, edits)[-1], run_with_cache(model, idx, [], edits)[0])


@pytest.mark.parametrize("name", ["ln_final.hook_normalized", "logits", "ln_final.*ed"])
def test_edits_after_the_last_stream_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"a lens reads the streams, and (ln_final|logits).* comes later"):
        logit_lens(sharp_model(), some_ids(), {name: zero()})


def test_the_rows_are_made_one_at_a_time() -> None:
    """The lens itself, and beside it never a second one."""
    model, idx = sharp_model(n_layer=8, n_embd=8, n_head=1, vocab_size=500), torch.zeros(4, 16, dtype=torch.long)
    with AllocationMode() as allocations:
        lens = logit_lens(model, idx)
    assert allocations.peak < 1.5 * lens.nbytes


def test_a_head_that_the_lens_does_not_apply_is_noticed() -> None:
    class Doubled(GPT):
        def forward(self, *args: object, **options: object) -> torch.Tensor:
            return 2 * super().forward(*args, **options)  # type: ignore[arg-type]

    model = sharp_model()
    model.__class__ = Doubled
    with pytest.raises(InputError, match=r"^a logit lens cannot be shown: .* than lm_head\(ln_f\(x\)\)"):
        logit_lens(model, torch.arange(9).unsqueeze(0))
