"""Writes what one training step computed, for `msmigrate parity dumps`. Paste into a PyTorch script:

capture = Capture("dump_torch")
capture.weights(model)
with capture.activations(model):
    loss = model(batch)
capture.loss(loss)
loss.backward()
capture.gradients(model)
optimizer.step()
capture.updated(model)
"""

import json
import os
from contextlib import contextmanager

import numpy as np


class Capture:
    def __init__(self, out):
        os.makedirs(out)
        self.out, self.stages = out, {}

    def save(self, stage, tensors):
        arrays = {name: value.detach().float().cpu().numpy() for name, value in tensors.items()}
        np.savez(os.path.join(self.out, f"{stage}.npz"), **arrays)
        self.stages[stage] = {"file": f"{stage}.npz", "names": list(arrays)}
        body = {"format": "msmigrate-capture-1", "versions": {}, "stages": self.stages, "errors": {}}
        with open(os.path.join(self.out, "manifest.json"), "w") as file:
            json.dump(body, file)

    def weights(self, model):
        stored = model.state_dict()  # with running statistics, without rotary tables and the like
        buffers = {name: b for name, b in model.named_buffers() if name in stored and b.is_floating_point()}
        self.save("W", dict(model.named_parameters()) | buffers)

    def updated(self, model):
        self.save("U", {name: p for name, p in model.named_parameters() if p.requires_grad})

    def loss(self, loss):
        self.save("L", {"loss": loss.reshape(1)})

    def gradients(self, model):
        self.save("G", {name: p.grad for name, p in model.named_parameters() if p.grad is not None})

    @contextmanager
    def activations(self, model):
        found, hooks = {}, []

        def record(name):
            def hook(module, inputs, output):
                while isinstance(output, (tuple, list)) and output:
                    output = output[0]
                if hasattr(output, "detach"):
                    found[name] = output.detach().clone()

            return hook

        for name, module in model.named_modules():
            if name:
                hooks.append(module.register_forward_hook(record(name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self.save("F", found)
