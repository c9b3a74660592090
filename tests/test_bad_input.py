"""Bad input: an error that quotes what was given and says what would be right."""

import re

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import urnn
from urnn import UnitaryRNN, UnitaryRNNCell
from urnn.functional import unitary_scan
from urnn.ops import dispatch
from urnn.unitary import Diagonal, arjovsky

BACKENDS = dispatch.NAMES


def quotes(*words):
    """Match a message that has all the words, in this order."""
    return "(?s)" + ".*".join(re.escape(word) for word in words)


@pytest.mark.parametrize("layer", [UnitaryRNN, UnitaryRNNCell])
@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"hidden_size": 0}, ValueError, ["hidden_size", "positive", "got 0"]),
        ({"hidden_size": -4}, ValueError, ["hidden_size", "positive", "-4"]),
        ({"hidden_size": 4.0}, TypeError, ["hidden_size", "integer", "4.0"]),
        ({"hidden_size": "4"}, TypeError, ["hidden_size", "integer", "'4'"]),
        ({"hidden_size": None}, TypeError, ["hidden_size", "None"]),
        ({"hidden_size": True}, TypeError, ["hidden_size", "True"]),
        ({"input_size": 0}, ValueError, ["input_size", "got 0"]),
        ({"unitary": "arjovski"}, ValueError, ["'arjovski'", "mean 'arjovsky'", "'spectral'"]),
        ({"unitary": 3}, TypeError, ["unitary", "'arjovsky'", "callable", "3"]),
        ({"unitary": lambda n: 3}, TypeError, ["Unitary", "3"]),
        ({"unitary": lambda n: Diagonal(n + 1)}, ValueError, ["size 4", "got 5"]),
        ({"unitary": arjovsky(4)}, TypeError, ["unitary must be one of", "callable"]),
        ({"nonlinearity": "modreul"}, ValueError, ["'modreul'", "mean 'modrelu'", "'split_relu'"]),
        ({"nonlinearity": 3}, TypeError, ["nonlinearity", "'modrelu'", "Module", "3"]),
        ({"nonlinearity": urnn.ModReLU}, TypeError, ["nonlinearity", "Module", "ModReLU"]),
        ({"initial_state": "learnt"}, ValueError, ["'learnt'", "mean 'learned'", "'zero'"]),
        ({"init": "papers"}, ValueError, ["'papers'", "mean 'paper'", "'theano'"]),
        ({"init": 3}, TypeError, ["init", "'paper'", "callable", "3"]),
        ({"init": None}, TypeError, ["init", "'paper'", "callable", "None"]),
        ({"nonlinearity": urnn.ModReLU(5)}, ValueError, ["ModReLU", "4 units", "got 5"]),
        ({"dtype": torch.float16}, ValueError, ["float32", "float64", "float16"]),
        ({"dtype": torch.complex64}, ValueError, ["float32", "complex64"]),
    ],
)
def test_constructors(layer, kwargs, error, words):
    with pytest.raises(error, match=quotes(*words)):
        layer(**{"input_size": 3, "hidden_size": 4, **kwargs})


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"num_layers": 0}, ValueError, ["num_layers", "got 0"]),
        ({"output_size": 0}, ValueError, ["output_size", "got 0"]),
        ({"output_size": 1.5}, TypeError, ["output_size", "1.5"]),
        ({"dropout": 1.5}, ValueError, ["dropout", "[0, 1]", "1.5"]),
        ({"dropout": "a"}, TypeError, ["dropout", "[0, 1]", "'a'"]),
        ({"dropout": True}, TypeError, ["dropout", "True"]),
        ({"outputs": "lats"}, ValueError, ["outputs", "'lats'", "mean 'last'", "'all'"]),
        ({"memory": "const"}, ValueError, ["memory", "'const'", "mean 'constant'", "'full'"]),
        ({"backend": "manuel"}, ValueError, ["'manuel'", "mean 'manual'", "'reference'"]),
        ({"backend": 3}, TypeError, ["backend", "'auto'", "3"]),
    ],
)
def test_the_layer_s_constructor(kwargs, error, words):
    with pytest.raises(error, match=quotes(*words)):
        UnitaryRNN(3, 4, **kwargs)


