"""Whose memory is read, and what PyTorch may do with it between two calls: each against PyTorch's own GRU."""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd.graph import (  # noqa: E402
    allow_mutation_on_saved_tensors,
    save_on_cpu,
    saved_tensors_hooks,
)

import onegru  # noqa: E402
import onegru.torch as ours  # noqa: E402
from tests.support.machine.processes import run_python  # noqa: E402
from tests.torch.test_modules import close, pair  # noqa: E402

T, B, I, H = 9, 4, 5, 7  # pair's I and H
Change = Callable[[Any, Any, Any, Any], object]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def gradients(module: Any, change: Change, around: AbstractContextManager[Any], T: int = T) -> list[Any]:
    """By the input, the state and the parameters, where `change` comes between forward and backward."""
    x = torch.linspace(-1, 1, T * B * I, dtype=torch.float64).reshape(T, B, I).requires_grad_()
    h = torch.linspace(-1, 1, B * H, dtype=torch.float64).reshape(1, B, H).requires_grad_()
    with around:
        y, last = module(x, h)
        change(module, x, y, last)
        (y.sin().sum() + last.cos().sum()).backward()
    return [x.grad, h.grad, *(parameter.grad for parameter in module.parameters())]


def put_on_a_queue(module: Any, *_: Any) -> None:
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    queue.put(module.state_dict())  # moves the storages into shared memory
    queue.get()


def saved_and_copied(module: Any, *_: Any) -> None:
    torch.save(module.state_dict(), io.BytesIO())
    copy.deepcopy(module)


def exchange_numbers(module: Any, x: Any, *_: Any) -> None:
    """As averages of weights and sharded ones do, without a word to autograd."""
    for tensor in (x, *module.parameters()):
        tensor.data = torch.zeros_like(tensor.data)


@pytest.mark.parametrize(
    "change",
    [
        lambda module, *_: module.share_memory(),
        put_on_a_queue,
        saved_and_copied,
        exchange_numbers,
        lambda module, *_: module.flatten_parameters(),
    ],
)
@pytest.mark.parametrize("options", [{}, {"clip": 0.5}, {"activations": ["Sigmoid", "Softsign"]}])
def test_what_moves_parameters_between_forward_and_backward(change: Change, options: dict[str, Any]) -> None:
    theirs, mine = pair()
    wanted_of: Any = theirs
    if options:  # what PyTorch has no module for: the same without the change
        mine = ours.GRU(I, H, dtype=torch.float64, **options)
        wanted_of = copy.deepcopy(mine)
    wanted = gradients(wanted_of, lambda *_: None, nullcontext())
    for a, b in zip(gradients(mine, change, nullcontext()), wanted, strict=True):
        close(a, b)


def test_exchanged_numbers_are_not_differentiated_twice() -> None:
    _, module = pair()
    x = torch.randn(T, B, I, dtype=torch.float64)
    refused = pytest.raises(onegru.SpecError, match="W: data changed since the call")
    for change, around in ((torch.clone, nullcontext()), (torch.zeros_like, refused)):
        y, _ = module(x)
        for parameter in module.parameters():
            parameter.data = change(parameter.data)
        with around:
            torch.autograd.grad(y.sin().sum(), [*module.parameters()], create_graph=True)


def on_disk(folder: Path) -> Any:
    count = iter(range(10_000))

    def pack(tensor: Any) -> Path:
        path = folder / f"{next(count)}.pt"
        torch.save(tensor, path)
        return path

    return saved_tensors_hooks(pack, lambda path: torch.load(path))


