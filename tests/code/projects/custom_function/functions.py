import torch
from torch.autograd import Function


class RoundSTE(Function):
    """Round to the nearest integer; the gradient passes straight through."""

    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


class FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, q_min, q_max):
        scaled = x / scale
        ctx.save_for_backward(scaled, scale)
        ctx.q_min, ctx.q_max = q_min, q_max
        return scaled.round().clamp(q_min, q_max) * scale

    @staticmethod
    def backward(ctx, grad_output):
        scaled, scale = ctx.saved_tensors
        smaller = (scaled < ctx.q_min).float()
        bigger = (scaled > ctx.q_max).float()
        between = 1.0 - smaller - bigger
        grad_x = between * grad_output
        per_element = smaller * ctx.q_min + bigger * ctx.q_max + between * (scaled.round() - scaled)
        grad_scale = (per_element * grad_output).sum().reshape(scale.shape)
        return grad_x, grad_scale, None, None


class SwiGLU(torch.autograd.Function):
    """silu(gate) * up, with the sigmoid computed again in the backward pass."""

    @staticmethod
    def forward(ctx, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return gate * torch.sigmoid(gate) * up

    @staticmethod
    def backward(ctx, dy: torch.Tensor):
        gate, up = ctx.saved_tensors
        sig = torch.sigmoid(gate)
        d_gate = d_up = None
        if ctx.needs_input_grad[0]:
            d_gate = dy * up * sig * (1 + gate * (1 - sig))
        if ctx.needs_input_grad[1]:
            d_up = dy * gate * sig
        return d_gate, d_up


class GradientReversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lambda_):
        ctx.lambda_ = lambda_
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.lambda_, None


def grad_reverse(x, lambda_=1.0):
    return GradientReversal.apply(x, lambda_)


swiglu = SwiGLU.apply
