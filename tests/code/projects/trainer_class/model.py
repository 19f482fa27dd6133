import torch
from torch import nn


class ConvBlock(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size=3, dilation=1):
        super(ConvBlock, self).__init__()
        padding = (kernel_size - 1) // 2 * dilation
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, bias=False)
        self.bn = nn.BatchNorm1d(out_channels)
        self.act = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity() if in_channels == out_channels else nn.Conv1d(in_channels, out_channels, 1)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)) + self.shortcut(x))


class SeriesClassifier(nn.Module):
    """Dilated convolutions over a multivariate series, a bidirectional GRU, mean pooling."""

    def __init__(self, n_features, n_classes, widths=(8, 12), hidden=10):
        super(SeriesClassifier, self).__init__()
        layers = []
        channels = n_features
        for i, width in enumerate(widths):
            layers.append(ConvBlock(channels, width, dilation=2**i))
            channels = width
        self.encoder = nn.Sequential(*layers)
        self.rnn = nn.GRU(channels, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, n_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv1d):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            elif isinstance(m, nn.BatchNorm1d):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        # (batch, time, features) -> (batch, features, time) for the convolutions
        h = self.encoder(x.permute(0, 2, 1))
        out, _ = self.rnn(h.permute(0, 2, 1))
        return self.head(torch.mean(out, dim=1))
