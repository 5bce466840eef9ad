"""One's own training loop with a technique of densing.training: ``torchrun --nproc-per-node 2 own_loop.py co2``."""

import sys

import torch
import torch.distributed as dist

from densing import training

TECHNIQUES = {
    "co2": lambda model, optimizer: training.CO2(model, optimizer, tau=8),
    "local-sgd": lambda model, optimizer: training.LocalSGD(model, optimizer, tau=8),
    "slowmo": lambda model, optimizer: training.SlowMo(model, optimizer, tau=8),
    "diloco": lambda model, optimizer: training.DiLoCo(model, optimizer, tau=8),
    "outer": lambda model, optimizer: training.Outer(  # int8 differences, late, in two fragments
        model,
        optimizer,
        tau=8,
        codec=training.Int8(),
        outer_optimizer=training.Nesterov(0.7, 0.9),
        fragments=2,
        delay=2,
    ),
    "synchronous": lambda model, optimizer: training.Synchronous(model, optimizer, training.Int8()),
    "dct": lambda model, optimizer: training.DCT(model, optimizer, eta=0.9, refresh=20),
    "topk": lambda model, optimizer: training.TopKGradients(model, optimizer, share=0.1),
    "powersgd": lambda model, optimizer: training.PowerSGD(model, optimizer, rank=2),
    "fedft": lambda model, optimizer: training.FedFT(model, optimizer, tau=8, keep=0.7),
    "spafl": lambda model, optimizer: training.SpaFL(model, optimizer, tau=8),
}

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
method = TECHNIQUES[sys.argv[1]](model, optimizer)  # 1: after init_process_group
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(200):
    batch = torch.randn(32, 16, generator=generator)
    optimizer.zero_grad()
    loss = (method.model(batch) - batch[:, :1] * batch[:, 1:2]).square().mean()
    method.backward(loss)  # loss.backward(), and what a technique does beside it
    method.step()  # 2: instead of optimizer.step()
    if step % 50 == 0 or step == 199:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.4f}")
method.finish()  # 3: all ranks on one model (spafl: each on its own)
dist.barrier()
dist.destroy_process_group()
