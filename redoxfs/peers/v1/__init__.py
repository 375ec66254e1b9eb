"""What scripts/proto makes of proto/redoxfs/v1: not edited by hand."""
