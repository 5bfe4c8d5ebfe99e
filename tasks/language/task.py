"""The language task: from a configuration to a model in training, and what is told and shown about it."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskzoo.registry import tasks

if TYPE_CHECKING:
    from maskzoo.tasks.language.data import LanguageData
    from maskzoo.tasks.language.module import LanguageModeling
    from maskzoo.tasks.training.audit import AuditCase
    from maskzoo.tasks.training.budget import Budget
    from maskzoo.tasks.training.config import RunConfig


@tasks.register("language")
class Language:
    """Predict the next token of text.

    Raises:
        ValueError: rows longer than the model was built for, and whatever the data or the model refuse.
    """

    def __init__(self, config: RunConfig, budget: Budget) -> None:
        if config.data.context > config.model.context:
            raise ValueError(
                f"data.context={config.data.context} is more than model.context={config.model.context}, "
                "the longest sequence of the model"
            )
        self.config, self.budget = config, budget

    @staticmethod
    def schemas() -> dict[str, type]:
        """The configuration classes of the keys `data` and `model`."""
        from maskzoo.tasks.language.data import DataConfig
        from maskzoo.transformer.transformer import TransformerConfig

        return {"data": DataConfig, "model": TransformerConfig}

    @cached_property
    def data(self) -> LanguageData:
        from maskzoo.tasks.language.data import LanguageData

        return LanguageData(self.config.data, seed=self.config.seed)

    @cached_property
    def module(self) -> LanguageModeling:
        from maskzoo.tasks.language.module import LanguageModeling
        from maskzoo.transformer.language_model import LanguageModel

        config = self.config
        model = LanguageModel(config.model, self.data.tokenizer.vocabulary, config.mask, config.bias)
        return LanguageModeling(
            model, config.optimizer, self.budget, config.trainer.accumulate, config.trainer.log_every
        )

    def description(self) -> dict[str, Any]:
        """What a checkpoint says about the model, so that it can be built again from the file alone."""
        return {
            "vocabulary": self.data.tokenizer.vocabulary,
            "mask": self.config.mask,
            "bias": self.config.bias,
            "model": dataclasses.asdict(self.config.model),
            "tokenizer": self.data.tokenizer.state(),
        }

    def summary(self) -> dict[str, str]:
        """Data, model and rule in one line each, by name."""
        known, model, data = self.data.summary(), self.module.model, self.config.data
        shape, heads = model.config, f"{model.config.heads} heads"
        if model.config.key_value_heads != model.config.heads:
            heads += f" ({model.config.key_value_heads} for keys and values)"
        parameters = sum(parameter.numel() for parameter in model.parameters())
        explained = dict(line.split(None, 1) for line in self._explained_plan().splitlines())
        tokens = data.batch_size * data.context * self.config.trainer.accumulate
        return {
            "data": f"{known['source']}, {data.batching}, {known['batches_per_epoch']:,} batches an epoch",
            "train": _sizes(known, "train"),
            "val": _sizes(known, "val"),
            "tokenizer": f"{data.tokenizer}, {known['vocabulary']:,} tokens",
            "model": f"{parameters:,} parameters: {shape.layers} layers, width {shape.width}, {heads}, "
            f"{shape.norm_position}-{shape.norm}, {shape.activation}, {shape.position} positions",
            "rule": explained["rule"],
            "visible": f"{explained['density']} (first batch)",
            "bias": explained["bias"],
            "kernel": explained["kernel"],
            "step": f"{tokens:,} tokens: {data.batch_size} rows × {data.context} tokens"
            + (f" × {self.config.trainer.accumulate} batches" if self.config.trainer.accumulate > 1 else ""),
        }

    def _explained_plan(self) -> str:
        return self.module.model.plan(self.data.train_batches(0)[0].at).explain()

    def audit_case(self) -> AuditCase:
        """The model as it is now, with rows of the first training batch."""
        from maskzoo.tasks.language.audit import language_case

        return language_case(self.module.model, self.data)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Take the tokenizer and the weights of a checkpoint of this task."""
        from maskzoo.tasks.language.data import LanguageData
        from maskzoo.tasks.language.tokenizers import from_state

        tokenizer = from_state(checkpoint["maskzoo"]["tokenizer"])
        self.data = LanguageData(self.config.data, self.config.seed, tokenizer)
        self.module.load_state_dict(checkpoint["state_dict"])

    def write_sample(self, path: Path) -> str:
        """Text that the model writes now, after `sample.prompt`; kept in `path` too."""
        from maskzoo.tasks.language.prompt import prompt_ids
        from maskzoo.transformer.generation import generate

        wanted, tokenizer = self.config.sample, self.data.tokenizer
        prompt = prompt_ids(wanted.prompt.encode(), tokenizer, self.config.data.batching)
        steps = generate(
            self.module.model,
            [prompt],
            max_new_tokens=wanted.tokens,
            temperature=wanted.temperature,
            top_k=wanted.top_k,
            seed=self.config.seed,
            stop=tokenizer.eos,
        )
        written = [step[0] for step in steps]
        text = tokenizer.decode([*prompt, *(token for token in written if token is not None)]).decode(errors="replace")
        path.write_text(text, encoding="utf-8")
        return text

    def draw_mask(self, path: Path) -> str:
        """Save the picture of the rule over one row; returns where, and a small one in characters."""
        from maskzoo.drawing import draw

        picture = draw(self.module.model.mask, length=min(256, self.config.data.context))
        picture.save(path)
        return f"{path}\n{picture.text(width=48)}"


def _sizes(known: dict[str, Any], split: str) -> str:
    documents = known[f"{split}_documents"]
    return (
        f"{documents:,} document{'' if documents == 1 else 's'}, {known[f'{split}_tokens']:,} tokens, "
        f"{known[f'{split}_bytes']:,} bytes"
    )
