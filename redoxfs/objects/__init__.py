"""Packed datasets in object stores: S3, Google Cloud Storage, Azure, and (read only) any web server.

``address``      the address of a dataset: s3://BUCKET/PREFIX and the like
``credentials``  the keys in the files of the AWS tools, which obstore does not read
``errors``       what obstore reports, as an OSError of one line without secrets
``client``       one object at a time: ranges with retries, a deadline and a version; an event loop in its own thread
``index``        fetches the index once, and keeps it; notes the version of each shard
``speed``        measures what a read costs
``store``        the chunk store
``archives``     tar archives that redoxfs did not write

obstore does the transfers, and is imported when the first address is used.
"""

from redoxfs.objects.address import Address, AddressError, is_address, parse_address

__all__ = ["Address", "AddressError", "is_address", "parse_address"]
