"""Every engine against the float64 reference: outputs and every gradient, on odd sizes."""

import copy
import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from urnn import SplitReLU
from urnn.functional import unitary_scan
from urnn.ops import dispatch
from urnn.unitary import Diagonal, Reflection, Spectral, Unitary, arjovsky

ENGINES = tuple(name for name in dispatch.BACKENDS if name != "reference")
MATRICES = {
    "arjovsky": arjovsky,
    "spectral": Spectral,  # dense
    "orthogonal": lambda n: Spectral(n, real=True),
    "one reflection": Reflection,  # structured, without a Fourier pair
}


@pytest.fixture(autouse=True)
def _nan_filled_buffers():
    """torch.empty is full of NaN: an element that was never written shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


class Case(torch.nn.Module):
    """A recurrence with random parameters, in float64, and a random cost of all it returns."""

    def __init__(
        self, n, N, L, H=3, k=None, x="real", sign=-1, leak=0.0, matrix="arjovsky", **options
    ):
        super().__init__()
        self.options = options | {"leak": leak}
        self.W: Unitary = MATRICES[matrix](n).double()
        self.x_kind = x
        f64 = {"dtype": torch.float64}
        self.V = torch.nn.Parameter(torch.randn(2 * n, H, **f64) / H**0.5)
        size = torch.rand(n, **f64) * 0.3
        b = {-1: -size, 0: 0 * size, 1: size, "mixed": torch.randn(n, **f64) * 0.3, None: None}
        self.b = None if b[sign] is None else torch.nn.Parameter(b[sign])
        self.h_0 = torch.nn.Parameter(torch.randn(2, N, n, **f64) / n**0.5)
        self.U = torch.nn.Parameter(torch.randn(k, 2 * n, **f64) / n**0.5) if k else None
        self.b_o = torch.nn.Parameter(torch.randn(k, **f64)) if k else None
        if x == "tokens":
            self.register_buffer("x", torch.randint(H, (L, N)))
        elif x == "real":
            self.x = torch.nn.Parameter(torch.randn(L, N, H, **f64))
        else:
            self.x = torch.nn.Parameter(torch.randn(2, L, N, n, **f64))
        last = options.get("outputs") == "last"
        self.register_buffer("cost", torch.randn(*(() if last else (L,)), N, k or 2 * n, **f64))
        self.register_buffer("cost_h", torch.randn(2, N, n, **f64))

    def run(self, backend, dtype=torch.float64):
        """Return the outputs and the gradients of all parameters."""
        case = copy.deepcopy(self).to(dtype)
        complex_u = case.x_kind == "complex"
        output, h_n = unitary_scan(
            torch.complex(*case.x) if complex_u else case.x,
            torch.complex(*case.h_0),
            case.W,
            None if complex_u else case.V,
            case.b,
            readout=(case.U, case.b_o) if case.U is not None else None,
            backend=backend,
            **case.options,
        )
        real, imag = case.cost_h
        cost = (output * case.cost).sum() + (h_n.real * real + h_n.imag * imag).sum()
        cost.backward()
        found = {"output": output.detach(), "h_n": torch.view_as_real(h_n.detach())}
        return found | {k: p.grad for k, p in case.named_parameters() if p.grad is not None}


def error(found, truth):
    """Return the relative error of each result, norm-wise, against float64."""
    assert found.keys() == truth.keys()
    return {
        key: ((found[key].double() - truth[key]).norm() / truth[key].norm().clamp(min=1e-3)).item()
        for key in truth
    }


def check(case):
    """Compare each engine with the reference.

    Where b > 0 the derivative 1 + b/|z| has no limit, so that the error of each result is as
    much a matter of luck as of the engine: there the worst of the reference's own counts, twice.
    """
    truth = case.run("reference")
    assert all(value.isfinite().all() for value in truth.values())
    own = error(case.run("reference", torch.float32), truth)
    if case.b is not None and (case.b > 0).any():
        own = dict.fromkeys(own, 2 * max(own.values()))
    single = case.W.size == 1  # in C¹ every reflection is z ↦ −z: ∂v is 0 but for rounding
    for engine in ENGINES:
        for key, value in error(case.run(engine), truth).items():
            assert value < 1e-11 or (single and "vector" in key), (engine, key, value)
        for key, value in error(case.run(engine, torch.float32), truth).items():
            bound = max(6 * own[key], 12 * torch.finfo(torch.float32).eps)
            assert value < bound or (single and "vector" in key), (engine, key, value, own[key])


# n, N, L: odd, prime, one; at L = 1 and across the stretches (√L) of the backward pass
SHAPES = [(1, 1, 1), (2, 5, 2), (3, 1, 9), (12, 4, 33), (17, 5, 17), (31, 2, 10), (64, 3, 26)]


@pytest.mark.parametrize("sign", [-1, 0, 1, "mixed", None])
@pytest.mark.parametrize(("n", "N", "L"), SHAPES)
def test_shapes(n, N, L, sign):
    check(Case(n, N, L, sign=sign, k=3))


@pytest.mark.parametrize("x", ["real", "tokens", "complex"])
@pytest.mark.parametrize("k", [None, 1, 4])
@pytest.mark.parametrize("outputs", ["all", "last"])
def test_inputs_and_outputs(x, k, outputs):
    for n in (6, 20):  # dense, structured
        check(Case(n, 3, 11, x=x, k=k, outputs=outputs))


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("leak", [0.0, 0.2, 0.9])
@pytest.mark.parametrize("sign", [-1, 1, "mixed"])
def test_matrices_and_leaks(matrix, leak, sign):
    check(Case(18, 2, 8, matrix=matrix, leak=leak, sign=sign))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("outputs", ["all", "last"])
@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("x", ["real", "tokens"])
def test_lengths_and_directions(reverse, outputs, k, x):
    lengths = torch.tensor([7, 1, 10, 4])
    check(Case(19, 4, 10, k=k, x=x, lengths=lengths, reverse=reverse, outputs=outputs))


@pytest.mark.parametrize("engine", ["reference", *ENGINES])
@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("outputs", ["all", "last"])
def test_constant_memory(engine, outputs, k):
    """Outputs, states, ∂x and ∂h₀ to the bit; the rest here too, but for the sums' order."""
    case = Case(21, 3, 30, k=k, sign="mixed", outputs=outputs)
    full = case.run(engine)
    case.options["memory"] = "constant"
    constant = case.run(engine)
    for key in ("output", "h_n", "x", "h_0"):
        assert constant[key].equal(full[key]), key
    assert max(error(constant, full).values()) < 1e-13


