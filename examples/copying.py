"""Train a unitary RNN on the copying memory task until it is solved, and draw the curve.

Ten symbols are shown, then blanks for T steps, then a delimiter; the network must repeat the ten
symbols in order. Without memory, the best cross-entropy is 10 ln 8 / (T + 20).

    python examples/copying.py [T]
"""

import argparse
import math
import sys
import time
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import urnn

BLANK, DELIMITER, MESSAGE = 8, 9, 10
SOLVED = 1e-3


def memoryless(delay: int) -> float:
    """Return the cross-entropy of who knows when to answer, but not what."""
    return MESSAGE * math.log(BLANK) / (delay + 2 * MESSAGE)


def copying_batch(delay: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, both (T + 20, N), of the copying memory task.

    With a message of three symbols and a delay of 4:

        input   3 1 7 _ _ _ : _ _ _
        target  _ _ _ _ _ _ _ 3 1 7
    """
    message = torch.randint(BLANK, (MESSAGE, batch))
    x = torch.full((delay + 2 * MESSAGE, batch), BLANK)
    x[:MESSAGE] = message
    x[delay + MESSAGE - 1] = DELIMITER
    y = torch.full_like(x, BLANK)
    y[-MESSAGE:] = message
    return x, y


def is_solved(losses: list[float]) -> bool:
    """Return whether the last ten losses were all below `SOLVED`."""
    return len(losses) >= 10 and max(losses[-10:]) < SOLVED


def train(delay: int, max_steps: int) -> list[float]:
    """Train until the task is solved; return the loss of each step."""
    torch.manual_seed(0)
    rnn = urnn.UnitaryRNN(10, 128, output_size=9)
    optimiser = torch.optim.RMSprop(rnn.parameters(), lr=1e-3, alpha=0.9)
    losses: list[float] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("", total=math.log(math.log(9) / SOLVED))
        while len(losses) < max_steps and not is_solved(losses):
            x, y = copying_batch(delay, batch=20)
            output, _ = rnn(x)
            loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), y.flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            done = math.log(math.log(9) / max(losses[-1], SOLVED))
            text = f"step {len(losses):4d}   cross-entropy {losses[-1]:.5f}"
            progress.update(bar, completed=max(done, 0), description=text)
    return losses


def draw(losses: list[float], delay: int, path: Path) -> None:
    """Draw the loss over steps beside the memoryless baseline."""
    baseline = memoryless(delay)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.semilogy(range(1, len(losses) + 1), losses, color="#0072b2", label="unitary RNN, n = 128")
    axes.axhline(baseline, color="#d55e00", linestyle="--", label="memoryless baseline")
    axes.annotate(
        "below here, it remembers",
        (0, baseline),
        xytext=(6, -14),
        textcoords="offset points",
        color="#d55e00",
    )
    axes.set(
        title=f"Copying ten symbols over {delay} steps",
        xlabel="training step (20 new sequences each)",
        ylabel="cross-entropy per symbol",
        xlim=(0, len(losses)),
    )
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train, say what came out, and draw it; exit with 1 if the task was not solved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("delay", metavar="T", nargs="?", type=int, default=500, help="default: 500")
    parser.add_argument("--out", type=Path, default=Path("runs/demo/copying.png"))
    parser.add_argument("--max-steps", type=int, default=2000)
    options = parser.parse_args()
    if options.delay < 1:
        parser.error(f"T must be at least 1; got {options.delay}")

    baseline = memoryless(options.delay)
    print(f"copying memory task, delay {options.delay}: the memoryless baseline is {baseline:.4f}")
    start = time.perf_counter()
    losses = train(options.delay, options.max_steps)
    seconds = time.perf_counter() - start
    state = "solved" if is_solved(losses) else "not solved"
    print(f"{state} after {len(losses)} steps, {seconds:.0f} s: cross-entropy {losses[-1]:.5f}")
    draw(losses, options.delay, options.out)
    print(options.out)
    if not is_solved(losses):
        sys.exit(1)


if __name__ == "__main__":
    main()
