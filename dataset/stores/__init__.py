"""Files in object stores and on web servers, used as files of this machine are.

In: URLs such as s3://bucket/key. Out: paths of which only the bytes that are asked for are fetched, and files
that are visible when they are whole. Must not know: what a file holds.

Credentials come from the environment of each store's own library, and stand in no name, error or file.
"""
