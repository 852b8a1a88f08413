"""How servers are asked for the logprobs of a prompt, and what they answer; a row a kind.

In: token ids, or the bytes of an answer. Out: a request, or rows of scores that belong to these ids.
Must not know: connections, other engines.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokscore.scoring.engines.server.dialects import echo, sglang, tokens_in, vllm
from tokscore.scoring.engines.server.dialects.dialect import Dialect

# In the order in which a server is asked whether it speaks them: those that give most come first, and one
# server may speak several.
DIALECTS: Mapping[str, Dialect] = {
    each.name: each for each in (sglang.DIALECT, vllm.DIALECT, tokens_in.DIALECT, echo.DIALECT)
}
