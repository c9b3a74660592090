"""One named test for each habit of PyTorch: the layer lives with the rest of it."""

import copy
import io
import pickle
import warnings

import pytest
import safetensors.torch
import torch
import torch.multiprocessing
from torch import nn
from torch.func import functional_call, grad, hessian, jvp, stack_module_state, vmap
from torch.nn.utils import parametrizations, parametrize, prune

import urnn
from urnn import UnitaryRNN, UnitaryRNNCell
from urnn.cell import LEAKS
from urnn.ops import dispatch

BACKENDS = tuple(dispatch.BACKENDS)
RADIAL = tuple(LEAKS)
COMPILERS = ["aot_eager"]
try:
    torch._inductor.cpp_builder.get_cpp_compiler()
    COMPILERS.append("inductor")
except RuntimeError:  # no C++ compiler on this machine
    pass


def make(*args, **kwargs):
    kwargs.setdefault("dtype", torch.float64)
    rnn = UnitaryRNN(*args, **kwargs)
    with torch.no_grad():
        for cell in rnn.cells:
            if cell.bias is not None:
                cell.bias.uniform_(-0.2, 0.1)
    return rnn


class Cayley(urnn.unitary.Unitary):
    """A matrix of a user's own, which no structured form serves."""

    def __init__(self, n):
        super().__init__(n)
        self.generator = nn.Parameter(torch.randn(2, n, n) / n**0.5)

    def prepare(self):
        B = torch.complex(self.generator[0], self.generator[1])
        A, identity = B - B.mH, torch.eye(self.size, dtype=B.dtype)
        W = torch.linalg.solve(identity + A, identity - A)
        return urnn.unitary.Prepared(lambda z: z @ W.mT, lambda z: z @ W.conj())


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def cost(answer):
    output, h_n = answer
    return output.square().sum() + h_n.real.sum() + h_n.imag.square().sum()


def gradients(rnn, *args):
    rnn.zero_grad()
    cost(rnn(*args)).backward()
    return {name: p.grad.clone() for name, p in rnn.named_parameters()}


def assert_close(found, truth, tolerance=1e-10):
    assert found.keys() == truth.keys()
    for key in truth:
        torch.testing.assert_close(found[key], truth[key], rtol=tolerance, atol=tolerance)


def twin(rnn):
    """Return the same layer with other parameters."""
    other = copy.deepcopy(rnn)
    other.reset_parameters()
    return other


def test_state_dict():
    rnn = make(3, 20, num_layers=2, bidirectional=True, output_size=2)
    other, x = twin(rnn), randn(5, 2, 3)
    assert not other(x)[0].equal(rnn(x)[0])
    other.load_state_dict(rnn.state_dict())
    assert other(x)[0].equal(rnn(x)[0])


@pytest.mark.parametrize("unitary", ["arjovsky", "spectral", "orthogonal"])
def test_safetensors(unitary, tmp_path):
    rnn = make(3, 20, unitary=unitary, output_size=2)
    other, x = twin(rnn), randn(5, 2, 3)
    safetensors.torch.save_file(rnn.state_dict(), tmp_path / "rnn.safetensors")
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "rnn.safetensors"))
    assert other(x)[0].equal(rnn(x)[0])
    safetensors.torch.save_model(rnn, str(tmp_path / "model.safetensors"))
    safetensors.torch.load_model(other := twin(rnn), str(tmp_path / "model.safetensors"))
    assert other(x)[0].equal(rnn(x)[0])


def test_torch_save_with_weights_only():
    rnn, buffer = make(3, 8), io.BytesIO()
    torch.save(rnn.state_dict(), buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True).keys() == rnn.state_dict().keys()


