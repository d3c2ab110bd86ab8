"""The kubelet device plugin that speaks the protocol of HAMi."""
