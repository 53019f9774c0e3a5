"""What omni models written in PyTorch share. Importing the package imports no torch; its modules do."""