def complex_zeros(*shape, dtype=torch.complex64):
    return torch.zeros(*shape, dtype=dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("x", "h_0", "error", "words"),
    [
        (torch.zeros(3), None, ValueError, ["(L, N, 3)", "(3,)"]),
        (torch.zeros(2, 5, 4, 3), None, ValueError, ["(L, N, 3)", "(2, 5, 4, 3)"]),
        (torch.zeros(5, 2, 4), None, ValueError, ["3 features", "got 4", "(5, 2, 4)"]),
        (torch.zeros(5, 4), None, ValueError, ["3 features", "got 4"]),
        (torch.zeros(0, 2, 3), None, ValueError, ["empty", "L = 0", "(0, 2, 3)"]),
        (torch.zeros(0, 3), None, ValueError, ["empty", "(0, 3)"]),
        (torch.zeros(0, 2, dtype=torch.int64), None, ValueError, ["empty", "(0, 2)"]),
        (
            torch.zeros(5, 2, 3, dtype=torch.int64),
            None,
            ValueError,
            ["(L, N)", "(5, 2, 3)", "x.float()"],
        ),
        (torch.zeros(5, 2, 3, dtype=torch.float64), None, TypeError, ["float64", "float32"]),
        (complex_zeros(5, 2, 3), None, TypeError, ["real features", "complex64"]),
        (torch.zeros(5, 2, 3, dtype=torch.bool), None, TypeError, ["tokens", "bool"]),
        ([[1.0]], None, TypeError, ["tensor", "list"]),
        (torch.full((5, 2), 3), None, IndexError, ["token 3", "0 … 2"]),
        (torch.full((5, 2), -1), None, IndexError, ["token -1", "0 … 2"]),
        (
            torch.zeros(5, 2, 3),
            complex_zeros(1, 3, 4),
            ValueError,
            ["h_0", "(1, 2, 4)", "(1, 3, 4)"],
        ),
        (torch.zeros(5, 2, 3), complex_zeros(2, 4), ValueError, ["h_0", "(1, 2, 4)", "(2, 4)"]),
        (torch.zeros(5, 3), complex_zeros(1, 2, 4), ValueError, ["h_0", "(1, 4)", "(1, 2, 4)"]),
        (torch.zeros(5, 2, 3), torch.zeros(1, 2, 4), TypeError, ["h_0", "complex64", "float32"]),
        (
            torch.zeros(5, 2, 3),
            complex_zeros(1, 2, 4, dtype=torch.complex128),
            TypeError,
            ["h_0", "complex64", "complex128"],
        ),
        (
            torch.zeros(5, 2, 3),
            torch.zeros(1, 2, 4, dtype=torch.complex64, device="meta"),
            ValueError,
            ["h_0", "cpu", "meta"],
        ),
        (torch.zeros(5, 2, 3, device="meta"), None, ValueError, ["meta", "cpu"]),
        (torch.zeros(5, 2, 3), (complex_zeros(1, 2, 4),) * 2, TypeError, ["h_0", "one", "tuple"]),
    ],
)
def test_calls_of_the_layer(x, h_0, error, words, backend):
    rnn = UnitaryRNN(3, 4, backend=backend)
    with pytest.raises(error, match=quotes(*words)):
        rnn(x, h_0)


def test_batch_first_is_quoted_in_its_own_order():
    rnn = UnitaryRNN(3, 4, batch_first=True)
    with pytest.raises(ValueError, match=quotes("empty", "(2, 0, 3)")):
        rnn(torch.zeros(2, 0, 3))
    with pytest.raises(ValueError, match=quotes("(N, L, 3)", "(3,)")):
        rnn(torch.zeros(3))


@pytest.mark.parametrize(
    ("x", "h", "error", "words"),
    [
        (torch.zeros(2, 4), None, ValueError, ["3 features", "(2, 4)"]),
        (torch.zeros(2, 2, 3), None, ValueError, ["(N, 3)", "(2, 2, 3)"]),
        (torch.tensor([1, 3]), None, IndexError, ["token 3"]),
        (torch.zeros(2, 3), complex_zeros(3, 4), ValueError, ["h must", "(2, 4)", "(3, 4)"]),
        (torch.zeros(2, 3), torch.zeros(2, 4), TypeError, ["h must", "complex64"]),
    ],
)
def test_calls_of_the_cell(x, h, error, words):
    with pytest.raises(error, match=quotes(*words)):
        UnitaryRNNCell(3, 4)(x, h)


