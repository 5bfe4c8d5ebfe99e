"""`Subject`: any torch model made uniform: one watched input, and outputs [B, Tq, F]."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from maskzoo.positions import Positions

SEED = 20_240_229
"""Of every run, so that dropout and the like draw the same."""


@dataclass(frozen=True)
class Setting:
    """How a model runs.

    Attributes:
        training: training mode.
        dtype: number type that parameters and inputs are cast to; None leaves them.
        autocast: whether operations are cast to bfloat16 as they come.
        noise: how much random numbers are added to the parameters that are trained, as a share of their size: what
            starts at zero does not stay there.
    """

    training: bool = False
    dtype: torch.dtype | None = None
    autocast: bool = False
    noise: float = 0.0


class Subject:
    """A copy of a model with inputs, of which one is watched. The model, and all random states, stay as they are.

    Args:
        model: a module or function.
        inputs: what it is called with: a tensor, a tuple (by position) or a dictionary (by name).
        watch: which of them is watched; by default the first tensor of numbers with at least two axes.
        output: takes the tensor [B, Tq, …] out of what the model returns; by default the tensor itself, `.logits`,
            `.last_hidden_state`, "logits" of a dictionary, or the first of a tuple.
        axis: of positions, in the watched input and the output; or a pair of them, the second None for outputs of
            whole rows. Rows of the batch are axis 0.
        setting: how it runs.

    Raises:
        ValueError: there is nothing to watch, or the output has no such axis.
    """

    def __init__(
        self,
        model: nn.Module | Callable[..., Any],
        inputs: Any,
        *,
        watch: int | str | None = None,
        output: Callable[[Any], Tensor] | None = None,
        axis: int | tuple[int, int | None] = 1,
        setting: Setting | None = None,
    ) -> None:
        self._model, self._output, self.setting = model, output, setting or Setting()
        self.input_axis, self._output_axis = axis if isinstance(axis, tuple) else (axis, axis)
        self.module = _copied(model, self.setting) if isinstance(model, nn.Module) else None
        self._counter = [0]
        self._take(inputs, watch)

    def _take(self, inputs: Any, watch: int | str | None) -> None:
        self.inputs = _mapped(inputs, self._cast)
        self._watch = _watched(self.inputs) if watch is None and not isinstance(inputs, Tensor) else watch
        watched = self.inputs if isinstance(self.inputs, Tensor) else self.inputs[self._watch]
        if not isinstance(watched, Tensor) or watched.ndim <= self.input_axis:
            raise ValueError(f"the watched input must be a tensor with an axis {self.input_axis} of positions")
        self.watched: Tensor = watched
        self._shape: tuple[int, int] | None = None
        self._table: str | None = None
        self._looked = False

    def _cast(self, value: Tensor) -> Tensor:
        dtype = self.setting.dtype
        return value.to(dtype) if dtype is not None and self.module is not None and value.is_floating_point() else value

    @property
    def batch(self) -> int:
        """B."""
        return self.watched.shape[0]

    @property
    def keys(self) -> int:
        """Tk, positions of the watched input."""
        return self.watched.shape[self.input_axis]

    @property
    def queries(self) -> int:
        """Tq, positions of the output."""
        if self._shape is None:
            with torch.no_grad():
                self.run()
        assert self._shape is not None
        return self._shape[1]

    @property
    def passes(self) -> int:
        """How many times the model ran, with all subjects made from this one."""
        return self._counter[0]

    def count_pass(self) -> None:
        """Count a run, forward or backward."""
        self._counter[0] += 1

    def run(self, watched: Tensor | None = None) -> Tensor:
        """The outputs, [B, Tq, F], with other values of the watched input if given."""
        self.count_pass()
        inputs = _mapped(self._with(self.watched if watched is None else watched), _own)
        module = self.module
        call = self._model if module is None else module
        with _same_random_numbers(self.watched.device), _same_buffers(module), self._autocast():
            if isinstance(inputs, Tensor):
                returned = call(inputs)
            elif isinstance(inputs, Mapping):
                returned = call(**inputs)
            else:
                returned = call(*inputs)
        found = self._positions_first(_tensor_of(returned) if self._output is None else self._output(returned))
        self._shape = found.shape[0], found.shape[1]
        return found

    def with_inputs(self, inputs: Any) -> Subject:
        """The same model with other inputs."""
        other = copy.copy(self)
        other._take(inputs, self._watch)
        if self._looked and other.watched.dtype == self.watched.dtype:
            other._table, other._looked = self._table, True
        return other

    def in_setting(self, **changes: Any) -> Subject:
        """The same model and inputs in another setting."""
        axis = self.input_axis, self._output_axis
        setting = replace(self.setting, **changes)
        other = Subject(self._model, self.inputs, watch=self._watch, output=self._output, axis=axis, setting=setting)
        other._counter, other._table, other._looked = self._counter, self._table, self._looked
        return other

    def rows(self, index: Tensor) -> Subject:
        """Some rows of the batch alone."""

        def chosen(value: Any) -> Any:
            if isinstance(value, Positions):
                return value if value.batch == 1 else value.select(index)
            if isinstance(value, Tensor) and value.ndim and value.shape[0] == self.batch:
                return value[index.to(value.device)]
            return value

        return self.with_inputs(_mapped(self.inputs, chosen, everything=True))

    def shortened(self, length: int) -> Subject:
        """Only the first positions of every input that has the watched one's positions on the same axis."""
        axis, keys = self.input_axis, self.keys

        def cut(value: Any) -> Any:
            if isinstance(value, Positions):
                return value.narrow(0, length) if value.length == keys else value
            if isinstance(value, Tensor) and value.ndim > axis and value.shape[axis] == keys:
                return value.narrow(axis, 0, length)
            return value

        return self.with_inputs(_mapped(self.inputs, cut, everything=True))

    def substitutes(self, count: int, generator: torch.Generator) -> Tensor:
        """Other values for the watched input, [count, *shape]: ids that the embedding has, or numbers of its own mean
        and spread. Whole numbers and truths all differ from those that are there.
        """
        watched, shape = self.watched, (count, *self.watched.shape)
        if watched.dtype == torch.bool:
            return (~watched).expand(shape).clone()
        if watched.is_floating_point():
            known = watched.detach()[watched.detach().isfinite()].double()
            spread = float(known.std()) if known.numel() > 1 else 0.0
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64).to(watched.device)
            mean = float(known.mean()) if known.numel() else 0.0
            return (drawn * (spread or 1.0) + mean).to(watched.dtype)
        table = self.embedding
        values = torch.unique(watched) if table is None else torch.arange(table.num_embeddings, device=watched.device)
        if len(values) == 1:
            values = torch.cat([values, values + 1])
        step = torch.randint(1, len(values), shape, generator=generator).to(watched.device)
        place = torch.searchsorted(values, watched.to(values.dtype).contiguous())
        return values[(place + step) % len(values)].to(watched.dtype)

    @property
    def embedding(self) -> nn.Embedding | None:
        """The module that reads the watched input as ids; None where none does."""
        if self.module is None:
            return None
        tables = {name: module for name, module in self.module.named_modules() if isinstance(module, nn.Embedding)}
        if not self._looked and not self.watched.is_floating_point():

            def look(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
                def hook(_: nn.Module, given: tuple[Any, ...]) -> None:
                    if self._table is None and given and _same_ids(given[0], self.watched):
                        self._table = name

                return hook

            hooks = [table.register_forward_pre_hook(look(name)) for name, table in tables.items()]
            try:
                with torch.no_grad():
                    self.run()
            finally:
                for hook in hooks:
                    hook.remove()
        self._looked = True
        return None if self._table is None else tables[self._table]

    def differentiable(self) -> tuple[Tensor, Tensor] | None:
        """Outputs, and what gradients of the watched input are taken at: itself, or its rows of the embedding; None
        where there is neither.
        """
        if self.watched.is_floating_point():
            leaf = self.watched.detach().clone().requires_grad_()
            with torch.enable_grad():
                return self.run(leaf), leaf
        table = self.embedding
        if table is None:
            return None
        leaves: list[Tensor] = []

        def instead(_: nn.Module, given: tuple[Any, ...], found: Tensor) -> Tensor | None:
            if leaves or not _same_ids(given[0], self.watched):
                return None
            leaves.append(found.detach().requires_grad_())
            return leaves[0] * 1.0  # in-place changes of a leaf are not allowed

        hook = table.register_forward_hook(instead)
        try:
            with torch.enable_grad():
                outputs = self.run()
        finally:
            hook.remove()
        return (outputs, leaves[0]) if leaves else None

    def _with(self, watched: Tensor) -> Any:
        if isinstance(self.inputs, Tensor):
            return watched
        if isinstance(self.inputs, Mapping):
            return {**self.inputs, self._watch: watched}
        return tuple(watched if place == self._watch else value for place, value in enumerate(self.inputs))

    def _autocast(self) -> Any:
        if not self.setting.autocast:
            return nullcontext()
        return torch.autocast(self.watched.device.type, dtype=torch.bfloat16)

    def _positions_first(self, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise ValueError(f"the model returned no tensor but {type(output).__name__}; give output= to take one out")
        axis = self._output_axis
        if output.ndim == 0 or output.shape[0] != self.batch:
            raise ValueError(
                f"the output has shape {list(output.shape)}, but its axis 0 must be the {self.batch} rows of the batch"
            )
        if axis is None:
            output = output[:, None]
        elif output.ndim <= axis:
            raise ValueError(
                f"the output has shape {list(output.shape)} and no axis {axis} of positions; for one output a row give "
                f"axis=({self.input_axis}, None)"
            )
        else:
            output = output.movedim(axis, 1)
        output = torch.view_as_real(output) if output.is_complex() else output
        return output[..., None] if output.ndim == 2 else output.flatten(2)


def _copied(model: nn.Module, setting: Setting) -> nn.Module:
    try:
        module = copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"the audit works on a copy, and the model cannot be copied ({error}); give a function that calls it"
        ) from error
    module.train(setting.training)
    if setting.dtype is not None:
        module.to(setting.dtype)
    if setting.noise:
        generator = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad and parameter.is_floating_point():
                    size = float(parameter.double().square().mean().sqrt()) if parameter.numel() else 0.0
                    drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter.add_((drawn * setting.noise * (size + 0.2)).to(parameter))
    return module


def _mapped(inputs: Any, change: Callable[[Any], Any], everything: bool = False) -> Any:
    """Inputs with every tensor (or everything) in them changed."""

    def own(value: Any) -> Any:
        return change(value) if everything or isinstance(value, Tensor) else value

    if isinstance(inputs, Tensor):
        return own(inputs)
    if isinstance(inputs, Mapping):
        return {name: own(value) for name, value in inputs.items()}
    if isinstance(inputs, (tuple, list)):
        return tuple(own(value) for value in inputs)
    raise ValueError(f"inputs must be a tensor, a tuple or a dictionary, got {type(inputs).__name__}")


def _own(value: Tensor) -> Tensor:
    """A copy that the model may write into; a leaf that gradients are taken at stays in the graph."""
    return value.clone()


def _watched(inputs: Any) -> int | str:
    items = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    for name, value in items:
        if isinstance(value, Tensor) and value.ndim >= 2 and value.dtype != torch.bool:
            return name
    raise ValueError(
        "no input is a tensor of numbers with two axes or more: say with watch= which one is to be watched"
    )


def _tensor_of(returned: Any) -> Any:
    for name in ("logits", "last_hidden_state"):
        if not isinstance(returned, (Tensor, Mapping)) and isinstance(getattr(returned, name, None), Tensor):
            return getattr(returned, name)
    if isinstance(returned, Mapping):
        for name in ("logits", "last_hidden_state"):
            if name in returned:
                return returned[name]
        return next(iter(returned.values()), None)
    return returned[0] if isinstance(returned, (tuple, list)) and returned else returned


def _same_ids(given: Any, watched: Tensor) -> bool:
    return isinstance(given, Tensor) and given.shape == watched.shape and bool(torch.equal(given, watched))


@contextmanager
def _same_random_numbers(device: torch.device) -> Iterator[None]:
    """Every run draws the same, and whoever runs the audit goes on with the numbers they would have had."""
    state = random.getstate()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(SEED)
        random.seed(SEED)
        try:
            yield
        finally:
            random.setstate(state)


@contextmanager
def _same_buffers(module: nn.Module | None) -> Iterator[None]:
    """Running statistics and the like are put back after a run in training mode."""
    kept = [(x, x.detach().clone()) for x in module.buffers()] if module is not None and module.training else []
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, values in kept:
                buffer.copy_(values)