def test_deepcopy():
    rnn, x = make(3, 20), randn(5, 2, 3)
    other = copy.deepcopy(rnn)
    assert other(x)[0].equal(rnn(x)[0])
    with torch.no_grad():
        other.cells[0].input_weight.zero_()
    assert not other(x)[0].equal(rnn(x)[0])


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"nonlinearity": "split_relu", "init": "theano"}, {"unitary": urnn.unitary.Spectral}],
)
def test_pickle(kwargs):
    rnn, x = UnitaryRNN(3, 20, **kwargs), torch.randn(5, 2, 3)
    other = pickle.loads(pickle.dumps(rnn))
    assert other(x)[0].equal(rnn(x)[0])
    other.reset_parameters()


def test_extra_repr():
    rnn = UnitaryRNN(3, 8, num_layers=2, dropout=0.1, output_size=2)
    text = repr(rnn)
    assert text.startswith("UnitaryRNN(\n  3, 8, num_layers=2, dropout=0.1, output_size=2\n")
    assert "Diagonal(8) @ Reflection(8) @ Fourier(8).H @ Diagonal(8) @ Permutation(8)" in text
    assert repr(UnitaryRNN(3, 8, bias=False)).startswith("UnitaryRNN(\n  3, 8, bias=False\n")
    assert "nonlinearity='leaky_modrelu'" in repr(UnitaryRNN(3, 8, nonlinearity="leaky_modrelu"))


@pytest.mark.parametrize("unitary", ["arjovsky", "spectral", "orthogonal"])
def test_meta_device(unitary):
    rnn = UnitaryRNN(3, 8, num_layers=2, output_size=2, unitary=unitary, device="meta")
    assert all(t.is_meta for t in rnn.state_dict().values())
    rnn = rnn.to_empty(device="cpu")
    rnn.reset_parameters()
    output, _ = rnn(torch.randn(5, 2, 3))
    assert output.isfinite().all()
    M = rnn.cells[0].unitary.as_matrix()
    assert (M @ M.mH - torch.eye(8)).abs().max() < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_meta_tensors_run_through(backend):
    rnn = UnitaryRNN(3, 20, output_size=2, device="meta", backend=backend)
    output, h_n = rnn(torch.zeros(5, 2, 3, device="meta"))
    assert output.shape == (5, 2, 2)
    assert h_n.shape == (1, 2, 20)


def test_default_device_and_dtype():
    with torch.device("meta"):
        assert all(t.is_meta for t in UnitaryRNN(3, 8).state_dict().values())
    rnn = UnitaryRNN(3, 8).double()
    assert rnn(randn(4, 2, 3))[1].dtype == torch.complex128


def test_requires_grad_false_keeps_nothing_and_is_respected():
    rnn, x = make(3, 20, output_size=2), randn(5, 2, 3)
    assert rnn.requires_grad_(False)(x)[0].grad_fn is None
    output, _ = rnn(x.requires_grad_())
    output.sum().backward()
    assert x.grad.abs().sum() > 0
    assert all(p.grad is None for p in rnn.parameters())
    rnn.cells[0].bias.requires_grad_()
    rnn(x.detach())[0].sum().backward()
    assert [n for n, p in rnn.named_parameters() if p.grad is not None] == ["cells.0.bias"]


def test_inference_mode():
    rnn, x = make(3, 20), randn(5, 2, 3)
    with torch.inference_mode():
        inside = rnn(x)[0]
    assert inside.equal(rnn(x)[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_compile(compiler, backend):
    torch._dynamo.reset()
    rnn = make(3, 20, output_size=2, bidirectional=backend == "manual", backend=backend)
    x = randn(6, 4, 3)
    truth = gradients(rnn, x)
    dynamic = True if backend == "manual" else None
    compiled = torch.compile(rnn, fullgraph=True, dynamic=dynamic, backend=compiler)
    rnn.zero_grad()
    cost(compiled(x)).backward()
    assert_close({n: p.grad for n, p in rnn.named_parameters()}, truth)
    lengths = (9, 14) if backend == "manual" else (7,)
    with torch._dynamo.config.patch(error_on_recompile=backend == "manual"):
        for length in lengths:
            x = randn(length, 4, 3)
            torch.testing.assert_close(compiled(x)[0], rnn(x)[0])
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], rnn(x)[0])


