from __future__ import print_function

import argparse
import json
import os

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from models import Discriminator, Generator, weights_init

parser = argparse.ArgumentParser()
parser.add_argument("--batchSize", type=int, default=6, help="input batch size")
parser.add_argument("--nz", type=int, default=6, help="size of the latent z vector")
parser.add_argument("--niter", type=int, default=10, help="number of iterations to train for")
parser.add_argument("--lr", type=float, default=0.0005, help="learning rate, default=0.0005")
parser.add_argument("--beta1", type=float, default=0.5, help="beta1 for adam. default=0.5")
parser.add_argument("--init-from", default="", help="netG and netD (to continue training)")
parser.add_argument("--save-init", default="")
parser.add_argument("--outf", default="out", help="folder to output model checkpoints")
opt = parser.parse_args()
print(opt)

os.makedirs(opt.outf, exist_ok=True)
torch.manual_seed(999)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

netG = Generator(opt.nz).to(device)
netG.apply(weights_init)
netD = Discriminator().to(device)
netD.apply(weights_init)
if opt.save_init != "":
    torch.save({"G": netG.state_dict(), "D": netD.state_dict()}, opt.save_init)
if opt.init_from != "":
    state = torch.load(opt.init_from)
    netG.load_state_dict(state["G"])
    netD.load_state_dict(state["D"])
print(netD.__class__.__name__)

criterion = nn.BCELoss()
rng = np.random.RandomState(12)
fixed_noise = torch.from_numpy(rng.randn(2, opt.nz, 1, 1)).float().to(device)
real_label = 1
fake_label = 0

# setup optimizer
optimizerD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(opt.beta1, 0.999))


def real_images(n):
    yy, xx = np.mgrid[0:16, 0:16]
    cy, cx = rng.uniform(4, 12, (2, n, 1, 1))
    return np.tanh(3 - ((yy - cy) ** 2 + (xx - cx) ** 2) / 4)[:, None].astype(np.float32)


log = []
for i in range(opt.niter):
    ############################
    # (1) Update D network: maximize log(D(x)) + log(1 - D(G(z)))
    ###########################
    # train with real
    netD.zero_grad()
    real_cpu = torch.from_numpy(real_images(opt.batchSize)).to(device)
    batch_size = real_cpu.size(0)
    label = torch.full((batch_size,), real_label, dtype=real_cpu.dtype, device=device)

    output = netD(real_cpu)
    errD_real = criterion(output, label)
    errD_real.backward()
    D_x = output.mean().item()

    # train with fake
    noise = torch.from_numpy(rng.randn(batch_size, opt.nz, 1, 1).astype("float32")).to(device)
    fake = netG(noise)
    label.fill_(fake_label)
    output = netD(fake.detach())
    errD_fake = criterion(output, label)
    errD_fake.backward()
    D_G_z1 = output.mean().item()
    errD = errD_real + errD_fake
    optimizerD.step()

    ############################
    # (2) Update G network: maximize log(D(G(z)))
    ###########################
    netG.zero_grad()
    label.fill_(real_label)  # fake labels are real for generator cost
    output = netD(fake)
    errG = criterion(output, label)
    errG.backward()
    D_G_z2 = output.mean().item()
    optimizerG.step()

    print(
        "[%d/%d] Loss_D: %.4f Loss_G: %.4f D(x): %.4f D(G(z)): %.4f / %.4f"
        % (i, opt.niter, errD.item(), errG.item(), D_x, D_G_z1, D_G_z2)
    )
    log.append([errD.item(), errG.item(), D_x, D_G_z1, D_G_z2])

netG.eval()
with torch.no_grad():
    sample = netG(fixed_noise).detach().cpu()
# do checkpointing
torch.save(netG.state_dict(), "%s/netG.pth" % opt.outf)
torch.save(netD.state_dict(), "%s/netD.pth" % opt.outf)
with open("%s/losses.json" % opt.outf, "w") as f:
    json.dump({"log": log, "sample": sample.mean(dim=(1, 2, 3)).tolist()}, f)
