"""Ranks that leave and come back between rounds; start on every node, with the address of the first one:

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
torchrun --nnodes 2:4 --nproc-per-node 1 --max-restarts 5 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
    --rdzv-conf last_call_timeout=10 rejoin.py checkpoints
"""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from densing import training

ROUNDS, TAU, PAUSE = 40, 5, float(sys.argv[2]) if len(sys.argv) > 2 else 0.0

dist.init_process_group("gloo", timeout=timedelta(seconds=30))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
method = training.DiLoCo(model, optimizer, tau=TAU)
checkpoints = training.RoundCheckpoints(method, sys.argv[1])
if checkpoints.load() and dist.get_rank() == 0:
    print(f"go on after round {method.round} on {dist.get_world_size()} ranks", flush=True)
while method.round < ROUNDS:
    generator = torch.Generator().manual_seed(1000 * method.round + 10 * method.count + dist.get_rank())
    batch = torch.randn(32, 16, generator=generator)
    optimizer.zero_grad()
    loss = (method.model(batch) - batch[:, :1] * batch[:, 1:2]).square().mean()
    loss.backward()
    method.step()
    time.sleep(PAUSE)
    if checkpoints.save():  # where a round has ended
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(
                f"round {method.round}: loss {mean.item() / dist.get_world_size():.4f} of {dist.get_world_size()}",
                flush=True,
            )
method.finish()
dist.barrier()
dist.destroy_process_group()