def peak_of_a_step(engine, L, memory):
    """Return the most bytes that torch's allocator held at once in a training step."""
    W, V, b = arjovsky(64), torch.randn(128, 1, requires_grad=True), torch.zeros(64)
    with torch.profiler.profile(profile_memory=True) as profile:
        x = torch.randn(L, 8, 1)
        options = {"memory": memory, "outputs": "last", "backend": engine}
        unitary_scan(x, None, W, V, b, **options)[0].sum().backward()
    held, peak = 0, 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.mark.parametrize("engine", ["reference", *ENGINES])
def test_memory_grows_as_the_root_of_the_length(engine):
    short, long = (peak_of_a_step(engine, L, "constant") for L in (64, 576))
    assert long / short < 4.5  # 9 times the length: 3, and the input
    full = peak_of_a_step(engine, 576, "full")
    assert full > 2 * long


@pytest.mark.wide
@pytest.mark.parametrize("n", [2, 3, 8, 12, 31, 60, 100, 128, 210])
@pytest.mark.parametrize(("N", "L"), list(itertools.product([1, 5, 17], [1, 2, 63, 150])))
@pytest.mark.parametrize("sign", [-1, 0, 1, "mixed"])
def test_wide(n, N, L, sign):
    check(Case(n, N, L, sign=sign, k=5))


@pytest.mark.parametrize("backend", ["reference", *ENGINES])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("matrix", ["arjovsky", "spectral"])
@pytest.mark.parametrize("readout", [False, True])
@pytest.mark.parametrize("leak", [0.0, 0.5])
def test_what_is_not_finite_stays_in_its_sequence(backend, bad, matrix, readout, leak):
    W, V, b = MATRICES[matrix](20), torch.randn(40, 2), -0.1 * torch.rand(20)
    options = {"backend": backend, "leak": leak}
    if readout:
        options["readout"] = (torch.randn(3, 40), None)
    x = torch.randn(9, 3, 2)
    clean, _ = unitary_scan(x, None, W, V, b, **options)
    x[4, 1, 0] = bad
    output, h_n = unitary_scan(x, None, W, V, b, **options)
    assert output[:, ::2].equal(clean[:, ::2])
    assert output[:4].equal(clean[:4])
    assert not output[4:, 1].isfinite().any()
    assert h_n[::2].isfinite().all() and not h_n[1].isfinite().any()


