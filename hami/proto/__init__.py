"""Generated messages of the kubelet device-plugin API; `make proto` regenerates them."""
