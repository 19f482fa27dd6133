"""One function for each way in which a conversion may run and compute something else; each returns plain numbers."""

import io
from typing import Any, ClassVar

import torch
import torch.nn as nn
import torch.nn.functional as F


def column(n, scale=0.7):
    return torch.sin(torch.arange(n, dtype=torch.float32) * scale)


def seeded(module):
    """Weights by a formula."""
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(0.5 * torch.cos(torch.arange(p.numel(), dtype=torch.float32) * 0.3 + i).view(p.shape))
    return module


class Calls:
    """Counts how often it was asked for a tensor."""

    def __init__(self):
        self.count = 0

    def next(self) -> torch.Tensor:
        self.count += 1
        return column(6).view(2, 3) * self.count


def both_results_of_max_come_from_one_evaluation():
    calls = Calls()
    values, indices = calls.next().max(dim=1)
    return values.tolist() + indices.tolist() + [calls.count]


def a_user_argument_called_device_arrives():
    def area(width, device, height=2):
        return width * height + (100 if device else 0)

    class Config:
        device = "cuda"

    cfg, device = Config(), "cpu"
    return [area(3, cfg.device), area(3, device=device), area(3, device, height=4)]


def a_tokenizer_keeps_its_size():
    class Tok:
        def size(self, dim=None):
            return 50 if dim is None else dim

    tok, x = Tok(), column(6).view(2, 3)
    return [tok.size(), tok.size(1), x.size(1), *x.size()]


def forward_of_other_classes_keeps_its_name():
    class Pipe:
        def forward(self, x):
            return x + 1

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.pipe = Pipe()

        def forward(self, x):
            return self.pipe.forward(x) * 2

        def feed_forward(self, x):
            return self.forward(x)

    return Net().feed_forward(column(3)).tolist()


def modules_in_a_generator_are_registered():
    net = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    return [len(net), len(list(net.parameters())), *sorted(net.state_dict())]


def module_dicts_are_reached_by_key_and_attribute():
    net = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.ModuleDict({"c": nn.Linear(3, 1)})})
    return [net["a"].weight.shape[0], net["b"]["c"].weight.shape[1], net.a.weight.size(1), *sorted(net.state_dict())]


def sizes_are_given_as_numbers_or_as_a_tuple():
    x, shape = torch.ones(2, 3), (3, 1)
    return [*x.shape, *torch.ones(shape).shape, *torch.zeros((2,)).shape, *torch.randn(2, 3, 4).shape, x.sum().item()]


def in_place_methods_change_the_tensor():
    x = torch.ones(3)
    y = x
    x.add_(1).mul_(torch.tensor([1.0, 2.0, 3.0]))
    x.sub_(0.5)
    x.div_(2)
    z = torch.zeros(3)
    z.fill_(4).exp_()
    return x.tolist() + y.tolist() + z.tolist()


def in_place_methods_give_their_gradient():
    layer = seeded(nn.Linear(3, 3))
    y = layer(column(3))
    y.mul_(2).add_(1)
    (y * y).sum().backward()
    return layer.weight.grad.flatten().tolist()


def a_new_module_is_in_training_mode():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x)

    net = Net()
    dropped = (net(torch.ones(2000)) == 0).float().mean().item()
    return [int(net.training), int(0.3 < dropped < 0.7), (net.eval()(torch.ones(50)) == 1).sum().item()]


def adamw_decays_the_weights_apart():
    net = seeded(nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05, weight_decay=0.3)
    for step in range(5):
        optimizer.zero_grad()
        loss = (net(column(3, 0.3 + step)) ** 2).sum()
        loss.backward()
        optimizer.step()
    return net.weight.flatten().tolist() + net.bias.tolist()


def a_step_really_updates():
    net = seeded(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = net.weight.sum().item()
    loss = net(torch.ones(2)).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    return [before, net.weight.sum().item(), net.bias.item()]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 7 * x


def the_backward_of_a_function_is_used():
    net = seeded(nn.Linear(3, 3))
    Doubled.apply(net(column(3))).sum().backward()
    return net.bias.grad.tolist()


def detach_stops_the_gradient():
    net = seeded(nn.Linear(3, 3))
    y = net(column(3))
    (y * y.detach()).sum().backward()
    return net.bias.grad.tolist()


def no_grad_stops_the_gradient():
    net = seeded(nn.Linear(3, 3))
    with torch.no_grad():
        fixed = net(column(3))
    (net(column(3)) * fixed).sum().backward()
    return net.bias.grad.tolist()


def numbers_of_full_are_not_cut():
    return torch.full((2,), 1.5).tolist() + torch.full((2,), 3).tolist() + torch.full_like(column(2), 0.25).tolist()


def spread_is_that_of_a_sample():
    x = column(6).view(2, 3)
    return [x.var().item(), x.std().item(), *x.var(dim=1).tolist(), *x.std(0, unbiased=False).tolist()]


def indices_are_of_64_bits():
    x = column(5)
    values, indices = x.topk(2)
    kinds = [indices, x.argsort(), x.argmax(), torch.bincount(torch.tensor([1, 1, 3]))]
    return indices.tolist() + [str(k.dtype).lower().split(".")[-1] for k in kinds] + values.tolist()


def integer_types_keep_their_width():
    x = torch.zeros(2, dtype=torch.int32)
    kinds = [x, x.long(), torch.arange(3), torch.tensor([1.5]), torch.ones(1, dtype=torch.float64), x.to(torch.int8)]
    return [str(k.dtype).lower().split(".")[-1] for k in kinds]


def state_dict_has_what_was_registered():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = torch.ones(2)
            self.hidden = [nn.Linear(2, 2)]
            self.register_buffer("kept", torch.zeros(2))
            self.register_buffer("left", torch.zeros(2), persistent=False)
            self.weight = nn.Parameter(torch.ones(2))

    net = Net()
    return sorted(net.state_dict()) + [len(list(net.parameters())), len(list(net.buffers()))]


def a_saved_state_is_loaded_where_it_is_told():
    net, other, file = seeded(nn.Linear(2, 2)), nn.Linear(2, 2), io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, map_location=torch.device("cpu")))
    return other.weight.flatten().tolist()


def arguments_by_keyword_in_any_order():
    x = column(6).view(2, 3)
    y = F.layer_norm(normalized_shape=(3,), eps=1e-3, input=x)
    z = torch.cat(dim=1, tensors=(x, y))
    return z.flatten().tolist() + torch.sum(input=x, dim=0, keepdim=True).flatten().tolist()


def typing_names_stay_bound():
    class Sizes:
        known: ClassVar[dict[str, Any]] = {}

    def sizes(xs: list[torch.Tensor], more: Any = None) -> tuple[int, ...]:
        Sizes.known["n"] = len(xs)
        return tuple(x.size(0) for x in xs)

    return [*sizes([column(2), column(3)]), len(sizes.__annotations__)]


def tuples_of_results_inside_comprehensions():
    rows = [column(4), column(4) + 1]
    best = [row.sort(descending=True)[1][0].item() for row in rows]
    return (
        best + [v.item() for row in rows for v in row.topk(2)[0]] + [i.item() for i in [r.max(0).indices for r in rows]]
    )


def escapes_in_texts_stay():
    raw, smile = r"\u0041\d", "\u00e9\t"
    return [len(raw), len(smile), raw, smile, f"{column(3).sum():.3f}|{'a'!r:>5}"]


CASES = [
    value
    for name, value in list(globals().items())
    if getattr(value, "__module__", "") == __name__
    and callable(value)
    and not isinstance(value, type)
    and name not in ("column", "seeded")
]


def run():
    return {case.__name__: case() for case in CASES}