@pytest.mark.parametrize("hooks", ["copies", "save_on_cpu", "disk", "allow_mutation"])
def test_saved_tensors_are_all_that_backward_reads(hooks: str, tmp_path: Path) -> None:
    """So the weights may change meanwhile, where the hooks keep what they were."""

    def around() -> Any:
        if hooks == "copies":
            return saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor)
        if hooks == "disk":
            return on_disk(tmp_path)
        return save_on_cpu() if hooks == "save_on_cpu" else allow_mutation_on_saved_tensors()

    def change(module: Any, *_: Any) -> None:
        if hooks == "save_on_cpu":  # which keeps tensors of the CPU as they are
            return
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1)

    forms: list[dict[str, Any]] = [{}, {"clip": 0.5}]
    for options in forms:
        mine = ours.GRU(I, H, dtype=torch.float64, **options)
        other: Any = ours.GRU(I, H, dtype=torch.float64, **options) if options else nn.GRU(I, H).double()
        other.load_state_dict(mine.state_dict())
        wanted = gradients(other, lambda *_: None, nullcontext())
        for a, b in zip(gradients(mine, change, around()), wanted, strict=True):
            close(a, b)


@pytest.mark.parametrize("change", [torch.sum, torch.flatten, lambda tensor: tensor.half()])
def test_hooks_that_return_something_else(change: Any) -> None:
    _, module = pair()
    with saved_tensors_hooks(lambda tensor: tensor, change):
        y, _ = module(torch.randn(T, B, I, dtype=torch.float64))
    with pytest.raises(onegru.SpecError, match=r"; must (be|have) "):
        y.backward(torch.ones_like(y))


def test_a_change_in_place_is_found() -> None:
    def change(module: Any, *_: Any) -> None:
        with torch.no_grad():
            module.weight_hh_l0.mul_(2)

    for module in pair():
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradients(module, change, nullcontext())


def storages(module: Any, *tensors: Any) -> Iterator[Any]:
    for tensor in (*module.parameters(), *tensors):
        yield tensor.untyped_storage()


@pytest.mark.parametrize("trains", [False, True])
def test_every_storage_stays_resizable(trains: bool) -> None:
    module = ours.GRU(I, H)
    x, h = torch.randn(T, B, I, requires_grad=trains), torch.randn(1, B, H)
    lengths, resets = torch.tensor([9, 3, 0, 1]), torch.rand(T, B) > 0.7
    with torch.set_grad_enabled(trains):
        y, last = module(x, h, lengths)
        z, _ = module(x, h, resets=resets)
        if trains:
            (y.sum() + z.sum()).backward()
    given = [x, h, lengths, resets, y, last, z, *([x.grad] if trains else [])]
    if trains:
        given += [parameter.grad for parameter in module.parameters()]
    for storage in storages(module, *given):
        size = storage.size()
        storage.resize_(0)
        storage.resize_(size)


def test_buffers_that_are_written_into_again() -> None:
    module, plain = ours.GRU(I, H), nn.GRU(I, H)
    plain.load_state_dict(module.state_dict())
    buffer = torch.randn(T, B, I)
    with torch.no_grad():
        y, h = module(buffer)
        kept = y.clone()
        parts = [torch.randn(T, B, I), torch.randn(T, B, I)]
        torch.cat(parts, out=buffer.resize_(0))  # the storage grows
        torch.cat([torch.ones(9, B, H), torch.ones(9, B, H)], out=y.resize_(0))
        close(module(buffer)[0], plain(buffer)[0], 1e-6)
        close(y, torch.ones(18, B, H))
        h.resize_(0)
        close(module(parts[0])[0], plain(parts[0])[0], 1e-6)
    assert kept.shape == (T, B, H)


MEMORY = """
import resource, sys, torch, onegru.torch as ours
torch.set_num_threads(1)
from onegru import set_num_threads
set_num_threads(1)
kind = {"ours": ours.GRU, "theirs": torch.nn.GRU}[sys.argv[1]]
module = kind(256, 512)
h, xs = torch.zeros(1, 1, 512), [torch.randn(3, 1, 256) for _ in range(60)]
for x in xs[:10]:
    module(x, h)[1].sum().backward()
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, total = peak(), 0
for x in xs[10:]:
    y, h = module(x, h)
    total = total + y.sum()
after = peak()
total.backward()
print((after - before) / 1024)
"""


