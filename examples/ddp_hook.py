"""Compressed gradients behind the backward pass of DDP: ``torchrun --nproc-per-node 2 ddp_hook.py top-k``."""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from densing import training

OPTIONS = {
    "int8": {},
    "top-k": {"share": 0.1},
    "dct": {"eta": 0.9, "refresh": 20},
    "powersgd": {"rank": 2},
}

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
ddp = DistributedDataParallel(model, bucket_cap_mb=1)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
hook = training.ddp_hook(sys.argv[1], ddp, **OPTIONS[sys.argv[1]])  # the one line more; the loop stays as it is
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(200):
    batch = torch.randn(32, 16, generator=generator)
    optimizer.zero_grad()
    loss = (ddp(batch) - batch[:, :1] * batch[:, 1:2]).square().mean()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == 199:
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean.item() / dist.get_world_size():.4f}")
if dist.get_rank() == 0:
    print(f"sent {hook.figures()['sent_share']:.3f} of the dense gradients' bytes")
dist.barrier()
dist.destroy_process_group()
