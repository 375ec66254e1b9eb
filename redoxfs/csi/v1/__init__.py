"""What scripts/proto makes of proto/csi/v1, the Container Storage Interface: not edited by hand."""
