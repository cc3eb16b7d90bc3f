"""Calls that `from_torch` traces in another form, because pnnx would lose a part of them."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest

import kuiper

torch = pytest.importorskip("torch", reason="converting a module needs torch")
pytest.importorskip("pnnx", reason="converting a module needs pnnx")
nn = torch.nn


class Net(nn.Module):
    """A function of the network and its input, with some layers."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x):
        return self.function(self, x)


def gelu(net, x):
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))


def gelu_by_functions(net, x):
    cube = torch.pow(x, exponent=3.0)
    return 0.5 * x * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (x + 0.044715 * cube)))


def reshaped(net, x):
    """Crashes pnnx 9 times of 10 if x * x has an operand twice."""
    x = x.view((*x.size()[:-1], 8))
    y = x.view(-1, x.size(-1))
    return (x * x * x + x).view(-1, x.size(-1)) + (y + y + y) * torch.mul(y, y) * y.tanh()


def gelu_of_rows(net, x):
    """The projections of GPT-2."""
    rows = torch.addmm(net.linear.bias, x.view(-1, x.size(-1)), net.linear.weight)
    return gelu(net, rows.view((*x.size()[:-1], 8)))


def causal(net, x):
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return net.attention(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]


def query_for_key(net, x):
    query = x + x.flip(1)
    return net.attention(query, query, value=x, need_weights=False)[0]


def query_for_value(net, x):
    return net.attention(x, x + x.flip(1), x, need_weights=False)[0]


def decoder(net, x):
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return net.decoder(x, x, tgt_mask=mask)


