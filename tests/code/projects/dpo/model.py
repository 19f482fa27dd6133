import torch
import torch.nn as nn


class TinyLM(nn.Module):
    """Causal language model out of torch's own encoder layers."""

    def __init__(self, vocab_size=37, d_model=16, nhead=2, num_layers=2, max_len=20):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, d_model)
        self.pos = nn.Parameter(torch.zeros(1, max_len, d_model))
        layer = nn.TransformerEncoderLayer(
            d_model, nhead, dim_feedforward=32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, num_layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        nn.init.normal_(self.pos, std=0.02)

    def forward(self, input_ids):
        length = input_ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length).to(input_ids.device)
        x = self.tok(input_ids) + self.pos[:, :length]
        return self.head(self.blocks(x, mask=mask, is_causal=True))
