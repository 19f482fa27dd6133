"""A GAN: two losses, two optimizers, detach; each backward reaches what it reached in torch."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from nets import MLP, batch, fill, weights


def run():
    generator, critic = fill(MLP(4, 8, 4)), fill(MLP(4, 8, 1), phase=2.0)
    opt_g = torch.optim.SGD(generator.parameters(), lr=0.05, momentum=0.9)
    opt_d = torch.optim.SGD(critic.parameters(), lr=0.05)
    one, zero = torch.ones(6, 1), torch.zeros(6, 1)
    results = []
    for step in range(4):
        real, _ = batch(step)
        noise, _ = batch(step + 20)

        # the critic
        opt_d.zero_grad()
        fake = generator(noise).detach()
        d_loss = F.binary_cross_entropy_with_logits(critic(real), one)
        d_loss = d_loss + F.binary_cross_entropy_with_logits(critic(fake), zero)
        d_loss.backward()
        opt_d.step()

        # the generator; its backward also reaches the critic, whose gradients are thrown away
        opt_g.zero_grad()
        g_loss = F.binary_cross_entropy_with_logits(critic(generator(noise)), one)
        g_loss.backward()
        nn.utils.clip_grad_value_(generator.parameters(), 0.1)
        opt_g.step()
        results += [d_loss.item(), g_loss.item()]
    return results + weights(generator) + weights(critic)
