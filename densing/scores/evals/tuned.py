"""``hf-tuned``: a model with an adapter merged into its weights, evaluated by lm-eval like any other.

lm-eval's own argument ``peft`` grows or cuts the table of embeddings where the tokenizer has another number of tokens
(SmolLM2's GGUF file: 49,152 rows, 49,153 tokens), and a row drawn at random would take part in every softmax. Here
nothing but the adapter changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lm_eval.api.registry import register_model

from densing.scores.evals.prefix import PrefixHFLM


@register_model("hf-tuned")
class TunedHFLM(PrefixHFLM):
    """A model with the adapter of a folder (argument ``adapter``).

    Examples
    --------
    >>> from lm_eval.api.registry import get_model
    >>> get_model("hf-tuned") is TunedHFLM
    True
    """

    _model: Any

    def __init__(self, *args: Any, adapter: str, **kwargs: Any) -> None:
        self._adapter = Path(adapter).expanduser()
        super().__init__(*args, **kwargs)

    def _create_model(self, pretrained: Any, **options: Any) -> None:
        """Load the model as ``hf`` does, and merge the adapter into it."""
        super()._create_model(pretrained, **options)
        self._model = merge(self._model, self._adapter)


def merge(model: Any, folder: Path) -> Any:
    """Return a model of transformers with an adapter's weights added to its own: as many, and as fast, as before.

    Raises
    ------
    ValueError
        When the adapter holds what is not a number.
    """
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(folder)).merge_and_unload(safe_merge=True)
