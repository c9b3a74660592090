"""The layer: everything it may be asked is a way of saying the same recurrence."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import urnn
from urnn import UnitaryRNN, UnitaryRNNCell
from urnn.cell import NONLINEARITIES, UNITARIES
from urnn.ops import dispatch
from urnn.unitary import Diagonal, Spectral, arjovsky

BACKENDS = tuple(dispatch.BACKENDS)


def trained(rnn):
    """Move b, so that some units are dead and some are not."""
    with torch.no_grad():
        for cell in rnn.cells:
            if cell.bias is not None:
                cell.bias.uniform_(-0.3, 0.1)
    return rnn


def make(*args, **kwargs):
    kwargs.setdefault("dtype", torch.float64)
    return trained(UnitaryRNN(*args, **kwargs))


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("unitary", UNITARIES)
def test_the_loop_over_a_cell_is_the_layer(unitary, nonlinearity, backend):
    if nonlinearity == "split_relu":
        backend = "reference"
    rnn = make(3, 6, unitary=unitary, nonlinearity=nonlinearity, backend=backend)
    x = randn(8, 2, 3)
    output, h_n = rnn(x)
    h, step = None, rnn.cells[0].prepare()
    for x_t, o_t in zip(x, output, strict=True):
        prepared = step(x_t, h)
        h = rnn.cells[0](x_t, h)
        close(prepared, h)
        close(o_t, torch.cat([h.real, h.imag], dim=-1))
    close(h_n[0], h)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_chunks_with_the_state_carried_are_one_run(backend):
    rnn = make(3, 6, num_layers=2, output_size=4, backend=backend)
    x = randn(11, 2, 3)
    output, h_n = rnn(x)
    first, h = rnn(x[:4])
    second, h = rnn(x[4:], h)
    close(torch.cat([first, second]), output)
    close(h, h_n)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("outputs", ["all", "last"])
@pytest.mark.parametrize("output_size", [None, 3])
def test_bidirectional_is_two_runs_one_of_them_flipped(output_size, outputs, backend):
    both = make(2, 5, bidirectional=True, output_size=output_size, outputs=outputs, backend=backend)
    one = make(2, 5, outputs=outputs)
    x = randn(7, 3, 2)
    found, h_n = both(x)
    parts = []
    for direction, cell in enumerate(both.cells):
        one.cells[0].load_state_dict(cell.state_dict())
        output, h = one(x.flip(0) if direction else x)
        parts.append(output.flip(0) if direction and outputs == "all" else output)
        close(h_n[direction], h[0])
    expected = torch.cat(parts, dim=-1)
    if output_size:
        expected = F.linear(expected, both.readout_weight, both.readout_bias)
    close(found, expected)
    assert found.shape[-1] == both.out_features == (output_size or 20)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("outputs", ["all", "last"])
@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("tokens", [True, False])
def test_packed_is_each_sequence_alone(tokens, enforce_sorted, outputs, backend):
    rnn = make(
        4, 5, num_layers=2, bidirectional=True, output_size=3, outputs=outputs, backend=backend
    )
    lengths = [6, 4, 4, 1] if enforce_sorted else [4, 6, 1, 4]
    sequences = [torch.randint(4, (k,)) if tokens else randn(k, 4) for k in lengths]
    packed = pack_sequence(sequences, enforce_sorted=enforce_sorted)
    h_0 = torch.complex(randn(4, 4, 5), randn(4, 4, 5))
    for given in (None, h_0):
        output, h_n = rnn(packed, given)
        if outputs == "all":
            assert output.batch_sizes.equal(packed.batch_sizes)
            padded, found = pad_packed_sequence(output)
            assert found.tolist() == lengths
        for i, sequence in enumerate(sequences):
            own = None if given is None else given[:, i]
            o, h = rnn(sequence, own)
            close(output[i] if outputs == "last" else padded[: lengths[i], i], o)
            close(h_n[:, i], h)


def test_packed_batch_first_and_padded_agree():
    rnn = make(3, 4, batch_first=True)
    x, lengths = randn(3, 5, 3), torch.tensor([5, 2, 4])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, _ = pad_packed_sequence(rnn(packed)[0], batch_first=True)
    close(output[0], rnn(x)[0][0])
    close(output[1, :2], rnn(x[1:2, :2])[0][0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_tokens_are_one_hot(dtype, backend):
    rnn = make(7, 5, output_size=2, bidirectional=True, backend=backend)
    tokens = torch.randint(7, (9, 3))
    dense = F.one_hot(tokens, 7).double()
    found, truth = [], []
    for x, gradients in ((tokens.to(dtype), found), (dense, truth)):
        rnn.zero_grad()
        output, h_n = rnn(x)
        (output.square().sum() + h_n.real.sum()).backward()
        gradients += [output, h_n, *(p.grad.clone() for p in rnn.parameters())]
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("outputs", ["all", "last"])
def test_unbatched_is_a_batch_of_one(outputs, tokens):
    for batch_first in (False, True):
        rnn = make(3, 4, num_layers=2, outputs=outputs, batch_first=batch_first)
        x = torch.randint(3, (6,)) if tokens else randn(6, 3)
        h_0 = torch.complex(randn(2, 4), randn(2, 4))
        output, h_n = rnn(x, h_0)
        batched, h = rnn(x.unsqueeze(0 if batch_first else 1), h_0.unsqueeze(1))
        assert output.shape == ((8,) if outputs == "last" else (6, 8)) and h_n.shape == (2, 4)
        close(output, batched[0] if outputs == "last" or batch_first else batched[:, 0])
        close(h_n, h[:, 0])


def test_batch_first():
    rnn = make(3, 4, output_size=2)
    x = randn(5, 2, 3)
    output, h_n = rnn(x)
    rnn.batch_first = True
    transposed, h = rnn(x.transpose(0, 1))
    close(transposed, output.transpose(0, 1))
    close(h, h_n)
    tokens = torch.randint(3, (2, 5))
    assert rnn(tokens)[0].shape == (2, 5, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_last_is_the_end_of_all(backend):
    rnn = make(3, 4, output_size=2, backend=backend)
    x = randn(5, 2, 3)
    output, h_n = rnn(x)
    rnn.outputs = "last"
    last, h = rnn(x)
    close(last, output[-1])
    close(h, h_n)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_causality(bidirectional, backend):
    rnn = make(2, 6, num_layers=2, bidirectional=bidirectional, backend=backend)
    x = randn(9, 3, 2).requires_grad_()
    (grad,) = torch.autograd.grad(rnn(x)[0][4, 1].sum(), x)
    touched = grad.abs().sum(-1) > 0
    expected = torch.zeros(9, 3, dtype=torch.bool)
    expected[: 9 if bidirectional else 5, 1] = True
    assert touched.equal(expected)


def test_a_given_state_takes_the_place_of_the_learned_one():
    rnn = make(2, 5)
    cell = rnn.cells[0]
    h_0 = torch.complex(*cell.initial_state.detach().chunk(2)).expand(1, 3, 5)
    x = randn(4, 3, 2)
    close(rnn(x, h_0)[0], rnn(x)[0])
    rnn(x, h_0)[0].sum().backward()
    assert cell.initial_state.grad is None
    rnn(x)[0].sum().backward()
    assert cell.initial_state.grad.abs().sum() > 0
    zero = make(2, 5, initial_state="zero")
    assert zero.cells[0].initial_state is None
    close(zero(x)[0], zero(x, torch.zeros(1, 3, 5, dtype=torch.complex128))[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_bias_it_is_linear(backend):
    rnn = make(3, 4, bias=False, output_size=2, initial_state="zero", backend=backend)
    assert rnn.readout_bias is None and rnn.cells[0].bias is None
    x, y = randn(6, 2, 3), randn(6, 2, 3)
    close(rnn(2 * x - y)[0], 2 * rnn(x)[0] - rnn(y)[0])


def test_dropout_drops_whole_units_between_layers():
    rnn = make(2, 40, num_layers=2, dropout=0.5, bidirectional=True)
    seen = []
    drop = rnn._drop_units
    rnn._drop_units = lambda x: seen.append((x, drop(x))) or seen[-1][1]
    rnn(randn(5, 3, 2))
    ((before, after),) = seen
    alive = before.unflatten(-1, (2, 2, 40))[..., 0, :] != 0  # not killed by modReLU already
    ratio = (after / before).unflatten(-1, (2, 2, 40))
    close(ratio[..., 0, :][alive], ratio[..., 1, :][alive])  # Re and Im together
    ratio = ratio[..., 0, :][alive]
    assert set(ratio.round(decimals=6).unique().tolist()) == {0.0, 2.0}
    assert 0.4 < ratio.eq(0).double().mean() < 0.6
    rnn.eval()
    seen.clear()
    close(rnn(before[:, :, :2])[0], rnn(before[:, :, :2])[0])
    assert not seen
    rnn.dropout = 1.0
    assert rnn.train()(randn(5, 3, 2))[0].isfinite().all()


def test_nonlinearities_of_one_s_own():
    x = randn(5, 2, 3)
    a = make(3, 4, nonlinearity="modrelu")
    b = make(3, 4, nonlinearity=urnn.ModReLU(4, dtype=torch.float64))
    assert "manual" in urnn.explain(b, x)  # recognised for what it is
    b.cells[0].unitary.load_state_dict(a.cells[0].unitary.state_dict())
    b.cells[0].input_weight, b.cells[0].initial_state = (
        a.cells[0].input_weight,
        a.cells[0].initial_state,
    )
    with torch.no_grad():
        b.cells[0].nonlinearity.bias.copy_(a.cells[0].bias)
    close(a(x)[0], b(x)[0])
    squashed = make(3, 4, num_layers=2, nonlinearity=lambda z: z / (1 + z.abs()))
    assert squashed(x)[0].abs().max() < 1 and squashed.cells[0].bias is None
    split = make(3, 4, num_layers=2, nonlinearity=urnn.SplitReLU(4, dtype=torch.float64))
    assert split.cells[0].nonlinearity is not split.cells[1].nonlinearity
    assert "cells.1.nonlinearity.bias" in split.state_dict()


def test_nonpositive_bias_acts_as_its_projection():
    rnn = make(3, 4, nonlinearity="modrelu_nonpositive")
    plain = make(3, 4)
    plain.load_state_dict(rnn.state_dict())
    with torch.no_grad():
        plain.cells[0].bias.clamp_(max=0)
    x = randn(6, 2, 3)
    close(rnn(x)[0], plain(x)[0])


def count(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("n", "n_in", "n_out"), [(128, 10, 9), (512, 2, 1), (512, 1, 10)])
def test_parameter_counts(n, n_in, n_out):
    rnn = UnitaryRNN(n_in, n, output_size=n_out)
    assert count(rnn) == 7 * n + n * 2 * n_in + 2 * n * n_out + n_out + n + 2 * n
    assert count(rnn.cells[0].unitary) == 7 * n


def test_the_paper_s_counts():
    copying = count(UnitaryRNN(10, 128, output_size=9))
    assert copying == 7 * 128 + 2560 + 2304 + 9 + 128 + 256 == 6153


def test_checkpoint_keys():
    rnn = UnitaryRNN(3, 8, num_layers=2, bidirectional=True, output_size=5)
    state = {k: tuple(v.shape) for k, v in rnn.state_dict().items()}
    cell = {
        "input_weight": (16, 3),
        "bias": (8,),
        "initial_state": (16,),
        "unitary.factors.0.phase": (8,),
        "unitary.factors.1.vector": (2, 8),
        "unitary.factors.3.phase": (8,),
        "unitary.factors.4.index": (8,),
        "unitary.factors.5.vector": (2, 8),
        "unitary.factors.7.phase": (8,),
    }
    expected = {f"cells.{i}.{k}": v for i in range(4) for k, v in cell.items()}
    expected |= {f"cells.{i}.input_weight": (16, 32) for i in (2, 3)}
    expected |= {"readout_weight": (5, 32), "readout_bias": (5,)}
    assert state == expected
    assert not any(v.is_complex() for v in rnn.state_dict().values())


def bound_of(tensor):
    return tensor.abs().max().item()


def test_paper_initialisation():
    rnn = UnitaryRNN(10, 400, output_size=9)
    cell = rnn.cells[0]
    named = dict(cell.named_parameters())
    assert cell.bias.eq(0).all() and rnn.readout_bias.eq(0).all()
    for tensor, bound in (
        (cell.input_weight, math.sqrt(6 / (10 + 400))),
        (rnn.readout_weight, math.sqrt(6 / (800 + 9))),
        (cell.initial_state, math.sqrt(3 / 800)),
        (named["unitary.factors.1.vector"], 1),
        (named["unitary.factors.0.phase"], math.pi),
    ):
        assert 0.97 * bound < bound_of(tensor) <= bound
        assert tensor.mean().abs() < 0.1 * bound


def test_theano_initialisation():
    rnn = UnitaryRNN(10, 400, output_size=9, init="theano")
    cell = rnn.cells[0]
    named = dict(cell.named_parameters())
    for tensor, bound in (
        (cell.input_weight, math.sqrt(6 / (10 + 800))),
        (rnn.readout_weight, math.sqrt(6 / (800 + 9))),
        (cell.initial_state, math.sqrt(3 / 800)),
        (cell.bias, 0.01),
        (named["unitary.factors.1.vector"], math.sqrt(6 / 802)),
        (named["unitary.factors.5.vector"], math.sqrt(6 / 802)),
        (named["unitary.factors.0.phase"], math.pi),
    ):
        assert 0.97 * bound < bound_of(tensor) <= bound


def test_a_cell_is_reset_as_its_layer_was_initialised():
    rnn = UnitaryRNN(10, 40, init="theano")
    with torch.no_grad():
        rnn.cells[0].bias.zero_()
    rnn.cells[0].reset_parameters()
    assert 0 < bound_of(rnn.cells[0].bias) <= 0.01


def test_the_initial_state_has_norm_one_on_average():
    states = [UnitaryRNNCell(1, 64).first_state() for _ in range(400)]
    assert abs(torch.stack(states).abs().square().sum(-1).mean() - 1) < 0.02


def test_an_initialiser_of_one_s_own():
    def zeros(layer):
        for p in layer.parameters():
            p.zero_()

    rnn = UnitaryRNN(3, 4, init=zeros)
    assert all(p.eq(0).all() for p in rnn.parameters())


def test_a_given_matrix_is_left_as_it_is():
    W = Diagonal(4)
    before = W.phase.clone()
    rnn = UnitaryRNN(3, 4, unitary=lambda n: W)
    assert rnn.cells[0].unitary is W and W.phase.equal(before)
    rnn.reset_parameters()
    assert not W.phase.equal(before)


def test_a_matrix_is_made_in_the_layer_s_dtype():
    rnn = UnitaryRNN(3, 9, unitary=Spectral, dtype=torch.float64)
    M = rnn.cells[0].unitary.as_matrix()
    assert (M @ M.mH - torch.eye(9)).abs().max() < 1e-13
    assert torch.get_default_dtype() == torch.float32


def test_reset_parameters_draws_everything_anew():
    rnn = UnitaryRNN(3, 30, num_layers=2, output_size=4)
    before = copy.deepcopy(rnn.state_dict())
    rnn.reset_parameters()
    for key, value in rnn.state_dict().items():
        assert value.equal(before[key]) == key.endswith("bias"), key


def test_the_same_seed_gives_the_same_layer():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(UnitaryRNN(3, 8, output_size=2).state_dict())
    assert all(states[0][k].equal(states[1][k]) for k in states[0])


def test_parameter_groups():
    rnn = UnitaryRNN(3, 4, num_layers=2, output_size=2)
    decayed, spared = rnn.parameter_groups()
    assert [id(p) for p in decayed["params"]] == [
        id(p) for n, p in rnn.named_parameters() if n.endswith(("input_weight", "readout_weight"))
    ]
    assert spared["weight_decay"] == 0.0 and "weight_decay" not in decayed
    assert len(decayed["params"]) + len(spared["params"]) == len(list(rnn.parameters()))
    names = {id(p): n for n, p in rnn.named_parameters()}
    kinds = {names[id(p)].split(".")[-1] for p in spared["params"]}
    assert kinds == {"phase", "vector", "bias", "initial_state", "readout_bias"}


def test_parameter_groups_know_a_parametrised_matrix():
    rnn = UnitaryRNN(3, 4, output_size=2)
    parametrizations.weight_norm(rnn.cells[0], "input_weight")
    prune.l1_unstructured(rnn, "readout_weight", 0.5)
    decayed, _ = rnn.parameter_groups()
    names = {id(p): name for name, p in rnn.named_parameters()}
    assert {names[id(p)] for p in decayed["params"]} == {
        "cells.0.parametrizations.input_weight.original0",
        "cells.0.parametrizations.input_weight.original1",
        "readout_weight_orig",
    }


def test_dropout_without_a_layer_above_warns():
    with pytest.warns(UserWarning, match="dropout acts between layers: dropout=0.1"):
        UnitaryRNN(3, 4, dropout=0.1)


def test_the_initialisation_of_a_layer_does_not_touch_its_neighbours():
    torch.manual_seed(0)
    a = UnitaryRNNCell(3, 4, unitary=arjovsky)
    torch.manual_seed(0)
    b = UnitaryRNNCell(3, 4, unitary="arjovsky")
    assert all(p.equal(q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
