"""How a DeepSeek-V3 is cut: as every decoder, and:

| layers | cut |
|---|---|
| q_proj or q_b_proj, kv_b_proj | column parallel: whole heads per rank |
| q_a_proj, kv_a_proj_with_mqa, norms of latents | on every rank; what leaves them enters the heads through `enter` |
| gate | on every rank: each routes the tokens it has |
| experts | ep: whole experts; tp: column and row parallel inside of each |
| shared_experts | as a dense feed-forward layer |
"""

from ms_models.families.sharding import Sharding as DeepseekV3Sharding

__all__ = ["DeepseekV3Sharding"]
