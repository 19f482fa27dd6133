"""Writes what one training step computed, for `msmigrate parity dumps`. Paste into a MindSpore script (PyNative):

capture = Capture("dump_mindspore")
capture.weights(model)
with capture.activations(model):
    loss = model(batch)
capture.loss(loss)
gradients = mindspore.grad(forward, None, model.trainable_params())(batch)
capture.gradients(model.trainable_params(), gradients)
optimizer(gradients)
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
        arrays = {name: value.float().asnumpy().copy() for name, value in tensors.items()}
        np.savez(os.path.join(self.out, f"{stage}.npz"), **arrays)
        self.stages[stage] = {"file": f"{stage}.npz", "names": list(arrays)}
        body = {"format": "msmigrate-capture-1", "versions": {}, "stages": self.stages, "errors": {}}
        with open(os.path.join(self.out, "manifest.json"), "w") as file:
            json.dump(body, file)

    def weights(self, model):
        stored = model.state_dict()  # buffers that are saved; running statistics are parameters of MindSpore's layers
        buffers = {name: b for name, b in model.named_buffers() if name in stored and b.is_floating_point()}
        self.save("W", {parameter.name: parameter for parameter in model.get_parameters()} | buffers)

    def updated(self, model):
        self.save("U", {parameter.name: parameter for parameter in model.trainable_params()})

    def loss(self, loss):
        self.save("L", {"loss": loss.reshape(1)})

    def gradients(self, parameters, gradients):
        self.save("G", {parameter.name: g for parameter, g in zip(parameters, gradients, strict=True)})

    @contextmanager
    def activations(self, model):
        found, hooks = {}, []

        def record(name):
            def hook(cell, inputs, output):
                while isinstance(output, (tuple, list)) and output:
                    output = output[0]
                if hasattr(output, "asnumpy"):
                    found[name] = output.copy()

            return hook

        for name, cell in model.cells_and_names():
            if name:
                hooks.append(cell.register_forward_hook(record(name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self.save("F", found)