@pytest.mark.parametrize("backend", ["reference", *ENGINES])
@pytest.mark.parametrize("x", ["real", "tokens", "complex"])
@pytest.mark.parametrize("outputs", ["all", "last"])
def test_one_sequence_without_a_batch(outputs, x, backend):
    case = Case(20, 1, 7, x=x, k=2, outputs=outputs, backend=backend)
    x = torch.complex(*case.x) if x == "complex" else case.x
    V = None if case.x_kind == "complex" else case.V
    options = case.options | {"readout": (case.U, case.b_o)}
    h_0 = torch.complex(*case.h_0)[0]
    output, h_n = unitary_scan(x[:, 0], h_0, case.W, V, case.b, **options)
    batched, h = unitary_scan(x, h_0, case.W, V, case.b, **options)
    torch.testing.assert_close(output, batched[0] if outputs == "last" else batched[:, 0])
    torch.testing.assert_close(h_n, h[0])
    assert output.shape == ((2,) if outputs == "last" else (7, 2))


@pytest.mark.parametrize("backend", ["reference", *ENGINES])
def test_padding_is_never_read(backend):
    W, V = arjovsky(4), torch.randn(8, 3, requires_grad=True)
    lengths = torch.tensor([3, 5])
    for x, padding in ((torch.randn(5, 2, 3), float("nan")), (torch.randint(3, (5, 2)), -100)):
        clean, _ = unitary_scan(x, None, W, V, torch.zeros(4), lengths=lengths, backend=backend)
        x[3:, 0] = padding
        output, h_n = unitary_scan(x, None, W, V, torch.zeros(4), lengths=lengths, backend=backend)
        assert output.equal(clean) and output[3:, 0].eq(0).all() and h_n.isfinite().all()
        (grad,) = torch.autograd.grad(output.sum(), V)
        assert grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", ["reference", *ENGINES])
