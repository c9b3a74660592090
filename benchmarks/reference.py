"""What the engines in plain torch cost: per step against L, against peers, and W against n.

A step is a whole training step (forward, loss, backward, all gradients) divided by L. An engine
whose backward pass is quadratic in L shows it in the last column.
"""

import argparse
import math
import warnings

import torch
import torch.nn.functional as F
from measure import interleaved, save
from torch import Tensor, nn

import urnn

SIZE, INPUTS, OUTPUTS, BATCH = 128, 10, 9, 20
LENGTHS = (250, 2000)


class WithReadout(nn.Module):
    """A peer's recurrent layer with a linear readout at every step."""

    def __init__(self, layer: nn.Module, width: int, complex_numbers: bool = False) -> None:
        super().__init__()
        self.layer, self.complex_numbers = layer, complex_numbers
        self.readout = nn.Linear(width, OUTPUTS)

    def forward(self, x: Tensor) -> tuple[Tensor, object]:
        states, last = self.layer(x.to(torch.complex64) if self.complex_numbers else x)
        if self.complex_numbers:
            states = torch.cat([states.real, states.imag], dim=-1)
        return self.readout(states), last


def models() -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {
        name: urnn.UnitaryRNN(INPUTS, SIZE, output_size=OUTPUTS, backend=name)
        for name in ("reference", "manual")
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complextorch's own, at import
        import complextorch
    peer = complextorch.nn.UnitaryRNN(INPUTS, SIZE)
    found["complextorch"] = WithReadout(peer, 2 * SIZE, complex_numbers=True)
    found["nn.LSTM"] = WithReadout(nn.LSTM(INPUTS, SIZE), SIZE)
    return found


def training_step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad()
    output, _ = model(x)
    F.cross_entropy(output.flatten(0, 1), y.flatten()).backward()


def against_length(rounds: int) -> dict[str, dict[str, float]]:
    """Return microseconds per time step of each model at each length."""
    candidates = {}
    for name, model in models().items():
        for L in LENGTHS:
            x, y = torch.randn(L, BATCH, INPUTS), torch.randint(OUTPUTS, (L, BATCH))
            candidates[f"{name} {L}"] = lambda m=model, x=x, y=y: training_step(m, x, y)
    seconds = interleaved(candidates, rounds)
    return {
        name: {str(L): 1e6 * seconds[f"{name} {L}"] / L for L in LENGTHS}
        for name in {key.rsplit(" ", 1)[0]: None for key in candidates}
    }


def against_size(rounds: int) -> dict[str, dict[str, float]]:
    """Return microseconds to apply W to 16 vectors on one thread: the product, a dense matrix."""
    found: dict[str, dict[str, float]] = {"product": {}, "dense": {}}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for n in (128, 512, 2048, 8192):  # each by itself: a large matrix empties the caches
        W, z = urnn.unitary.arjovsky(n).prepare(), torch.randn(16, n, dtype=torch.complex64)
        dense = torch.randn(n, n, dtype=torch.complex64)
        candidates = {"product": lambda: W.apply(z), "dense": lambda: z @ dense}  # noqa: B023
        with torch.no_grad():
            for kind, value in interleaved(candidates, 10 * rounds).items():
                found[kind][str(n)] = 1e6 * value
    torch.set_num_threads(threads)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds

    steps = against_length(rounds)
    base = steps["reference"]
    print(f"a training step, n = {SIZE}, N = {BATCH}, readout {OUTPUTS}, per time step")
    print(f"{'':14s} {'L = 250':>10s} {'L = 2000':>10s} {'of reference':>13s} {'2000 / 250':>11s}")
    for name, found in steps.items():
        short, long = (found[str(L)] for L in LENGTHS)
        ratio = long / base[str(LENGTHS[1])]
        print(f"{name:14s} {short:7.0f} µs {long:7.0f} µs {ratio:13.2f} {long / short:11.2f}")

    sizes = against_size(rounds)
    print("\nW applied to 16 vectors, one thread")
    print(
        f"{'n':>6s} {'product':>10s} {'per n·log₂n':>12s} {'dense':>10s} {'dense / product':>16s}"
    )
    for n, value in sizes["product"].items():
        scaled = 1e3 * value / (int(n) * math.log2(int(n)))
        dense = sizes["dense"][n]
        print(f"{n:>6s} {value:7.0f} µs {scaled:9.2f} ns {dense:7.0f} µs {dense / value:11.2f}")
    print(save("reference", {"microseconds per step": steps, "microseconds to apply W": sizes}))


if __name__ == "__main__":
    main()
