"""The warning of transformers' models that see padding and no mask."""

from __future__ import annotations

import logging
from typing import Any

from mindspore import Tensor

logger = logging.getLogger(__name__)


class PaddingWarning:
    """For classes with a `config`."""

    config: Any
    _warned_of_padding = False

    def warn_if_padding_and_no_attention_mask(self, input_ids: Tensor, attention_mask: Tensor | None) -> None:
        """Once, when the first or last token of a text is padding and nothing masks it."""
        padding = self.config.pad_token_id
        if attention_mask is not None or padding is None or self._warned_of_padding:
            return
        tokens = input_ids.asnumpy()
        if not (tokens[:, [-1, 0]] == padding).any():
            return
        other = {self.config.bos_token_id, self.config.eos_token_id, getattr(self.config, "sep_token_id", None)}
        known = "" if padding not in other else f"; the padding token {padding} is also the token of another purpose"
        logger.warning("input_ids seem to be padded, and there is no attention_mask: padding takes part%s", known)
        self._warned_of_padding = True