X, V, B = torch.zeros(5, 2, 3), torch.zeros(8, 3), torch.zeros(4)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        ((X, None, "arjovsky", V, B), {}, TypeError, ["unitary", "'arjovsky'"]),
        ((X, None, None, torch.zeros(7, 3), B), {}, ValueError, ["(8, H)", "(7, 3)"]),
        ((X, None, None, V, torch.zeros(5)), {}, ValueError, ["bias", "(4,)", "(5,)"]),
        ((X, None, None, V, B.double()), {}, TypeError, ["bias", "float32", "float64"]),
        ((X, None, None, None, B), {}, TypeError, ["without input_weight", "float32"]),
        ((X, complex_zeros(3, 4), None, V, B), {}, ValueError, ["h_0", "(2, 4)", "(3, 4)"]),
        ((X, None, None, V, B), {"leak": 1.0}, ValueError, ["leak", "[0, 1)", "1.0"]),
        (
            (X, None, None, V, B),
            {"readout": (torch.zeros(2, 7), None)},
            ValueError,
            ["U", "(2, 8)"],
        ),
        (
            (X, None, None, V, B),
            {"readout": (torch.zeros(2, 8), torch.zeros(3))},
            ValueError,
            ["b_o", "(2,)", "(3,)"],
        ),
        ((X, None, None, V, B), {"lengths": torch.tensor([5])}, ValueError, ["2 integers", "(1,)"]),
        ((X, None, None, V, B), {"lengths": torch.tensor([5, 6])}, ValueError, ["1 … 5", "got 6"]),
        ((X, None, None, V, B), {"lengths": torch.tensor([5, 0])}, ValueError, ["1 … 5", "got 0"]),
        (
            (X, None, None, V, B),
            {"lengths": torch.tensor([5.0, 1])},
            ValueError,
            ["integers", "float"],
        ),
        ((X, None, None, V, B), {"backend": "gpu!"}, ValueError, ["backend", "'gpu!'", "'manual'"]),
        ((X, None, None, V, B), {"outputs": "first"}, ValueError, ["outputs", "'first'", "'last'"]),
        ((X, None, None, V, B), {"memory": "none"}, ValueError, ["memory", "'none'", "'full'"]),
        ((X, None, None, V.half(), B), {}, TypeError, ["weights", "float16", "autocast"]),
        ((X, None, None, [1.0], B), {}, TypeError, ["input_weight", "(8, H)", "list"]),
        ((X, None, None, torch.zeros(()), B), {}, ValueError, ["input_weight", "(8, H)", "()"]),
        ((X, None, None, V, B), {"readout": V}, TypeError, ["pair (U, b_o)", "Tensor"]),
        ((X, None, None, V, B), {"readout": (None, B)}, TypeError, ["U", "(k, 8)", "NoneType"]),
        ((X, None, None, V, B), {"readout": (B, None)}, ValueError, ["U", "(k, 8)", "(4,)"]),
        ((X, None, None, V, None), {"nonlinearity": "modrelu"}, TypeError, ["z -> h", "'modrelu'"]),
        (
            (X, None, None, V, None),
            {"nonlinearity": urnn.ModReLU(5)},
            ValueError,
            ["ModReLU", "4 units", "got 5"],
        ),
        ((X, None, arjovsky(4).double(), V, B), {}, TypeError, ["factors.0.phase", "float32"]),
    ],
)
def test_calls_of_the_function(args, kwargs, error, words):
    x, h_0, W, *rest = args
    with pytest.raises(error, match=quotes(*words)):
        unitary_scan(x, h_0, arjovsky(4) if W is None else W, *rest, **kwargs)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: UnitaryRNN(3, 4, nonlinearity=lambda z: z.abs())(X),
            TypeError,
            ["complex64", "float32 (2, 4)"],
        ),
        (lambda: urnn.ModReLU(3)(complex_zeros(2, 4)), ValueError, ["ModReLU", "3", "(2, 4)"]),
        (lambda: urnn.SplitReLU(3)(torch.zeros(3)), TypeError, ["SplitReLU", "complex", "float32"]),
        (lambda: UnitaryRNN(3, 4)(X.to_sparse()), TypeError, ["dense", "sparse"]),
        (lambda: UnitaryRNN(torch.tensor(3.0), 4), TypeError, ["input_size", "tensor(3.)"]),
        (
            lambda: UnitaryRNN(3, 4, unitary=torch.nn.Linear(3, 3)),
            TypeError,
            ["callable n -> Unitary"],
        ),
        (lambda: setattr_and_run("backend", "manul"), ValueError, ["'manul'", "'manual'"]),
        (lambda: setattr_and_run("memory", "constan"), ValueError, ["'constan'", "'constant'"]),
        (lambda: setattr_and_run("outputs", "lst"), ValueError, ["'lst'", "'last'"]),
    ],
)
def test_what_else_goes_wrong(call, error, words):
    with pytest.raises(error, match=quotes(*words)):
        call()