def overlapping(net, x):
    parts = x.transpose(0, 1).reshape(3, 2, 1, 8).transpose(0, 2)
    size, stride = list(parts.shape), list(parts.stride())
    return parts.as_strided([size[0], 3, *size[2:]], [stride[0], stride[1] // 2, *stride[2:]]) * 2


def partly_set(net, x):
    bias = net.norm.bias.clone()
    bias[2:5].zero_()
    bias[6:].fill_(0.5)
    return x + bias


def numbers():
    return torch.randn(1, 6, 8)


def integers():
    return torch.randint(-99, 99, (1, 6, 8))


CASES = {
    "layer norm without bias": lambda: Net(
        lambda net, x: net.norm(x), norm=nn.LayerNorm(8, bias=False)
    ),
    "tanh GELU": lambda: Net(gelu),
    "tanh GELU by functions": lambda: Net(gelu_by_functions),
    "tanh GELU of rows": lambda: Net(gelu_of_rows, linear=nn.Linear(8, 8)),
    "powers of a reshaped tensor": lambda: Net(reshaped),
    "causal attention": lambda: Net(
        causal, attention=nn.MultiheadAttention(8, 2, batch_first=True)
    ),
    "the query for the key": lambda: Net(
        query_for_key, attention=nn.MultiheadAttention(8, 2, batch_first=True)
    ),
    "the query for the value": lambda: Net(
        query_for_value, attention=nn.MultiheadAttention(8, 2, batch_first=True)
    ),
    "causal decoder": lambda: Net(
        decoder,
        decoder=nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1),
    ),
    "strides of a view": lambda: Net(overlapping),
    "a part set to a number": lambda: Net(partly_set, norm=nn.LayerNorm(8)),
    "floor of a quotient": lambda: Net(lambda net, x: torch.div(x, 0.3, rounding_mode="floor")),
    "floor of integers": lambda: Net(lambda net, x: torch.div(x, 5, rounding_mode="floor")),
    "truncated quotient": lambda: Net(lambda net, x: x.div(0.3, rounding_mode="trunc")),
}


def _best(x):
    return x.topk(2, dim=1)[1]


def _set_by_lists(x):
    made = torch.zeros_like(x)
    made[torch.arange(x.shape[0])[:, None], _best(x)] = 1.0
    return made * x


def _set_by_mask(x):
    made = x.new_full(x.shape, 0.5)
    made[x > 0.3] = x.sum()
    made[:, 0] = 2.0
    return made


def _set_rows(x):
    made = torch.zeros(x.shape)
    made[x[:, 0].topk(2)[1]] = x[:2]
    return made + made.clone().masked_fill_(x < 0, 1.0)


WRITERS = {
    "scatter_ of a number": lambda x: torch.zeros_like(x).scatter_(1, _best(x), 1.5) * x,
    "scatter_ of a bool": lambda x: x.masked_fill(
        torch.ones_like(x, dtype=torch.bool).scatter_(1, _best(x), False), 0.0
    ),
    "scatter_ of a tensor": lambda x: torch.full_like(x, 2).scatter_(1, _best(x), src=x),
    "scatter_add_": lambda x: torch.zeros(5, 6).scatter_add_(1, _best(x), x),
    "index_add_": lambda x: torch.ones_like(x).float().index_add_(0, x[:, 0].topk(2)[1], x[:2]),
    "index_fill_": lambda x: torch.zeros_like(x).index_fill_(0, x[:, 0].topk(2)[1], 3.0),
    "masked_fill_": lambda x: torch.zeros_like(x).masked_fill_(x > 0.3, 1.0) + x,
    "by lists": _set_by_lists,
    "by a mask": _set_by_mask,
    "rows": _set_rows,
    "out-of-place": lambda x: torch.zeros_like(x).scatter(1, _best(x), 1.0) * x,
    "at a fixed index": lambda x: torch.zeros(5, 6).index_fill_(0, torch.tensor([1, 3]), 2.0) + x,
}


@pytest.mark.parametrize("name", WRITERS)
def test_writes_at_computed_indices(name):
    """The constant that is written into must not contain the values of the trace."""
    torch.manual_seed(5)
    net = Net(lambda net, x: WRITERS[name](x))
    model = kuiper.from_torch(net, torch.randn(5, 6))
    for _ in range(2):
        x = torch.randn(5, 6)
        np.testing.assert_allclose(model(x), net(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_calls_that_pnnx_loses_are_kept(name):
    torch.manual_seed(3)
    net = CASES[name]().eval()
    draw = integers if "integers" in name else numbers
    model = kuiper.from_torch(net, draw())
    x = draw()
    with torch.no_grad():
        expected = net(x).numpy()
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-5)


def _as_many(x):
    """Fill tensors with as many rows as a mask selects, and as nonzero finds."""
    chosen, found = x[x[:, 0] > 0], torch.where(x[:, 1] > 0)[0]
    return (
        torch.cat((torch.full_like(chosen[:, :1], 3), chosen, torch.ones_like(chosen) * 2), 1),
        torch.zeros_like(x[found, 0], dtype=torch.bool),
        torch.ones_like(x[found], dtype=torch.bool),
        torch.full_like(found, fill_value=2.9, dtype=torch.int64),
    )


def test_sizes_that_depend_on_the_data():
    torch.manual_seed(6)
    net = Net(lambda net, x: _as_many(x))
    model = kuiper.from_torch(net, torch.randn(9, 4))
    for number in range(4):
        x = torch.randn(9, 4) if number else -torch.randn(9, 4).abs()
        x[4, 2] = float("nan")
        for result, expected in zip(model(x), net(x), strict=True):
            np.testing.assert_array_equal(result, expected.numpy())
            assert result.dtype == expected.numpy().dtype


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("found", [3, 7])
def test_a_bound_for_a_size_that_depends_on_the_data(rank, found):
    """Whether the trace had more or fewer rows."""

    def bounded(net, x):
        chosen = x[x[:, 0] > 0]
        return (chosen if rank == 2 else chosen[:, 1])[:5] * 2

    def draw(count):
        x = torch.randn(9, 4)
        x[:, 0] = (torch.randperm(9) < count).float() - 0.5
        return x

    torch.manual_seed(8)
    net = Net(bounded)
    model = kuiper.from_torch(net, draw(found))
    for count in (0, 1, 5, 6, 9):
        x = draw(count)
        np.testing.assert_array_equal(model(x), net(x).numpy())
        assert len(model(x)) == min(count, 5)


def _levels(package):
    """Pool boxes by level with a function that only holds for the traced number of boxes."""

    def _onnx_merge_levels(levels, unmerged_results):
        result = torch.zeros(len(levels), *unmerged_results[0].shape[1:])
        for level, pooled in enumerate(unmerged_results):
            result[torch.where(levels == level)[0]] = pooled
        return result

    package._onnx_merge_levels = _onnx_merge_levels

    def pooled(net, x):
        levels = x[:, 0].clamp(0, 2).long()
        parts = [x[torch.where(levels == level)[0]] * (level + 2) for level in range(3)]
        return package._onnx_merge_levels(levels, parts)

    return pooled


def _classes(package):
    """Take the mask of each box's class, likewise for the traced number only."""

    def maskrcnn_inference(x, labels):
        counts = [len(label) for label in labels]
        chosen = x.sigmoid()[torch.arange(len(x)), torch.cat(labels)][:, None]
        return chosen.split(counts)

    package.maskrcnn_inference = maskrcnn_inference

    def masks(net, x):
        boxes = x[x[:, 0] > 0.5]
        grids = boxes[:, :, None, None] * torch.arange(6.0).reshape(2, 3)
        (found,) = package.maskrcnn_inference(grids, [boxes[:, 1].clamp(0, 3).long()])
        return found

    return masks


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("torchvision.ops.poolers", _levels),
        ("torchvision.models.detection.roi_heads", _classes),
    ],
)
def test_any_number_of_boxes(monkeypatch, name, make):
    """In a module that has a function of torchvision under its name."""
    package = types.ModuleType(name)
    net = Net(make(package))
    functions = vars(package).copy()
    monkeypatch.setitem(sys.modules, name, package)
    torch.manual_seed(7)
    model = kuiper.from_torch(net, 2 * torch.randn(9, 4))
    assert vars(package) == functions
    for _ in range(3):
        x = 2 * torch.randn(9, 4)
        np.testing.assert_allclose(model(x), net(x).numpy(), rtol=1e-5, atol=1e-6)


