"""The layer: time, stacked layers, directions, packed sequences."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from urnn import functional
from urnn.cell import UnitaryRNNCell, checked_init, initialise, left_to_the_layer
from urnn.nonlinearity import Nonlinearity
from urnn.ops.recurrence import Request
from urnn.precision import complex_dtype
from urnn.unitary import Unitary
from urnn.validation import (
    check_tensor,
    checked_input,
    checked_probability,
    is_tokens,
    positive_integer,
)

# V and U, also where they are parametrised or pruned
_MATRIX = re.compile(
    r"(cells\.\d+\.)?(parametrizations\.)?(input_weight|readout_weight)(_orig|\.original\d*)?"
)


class UnitaryRNN(nn.Module):
    r"""A multi-layer recurrent network with a unitary hidden-to-hidden matrix.

    For each step t of the input, each layer computes

        z_t = W h_{t−1} + V x_t,    h_t = σ(z_t),    o_t = U [Re h_t; Im h_t] + b_o

    with h ∈ Cⁿ, W = D₃R₂F⁻¹D₂ΠR₁FD₁ exactly unitary and σ the modReLU. The readout o_t is
    there with `output_size`, and belongs to the last layer.

    Args:
        input_size: H, the number of features (or of categories, for integer tokens).
        hidden_size: n, the number of complex units.
        num_layers: layers stacked on each other; the next reads [Re h; Im h] of the one below.
        bias: b and b_o; without, the recurrence is linear (but for a nonlinearity of its own)
            and the readout has no bias.
        batch_first: x and output are (N, L, ·) instead of (L, N, ·).
        dropout: probability to drop a unit (Re and Im together) between layers.
        bidirectional: a second network reads each sequence from its end.
        output_size: k, the width of the readout; None for the states themselves.
        outputs: "all" steps, or each sequence's (and each direction's) own "last".
        unitary: "arjovsky" (the paper's W), "spectral" (V D V*), "orthogonal" (Lemma 1's real
            W), or a callable n → Unitary, called once for each layer and direction.
        nonlinearity: "modrelu", "leaky_modrelu", "modrelu_nonpositive", "split_relu", a
            Module, or a callable z → h. Of a Module each cell after the first gets a copy.
        initial_state: "learned" (a parameter of each layer and direction), or "zero".
        init: "paper" (the text), "theano" (the authors' code), or a callable that takes the
            layer.
        memory: "full", or "constant": beyond input and output, memory grows as √L.
        backend: "auto", or the name of an engine (`urnn.explain` says which runs, and why).

    Shape:
        D: 2 if bidirectional, else 1.
        x: (L, N, H); (L, H) unbatched; a `PackedSequence`; or integer tokens (L, N) or (L,),
            which mean one-hot vectors of H categories.
        h_0: complex (num_layers·D, N, n), or (num_layers·D, n) unbatched. It takes the place
            of the learned initial state, which then gets no gradient.
        output: (L, N, out_features), where out_features is k or 2n·D, or (N, out_features)
            for outputs="last".
        h_n: like h_0, each sequence's final state.

    Attributes:
        cells: `UnitaryRNNCell` number layer·D + direction.
        readout_weight, readout_bias: U (k, 2n·D) and b_o (k,).
        out_features: the width of the output.

    Examples:
        >>> rnn = urnn.UnitaryRNN(10, 128, output_size=9)
        >>> tokens = torch.randint(10, (120, 20))
        >>> output, h_n = rnn(tokens)
        >>> output.shape, h_n.shape
        (torch.Size([120, 20, 9]), torch.Size([1, 20, 128]))

        One layer in one direction is this loop:

        >>> rnn = urnn.UnitaryRNN(3, 16)
        >>> x = torch.randn(7, 2, 3)
        >>> cell, h, states = rnn.cells[0], None, []
        >>> for x_t in x:
        ...     h = cell(x_t, h)
        ...     states.append(torch.cat([h.real, h.imag], dim=-1))
        >>> torch.allclose(rnn(x)[0], torch.stack(states), atol=1e-5)
        True
    """

    cells: Sequence[UnitaryRNNCell]
    readout_weight: Tensor | None
    readout_bias: Tensor | None
    init: Callable[[Any], object]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        output_size: int | None = None,
        outputs: str = "all",
        unitary: str | Callable[[int], Unitary] = "arjovsky",
        nonlinearity: str | Nonlinearity = "modrelu",
        initial_state: str = "learned",
        init: str | Callable[[Any], object] = "paper",
        memory: str = "full",
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_size = positive_integer("input_size", input_size)
        self.hidden_size = positive_integer("hidden_size", hidden_size)
        self.num_layers = positive_integer("num_layers", num_layers)
        if output_size is not None:
            output_size = positive_integer("output_size", output_size)
        self.output_size = output_size
        functional.check_options(outputs, memory, backend)
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = checked_probability("dropout", dropout)
        if self.dropout and num_layers == 1:
            warnings.warn(
                f"dropout acts between layers: dropout={dropout} with num_layers=1 drops nothing.",
                stacklevel=2,
            )
        self.bidirectional = bidirectional
        self.outputs = outputs
        self.memory = memory
        self.backend = backend
        self.init = checked_init(init)

        directions = 2 if bidirectional else 1
        wide = 2 * self.hidden_size * directions
        cells = []
        for index in range(self.num_layers * directions):
            module = isinstance(nonlinearity, nn.Module) and index > 0
            cell = UnitaryRNNCell(
                self.input_size if index < directions else wide,
                self.hidden_size,
                bias,
                unitary=unitary,
                nonlinearity=copy.deepcopy(nonlinearity) if module else nonlinearity,
                initial_state=initial_state,
                init=left_to_the_layer,
                device=device,
                dtype=dtype,
            )
            cell.init = self.init
            cells.append(cell)
        self.cells = cast(Sequence[UnitaryRNNCell], nn.ModuleList(cells))
        self.register_parameter("readout_weight", None)
        self.register_parameter("readout_bias", None)
        if output_size is not None:
            like = self.cells[0].input_weight
            self.readout_weight = nn.Parameter(like.new_empty(output_size, wide))
            self.readout_bias = nn.Parameter(like.new_empty(output_size)) if bias else None
        initialise(self, self.init)

    @property
    def out_features(self) -> int:
        """The width of the output, output_size or 2·hidden_size·directions."""
        return self.output_size or 2 * self.hidden_size * self._directions

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def reset_parameters(self) -> None:
        """Draw everything anew, the factors of W included."""
        for cell in self.cells:
            cell.reset_parts()
        initialise(self, self.init)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return two groups for an optimiser, the second with weight_decay=0.

        The first holds V and U. The second holds what decay must leave alone: phases,
        reflection vectors, b, h₀, and whatever else is not a weight matrix of the layer.

        Example:
            >>> rnn = urnn.UnitaryRNN(3, 16)
            >>> optimiser = torch.optim.AdamW(rnn.parameter_groups(), weight_decay=0.01)
        """
        groups: tuple[list[Tensor], list[Tensor]] = ([], [])
        for name, p in self.named_parameters():
            groups[0 if _MATRIX.fullmatch(name) else 1].append(p)
        return [{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0}]

    def forward(
        self, x: Tensor | PackedSequence, h_0: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        functional.check_options(self.outputs, self.memory, self.backend)
        if isinstance(x, PackedSequence):
            return self._forward_packed(x, h_0)
        x, batched = self._time_first(x)
        states = self._checked_states(h_0, x.shape[1], batched)
        output, h_n = self._run(x, states, None)
        last = self.outputs == "last"
        if not batched:
            return output.squeeze(0 if last else 1), h_n.squeeze(1)
        return (output.transpose(0, 1) if self.batch_first and not last else output), h_n

    def _time_first(self, x: Tensor) -> tuple[Tensor, bool]:
        """Return x as (L, N, …), and whether it was a batch."""
        layout = ("N", "L") if self.batch_first else ("L", "N")
        x = checked_input(x, self.cells[0].input_weight, layout=layout)
        batched = x.dim() == (2 if is_tokens(x) else 3)
        if not batched:
            return x.unsqueeze(1), batched
        return (x.transpose(0, 1) if self.batch_first else x), batched

    def _forward_packed(
        self, x: PackedSequence, h_0: Tensor | None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Run a packed batch in its own (sorted) order, as one padded batch with lengths."""
        data = checked_input(x.data, self.cells[0].input_weight, layout=("N",))
        if not is_tokens(data) and data.dim() == 1:
            raise ValueError(
                f"a packed sequence must hold {self.input_size} features per step, or integer "
                f"tokens; got {x.data.dtype} without features."
            )
        padded, lengths = pad_packed_sequence(PackedSequence(data, x.batch_sizes))
        states = self._checked_states(h_0, padded.shape[1], batched=True)
        if x.sorted_indices is not None:
            states = states if h_0 is None else states.index_select(1, x.sorted_indices)
        output, h_n = self._run(padded, states, lengths.to(data.device))
        if x.unsorted_indices is not None:
            h_n = h_n.index_select(1, x.unsorted_indices)
        if self.outputs == "last":
            if x.unsorted_indices is not None:
                output = output.index_select(0, x.unsorted_indices)
            return output, h_n
        packed = pack_padded_sequence(output, lengths)
        indices = x.sorted_indices, x.unsorted_indices
        return PackedSequence(packed.data, x.batch_sizes, *indices), h_n

    def _checked_states(self, h_0: Tensor | None, batch: int, batched: bool) -> Tensor:
        """Return h_0 as given, or as learned, complex (layers·D, N, n)."""
        if h_0 is None:
            first = torch.stack([cell.first_state() for cell in self.cells])
            return first[:, None].expand(-1, batch, -1)
        weight = self.cells[0].input_weight
        shape = (len(self.cells), *((batch,) if batched else ()), self.hidden_size)
        check_tensor("h_0", h_0, shape, complex_dtype(weight.dtype), weight.device)
        return h_0 if batched else h_0.unsqueeze(1)

    def _run(self, x: Tensor, states: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run all layers on x (L, N, H) or tokens (L, N)."""
        finals: list[Tensor] = []
        for layer in range(self.num_layers):
            top = layer == self.num_layers - 1
            if layer and self.training and self.dropout:
                x = self._drop_units(x)
            request = self._request(layer, x, states, lengths)
            answers = functional.run(request, self.backend)
            finals += [h for _, h in answers]
            outputs = [o for o, _ in answers]
            readout = top and self.readout_weight is not None
            x = reduce(torch.add, outputs) if readout else torch.cat(outputs, dim=-1)
        return (x if self.readout_bias is None else x + self.readout_bias), torch.stack(finals)

    def _request(self, layer: int, x: Tensor, states: Tensor, lengths: Tensor | None) -> Request:
        """Return what a layer asks of the engines: its directions as one call."""
        top = layer == self.num_layers - 1
        readouts: tuple[Tensor | None, ...] = (None,) * self._directions
        if top and self.readout_weight is not None:
            readouts = self.readout_weight.chunk(self._directions, dim=1)
        networks = []
        for direction, readout in enumerate(readouts):
            place = layer * self._directions + direction
            networks.append(self.cells[place].network(states[place], readout, direction == 1))
        last = top and self.outputs == "last"
        return Request(x, tuple(networks), lengths, last, self.memory == "constant")

    def requests(self, x: Tensor | PackedSequence) -> list[tuple[str, Request]]:
        """Return what each layer would ask of the engines for an input x (for `urnn.explain`)."""
        if isinstance(x, PackedSequence):
            x, _ = pad_packed_sequence(x, batch_first=self.batch_first)
        x, _ = self._time_first(x)
        states = self._checked_states(None, x.shape[1], batched=True)
        width = 2 * self.hidden_size * self._directions
        between = states.real.new_zeros(()).expand(*x.shape[:2], width)
        return [
            (f"layer {layer}", self._request(layer, between if layer else x, states, None))
            for layer in range(self.num_layers)
        ]

    def _drop_units(self, x: Tensor) -> Tensor:
        """Drop whole complex units of [Re h; Im h] of each direction."""
        parts: Tensor = x.unflatten(-1, (self._directions, 2, self.hidden_size))
        kept = F.dropout(torch.ones_like(parts[..., :1, :]), self.dropout)
        return (parts * kept).flatten(-3)

    def extra_repr(self) -> str:
        parts = [f"{self.input_size}, {self.hidden_size}"]
        defaults: dict[str, object] = {
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
        }
        defaults |= {"output_size": None, "outputs": "all", "memory": "full", "backend": "auto"}
        parts += [f"{k}={getattr(self, k)!r}" for k, v in defaults.items() if getattr(self, k) != v]
        return ", ".join(parts)
