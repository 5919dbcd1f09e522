"""The model of this folder for transformers: `AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)`."""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel, StaticCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from .decoder import Decoder


class GlassGPTConfig(PretrainedConfig):
    """The fields of config.json; `num_hidden_layers` counts the layers of a cache, those of convolutions included."""

    model_type = "glassgpt"
    use_cache: bool = True
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_key_value_heads": "n_kv_head",
        "max_position_embeddings": "block_size",
        "tie_word_embeddings": "tie_weights",  # which all versions of transformers save, whatever its default is
    }


class GlassGPTForCausalLM(PreTrainedModel, GenerationMixin):
    """`Decoder` with the methods of transformers."""

    config_class = GlassGPTConfig
    base_model_prefix = "model"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"model.lm_head.weight": "model.wte.weight"}
    _supports_sdpa = True

    def __init__(self, config: GlassGPTConfig) -> None:
        super().__init__(config)
        self.model = Decoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.wte

    def get_output_embeddings(self) -> nn.Module:
        return self.model.lm_head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute logits, and the loss where there are labels; see `Decoder.forward`."""
        for name in ("inputs_embeds", "output_hidden_states", "output_attentions"):
            if not any(kwargs.get(name) is value for value in (None, False)):
                raise ValueError(f"this model has no {name}")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        if isinstance(past_key_values, StaticCache):
            raise ValueError("this model has no static cache; leave out cache_implementation")
        logits = self.model(input_ids, attention_mask, position_ids, past_key_values, logits_to_keep)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