def test_a_scripted_function_has_no_branch():
    @torch.jit.script_if_tracing
    def function(x):
        if x.numel() == 0:
            return x
        return x * 2

    compiler = torch.jit._trace.script
    model = kuiper.from_torch(Net(lambda net, x: function(x) + 1), numbers())
    x = numbers()
    np.testing.assert_allclose(model(x), x * 2 + 1, rtol=1e-6)
    assert torch.jit._trace.script is compiler


def test_same_padding_depends_on_the_size_of_the_image(monkeypatch):
    """In a package that has timm's functions under their names."""
    package = types.ModuleType("timm.layers.conv2d_same")
    _timm(package)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    torch.manual_seed(4)
    first, second = package.Conv2dSame(3, 6, 3, stride=2), package.Conv2dSame(6, 5, 5, stride=3)
    net = nn.Sequential(first, nn.ReLU(), second, package.MaxPool2dSame(2, 2)).eval()
    model = kuiper.from_torch(net, torch.randn(1, 3, 32, 32))
    for shape in ((1, 3, 32, 32), (2, 3, 33, 47), (1, 3, 50, 31)):
        x = torch.randn(shape)
        with torch.no_grad():
            expected = net(x).numpy()
        np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-5)
    assert not [name for name, _ in net.named_buffers()]


def _timm(package):
    """Define timm's layers in a module."""
    functional = nn.functional

    def pad_same(x, kernel_size, stride, dilation=(1, 1), value=0):
        amounts = []
        for extent, k, s, d in zip(x.shape[-2:], kernel_size, stride, dilation, strict=True):
            total = max((-(-int(extent) // s) - 1) * s + (k - 1) * d + 1 - int(extent), 0)
            amounts[:0] = total // 2, total - total // 2
        return functional.pad(x, amounts, value=value)

    class Conv2dSame(nn.Conv2d):
        def forward(self, x):
            x = package.pad_same(x, self.weight.shape[-2:], self.stride, self.dilation)
            return functional.conv2d(x, self.weight, self.bias, self.stride)

    class MaxPool2dSame(nn.MaxPool2d):
        def forward(self, x):
            x = package.pad_same(x, (2, 2), (2, 2), value=-float("inf"))
            return functional.max_pool2d(x, self.kernel_size, self.stride)

    for part in (pad_same, Conv2dSame, MaxPool2dSame):
        part.__module__ = package.__name__
        setattr(package, part.__name__, part)


def test_values_that_the_trace_freezes_are_logged_with_their_lines(caplog):
    def function(net, x):
        if x.sum() > -1e9:
            x = x + 1
        return x * len(x)

    kuiper.from_torch(Net(function), numbers())
    first = function.__code__.co_firstlineno
    told = [record.getMessage() for record in caplog.records if "reads a value" in record.msg]
    lines = [message.split(" reads")[0] for message in told]
    assert lines == [f"Net: {__file__}:{first + 1}", f"Net: {__file__}:{first + 3}"]


def test_the_module_is_not_changed():
    net = CASES["layer norm without bias"]()
    kuiper.from_torch(net, numbers())
    assert net.norm.bias is None
    assert [name for name, _ in net.named_parameters()] == ["norm.weight"]
    with pytest.raises(kuiper.KuiperError, match="cannot trace"):
        kuiper.from_torch(net, torch.rand(2, 3))
    assert net.norm.bias is None


def test_calls_that_lose_nothing_are_not_changed():
    """Powers, fills and strides that pnnx converts, with arguments in every form."""

    def function(net, x):
        y = torch.empty(8)
        y.fill_(2.0)
        z = torch.as_strided(input=x.contiguous(), size=(1, 6, 8), stride=(48, 8, 1))
        return torch.pow(input=x, exponent=2) + x**4 + y + z + torch.div(input=x, other=3.0)

    net, x = Net(function), numbers()
    np.testing.assert_allclose(kuiper.from_torch(net, numbers())(x), net(x).numpy(), rtol=1e-5)