def setattr_and_run(name, value):
    rnn = UnitaryRNN(3, 4)
    setattr(rnn, name, value)
    rnn(X)


def test_mod_relu_checks_what_it_is_given():
    z, b = torch.zeros(3, dtype=torch.complex64), torch.zeros(3)
    for args, error, words in (
        ((z.real, b), TypeError, ["complex", "float32"]),
        ((z, z), TypeError, ["real", "complex64"]),
        ((z, b, 1.0), ValueError, ["leak", "[0, 1)", "1.0"]),
        ((z, b, -1), ValueError, ["leak", "[0, 1)", "-1"]),
    ):
        with pytest.raises(error, match=quotes(*words)):
            urnn.functional.mod_relu(*args)


def test_a_packed_sequence_without_features():
    with pytest.raises(ValueError, match=quotes("3 features", "float32")):
        UnitaryRNN(3, 4)(pack_sequence([torch.zeros(2), torch.zeros(1)]))


def test_explain_says_why_not():
    rnn = UnitaryRNN(3, 4, nonlinearity="split_relu", backend="manual")
    text = urnn.explain(rnn, X)
    assert text.startswith("layer 0 cannot run in the 'manual' engine, which was named.")
    assert "manual: the nonlinearity is a function of its own" in text
    with pytest.raises(TypeError, match=quotes("UnitaryRNN", "got UnitaryRNNCell")):
        urnn.explain(UnitaryRNNCell(3, 4), X)


def test_a_named_backend_runs_or_raises_its_reasons():
    rnn = UnitaryRNN(3, 4, nonlinearity="split_relu", backend="manual")
    with pytest.raises(ValueError, match=quotes("backend='manual'", "function of its own")):
        rnn(X)
    rnn.backend = "auto"
    assert rnn(X)[0].isfinite().all()
    with urnn.use_backend("manual"), pytest.raises(ValueError, match="function of its own"):
        rnn(X)
    with pytest.raises(ValueError, match=quotes("'maual'", "mean 'manual'")):
        urnn.use_backend("maual")


def test_use_backend_holds_in_its_block_and_explain_says_so(capsys):
    rnn = UnitaryRNN(3, 40, num_layers=2, unitary="spectral")
    text = urnn.explain(rnn, X)
    assert capsys.readouterr().out == text + "\n"
    assert "layer 0 runs in the 'manual' engine, the first that can of manual, reference" in text
    assert "layer 1" in text and "dense 40 × 40 matrix" in text and "Spectral is none of" in text
    with urnn.use_backend("reference"):
        assert "'reference' engine, which was named" in urnn.explain(rnn, X)
    assert urnn.explain(rnn, X) == text
    again = urnn.use_backend("reference")
    with again:
        pass
    with again:
        assert "which was named" in urnn.explain(rnn, X)
    assert urnn.explain(rnn, X) == text
    packed = pack_sequence([torch.zeros(3, 3), torch.zeros(2, 3)])
    assert urnn.explain(rnn, packed) == text
    split = urnn.explain(UnitaryRNN(3, 4, nonlinearity="split_relu"), torch.zeros(5, 2).long())
    assert "'reference' engine" in split and "manual: the nonlinearity is a function" in split


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kwargs", [{}, {"output_size": 2}, {"outputs": "last"}])
def test_a_batch_of_none_gives_an_empty_output(kwargs, backend):
    rnn = UnitaryRNN(3, 4, bidirectional=True, backend=backend, **kwargs)
    for x in (torch.zeros(5, 0, 3), torch.zeros(5, 0, dtype=torch.int64)):
        output, h_n = rnn(x)
        width = rnn.out_features
        assert output.shape == ((0, width) if "outputs" in kwargs else (5, 0, width))
        assert h_n.shape == (2, 0, 4)
        (output.sum() + h_n.real.sum()).backward()
        assert all(p.grad is None or p.grad.eq(0).all() for p in rnn.parameters())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [4, 40])
def test_garbage_in_the_permutation_reads_nothing_out_of_bounds(n, backend):
    """A layer made on meta and filled by to_empty, without reset_parameters."""
    rnn = UnitaryRNN(3, n, device="meta", backend=backend).to_empty(device="cpu")
    with torch.no_grad():
        for p in rnn.parameters():
            p.fill_(0.5)
    for garbage in (10**15, -(10**15), n, -n - 1):
        rnn.cells[0].unitary.factors[4].index.fill_(garbage)
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            rnn(X)
    rnn.reset_parameters()
    assert rnn(X)[0].isfinite().all()