@pytest.mark.parametrize("n", [1, 2, 7, 128])
@pytest.mark.parametrize("matrix", ["arjovsky", "spectral", "orthogonal"])
def test_the_norm_is_kept_over_ten_thousand_steps(matrix, n, backend, dtype):
    """At b = 0 and without input, ‖h‖ drifts by less than 16·L·ε."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # V itself has to be unitary to this precision
    W = MATRICES[matrix](n)
    torch.set_default_dtype(before)
    steps = 10_000
    h_0 = torch.randn(1, n, dtype=dtype.to_complex())
    u = torch.zeros(steps, 1, n, dtype=h_0.dtype)
    with torch.no_grad():
        _, h_n = unitary_scan(
            u, h_0, W, None, torch.zeros(n, dtype=dtype), outputs="last", backend=backend
        )
    drift = (h_n.norm() / h_0.norm() - 1).abs()
    assert drift < 16 * steps * torch.finfo(dtype).eps


@pytest.mark.parametrize("engine", ["reference", *ENGINES])
def test_the_gradient_of_b_at_small_moduli(engine):
    """Re(p̄δ) is Re(p̄g) but for two terms of size b/|z|, of which float32 leaves nothing."""
    W, n = Diagonal(64), 64
    with torch.no_grad():
        W.phase.zero_()
    c = torch.randn(n, dtype=torch.complex64)
    for modulus in (1e-2, 1e-5, 1e-8, 1e-20):
        u = torch.polar(torch.full((1, 1, n), modulus), 6 * torch.rand(1, 1, n))
        b = torch.full((n,), 0.5, requires_grad=True)
        h = unitary_scan(u, None, W, None, b, backend=engine)[1]
        (h * c).real.sum().backward()
        phase = u[0, 0] / modulus
        torch.testing.assert_close(b.grad, (phase * c).real, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ["reference", *ENGINES])
def test_no_nan_by_itself(engine):
    """Where 1 + b/|z| is beyond the format, σ(z) = z + b z/|z| is not."""
    W = Diagonal(1)
    with torch.no_grad():
        W.phase.zero_()
    for z, b, h in ((1.2e-38, 5.0, 5.0), (1e-24, 1e30, 1e30), (1e-24, -math.inf, 0.0)):
        u = torch.full((1, 1, 1), z, dtype=torch.complex64)
        b = torch.tensor([b], requires_grad=True)
        h_n = unitary_scan(u, None, W, None, b, backend=engine)[1]
        torch.testing.assert_close(h_n.detach(), torch.full((1, 1), h, dtype=torch.complex64))
        h_n.real.sum().backward()
        assert b.grad.isfinite().all()


def test_constant_memory_of_a_random_nonlinearity():
    """The reference runs a stretch again with the same random numbers."""
    W, V = arjovsky(20), torch.randn(40, 3)

    def noisy(z):
        return z * F.dropout(torch.ones_like(z.real), 0.5)

    found = []
    for memory in ("full", "constant"):
        torch.manual_seed(1)
        x = torch.ones(9, 2, 3, requires_grad=True)
        output, _ = unitary_scan(x, None, W, V, None, nonlinearity=noisy, memory=memory)
        found.append(torch.autograd.grad(output.square().sum(), x)[0])
    assert found[0].equal(found[1])


@pytest.mark.parametrize("memory", ["full", "constant"])
@pytest.mark.parametrize("engine", ["reference", *ENGINES])
def test_what_changes_before_the_backward_pass_raises_or_does_not_matter(engine, memory):
    for changed in ("V", "b", "U", "W"):
        case = Case(20, 2, 9, k=2)
        truth = case.run(engine)["V"]
        options = {"backend": engine, "memory": memory, "readout": (case.U, case.b_o)}
        state = torch.complex(*case.h_0)
        output, h_n = unitary_scan(case.x, state, case.W, case.V, case.b, **options)
        real, imag = case.cost_h
        cost = (output * case.cost).sum() + (h_n.real * real + h_n.imag * imag).sum()
        with torch.no_grad():
            (case.W.factors[0].phase if changed == "W" else getattr(case, changed)).mul_(2)
        try:
            (grad,) = torch.autograd.grad(cost, case.V)
        except RuntimeError as error:
            assert "modified" in str(error)  # noqa: PT017
        else:
            torch.testing.assert_close(grad, truth)


def test_a_module_s_own_parameter_that_changes_raises():
    sigma, W, V = SplitReLU(20), arjovsky(20), torch.randn(40, 3, requires_grad=True)
    x = torch.ones(9, 2, 3)
    output, _ = unitary_scan(x, None, W, V, None, nonlinearity=sigma, memory="constant")
    with torch.no_grad():
        sigma.bias.add_(1)
    with pytest.raises(RuntimeError, match="modified in place"):
        output.sum().backward()


def test_the_reference_is_linear_in_the_length():
    """u[t] within the loop would make the backward pass quadratic in L; unbind does not."""
    V = torch.randn(40, 3, requires_grad=True)
    x, W, steps = torch.randn(200, 2, 3), arjovsky(20), 200
    output, _ = unitary_scan(x, None, W, V, None, backend="reference")
    names, nodes = [], [output.grad_fn]
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.append(node.name())
            nodes += [parent for parent, _ in node.next_functions]
    assert names.count("SelectBackward0") < steps / 4  # those of Re and Im, per stretch
    assert "UnbindBackward0" in names


@pytest.mark.parametrize("backend", ["reference", *ENGINES])
def test_a_batch_of_none(backend):
    for x in (torch.zeros(4, 0, 3), torch.zeros(4, 0, dtype=torch.int64)):
        V = torch.randn(10, 3, requires_grad=True)
        output, h_n = unitary_scan(x, None, arjovsky(5), V, torch.zeros(5), backend=backend)
        assert output.shape == (4, 0, 10) and h_n.shape == (0, 5)
        output.sum().backward()
        assert V.grad.eq(0).all()


@pytest.mark.parametrize("backend", ENGINES)
def test_several_networks_are_one_call(backend):
    """Stacked networks under vmap equal each on its own: states, and gradients."""
    cases = [Case(18, 3, 9, sign="mixed", k=2) for _ in range(3)]
    alone = [case.run(backend) for case in cases]
    parameters, buffers = torch.func.stack_module_state(cases)

    class Cost(torch.nn.Module):
        def __init__(self, case):
            super().__init__()
            self.case = case

        def forward(self):
            c = self.case
            output, h_n = unitary_scan(
                c.x, torch.complex(*c.h_0), c.W, c.V, c.b, readout=(c.U, c.b_o), backend=backend
            )
            cost = (output * c.cost).sum() + (
                torch.view_as_real(h_n).movedim(-1, 0) * c.cost_h
            ).sum()
            return cost, output

    template = Cost(cases[0])

    def run(parameters, buffers):
        state = {f"case.{k}": v for k, v in (parameters | buffers).items()}
        return torch.func.functional_call(template, state, ())

    cost, output = torch.func.vmap(run)(parameters, buffers)
    cost.sum().backward()
    for i, one in enumerate(alone):
        torch.testing.assert_close(output[i], one["output"], rtol=1e-12, atol=1e-12)
        for key, stacked in parameters.items():
            torch.testing.assert_close(stacked.grad[i], one[key], rtol=1e-11, atol=1e-11)