def test_a_graph_of_many_calls_holds_no_packed_weights() -> None:
    """50 calls whose packed weights take 4.5 MiB each. Measured: 0 to 2 MiB, PyTorch's 1."""
    mine, theirs = (float(run_python(MEMORY, kind).stdout) for kind in ("ours", "theirs"))
    assert mine <= theirs + 10


SHARDED = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

def work(rank, kind, file):
    import onegru.torch as ours
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
    found = []
    for make in (torch.nn.GRU, ours.GRU):
        torch.manual_seed(3)
        module = torch.nn.Sequential(make(5, 8), Head())
        if kind == "1":
            from torch.distributed.fsdp import FullyShardedDataParallel
            module = FullyShardedDataParallel(module, device_id=torch.device("cpu"))
        else:
            from torch.distributed.fsdp import fully_shard
            fully_shard(module[0], mesh=init_device_mesh("cpu", (2,)))
            fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        losses = []
        for step in range(3):
            torch.manual_seed(10 * step + rank)
            loss = module(torch.randn(7, 2, 5)).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        found.append(losses)
    assert max(abs(a - b) for a, b in zip(*found)) < 1e-4, found
    dist.destroy_process_group()

class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(8, 1)
    def forward(self, given):
        return self.out(given[0])

if __name__ == "__main__":
    mp.start_processes(work, (sys.argv[1], sys.argv[2]), nprocs=2, start_method="fork")
    print("same")
