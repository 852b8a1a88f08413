"""Training batches made of datasets: ids, labels and what a teacher says of them.

In: token or score datasets. Out: a Parquet file with a row for each conversation.
Must not know: a trainer, or how tokens were scored.
"""
