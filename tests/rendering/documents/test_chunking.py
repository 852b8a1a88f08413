"""Where the windows of a text lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokscore.dataset.errors import UsageError
from tokscore.rendering import RenderSettings
from tokscore.rendering.documents.chunking import Chunk, Chunking

lengths = st.integers(1, 200)


@given(lengths, st.integers(2, 60), st.data())
def test_with_a_stride_every_token_counts_once(n_tokens: int, size: int, data: st.DataObject) -> None:
    chunking = Chunking(size, data.draw(st.integers(1, size)), None)
    chunks = list(chunking.chunks(n_tokens))
    counted = [i for each in chunks for i in range(each.start + each.n_context, each.stop)]
    assert counted == [*range(n_tokens)]
    assert all(each.stop - each.start == size for each in chunks[:-1])


@given(lengths, st.integers(2, 60), st.data())
def test_with_context_windows_are_full_and_their_first_tokens_do_not_count(
    n_tokens: int, size: int, data: st.DataObject
) -> None:
    context = data.draw(st.integers(0, size - 1))
    chunking = Chunking(size, size, context)
    chunks = list(chunking.chunks(n_tokens))
    assert chunks == [Chunk(i * size, (i + 1) * size, context) for i in range(n_tokens // size)]
    assert chunking.n_left_out(n_tokens) == n_tokens % size


@given(lengths, st.integers(2, 60), st.data())
def test_with_both_no_window_is_cut_and_none_is_missing(
    n_tokens: int, size: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, size))
    chunks = list(Chunking(size, stride, size - stride).chunks(n_tokens))
    assert [each.start for each in chunks] == [*range(0, n_tokens - size + 1, stride)]
    assert {each.stop - each.start for each in chunks} <= {size}
    assert {each.n_context for each in chunks} <= {size - stride}


def test_llama_cpp_counts_what_is_behind_the_middle_token() -> None:
    """tools/perplexity/perplexity.cpp: `first = n_ctx/2`, and logits from there to `n_ctx - 2` count."""
    n_ctx = 512
    first = n_ctx // 2
    predicted = [j + 1 for j in range(first, n_ctx - 1)]
    (chunk,) = Chunking(n_ctx, n_ctx, 257).chunks(n_ctx)
    assert [*range(chunk.n_context, chunk.stop)] == predicted
    assert len(predicted) == n_ctx - first - 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stride": 8}, "`stride` is about chunks of text: give `chunk=N` as well."),
        ({"context": 8}, "`context` is about chunks of text: give `chunk=N` as well."),
        ({"chunk": 8, "stride": 9}, "`stride` is 9, and `chunk` 8; expected at most as much"),
        ({"chunk": 8, "context": 8}, "`context` is 8, and `chunk` 8; expected less"),
        ({"chunk": 1}, "`chunk` is 1; expected at least 2."),
        ({"chunk": 8, "stride": 0}, "`stride` is 0; expected at least 1."),
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        RenderSettings(**given)
    assert message in str(refused.value)


def test_without_a_chunk_a_text_stays_whole() -> None:
    assert Chunking.of(RenderSettings()) is None
    assert Chunking.of(RenderSettings(chunk=8)) == Chunking(8, 8, None)
