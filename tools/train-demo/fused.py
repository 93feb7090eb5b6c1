"""The network's element-wise parts with their gradients: in C where a compiler is found, in PyTorch otherwise.

PyTorch makes several passes over memory for each of these, which costs a CPU as much as all matrix products together.
`USE_C` says which form is used; the results differ in rounding only.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile

import torch
import torch.nn.functional as F


def build():
    """Compiles kernels.c for this machine; None without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        return None
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.c")
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "kernels.so")
        subprocess.run(
            [compiler, "-Ofast", "-march=native", "-shared", "-fPIC", source, "-o", library, "-lmvec", "-lm"],
            check=True,
        )
        return ctypes.CDLL(library)


LIBRARY = build()
USE_C = LIBRARY is not None


def call(name, *args):
    """Tensors go as pointers, ints as long, floats as float."""

    def convert(a):
        if isinstance(a, torch.Tensor):
            return ctypes.c_void_p(a.data_ptr())
        return ctypes.c_long(a) if isinstance(a, int) else ctypes.c_float(a)

    getattr(LIBRARY, name)(*map(convert, args))


class NormC(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, scale, eps):
        x, gain = x.contiguous(), gain.contiguous()
        d, y = x.shape[-1], torch.empty_like(x)
        r = x.new_empty(x.numel() // d)
        call("norm_forward", x, gain, y, r, len(r), d, scale, eps)
        ctx.save_for_backward(x, gain, r)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx, dy):
        x, gain, r = ctx.saved_tensors
        dy, dx, dgain = dy.contiguous(), torch.empty_like(x), torch.zeros_like(gain)
        call("norm_backward", x, gain, r, dy, dx, dgain, len(r), x.shape[-1], ctx.scale)
        return dx, dgain, None, None


class GatedNormC(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gain, z, eps):
        x, gain = x.contiguous(), gain.contiguous()
        b, t, h, d = x.shape
        y, r = torch.empty_like(x), x.new_empty(b * t * h)
        ctx.stride = z.stride(1)
        assert z.stride(2) == 1 and z.stride(0) == t * ctx.stride
        call("gated_norm_forward", x, gain, z, y, r, b * t, h, d, ctx.stride, eps)
        ctx.save_for_backward(x, gain, z, r)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, gain, z, r = ctx.saved_tensors
        b, t, h, d = x.shape
        dy, dx, dgain, dz = dy.contiguous(), torch.empty_like(x), torch.zeros_like(gain), x.new_empty(z.shape)
        call("gated_norm_backward", x, gain, z, r, dy, dx, dgain, dz, b * t, h, d, ctx.stride)
        return dx, dgain, dz, None


class SwigluC(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        d = x.shape[-1] // 2
        y = x.new_empty(*x.shape[:-1], d)
        call("swiglu_forward", x, y, x.numel() // (2 * d), d)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dy, dx, d = dy.contiguous(), torch.empty_like(x), x.shape[-1] // 2
        call("swiglu_backward", x, dy, dx, x.numel() // (2 * d), d)
        return dx


class ConvC(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        (b, t, d), w = x.shape, w.contiguous()
        ctx.stride = x.stride(1)
        assert len(w) == 4 and x.stride(2) == 1 and x.stride(0) == t * ctx.stride
        y, c = x.new_empty(b, t, d), x.new_empty(b, t, d)
        call("conv_forward", x, w, y, c, b, t, d, ctx.stride)
        ctx.save_for_backward(x, w)
        ctx.convolved = c
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        b, t, d = x.shape
        dy, dx, dw = dy.contiguous(), x.new_empty(b, t, d), torch.zeros_like(w)
        call("conv_backward", x, w, ctx.convolved, dy, dx, dw, b, t, d, ctx.stride)
        return dx, dw


def norm(x, gain, scale, eps):
    """x * gain / sqrt(scale * sum(x^2) + eps) over the last dim: RMSNorm with scale 1/d, L2 with 1."""
    if USE_C:
        return NormC.apply(x, gain, scale, eps)
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) * scale + eps) * gain


def gated_norm(x, gain, z, eps):
    """RMSNorm of x [B, T, H, d], times silu of z [B, T, H * d]."""
    if USE_C:
        return GatedNormC.apply(x, gain, z, eps)
    return norm(x, gain, 1.0 / x.shape[-1], eps) * F.silu(z.reshape(x.shape))


def swiglu(x):
    """silu of the first half of the last dim, times the second."""
    if USE_C:
        return SwigluC.apply(x)
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def conv_silu(x, w):
    """silu of the causal depthwise convolution of x [B, T, C] with taps w [4, C], the newest token's last."""
    if USE_C:
        return ConvC.apply(x, w)
    return F.silu(sum(F.pad(x, (0, 0, lag, 0))[:, : x.shape[1]] * w[-1 - lag] for lag in range(len(w))))