"""


@pytest.mark.parametrize("kind", ["1", "2"])
def test_sharded_parameters_in_two_processes(kind: str, tmp_path: Path) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no gloo")
    environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = run_python(SHARDED, kind, tmp_path / "meet", options=("-W", "ignore"), environment=environment)
    assert done.stdout.split() == ["same"], os.linesep.join((done.stdout, done.stderr))


@pytest.mark.parametrize("steps", [1, 2, 6, 9])
def test_recorded_calls_are_operators(steps: int) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    theirs, mine = pair()
    x, other = (torch.randn(steps, B, I, dtype=torch.float64) for _ in range(2))
    for grad in (False, True):

        def call(module: Any, x: Any, grad: bool = grad) -> Any:
            with torch.set_grad_enabled(grad):
                return module(x)[0]

        found = make_fx(lambda x: call(mine, x))(x)
        close(found(other).detach(), call(theirs, other).detach())


def test_recorded_gradients_are_operators() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    theirs, mine = pair()
    x, other = (torch.randn(T, B, I, dtype=torch.float64) for _ in range(2))

    def by_x(module: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(module(x)[0].sin().sum(), x)[0]

    close(make_fx(lambda x: by_x(mine, x))(x)(other), by_x(theirs, other))


@pytest.mark.parametrize("steps", [1, 3, 9])
def test_tensors_without_numbers(steps: int) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for kind in (nn.GRU, ours.GRU):
            module = kind(I, H, num_layers=2, bidirectional=True)
            x = torch.randn(steps, B, I, requires_grad=True)
            y, h = module(x)
            assert (y.shape, h.shape) == ((steps, B, 2 * H), (4, B, H))
            y.sum().backward()
            assert x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize("steps", range(1, 8))
@pytest.mark.parametrize("grad", [False, True])
def test_mapped_calls_of_any_number_of_steps(steps: int, grad: bool) -> None:
    """An ensemble, and a batch of inputs, against one call after the other."""
    from torch.func import functional_call, stack_module_state

    plain = [nn.GRU(I, H, dtype=torch.float64) for _ in range(3)]
    mine = [ours.GRU(I, H, dtype=torch.float64) for _ in range(3)]
    for a, b in zip(mine, plain, strict=True):
        a.load_state_dict(b.state_dict())
    parameters, buffers = stack_module_state(mine)
    x = torch.randn(3, steps, B, I, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        found = torch.vmap(lambda p, b, x: functional_call(mine[0], (p, b), (x,))[0])(parameters, buffers, x)
        wanted = torch.stack([module(x[i])[0] for i, module in enumerate(plain)])
        close(found.detach(), wanted.detach())
        found = torch.vmap(lambda x: mine[0](x)[1])(x)
        close(found.detach(), torch.stack([plain[0](x[i])[1] for i in range(3)]).detach())
    if grad:
        first = torch.func.vmap(torch.func.grad(lambda x: mine[0](x)[0].sin().sum()))(x)
        x.requires_grad_()
        wanted = torch.autograd.grad(torch.stack([plain[0](x[i])[0] for i in range(3)]).sin().sum(), x)[0]
        close(first, wanted)


def test_mapped_cells() -> None:
    """An ensemble of cells on one input, that differ only in weights."""
    from torch.func import functional_call, stack_module_state

    plain = [nn.GRUCell(I, H, dtype=torch.float64) for _ in range(3)]
    mine = [ours.GRUCell(I, H, dtype=torch.float64) for _ in range(3)]
    for a, b in zip(mine, plain, strict=True):
        a.load_state_dict(b.state_dict())
    parameters, _ = stack_module_state(mine)
    x = torch.randn(B, I, dtype=torch.float64)
    found = torch.vmap(lambda p: functional_call(mine[0], p, (x,)))(parameters)
    close(found.detach(), torch.stack([module(x) for module in plain]).detach())
    one = torch.func.grad(lambda p: functional_call(mine[0], p, (x,)).sin().sum())
    by = torch.vmap(one)(parameters)["weight_hh"]
    for module in plain:
        module(x).sin().sum().backward()
    close(by.detach(), torch.stack([module.weight_hh.grad for module in plain]))


def test_many_gradients_at_once() -> None:
    theirs, mine = pair()
    seeds = torch.randn(3, T, B, H, dtype=torch.float64)
    found = []
    for module, batched in ((theirs, False), (mine, True)):
        x = torch.linspace(-1, 1, T * B * I, dtype=torch.float64).reshape(T, B, I).requires_grad_()
        y = module(x)[0]
        if batched:
            found.append(torch.autograd.grad(y, x, seeds, is_grads_batched=True)[0])
        else:
            found.append(torch.stack([torch.autograd.grad(y, x, s, retain_graph=True)[0] for s in seeds]))
    close(*found)


def test_negative_views_have_their_sign() -> None:
    theirs, mine = pair()
    x = torch.randn(T, B, I, dtype=torch.complex128).conj().imag
    assert x.is_neg()
    for trains in (False, True):
        with torch.set_grad_enabled(trains):
            close(mine(x)[0].detach(), theirs(x)[0].detach())


@pytest.mark.parametrize("trains", [False, True])
def test_no_steps_are_an_error(trains: bool) -> None:
    theirs, mine = pair()
    x, h = torch.zeros(0, B, I, dtype=torch.float64), torch.ones(1, B, H, dtype=torch.float64)
    with torch.set_grad_enabled(trains):
        with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
            theirs(x, h)
        for module in (mine, ours.GRU(I, H, dtype=torch.float64, linear_before_reset=False)):
            with pytest.raises(onegru.SpecError, match=r"^input: .*0 steps.*must be"):
                module(x, h)


def test_lengths_may_be_mapped() -> None:
    mine = pair()[1]
    x = torch.randn(3, T, B, I, dtype=torch.float64)
    lengths = torch.arange(3 * B).reshape(3, B) % (T + 1)
    found = torch.vmap(lambda x, lengths: mine(x, lengths=lengths)[0])(x, lengths)
    close(found, torch.stack([mine(a, lengths=b)[0] for a, b in zip(x, lengths, strict=True)]))
    with pytest.raises(onegru.SpecError, match=r"^sequence_lens: "):
        torch.vmap(lambda x, lengths: mine(x, lengths=lengths)[0])(x, lengths + T)


def test_tensors_that_have_no_memory() -> None:
    """Zeros that are never written are read as such; what has no elements in a row is refused by name."""
    theirs, mine = pair()
    zeros = torch._efficientzerotensor((T, B, I), dtype=torch.float64)
    close(mine(zeros)[0].detach(), theirs(zeros)[0].detach())
    with pytest.raises(onegru.SpecError, match=r"^X: .*sparse.*; must be "):
        mine(torch.zeros(T, B, I, dtype=torch.float64).to_sparse())
    with pytest.raises(onegru.SpecError, match=r"^vmap: "):
        torch.vmap(lambda x: mine(x)[0])(torch.zeros(0, T, B, I, dtype=torch.float64))
    mine.weight_hh_l0.untyped_storage().resize_(0)
    with pytest.raises(onegru.SpecError, match=r"^R: .*freed.*; must "):
        mine(torch.zeros(T, B, I, dtype=torch.float64))


def test_the_operator_takes_only_one_type() -> None:
    """Anyone may call it; memory of another type would be read past its end."""
    mine = pair()[1]
    weights = [[p.detach()] for p in mine.parameters()]
    x, h = torch.zeros(T, B, I, dtype=torch.float64), torch.zeros(1, B, H)
    with pytest.raises(onegru.SpecError, match=r"^initial_h: float32; must be float64"):
        torch.ops.onegru.gru(x, h, None, None, None, *weights, *mine.form.scalars)


@pytest.mark.parametrize("cell", [False, True])
def test_data_that_moves_within_its_storage(cell: bool) -> None:
    """As parameters in a flat buffer do, and frames in a ring."""
    module = ours.GRUCell(5, 7) if cell else ours.GRU(5, 7)
    buffers = torch.randn(2, 2, 5) if cell else torch.randn(2, 4, 2, 5)
    x = torch.empty(0)
    x.data = buffers[0]
    flat = torch.cat([p.detach().flatten() for p in module.parameters()] + [torch.zeros(1000)])
    place = 0
    for p in module.parameters():
        p.data = flat[place : place + p.numel()].view_as(p)
        place += p.numel()

    def call() -> Any:
        return module(x) if cell else module(x)[0]

    wanted = torch.autograd.grad(call().sum(), [*module.parameters()])
    y = call()
    x.data = buffers[1]
    for p in module.parameters():
        p.data = flat[place : place + p.numel()].view_as(p)
    for a, b in zip(torch.autograd.grad(y.sum(), [*module.parameters()]), wanted, strict=True):
        close(a, b, 1e-6)


def test_no_storage_is_kept_except_what_autograd_saves() -> None:
    """Hooks may take all of it elsewhere, and backward gives it back."""
    module = ours.GRU(5, 7).requires_grad_(False)
    x = torch.randn(4, 2, 5, requires_grad=True) * 1
    with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        y, _ = module(x)
    wanted = torch.autograd.grad(module(x)[0].sum(), x)[0]
    for tensor in (x, *module.parameters()):
        tensor.untyped_storage().resize_(0)
    close(torch.autograd.grad(y.sum(), x)[0], wanted, 1e-6)


def test_cells_with_computed_parameters() -> None:
    cell, x = ours.GRUCell(5, 7), torch.randn(3, 5)
    wanted = cell(x)
    torch.nn.utils.parametrizations.weight_norm(cell, "weight_ih")
    close(cell(x), wanted, 1e-6)


def test_functionalize_with_derivatives() -> None:
    module, x = ours.GRU(5, 7), torch.randn(4, 2, 5)

    def run(x: Any) -> Any:
        return module(x)[0].sum()

    wanted = torch.func.grad(run)(x)
    close(torch.func.grad(torch.func.functionalize(run))(x), wanted, 1e-6)
    close(torch.func.functionalize(torch.func.grad(run))(x), wanted, 1e-6)