@pytest.mark.parametrize(
    "kwargs",
    [
        {"memory": "constant", "nonlinearity": "leaky_modrelu"},
        {"outputs": "last", "nonlinearity": "modrelu_nonpositive"},
        {"unitary": "spectral", "bidirectional": True},
        {"unitary": Cayley},
    ],
)
def test_compile_of_other_layers(kwargs):
    torch._dynamo.reset()
    rnn = make(5, 20, output_size=2, num_layers=2, **kwargs)
    compiled = torch.compile(rnn, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (torch.randint(5, (6, 4)), torch.randint(5, (31, 3))):
        truth = gradients(rnn, tokens)
        rnn.zero_grad()
        cost(compiled(tokens)).backward()
        assert_close({n: p.grad for n, p in rnn.named_parameters()}, truth)
    with pytest.raises(IndexError, match="token 5 is out of range"):
        compiled(torch.full((6, 4), 5))


def test_compile_of_a_user_s_training_step():
    torch._dynamo.reset()
    rnn, x = make(3, 20, output_size=2), randn(6, 4, 3)

    def step(x):
        return cost(rnn(x))

    truth = gradients(rnn, x)
    rnn.zero_grad()
    torch.compile(step, fullgraph=True, backend="aot_eager")(x).backward()
    assert_close({n: p.grad for n, p in rnn.named_parameters()}, truth)


@pytest.mark.parametrize("nonlinearity", RADIAL)
@pytest.mark.parametrize("memory", ["full", "constant"])
def test_export_with_a_dynamic_length(memory, nonlinearity, tmp_path):
    rnn = make(5, 20, output_size=2, memory=memory, nonlinearity=nonlinearity)
    if nonlinearity == "modrelu_nonpositive":  # the graph has the derivative of min(b, 0) itself
        nn.init.uniform_(rnn.cells[0].bias, -0.2, -0.1)
    L, N = torch.export.Dim("L"), torch.export.Dim("N")
    tokens = torch.randint(5, (6, 4))
    program = torch.export.export(rnn, (tokens,), dynamic_shapes=({0: L, 1: N},))
    torch.export.save(program, tmp_path / "rnn.pt2")
    module = torch.export.load(tmp_path / "rnn.pt2").module()
    longer = torch.randint(5, (11, 3))
    torch.testing.assert_close(module(longer)[0], rnn(longer)[0])
    truth = gradients(rnn, longer)
    cost(module(longer)).backward()
    found = {n: p.grad for n, p in module.named_parameters()}
    assert_close(found, truth)


def test_export_of_a_matrix_of_one_s_own():
    rnn, x = make(3, 20, unitary=Cayley), randn(6, 4, 3)
    module = torch.export.export(rnn, (x,), dynamic_shapes=({0: torch.export.Dim("L")},)).module()
    x = randn(9, 4, 3)
    torch.testing.assert_close(module(x)[0], rnn(x)[0])


def test_export_of_the_reference_loop_at_a_fixed_length():
    rnn = make(3, 8, output_size=2, backend="reference")
    x = randn(6, 4, 3)
    module = torch.export.export(rnn, (x,)).module()
    torch.testing.assert_close(module(x)[0], rnn(x)[0])
    truth = gradients(rnn, x)
    rnn.zero_grad()  # module shares rnn's parameters
    cost(module(x)).backward()
    assert_close({n: p.grad for n, p in module.named_parameters()}, truth)


def functional(rnn):
    buffers = dict(rnn.named_buffers())
    return lambda p, x: cost(functional_call(rnn, (p, buffers), (x,)))


def detached(rnn):
    return {name: p.detach() for name, p in rnn.named_parameters()}


@pytest.mark.parametrize("nonlinearity", RADIAL)
@pytest.mark.parametrize("backend", BACKENDS)
def test_func_grad(backend, nonlinearity):
    rnn = make(3, 20, output_size=2, backend=backend, nonlinearity=nonlinearity)
    x = randn(6, 4, 3)
    assert_close(grad(functional(rnn))(detached(rnn), x), gradients(rnn, x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_func_gradients_per_sample(backend):
    rnn, xs = make(3, 20, output_size=2, bidirectional=True, backend=backend), randn(5, 6, 2, 3)
    found = vmap(grad(functional(rnn)), (None, 0))(detached(rnn), xs)
    each = [gradients(rnn, x) for x in xs]
    assert_close(found, {k: torch.stack([g[k] for g in each]) for k in each[0]})


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("unitary", ["arjovsky", "spectral", Cayley])
def test_func_ensembles(unitary, backend):
    rnns = [make(3, 20, output_size=2, unitary=unitary, backend=backend) for _ in range(3)]
    x = randn(6, 2, 3)
    parameters, buffers = stack_module_state(rnns)

    def one(p, b):
        return cost(functional_call(rnns[0], (p, b), (x,)))

    costs = vmap(one)(parameters, buffers)
    costs.sum().backward()
    each = [gradients(rnn, x) for rnn in rnns]
    assert_close(
        {k: p.grad for k, p in parameters.items()},
        {k: torch.stack([g[k] for g in each]) for k in each[0]},
    )


def test_func_forward_mode_takes_the_reference():
    rnn, x = make(3, 20, output_size=2), randn(6, 4, 3)
    p, g = detached(rnn), gradients(rnn, x)
    tangent = {k: torch.randn_like(v) for k, v in p.items()}
    _, derivative = jvp(lambda p: functional(rnn)(p, x), (p,), (tangent,))
    torch.testing.assert_close(derivative, sum((g[k] * tangent[k]).sum() for k in g))

    def of_bias(b):
        return functional(rnn)(p | {"cells.0.bias": b}, x)

    H = hessian(of_bias)(p["cells.0.bias"])
    torch.testing.assert_close(H, H.mT)
    rnn.backend = "manual"
    with pytest.raises(ValueError, match="forward-mode"):
        jvp(lambda p: functional(rnn)(p, x), (p,), (tangent,))


def test_second_derivatives_raise_rather_than_vanish():
    rnn, x = make(3, 20, output_size=2, backend="manual"), randn(6, 4, 3)
    parameters = list(rnn.parameters())
    first = torch.autograd.grad(cost(rnn(x)), parameters, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivative.*backend='reference'"):
        sum(g.sum() for g in first).backward()
    p = detached(rnn)
    with pytest.raises(RuntimeError, match="no second derivative"):
        grad(lambda q: sum(g.sum() for g in grad(functional(rnn))(q, x).values()))(p)
    rnn.backend = "reference"
    first = torch.autograd.grad(cost(rnn(x)), parameters, create_graph=True)
    sum(g.sum() for g in first).backward()
    assert rnn.cells[0].bias.grad.isfinite().all()


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@pytest.mark.parametrize("per_sample", [False, True])
def test_compile_of_func_grad(per_sample, compiler):
    torch._dynamo.reset()
    rnn, x = make(3, 20, output_size=2), randn(*((5,) if per_sample else ()), 6, 4, 3)
    derivative = grad(functional(rnn))
    if per_sample:
        derivative = vmap(derivative, (None, 0))
    found = torch.compile(derivative, backend=compiler)(detached(rnn), x)
    assert_close(found, derivative(detached(rnn), x))


@pytest.mark.parametrize("compiler", [None, "eager", "aot_eager"])
@pytest.mark.parametrize("n", [8, 20])  # dense, in no gauge; structured
def test_lazy_conjugates_are_conjugated(n, compiler):
    torch._dynamo.reset()
    W = urnn.unitary.arjovsky(n, dtype=torch.float64)
    u = torch.randn(5, 2, n, dtype=torch.complex128)
    W.requires_grad_(False)

    def conjugated(b):
        output, h_n = urnn.functional.unitary_scan(u.conj(), u[0].conj(), W, None, b)
        return output.square().sum() + (h_n.conj() * u[1]).real.sum()

    derivative = grad(conjugated)
    if compiler:
        derivative = torch.compile(derivative, backend=compiler)
    b = 0.1 * randn(n)
    with urnn.use_backend("reference"):
        truth = grad(conjugated)(b)
    torch.testing.assert_close(derivative(b), truth)


@pytest.mark.parametrize("keep", ["full", "constant"])
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("x", ["real", "tokens", "complex"])
@pytest.mark.parametrize("last", [False, True])
def test_opcheck(last, x, dense, keep):
    G, L, N, H, n, k = 2, 5, 3, 3, 4, 2
    f64 = {"dtype": torch.float64, "requires_grad": True}
    c128 = {"dtype": torch.complex128, "requires_grad": True}
    structured = [
        torch.randn(G, n, **c128),
        torch.randn(G, n, **c128),
        torch.stack([torch.randperm(n) for _ in range(G)]),
        torch.randn(G, n, 1, **c128),
        torch.randn(G, n, 1, **c128),
        torch.zeros(G, n, **f64),
    ]
    inputs = {
        "real": torch.randn(G, L, N, H, **f64),
        "tokens": torch.randint(H, (G, L, N)),
        "complex": torch.randn(G, L, N, n, **c128),
    }
    args = (
        *("manual", keep, last),
        inputs[x],
        None if x == "complex" else torch.randn(G, H, n, **c128),
        torch.randn(G, N, n, **c128),
        torch.randn(G, n, **f64),
        None if last else torch.randn(G, k, n, **c128),
        torch.tensor([[5, 2, 3]] * G),
        *([torch.randn(G, n, n, **c128)] if dense else structured,),
        0.0,
    )
    torch.library.opcheck(torch.ops.urnn.scan.default, args)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast(half, backend):
    rnn = UnitaryRNN(8, 20, output_size=2, backend=backend)
    embed = nn.Linear(3, 8)
    x = torch.randn(40, 2, 3)
    with torch.autocast("cpu", dtype=half):
        inner = embed(x)
        assert inner.dtype == half
        output, h_n = rnn(inner)
        cost((output, h_n)).backward()
    assert output.dtype == torch.float32
    assert h_n.dtype == torch.complex64
    exact = rnn(inner.float())
    assert output.equal(exact[0])  # nothing inside ran in half precision
    assert h_n.equal(exact[1])
    assert embed.weight.grad.isfinite().all()


def test_autocast_around_the_backward_pass():
    rnn, x = UnitaryRNN(8, 20, output_size=2, backend="manual"), torch.randn(40, 2, 8)
    truth = gradients(rnn, x)
    rnn.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cost(rnn(x)).backward()
    assert_close({n: p.grad for n, p in rnn.named_parameters()}, truth, 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_over_lengths(backend):
    W, V, x = urnn.unitary.arjovsky(20), torch.randn(40, 3), torch.randn(6, 2, 3)
    lengths = torch.tensor([6, 3])

    def one(V, x, length):
        lengths = length[None]
        found, _ = urnn.functional.unitary_scan(
            x[:, None], None, W, V, None, lengths=lengths, backend=backend
        )
        return found.sum()

    found = vmap(grad(one), (None, 1, 0))(V, x, lengths)
    each = [grad(one)(V, x[:, i], lengths[i]) for i in range(2)]
    torch.testing.assert_close(found, torch.stack(each), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_of_the_cell(half):
    cell, x = UnitaryRNNCell(3, 20), torch.randn(2, 3)
    exact = cell(x.to(half).float())
    with torch.autocast("cpu", dtype=half):
        assert cell(x.to(half)).equal(exact)
        assert cell.prepare()(x.to(half)).equal(exact)


def test_constant_memory_of_the_reference_within_func_says_no():
    rnn = make(3, 20, nonlinearity="split_relu", memory="constant", initial_state="zero")
    with pytest.raises(RuntimeError, match="use memory='full'"):
        grad(functional(rnn))(detached(rnn), randn(6, 2, 3))


def test_clip_grad_norm():
    rnn = make(3, 20, output_size=2)
    gradients(rnn, randn(6, 4, 3))
    nn.utils.clip_grad_norm_(rnn.parameters(), 0.1)
    total = torch.stack([p.grad.norm() for p in rnn.parameters()]).norm()
    torch.testing.assert_close(total, torch.tensor(0.1, dtype=torch.float64), rtol=1e-4, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pruning_and_parametrisation_of_the_readout(backend):
    rnn, x = make(3, 20, output_size=2, backend=backend), randn(6, 4, 3)
    prune.l1_unstructured(rnn, "readout_weight", amount=0.5)
    assert rnn.readout_weight.eq(0).sum() == 40
    cost(rnn(x)).backward()
    assert rnn.readout_weight_orig.grad.eq(0).sum() == 40
    prune.remove(rnn, "readout_weight")

    parametrizations.weight_norm(rnn, "readout_weight")
    cost(rnn(x)).backward()
    assert rnn.parametrizations.readout_weight.original0.grad.abs().sum() > 0
    parametrize.remove_parametrizations(rnn, "readout_weight")


@pytest.mark.parametrize("backend", BACKENDS)
def test_hooks_see_the_gradients(backend):
    rnn, seen = make(3, 20, backend=backend), []
    for p in rnn.parameters():
        p.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    cost(rnn(randn(6, 2, 3))).backward()
    assert len(seen) == len(list(rnn.parameters()))


def test_optimisers_learn():
    """Remember the sign of the first of ten numbers."""
    rnn = UnitaryRNN(1, 32, output_size=1, outputs="last")
    optimiser = torch.optim.AdamW(rnn.parameter_groups(), lr=0.01)
    for _ in range(80):
        x = torch.randn(10, 64, 1)
        optimiser.zero_grad()
        logits = rnn(x)[0][:, 0]
        nn.functional.binary_cross_entropy_with_logits(logits, (x[0, :, 0] > 0).float()).backward()
        optimiser.step()
    x = torch.randn(10, 500, 1)
    assert ((rnn(x)[0][:, 0] > 0) == (x[0, :, 0] > 0)).float().mean() > 0.9


def test_lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, about its environment
        import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.rnn = UnitaryRNN(3, 20, output_size=1, outputs="last")

        def training_step(self, batch, _):
            x, y = batch
            return nn.functional.mse_loss(self.rnn(x.transpose(0, 1))[0], y)

        def configure_optimizers(self):
            return torch.optim.RMSprop(self.rnn.parameter_groups(), lr=1e-3)

    module = Module()
    before = copy.deepcopy(module.state_dict())
    data = torch.utils.data.TensorDataset(torch.randn(8, 5, 3), torch.randn(8, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    moved = {k for k, v in module.state_dict().items() if not v.equal(before[k])}
    assert moved == {f"rnn.{name}" for name, _ in module.rnn.named_parameters()}


def _train_one_step(rank, port, folder, state, x):
    torch.set_num_threads(1)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False, use_libuv=False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    rnn = UnitaryRNN(3, 20, output_size=2, bidirectional=True, dtype=torch.float64)
    rnn.load_state_dict(state)
    parallel = nn.parallel.DistributedDataParallel(rnn)
    output, _ = parallel(x[:, rank::2])
    output.square().mean().backward()
    if rank == 0:
        torch.save({n: p.grad for n, p in rnn.named_parameters()}, folder / "gradients.pt")
    torch.distributed.destroy_process_group()


def test_ddp_on_two_processes_equals_the_joined_batch(tmp_path):
    rnn = make(3, 20, output_size=2, bidirectional=True)
    x = randn(6, 4, 3)
    # the store outlives both processes, and has its port before they start
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=False)
    args = (store.port, tmp_path, rnn.state_dict(), x)
    torch.multiprocessing.spawn(_train_one_step, args, nprocs=2)
    rnn(x)[0].square().mean().backward()
    assert_close(
        torch.load(tmp_path / "gradients.pt"), {n: p.grad for n, p in rnn.named_parameters()}
    )
